/* The matrix product on a GPU: a block for each tile of C, exact (kernels/gemm_tile.cuh) or on
 * tensor cores (kernels/tensor_tile.cuh), where cuBLASLt does not take it (kernels/gemm_fast.h). */
#include "kernels/tensor_tile.cuh"
extern "C" {
#include "kernels/gemm_audit.h"
#include "kernels/gemm_fast.h"
}

template <class Tiles, bool A_ALONG, bool B_ALONG>
static __global__ void __launch_bounds__(Tiles::threads, Tiles::blocks)
    gemm_kernel(const struct gemm_args args, const int row_tiles)
{
    SHARED(typename Tiles::slabs, slabs);
    if (threadIdx.x == 0)
        slabs.tile = {(int)blockIdx.x % row_tiles, (int)blockIdx.x / row_tiles, 0};
    __syncthreads();
    const auto a = make_operand<A_ALONG>(args.a, args.a_type, args.m, args.lda);
    const auto b = make_operand<B_ALONG>(args.b, args.b_type, args.n, args.ldb);
    const struct gemm_result result = {args.c, DTYPE_F32, args.m, args.n, args.ldc};
    make_tile<Tiles>(&slabs, args.init, a, b, args.k, result);
}

template <class Tiles> static int launch_tiles(const struct gemm_args *args, void *stream)
{
    const auto kernel = args->layout == GEMM_NN   ? gemm_kernel<Tiles, true, false>
                        : args->layout == GEMM_NT ? gemm_kernel<Tiles, true, true>
                                                  : gemm_kernel<Tiles, false, false>;
    const int64_t row_tiles = parts_of(args->m, Tiles::edge);
    const int64_t tiles = row_tiles * parts_of(args->n, Tiles::edge);
    return launch(kernel, dim3((unsigned)tiles), dim3(Tiles::threads), 0, (cudaStream_t)stream,
        *args, (int)row_tiles);
}

static int make_exact(const struct gemm_args *args, void *stream)
{
    if (parts_of(args->m, LARGE_EDGE) * parts_of(args->n, LARGE_EDGE) < FEW_TILES)
        return launch_tiles<exact_tiles<SMALL_EDGE>>(args, stream);
    return launch_tiles<exact_tiles<LARGE_EDGE>>(args, stream);
}

extern "C" int gemm_tensor_cuda(const struct gemm_args *args, void *stream)
{
    return launch_tiles<tensor_tiles>(args, stream);
}

static int make_fast(const struct gemm_args *args, enum gemm_way way, void *stream)
{
    return way == GEMM_WAY_LIBRARY ? gemm_fast_cuda(args, stream) : gemm_tensor_cuda(args, stream);
}

/* Elements from the first to the last of C. */
static size_t result_bytes(const struct gemm_args *args)
{
    return (size_t)((args->m - 1) * args->ldc + args->n) * sizeof(float);
}

static int make_and_audit(const struct gemm_args *args, enum gemm_way way,
    struct audit_tally *tally, int64_t tiles, void *stream)
{
    const struct audit_part part = {args->c, result_bytes(args)};
    const bool fresh = args->init == GEMM_FRESH;
    float *before = fresh ? NULL : audit_copy(&part, 1, stream);
    int error = make_fast(args, way, stream);
    if (!error && (before || fresh))
        error = gemm_audit(args, before, tally, tiles, stream);
    audit_drop(before, stream);
    return error;
}

extern "C" int gemm_cuda(const void *launched, void *stream)
{
    const struct gemm_args *args = (const struct gemm_args *)launched;
    if (args->m <= 0 || args->n <= 0)
        return cudaSuccess;
    const enum gemm_way way = gemm_fast_way(args);
    int64_t tiles;
    struct audit_tally *tally = gemm_fast_audit(&tiles);
    gemm_fast_count(way, args->a_type == DTYPE_BF16 ? args->a_type : args->b_type);
    if (way == GEMM_WAY_EXACT)
        return make_exact(args, stream);
    return tally ? make_and_audit(args, way, tally, tiles, stream) : make_fast(args, way, stream);
}
