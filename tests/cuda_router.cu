/* The router on CUDA against the CPU, byte by byte: tokens past whole blocks, one expert and many,
 * every token to all experts, special scores. */
#include "tests/cuda_case.cuh"
extern "C" {
#include "kernels/router.h"
}

struct router_shape {
    int64_t tokens, experts;
    int topk;
};

static int64_t choose_faults(const struct router_shape *shape, int every)
{
    struct router_choose_args args;
    struct cuda_case c = begin_case(&kernel_router_choose, &args, 0);
    args.tokens = shape->tokens;
    args.experts = shape->experts;
    args.topk = shape->topk;
    const int64_t routes = shape->tokens * shape->topk;
    point(&c, &args.scores, add_typed(&c, DTYPE_F32, shape->tokens * shape->experts, 1, every));
    point(&c, &args.bias, add_typed(&c, DTYPE_F32, shape->experts, 2, 0));
    point(&c, &args.idx, add_array(&c, CONTENT_BYTES, routes * (int64_t)sizeof(int32_t), 0, 0));
    point(&c, &args.weight, add_typed(&c, DTYPE_F32, routes + 1, 4, 0));
    return run_case(&c);
}

/* Slot s of a token has expert (token + s) mod experts. */
static int64_t backward_faults(const struct router_shape *shape, int every)
{
    struct router_backward_args args;
    struct cuda_case c = begin_case(&kernel_router_backward, &args, 0);
    args.tokens = shape->tokens;
    args.experts = shape->experts;
    args.topk = shape->topk;
    const int64_t routes = shape->tokens * shape->topk;
    const int idx = add_array(&c, CONTENT_BYTES, routes * (int64_t)sizeof(int32_t), 0, 0);
    for (int64_t i = 0; i < routes; i++)
        ((int32_t *)c.arrays[idx].host)[i] =
            (int32_t)((i / shape->topk + i % shape->topk) % shape->experts);
    point(&c, &args.idx, idx);
    point(&c, &args.weight, add_typed(&c, DTYPE_F32, routes, 1, every));
    point(&c, &args.dweight, add_typed(&c, DTYPE_F32, routes, 2, every));
    point(&c, &args.dscores, add_typed(&c, DTYPE_F32, shape->tokens * shape->experts, 3, 0));
    return run_case(&c);
}

int main(void)
{
    static const struct router_shape shapes[] = {
        {0, 4, 2}, {1, 1, 1}, {255, 8, 2}, {257, 33, 4}, {600, 32, ROUTER_TOPK_MAX}, {300, 130, 8}};
    int64_t choose = 0, backward = 0;
    if (!device_found())
        return 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int every = 0; every < 10; every += 9) {
            choose += choose_faults(&shapes[i], every);
            backward += backward_faults(&shapes[i], every);
        }
    tap_ok(!choose, "the choice of experts and their weights");
    tap_ok(!backward, "the gradient of the scores");
    return tap_done();
}
