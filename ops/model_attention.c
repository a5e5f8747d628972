/* A layer's attention as a block of the stack.
 *
 *     n = rmsnorm(x);  q, k, v = n Wq, n Wk, n Wv; q, k turned  of this rank's tokens, all heads
 *     to heads: the D ranks of a sequence block exchange      all tokens of the sequences, heads /
 * D o = attention(q, k, v);  back to tokens;  y = o Wo + x
 *
 * With D = 1 there is nothing to exchange, and what is "of the heads" is the very same block. The
 * sequence of a head is put together in rank order, which is token order.
 *
 * Backward goes the same way round with gradients; dn is one FP32 chain over dq Wq^T, then dk Wk^T,
 * then dv Wv^T, rounded once. */
#include "kernels/attention.h"
#include <math.h>
#include <stdlib.h>
#include "kernels/rank_sum.h"
#include "kernels/rmsnorm.h"
#include "ops/model_blocks.h"
#include "ops/model_keep.h"
#include "ops/model_parts.h"

/* The blocks of a kept layer: n and its scales, q, k, v and o of the heads, their normalisers, and
 * o of the tokens (the same as of the heads with D = 1, and then not listed). */
enum { NORMED, SCALES, Q, K, V, O, MAX, LOG_Z, TOKENS_O };

static int degree(const struct model *m)
{
    return m->shape.layout.degree[LAYOUT_SEQUENCE];
}

struct attention_shape model_attention_shape(const struct model_shape *shape)
{
    int64_t columns = shape->hidden / shape->layout.heads;
    return (struct attention_shape){.sequences = shape->sequences,
        .tokens = shape->length,
        .heads = shape->layout.heads / shape->layout.degree[LAYOUT_SEQUENCE],
        .head_columns = columns,
        .type = DTYPE_BF16,
        .scale = 1.0f / sqrtf((float)columns)};
}

struct rotary_args model_rotary(const struct model_shape *shape)
{
    return (struct rotary_args){.rows = model_tokens(shape),
        .heads = shape->layout.heads,
        .head_columns = shape->hidden / shape->layout.heads,
        .run = shape->length / shape->layout.degree[LAYOUT_SEQUENCE],
        .type = DTYPE_BF16};
}

int64_t model_normaliser_bytes(const struct model_shape *shape)
{
    return model_tokens(shape) * shape->layout.heads * (int64_t)sizeof(float);
}

static void *alloc_rows(struct model *m, const char *label)
{
    return dev_alloc(m->dev, model_row_bytes(m), LIVE_ATTENTION, label);
}

/* ---- tokens to heads and back ----------------------------------------------------------------
 * Rows of the heads of one part: hidden / D columns. */

static int64_t part_bytes(const struct model *m)
{
    return m->shape.hidden / degree(m) * 2;
}

static void reorder(struct model *m, const int32_t *index, const void *from, void *to)
{
    int64_t rows = model_tokens(&m->shape) * degree(m);
    gather_rows(dev_main_stream(m->dev), &(struct gather_rows_args){.to = to,
                                             .from = from,
                                             .index = index,
                                             .count = rows,
                                             .from_rows = rows,
                                             .row_bytes = part_bytes(m)});
}

/* Runs of this rank's tokens for every peer's heads (by_peer, [D, N]) against runs of every peer's
 * tokens for this rank's heads (by_sequence, [sequences, length]). */
static void exchange(struct model *m, char *by_peer, char *by_sequence, bool to_heads)
{
    int d = degree(m);
    int64_t run = m->shape.length / d, bytes = run * part_bytes(m), parts = d * m->shape.sequences;
    struct comm_part *peers = calloc((size_t)(2 * parts), sizeof *peers);
    struct comm_part *sequences = peers + parts;
    if (!peers) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for an exchange of heads");
        return;
    }
    for (int p = 0; p < d; p++)
        for (int64_t s = 0; s < m->shape.sequences; s++) {
            int64_t i = p * m->shape.sequences + s;
            peers[i] = (struct comm_part){p, by_peer + i * bytes, bytes};
            sequences[i] = (struct comm_part){p, by_sequence + (s * d + p) * bytes, bytes};
        }
    comm_exchange(m->layout.block_comm[LAYOUT_SEQUENCE], dev_main_stream(m->dev),
        to_heads ? "tokens to heads" : "heads to tokens", to_heads ? peers : sequences, (int)parts,
        to_heads ? sequences : peers, (int)parts);
    free(peers);
}

/* Takes over `tokens` [N, heads]; gives the rows of this rank's heads. */
static void *to_heads(struct model *m, void *tokens, const char *label)
{
    if (degree(m) == 1)
        return tokens;
    void *by_peer = alloc_rows(m, "heads by peer"), *heads = alloc_rows(m, label);
    reorder(m, m->to_parts, tokens, by_peer);
    exchange(m, by_peer, heads, true);
    dev_free(m->dev, by_peer);
    dev_free(m->dev, tokens);
    return heads;
}

/* A new block of this rank's tokens; `heads` stays. Not with D = 1. */
static void *to_tokens(struct model *m, void *heads, const char *label)
{
    void *by_peer = alloc_rows(m, "heads by peer"), *tokens = alloc_rows(m, label);
    exchange(m, by_peer, heads, false);
    reorder(m, m->from_parts, by_peer, tokens);
    dev_free(m->dev, by_peer);
    return tokens;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Turns queries or keys, or their gradients back, by the places of this rank's tokens. */
static void turn(struct model *m, enum model_tensor tensor, void *tokens, bool backward)
{
    if (tensor == MODEL_V)
        return;
    struct rotary_args args = model_rotary(&m->shape);
    args.backward = backward;
    args.turns = m->turns;
    args.x = tokens;
    rotary(dev_main_stream(m->dev), &args);
}

static void *project(struct model *m, enum model_tensor tensor, int64_t layer, const void *n)
{
    void *tokens = alloc_rows(m, "projection");
    model_matmul(
        m, GEMM_NN, m->shape.hidden, m->shape.hidden, n, model_weights(m, tensor, layer), tokens);
    turn(m, tensor, tokens, false);
    return to_heads(m, tokens, "projection of heads");
}

static void attend(struct model *m, struct stack_kept *kept)
{
    kept->block[O] = alloc_rows(m, "attention");
    kept->block[MAX] =
        dev_alloc(m->dev, model_normaliser_bytes(&m->shape), LIVE_ATTENTION, "score maxima");
    kept->block[LOG_Z] =
        dev_alloc(m->dev, model_normaliser_bytes(&m->shape), LIVE_ATTENTION, "normalisers");
    attention(
        dev_main_stream(m->dev), &(struct attention_args){.shape = model_attention_shape(&m->shape),
                                     .q = kept->block[Q],
                                     .k = kept->block[K],
                                     .v = kept->block[V],
                                     .o = kept->block[O],
                                     .max = kept->block[MAX],
                                     .log_z = kept->block[LOG_Z]});
}

static void *tokens_o(const struct stack_kept *kept)
{
    return kept->block[TOKENS_O] ? kept->block[TOKENS_O] : kept->block[O];
}

/* Blocks that stay from forward to backward: bits of the list above. */
static uint32_t attention_stays(const struct stack *s, int64_t block)
{
    static const uint32_t rows[] = {[MODEL_KEEP_OUTPUT] = 1u << O | 1u << MAX | 1u << LOG_Z,
        [MODEL_KEEP_PROJECTIONS] = 1u << Q | 1u << K | 1u << V,
        [MODEL_KEEP_NORMED] = 1u << NORMED | 1u << SCALES};
    const struct model *m = model_of(s);
    uint32_t stays = 0;
    for (int32_t option = 0; option <= m->keep_choice[block / 2]; option++)
        stays |= rows[option];
    return stays;
}

static void attention_hidden(struct stack *s, int64_t block, const void *x,
    enum stack_purpose purpose, struct stack_kept *kept)
{
    struct model *m = model_of(s);
    int64_t layer = block / 2;
    if (!kept->block[NORMED])
        model_norm(m, block, x, &kept->block[NORMED], &kept->block[SCALES]);
    for (int i = 0; i < 3; i++)
        if (!kept->block[Q + i])
            kept->block[Q + i] =
                project(m, (enum model_tensor)((int)MODEL_Q + i), layer, kept->block[NORMED]);
    if (!kept->block[O])
        attend(m, kept);
    if (degree(m) > 1)
        kept->block[TOKENS_O] = to_tokens(m, kept->block[O], "attention of tokens");
    if (purpose != STACK_FOR_OUTPUT)
        return;
    uint32_t left = attention_stays(s, block) | 1u << (degree(m) > 1 ? TOKENS_O : O);
    for (int i = NORMED; i <= TOKENS_O; i++)
        if (!(left >> i & 1)) {
            dev_free(m->dev, kept->block[i]);
            kept->block[i] = NULL;
        }
}

static void attention_output(
    struct stack *s, int64_t block, const void *x, const struct stack_kept *kept, void *y)
{
    struct model *m = model_of(s);
    model_matmul(m, GEMM_NN, m->shape.hidden, m->shape.hidden, tokens_o(kept),
        model_weights(m, MODEL_O, block / 2), y);
    residual_add(dev_main_stream(m->dev),
        &(struct residual_add_args){.count = model_tokens(&m->shape) * m->shape.hidden,
            .type = DTYPE_BF16,
            .to = y,
            .from = x});
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Gradients of q, k and v of the heads, from that of o; they come as blocks. */
static void attend_backward(
    struct model *m, const struct stack_kept *kept, const void *d_o, void *gradients[3])
{
    struct stream *main = dev_main_stream(m->dev);
    float *delta = dev_alloc(m->dev, model_normaliser_bytes(&m->shape), LIVE_ATTENTION, "deltas");
    for (int i = 0; i < 3; i++)
        gradients[i] = alloc_rows(m, "gradient of heads");
    attention_queries(
        main, &(struct attention_queries_args){.shape = model_attention_shape(&m->shape),
                  .q = kept->block[Q],
                  .k = kept->block[K],
                  .v = kept->block[V],
                  .o = kept->block[O],
                  .d_o = d_o,
                  .max = kept->block[MAX],
                  .log_z = kept->block[LOG_Z],
                  .delta = delta,
                  .dq = gradients[0]});
    attention_keys(main, &(struct attention_keys_args){.shape = model_attention_shape(&m->shape),
                             .q = kept->block[Q],
                             .k = kept->block[K],
                             .v = kept->block[V],
                             .d_o = d_o,
                             .max = kept->block[MAX],
                             .log_z = kept->block[LOG_Z],
                             .delta = delta,
                             .dk = gradients[1],
                             .dv = gradients[2]});
    dev_free(m->dev, delta);
}

/* sum [N, H] goes on with gradient W^T. */
static void add_turned(
    struct model *m, const void *gradient, const uint16_t *weights, bool first, float *sum)
{
    gemm(dev_main_stream(m->dev), &(struct gemm_args){.layout = GEMM_NT,
                                      .init = first ? GEMM_FRESH : GEMM_CHAIN,
                                      .a_type = DTYPE_BF16,
                                      .b_type = DTYPE_BF16,
                                      .m = model_tokens(&m->shape),
                                      .n = m->shape.hidden,
                                      .k = m->shape.hidden,
                                      .a = gradient,
                                      .lda = m->shape.hidden,
                                      .b = weights,
                                      .ldb = m->shape.hidden,
                                      .c = sum,
                                      .ldc = m->shape.hidden});
}

/* From dy to the gradient of o, of the heads; and the gradient of Wo. */
static void *output_backward(
    struct model *m, int64_t layer, const void *dy, const struct stack_kept *kept)
{
    void *d_o = alloc_rows(m, "gradient of attention");
    model_product_gradient(
        m, MODEL_O, layer, tokens_o(kept), DTYPE_BF16, m->shape.hidden, dy, m->shape.hidden);
    model_matmul(
        m, GEMM_NT, m->shape.hidden, m->shape.hidden, dy, model_weights(m, MODEL_O, layer), d_o);
    return to_heads(m, d_o, "gradient of heads");
}

static void attention_backward(
    struct stack *s, int64_t block, const void *x, const void *dy, struct stack_kept *kept)
{
    struct model *m = model_of(s);
    int64_t layer = block / 2, elements = model_tokens(&m->shape) * m->shape.hidden;
    void *gradients[3];
    void *d_o = output_backward(m, layer, dy, kept);
    attend_backward(m, kept, d_o, gradients);
    dev_free(m->dev, d_o);
    float *sum = dev_alloc(m->dev, elements * 4, LIVE_ATTENTION, "sum of normed gradients");
    for (int i = 0; i < 3; i++) {
        enum model_tensor tensor = (enum model_tensor)((int)MODEL_Q + i);
        void *tokens = gradients[i];
        if (degree(m) > 1) {
            tokens = to_tokens(m, gradients[i], "gradient of tokens");
            dev_free(m->dev, gradients[i]);
        }
        turn(m, tensor, tokens, true);
        model_product_gradient(m, tensor, layer, kept->block[NORMED], DTYPE_BF16, m->shape.hidden,
            tokens, m->shape.hidden);
        add_turned(m, tokens, model_weights(m, tensor, layer), i == 0, sum);
        dev_free(m->dev, tokens);
    }
    round_bf16(dev_main_stream(m->dev), kept->block[NORMED], sum, elements); /* dn over n */
    dev_free(m->dev, sum);
    model_norm_backward(m, block, x, kept->block[NORMED], dy, kept->block[SCALES], s->dx);
}

const struct stack_steps model_attention_steps = {.hidden = attention_hidden,
    .output = attention_output,
    .backward = attention_backward,
    .stays = attention_stays};
