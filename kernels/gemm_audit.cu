/* The audit of products: a block for each tile of 64 x 64 elements, a thread for 4 x 4 of them, the
 * sum and the sum of sizes of each in FP64. Nothing is shared with the kernels that it audits but
 * where groups lie. It runs once in a checked case and is written to be plain. */
#include "kernels/expert_tile.cuh"
extern "C" {
#include "kernels/gemm_audit.h"
#include "kernels/gemm_fast.h"
}

#define AUDIT_LARGEST 0x1p127 /* what the sums of sizes must stay below: BF16's range, with room */

enum { AUDIT_EDGE = 64, AUDIT_DEPTH = 16, AUDIT_THREADS = 256, EACH = 4, ACROSS = 16 };

/* Rows of A, or columns of B, by k: element (row, k) at row * ld + k where k runs along memory. */
struct audit_operand {
    const void *from;
    enum dtype type;
    int64_t ld;
    bool along;
};

struct audit_pair {
    struct audit_operand a, b;
    int64_t k;
};

struct audit_product {
    struct audit_pair first, then; /* then.k = 0: none */
    int64_t rows, columns, ld;
    const float *before; /* NULL: +0 */
    const void *after;
    enum dtype type;
};

struct audit_slabs {
    double a[AUDIT_DEPTH][AUDIT_EDGE], b[AUDIT_DEPTH][AUDIT_EDGE];
    struct gemm_tile tile;
    unsigned long long elements, outside;
    unsigned int worst_bits;
};

struct audit_sums {
    double sum[EACH][EACH], size[EACH][EACH];
};

/* ---- sums ------------------------------------------------------------------------------------ */

static __device__ double operand_at(const struct audit_operand &operand, int64_t row, int64_t k)
{
    const int64_t at = operand.along ? row * operand.ld + k : k * operand.ld + row;
    return operand.type == DTYPE_BF16 ? (double)element<DTYPE_BF16>(operand.from, at)
                                      : (double)element<DTYPE_F32>(operand.from, at);
}

/* Rows [first, first + AUDIT_EDGE) of the operand, k from `k` on; 0 past its ends. */
static __device__ void put_slab(const struct audit_operand &operand, int64_t first, int64_t rows,
    int64_t k, int64_t k_end, double (*slab)[AUDIT_EDGE])
{
    for (int i = (int)threadIdx.x; i < AUDIT_EDGE * AUDIT_DEPTH; i += AUDIT_THREADS) {
        const int row = i % AUDIT_EDGE, depth = i / AUDIT_EDGE;
        const bool exists = first + row < rows && k + depth < k_end;
        slab[depth][row] = exists ? operand_at(operand, first + row, k + depth) : 0.0;
    }
}

static __device__ void add_pair(struct audit_slabs *slabs, const struct audit_product &product,
    const struct audit_pair &pair, struct audit_sums *sums)
{
    const int64_t row = (int64_t)slabs->tile.row * AUDIT_EDGE;
    const int64_t column = (int64_t)slabs->tile.column * AUDIT_EDGE;
    const int first_row = (int)threadIdx.x / ACROSS, first_column = (int)threadIdx.x % ACROSS;
    for (int64_t k = 0; k < pair.k; k += AUDIT_DEPTH) {
        __syncthreads();
        put_slab(pair.a, row, product.rows, k, pair.k, slabs->a);
        put_slab(pair.b, column, product.columns, k, pair.k, slabs->b);
        __syncthreads();
        for (int depth = 0; depth < AUDIT_DEPTH; depth++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const double term = slabs->a[depth][first_row + i * ACROSS] *
                                        slabs->b[depth][first_column + j * ACROSS];
                    sums->sum[i][j] += term;
                    sums->size[i][j] += fabs(term);
                }
    }
}

/* ---- the judgement --------------------------------------------------------------------------- */

/* How far from `value` a number must be to be stored as `bits`: 0 where value itself is. */
static __device__ double distance_to_bf16(uint16_t bits, double value)
{
    const double stored = (double)bf16_to_f32(bits);
    const uint16_t size = (uint16_t)(bits & 0x7fff);
    if (size >= 0x7f80)
        return INFINITY;
    /* Halfway to the neighbours in size; those of 0 are the smallest on either side. */
    const double above = (double)bf16_to_f32((uint16_t)(size + 1)) - fabs(stored);
    const double below = size ? fabs(stored) - (double)bf16_to_f32((uint16_t)(size - 1)) : above;
    const bool outwards = fabs(value) > fabs(stored) && (value < 0) == (stored < 0);
    const double reach = 0.5 * (outwards || !size ? above : below);
    return fmax(0.0, fabs(value - stored) - reach);
}

static __device__ void judge_element(struct audit_slabs *slabs, const struct audit_product &product,
    int64_t at, double sum, double size)
{
    const double start = product.before ? (double)product.before[at] : 0.0;
    const double value = sum + start, all = size + fabs(start);
    const double terms = (double)(product.first.k + product.then.k + 2);
    const double bound = terms * (0x1.8p-23 * all + 0x1p-149);
    if (!(all + bound < AUDIT_LARGEST))
        return;
    const double error = product.type == DTYPE_BF16
                             ? distance_to_bf16(((const uint16_t *)product.after)[at], value)
                             : fabs((double)((const float *)product.after)[at] - value);
    const double share = error / bound;
    atomicAdd(&slabs->elements, 1ull);
    if (!(share <= 1.0))
        atomicAdd(&slabs->outside, 1ull);
    atomicMax(&slabs->worst_bits, share >= 0 ? f32_bits((float)share) : 0x7f800000u);
}

/* All threads of the block; the tile is set and they have met since. */
static __device__ void audit_tile(
    struct audit_slabs *slabs, const struct audit_product &product, struct audit_tally *tally)
{
    struct audit_sums sums = {};
    add_pair(slabs, product, product.first, &sums);
    add_pair(slabs, product, product.then, &sums);
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t row =
                (int64_t)slabs->tile.row * AUDIT_EDGE + (int)threadIdx.x / ACROSS + i * ACROSS;
            const int64_t column =
                (int64_t)slabs->tile.column * AUDIT_EDGE + (int)threadIdx.x % ACROSS + j * ACROSS;
            if (row < product.rows && column < product.columns)
                judge_element(
                    slabs, product, row * product.ld + column, sums.sum[i][j], sums.size[i][j]);
        }
    __syncthreads();
    if (threadIdx.x)
        return;
    atomicAdd(&tally->elements, slabs->elements);
    atomicAdd(&tally->outside, slabs->outside);
    atomicMax(&tally->worst_bits, slabs->worst_bits);
}

static __device__ void start_tile(struct audit_slabs *slabs, struct gemm_tile tile)
{
    if (threadIdx.x == 0) {
        slabs->tile = tile;
        slabs->elements = slabs->outside = 0;
        slabs->worst_bits = 0;
    }
    __syncthreads();
}

/* The block's tile of all; `looked_at` blocks are evenly spread over them. */
static __device__ int tile_number(int64_t tiles)
{
    return (int)((int64_t)blockIdx.x * tiles / gridDim.x);
}

static unsigned looked_at(int64_t tiles, int64_t most)
{
    return (unsigned)(most && most < tiles ? most : tiles);
}

/* ---- the kernels ----------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(AUDIT_THREADS) audit_gemm(const struct gemm_args args,
    const float *before, const int row_tiles, const int64_t tiles, struct audit_tally *tally)
{
    SHARED(struct audit_slabs, slabs);
    const int number = tile_number(tiles);
    start_tile(&slabs, {number % row_tiles, number / row_tiles, 0});
    const struct audit_pair pair = {{args.a, args.a_type, args.lda, args.layout != GEMM_TN},
        {args.b, args.b_type, args.ldb, args.layout == GEMM_NT}, args.k};
    audit_tile(&slabs, {pair, {}, args.m, args.n, args.ldc, before, args.c, DTYPE_F32}, tally);
}

static __device__ struct audit_pair matmul_pair(const struct expert_matmul_args &args,
    const struct expert_group &group, const void *rows, const struct expert_matrices &matrices)
{
    const int64_t bytes = dtype_bytes(args.type);
    const bool turned = args.layout == GEMM_NT;
    return {{(const char *)rows + group.first * args.k * bytes, args.type, args.k, true},
        {matrix_at(matrices, group.weight, args.n * args.k * bytes), args.type,
            turned ? args.k : args.n, turned},
        args.k};
}

static __global__ void __launch_bounds__(AUDIT_THREADS)
    audit_expert_matmul(const struct expert_matmul_args args, const int row_tiles,
        const int64_t tiles, struct audit_tally *tally)
{
    SHARED(struct audit_slabs, slabs);
    start_tile(&slabs, find_tile<AUDIT_EDGE>(args, tile_number(tiles), row_tiles));
    if (slabs.tile.product < 0)
        return;
    const struct expert_group &group = args.groups[slabs.tile.product];
    struct audit_product product = {matmul_pair(args, group, args.a, args.weights), {}, group.rows,
        args.n, args.n, NULL,
        (const char *)args.out + group.first * args.n * dtype_bytes(args.out_type), args.out_type};
    if (args.a_then)
        product.then = matmul_pair(args, group, args.a_then, args.weights_then);
    audit_tile(&slabs, product, tally);
}

static __global__ void __launch_bounds__(AUDIT_THREADS)
    audit_expert_gradient(const struct expert_gradient_args args, const float *before,
        const int row_tiles, const int group_tiles, const int64_t tiles, struct audit_tally *tally)
{
    SHARED(struct audit_slabs, slabs);
    const int number = tile_number(tiles), tile = number % group_tiles;
    start_tile(&slabs, {tile % row_tiles, tile / row_tiles, number / group_tiles});
    const struct expert_group &group = args.groups[slabs.tile.product];
    const int64_t bytes = dtype_bytes(args.type), elements = args.m * args.n;
    const bool fresh = group.init == GEMM_FRESH;
    const float *after = group.weight < args.owned_count
                             ? args.owned + group.weight * elements
                             : args.lent + (group.weight - args.owned_count) * elements;
    const struct audit_pair pair = {
        {(const char *)args.a + group.first * args.m * bytes, args.type, args.m, false},
        {(const char *)args.b + group.first * args.n * bytes, args.type, args.n, false},
        group.rows};
    audit_tile(&slabs,
        {pair, {}, args.m, args.n, args.n, fresh ? NULL : before + group.weight * elements, after,
            DTYPE_F32},
        tally);
}

/* ---- what was there before ------------------------------------------------------------------ */

extern "C" float *audit_copy(const struct audit_part *parts, int count, void *cuda_stream)
{
    const cudaStream_t stream = (cudaStream_t)cuda_stream;
    size_t bytes = 1; /* never 0 */
    char *copy = NULL;
    for (int i = 0; i < count; i++)
        bytes += parts[i].bytes;
    cudaError_t error = cudaMallocAsync((void **)&copy, bytes, stream);
    char *to = copy;
    for (int i = 0; i < count && error == cudaSuccess; to += parts[i++].bytes)
        if (parts[i].bytes)
            error = cudaMemcpyAsync(
                to, parts[i].from, parts[i].bytes, cudaMemcpyDeviceToDevice, stream);
    if (error == cudaSuccess)
        return (float *)(void *)copy;
    cudaGetLastError(); /* it is told by the count */
    gemm_fast_unaudited();
    audit_drop((float *)(void *)copy, stream);
    return NULL;
}

extern "C" void audit_drop(float *copy, void *stream)
{
    if (copy)
        cudaFreeAsync(copy, (cudaStream_t)stream);
}

/* ---- launches -------------------------------------------------------------------------------- */

extern "C" int gemm_audit(const struct gemm_args *args, const float *before,
    struct audit_tally *tally, int64_t most, void *stream)
{
    const int64_t row_tiles = parts_of(args->m, AUDIT_EDGE);
    const int64_t tiles = row_tiles * parts_of(args->n, AUDIT_EDGE);
    return launch(audit_gemm, dim3(looked_at(tiles, most)), dim3(AUDIT_THREADS), 0,
        (cudaStream_t)stream, *args, before, (int)row_tiles, tiles, tally);
}

extern "C" int expert_matmul_audit(
    const struct expert_matmul_args *args, struct audit_tally *tally, int64_t most, void *stream)
{
    const int64_t row_tiles = most_row_tiles(args, AUDIT_EDGE);
    const int64_t tiles = row_tiles * parts_of(args->n, AUDIT_EDGE);
    return launch(audit_expert_matmul, dim3(looked_at(tiles, most)), dim3(AUDIT_THREADS), 0,
        (cudaStream_t)stream, *args, (int)row_tiles, tiles, tally);
}

extern "C" int expert_gradient_audit(const struct expert_gradient_args *args, const float *before,
    struct audit_tally *tally, int64_t most, void *stream)
{
    const int64_t row_tiles = parts_of(args->m, AUDIT_EDGE);
    const int64_t group_tiles = row_tiles * parts_of(args->n, AUDIT_EDGE);
    const int64_t tiles = args->group_count * group_tiles;
    return launch(audit_expert_gradient, dim3(looked_at(tiles, most)), dim3(AUDIT_THREADS), 0,
        (cudaStream_t)stream, *args, before, (int)row_tiles, (int)group_tiles, tiles, tally);
}
