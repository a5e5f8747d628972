/* Experts on rows that lie by matrix. Buffers are reused as soon as the formulas allow: the
 * activation over a pre-activation in forward, gradients over what they are the gradients of in
 * backward. */
#include "ops/moe_expert.h"
#include "ops/moe_reorder.h"

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

/* ---- products -------------------------------------------------------------------------------- */

static const struct moe_lent nothing_lent = {0};

/* A chunk's received rows. */
static struct moe_work work_of(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk)
{
    const struct moe *m = layer->m;
    int64_t first = layer->group_first[chunk];
    return (struct moe_work){.shape = &m->shape,
        .stream = stream,
        .groups = layer->groups + first,
        .group_count = layer->group_first[chunk + 1] - first,
        .rows = moe_layer_received(layer, chunk),
        .owned = layer->layout.owned,
        .gate = m->gate,
        .up = m->up,
        .down = m->down,
        .gate_gradient = m->gate_gradient,
        .up_gradient = m->up_gradient,
        .down_gradient = m->down_gradient,
        .lent = lent,
        .reorder = layer->reorder};
}

static const struct moe_lent *lent_of(const struct moe_work *w)
{
    return w->lent ? w->lent : &nothing_lent;
}

static struct expert_matrices matrices(
    const struct moe_work *w, const void *owned, const void *lent)
{
    return (struct expert_matrices){owned, lent, w->owned, lent ? w->lent->count : 0};
}

static const char *row_at(const void *rows, int64_t row, int64_t columns, enum dtype type)
{
    return (const char *)rows + row * columns * dtype_bytes(type);
}

/* One launch, or one for each group that has rows. */
static void launch_matmul(const struct moe_work *w, const struct expert_matmul_args *args)
{
    if (!w->each) {
        expert_matmul(w->stream, args);
        return;
    }
    for (int64_t g = 0; g < w->group_count; g++) {
        struct expert_matmul_args one = *args;
        int64_t first = w->each[g].first;
        one.groups = w->groups + g;
        one.group_count = 1;
        one.rows = w->each[g].rows;
        one.a = row_at(args->a, first, args->k, args->type);
        if (args->a_then)
            one.a_then = row_at(args->a_then, first, args->k, args->type);
        one.out = (char *)args->out + first * args->n * dtype_bytes(args->out_type);
        if (one.rows)
            expert_matmul(w->stream, &one);
    }
}

/* out [rows, n] = a [rows, k] times each row's matrix. */
static void multiply(const struct moe_work *w, enum gemm_layout layout, int64_t n, int64_t k,
    const void *a, struct expert_matrices weights, void *out)
{
    launch_matmul(w, &(struct expert_matmul_args){.groups = w->groups,
                         .group_count = w->group_count,
                         .rows = w->rows,
                         .n = n,
                         .k = k,
                         .layout = layout,
                         .type = w->shape->dtype,
                         .out_type = w->shape->dtype,
                         .a = a,
                         .weights = weights,
                         .out = out});
}

/* The gradient of each matrix [m, n]: the sum over its rows of a[m] b[n]. */
static void gradient(const struct moe_work *w, int64_t m, int64_t n, const void *a, const void *b,
    float *owned, float *lent)
{
    struct expert_gradient_args args = {.groups = w->groups,
        .group_count = w->group_count,
        .rows = w->rows,
        .m = m,
        .n = n,
        .type = w->shape->dtype,
        .a = a,
        .b = b,
        .owned = owned,
        .lent = lent,
        .owned_count = w->owned,
        .lent_count = lent ? w->lent->count : 0};
    if (w->reorder) {
        moe_reorder_gradient(w->reorder, w->stream, &args);
        return;
    }
    if (!w->each) {
        expert_gradient(w->stream, &args);
        return;
    }
    args.group_count = 1;
    for (int64_t g = 0; g < w->group_count; g++) {
        args.groups = w->groups + g;
        args.rows = w->each[g].rows;
        args.a = row_at(a, w->each[g].first, m, args.type);
        args.b = row_at(b, w->each[g].first, n, args.type);
        expert_gradient(w->stream, &args);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

void moe_work_activate(const struct moe_work *w, const void *x, const struct moe_hidden *hidden)
{
    const struct moe_lent *lent = lent_of(w);
    int64_t hidden_width = w->shape->hidden, ffn = w->shape->ffn;
    if (w->rows == 0)
        return;
    if (w->gate)
        multiply(w, GEMM_NT, ffn, hidden_width, x, matrices(w, w->gate, lent->gate), hidden->gate);
    multiply(w, GEMM_NT, ffn, hidden_width, x, matrices(w, w->up, lent->up), hidden->up);
    expert_activation(w->stream, &(struct expert_activation_args){.count = w->rows * ffn,
                                     .type = w->shape->dtype,
                                     .g = hidden->gate,
                                     .u = hidden->up,
                                     .a = hidden->act});
}

void moe_work_output(const struct moe_work *w, const struct moe_hidden *hidden)
{
    if (w->rows)
        multiply(w, GEMM_NT, w->shape->hidden, w->shape->ffn, hidden->act,
            matrices(w, w->down, lent_of(w)->down), hidden->out);
}

/* dx = chain over F of dg * Wgate, continued with du * Wup; for ReLU of du * Wup. */
static void input_gradient(const struct moe_work *w, const struct moe_hidden *hidden, void *dx)
{
    const struct moe_lent *lent = lent_of(w);
    struct expert_matmul_args args = {.groups = w->groups,
        .group_count = w->group_count,
        .rows = w->rows,
        .n = w->shape->hidden,
        .k = w->shape->ffn,
        .layout = GEMM_NN,
        .type = w->shape->dtype,
        .out_type = w->shape->dtype,
        .a = hidden->up,
        .weights = matrices(w, w->up, lent->up),
        .out = dx};
    if (w->gate) {
        args.a_then = args.a;
        args.weights_then = args.weights;
        args.a = hidden->gate;
        args.weights = matrices(w, w->gate, lent->gate);
    }
    launch_matmul(w, &args);
}

void moe_work_down_gradient(
    const struct moe_work *w, const struct moe_hidden *hidden, const void *de)
{
    gradient(w, w->shape->hidden, w->shape->ffn, de, hidden->act, w->down_gradient,
        lent_of(w)->down_gradient);
}

void moe_work_input_gradient(const struct moe_work *w, const struct moe_hidden *hidden, void *de)
{
    int64_t width = w->shape->hidden, ffn = w->shape->ffn;
    void *dh = hidden->act;
    if (w->rows == 0)
        return;
    multiply(w, GEMM_NN, ffn, width, de, matrices(w, w->down, lent_of(w)->down), dh);
    expert_activation_backward(
        w->stream, &(struct expert_activation_backward_args){.count = w->rows * ffn,
                       .type = w->shape->dtype,
                       .g = hidden->gate,
                       .u = hidden->up,
                       .dh = dh,
                       .dg = hidden->gate,
                       .du = hidden->up});
    input_gradient(w, hidden, de);
}

void moe_work_up_gradients(const struct moe_work *w, const void *x, const struct moe_hidden *hidden)
{
    int64_t width = w->shape->hidden, ffn = w->shape->ffn;
    if (w->gate)
        gradient(w, ffn, width, hidden->gate, x, w->gate_gradient, lent_of(w)->gate_gradient);
    gradient(w, ffn, width, hidden->up, x, w->up_gradient, lent_of(w)->up_gradient);
}

void moe_work_backward(
    const struct moe_work *w, const void *x, const struct moe_hidden *hidden, void *de)
{
    moe_work_down_gradient(w, hidden, de);
    moe_work_input_gradient(w, hidden, de);
    moe_work_up_gradients(w, x, hidden);
}

/* ---- a chunk's received rows ----------------------------------------------------------------- */

void moe_experts_activate(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden)
{
    struct moe_work w = work_of(layer, lent, stream, chunk);
    moe_work_activate(&w, x, hidden);
}

void moe_experts_output(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const struct moe_hidden *hidden)
{
    struct moe_work w = work_of(layer, lent, stream, chunk);
    moe_work_output(&w, hidden);
}

void moe_experts_forward(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden)
{
    moe_experts_activate(layer, lent, stream, chunk, x, hidden);
    moe_experts_output(layer, lent, stream, chunk, hidden);
}

void moe_experts_backward(const struct moe_layer *layer, const struct moe_lent *lent,
    struct stream *stream, int64_t chunk, const void *x, const struct moe_hidden *hidden, void *dy,
    const float *weight, float *dw)
{
    struct moe_work w = work_of(layer, lent, stream, chunk);
    if (w.rows) /* dy becomes de */
        route_backward(stream, &(struct route_backward_args){.count = w.rows,
                                   .columns = w.shape->hidden,
                                   .type = w.shape->dtype,
                                   .dy = dy,
                                   .dy_rows = w.rows,
                                   .routes = w.rows,
                                   .weight = weight,
                                   .e = hidden->out,
                                   .de = dy,
                                   .dw = dw});
    moe_work_backward(&w, x, hidden, dy);
}

/* ---- outputs --------------------------------------------------------------------------------- */

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
