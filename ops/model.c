/* The composed step.
 *
 *     tokens -> embedding -> 2 L blocks (ops/model_attention.c, ops/model_experts.c) -> norm ->
 * loss loss -> head's gradient -> norm -> 2 L blocks back -> embedding's gradient AdamW over this
 * rank's slices -> weights to all who hold them -> router biases
 *
 * A gradient leaves for its slices the moment that it is whole (ops/model_parts.c). The boundaries
 * between blocks are the stack implementation's to keep, move or forget. */
#include "ops/model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/rmsnorm.h"
#include "ops/model_blocks.h"
#include "ops/model_keep.h"
#include "ops/model_parts.h"
#include "ops/ring_dtp.h"

int64_t model_tokens(const struct model_shape *shape)
{
    return shape->sequences * (shape->length / shape->layout.degree[LAYOUT_SEQUENCE]);
}

int64_t model_row_bytes(const struct model *m)
{
    return model_tokens(&m->shape) * m->shape.hidden * 2;
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

/* ---- what blocks share ------------------------------------------------------------------------
 */

static const uint16_t *gain_of(const struct model *m, int64_t block)
{
    return model_weights(m, MODEL_GAINS, -1) + block * m->shape.hidden;
}

void model_norm(struct model *m, int64_t block, const void *x, void **n, void **scales)
{
    int64_t rows = model_tokens(&m->shape);
    *n = dev_alloc(m->dev, model_row_bytes(m), LIVE_WORKSPACE, "normed");
    *scales = dev_alloc(m->dev, rows * 4, LIVE_WORKSPACE, "row scales");
    rmsnorm(dev_main_stream(m->dev), &(struct rmsnorm_args){.rows = rows,
                                         .columns = m->shape.hidden,
                                         .type = DTYPE_BF16,
                                         .x = x,
                                         .gain = gain_of(m, block),
                                         .r = *scales,
                                         .n = *n});
}

void model_norm_backward(struct model *m, int64_t block, const void *x, const void *dn,
    const void *dy, const void *scales, void *dx)
{
    struct stream *main = dev_main_stream(m->dev);
    int64_t rows = model_tokens(&m->shape);
    rmsnorm_gain(main, &(struct rmsnorm_gain_args){.rows = rows,
                           .columns = m->shape.hidden,
                           .type = DTYPE_BF16,
                           .x = x,
                           .dn = dn,
                           .r = scales,
                           .dgain = m->gain_gradient + block * m->shape.hidden});
    rmsnorm_backward(main, &(struct rmsnorm_backward_args){.rows = rows,
                               .columns = m->shape.hidden,
                               .type = DTYPE_BF16,
                               .x = x,
                               .gain = gain_of(m, block),
                               .dn = dn,
                               .dy = dy,
                               .r = scales,
                               .dx = dx});
}

void model_matmul(struct model *m, enum gemm_layout layout, int64_t n, int64_t k, const void *a,
    const void *w, void *out)
{
    expert_matmul(dev_main_stream(m->dev), &(struct expert_matmul_args){.groups = m->all_rows,
                                               .group_count = 1,
                                               .rows = model_tokens(&m->shape),
                                               .n = n,
                                               .k = k,
                                               .layout = layout,
                                               .type = DTYPE_BF16,
                                               .out_type = DTYPE_BF16,
                                               .a = a,
                                               .weights = {.owned = w, .owned_count = 1},
                                               .out = out});
}

void model_product_gradient(struct model *m, enum model_tensor tensor, int64_t layer, const void *a,
    enum dtype a_type, int64_t columns_a, const void *b, int64_t columns_b)
{
    float *gradient =
        dev_alloc(m->dev, columns_a * columns_b * 4, LIVE_GRADIENTS, "gradient of a tensor");
    gemm(dev_main_stream(m->dev), &(struct gemm_args){.layout = GEMM_TN,
                                      .init = GEMM_FRESH,
                                      .a_type = a_type,
                                      .b_type = DTYPE_BF16,
                                      .m = columns_a,
                                      .n = columns_b,
                                      .k = model_tokens(&m->shape),
                                      .a = a,
                                      .lda = columns_a,
                                      .b = b,
                                      .ldb = columns_b,
                                      .c = gradient,
                                      .ldc = columns_b});
    model_send_gradient(m, tensor, layer, gradient);
}

/* ---- blocks ----------------------------------------------------------------------------------
 */

static const struct stack_steps *steps_of(int64_t block)
{
    return block % 2 ? &model_expert_steps : &model_attention_steps;
}

static void hidden(struct stack *s, int64_t block, const void *x, enum stack_purpose purpose,
    struct stack_kept *kept)
{
    steps_of(block)->hidden(s, block, x, purpose, kept);
}

static void output(
    struct stack *s, int64_t block, const void *x, const struct stack_kept *kept, void *y)
{
    steps_of(block)->output(s, block, x, kept, y);
}

static void backward(
    struct stack *s, int64_t block, const void *x, const void *dy, struct stack_kept *kept)
{
    steps_of(block)->backward(s, block, x, dy, kept);
}

/* Only blocks of experts have a state. */
static void release(struct stack *s, struct stack_kept *kept)
{
    model_expert_steps.release(s, kept);
}

/* Only blocks of attention keep anything. */
static uint32_t stays(const struct stack *s, int64_t block)
{
    return steps_of(block)->stays ? steps_of(block)->stays(s, block) : 0;
}

const struct stack_steps model_steps = {
    .hidden = hidden, .output = output, .backward = backward, .release = release, .stays = stays};

/* ---- opening ---------------------------------------------------------------------------------
 * A simulated device is written to in the same calls, since the host waits in them, but what would
 * be written is not made. */

static bool computes(const struct model *m)
{
    return !dev_is_simulated(m->dev);
}

/* Row p * N + i of the parts is part p of token i. */
static void make_part_tables(struct model *m)
{
    int64_t tokens = model_tokens(&m->shape), d = m->shape.layout.degree[LAYOUT_SEQUENCE];
    int64_t bytes = tokens * d * (int64_t)sizeof(int32_t);
    if (d == 1)
        return;
    m->to_parts = dev_alloc(m->dev, bytes, LIVE_INPUT, "order of heads by peer");
    m->from_parts = dev_alloc(m->dev, bytes, LIVE_INPUT, "order of heads by token");
    if (!computes(m))
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
    if (!computes(m))
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
    if (computes(m))
        m->chosen = calloc(layers * routes + 1, sizeof *m->chosen);
    m->host_bias = calloc(layers * experts, sizeof *m->host_bias);
    m->loads = calloc(layers * experts, sizeof *m->loads);
    m->tokens_of = calloc((size_t)m->shape.layout.ranks, sizeof *m->tokens_of);
    m->recomputes = calloc(2 * layers, sizeof *m->recomputes);
    m->keep_choice = calloc(layers, sizeof *m->keep_choice);
    m->stayed = calloc(2 * layers, sizeof *m->stayed);
    if (!m->idx || (computes(m) && !m->chosen) || !m->host_bias || !m->loads || !m->tokens_of ||
        !m->recomputes || !m->keep_choice || !m->stayed)
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

/* ---- inputs and the embedding ----------------------------------------------------------------
 */

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
    if (computes(m)) {
        by_token = malloc((size_t)count * sizeof *by_token + 1);
        groups = malloc((size_t)group_bytes);
    }
    if (by_token && groups)
        sort_by_token(m, tokens, by_token, groups);
    if ((by_token && groups) || !computes(m)) {
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

/* ---- the loss --------------------------------------------------------------------------------
 */

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

/* ---- a step ----------------------------------------------------------------------------------
 */

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
