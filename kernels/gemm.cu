/* The matrix product on a GPU: a block for each tile of C (kernels/gemm_tile.cuh). */
#include "kernels/gemm_tile.cuh"
extern "C" {
#include "kernels/gemm_fast.h"
}

template <int EDGE, bool A_ALONG, bool B_ALONG>
static __global__ void __launch_bounds__(tile_threads(EDGE), tile_blocks(EDGE))
    gemm_kernel(const struct gemm_args args, const int row_tiles)
{
    SHARED(struct gemm_slabs<EDGE>, slabs);
    if (threadIdx.x == 0)
        slabs.tile = {(int)blockIdx.x % row_tiles, (int)blockIdx.x / row_tiles, 0};
    __syncthreads();
    const auto a = make_operand<A_ALONG>(args.a, args.a_type, args.m, args.lda);
    const auto b = make_operand<B_ALONG>(args.b, args.b_type, args.n, args.ldb);
    const struct gemm_result result = {args.c, DTYPE_F32, args.m, args.n, args.ldc};
    make_tile<exact_tiles<EDGE>>(&slabs, args.init, a, b, args.k, result);
}

template <int EDGE> static int launch_tiles(const struct gemm_args *args, void *stream)
{
    const auto kernel = args->layout == GEMM_NN   ? gemm_kernel<EDGE, true, false>
                        : args->layout == GEMM_NT ? gemm_kernel<EDGE, true, true>
                                                  : gemm_kernel<EDGE, false, false>;
    const int64_t row_tiles = parts_of(args->m, EDGE), tiles = row_tiles * parts_of(args->n, EDGE);
    return launch(kernel, dim3((unsigned)tiles), dim3(tile_threads(EDGE)), 0, (cudaStream_t)stream,
        *args, (int)row_tiles);
}

extern "C" int gemm_cuda(const void *launched, void *stream)
{
    const struct gemm_args *args = (const struct gemm_args *)launched;
    if (args->m <= 0 || args->n <= 0)
        return cudaSuccess;
    if (gemm_fast_takes(args))
        return gemm_fast_cuda(args, stream);
    if (parts_of(args->m, LARGE_EDGE) * parts_of(args->n, LARGE_EDGE) < FEW_TILES)
        return launch_tiles<SMALL_EDGE>(args, stream);
    return launch_tiles<LARGE_EDGE>(args, stream);
}
