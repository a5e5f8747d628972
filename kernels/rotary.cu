/* Rotary positions on a GPU: a thread for each pair of columns. */
#include "kernels/elements.cuh"
extern "C" {
#include "kernels/rotary.h"
}

template <enum dtype TYPE>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    turn_pairs(const struct rotary_args args, const int64_t pairs)
{
    const int64_t item = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    const int64_t half = args.head_columns / 2;
    if (item >= pairs)
        return;
    const int64_t i = item % half, row = item / half / args.heads;
    const int64_t at = item / half * args.head_columns + i;
    const float *turns = args.turns + row % args.run * 2 * half;
    const float c = turns[i], s = args.backward ? -turns[half + i] : turns[half + i];
    const float a = element<TYPE>(args.x, at), b = element<TYPE>(args.x, at + half);
    const float low[1] = {fmaf(a, c, -(b * s))}, high[1] = {fmaf(b, c, a * s)};
    store<TYPE>(args.x, at, low);
    store<TYPE>(args.x, at + half, high);
}

extern "C" int rotary_cuda(const void *launched, void *stream)
{
    const struct rotary_args *args = (const struct rotary_args *)launched;
    const int64_t pairs = args->rows * args->heads * (args->head_columns / 2);
    if (pairs <= 0)
        return cudaSuccess;
    return launch(args->type == DTYPE_BF16 ? turn_pairs<DTYPE_BF16> : turn_pairs<DTYPE_F32>,
        dim3((unsigned)parts_of(pairs, BLOCK_THREADS)), dim3(BLOCK_THREADS), 0,
        (cudaStream_t)stream, *args, pairs);
}
