/* The composed step.
 *
 *     tokens -> embedding -> 2 L blocks -> norm -> head -> loss
 *                                                           |
 *     slices <- embedding <- 2 L blocks <- norm <- head  <--+
 *        |
 *        +-> AdamW over this rank's slices -> weights to all who hold them -> routers' biases
 *
 * The blocks are ops/model_attention.c and ops/model_experts.c in turns. A gradient leaves for its
 * slices the moment that it is whole (ops/model_parts.c). The boundaries between blocks are the
 * stack implementation's to keep, move or forget. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ops/model_blocks.h"
#include "ops/model_parts.h"

/* ---- inputs and the embedding --------------------------------------------------------------- */

/* A step's inputs on the device. */
struct batch {
    int32_t *tokens;             /* [N] */
    int64_t *targets;            /* [N] */
    int32_t *by_token;           /* [N]: positions sorted by token, stable */
    struct expert_group *groups; /* [V]: a token's run of them */
};

/* Counts, then places: a stable counting sort. */
static void sort_by_token(
    const struct model *m, const int32_t *tokens, int32_t *by_token, struct expert_group *groups)
{
    int64_t count = model_tokens(&m->shape), first = 0;
    memset(groups, 0, (size_t)m->shape.vocab * sizeof *groups);
    for (int64_t i = 0; i < count; i++)
        groups[tokens[i]].rows++;
    for (int64_t v = 0; v < m->shape.vocab; v++) {
        groups[v].first = first;
        groups[v].weight = (int32_t)v;
        groups[v].init = GEMM_FRESH;
        first += groups[v].rows;
        groups[v].rows = 0;
    }
    for (int64_t i = 0; i < count; i++) {
        struct expert_group *group = &groups[tokens[i]];
        by_token[group->first + group->rows++] = (int32_t)i;
    }
}

static void load_batch(
    struct model *m, const int32_t *tokens, const int64_t *targets, struct batch *batch)
{
    int64_t count = model_tokens(&m->shape), vocab = m->shape.vocab;
    int64_t group_bytes = vocab * (int64_t)sizeof(struct expert_group);
    int32_t *by_token = NULL;
    struct expert_group *groups = NULL;
    if (model_computes(m)) {
        by_token = malloc((size_t)count * sizeof *by_token + 1);
        groups = malloc((size_t)group_bytes);
    }
    if (by_token && groups)
        sort_by_token(m, tokens, by_token, groups);
    if ((by_token && groups) || !model_computes(m)) {
        batch->tokens = dev_alloc(m->dev, count * 4, LIVE_INPUT, "tokens");
        batch->targets = dev_alloc(m->dev, count * 8, LIVE_INPUT, "targets");
        batch->by_token = dev_alloc(m->dev, count * 4, LIVE_INPUT, "positions by token");
        batch->groups = dev_alloc(m->dev, group_bytes, LIVE_INPUT, "runs of tokens");
        dev_write(m->dev, batch->tokens, tokens, count * 4);
        dev_write(m->dev, batch->targets, targets, count * 8);
        dev_write(m->dev, batch->by_token, by_token, count * 4);
        dev_write(m->dev, batch->groups, groups, group_bytes);
    } else {
        dev_fail(m->dev, DEV_FAILED, "no host memory for a batch");
    }
    free(by_token);
    free(groups);
}

static void free_batch(struct model *m, struct batch *batch)
{
    void *blocks[] = {batch->tokens, batch->targets, batch->by_token, batch->groups};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        dev_free(m->dev, blocks[i]);
}

static void gather(
    struct model *m, const int32_t *index, const void *from, int64_t from_rows, void *to)
{
    gather_rows(dev_main_stream(m->dev), &(struct gather_rows_args){.to = to,
                                             .from = from,
                                             .index = index,
                                             .count = model_tokens(&m->shape),
                                             .from_rows = from_rows,
                                             .row_bytes = m->shape.hidden * 2});
}

/* A token's gradient is the chain over its positions, ascending: a product with a column of ones.
 */
static void embedding_backward(struct model *m, const struct batch *batch, const void *dx)
{
    int64_t vocab = m->shape.vocab, rows = model_tokens(&m->shape);
    void *sorted = dev_alloc(m->dev, model_row_bytes(m), LIVE_WORKSPACE, "gradients by token");
    float *gradient =
        dev_alloc(m->dev, vocab * m->shape.hidden * 4, LIVE_GRADIENTS, "gradient of the embedding");
    gather(m, batch->by_token, dx, rows, sorted);
    expert_gradient(dev_main_stream(m->dev), &(struct expert_gradient_args){.groups = batch->groups,
                                                 .group_count = vocab,
                                                 .rows = rows,
                                                 .m = 1,
                                                 .n = m->shape.hidden,
                                                 .type = DTYPE_BF16,
                                                 .a = m->ones,
                                                 .b = sorted,
                                                 .owned = gradient,
                                                 .owned_count = vocab});
    model_send_gradient(m, MODEL_EMBEDDING, -1, gradient);
    dev_free(m->dev, sorted);
}

/* ---- the loss ------------------------------------------------------------------------------- */

/* One FP64 chain over all tokens, divided by their number: it goes on from rank to rank, so that
 * nobody needs the losses of all. */
static double mean_loss(struct model *m, const float *loss)
{
    int64_t count = model_tokens(&m->shape), ranks = m->shape.layout.ranks;
    float *own = malloc((size_t)count * sizeof *own + 1);
    double until[LAYOUT_RANKS_MAX], sum = 0;
    if (!own) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for the losses");
        return 0;
    }
    dev_read(m->dev, own, loss, count * 4);
    for (int rank = 0; rank < ranks && dev_status(m->dev) == DEV_OK; rank++) {
        double mine = sum;
        for (int64_t i = 0; rank == m->rank && i < count; i++)
            mine += (double)own[i];
        if (comm_host_all_gather(m->world, &mine, until, sizeof mine) == 0)
            sum = until[rank];
    }
    free(own);
    return sum / (double)(count * ranks);
}

/* From the stack's output to its gradient, a new block; the head's gradient leaves. */
static void *head_step(
    struct model *m, const struct batch *batch, const int64_t *targets, double *loss)
{
    int64_t final = 2 * m->shape.layers;
    void *n, *scales;
    model_norm(m, final, m->stack.y, &n, &scales);
    struct vocab v = {.shape = {.ranks = m->shape.layout.degree[LAYOUT_VOCAB],
                          .tokens = m->tokens_of,
                          .hidden = m->shape.hidden,
                          .vocab = m->shape.vocab,
                          .dtype = DTYPE_BF16},
        .options = m->options.vocab_options,
        .rank = m->layout.block[LAYOUT_VOCAB].place,
        .with_backward = true,
        .dev = m->dev,
        .comm = m->layout.block_comm[LAYOUT_VOCAB],
        .x = n,
        .w = model_weights(m, MODEL_HEAD, -1),
        .targets = batch->targets,
        .host_targets = targets,
        .valid = vocab_count_valid(m->world, targets, model_tokens(&m->shape))};
    struct vocab_order order = {0};
    if (m->options.vocab_order) {
        if (vocab_order_init(&order, v.shape.ranks))
            dev_fail(m->dev, DEV_FAILED, "no host memory for the order of the vocabulary");
        else
            m->options.vocab_order->order(&v.shape, &v.options, &order);
        v.run_order = &order;
    }
    if (m->options.vocab->forward(&v) == DEV_OK && m->options.vocab->backward(&v) == DEV_OK)
        *loss = mean_loss(m, v.loss);
    model_send_gradient(m, MODEL_HEAD, -1, v.dw);
    v.dw = NULL; /* handed over */
    void *dy = dev_alloc(m->dev, model_row_bytes(m), LIVE_BOUNDARY, "output gradient");
    dev_fill(dev_main_stream(m->dev), dy, 0, model_row_bytes(m)); /* nothing is added to the norm */
    model_norm_backward(m, final, m->stack.y, v.dx, dy, scales, dy);
    model_settle_gradient(m); /* a large one */
    vocab_release(&v, m->options.vocab);
    vocab_order_free(&order);
    dev_free(m->dev, scales);
    dev_free(m->dev, n);
    return dy;
}

/* ---- a step --------------------------------------------------------------------------------- */

static bool all_routed(const struct model *m)
{
    for (int64_t layer = 0; layer < m->shape.layers; layer++)
        if (!m->idx[layer])
            return false;
    return true;
}

enum dev_status model_step(
    struct model *m, const int32_t *tokens, const int64_t *targets, double *loss)
{
    struct device *dev = m->dev;
    struct batch batch = {0};
    int64_t gain_bytes = (2 * m->shape.layers + 1) * m->shape.hidden * 4;
    *loss = 0;
    if (dev_status(dev) == DEV_OK && !all_routed(m))
        dev_fail(dev, DEV_FAILED, "a simulated device is given the routing of every layer");
    if (dev_status(dev) != DEV_OK)
        return dev_status(dev);
    load_batch(m, tokens, targets, &batch);
    m->stack.x = dev_alloc(dev, model_row_bytes(m), LIVE_BOUNDARY, "embedded tokens");
    gather(m, batch.tokens, model_weights(m, MODEL_EMBEDDING, -1), m->shape.vocab, m->stack.x);
    m->options.checkpoint->forward(&m->stack);
    m->gain_gradient = dev_alloc(dev, gain_bytes, LIVE_GRADIENTS, "gradient of the gains");
    void *dy = head_step(m, &batch, targets, loss);
    m->stack.dy = dy;
    m->options.checkpoint->backward(&m->stack);
    embedding_backward(m, &batch, m->stack.dx);
    model_send_gradient(m, MODEL_GAINS, -1, m->gain_gradient);
    m->gain_gradient = NULL; /* handed over */
    stack_release(&m->stack, m->options.checkpoint);
    dev_free(dev, dy);
    model_settle_gradient(m);
    free_batch(m, &batch);
    adamw_step(&m->adamw);
    model_refresh(m);
    model_balance(m);
    return dev_status(dev);
}
