/* AdamW and the gradient scan on a GPU. AdamW reads and writes each of its arrays once; the exact
 * square root and division hide behind that. */
#include "kernels/elements.cuh"
extern "C" {
#include "kernels/adamw.h"
#include "kernels/gradient_scan.h"
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

template <enum dtype G_TYPE> struct adamw_update {
    struct adamw_args args;

    template <int N> __device__ void apply(int64_t at) const
    {
        float p[N], m[N], v[N], g[N];
        load<DTYPE_F32>(args.p, at, p);
        load<DTYPE_F32>(args.m, at, m);
        load<DTYPE_F32>(args.v, at, v);
        load<G_TYPE>(args.g, at, g);
        for (int i = 0; i < N; i++)
            p[i] = adamw_element(&args.constants, p[i], &m[i], &v[i], g[i]);
        store<DTYPE_F32>(args.p, at, p);
        store<DTYPE_F32>(args.m, at, m);
        store<DTYPE_F32>(args.v, at, v);
        store<DTYPE_BF16>(args.w, at, p);
    }
};

extern "C" int adamw_cuda(const void *launched, void *stream)
{
    const struct adamw_args *args = (const struct adamw_args *)launched;
    const bool aligned = pack_aligned(args->p) && pack_aligned(args->m) && pack_aligned(args->v) &&
                         pack_aligned(args->g) && pack_aligned(args->w);
    if (args->g_type == DTYPE_BF16)
        return launch_each(adamw_update<DTYPE_BF16>{*args}, args->count, aligned, stream);
    return launch_each(adamw_update<DTYPE_F32>{*args}, args->count, aligned, stream);
}

/* ---- the gradient scan ----------------------------------------------------------------------- */

/* A warp sums a block of the scan. A lane's elements are loaded ahead of the sum, which is one
 * chain. */
template <enum dtype G_TYPE>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    scan_blocks(const struct gradient_scan_args args, const int64_t blocks)
{
    const int64_t block = warp_row(BLOCK_THREADS / WARP), first = block * GRADIENT_SCAN_BLOCK;
    if (block >= blocks)
        return;
    const int64_t left = args.count - first;
    const int64_t end = first + (left < GRADIENT_SCAN_BLOCK ? left : GRADIENT_SCAN_BLOCK);
    double sum = 0.0;
    int32_t nonfinite = 0;
#pragma unroll 16
    for (int64_t i = first + warp_lane(); i < end; i += WARP) {
        const float x = element<G_TYPE>(args.g, i);
        sum += (double)x * (double)x;
        nonfinite += (f32_bits(x * args.scale) & 0x7f800000u) == 0x7f800000u;
    }
    sum = add_lanes(sum);
    nonfinite = add_lanes(nonfinite);
    if (warp_lane() == 0)
        args.scratch[block] = {sum, nonfinite};
}

/* Adds the blocks in one chain: one thread, out of shared memory. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    scan_fold(const struct gradient_scan_args args, const int blocks)
{
    SHARED(struct gradient_scan_block[GRADIENT_SCAN_BLOCKS], block);
    for (int i = (int)threadIdx.x; i < blocks; i += BLOCK_THREADS)
        block[i] = args.scratch[i];
    __syncthreads();
    if (threadIdx.x)
        return;
    struct gradient_scan scan = {0.0, 0, -1};
    if (!args.fresh)
        scan = *args.scan;
    for (int i = 0; i < blocks; i++) {
        scan.sum = scan.sum + block[i].sum;
        scan.nonfinite += block[i].nonfinite;
    }
    if (scan.nonfinite && scan.first_tensor < 0)
        scan.first_tensor = args.tensor;
    *args.scan = scan;
}

extern "C" int gradient_scan_cuda(const void *launched, void *stream)
{
    const struct gradient_scan_args *args = (const struct gradient_scan_args *)launched;
    const int64_t blocks = parts_of(args->count, GRADIENT_SCAN_BLOCK);
    const int status =
        launch(args->g_type == DTYPE_BF16 ? scan_blocks<DTYPE_BF16> : scan_blocks<DTYPE_F32>,
            dim3((unsigned)parts_of(blocks, BLOCK_THREADS / WARP)), dim3(BLOCK_THREADS), 0,
            (cudaStream_t)stream, *args, blocks);
    if (status != cudaSuccess)
        return status;
    return launch(
        scan_fold, dim3(1), dim3(BLOCK_THREADS), 0, (cudaStream_t)stream, *args, (int)blocks);
}
