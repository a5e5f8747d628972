/* The layers of the checkpoint-boundary problem: RMSNorm, a SwiGLU MLP, the residual. Blocks are
 * reused as soon as the formulas allow: the activation over the gate in forward; in backward each
 * gradient over what it is the gradient of. */
#include "ops/stack_layer.h"
#include "kernels/gemm.h"
#include "kernels/rmsnorm.h"

/* The blocks of a kept layer. */
enum { NORMED, SCALES, GATE, UP, ACTIVATION };

static int64_t tokens_of(const struct stack *s)
{
    return s->shape.tokens[s->rank];
}

/* out [N, n] = a [N, k] W, continued with a_then W_then where given. */
static void multiply(struct stack *s, enum gemm_layout layout, int64_t n, int64_t k, const void *a,
    const void *w, const void *a_then, const void *w_then, void *out)
{
    expert_matmul(dev_main_stream(s->dev), &(struct expert_matmul_args){.groups = s->group,
                                               .group_count = 1,
                                               .rows = tokens_of(s),
                                               .n = n,
                                               .k = k,
                                               .layout = layout,
                                               .type = s->shape.dtype,
                                               .out_type = s->shape.dtype,
                                               .a = a,
                                               .weights = {w, NULL, 1, 0},
                                               .a_then = a_then,
                                               .weights_then = {w_then, NULL, a_then ? 1 : 0, 0},
                                               .out = out});
}

/* out [m, n] = chain over tokens of a [N, m], b [N, n]. */
static void weight_gradient(
    struct stack *s, int64_t m, int64_t n, const void *a, const void *b, float *out)
{
    gemm(dev_main_stream(s->dev), &(struct gemm_args){.layout = GEMM_TN,
                                      .init = GEMM_FRESH,
                                      .a_type = s->shape.dtype,
                                      .b_type = s->shape.dtype,
                                      .m = m,
                                      .n = n,
                                      .k = tokens_of(s),
                                      .a = a,
                                      .lda = m,
                                      .b = b,
                                      .ldb = n,
                                      .c = out,
                                      .ldc = n});
}

/* ---- forward --------------------------------------------------------------------------------- */

static void swiglu_hidden(struct stack *s, int64_t layer, const void *x, enum stack_purpose purpose,
    struct stack_kept *kept)
{
    bool keep = purpose != STACK_FOR_OUTPUT;
    const struct stack_layer *w = &s->layer[layer];
    int64_t hidden = s->shape.hidden, ffn = s->shape.ffn;
    int64_t wide_bytes = stack_wide_bytes(&s->shape, s->rank);
    struct stream *main = dev_main_stream(s->dev);
    kept->block[NORMED] =
        dev_alloc(s->dev, stack_row_bytes(&s->shape, s->rank), LIVE_WORKSPACE, "normed");
    kept->block[SCALES] =
        dev_alloc(s->dev, stack_scale_bytes(&s->shape, s->rank), LIVE_WORKSPACE, "row scales");
    rmsnorm(main, &(struct rmsnorm_args){.rows = tokens_of(s),
                      .columns = hidden,
                      .type = s->shape.dtype,
                      .x = x,
                      .gain = w->gain,
                      .r = kept->block[SCALES],
                      .n = kept->block[NORMED]});
    kept->block[GATE] = dev_alloc(s->dev, wide_bytes, LIVE_EXPERT, "gate");
    kept->block[UP] = dev_alloc(s->dev, wide_bytes, LIVE_EXPERT, "up");
    multiply(s, GEMM_NN, ffn, hidden, kept->block[NORMED], w->gate, NULL, NULL, kept->block[GATE]);
    multiply(s, GEMM_NN, ffn, hidden, kept->block[NORMED], w->up, NULL, NULL, kept->block[UP]);
    kept->block[ACTIVATION] =
        keep ? dev_alloc(s->dev, wide_bytes, LIVE_EXPERT, "activation") : kept->block[GATE];
    expert_activation(main, &(struct expert_activation_args){.count = tokens_of(s) * ffn,
                                .type = s->shape.dtype,
                                .g = kept->block[GATE],
                                .u = kept->block[UP],
                                .a = kept->block[ACTIVATION]});
    if (keep)
        return;
    dev_free(s->dev, kept->block[NORMED]);
    dev_free(s->dev, kept->block[SCALES]);
    dev_free(s->dev, kept->block[UP]);
    *kept = (struct stack_kept){.block = {[ACTIVATION] = kept->block[ACTIVATION]}};
}

static void swiglu_output(
    struct stack *s, int64_t layer, const void *x, const struct stack_kept *kept, void *y)
{
    multiply(s, GEMM_NN, s->shape.hidden, s->shape.ffn, kept->block[ACTIVATION],
        s->layer[layer].down, NULL, NULL, y);
    residual_add(dev_main_stream(s->dev),
        &(struct residual_add_args){
            .count = tokens_of(s) * s->shape.hidden, .type = s->shape.dtype, .to = y, .from = x});
}

/* ---- backward -------------------------------------------------------------------------------- */

/* a, g, u become da, dg, du. */
static void hidden_backward(
    struct stack *s, const struct stack_layer *w, const void *dy, struct stack_kept *kept)
{
    int64_t hidden = s->shape.hidden, ffn = s->shape.ffn;
    weight_gradient(s, ffn, hidden, kept->block[ACTIVATION], dy, w->ddown);
    multiply(s, GEMM_NT, ffn, hidden, dy, w->down, NULL, NULL, kept->block[ACTIVATION]);
    expert_activation_backward(dev_main_stream(s->dev),
        &(struct expert_activation_backward_args){.count = tokens_of(s) * ffn,
            .type = s->shape.dtype,
            .g = kept->block[GATE],
            .u = kept->block[UP],
            .dh = kept->block[ACTIVATION],
            .dg = kept->block[GATE],
            .du = kept->block[UP]});
    weight_gradient(s, hidden, ffn, kept->block[NORMED], kept->block[GATE], w->dgate);
    weight_gradient(s, hidden, ffn, kept->block[NORMED], kept->block[UP], w->dup);
}

static void swiglu_backward(
    struct stack *s, int64_t layer, const void *x, const void *dy, struct stack_kept *kept)
{
    const struct stack_layer *w = &s->layer[layer];
    int64_t hidden = s->shape.hidden, ffn = s->shape.ffn;
    struct stream *main = dev_main_stream(s->dev);
    hidden_backward(s, w, dy, kept);
    multiply(s, GEMM_NT, hidden, ffn, kept->block[GATE], w->gate, kept->block[UP], w->up,
        kept->block[NORMED]); /* dn over n */
    rmsnorm_gain(main, &(struct rmsnorm_gain_args){.rows = tokens_of(s),
                           .columns = hidden,
                           .type = s->shape.dtype,
                           .x = x,
                           .dn = kept->block[NORMED],
                           .r = kept->block[SCALES],
                           .dgain = w->dgain});
    rmsnorm_backward(main, &(struct rmsnorm_backward_args){.rows = tokens_of(s),
                               .columns = hidden,
                               .type = s->shape.dtype,
                               .x = x,
                               .gain = w->gain,
                               .dn = kept->block[NORMED],
                               .dy = dy,
                               .r = kept->block[SCALES],
                               .dx = s->dx});
}

const struct stack_steps stack_swiglu = {
    .hidden = swiglu_hidden, .output = swiglu_output, .backward = swiglu_backward};
