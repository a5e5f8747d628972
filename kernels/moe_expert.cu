/* The experts' matrix products on a GPU: one launch over all groups, a block for each tile of a
 * group's product (kernels/gemm_tile.cuh).
 *
 * The groups are in device memory, and how many rows each has the host does not know. A launch
 * therefore has as many blocks as any groups of so many rows could need, each block finds its tile
 * by walking along the groups, and those that find none end at once. */
#include "kernels/gemm_tile.cuh"
extern "C" {
#include "kernels/moe.h"
}

static __device__ const void *matrix_at(
    const struct expert_matrices &matrices, int64_t number, int64_t matrix_bytes)
{
    if (number < matrices.owned_count)
        return (const char *)matrices.owned + number * matrix_bytes;
    return (const char *)matrices.lent + (number - matrices.owned_count) * matrix_bytes;
}

/* ---- expert matmul --------------------------------------------------------------------------- */

/* The most tiles of rows that groups can have: each may end with one that is not full. */
static int64_t most_row_tiles(const struct expert_matmul_args *args, int edge)
{
    return args->rows / edge + args->group_count;
}

/* Continues a tile's chains over one pair of operands. */
template <int EDGE>
static __device__ void add_pair(struct gemm_slabs<EDGE> *slabs,
    const struct expert_matmul_args &args, const struct expert_group &group, const void *rows,
    const struct expert_matrices &matrices, int64_t row, int64_t column,
    struct gemm_sums<EDGE> *sums)
{
    const int64_t element_bytes = dtype_bytes(args.type);
    const bool turned = args.layout == GEMM_NT;
    const void *from = (const char *)rows + group.first * args.k * element_bytes;
    const void *matrix = matrix_at(matrices, group.weight, args.n * args.k * element_bytes);
    const struct gemm_operand a = gemm_operand(from, args.type, group.rows, args.k, true);
    const struct gemm_operand b =
        gemm_operand(matrix, args.type, args.n, turned ? args.k : args.n, turned);
    add_chain(slabs, a, b, row, column, args.k, sums);
}

template <int EDGE>
static __global__ void __launch_bounds__(tile_threads(EDGE), tile_blocks(EDGE))
    expert_matmul_kernel(const struct expert_matmul_args args, const int64_t row_tiles)
{
    SHARED(struct gemm_slabs<EDGE>, slabs);
    int64_t row_tile = blockIdx.x % row_tiles, at = 0;
    for (; at < args.group_count; at++) {
        const int64_t tiles = parts_of(args.groups[at].rows, EDGE);
        if (row_tile < tiles)
            break;
        row_tile -= tiles;
    }
    if (at == args.group_count)
        return;
    const struct expert_group group = args.groups[at];
    const int64_t row = row_tile * EDGE, column = blockIdx.x / row_tiles * EDGE;
    void *to = (char *)args.out + group.first * args.n * dtype_bytes(args.out_type);
    const struct gemm_result result = {to, args.out_type, group.rows, args.n, args.n};
    struct gemm_sums<EDGE> sums;
    start_sums(&sums);
    add_pair(&slabs, args, group, args.a, args.weights, row, column, &sums);
    if (args.a_then)
        add_pair(&slabs, args, group, args.a_then, args.weights_then, row, column, &sums);
    put_result(&sums, result, row, column);
}

template <int EDGE> static int launch_matmul(const struct expert_matmul_args *args, void *stream)
{
    const int64_t row_tiles = most_row_tiles(args, EDGE);
    const int64_t tiles = row_tiles * parts_of(args->n, EDGE);
    return launch(expert_matmul_kernel<EDGE>, dim3((unsigned)tiles), dim3(tile_threads(EDGE)), 0,
        (cudaStream_t)stream, *args, row_tiles);
}

/* Large tiles where the groups fill them on the average, and there are enough. */
extern "C" int expert_matmul_cuda(const void *launched, void *stream)
{
    const struct expert_matmul_args *args = (const struct expert_matmul_args *)launched;
    if (args->rows <= 0 || args->group_count <= 0 || args->n <= 0)
        return cudaSuccess;
    const int64_t large_tiles = args->rows / LARGE_EDGE * parts_of(args->n, LARGE_EDGE);
    if (args->rows < args->group_count * LARGE_EDGE || large_tiles < FEW_TILES)
        return launch_matmul<SMALL_EDGE>(args, stream);
    return launch_matmul<LARGE_EDGE>(args, stream);
}

/* ---- expert gradient ------------------------------------------------------------------------- */

template <int EDGE>
static __global__ void __launch_bounds__(tile_threads(EDGE), tile_blocks(EDGE))
    expert_gradient_kernel(
        const struct expert_gradient_args args, const int64_t row_tiles, const int64_t group_tiles)
{
    SHARED(struct gemm_slabs<EDGE>, slabs);
    const struct expert_group group = args.groups[blockIdx.x / group_tiles];
    const int64_t tile = blockIdx.x % group_tiles, elements = args.m * args.n;
    const int64_t element_bytes = dtype_bytes(args.type);
    float *gradient = group.weight < args.owned_count
                          ? args.owned + group.weight * elements
                          : args.lent + (group.weight - args.owned_count) * elements;
    const struct gemm_operand a =
        gemm_operand((const char *)args.a + group.first * args.m * element_bytes, args.type, args.m,
            args.m, false);
    const struct gemm_operand b =
        gemm_operand((const char *)args.b + group.first * args.n * element_bytes, args.type, args.n,
            args.n, false);
    const struct gemm_result result = {gradient, DTYPE_F32, args.m, args.n, args.n};
    make_tile<EDGE>(&slabs, (enum gemm_init)group.init, a, b, group.rows, result,
        tile % row_tiles * EDGE, tile / row_tiles * EDGE);
}

template <int EDGE>
static int launch_gradient(const struct expert_gradient_args *args, void *stream)
{
    const int64_t row_tiles = parts_of(args->m, EDGE);
    const int64_t group_tiles = row_tiles * parts_of(args->n, EDGE);
    return launch(expert_gradient_kernel<EDGE>, dim3((unsigned)(args->group_count * group_tiles)),
        dim3(tile_threads(EDGE)), 0, (cudaStream_t)stream, *args, row_tiles, group_tiles);
}

extern "C" int expert_gradient_cuda(const void *launched, void *stream)
{
    const struct expert_gradient_args *args = (const struct expert_gradient_args *)launched;
    if (args->group_count <= 0 || args->m <= 0 || args->n <= 0)
        return cudaSuccess;
    const int64_t large_tiles = parts_of(args->m, LARGE_EDGE) * parts_of(args->n, LARGE_EDGE);
    if (args->group_count * large_tiles < FEW_TILES)
        return launch_gradient<SMALL_EDGE>(args, stream);
    return launch_gradient<LARGE_EDGE>(args, stream);
}
