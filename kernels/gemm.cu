/* The matrix product on a GPU: a block for each tile of C (kernels/gemm_tile.cuh). */
#include "kernels/gemm_tile.cuh"

template <int EDGE>
static __global__ void __launch_bounds__(tile_threads(EDGE), tile_blocks(EDGE))
    gemm_kernel(const struct gemm_args args, const int64_t row_tiles)
{
    SHARED(struct gemm_slabs<EDGE>, slabs);
    const bool a_turned = args.layout == GEMM_TN, b_turned = args.layout == GEMM_NT;
    const struct gemm_operand a = gemm_operand(args.a, args.a_type, args.m, args.lda, !a_turned);
    const struct gemm_operand b = gemm_operand(args.b, args.b_type, args.n, args.ldb, b_turned);
    const struct gemm_result result = {args.c, DTYPE_F32, args.m, args.n, args.ldc};
    make_tile<EDGE>(&slabs, args.init, a, b, args.k, result, blockIdx.x % row_tiles * EDGE,
        blockIdx.x / row_tiles * EDGE);
}

template <int EDGE> static int launch_tiles(const struct gemm_args *args, void *stream)
{
    const int64_t row_tiles = parts_of(args->m, EDGE), tiles = row_tiles * parts_of(args->n, EDGE);
    return launch(gemm_kernel<EDGE>, dim3((unsigned)tiles), dim3(tile_threads(EDGE)), 0,
        (cudaStream_t)stream, *args, row_tiles);
}

extern "C" int gemm_cuda(const void *launched, void *stream)
{
    const struct gemm_args *args = (const struct gemm_args *)launched;
    if (args->m <= 0 || args->n <= 0)
        return cudaSuccess;
    if (parts_of(args->m, LARGE_EDGE) * parts_of(args->n, LARGE_EDGE) < FEW_TILES)
        return launch_tiles<SMALL_EDGE>(args, stream);
    return launch_tiles<LARGE_EDGE>(args, stream);
}
