/* Experts on rows that lie by matrix. Buffers are reused as soon as the formulas allow: the
 * activation over a pre-activation in forward, gradients over what they are the gradients of in
 * backward. */
#include "ops/moe_expert.h"

static int64_t wide_bytes(const struct moe_shape *shape, int64_t rows)
{
    return rows * shape->ffn * dtype_bytes(shape->dtype);
}

int64_t moe_rows_bytes(const struct moe_shape *shape, int64_t rows)
{
    return rows * shape->hidden * dtype_bytes(shape->dtype);
}

int64_t moe_hidden_bytes(const struct moe_shape *shape, int64_t rows, bool backward)
{
    int wide = (shape->activation == MOE_RELU ? 1 : 2) + backward;
    return wide * wide_bytes(shape, rows) + (backward ? moe_rows_bytes(shape, rows) : 0);
}

void moe_hidden_alloc(const struct moe *m, int64_t rows, bool backward, struct moe_hidden *hidden)
{
    int64_t bytes = wide_bytes(&m->shape, rows);
    *hidden = (struct moe_hidden){0};
    if (m->gate)
        hidden->gate = dev_alloc(m->dev, bytes, LIVE_EXPERT, "gate");
    hidden->up = dev_alloc(m->dev, bytes, LIVE_EXPERT, "up");
    hidden->act = m->gate ? hidden->gate : hidden->up;
    if (!backward)
        return;
    hidden->act = dev_alloc(m->dev, bytes, LIVE_EXPERT, "activation");
    hidden->out = dev_alloc(m->dev, moe_rows_bytes(&m->shape, rows), LIVE_EXPERT, "expert output");
}

void moe_hidden_free(const struct moe *m, struct moe_hidden *hidden)
{
    if (hidden->act != hidden->gate && hidden->act != hidden->up) {
        dev_free(m->dev, hidden->act);
        dev_free(m->dev, hidden->out);
    }
    dev_free(m->dev, hidden->gate);
    dev_free(m->dev, hidden->up);
    *hidden = (struct moe_hidden){0};
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* A chunk's received rows and their matrices. */
struct work {
    const struct moe *m;
    const struct moe_lent *lent;
    struct stream *stream;
    const struct expert_group *groups;
    int64_t group_count, rows, owned;
};

static struct work work_of(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk)
{
    int64_t first = layer->group_first[chunk];
    return (struct work){.m = layer->m,
        .lent = lent,
        .stream = stream,
        .groups = layer->groups + first,
        .group_count = layer->group_first[chunk + 1] - first,
        .rows = moe_layer_received(layer, chunk),
        .owned = layer->layout.owned};
}

static struct expert_matrices matrices(const struct work *w, const void *owned, const void *lent)
{
    return (struct expert_matrices){owned, lent, w->owned, lent ? w->lent->count : 0};
}

/* out [rows, n] = a [rows, k] times each row's matrix. */
static void multiply(const struct work *w, enum gemm_layout layout, int64_t n, int64_t k,
    const void *a, struct expert_matrices weights, void *out)
{
    expert_matmul(w->stream, &(struct expert_matmul_args){.groups = w->groups,
                                 .group_count = w->group_count,
                                 .rows = w->rows,
                                 .n = n,
                                 .k = k,
                                 .layout = layout,
                                 .type = w->m->shape.dtype,
                                 .out_type = w->m->shape.dtype,
                                 .a = a,
                                 .weights = weights,
                                 .out = out});
}

/* The gradient of each matrix [m, n]: the sum over its rows of a[m] b[n]. */
static void gradient(const struct work *w, int64_t m, int64_t n, const void *a, const void *b,
    float *owned, float *lent)
{
    expert_gradient(w->stream, &(struct expert_gradient_args){.groups = w->groups,
                                   .group_count = w->group_count,
                                   .rows = w->rows,
                                   .m = m,
                                   .n = n,
                                   .type = w->m->shape.dtype,
                                   .a = a,
                                   .b = b,
                                   .owned = owned,
                                   .lent = lent,
                                   .owned_count = w->owned,
                                   .lent_count = lent ? w->lent->count : 0});
}

/* ---- passes -----------------------------------------------------------------------------------
 */

void moe_experts_activate(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden)
{
    struct work w = work_of(layer, lent, stream, chunk);
    const struct moe *m = layer->m;
    int64_t hidden_width = m->shape.hidden, ffn = m->shape.ffn;
    if (w.rows == 0)
        return;
    if (m->gate)
        multiply(
            &w, GEMM_NT, ffn, hidden_width, x, matrices(&w, m->gate, lent->gate), hidden->gate);
    multiply(&w, GEMM_NT, ffn, hidden_width, x, matrices(&w, m->up, lent->up), hidden->up);
    expert_activation(stream, &(struct expert_activation_args){.count = w.rows * ffn,
                                  .type = m->shape.dtype,
                                  .g = hidden->gate,
                                  .u = hidden->up,
                                  .a = hidden->act});
}

void moe_experts_output(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const struct moe_hidden *hidden)
{
    struct work w = work_of(layer, lent, stream, chunk);
    const struct moe *m = layer->m;
    if (w.rows)
        multiply(&w, GEMM_NT, m->shape.hidden, m->shape.ffn, hidden->act,
            matrices(&w, m->down, lent->down), hidden->out);
}

void moe_experts_forward(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden)
{
    moe_experts_activate(layer, lent, stream, chunk, x, hidden);
    moe_experts_output(layer, lent, stream, chunk, hidden);
}

/* dx = chain over F of dg * Wgate, continued with du * Wup; for ReLU of du * Wup. */
static void input_gradient(const struct work *w, const struct moe_hidden *hidden, void *dx)
{
    const struct moe *m = w->m;
    struct expert_matmul_args args = {.groups = w->groups,
        .group_count = w->group_count,
        .rows = w->rows,
        .n = m->shape.hidden,
        .k = m->shape.ffn,
        .layout = GEMM_NN,
        .type = m->shape.dtype,
        .out_type = m->shape.dtype,
        .a = hidden->up,
        .weights = matrices(w, m->up, w->lent->up),
        .out = dx};
    if (m->gate) {
        args.a_then = args.a;
        args.weights_then = args.weights;
        args.a = hidden->gate;
        args.weights = matrices(w, m->gate, w->lent->gate);
    }
    expert_matmul(w->stream, &args);
}

static void route_gradients(
    const struct work *w, const struct moe_hidden *hidden, void *dy, const float *weight, float *dw)
{
    route_backward(w->stream, &(struct route_backward_args){.count = w->rows,
                                  .columns = w->m->shape.hidden,
                                  .type = w->m->shape.dtype,
                                  .dy = dy,
                                  .dy_rows = w->rows,
                                  .routes = w->rows,
                                  .weight = weight,
                                  .e = hidden->out,
                                  .de = dy,
                                  .dw = dw});
}

void moe_experts_backward(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden, void *dy,
    const float *weight, float *dw)
{
    struct work w = work_of(layer, lent, stream, chunk);
    const struct moe *m = layer->m;
    int64_t width = m->shape.hidden, ffn = m->shape.ffn;
    if (w.rows)
        route_gradients(&w, hidden, dy, weight, dw); /* dy is now de */
    gradient(&w, width, ffn, dy, hidden->act, m->down_gradient, lent->down_gradient);
    if (w.rows) {
        void *dh = hidden->act;
        multiply(&w, GEMM_NN, ffn, width, dy, matrices(&w, m->down, lent->down), dh);
        expert_activation_backward(
            stream, &(struct expert_activation_backward_args){.count = w.rows * ffn,
                        .type = m->shape.dtype,
                        .g = hidden->gate,
                        .u = hidden->up,
                        .dh = dh,
                        .dg = hidden->gate,
                        .du = hidden->up});
        input_gradient(&w, hidden, dy);
    }
    if (m->gate)
        gradient(&w, ffn, width, hidden->gate, x, m->gate_gradient, lent->gate_gradient);
    gradient(&w, ffn, width, hidden->up, x, m->up_gradient, lent->up_gradient);
}

/* ---- outputs ----------------------------------------------------------------------------------
 */

void moe_alloc_forward(struct moe *m)
{
    m->y = dev_alloc(
        m->dev, moe_rows_bytes(&m->shape, m->shape.tokens[m->rank]), LIVE_OUTPUT, "output");
}

void moe_alloc_backward(struct moe *m)
{
    const struct moe_shape *shape = &m->shape;
    int64_t tokens = shape->tokens[m->rank], dw_bytes = tokens * shape->topk * 4;
    int64_t matrix_bytes = moe_experts_per_rank(shape) * shape->hidden * shape->ffn * 4;
    m->dx = dev_alloc(m->dev, moe_rows_bytes(shape, tokens), LIVE_OUTPUT, "input gradient");
    m->router_gradient = dev_alloc(m->dev, dw_bytes, LIVE_OUTPUT, "router gradient");
    if (m->gate)
        m->gate_gradient = dev_alloc(m->dev, matrix_bytes, LIVE_GRADIENTS, "gate gradient");
    m->up_gradient = dev_alloc(m->dev, matrix_bytes, LIVE_GRADIENTS, "up gradient");
    m->down_gradient = dev_alloc(m->dev, matrix_bytes, LIVE_GRADIENTS, "down gradient");
    dev_fill(dev_main_stream(m->dev), m->router_gradient, 0, dw_bytes);
}
