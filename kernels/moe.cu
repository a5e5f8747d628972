/* The elementwise and row-wise kernels of expert dispatch on a GPU. */
#include "kernels/elements.cuh"
extern "C" {
#include "kernels/moe.h"
}

/* ---- activation ------------------------------------------------------------------------------ */

template <enum dtype TYPE> struct activation {
    struct expert_activation_args args;

    template <int N> __device__ void apply(int64_t at) const
    {
        float g[N], u[N], a[N];
        if (args.g)
            load<TYPE>(args.g, at, g);
        if (args.u)
            load<TYPE>(args.u, at, u);
        for (int i = 0; i < N; i++) {
            if (!args.g)
                a[i] = arith_max(u[i], 0.0f);
            else if (!args.u)
                a[i] = arith_silu(g[i]);
            else
                a[i] = arith_silu(g[i]) * u[i];
        }
        store<TYPE>(args.a, at, a);
    }
};

extern "C" int expert_activation_cuda(const void *launched, void *stream)
{
    const struct expert_activation_args *args = (const struct expert_activation_args *)launched;
    const bool aligned = pack_aligned(args->g) && pack_aligned(args->u) && pack_aligned(args->a);
    if (args->type == DTYPE_BF16)
        return launch_each(activation<DTYPE_BF16>{*args}, args->count, aligned, stream);
    return launch_each(activation<DTYPE_F32>{*args}, args->count, aligned, stream);
}

template <enum dtype TYPE> struct activation_backward {
    struct expert_activation_backward_args args;

    template <int N> __device__ void apply(int64_t at) const
    {
        float g[N], u[N], dh[N], dg[N], du[N];
        load<TYPE>(args.u, at, u);
        load<TYPE>(args.dh, at, dh);
        if (!args.g) {
            for (int i = 0; i < N; i++)
                du[i] = u[i] > 0.0f ? dh[i] : 0.0f;
            store<TYPE>(args.du, at, du);
            return;
        }
        load<TYPE>(args.g, at, g);
        for (int i = 0; i < N; i++) {
            const float s = arith_sigmoid(g[i]);
            du[i] = dh[i] * (g[i] * s);
            dg[i] = (dh[i] * u[i]) * (s * fmaf(g[i], 1.0f - s, 1.0f));
        }
        store<TYPE>(args.dg, at, dg);
        store<TYPE>(args.du, at, du);
    }
};

extern "C" int expert_activation_backward_cuda(const void *launched, void *stream)
{
    const struct expert_activation_backward_args *args =
        (const struct expert_activation_backward_args *)launched;
    const bool aligned = pack_aligned(args->u) && pack_aligned(args->dh) &&
                         pack_aligned(args->du) &&
                         (!args->g || (pack_aligned(args->g) && pack_aligned(args->dg)));
    if (args->type == DTYPE_BF16)
        return launch_each(activation_backward<DTYPE_BF16>{*args}, args->count, aligned, stream);
    return launch_each(activation_backward<DTYPE_F32>{*args}, args->count, aligned, stream);
}

/* ---- combine ---------------------------------------------------------------------------------
 * Threads run along a token's columns; each reads the token's positions, the same for all of them,
 * and asks for the rows of SLOTS_AHEAD slots before it adds the first. */

enum { SLOTS_AHEAD = 4 };

template <enum dtype FROM, int N>
static __device__ void combine_columns(const struct combine_rows_args &args,
    const int32_t *position, int64_t token, int64_t at, float (&sum)[N])
{
    const float *weight = args.weight ? args.weight + token * args.slots : NULL;
    bool any = false;
    for (int i = 0; i < N; i++)
        sum[i] = 0.0f;
    if (args.continued)
        load<DTYPE_F32>(args.to, token * args.columns + at, sum);
    for (int first = 0; first < args.slots; first += SLOTS_AHEAD) {
        float rows[SLOTS_AHEAD][N];
        int64_t positions[SLOTS_AHEAD];
#pragma unroll
        for (int slot = 0; slot < SLOTS_AHEAD; slot++) {
            positions[slot] = first + slot < args.slots ? position[first + slot] : -1;
            if (positions[slot] >= 0)
                load<FROM>(args.from, positions[slot] * args.columns + at, rows[slot]);
        }
#pragma unroll
        for (int slot = 0; slot < SLOTS_AHEAD; slot++) {
            if (positions[slot] < 0)
                continue;
            const float w = weight ? weight[first + slot] : 1.0f;
            for (int i = 0; i < N; i++) {
                if (args.take_first && !any)
                    sum[i] = rows[slot][i];
                else if (weight)
                    sum[i] = fmaf(w, rows[slot][i], sum[i]);
                else
                    sum[i] = sum[i] + rows[slot][i];
            }
            any = true;
        }
    }
}

template <enum dtype FROM, enum dtype TO, int N>
static __device__ void combine_part(
    const struct combine_rows_args &args, int64_t i, int64_t token, int64_t at)
{
    float sum[N];
    combine_columns<FROM>(args, args.position + i * args.slots, token, at, sum);
    store<TO>(args.to, token * args.columns + at, sum);
}

/* packs: of a row's columns; the rest goes element by element. */
template <enum dtype FROM, enum dtype TO>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    combine_tokens(const struct combine_rows_args args, const int64_t packs)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= args.count)
        return;
    const int64_t token = args.token ? args.token[i] : i;
    for (int64_t pack = threadIdx.x; pack < packs; pack += blockDim.x)
        combine_part<FROM, TO, PACK>(args, i, token, pack * PACK);
    for (int64_t at = packs * PACK + threadIdx.x; at < args.columns; at += blockDim.x)
        combine_part<FROM, TO, 1>(args, i, token, at);
}

template <enum dtype FROM, enum dtype TO>
static int launch_combine(const struct combine_rows_args *args, void *stream)
{
    const bool aligned = pack_aligned(args->from) && pack_aligned(args->to) &&
                         args->columns * 2 % PACK_ALIGNMENT == 0;
    const int64_t packs = aligned ? args->columns / PACK : 0;
    const int64_t units = packs + (args->columns - packs * PACK);
    const int along = threads_along(units), tokens = BLOCK_THREADS / along;
    if (args->count <= 0 || args->columns <= 0)
        return cudaSuccess;
    return launch(combine_tokens<FROM, TO>, dim3((unsigned)parts_of(args->count, tokens)),
        dim3((unsigned)along, (unsigned)tokens), 0, (cudaStream_t)stream, *args, packs);
}

extern "C" int combine_rows_cuda(const void *launched, void *stream)
{
    const struct combine_rows_args *args = (const struct combine_rows_args *)launched;
    const bool to_bf16 = args->to_type == DTYPE_BF16;
    if (args->from_type == DTYPE_BF16)
        return to_bf16 ? launch_combine<DTYPE_BF16, DTYPE_BF16>(args, stream)
                       : launch_combine<DTYPE_BF16, DTYPE_F32>(args, stream);
    return to_bf16 ? launch_combine<DTYPE_F32, DTYPE_BF16>(args, stream)
                   : launch_combine<DTYPE_F32, DTYPE_F32>(args, stream);
}

/* ---- backward at a route ---------------------------------------------------------------------
 * A warp for each route: the row of dy is read once, for dw and for de. */

template <enum dtype TYPE, int N>
static __device__ void scale_part(const void *dy, float weight, int64_t at, void *de)
{
    float values[N];
    load<TYPE>(dy, at, values);
    for (int i = 0; i < N; i++)
        values[i] = weight * values[i];
    store<TYPE>(de, at, values);
}

template <enum dtype TYPE>
static __global__ void route_backward_rows(
    const struct route_backward_args args, const struct row_launch plan, const bool aligned)
{
    DYNAMIC_SHARED(char, shared);
    const int64_t i = warp_row(plan.warps), columns = args.columns;
    const int64_t row_bytes = columns * dtype_bytes(TYPE);
    if (i >= args.count)
        return;
    const int64_t t = args.dy_row ? args.dy_row[i] : i, route = args.route ? args.route[i] : i;
    const void *dy = stage_row(plan, shared, 0, (const char *)args.dy + t * row_bytes, row_bytes);
    if (args.dw) {
        const void *e = stage_row(plan, shared, 1, (const char *)args.e + i * row_bytes, row_bytes);
        float sum = 0.0f;
        __syncwarp();
#pragma unroll 8
        for (int64_t at = warp_lane(); at < columns; at += WARP)
            sum = fmaf(element<TYPE>(e, at), element<TYPE>(dy, at), sum);
        sum = add_lanes(sum);
        if (warp_lane() == 0)
            args.dw[route] = sum;
    }
    __syncwarp();
    if (!args.de)
        return;
    void *de = (char *)args.de + i * row_bytes;
    const float weight = args.weight[route];
    const int64_t packs = aligned ? columns / PACK : 0;
    for (int64_t pack = warp_lane(); pack < packs; pack += WARP)
        scale_part<TYPE, PACK>(dy, weight, pack * PACK, de);
    for (int64_t at = packs * PACK + warp_lane(); at < columns; at += WARP)
        scale_part<TYPE, 1>(dy, weight, at, de);
}

template <enum dtype TYPE>
static int launch_route_backward(const struct route_backward_args *args, void *stream)
{
    const int64_t row_bytes = args->columns * dtype_bytes(TYPE);
    const row_launch plan = plan_rows(row_bytes, args->dw ? 2 : 1);
    const bool aligned =
        pack_aligned(args->dy) && pack_aligned(args->de) && row_bytes % PACK_ALIGNMENT == 0;
    if (args->count <= 0)
        return cudaSuccess;
    return launch(route_backward_rows<TYPE>, row_blocks(plan, args->count), row_threads(plan),
        row_shared_bytes(plan), (cudaStream_t)stream, *args, plan, aligned);
}

extern "C" int route_backward_cuda(const void *launched, void *stream)
{
    const struct route_backward_args *args = (const struct route_backward_args *)launched;
    if (args->type == DTYPE_BF16)
        return launch_route_backward<DTYPE_BF16>(args, stream);
    return launch_route_backward<DTYPE_F32>(args, stream);
}
