/* vocab-parallel: Megatron's. The group's batches are gathered, so that every rank has the same
 * rows; each forms their logits against its own shard, and three quantities are reduced over ranks.
 *
 *   forward    gather X, targets -> logits [sum N, V/P] -> state and target logit of the shard
 *              -> each token's states home (three reductions), loss -> max and log z to all
 *   backward   residual in place -> dW = r^T X, partial dX = r W -> sum of dX over ranks
 *
 * The reductions are done in shard order by each token's own rank (a reduce-scatter), whose result
 * is then gathered: the bits of an all-reduce in rank order. The strip is kept from forward to
 * backward.
 *
 * Bound: (sum N)(4 V/P + (b + 4) H ...): 1/P of the vocabulary, but P times the tokens. Order: dX
 * one chain per shard, added in shard order; dW one chain over all tokens (default). Cost: three
 * products of (sum N)(V/P) H. */
#include "ops/vocab.h"
#include <stdlib.h>
#include "kernels/gemm.h"
#include "kernels/rank_sum.h"
#include "kernels/strip.h"

struct parallel {
    void *x;            /* [sum N, H] */
    int64_t *targets;   /* [sum N] */
    float *strip;       /* [sum N, V_r] */
    float *max, *log_z; /* [sum N] */
};

/* This shard's states of all tokens, and all shards' states of this rank's tokens. */
struct states {
    float *max, *sum, *target;                /* [sum N] */
    float *home_max, *home_sum, *home_target; /* [P, N_r] */
    float *target_logit;                      /* [N_r] */
};

static void release(struct vocab *v)
{
    struct parallel *p = v->state;
    if (!p)
        return;
    dev_free(v->dev, p->x);
    dev_free(v->dev, p->targets);
    dev_free(v->dev, p->strip);
    dev_free(v->dev, p->max);
    dev_free(v->dev, p->log_z);
    free(p);
    v->state = NULL;
}

static void gather(struct vocab *v, const void *send, void *receive, int64_t row_bytes)
{
    int64_t bytes[VOCAB_RANKS_MAX];
    for (int r = 0; r < v->shape.ranks; r++)
        bytes[r] = v->shape.tokens[r] * row_bytes;
    comm_all_gather_v(v->comm, dev_main_stream(v->dev), send, receive, bytes);
}

static void form_strip(struct vocab *v, struct parallel *p, int64_t total)
{
    int64_t hidden = v->shape.hidden;
    int64_t rows = vocab_shard_rows(v->shape.vocab, v->shape.ranks, v->rank);
    int64_t x_bytes = hidden * dtype_bytes(v->shape.dtype);
    p->x = dev_alloc(v->dev, total * x_bytes, LIVE_INPUT, "gathered activations");
    p->targets = dev_alloc(v->dev, total * 8, LIVE_INPUT, "gathered targets");
    p->strip = dev_alloc(v->dev, total * rows * 4, LIVE_LOGITS, "logits of the shard");
    gather(v, v->x, p->x, x_bytes);
    gather(v, v->targets, p->targets, 8);
    gemm(dev_main_stream(v->dev), &(struct gemm_args){.layout = GEMM_NT,
                                      .init = GEMM_FRESH,
                                      .a_type = v->shape.dtype,
                                      .b_type = v->shape.dtype,
                                      .m = total,
                                      .n = rows,
                                      .k = hidden,
                                      .a = p->x,
                                      .lda = hidden,
                                      .b = v->w,
                                      .ldb = hidden,
                                      .c = p->strip,
                                      .ldc = rows});
}

static void states_alloc(struct vocab *v, struct states *s, int64_t total)
{
    float **shard[] = {&s->max, &s->sum, &s->target};
    float **home[] = {&s->home_max, &s->home_sum, &s->home_target};
    int64_t tokens = v->shape.tokens[v->rank];
    for (int i = 0; i < 3; i++) {
        *shard[i] = dev_alloc(v->dev, total * 4, LIVE_WORKSPACE, "states of the shard");
        *home[i] =
            dev_alloc(v->dev, v->shape.ranks * tokens * 4, LIVE_WORKSPACE, "states of the tokens");
    }
    s->target_logit = dev_alloc(v->dev, tokens * 4, LIVE_WORKSPACE, "target logits");
}

static void states_free(struct vocab *v, struct states *s)
{
    float *all[] = {
        s->max, s->sum, s->target, s->home_max, s->home_sum, s->home_target, s->target_logit};
    for (int i = 0; i < 7; i++)
        dev_free(v->dev, all[i]);
}

/* One reduction's traffic: every rank receives all shards' values of its own tokens. */
static void send_home(struct vocab *v, const float *shard, float *home)
{
    int64_t send_bytes[VOCAB_RANKS_MAX], send_at[VOCAB_RANKS_MAX];
    int64_t receive_bytes[VOCAB_RANKS_MAX], receive_at[VOCAB_RANKS_MAX];
    int64_t at = 0, mine = v->shape.tokens[v->rank] * 4;
    for (int r = 0; r < v->shape.ranks; r++) {
        send_bytes[r] = v->shape.tokens[r] * 4;
        send_at[r] = at;
        at += send_bytes[r];
        receive_bytes[r] = mine;
        receive_at[r] = r * mine;
    }
    comm_all_to_all_v(v->comm, dev_main_stream(v->dev), shard, send_bytes, send_at, home,
        receive_bytes, receive_at);
}

/* Folds all shards' states of this rank's tokens, in shard order, into loss and normaliser. */
static void finish_at_home(struct vocab *v, const struct states *s)
{
    struct stream *main = dev_main_stream(v->dev);
    int64_t tokens = v->shape.tokens[v->rank];
    for (int shard = 0; shard < v->shape.ranks; shard++)
        strip_take_target(
            main, &(struct strip_take_target_args){.candidate = s->home_target + shard * tokens,
                      .targets = v->targets,
                      .rows = tokens,
                      .first_column = vocab_shard_first(v->shape.vocab, v->shape.ranks, shard),
                      .columns = vocab_shard_rows(v->shape.vocab, v->shape.ranks, shard),
                      .target_logit = s->target_logit});
    strip_finish(main, &(struct strip_finish_args){.shard_max = s->home_max,
                           .shard_sum = s->home_sum,
                           .shards = v->shape.ranks,
                           .stride = tokens,
                           .rows = tokens,
                           .targets = v->targets,
                           .target_logit = s->target_logit,
                           .max = v->max,
                           .log_z = v->log_z,
                           .loss = v->loss});
}

static enum dev_status forward(struct vocab *v)
{
    int64_t total = vocab_total_tokens(&v->shape);
    int64_t rows = vocab_shard_rows(v->shape.vocab, v->shape.ranks, v->rank);
    struct parallel *p = v->state = calloc(1, sizeof *p);
    if (!p) {
        dev_fail(v->dev, DEV_FAILED, "vocab-parallel: no host memory");
        return dev_status(v->dev);
    }
    vocab_alloc_token_outputs(v);
    form_strip(v, p, total);
    struct states s;
    states_alloc(v, &s, total);
    strip_fold(dev_main_stream(v->dev),
        &(struct strip_fold_args){.logits = p->strip,
            .rows = total,
            .columns = rows,
            .ld = rows,
            .first_column = vocab_shard_first(v->shape.vocab, v->shape.ranks, v->rank),
            .targets = p->targets,
            .max = s.max,
            .sum = s.sum,
            .target_logit = s.target,
            .fresh = true});
    send_home(v, s.max, s.home_max);
    send_home(v, s.sum, s.home_sum);
    send_home(v, s.target, s.home_target);
    finish_at_home(v, &s);
    states_free(v, &s);
    if (v->with_backward) {
        p->max = dev_alloc(v->dev, total * 4, LIVE_WORKSPACE, "row maxima of all tokens");
        p->log_z = dev_alloc(v->dev, total * 4, LIVE_WORKSPACE, "log normalisers of all tokens");
        gather(v, v->max, p->max, 4);
        gather(v, v->log_z, p->log_z, 4);
    } else {
        release(v);
    }
    return dev_status(v->dev);
}

static enum dev_status backward(struct vocab *v)
{
    struct stream *main = dev_main_stream(v->dev);
    struct parallel *p = v->state;
    enum dtype type = v->shape.dtype;
    int64_t total = vocab_total_tokens(&v->shape), hidden = v->shape.hidden;
    int64_t rows = vocab_shard_rows(v->shape.vocab, v->shape.ranks, v->rank);
    int64_t tokens = v->shape.tokens[v->rank];
    strip_residual(
        main, &(struct strip_residual_args){.logits = p->strip,
                  .rows = total,
                  .columns = rows,
                  .ld = rows,
                  .first_column = vocab_shard_first(v->shape.vocab, v->shape.ranks, v->rank),
                  .targets = p->targets,
                  .max = p->max,
                  .log_z = p->log_z,
                  .scale = vocab_scale(v->valid),
                  .round_bf16 = type == DTYPE_BF16,
                  .out = p->strip,
                  .ld_out = rows});
    v->dw = dev_alloc(v->dev, rows * hidden * 4, LIVE_GRADIENTS, "weight gradient");
    gemm(main, &(struct gemm_args){.layout = GEMM_TN,
                   .init = GEMM_FRESH,
                   .a_type = DTYPE_F32,
                   .a_rounded = type == DTYPE_BF16,
                   .b_type = type,
                   .m = rows,
                   .n = hidden,
                   .k = total,
                   .a = p->strip,
                   .lda = rows,
                   .b = p->x,
                   .ldb = hidden,
                   .c = v->dw,
                   .ldc = hidden});
    float *partial = dev_alloc(v->dev, total * hidden * 4, LIVE_WORKSPACE, "shard's part of dX");
    gemm(main, &(struct gemm_args){.layout = GEMM_NN,
                   .init = GEMM_FRESH,
                   .a_type = DTYPE_F32,
                   .a_rounded = type == DTYPE_BF16,
                   .b_type = type,
                   .m = total,
                   .n = hidden,
                   .k = rows,
                   .a = p->strip,
                   .lda = rows,
                   .b = v->w,
                   .ldb = hidden,
                   .c = partial,
                   .ldc = hidden});
    release(v);

    int64_t counts[VOCAB_RANKS_MAX];
    for (int r = 0; r < v->shape.ranks; r++)
        counts[r] = v->shape.tokens[r] * hidden;
    float *sum = dev_alloc(v->dev, tokens * hidden * 4, LIVE_OUTPUT, "input gradient");
    float *scratch = dev_alloc(
        v->dev, v->shape.ranks * tokens * hidden * 4, LIVE_WORKSPACE, "gathered parts of dX");
    rank_sum_scatter(v->comm, main, partial, counts, scratch, sum);
    dev_free(v->dev, scratch);
    dev_free(v->dev, partial);
    v->dx = vocab_store_input_gradient(v, sum);
    return dev_status(v->dev);
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t expected_bytes(const struct vocab_shape *shape, const struct vocab_options *options,
    int rank, int live_set, bool backward_too)
{
    (void)options;
    int64_t tokens = shape->tokens[rank], total = vocab_total_tokens(shape);
    int64_t hidden = shape->hidden, ranks = shape->ranks;
    int64_t rows = vocab_shard_rows(shape->vocab, shape->ranks, rank);
    bool bf16 = shape->dtype == DTYPE_BF16;
    int64_t vectors = VOCAB_TOKEN_OUTPUT_BYTES * tokens;
    int64_t gathered = total * (hidden * dtype_bytes(shape->dtype) + 8);
    int64_t strip = 4 * total * rows;
    int64_t states = 12 * total + tokens * (12 * ranks + 4);
    int64_t normalisers = 8 * total;
    int64_t dw = 4 * rows * hidden, partial = 4 * total * hidden;
    int64_t dx = 4 * tokens * hidden, scratch = 4 * ranks * tokens * hidden;
    int64_t dx_while_rounded = bf16 ? dx + dx / 2 : dx;
    switch (live_set) {
    case LIVE_INPUT:
        return gathered;
    case LIVE_LOGITS:
        return strip;
    case LIVE_OUTPUT:
        return vectors + (backward_too ? dx_while_rounded : 0);
    case LIVE_GRADIENTS:
        return backward_too ? dw : 0;
    case LIVE_WORKSPACE:
        return backward_too ? max64(states, max64(normalisers + partial, partial + scratch))
                            : states;
    }
    if (live_set >= 0)
        return 0;
    int64_t all = vectors + gathered + strip + states;
    if (!backward_too)
        return all;
    all = max64(all, vectors + gathered + strip + normalisers + dw + partial);
    all = max64(all, vectors + dw + partial + dx + scratch);
    return max64(all, vectors + dw + dx_while_rounded);
}

static void order(
    const struct vocab_shape *shape, const struct vocab_options *options, struct vocab_order *out)
{
    (void)shape;
    (void)options;
    for (int i = 0; i < out->ranks * out->ranks; i++)
        out->dx[i].starts = true;
}

const struct vocab_impl vocab_parallel = {
    .name = "vocab-parallel",
    .summary = "Megatron's: all tokens of the group against the rank's shard, three reductions",
    .forward = forward,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_bytes,
    .order = order,
};
