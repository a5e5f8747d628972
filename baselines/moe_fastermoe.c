/* fastermoe: expert parallelism that shadows its hottest experts, the FasterMoE kind. A shadowed
 * expert's weights go to all ranks and its routes stay where they are; the others' are exchanged.
 *
 *   forward    counts -> shadows | their weights to all | rows sent -> experts -> outputs returned,
 *              summed
 *   backward   dY rows sent -> experts' backward from what was kept -> dX rows returned, summed |
 *              gradients of shadows to their owners, summed in rank order
 *
 * Which experts: baselines/moe_shadow.h. A shadow's rows go from a rank to itself. What the experts
 * form is kept from forward to backward, with the rows that they received, as an autograd framework
 * keeps it: bR (2H + 3F), and the shadows' weights.
 *
 * Bound: none. Order: outputs, dX, dw the default; a shadowed expert's weight gradients one chain
 * per rank, added in rank order; the others' the default. Cost: everything once; a shadow costs its
 * weights on every rank and its gradients home. Everything on the main stream. */
#include <stdlib.h>
#include "baselines/moe_shadow.h"
#include "ops/moe_expert.h"
#include "ops/moe_memory.h"
#include "ops/moe_trip.h"

static const struct moe_partition whole = {.chunks = 1};

/* From forward to backward. */
struct fastermoe {
    struct moe_layer layer;
    struct moe_lent lent;
    void *x; /* the received rows */
    struct moe_hidden hidden;
};

static int64_t received_rows(const struct fastermoe *s)
{
    return moe_layer_received(&s->layer, 0);
}

static int64_t received_bytes(const struct fastermoe *s)
{
    return moe_rows_bytes(&s->layer.m->shape, received_rows(s));
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* All of it is kept. */
static void alloc_hidden(struct fastermoe *s)
{
    struct moe *m = s->layer.m;
    int64_t bytes = received_rows(s) * m->shape.ffn * dtype_bytes(m->shape.dtype);
    if (m->gate)
        s->hidden.gate = dev_alloc(m->dev, bytes, LIVE_EXPERT, "gate");
    s->hidden.up = dev_alloc(m->dev, bytes, LIVE_EXPERT, "up");
    s->hidden.act = dev_alloc(m->dev, bytes, LIVE_EXPERT, "activation");
    s->hidden.out = dev_alloc(m->dev, received_bytes(s), LIVE_EXPERT, "expert outputs");
}

static enum dev_status forward(struct moe *m)
{
    struct stream *main = dev_main_stream(m->dev);
    struct shadow_rule rule = {&m->shape, m->options.flops_per_byte};
    struct moe_planner planner = {shadow_plan, &rule};
    struct fastermoe *s = calloc(1, sizeof *s);
    if (!s) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for fastermoe");
        return dev_status(m->dev);
    }
    m->state = s;
    if (moe_layer_open_by(&s->layer, m, &whole, &planner) != DEV_OK)
        return dev_status(m->dev);
    moe_alloc_forward(m);
    moe_lent_alloc(&s->layer, &s->lent);
    moe_lent_fetch(&s->layer, &s->lent, m->comm, main);
    s->x = dev_alloc(m->dev, received_bytes(s), LIVE_DISPATCH, "received rows");
    moe_trip_out(&s->layer, 0, m->x, s->x);
    alloc_hidden(s);
    moe_experts_forward(&s->layer, &s->lent, main, 0, s->x, &s->hidden);
    moe_trip_home(&s->layer, 0, s->hidden.out, NULL);
    moe_layer_settle(&s->layer);
    return dev_status(m->dev);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

static void release(struct moe *m)
{
    struct fastermoe *s = m->state;
    if (!s)
        return;
    dev_free(m->dev, s->x);
    moe_hidden_free(m, &s->hidden);
    if (s->layer.m) {
        moe_lent_free(&s->layer, &s->lent);
        moe_layer_close(&s->layer);
    }
    free(s);
    m->state = NULL;
}

static enum dev_status backward(struct moe *m)
{
    struct fastermoe *s = m->state;
    struct moe_route_values values;
    moe_alloc_backward(m);
    moe_lent_alloc_gradients(&s->layer, &s->lent);
    moe_route_values_alloc(&s->layer, 0, &values);
    void *dy = dev_alloc(m->dev, received_bytes(s), LIVE_COMBINE, "gradient rows");
    moe_trip_gradients_out(&s->layer, 0, &values, dy);
    moe_experts_backward(&s->layer, &s->lent, dev_main_stream(m->dev), 0, s->x, &s->hidden, dy,
        values.weight, values.gradient);
    moe_hidden_free(m, &s->hidden);
    dev_free(m->dev, s->x);
    s->x = NULL;
    moe_trip_gradients_home(&s->layer, 0, &values, dy);
    moe_route_values_free(&s->layer, &values);
    moe_lent_free(&s->layer, &s->lent);
    shadow_return_gradients(&s->layer, &s->lent);
    moe_lent_free_gradients(&s->layer, &s->lent);
    release(m);
    return dev_status(m->dev);
}

/* ---- memory and order -------------------------------------------------------------------------
 */

static int layout_of(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_layout *layout)
{
    struct shadow_rule rule = {shape, options->flops_per_byte};
    struct moe_planner planner = {shadow_plan, &rule};
    return moe_layout_from_planner(layout, shape, &whole, &planner, idx);
}

/* The moments where a rank may hold the most. Returns how many. */
static int phases(const struct moe_shape *shape, const struct moe_layout *layout, int rank,
    bool with_backward, struct moe_phase *out)
{
    int64_t sent = moe_layout_sent(layout, rank, 0);
    int64_t received = moe_layout_received(layout, rank, 0);
    int64_t lent = moe_lent_weight_bytes(shape, layout, rank);
    out[0] = moe_phase_forward(shape, layout, rank);
    out[0].set_bytes[LIVE_WEIGHTS] = lent;
    out[0].set_bytes[LIVE_DISPATCH] = moe_rows_bytes(shape, received);
    out[0].set_bytes[LIVE_EXPERT] = moe_hidden_bytes(shape, received, true);
    out[0].set_bytes[LIVE_STAGING] = moe_rows_bytes(shape, sent);
    if (!with_backward)
        return 1;
    struct moe_phase held = moe_phase_backward(shape, layout, rank);
    out[1] = held; /* dY rows on their way, all that was kept still there */
    out[1].set_bytes[LIVE_WORKSPACE] += 2 * (sent + received) * (int64_t)sizeof(float);
    out[1].set_bytes[LIVE_WEIGHTS] = lent;
    out[1].set_bytes[LIVE_DISPATCH] = out[0].set_bytes[LIVE_DISPATCH];
    out[1].set_bytes[LIVE_EXPERT] = out[0].set_bytes[LIVE_EXPERT];
    out[1].set_bytes[LIVE_COMBINE] = moe_rows_bytes(shape, received);
    out[1].set_bytes[LIVE_STAGING] = moe_rows_bytes(shape, sent);
    out[2] = held; /* gradients of shadows */
    out[2].set_bytes[LIVE_WORKSPACE] += shadow_return_bytes(layout, shape, rank);
    return 3;
}

static int expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    struct moe_layout layout;
    if (layout_of(shape, options, idx, &layout))
        return -1;
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct moe_phase all[3];
        out[rank] = moe_phases_peaks(all, phases(shape, &layout, rank, with_backward, all));
    }
    moe_layout_free(&layout);
    return 0;
}

static int order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    struct moe_layout layout;
    if (layout_of(shape, options, idx, &layout))
        return -1;
    int status = moe_layout_order(&layout, idx, out);
    moe_layout_free(&layout);
    return status;
}

const struct moe_impl moe_fastermoe = {
    .name = "fastermoe",
    .summary = "the hottest experts shadowed on all ranks, the others' routes exchanged",
    .options = " flops-per-byte ",
    .forward = forward,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_bytes,
    .order = order,
};
