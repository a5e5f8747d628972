/* materialized: every rank holds the full weight and forms its tokens' whole logits.
 *
 * What it is: the plain cross-entropy of an eager framework. Logits, log-softmax and the gradient
 * by the logits are three N x V tensors, all alive when backward begins; the weight gradient of
 * each rank's tokens is then summed over ranks.
 *
 *   forward    logits = X W^T -> states per shard -> loss;  log-softmax    keeps both
 *   backward   d logits -> frees the first two -> dX = d W, dW = d^T X -> sum over ranks
 *
 * Bound: none; 3 N V values over resident. Order: dX one chain over the vocabulary (default); dW
 * one chain per rank's tokens, added in rank order; or another's that is given (run_order). Cost:
 * three products of N V H. */
#include "ops/vocab.h"
#include <stdlib.h>
#include "kernels/gemm.h"
#include "kernels/rank_sum.h"
#include "kernels/strip.h"
#include "ops/vocab_reorder.h"

struct materialized {
    float *logits, *log_softmax;
};

static void release(struct vocab *v)
{
    struct materialized *m = v->state;
    if (!m)
        return;
    dev_free(v->dev, m->logits);
    dev_free(v->dev, m->log_softmax);
    free(m);
    v->state = NULL;
}

/* Folds each shard's columns into its own state, then the states into loss and normaliser: the loss
 * of P shards has the same bits wherever it is formed. */
static void form_loss(struct vocab *v, const float *logits)
{
    struct stream *main = dev_main_stream(v->dev);
    int ranks = v->shape.ranks;
    int64_t tokens = v->shape.tokens[v->rank], vocab = v->shape.vocab;
    int64_t row_bytes = tokens * (int64_t)sizeof(float);
    float *max = dev_alloc(v->dev, ranks * row_bytes, LIVE_WORKSPACE, "shard maxima");
    float *sum = dev_alloc(v->dev, ranks * row_bytes, LIVE_WORKSPACE, "shard sums");
    float *target_logit = dev_alloc(v->dev, row_bytes, LIVE_WORKSPACE, "target logits");
    for (int s = 0; s < ranks; s++) {
        int64_t first = vocab_shard_first(vocab, ranks, s);
        strip_fold(main, &(struct strip_fold_args){.logits = logits + first,
                             .rows = tokens,
                             .columns = vocab_shard_rows(vocab, ranks, s),
                             .ld = vocab,
                             .first_column = first,
                             .targets = v->targets,
                             .max = max + s * tokens,
                             .sum = sum + s * tokens,
                             .target_logit = target_logit,
                             .fresh = true});
    }
    strip_finish(main, &(struct strip_finish_args){.shard_max = max,
                           .shard_sum = sum,
                           .shards = ranks,
                           .stride = tokens,
                           .rows = tokens,
                           .targets = v->targets,
                           .target_logit = target_logit,
                           .max = v->max,
                           .log_z = v->log_z,
                           .loss = v->loss});
    dev_free(v->dev, max);
    dev_free(v->dev, sum);
    dev_free(v->dev, target_logit);
}

static enum dev_status forward(struct vocab *v)
{
    struct stream *main = dev_main_stream(v->dev);
    int64_t tokens = v->shape.tokens[v->rank], hidden = v->shape.hidden, vocab = v->shape.vocab;
    int64_t logits_bytes = tokens * vocab * (int64_t)sizeof(float);
    struct materialized *m = v->state = calloc(1, sizeof *m);
    if (!m) {
        dev_fail(v->dev, DEV_FAILED, "materialized: no host memory");
        return dev_status(v->dev);
    }
    vocab_alloc_token_outputs(v);
    m->logits = dev_alloc(v->dev, logits_bytes, LIVE_LOGITS, "logits");
    gemm(main, &(struct gemm_args){.layout = GEMM_NT,
                   .init = GEMM_FRESH,
                   .a_type = v->shape.dtype,
                   .b_type = v->shape.dtype,
                   .m = tokens,
                   .n = vocab,
                   .k = hidden,
                   .a = v->x,
                   .lda = hidden,
                   .b = v->w,
                   .ldb = hidden,
                   .c = m->logits,
                   .ldc = vocab});
    form_loss(v, m->logits);
    m->log_softmax = dev_alloc(v->dev, logits_bytes, LIVE_LOGITS, "log-softmax");
    strip_log_softmax(main, &(struct strip_log_softmax_args){.logits = m->logits,
                                .rows = tokens,
                                .columns = vocab,
                                .ld = vocab,
                                .max = v->max,
                                .log_z = v->log_z,
                                .out = m->log_softmax,
                                .ld_out = vocab});
    if (!v->with_backward)
        release(v);
    return dev_status(v->dev);
}

/* dX = d W, rounded to the problem's type. */
static void input_gradient(struct vocab *v, const float *residual)
{
    int64_t tokens = v->shape.tokens[v->rank], hidden = v->shape.hidden, vocab = v->shape.vocab;
    float *sum =
        dev_alloc(v->dev, tokens * hidden * (int64_t)sizeof(float), LIVE_OUTPUT, "input gradient");
    gemm(dev_main_stream(v->dev), &(struct gemm_args){.layout = GEMM_NN,
                                      .init = GEMM_FRESH,
                                      .a_type = DTYPE_F32,
                                      .a_rounded = v->shape.dtype == DTYPE_BF16,
                                      .b_type = v->shape.dtype,
                                      .m = tokens,
                                      .n = hidden,
                                      .k = vocab,
                                      .a = residual,
                                      .lda = vocab,
                                      .b = v->w,
                                      .ldb = hidden,
                                      .c = sum,
                                      .ldc = hidden});
    v->dx = vocab_store_input_gradient(v, sum);
}

/* dW = d^T X over this rank's tokens: [V, H]. */
static float *weight_gradient(struct vocab *v, const float *residual)
{
    int64_t tokens = v->shape.tokens[v->rank], hidden = v->shape.hidden, vocab = v->shape.vocab;
    float *dw = dev_alloc(
        v->dev, vocab * hidden * (int64_t)sizeof(float), LIVE_GRADIENTS, "full weight gradient");
    gemm(dev_main_stream(v->dev), &(struct gemm_args){.layout = GEMM_TN,
                                      .init = GEMM_FRESH,
                                      .a_type = DTYPE_F32,
                                      .a_rounded = v->shape.dtype == DTYPE_BF16,
                                      .b_type = v->shape.dtype,
                                      .m = vocab,
                                      .n = hidden,
                                      .k = tokens,
                                      .a = residual,
                                      .lda = vocab,
                                      .b = v->x,
                                      .ldb = hidden,
                                      .c = dw,
                                      .ldc = hidden});
    return dw;
}

/* The gradient by the logits of `columns` columns, from `first` on, to [N, columns]. */
static void form_residual(
    struct vocab *v, const struct materialized *m, int64_t first, int64_t columns, float *out)
{
    strip_residual(
        dev_main_stream(v->dev), &(struct strip_residual_args){.logits = m->log_softmax + first,
                                     .rows = v->shape.tokens[v->rank],
                                     .columns = columns,
                                     .ld = v->shape.vocab,
                                     .first_column = first,
                                     .targets = v->targets,
                                     .scale = vocab_scale(v->valid),
                                     .round_bf16 = v->shape.dtype == DTYPE_BF16,
                                     .out = out,
                                     .ld_out = columns});
}

/* Shard by shard, as an order that is given names them. */
static void form_shards(struct vocab *v, const struct materialized *m, float *out)
{
    int ranks = v->shape.ranks;
    for (int s = 0; s < ranks; s++) {
        int64_t first = vocab_shard_first(v->shape.vocab, ranks, s);
        form_residual(v, m, first, vocab_shard_rows(v->shape.vocab, ranks, s),
            out + v->shape.tokens[v->rank] * first);
    }
}

static enum dev_status backward(struct vocab *v)
{
    int64_t tokens = v->shape.tokens[v->rank], vocab = v->shape.vocab;
    struct materialized *m = v->state;
    float *residual = dev_alloc(
        v->dev, tokens * vocab * (int64_t)sizeof(float), LIVE_LOGITS, "gradient by the logits");
    if (v->run_order && residual) {
        form_shards(v, m, residual);
        release(v);
        vocab_reorder_gradients(v, residual);
        return dev_status(v->dev);
    }
    form_residual(v, m, 0, vocab, residual);
    release(v);
    input_gradient(v, residual);
    float *dw = weight_gradient(v, residual);
    dev_free(v->dev, residual);
    v->dw = vocab_scatter_weight_gradient(v, dw);
    return dev_status(v->dev);
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The instants at which a live set can peak are the three below; "all" (live_set < 0) adds the sets
 * within each. */
static int64_t expected_bytes(const struct vocab_shape *shape, const struct vocab_options *options,
    int rank, int live_set, bool backward_too)
{
    (void)options;
    int64_t tokens = shape->tokens[rank], hidden = shape->hidden, vocab = shape->vocab;
    int64_t ranks = shape->ranks, rows = vocab_shard_rows(vocab, shape->ranks, rank);
    int64_t logits = 4 * tokens * vocab;
    int64_t states = tokens * (8 * ranks + 4);
    int64_t vectors = VOCAB_TOKEN_OUTPUT_BYTES * tokens;
    int64_t dx32 = 4 * tokens * hidden;
    int64_t dx = shape->dtype == DTYPE_BF16 ? dx32 / 2 : dx32;
    int64_t dx_while_rounded = shape->dtype == DTYPE_BF16 ? dx32 + dx : dx32;
    int64_t full = 4 * vocab * hidden;
    int64_t scattered = ranks > 1 ? 4 * rows * hidden : 0;
    int64_t scratch = ranks * scattered;

    int64_t forward_output = vectors, forward_logits = 2 * logits;
    int64_t forward_all = vectors + max64(logits + states, 2 * logits);
    if (!backward_too)
        return live_set < 0                 ? forward_all
               : live_set == LIVE_OUTPUT    ? forward_output
               : live_set == LIVE_LOGITS    ? forward_logits
               : live_set == LIVE_WORKSPACE ? states
                                            : 0;
    switch (live_set) {
    case LIVE_LOGITS:
        return 3 * logits;
    case LIVE_OUTPUT:
        return vectors + dx_while_rounded;
    case LIVE_GRADIENTS:
        return full + scattered;
    case LIVE_WORKSPACE:
        return max64(states, scratch);
    }
    if (live_set >= 0)
        return 0;
    int64_t all = max64(forward_all, vectors + 3 * logits);
    all = max64(all, vectors + logits + dx_while_rounded);
    all = max64(all, vectors + logits + dx + full);
    return max64(all, vectors + dx + full + scattered + scratch);
}

static void order(
    const struct vocab_shape *shape, const struct vocab_options *options, struct vocab_order *out)
{
    (void)shape;
    (void)options;
    for (int i = 0; i < out->ranks * out->ranks; i++)
        out->dw[i].starts = true;
}

const struct vocab_impl vocab_materialized = {
    .name = "materialized",
    .summary = "full weight, logits, log-softmax and their gradient resident on every rank",
    .full_weight = true,
    .takes_run_order = true,
    .forward = forward,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_bytes,
    .order = order,
};
