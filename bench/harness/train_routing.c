/* A workload's routing for the layers of a model. */
#include "bench/harness/train_routing.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/step_time.h"

/* What the dispatchers of one block see, or with a trace those of all. */
static struct moe_shape moe_shape_of(
    const struct model_shape *shape, bool traced, const int64_t *tokens)
{
    return (struct moe_shape){
        .ranks = traced ? shape->layout.ranks : shape->layout.degree[LAYOUT_EXPERTS],
        .tokens = tokens,
        .hidden = shape->hidden,
        .ffn = shape->ffn,
        .experts = shape->layout.experts,
        .topk = shape->topk};
}

static void fill_tokens(const struct model_shape *shape, int64_t *tokens)
{
    for (int rank = 0; rank < shape->layout.ranks; rank++)
        tokens[rank] = model_tokens(shape);
}

static int check_tokens(const struct moe_routing *workload, const struct moe_shape *shape,
    const int64_t *asked, char *error, int size)
{
    int64_t brought[LAYOUT_RANKS_MAX];
    if (moe_routing_tokens(workload, shape->ranks, shape->topk, asked, brought, error, size))
        return -1;
    for (int rank = 0; rank < shape->ranks; rank++)
        if (brought[rank] != asked[rank]) {
            snprintf(error, (size_t)size,
                "gives rank %d %lld tokens, allowed the %lld that every rank has here", rank,
                (long long)brought[rank], (long long)asked[rank]);
            return -1;
        }
    return 0;
}

int train_routing_read(struct train_routing *routing, const char *text,
    const struct model_shape *shape, char *error, int size)
{
    int64_t tokens[LAYOUT_RANKS_MAX];
    *routing = (struct train_routing){.even = !strcmp(text, "even")};
    if (routing->even)
        return 0;
    if (moe_routing_parse(&routing->workload, text, error, size))
        return -1;
    fill_tokens(shape, tokens);
    struct moe_shape moe = moe_shape_of(shape, routing->workload.profile == MOE_TRACE, tokens);
    return moe_routing_check(&routing->workload, &moe, error, size) ||
                   check_tokens(&routing->workload, &moe, tokens, error, size)
               ? -1
               : 0;
}

void train_routing_free(struct train_routing *routing)
{
    moe_routing_free(&routing->workload);
}

/* The choices themselves, which stay where they are. */
static void set_routes(const struct train_routing *routing, struct model *m, int64_t step)
{
    const struct model_shape *shape = &m->shape;
    int64_t routes = model_tokens(shape) * shape->topk;
    for (int64_t layer = 0; layer < shape->layers; layer++) {
        int64_t place = (step * shape->layers + layer) * shape->layout.ranks + m->rank;
        model_set_routing(m, layer, routing->routes + place * routes);
    }
}

/* A workload's of this step, into `idx` [N, k], or with a trace [layers, N, k]. */
static int fill(
    const struct train_routing *routing, const struct model *m, int64_t step, int32_t *idx)
{
    const struct model_shape *shape = &m->shape;
    const struct moe_routing *workload = &routing->workload;
    struct layout_group block = m->layout.block[LAYOUT_EXPERTS];
    int64_t routes = model_tokens(shape) * shape->topk, steps = moe_routing_steps(workload);
    int64_t tokens[LAYOUT_RANKS_MAX];
    uint64_t seed = m->options.seed + (uint64_t)block.first; /* of the block, where it is drawn */
    bool traced = workload->profile == MOE_TRACE;
    fill_tokens(shape, tokens);
    struct moe_shape moe = moe_shape_of(shape, traced, tokens);
    if (!traced)
        return moe_routing_fill(workload, &moe, seed, step, block.place, idx);
    for (int64_t layer = 0; layer < shape->layers; layer++)
        if (moe_routing_fill(workload, &moe, seed, (step * shape->layers + layer) % steps, m->rank,
                idx + layer * routes))
            return -1;
    return 0;
}

int train_routing_set(
    const struct train_routing *routing, struct model *m, int64_t step, int32_t **idx)
{
    const struct model_shape *shape = &m->shape;
    int64_t routes = model_tokens(shape) * shape->topk;
    int64_t different = routing->workload.profile == MOE_TRACE ? shape->layers : 1;
    if (routing->routes) {
        set_routes(routing, m, step);
        return 0;
    }
    if (routing->even && !*idx)
        *idx = step_even_routing(model_tokens(shape), shape->topk, shape->layout.experts);
    else if (!*idx)
        *idx = malloc((size_t)(different * routes) * sizeof **idx + 1);
    if (!*idx || (!routing->even && fill(routing, m, step, *idx)))
        return -1;
    for (int64_t layer = 0; layer < shape->layers; layer++)
        model_set_routing(m, layer, *idx + layer % different * routes);
    return 0;
}
