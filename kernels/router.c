/* The router's kernels on the CPU: tokens divided over a team. A token's arithmetic is a few
 * comparisons and k exponentials (kernels/router_token.h), far below the products around it, so
 * there is one variant for all instruction sets. */
#include "kernels/router.h"
#include "kernels/launch.h"
#include "kernels/router_token.h"

struct job {
    void (*token)(const void *args, int64_t token);
    const void *args;
    int64_t tokens;
};

static void run_part(void *context, int index, int parts)
{
    const struct job *job = context;
    struct item_range range = item_range(job->tokens, index, parts);
    for (int64_t token = range.begin; token < range.end; token++)
        job->token(job->args, token);
}

static void run(const struct dev_team *team, void (*token)(const void *args, int64_t token),
    const void *args, int64_t tokens, int64_t experts)
{
    struct job job = {token, args, tokens};
    if (tokens > 0)
        team_run(team, item_parts(team, tokens, experts), run_part, &job);
}

static struct kernel_cost cost_of(int64_t tokens, int64_t experts, int topk, int slot_arrays)
{
    double routes = (double)tokens * topk;
    return (struct kernel_cost){.flops = (double)tokens * (double)experts + 8 * routes,
        .bytes = 4 * ((double)tokens * (double)experts + slot_arrays * routes),
        .rate = DEV_RATE_F32};
}

/* ---- choice ---------------------------------------------------------------------------------- */

static void choose_token(const void *launched, int64_t token)
{
    const struct router_choose_args *args = launched;
    float order[ROUTER_TOPK_MAX];
    int64_t slot = token * args->topk;
    router_choose_token(args->scores + token * args->experts, args->bias, args->experts, args->topk,
        order, args->idx + slot, args->weight + slot);
}

static void choose_cpu(const void *launched, const struct dev_team *team)
{
    const struct router_choose_args *args = launched;
    run(team, choose_token, args, args->tokens, args->experts);
}

static void choose_cost(const void *launched, struct kernel_cost *cost)
{
    const struct router_choose_args *args = launched;
    *cost = cost_of(args->tokens, args->experts, args->topk, 2);
}

static int choose_access(const void *launched, struct dev_access *ranges)
{
    const struct router_choose_args *args = launched;
    int64_t routes_bytes = args->tokens * args->topk * 4;
    int count = add_access(ranges, 0, args->scores, args->tokens * args->experts * 4, false);
    count = add_access(ranges, count, args->bias, args->experts * 4, false);
    count = add_access(ranges, count, args->idx, routes_bytes, true);
    return add_access(ranges, count, args->weight, routes_bytes, true);
}

int router_choose_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_router_choose = {
    .name = "router_choose",
    .cpu = choose_cpu,
    .cuda = router_choose_cuda,
    .cost = choose_cost,
    .access = choose_access,
};

void router_choose(struct stream *stream, const struct router_choose_args *args)
{
    dev_launch(stream, &kernel_router_choose, args, sizeof *args);
}

/* ---- backward -------------------------------------------------------------------------------- */

static void backward_token(const void *launched, int64_t token)
{
    const struct router_backward_args *args = launched;
    int64_t slot = token * args->topk;
    router_backward_token(args->idx + slot, args->weight + slot, args->dweight + slot,
        args->experts, args->topk, args->dscores + token * args->experts);
}

static void backward_cpu(const void *launched, const struct dev_team *team)
{
    const struct router_backward_args *args = launched;
    run(team, backward_token, args, args->tokens, args->experts);
}

static void backward_cost(const void *launched, struct kernel_cost *cost)
{
    const struct router_backward_args *args = launched;
    *cost = cost_of(args->tokens, args->experts, args->topk, 3);
}

static int backward_access(const void *launched, struct dev_access *ranges)
{
    const struct router_backward_args *args = launched;
    int64_t routes_bytes = args->tokens * args->topk * 4;
    int count = add_access(ranges, 0, args->idx, routes_bytes, false);
    count = add_access(ranges, count, args->weight, routes_bytes, false);
    count = add_access(ranges, count, args->dweight, routes_bytes, false);
    return add_access(ranges, count, args->dscores, args->tokens * args->experts * 4, true);
}

int router_backward_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_router_backward = {
    .name = "router_backward",
    .cpu = backward_cpu,
    .cuda = router_backward_cuda,
    .cost = backward_cost,
    .access = backward_access,
};

void router_backward(struct stream *stream, const struct router_backward_args *args)
{
    dev_launch(stream, &kernel_router_backward, args, sizeof *args);
}
