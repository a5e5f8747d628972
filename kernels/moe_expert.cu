/* The experts' matrix products on a GPU: one launch over all groups, a block for each tile of a
 * group's product (kernels/gemm_tile.cuh).
 *
 * The groups are in device memory, and how many rows each has the host does not know. A launch
 * therefore has as many blocks as any groups of so many rows could need, each block finds its tile
 * by walking along the groups, and those that find none end at once. */
#include "kernels/expert_tile.cuh"
#include "kernels/tensor_tile.cuh"
extern "C" {
#include "kernels/gemm_audit.h"
#include "kernels/gemm_fast.h"
}

/* ---- expert matmul --------------------------------------------------------------------------- */

/* Continues a tile's chains over one pair of operands. */
template <class Tiles, bool TURNED>
static __device__ void add_pair(typename Tiles::slabs *slabs, const struct expert_matmul_args &args,
    const void *rows, const struct expert_matrices &matrices, typename Tiles::sums *sums)
{
    const int64_t element_bytes = dtype_bytes(args.type);
    const struct expert_group *group = &args.groups[slabs->tile.product];
    const void *from = (const char *)rows + group->first * args.k * element_bytes;
    const void *matrix = matrix_at(matrices, group->weight, args.n * args.k * element_bytes);
    const auto a = make_operand<true>(from, args.type, group->rows, args.k);
    const auto b = make_operand<TURNED>(matrix, args.type, args.n, TURNED ? args.k : args.n);
    add_chain(slabs, a, b, args.k, sums);
}

/* TURNED: the matrices are stored [n, k]. */
template <class Tiles, bool TURNED>
static __global__ void __launch_bounds__(Tiles::threads, Tiles::blocks)
    expert_matmul_kernel(const struct expert_matmul_args args, const int row_tiles)
{
    SHARED(typename Tiles::slabs, slabs);
    if (threadIdx.x == 0)
        slabs.tile = find_tile<Tiles::edge>(args, (int)blockIdx.x, row_tiles);
    __syncthreads();
    if (slabs.tile.product < 0)
        return;
    typename Tiles::sums sums;
    start_sums(&sums);
    add_pair<Tiles, TURNED>(&slabs, args, args.a, args.weights, &sums);
    if (args.a_then)
        add_pair<Tiles, TURNED>(&slabs, args, args.a_then, args.weights_then, &sums);
    const struct expert_group *group = &args.groups[slabs.tile.product];
    void *to = (char *)args.out + group->first * args.n * dtype_bytes(args.out_type);
    const struct gemm_result result = {to, args.out_type, group->rows, args.n, args.n};
    put_result(&sums, result, slabs.tile, false);
}

template <class Tiles> static int launch_matmul(const struct expert_matmul_args *args, void *stream)
{
    const int64_t row_tiles = most_row_tiles(args, Tiles::edge);
    const int64_t tiles = row_tiles * parts_of(args->n, Tiles::edge);
    const auto kernel = args->layout == GEMM_NT ? expert_matmul_kernel<Tiles, true>
                                                : expert_matmul_kernel<Tiles, false>;
    return launch(kernel, dim3((unsigned)tiles), dim3(Tiles::threads), 0, (cudaStream_t)stream,
        *args, (int)row_tiles);
}

extern "C" int expert_matmul_fast_cuda(const void *launched, void *stream)
{
    const struct expert_matmul_args *args = (const struct expert_matmul_args *)launched;
    if (args->rows <= 0 || args->group_count <= 0 || args->n <= 0)
        return cudaSuccess;
    return launch_matmul<tensor_tiles>(args, stream);
}

/* After a product on the fast path, which gave `error`. */
static int count_matmul(const struct expert_matmul_args *args, int error, void *stream)
{
    int64_t tiles;
    struct audit_tally *tally = gemm_fast_audit(&tiles);
    gemm_fast_count(GEMM_WAY_OWN, args->type);
    return error || !tally ? error : expert_matmul_audit(args, tally, tiles, stream);
}

/* Large tiles where the groups fill them on the average, and there are enough. */
extern "C" int expert_matmul_cuda(const void *launched, void *stream)
{
    const struct expert_matmul_args *args = (const struct expert_matmul_args *)launched;
    if (args->rows <= 0 || args->group_count <= 0 || args->n <= 0)
        return cudaSuccess;
    if (gemm_fast_takes_experts(args->type))
        return count_matmul(args, expert_matmul_fast_cuda(launched, stream), stream);
    gemm_fast_count(GEMM_WAY_EXACT, args->type);
    const int64_t large_tiles = args->rows / LARGE_EDGE * parts_of(args->n, LARGE_EDGE);
    if (args->rows < args->group_count * LARGE_EDGE || large_tiles < FEW_TILES)
        return launch_matmul<exact_tiles<SMALL_EDGE>>(args, stream);
    return launch_matmul<exact_tiles<LARGE_EDGE>>(args, stream);
}

/* ---- expert gradient ------------------------------------------------------------------------- */

template <class Tiles>
static __global__ void __launch_bounds__(Tiles::threads, Tiles::blocks) expert_gradient_kernel(
    const struct expert_gradient_args args, const int row_tiles, const int group_tiles)
{
    SHARED(typename Tiles::slabs, slabs);
    const int number = (int)blockIdx.x, tile = number % group_tiles;
    if (threadIdx.x == 0)
        slabs.tile = {tile % row_tiles, tile / row_tiles, number / group_tiles};
    __syncthreads();
    const struct expert_group *group = &args.groups[slabs.tile.product];
    const int64_t element_bytes = dtype_bytes(args.type), elements = args.m * args.n;
    float *gradient = group->weight < args.owned_count
                          ? args.owned + group->weight * elements
                          : args.lent + (group->weight - args.owned_count) * elements;
    const void *a_rows = (const char *)args.a + group->first * args.m * element_bytes;
    const void *b_rows = (const char *)args.b + group->first * args.n * element_bytes;
    const auto a = make_operand<false>(a_rows, args.type, args.m, args.m);
    const auto b = make_operand<false>(b_rows, args.type, args.n, args.n);
    const struct gemm_result result = {gradient, DTYPE_F32, args.m, args.n, args.n};
    make_tile<Tiles>(&slabs, (enum gemm_init)group->init, a, b, group->rows, result);
}

template <class Tiles>
static int launch_gradient(const struct expert_gradient_args *args, void *stream)
{
    const int64_t row_tiles = parts_of(args->m, Tiles::edge);
    const int64_t group_tiles = row_tiles * parts_of(args->n, Tiles::edge);
    return launch(expert_gradient_kernel<Tiles>, dim3((unsigned)(args->group_count * group_tiles)),
        dim3(Tiles::threads), 0, (cudaStream_t)stream, *args, (int)row_tiles, (int)group_tiles);
}

extern "C" int expert_gradient_fast_cuda(const void *launched, void *stream)
{
    const struct expert_gradient_args *args = (const struct expert_gradient_args *)launched;
    if (args->group_count <= 0 || args->m <= 0 || args->n <= 0)
        return cudaSuccess;
    return launch_gradient<tensor_tiles>(args, stream);
}

/* On the fast path. Only the device knows which gradients go on from what they hold, so that an
 * audit keeps all. */
static int make_and_audit(const struct expert_gradient_args *args, void *stream)
{
    const size_t matrix_bytes = (size_t)(args->m * args->n) * sizeof(float);
    const struct audit_part parts[] = {{args->owned, (size_t)args->owned_count * matrix_bytes},
        {args->lent, (size_t)args->lent_count * matrix_bytes}};
    int64_t tiles;
    struct audit_tally *tally = gemm_fast_audit(&tiles);
    gemm_fast_count(GEMM_WAY_OWN, args->type);
    float *before = tally ? audit_copy(parts, 2, stream) : NULL;
    int error = expert_gradient_fast_cuda(args, stream);
    if (before && !error)
        error = expert_gradient_audit(args, before, tally, tiles, stream);
    audit_drop(before, stream);
    return error;
}

extern "C" int expert_gradient_cuda(const void *launched, void *stream)
{
    const struct expert_gradient_args *args = (const struct expert_gradient_args *)launched;
    if (args->group_count <= 0 || args->m <= 0 || args->n <= 0)
        return cudaSuccess;
    if (gemm_fast_takes_experts(args->type))
        return make_and_audit(args, stream);
    gemm_fast_count(GEMM_WAY_EXACT, args->type);
    const int64_t large_tiles = parts_of(args->m, LARGE_EDGE) * parts_of(args->n, LARGE_EDGE);
    if (args->group_count * large_tiles < FEW_TILES)
        return launch_gradient<exact_tiles<SMALL_EDGE>>(args, stream);
    return launch_gradient<exact_tiles<LARGE_EDGE>>(args, stream);
}
