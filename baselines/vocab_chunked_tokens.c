/* chunked-tokens: the fused-linear kind. Every rank holds the full weight; its tokens are taken in
 * chunks, so that only one chunk's logits are alive.
 *
 * Like its model it forms the gradients in forward, where the chunk's logits are at hand (the loss
 * is a mean, so the incoming gradient is known): backward only sums the weight gradient over ranks.
 *
 *   forward    per chunk: logits -> states per shard -> loss [-> residual in place -> dX rows, dW
 * +=] backward   sum of dW over ranks
 *
 * Default chunk: with n = ceil(V / H), the power of two at or above ceil(N / n), at most N.
 * Bound: one chunk's logits + dX + a full dW; it does not shrink with P. Order: as materialized,
 * since a chunk continues the previous chunk's chain. Cost: three products of N V H. */
#include "ops/vocab.h"
#include <stdlib.h>
#include "kernels/gemm.h"
#include "kernels/rank_sum.h"
#include "kernels/strip.h"

struct chunked {
    float *dw; /* [V, H]: this rank's tokens */
};

/* What one chunk needs, reused by every chunk. */
struct workspace {
    float *logits;                   /* [chunk, V] */
    float *max, *sum, *target_logit; /* [P, chunk], [P, chunk], [chunk] */
    float *dx;                       /* [chunk, H], in a BF16 problem */
};

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t chunk_tokens(
    const struct vocab_shape *shape, const struct vocab_options *options, int rank)
{
    int64_t tokens = shape->tokens[rank];
    if (options->chunk > 0)
        return options->chunk < tokens ? options->chunk : max64(tokens, 1);
    int64_t parts = (shape->vocab + shape->hidden - 1) / shape->hidden;
    int64_t least = (tokens + parts - 1) / parts, chunk = 1;
    while (chunk < least)
        chunk *= 2;
    return chunk < tokens ? chunk : max64(tokens, 1);
}

static void workspace_alloc(struct vocab *v, struct workspace *w, int64_t chunk)
{
    int64_t row_bytes = chunk * (int64_t)sizeof(float), ranks = v->shape.ranks;
    w->logits = dev_alloc(v->dev, row_bytes * v->shape.vocab, LIVE_LOGITS, "chunk of logits");
    w->max = dev_alloc(v->dev, ranks * row_bytes, LIVE_WORKSPACE, "shard maxima");
    w->sum = dev_alloc(v->dev, ranks * row_bytes, LIVE_WORKSPACE, "shard sums");
    w->target_logit = dev_alloc(v->dev, row_bytes, LIVE_WORKSPACE, "target logits");
    w->dx = NULL;
    if (v->with_backward && v->shape.dtype == DTYPE_BF16)
        w->dx = dev_alloc(
            v->dev, row_bytes * v->shape.hidden, LIVE_WORKSPACE, "chunk of input gradient");
}

static void workspace_free(struct vocab *v, struct workspace *w)
{
    dev_free(v->dev, w->logits);
    dev_free(v->dev, w->max);
    dev_free(v->dev, w->sum);
    dev_free(v->dev, w->target_logit);
    dev_free(v->dev, w->dx);
}

/* Row `token` of X or dX, in elements of the problem's type. */
static char *row(const struct vocab *v, const void *tensor, int64_t token)
{
    return (char *)(uintptr_t)tensor + token * v->shape.hidden * dtype_bytes(v->shape.dtype);
}

static void chunk_loss(struct vocab *v, const struct workspace *w, int64_t first, int64_t tokens)
{
    struct stream *main = dev_main_stream(v->dev);
    int64_t hidden = v->shape.hidden, vocab = v->shape.vocab;
    gemm(main, &(struct gemm_args){.layout = GEMM_NT,
                   .init = GEMM_FRESH,
                   .a_type = v->shape.dtype,
                   .b_type = v->shape.dtype,
                   .m = tokens,
                   .n = vocab,
                   .k = hidden,
                   .a = row(v, v->x, first),
                   .lda = hidden,
                   .b = v->w,
                   .ldb = hidden,
                   .c = w->logits,
                   .ldc = vocab});
    for (int s = 0; s < v->shape.ranks; s++) {
        int64_t column = vocab_shard_first(vocab, v->shape.ranks, s);
        strip_fold(main, &(struct strip_fold_args){.logits = w->logits + column,
                             .rows = tokens,
                             .columns = vocab_shard_rows(vocab, v->shape.ranks, s),
                             .ld = vocab,
                             .first_column = column,
                             .targets = v->targets + first,
                             .max = w->max + s * tokens,
                             .sum = w->sum + s * tokens,
                             .target_logit = w->target_logit,
                             .fresh = true});
    }
    strip_finish(main, &(struct strip_finish_args){.shard_max = w->max,
                           .shard_sum = w->sum,
                           .shards = v->shape.ranks,
                           .stride = tokens,
                           .rows = tokens,
                           .targets = v->targets + first,
                           .target_logit = w->target_logit,
                           .max = v->max + first,
                           .log_z = v->log_z + first,
                           .loss = v->loss + first});
}

static void chunk_gradients(
    struct vocab *v, const struct workspace *w, float *dw, int64_t first, int64_t tokens)
{
    struct stream *main = dev_main_stream(v->dev);
    int64_t hidden = v->shape.hidden, vocab = v->shape.vocab;
    bool bf16 = v->shape.dtype == DTYPE_BF16;
    float *dx = bf16 ? w->dx : (float *)v->dx + first * hidden;
    strip_residual(main, &(struct strip_residual_args){.logits = w->logits,
                             .rows = tokens,
                             .columns = vocab,
                             .ld = vocab,
                             .targets = v->targets + first,
                             .max = v->max + first,
                             .log_z = v->log_z + first,
                             .scale = vocab_scale(v->valid),
                             .round_bf16 = bf16,
                             .out = w->logits,
                             .ld_out = vocab});
    gemm(main, &(struct gemm_args){.layout = GEMM_NN,
                   .init = GEMM_FRESH,
                   .a_type = DTYPE_F32,
                   .a_rounded = v->shape.dtype == DTYPE_BF16,
                   .b_type = v->shape.dtype,
                   .m = tokens,
                   .n = hidden,
                   .k = vocab,
                   .a = w->logits,
                   .lda = vocab,
                   .b = v->w,
                   .ldb = hidden,
                   .c = dx,
                   .ldc = hidden});
    gemm(main, &(struct gemm_args){.layout = GEMM_TN,
                   .init = first ? GEMM_CHAIN : GEMM_FRESH,
                   .a_type = DTYPE_F32,
                   .a_rounded = v->shape.dtype == DTYPE_BF16,
                   .b_type = v->shape.dtype,
                   .m = vocab,
                   .n = hidden,
                   .k = tokens,
                   .a = w->logits,
                   .lda = vocab,
                   .b = row(v, v->x, first),
                   .ldb = hidden,
                   .c = dw,
                   .ldc = hidden});
    if (bf16)
        round_bf16(main, (uint16_t *)(void *)row(v, v->dx, first), dx, tokens * hidden);
}

static void release(struct vocab *v)
{
    struct chunked *c = v->state;
    if (!c)
        return;
    dev_free(v->dev, c->dw);
    free(c);
    v->state = NULL;
}

static enum dev_status forward(struct vocab *v)
{
    int64_t tokens = v->shape.tokens[v->rank];
    int64_t chunk = chunk_tokens(&v->shape, &v->options, v->rank);
    struct chunked *c = v->state = calloc(1, sizeof *c);
    if (!c) {
        dev_fail(v->dev, DEV_FAILED, "chunked-tokens: no host memory");
        return dev_status(v->dev);
    }
    vocab_alloc_token_outputs(v);
    if (v->with_backward) {
        v->dx = dev_alloc(v->dev, tokens * v->shape.hidden * dtype_bytes(v->shape.dtype),
            LIVE_OUTPUT, "input gradient");
        c->dw = dev_alloc(v->dev, v->shape.vocab * v->shape.hidden * (int64_t)sizeof(float),
            LIVE_GRADIENTS, "full weight gradient");
    }
    struct workspace w;
    workspace_alloc(v, &w, chunk);
    int64_t first = 0;
    do { /* once even without tokens: the weight gradient is then +0 */
        int64_t count = tokens - first < chunk ? tokens - first : chunk;
        chunk_loss(v, &w, first, count);
        if (v->with_backward)
            chunk_gradients(v, &w, c->dw, first, count);
        first += chunk;
    } while (first < tokens);
    workspace_free(v, &w);
    return dev_status(v->dev);
}

static enum dev_status backward(struct vocab *v)
{
    struct chunked *c = v->state;
    v->dw = vocab_scatter_weight_gradient(v, c->dw);
    c->dw = NULL;
    return dev_status(v->dev);
}

static int64_t expected_bytes(const struct vocab_shape *shape, const struct vocab_options *options,
    int rank, int live_set, bool backward_too)
{
    int64_t tokens = shape->tokens[rank], hidden = shape->hidden, ranks = shape->ranks;
    int64_t chunk = chunk_tokens(shape, options, rank);
    bool bf16 = shape->dtype == DTYPE_BF16;
    int64_t vectors = VOCAB_TOKEN_OUTPUT_BYTES * tokens;
    int64_t logits = 4 * chunk * shape->vocab;
    int64_t work = chunk * (8 * ranks + 4) + (bf16 && backward_too ? 4 * chunk * hidden : 0);
    int64_t dx = backward_too ? tokens * hidden * dtype_bytes(shape->dtype) : 0;
    int64_t full = backward_too ? 4 * shape->vocab * hidden : 0;
    int64_t scattered = backward_too && ranks > 1
                            ? 4 * vocab_shard_rows(shape->vocab, shape->ranks, rank) * hidden
                            : 0;
    int64_t scratch = ranks * scattered;
    switch (live_set) {
    case LIVE_LOGITS:
        return logits;
    case LIVE_OUTPUT:
        return vectors + dx;
    case LIVE_GRADIENTS:
        return full + scattered;
    case LIVE_WORKSPACE:
        return max64(work, scratch);
    }
    return live_set >= 0 ? 0 : vectors + dx + full + max64(logits + work, scattered + scratch);
}

/* Its live set is a launch setting once the chunk is: the closed form of the largest batch. */
static int64_t bound_bytes(const struct vocab_shape *shape, const struct vocab_options *options,
    int rank, bool backward_too)
{
    int64_t most = 0;
    (void)rank;
    for (int r = 0; r < shape->ranks; r++)
        most = max64(most, expected_bytes(shape, options, r, -1, backward_too));
    return most;
}

static void order(
    const struct vocab_shape *shape, const struct vocab_options *options, struct vocab_order *out)
{
    vocab_materialized.order(shape, options, out);
}

const struct vocab_impl vocab_chunked_tokens = {
    .name = "chunked-tokens",
    .summary = "full weight on every rank, logits of one token chunk at a time (fused-linear kind)",
    .full_weight = true,
    .takes_chunk = true,
    .forward = forward,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_bytes,
    .bound_bytes = bound_bytes,
    .order = order,
};
