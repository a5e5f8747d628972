/* Sums in a stated order, addition and rounding on a GPU, element by element. */
#include "kernels/elements.cuh"
extern "C" {
#include "kernels/rank_sum.h"
}

struct sum_parts {
    struct rank_sum_args args;

    template <int N> __device__ void apply(int64_t at) const
    {
        float sum[N];
        load<DTYPE_F32>(args.parts, at, sum);
#pragma unroll 4
        for (int64_t part = 1; part < args.parts_count; part++) {
            float values[N];
            load<DTYPE_F32>(args.parts, part * args.stride + at, values);
            for (int i = 0; i < N; i++)
                sum[i] = sum[i] + values[i];
        }
        store<DTYPE_F32>(args.out, at, sum);
    }
};

extern "C" int rank_sum_cuda(const void *launched, void *stream)
{
    const struct rank_sum_args *args = (const struct rank_sum_args *)launched;
    const bool aligned = pack_aligned(args->parts) && pack_aligned(args->out) &&
                         (args->parts_count < 2 || args->stride % 4 == 0);
    return launch_each(sum_parts{*args}, args->count, aligned, stream);
}

struct add_elements {
    struct add_args args;

    template <int N> __device__ void apply(int64_t at) const
    {
        float to[N], from[N];
        load<DTYPE_F32>(args.to, at, to);
        load<DTYPE_F32>(args.from, at, from);
        for (int i = 0; i < N; i++)
            to[i] = to[i] + from[i];
        store<DTYPE_F32>(args.to, at, to);
    }
};

extern "C" int add_cuda(const void *launched, void *stream)
{
    const struct add_args *args = (const struct add_args *)launched;
    const bool aligned = pack_aligned(args->to) && pack_aligned(args->from);
    return launch_each(add_elements{*args}, args->count, aligned, stream);
}

struct round_elements {
    struct round_bf16_args args;

    template <int N> __device__ void apply(int64_t at) const
    {
        float values[N];
        load<DTYPE_F32>(args.from, at, values);
        store<DTYPE_BF16>(args.to, at, values);
    }
};

extern "C" int round_bf16_cuda(const void *launched, void *stream)
{
    const struct round_bf16_args *args = (const struct round_bf16_args *)launched;
    const bool aligned = pack_aligned(args->to) && pack_aligned(args->from);
    return launch_each(round_elements{*args}, args->count, aligned, stream);
}
