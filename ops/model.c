/* What a composed model is made of: the conditions on its shape and options, and what a rank holds
 * of it between steps. ops/model_step.c takes a step. */
#include "ops/model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/router.h"
#include "ops/model_blocks.h"
#include "ops/model_keep.h"
#include "ops/model_memory.h"
#include "ops/model_parts.h"
#include "ops/ring_dtp.h"

int64_t model_tokens(const struct model_shape *shape)
{
    return shape->sequences * (shape->length / shape->layout.degree[LAYOUT_SEQUENCE]);
}

int model_check(const struct model_shape *shape, char *error, int size)
{
    if (layout_check(&shape->layout, error, size))
        return -1;
    int64_t heads = shape->layout.heads, d = shape->layout.degree[LAYOUT_SEQUENCE];
    if (shape->hidden % heads)
        snprintf(error, (size_t)size, "%lld attention heads do not divide the width %lld",
            (long long)heads, (long long)shape->hidden);
    else if (shape->length % d)
        snprintf(error, (size_t)size, "the sequence degree %lld does not divide the %lld tokens",
            (long long)d, (long long)shape->length);
    else if (shape->topk < 1 || shape->topk > shape->layout.experts)
        snprintf(error, (size_t)size, "%d experts of a token; allowed: 1 to the %lld experts",
            shape->topk, (long long)shape->layout.experts);
    else if (shape->topk > ROUTER_TOPK_MAX)
        snprintf(error, (size_t)size, "%d experts of a token; allowed: 1 to %d", shape->topk,
            ROUTER_TOPK_MAX);
    else if (shape->layers > STACK_LAYERS_MAX / 2)
        snprintf(error, (size_t)size, "%lld layers; allowed: 1 to %d", (long long)shape->layers,
            STACK_LAYERS_MAX / 2);
    else if (model_ceiling_bytes(shape) >= 0x1p62)
        snprintf(error, (size_t)size,
            "sizes are beyond 64 bits: %lld sequences of %lld tokens, width %lld, %lld layers",
            (long long)shape->sequences, (long long)shape->length, (long long)shape->hidden,
            (long long)shape->layers);
    else
        return 0;
    return -1;
}

/* Whether the tiles of a ring over the vocabulary fit. */
static int check_tile(
    const struct model_shape *shape, const struct model_options *options, char *error, int size)
{
    int64_t tokens[LAYOUT_RANKS_MAX];
    int ranks = shape->layout.degree[LAYOUT_VOCAB];
    const struct vocab_shape vocab = {ranks, tokens, shape->hidden, shape->vocab, DTYPE_BF16};
    for (int i = 0; i < ranks; i++)
        tokens[i] = model_tokens(shape);
    return ring_dtp_check_options(&vocab, &options->vocab_options, error, size);
}

int model_check_options(
    const struct model_shape *shape, const struct model_options *options, char *error, int size)
{
    const char *name = NULL;
    if (options->vocab == &vocab_ring_dtp && check_tile(shape, options, error, size))
        return -1;
    if (options->dispatch_order && !options->dispatch->takes_run_order)
        name = options->dispatch->name;
    if (options->vocab_order && !options->vocab->takes_run_order)
        name = options->vocab->name;
    if (name)
        snprintf(error, (size_t)size, "%s sums in its own order only", name);
    return name ? -1 : 0;
}

/* ---- opening ---------------------------------------------------------------------------------
 * A simulated device is written to in the same calls, since the host waits in them, but what would
 * be written is not made. */

/* Row p * N + i of the parts is part p of token i. */
static void make_part_tables(struct model *m)
{
    int64_t tokens = model_tokens(&m->shape), d = m->shape.layout.degree[LAYOUT_SEQUENCE];
    int64_t bytes = tokens * d * (int64_t)sizeof(int32_t);
    if (d == 1)
        return;
    m->to_parts = dev_alloc(m->dev, bytes, LIVE_INPUT, "order of heads by peer");
    m->from_parts = dev_alloc(m->dev, bytes, LIVE_INPUT, "order of heads by token");
    if (!model_computes(m))
        return;
    int32_t *to = malloc((size_t)bytes), *from = malloc((size_t)bytes);
    if (to && from) {
        for (int64_t p = 0; p < d; p++)
            for (int64_t i = 0; i < tokens; i++) {
                to[p * tokens + i] = (int32_t)(i * d + p);
                from[i * d + p] = (int32_t)(p * tokens + i);
            }
        dev_write(m->dev, m->to_parts, to, bytes);
        dev_write(m->dev, m->from_parts, from, bytes);
    } else {
        dev_fail(m->dev, DEV_FAILED, "no host memory for the order of heads");
    }
    free(to);
    free(from);
}

/* The angles of the run of each sequence that this rank holds. */
static void make_turns(struct model *m)
{
    struct rotary_args args = model_rotary(&m->shape);
    int64_t half = args.head_columns / 2, bytes = args.run * 2 * half * (int64_t)sizeof(float);
    m->turns = dev_alloc(m->dev, bytes, LIVE_INPUT, "angles of places");
    if (!model_computes(m))
        return;
    float *turns = malloc((size_t)bytes + 1);
    if (turns) {
        rotary_turns(m->layout.block[LAYOUT_SEQUENCE].place * args.run, args.run, half, turns);
        dev_write(m->dev, m->turns, turns, bytes);
    } else {
        dev_fail(m->dev, DEV_FAILED, "no host memory for the angles of places");
    }
    free(turns);
}

static void make_tables(struct model *m)
{
    make_turns(m);
    int64_t tokens = model_tokens(&m->shape), experts = m->shape.layout.experts;
    const struct expert_group all = {.rows = tokens};
    uint16_t *ones = malloc((size_t)tokens * sizeof *ones + 1);
    if (!ones) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for a column of ones");
        return;
    }
    for (int64_t i = 0; i < tokens; i++)
        ones[i] = f32_to_bf16(1.0f);
    m->ones = dev_alloc(m->dev, tokens * 2, LIVE_INPUT, "ones");
    dev_write(m->dev, m->ones, ones, tokens * 2);
    free(ones);
    m->all_rows = dev_alloc(m->dev, (int64_t)sizeof all, LIVE_INPUT, "all rows");
    dev_write(m->dev, m->all_rows, &all, (int64_t)sizeof all);
    m->bias = dev_alloc(m->dev, m->shape.layers * experts * 4, LIVE_WEIGHTS, "router biases");
    dev_write(m->dev, m->bias, m->host_bias, m->shape.layers * experts * 4);
    m->idx_pinned =
        dev_host_alloc(m->dev, tokens * m->shape.topk * 4, LIVE_WORKSPACE, "router choice");
    make_part_tables(m);
}

static bool alloc_host(struct model *m)
{
    size_t routes = (size_t)(model_tokens(&m->shape) * m->shape.topk);
    size_t layers = (size_t)m->shape.layers, experts = (size_t)m->shape.layout.experts;
    m->idx = calloc(layers, sizeof *m->idx);
    if (model_computes(m))
        m->chosen = calloc(layers * routes + 1, sizeof *m->chosen);
    m->host_bias = calloc(layers * experts, sizeof *m->host_bias);
    m->loads = calloc(layers * experts, sizeof *m->loads);
    m->tokens_of = calloc((size_t)m->shape.layout.ranks, sizeof *m->tokens_of);
    m->recomputes = calloc(2 * layers, sizeof *m->recomputes);
    m->keep_choice = calloc(layers, sizeof *m->keep_choice);
    m->stayed = calloc(2 * layers, sizeof *m->stayed);
    if (!m->idx || (model_computes(m) && !m->chosen) || !m->host_bias || !m->loads ||
        !m->tokens_of || !m->recomputes || !m->keep_choice || !m->stayed)
        return false;
    for (size_t layer = 0; layer < layers && m->chosen; layer++)
        m->idx[layer] = m->chosen + layer * routes;
    for (int i = 0; i < m->shape.layout.ranks; i++)
        m->tokens_of[i] = model_tokens(&m->shape);
    return true;
}

enum dev_status model_open(struct model *m, const struct model_shape *shape,
    const struct model_options *options, struct device *dev, struct comm *world)
{
    char error[160];
    *m = (struct model){.shape = *shape, .options = *options, .dev = dev, .world = world};
    if (dev_status(dev) != DEV_OK)
        return dev_status(dev);
    if (model_check(shape, error, sizeof error) ||
        model_check_options(shape, options, error, sizeof error)) {
        dev_fail(dev, DEV_FAILED, "%s", error);
        return dev_status(dev);
    }
    m->rank = comm_rank(world);
    if (layout_open(&m->layout, &shape->layout, dev, world) != DEV_OK)
        return dev_status(dev);
    if (!alloc_host(m) || model_parts_init(m) ||
        model_keep_choose(shape, options, m->keep_choice, &m->keep)) {
        dev_fail(dev, DEV_FAILED, "no host memory for the model's tables");
        return dev_status(dev);
    }
    make_tables(m);
    m->stack = (struct stack){.shape = {.ranks = shape->layout.ranks,
                                  .tokens = m->tokens_of,
                                  .layers = 2 * shape->layers,
                                  .hidden = shape->hidden,
                                  .ffn = shape->ffn,
                                  .dtype = DTYPE_BF16},
        .options = options->stack,
        .rank = m->rank,
        .dev = dev,
        .steps = &model_steps,
        .steps_context = m,
        .recomputes = m->recomputes,
        .stayed = m->stayed};
    m->stack.options.keep_pool = true;
    return model_parts_open(m);
}

void model_close(struct model *m)
{
    stack_pool_free(&m->stack);
    model_parts_close(m);
    dev_host_free(m->dev, m->idx_pinned);
    void *blocks[] = {m->to_parts, m->from_parts, m->all_rows, m->ones, m->turns, m->bias};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        dev_free(m->dev, blocks[i]);
    free(m->chosen);
    free((void *)m->idx);
    free(m->host_bias);
    free(m->loads);
    free(m->tokens_of);
    free(m->recomputes);
    free(m->keep_choice);
    free(m->stayed);
}

void model_set_routing(struct model *m, int64_t layer, const int32_t *idx)
{
    m->idx[layer] = idx;
}
