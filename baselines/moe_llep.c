/* llep: least-loaded expert parallelism, the whole batch at once. What pipelined-llep replaces.
 *
 *   forward    counts -> plan | weights lent | rows sent -> experts -> outputs returned, summed
 *   backward   dY rows sent -> experts recomputed from the received rows, which were kept, then
 *              their backward -> dX rows returned, summed | gradients of lent experts return home
 *
 * The plan evens the rows that ranks compute, not what they hold: all of a rank's received rows,
 * and for them the experts' intermediates, are live at once, so the peak grows with the batch. From
 * forward to backward live the received rows, the lent weights and the index arrays; the experts'
 * intermediates are formed again.
 *
 * Bound: none. Order: outputs, dX, dw the default; a weight gradient is the owner's chain over the
 * routes it kept, then the helpers' in plan order, each a chain of its own. Everything is on the
 * main stream: nothing overlaps. */
#include <stdlib.h>
#include "ops/moe_expert.h"
#include "ops/moe_layer.h"
#include "ops/moe_lend.h"
#include "ops/moe_memory.h"
#include "ops/moe_trip.h"

static const struct moe_partition whole = {.chunks = 1};

/* From forward to backward. */
struct llep_state {
    struct moe_layer layer;
    struct moe_lent lent;
    void *x; /* the received rows */
};

static struct llep_options llep_options(const struct moe_options *options)
{
    return (struct llep_options){.alpha = options->alpha,
        .min_gemm_tokens = options->min_gemm_tokens,
        .lambda = options->lambda};
}

static int64_t received_bytes(const struct llep_state *s)
{
    return moe_rows_bytes(&s->layer.m->shape, moe_layer_received(&s->layer, 0));
}

static enum dev_status forward(struct moe *m)
{
    struct llep_options options = llep_options(&m->options);
    struct stream *main = dev_main_stream(m->dev);
    struct llep_state *s = calloc(1, sizeof *s);
    struct moe_hidden hidden;
    if (!s) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for llep");
        return dev_status(m->dev);
    }
    m->state = s;
    if (moe_layer_open(&s->layer, m, &whole, &options) != DEV_OK)
        return dev_status(m->dev);
    moe_alloc_forward(m);
    moe_lent_alloc(&s->layer, &s->lent);
    moe_lent_fetch(&s->layer, &s->lent, m->comm, main);
    s->x = dev_alloc(m->dev, received_bytes(s), LIVE_DISPATCH, "received rows");
    moe_trip_out(&s->layer, 0, m->x, s->x);

    moe_hidden_alloc(m, moe_layer_received(&s->layer, 0), false, &hidden);
    hidden.out = dev_alloc(m->dev, received_bytes(s), LIVE_COMBINE, "expert outputs");
    void *out = hidden.out;
    moe_experts_forward(&s->layer, &s->lent, main, 0, s->x, &hidden);
    moe_hidden_free(m, &hidden);
    if (!m->with_backward) {
        dev_free(m->dev, s->x);
        s->x = NULL;
    }

    moe_trip_home(&s->layer, 0, out, out);
    moe_layer_settle(&s->layer);
    return dev_status(m->dev);
}

static void release(struct moe *m)
{
    struct llep_state *s = m->state;
    if (!s)
        return;
    dev_free(m->dev, s->x);
    if (s->layer.m) {
        moe_lent_free(&s->layer, &s->lent);
        moe_layer_close(&s->layer);
    }
    free(s);
    m->state = NULL;
}

/* The received dY rows through the experts: dX rows in their place. */
static void through_experts(struct llep_state *s, void *dy, const struct moe_route_values *values)
{
    struct moe *m = s->layer.m;
    struct stream *main = dev_main_stream(m->dev);
    struct moe_hidden hidden;
    moe_hidden_alloc(m, moe_layer_received(&s->layer, 0), true, &hidden);
    moe_experts_forward(&s->layer, &s->lent, main, 0, s->x, &hidden);
    moe_experts_backward(
        &s->layer, &s->lent, main, 0, s->x, &hidden, dy, values->weight, values->gradient);
    moe_hidden_free(m, &hidden);
    dev_free(m->dev, s->x);
    s->x = NULL;
}

static enum dev_status backward(struct moe *m)
{
    struct llep_state *s = m->state;
    struct moe_route_values values;
    moe_alloc_backward(m);
    moe_lent_alloc_gradients(&s->layer, &s->lent);
    moe_route_values_alloc(&s->layer, 0, &values);
    void *dy = dev_alloc(m->dev, received_bytes(s), LIVE_COMBINE, "gradient rows");
    moe_trip_gradients_out(&s->layer, 0, &values, dy);
    through_experts(s, dy, &values);
    moe_trip_gradients_home(&s->layer, 0, &values, dy);
    moe_route_values_free(&s->layer, &values);
    moe_lent_free(&s->layer, &s->lent);
    moe_lent_return_gradients(&s->layer, &s->lent, m->comm);
    release(m);
    return dev_status(m->dev);
}

/* ---- memory and order -------------------------------------------------------------------------
 */

static int layout_of(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_layout *layout)
{
    struct llep_options llep = llep_options(options);
    return moe_layout_from_routing(layout, shape, &whole, &llep, idx);
}

/* The places in a pass where it may hold the most. */
static int forward_phases(const struct moe_shape *shape, const struct moe_layout *layout, int rank,
    bool with_backward, struct moe_phase *phases)
{
    int64_t sent = moe_rows_bytes(shape, moe_layout_sent(layout, rank, 0));
    int64_t received = moe_layout_received(layout, rank, 0);
    struct moe_phase held = moe_phase_forward(shape, layout, rank);
    held.set_bytes[LIVE_WEIGHTS] = moe_lent_weight_bytes(shape, layout, rank);
    held.set_bytes[LIVE_DISPATCH] = moe_rows_bytes(shape, received);
    phases[0] = phases[1] = phases[2] = held;
    phases[0].set_bytes[LIVE_STAGING] = sent;
    phases[1].set_bytes[LIVE_COMBINE] = moe_rows_bytes(shape, received);
    phases[1].set_bytes[LIVE_EXPERT] = moe_hidden_bytes(shape, received, false);
    phases[2].set_bytes[LIVE_COMBINE] = moe_rows_bytes(shape, received);
    phases[2].set_bytes[LIVE_STAGING] = sent;
    if (!with_backward)
        phases[2].set_bytes[LIVE_DISPATCH] = 0;
    return 3;
}

static int backward_phases(const struct moe_shape *shape, const struct moe_layout *layout, int rank,
    struct moe_phase *phases)
{
    int64_t sent = moe_layout_sent(layout, rank, 0);
    int64_t received = moe_layout_received(layout, rank, 0);
    struct moe_phase held = moe_phase_backward(shape, layout, rank);
    phases[3] = held;
    phases[3].set_bytes[LIVE_WORKSPACE] += moe_lent_return_bytes(layout, shape, rank);
    held.set_bytes[LIVE_WEIGHTS] = moe_lent_weight_bytes(shape, layout, rank);
    held.set_bytes[LIVE_COMBINE] = moe_rows_bytes(shape, received);
    held.set_bytes[LIVE_WORKSPACE] += 2 * (sent + received) * (int64_t)sizeof(float);
    phases[0] = phases[1] = phases[2] = held;
    phases[0].set_bytes[LIVE_DISPATCH] = moe_rows_bytes(shape, received);
    phases[0].set_bytes[LIVE_STAGING] = moe_rows_bytes(shape, sent);
    phases[1].set_bytes[LIVE_DISPATCH] = moe_rows_bytes(shape, received);
    phases[1].set_bytes[LIVE_EXPERT] = moe_hidden_bytes(shape, received, true);
    phases[2].set_bytes[LIVE_STAGING] = moe_rows_bytes(shape, sent);
    return 4;
}

static int expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    struct moe_layout layout;
    if (layout_of(shape, options, idx, &layout))
        return -1;
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct moe_phase phases[8];
        int count = forward_phases(shape, &layout, rank, with_backward, phases);
        if (with_backward)
            count += backward_phases(shape, &layout, rank, phases + count);
        out[rank] = moe_phases_peaks(phases, count);
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

const struct moe_impl moe_llep = {
    .name = "llep",
    .summary = "least-loaded expert parallelism, the whole batch at once",
    .options = " alpha lambda min-gemm ",
    .forward = forward,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_bytes,
    .order = order,
};
