/* Both gradients are sums over parts, dX over shards and dW over batches, and each part is a
 * product. A segment's parts continue one chain; segments are added from the left: one of a single
 * part by its own product, a longer one by way of a block of its own. */
#include "ops/vocab_reorder.h"
#include <stdlib.h>
#include "kernels/gemm.h"
#include "kernels/rank_sum.h"

/* A sum of `elements`: the product of a part, and what it is made of. */
struct sum {
    struct vocab *v;
    struct gemm_args (*product)(const struct sum *sum, int part);
    int64_t elements;
    const float *residual; /* of this rank's tokens, by shard */
    /* of this rank's shard and all tokens, by batch: [P] each */
    const float **residual_of;
    const void **x_of;
};

/* ---- the order ------------------------------------------------------------------------------- */

static void add_product(const struct sum *sum, int part, enum gemm_init init, float *to)
{
    struct gemm_args args = sum->product(sum, part);
    args.init = init;
    args.c = to;
    gemm(dev_main_stream(sum->v->dev), &args);
}

/* The segment that begins at place `first`; returns where the next one does. */
static int add_segment(
    const struct sum *sum, const struct vocab_part *list, int parts, int first, float *to)
{
    struct device *dev = sum->v->dev;
    int end = first + 1;
    while (end < parts && !list[end].starts)
        end++;
    float *own = to;
    if (first && end > first + 1)
        own = dev_alloc(dev, sum->elements * (int64_t)sizeof *own, LIVE_WORKSPACE, "a segment");
    add_product(sum, list[first].part, first && own == to ? GEMM_ADD : GEMM_FRESH, own);
    for (int i = first + 1; i < end; i++)
        add_product(sum, list[i].part, GEMM_CHAIN, own);
    if (own != to) {
        add_f32(dev_main_stream(dev), to, own, sum->elements);
        dev_free(dev, own);
    }
    return end;
}

static void add_all(const struct sum *sum, const struct vocab_part *list, float *to)
{
    int parts = sum->v->shape.ranks;
    for (int at = 0; at < parts && dev_status(sum->v->dev) == DEV_OK;)
        at = add_segment(sum, list, parts, at, to);
}

/* ---- dX: shards of the vocabulary ------------------------------------------------------------ */

static int64_t shard_first(const struct vocab *v, int shard)
{
    return vocab_shard_first(v->shape.vocab, v->shape.ranks, shard);
}

static int64_t shard_rows(const struct vocab *v, int shard)
{
    return vocab_shard_rows(v->shape.vocab, v->shape.ranks, shard);
}

static struct gemm_args shard_product(const struct sum *sum, int shard)
{
    const struct vocab *v = sum->v;
    int64_t tokens = v->shape.tokens[v->rank], hidden = v->shape.hidden;
    int64_t row_bytes = hidden * dtype_bytes(v->shape.dtype);
    return (struct gemm_args){.layout = GEMM_NN,
        .a_type = DTYPE_F32,
        .a_rounded = v->shape.dtype == DTYPE_BF16,
        .b_type = v->shape.dtype,
        .m = tokens,
        .n = hidden,
        .k = shard_rows(v, shard),
        .a = sum->residual + tokens * shard_first(v, shard),
        .lda = shard_rows(v, shard),
        .b = (const char *)v->w + shard_first(v, shard) * row_bytes,
        .ldb = hidden,
        .ldc = hidden};
}

static void input_gradient(struct vocab *v, const float *residual)
{
    int64_t elements = v->shape.tokens[v->rank] * v->shape.hidden;
    const struct sum sum = {
        .v = v, .product = shard_product, .residual = residual, .elements = elements};
    float *dx = dev_alloc(v->dev, elements * (int64_t)sizeof *dx, LIVE_OUTPUT, "input gradient");
    add_all(&sum, v->run_order->dx + (int64_t)v->rank * v->shape.ranks, dx);
    v->dx = vocab_store_input_gradient(v, dx);
}

/* ---- dW: batches of tokens ------------------------------------------------------------------- */

static struct gemm_args batch_product(const struct sum *sum, int batch)
{
    const struct vocab *v = sum->v;
    int64_t rows = shard_rows(v, v->rank), hidden = v->shape.hidden;
    return (struct gemm_args){.layout = GEMM_TN,
        .a_type = DTYPE_F32,
        .a_rounded = v->shape.dtype == DTYPE_BF16,
        .b_type = v->shape.dtype,
        .m = rows,
        .n = hidden,
        .k = v->shape.tokens[batch],
        .a = sum->residual_of[batch],
        .lda = rows,
        .b = sum->x_of[batch],
        .ldb = hidden,
        .ldc = hidden};
}

/* All batches' residuals of the rank's shard, and their rows, one batch after the other. */
struct gathered {
    float *residual;
    char *x;
};

/* Each rank's blocks of the residual to the shards' owners, and its rows to all. */
static void exchange(const struct sum *sum)
{
    struct vocab *v = sum->v;
    int ranks = v->shape.ranks;
    int64_t row_bytes = v->shape.hidden * dtype_bytes(v->shape.dtype);
    int64_t tokens = v->shape.tokens[v->rank], rows = shard_rows(v, v->rank);
    struct comm_part *send = malloc(4 * (size_t)ranks * sizeof *send);
    struct comm_part *receive = send ? send + 2 * ranks : NULL;
    if (!send) {
        dev_fail(v->dev, DEV_FAILED, "no host memory for the messages of an order");
        return;
    }
    for (int p = 0; p < ranks; p++) {
        send[2 * p] =
            (struct comm_part){p, (void *)(uintptr_t)(sum->residual + tokens * shard_first(v, p)),
                tokens * shard_rows(v, p) * (int64_t)sizeof(float)};
        send[2 * p + 1] = (struct comm_part){p, (void *)(uintptr_t)v->x, tokens * row_bytes};
        receive[2 * p] = (struct comm_part){p, (void *)(uintptr_t)sum->residual_of[p],
            v->shape.tokens[p] * rows * (int64_t)sizeof(float)};
        receive[2 * p + 1] =
            (struct comm_part){p, (void *)(uintptr_t)sum->x_of[p], v->shape.tokens[p] * row_bytes};
    }
    comm_exchange(v->comm, dev_main_stream(v->dev), "residuals to their shards", send, 2 * ranks,
        receive, 2 * ranks);
    free(send);
}

static void gather(struct sum *sum, struct gathered *all)
{
    struct vocab *v = sum->v;
    int64_t tokens = vocab_total_tokens(&v->shape), rows = shard_rows(v, v->rank), first = 0;
    int64_t row_bytes = v->shape.hidden * dtype_bytes(v->shape.dtype);
    if (v->shape.ranks == 1) {
        sum->residual_of[0] = sum->residual;
        sum->x_of[0] = v->x;
        return;
    }
    all->residual = dev_alloc(
        v->dev, tokens * rows * (int64_t)sizeof(float), LIVE_WORKSPACE, "residuals of the shard");
    all->x = dev_alloc(v->dev, tokens * row_bytes, LIVE_WORKSPACE, "all tokens");
    if (dev_status(v->dev) != DEV_OK)
        return;
    for (int p = 0; p < v->shape.ranks; p++) {
        sum->residual_of[p] = all->residual + first * rows;
        sum->x_of[p] = all->x + first * row_bytes;
        first += v->shape.tokens[p];
    }
    exchange(sum);
}

static void weight_gradient(struct vocab *v, const float *residual)
{
    size_t ranks = (size_t)v->shape.ranks;
    struct gathered all = {0};
    struct sum sum = {.v = v,
        .product = batch_product,
        .elements = shard_rows(v, v->rank) * v->shape.hidden,
        .residual = residual,
        .residual_of = calloc(ranks, sizeof *sum.residual_of),
        .x_of = calloc(ranks, sizeof *sum.x_of)};
    if (sum.residual_of && sum.x_of) {
        int64_t bytes = sum.elements * (int64_t)sizeof *v->dw;
        v->dw = dev_alloc(v->dev, bytes, LIVE_GRADIENTS, "weight gradient");
        gather(&sum, &all);
        add_all(&sum, v->run_order->dw + (int64_t)v->rank * v->shape.ranks, v->dw);
    } else {
        dev_fail(v->dev, DEV_FAILED, "no host memory for an order of batches");
    }
    dev_free(v->dev, all.residual);
    dev_free(v->dev, all.x);
    free(sum.residual_of);
    free(sum.x_of);
}

void vocab_reorder_gradients(struct vocab *v, float *residual)
{
    input_gradient(v, residual);
    weight_gradient(v, residual);
    dev_free(v->dev, residual);
}
