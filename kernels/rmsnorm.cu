/* RMSNorm, its backward, and the residual addition on a GPU: a warp for each row, which it holds in
 * shared memory between the row's sum and its elements. */
#include "kernels/elements.cuh"
extern "C" {
#include "kernels/rmsnorm.h"
}

/* ---- forward --------------------------------------------------------------------------------- */

template <enum dtype TYPE, int N>
static __device__ void forward_part(
    const struct rmsnorm_args &args, const void *x_row, float r, int64_t row, int64_t at)
{
    float x[N], gain[N];
    load<TYPE>(x_row, at, x);
    load<TYPE>(args.gain, at, gain);
    for (int i = 0; i < N; i++)
        x[i] = (x[i] * r) * gain[i];
    store<TYPE>(args.n, row * args.columns + at, x);
}

template <enum dtype TYPE>
static __global__ void forward_rows(
    const struct rmsnorm_args args, const struct row_launch plan, const int64_t packs)
{
    DYNAMIC_SHARED(char, shared);
    const int64_t row = warp_row(plan.warps), row_bytes = args.columns * dtype_bytes(TYPE);
    if (row >= args.rows)
        return;
    const void *x = stage_row(plan, shared, 0, (const char *)args.x + row * row_bytes, row_bytes);
    float sum = 0.0f;
    __syncwarp();
#pragma unroll 8
    for (int64_t at = warp_lane(); at < args.columns; at += WARP)
        sum = sum + element<TYPE>(x, at) * element<TYPE>(x, at);
    const float mean = add_lanes(sum) / (float)args.columns;
    const float r = 1.0f / sqrtf(mean + RMSNORM_EPS);
    if (warp_lane() == 0)
        args.r[row] = r;
    for (int64_t pack = warp_lane(); pack < packs; pack += WARP)
        forward_part<TYPE, PACK>(args, x, r, row, pack * PACK);
    for (int64_t at = packs * PACK + warp_lane(); at < args.columns; at += WARP)
        forward_part<TYPE, 1>(args, x, r, row, at);
}

template <enum dtype TYPE> static int launch_forward(const struct rmsnorm_args *args, void *stream)
{
    const int64_t row_bytes = args->columns * dtype_bytes(TYPE);
    const row_launch plan = plan_rows(row_bytes, 1);
    const bool aligned = pack_aligned(args->x) && pack_aligned(args->gain) &&
                         pack_aligned(args->n) && row_bytes % PACK_ALIGNMENT == 0;
    if (args->rows <= 0)
        return cudaSuccess;
    return launch(forward_rows<TYPE>, row_blocks(plan, args->rows), row_threads(plan),
        row_shared_bytes(plan), (cudaStream_t)stream, *args, plan,
        aligned ? args->columns / PACK : 0);
}

extern "C" int rmsnorm_cuda(const void *launched, void *stream)
{
    const struct rmsnorm_args *args = (const struct rmsnorm_args *)launched;
    if (args->type == DTYPE_BF16)
        return launch_forward<DTYPE_BF16>(args, stream);
    return launch_forward<DTYPE_F32>(args, stream);
}

/* ---- backward -------------------------------------------------------------------------------- */

template <enum dtype TYPE, int N>
static __device__ void backward_part(const struct rmsnorm_backward_args &args, const void *x_row,
    const void *dn_row, float r, float c, int64_t row, int64_t at)
{
    float x[N], gain[N], dn[N], dy[N];
    load<TYPE>(x_row, at, x);
    load<TYPE>(dn_row, at, dn);
    load<TYPE>(args.gain, at, gain);
    load<TYPE>(args.dy, row * args.columns + at, dy);
    for (int i = 0; i < N; i++)
        dy[i] = dy[i] + r * fmaf(-c, x[i], dn[i] * gain[i]);
    store<TYPE>(args.dx, row * args.columns + at, dy);
}

template <enum dtype TYPE>
static __global__ void backward_rows(
    const struct rmsnorm_backward_args args, const struct row_launch plan, const int64_t packs)
{
    DYNAMIC_SHARED(char, shared);
    const int64_t row = warp_row(plan.warps), row_bytes = args.columns * dtype_bytes(TYPE);
    if (row >= args.rows)
        return;
    const void *x = stage_row(plan, shared, 0, (const char *)args.x + row * row_bytes, row_bytes);
    const void *dn = stage_row(plan, shared, 1, (const char *)args.dn + row * row_bytes, row_bytes);
    float sum = 0.0f;
    __syncwarp();
#pragma unroll 8
    for (int64_t at = warp_lane(); at < args.columns; at += WARP) {
        const float q = element<TYPE>(dn, at) * element<TYPE>(args.gain, at);
        sum = fmaf(q, element<TYPE>(x, at), sum);
    }
    const float r = args.r[row];
    const float c = (r * r) * (add_lanes(sum) / (float)args.columns);
    for (int64_t pack = warp_lane(); pack < packs; pack += WARP)
        backward_part<TYPE, PACK>(args, x, dn, r, c, row, pack * PACK);
    for (int64_t at = packs * PACK + warp_lane(); at < args.columns; at += WARP)
        backward_part<TYPE, 1>(args, x, dn, r, c, row, at);
}

template <enum dtype TYPE>
static int launch_backward(const struct rmsnorm_backward_args *args, void *stream)
{
    const int64_t row_bytes = args->columns * dtype_bytes(TYPE);
    const row_launch plan = plan_rows(row_bytes, 2);
    const bool aligned = pack_aligned(args->x) && pack_aligned(args->gain) &&
                         pack_aligned(args->dn) && pack_aligned(args->dy) &&
                         pack_aligned(args->dx) && row_bytes % PACK_ALIGNMENT == 0;
    if (args->rows <= 0)
        return cudaSuccess;
    return launch(backward_rows<TYPE>, row_blocks(plan, args->rows), row_threads(plan),
        row_shared_bytes(plan), (cudaStream_t)stream, *args, plan,
        aligned ? args->columns / PACK : 0);
}

extern "C" int rmsnorm_backward_cuda(const void *launched, void *stream)
{
    const struct rmsnorm_backward_args *args = (const struct rmsnorm_backward_args *)launched;
    if (args->type == DTYPE_BF16)
        return launch_backward<DTYPE_BF16>(args, stream);
    return launch_backward<DTYPE_F32>(args, stream);
}

/* ---- gradient of the gain --------------------------------------------------------------------
 * A column is one chain over all rows: as many threads as columns is all the arithmetic there is.
 * Loading has more of them: a block takes few columns, all its threads fetch a tile of rows into
 * registers and then shared memory, while the chains of the tile before run. Rows past the end are
 * -0 times +0, which changes no chain. */

enum {
    GAIN_COLUMNS = 16,
    GAIN_STEP = BLOCK_THREADS / GAIN_COLUMNS, /* rows that are fetched side by side */
    GAIN_EACH = 8,                            /* rows that a thread fetches */
    GAIN_ROWS = GAIN_STEP * GAIN_EACH
};

struct gain_tile {
    float dn[GAIN_ROWS][GAIN_COLUMNS], scaled_x[GAIN_ROWS][GAIN_COLUMNS];
};

struct gain_fetch {
    float dn[GAIN_EACH], scaled_x[GAIN_EACH];
};

template <enum dtype TYPE>
static __device__ void fetch_gain(const struct rmsnorm_gain_args &args, int64_t first_row,
    int64_t column, struct gain_fetch *next)
{
#pragma unroll
    for (int i = 0; i < GAIN_EACH; i++) {
        const int64_t row = first_row + i * GAIN_STEP + threadIdx.x / GAIN_COLUMNS;
        const bool present = row < args.rows && column < args.columns;
        const int64_t at = row * args.columns + column;
        next->dn[i] = present ? element<TYPE>(args.dn, at) : -0.0f;
        next->scaled_x[i] = present ? element<TYPE>(args.x, at) * args.r[row] : 0.0f;
    }
}

static __device__ void put_gain(const struct gain_fetch &next, struct gain_tile *tile)
{
#pragma unroll
    for (int i = 0; i < GAIN_EACH; i++) {
        const int row = i * GAIN_STEP + (int)threadIdx.x / GAIN_COLUMNS;
        tile->dn[row][threadIdx.x % GAIN_COLUMNS] = next.dn[i];
        tile->scaled_x[row][threadIdx.x % GAIN_COLUMNS] = next.scaled_x[i];
    }
}

template <enum dtype TYPE>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    gain_columns(const struct rmsnorm_gain_args args)
{
    SHARED(struct gain_tile[2], tiles);
    const int64_t column = (int64_t)blockIdx.x * GAIN_COLUMNS + threadIdx.x % GAIN_COLUMNS;
    struct gain_fetch next;
    float sum = 0.0f;
    fetch_gain<TYPE>(args, 0, column, &next);
    put_gain(next, &tiles[0]);
    __syncthreads();
    int half = 0;
    for (int64_t row = 0; row < args.rows; row += GAIN_ROWS, half = 1 - half) {
        const struct gain_tile *tile = &tiles[half];
        fetch_gain<TYPE>(args, row + GAIN_ROWS, column, &next);
        if (threadIdx.x < GAIN_COLUMNS)
#pragma unroll 16
            for (int i = 0; i < GAIN_ROWS; i++)
                sum = fmaf(tile->dn[i][threadIdx.x], tile->scaled_x[i][threadIdx.x], sum);
        put_gain(next, &tiles[1 - half]);
        __syncthreads();
    }
    if (threadIdx.x < GAIN_COLUMNS && column < args.columns)
        args.dgain[column] = sum;
}

extern "C" int rmsnorm_gain_cuda(const void *launched, void *stream)
{
    const struct rmsnorm_gain_args *args = (const struct rmsnorm_gain_args *)launched;
    return launch(args->type == DTYPE_BF16 ? gain_columns<DTYPE_BF16> : gain_columns<DTYPE_F32>,
        dim3((unsigned)parts_of(args->columns, GAIN_COLUMNS)), dim3(BLOCK_THREADS), 0,
        (cudaStream_t)stream, *args);
}

/* ---- residual -------------------------------------------------------------------------------- */

template <enum dtype TYPE> struct add_residual {
    struct residual_add_args args;

    template <int N> __device__ void apply(int64_t at) const
    {
        float to[N], from[N];
        load<TYPE>(args.to, at, to);
        load<TYPE>(args.from, at, from);
        for (int i = 0; i < N; i++)
            to[i] = to[i] + from[i];
        store<TYPE>(args.to, at, to);
    }
};

extern "C" int residual_add_cuda(const void *launched, void *stream)
{
    const struct residual_add_args *args = (const struct residual_add_args *)launched;
    const bool aligned = pack_aligned(args->to) && pack_aligned(args->from);
    if (args->type == DTYPE_BF16)
        return launch_each(add_residual<DTYPE_BF16>{*args}, args->count, aligned, stream);
    return launch_each(add_residual<DTYPE_F32>{*args}, args->count, aligned, stream);
}
