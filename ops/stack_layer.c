/* A layer's steps. Blocks are reused as soon as the formulas allow: the activation over the gate in
 * forward; in backward each gradient over what it is the gradient of. */
#include "ops/stack_layer.h"
#include "kernels/gemm.h"
#include "kernels/rmsnorm.h"

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

/* ---- forward ----------------------------------------------------------------------------------
 */

void stack_layer_hidden(
    struct stack *s, int64_t layer, const void *x, bool keep, struct stack_kept *kept)
{
    const struct stack_layer *w = &s->layer[layer];
    int64_t hidden = s->shape.hidden, ffn = s->shape.ffn;
    int64_t wide_bytes = stack_wide_bytes(&s->shape, s->rank);
    struct stream *main = dev_main_stream(s->dev);
    kept->n = dev_alloc(s->dev, stack_row_bytes(&s->shape, s->rank), LIVE_WORKSPACE, "normed");
    kept->r =
        dev_alloc(s->dev, stack_scale_bytes(&s->shape, s->rank), LIVE_WORKSPACE, "row scales");
    rmsnorm(main, &(struct rmsnorm_args){.rows = tokens_of(s),
                      .columns = hidden,
                      .type = s->shape.dtype,
                      .x = x,
                      .gain = w->gain,
                      .r = kept->r,
                      .n = kept->n});
    kept->g = dev_alloc(s->dev, wide_bytes, LIVE_EXPERT, "gate");
    kept->u = dev_alloc(s->dev, wide_bytes, LIVE_EXPERT, "up");
    multiply(s, GEMM_NN, ffn, hidden, kept->n, w->gate, NULL, NULL, kept->g);
    multiply(s, GEMM_NN, ffn, hidden, kept->n, w->up, NULL, NULL, kept->u);
    kept->a = keep ? dev_alloc(s->dev, wide_bytes, LIVE_EXPERT, "activation") : kept->g;
    expert_activation(main, &(struct expert_activation_args){.count = tokens_of(s) * ffn,
                                .type = s->shape.dtype,
                                .g = kept->g,
                                .u = kept->u,
                                .a = kept->a});
    if (keep)
        return;
    dev_free(s->dev, kept->n);
    dev_free(s->dev, kept->r);
    dev_free(s->dev, kept->u);
    *kept = (struct stack_kept){.a = kept->a};
}

void stack_layer_recompute(struct stack *s, int64_t layer, const void *x, struct stack_kept *kept)
{
    stack_layer_hidden(s, layer, x, true, kept);
    s->recomputes[layer]++;
}

void *stack_layer_output(
    struct stack *s, int64_t layer, const void *x, const struct stack_kept *kept)
{
    bool last = layer + 1 == s->shape.layers;
    void *y = dev_alloc(s->dev, stack_row_bytes(&s->shape, s->rank),
        last ? LIVE_OUTPUT : LIVE_BOUNDARY, last ? "output" : "boundary");
    multiply(
        s, GEMM_NN, s->shape.hidden, s->shape.ffn, kept->a, s->layer[layer].down, NULL, NULL, y);
    residual_add(dev_main_stream(s->dev),
        &(struct residual_add_args){
            .count = tokens_of(s) * s->shape.hidden, .type = s->shape.dtype, .to = y, .from = x});
    if (last)
        s->y = y;
    return y;
}

void stack_kept_free(struct stack *s, struct stack_kept *kept)
{
    dev_free(s->dev, kept->n);
    dev_free(s->dev, kept->r);
    dev_free(s->dev, kept->g);
    dev_free(s->dev, kept->u);
    dev_free(s->dev, kept->a);
    *kept = (struct stack_kept){0};
}

/* ---- backward ---------------------------------------------------------------------------------
 */

void stack_backward_begin(struct stack *s)
{
    s->dx = dev_alloc(s->dev, stack_row_bytes(&s->shape, s->rank), LIVE_OUTPUT, "input gradient");
}

/* a, g, u become da, dg, du. */
static void hidden_backward(
    struct stack *s, const struct stack_layer *w, const void *dy, struct stack_kept *kept)
{
    int64_t hidden = s->shape.hidden, ffn = s->shape.ffn;
    weight_gradient(s, ffn, hidden, kept->a, dy, w->ddown);
    multiply(s, GEMM_NT, ffn, hidden, dy, w->down, NULL, NULL, kept->a);
    expert_activation_backward(dev_main_stream(s->dev),
        &(struct expert_activation_backward_args){.count = tokens_of(s) * ffn,
            .type = s->shape.dtype,
            .g = kept->g,
            .u = kept->u,
            .dh = kept->a,
            .dg = kept->g,
            .du = kept->u});
    weight_gradient(s, hidden, ffn, kept->n, kept->g, w->dgate);
    weight_gradient(s, hidden, ffn, kept->n, kept->u, w->dup);
}

void stack_layer_backward(struct stack *s, int64_t layer, const void *x, struct stack_kept *kept)
{
    const struct stack_layer *w = &s->layer[layer];
    int64_t hidden = s->shape.hidden, ffn = s->shape.ffn;
    struct stream *main = dev_main_stream(s->dev);
    const void *dy = layer + 1 == s->shape.layers ? s->dy : s->dx;
    hidden_backward(s, w, dy, kept);
    multiply(s, GEMM_NT, hidden, ffn, kept->g, w->gate, kept->u, w->up, kept->n); /* dn over n */
    rmsnorm_gain(main, &(struct rmsnorm_gain_args){.rows = tokens_of(s),
                           .columns = hidden,
                           .type = s->shape.dtype,
                           .x = x,
                           .dn = kept->n,
                           .r = kept->r,
                           .dgain = w->dgain});
    rmsnorm_backward(main, &(struct rmsnorm_backward_args){.rows = tokens_of(s),
                               .columns = hidden,
                               .type = s->shape.dtype,
                               .x = x,
                               .gain = w->gain,
                               .dn = kept->n,
                               .dy = dy,
                               .r = kept->r,
                               .dx = s->dx});
    stack_kept_free(s, kept);
}
