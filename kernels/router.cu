/* The router on a GPU: a thread for each token. Scores are few and read once or twice. */
#include "kernels/elements.cuh"
extern "C" {
#include "kernels/router.h"
#include "kernels/router_token.h"
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    choose_tokens(const struct router_choose_args args)
{
    const int64_t token = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    float order[ROUTER_TOPK_MAX];
    if (token >= args.tokens)
        return;
    router_choose_token(args.scores + token * args.experts, args.bias, args.experts, args.topk,
        order, args.idx + token * args.topk, args.weight + token * args.topk);
}

extern "C" int router_choose_cuda(const void *launched, void *stream)
{
    const struct router_choose_args *args = (const struct router_choose_args *)launched;
    return launch(choose_tokens, dim3((unsigned)parts_of(args->tokens, BLOCK_THREADS)),
        dim3(BLOCK_THREADS), 0, (cudaStream_t)stream, *args);
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    backward_tokens(const struct router_backward_args args)
{
    const int64_t token = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (token >= args.tokens)
        return;
    router_backward_token(args.idx + token * args.topk, args.weight + token * args.topk,
        args.dweight + token * args.topk, args.experts, args.topk,
        args.dscores + token * args.experts);
}

extern "C" int router_backward_cuda(const void *launched, void *stream)
{
    const struct router_backward_args *args = (const struct router_backward_args *)launched;
    return launch(backward_tokens, dim3((unsigned)parts_of(args->tokens, BLOCK_THREADS)),
        dim3(BLOCK_THREADS), 0, (cudaStream_t)stream, *args);
}
