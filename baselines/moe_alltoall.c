/* alltoall: the standard expert parallelism, and alltoall-ckpt, the same with the experts' part
 * formed again in backward.
 *
 *   forward    tokens --gather--> send rows --all-to-all--> received rows --sort--> sorted rows
 *              --experts--> sorted outputs --unsort--> outputs --all-to-all--> send order --> Y
 *   backward   the same way with dY rows and router weights out, dX rows and dw home
 *
 * One message per pair of ranks, so rows arrive by source rank and are sorted by expert after their
 * arrival, with a copy, as upstream does it. No expert is lent. What is alive from forward to
 * backward, per received route (b bytes a value):
 *
 *   alltoall --keep eager      (4H + 4F) b + 4    received row, sorted row, gate, up, silu(gate),
 *                                                 activation, output, unsorted output, sort index
 *   alltoall --keep megatron   (H + 3F) b + 4     sorted row, gate, up, activation, sort index
 *   alltoall-ckpt              H b + 4            sorted row, sort index
 *
 * and the index arrays of this rank's own routes. eager is what an autograd framework keeps of
 * these steps written one by one; megatron is what Megatron-Core's fused path keeps
 * (docs/BASELINES.md). A forward pass alone is a training step's: what is kept lives until the
 * release. silu(gate) is kept rounded and not read: the problem rounds only the activation. With
 * --keep megatron backward forms the experts' outputs again, one product of nine, because dw is
 * defined by them; upstream weights the activation instead.
 *
 * Bound: none. The fullest rank's peak is linear in the routes that it receives. Order: the default
 * of every output, or another's that is given (run_order). Cost: everything once (alltoall-ckpt:
 * the experts' forward twice), on the main stream; nothing overlaps. */
#include <stdlib.h>
#include "ops/moe_expert.h"
#include "ops/moe_layer.h"
#include "ops/moe_memory.h"
#include "ops/moe_recombine.h"
#include "ops/moe_reorder.h"

static const struct moe_partition whole = {.chunks = 1};
static const struct moe_lent nothing_lent = {0};

enum kept { KEPT_ALL, KEPT_FUSED, KEPT_INPUT };

/* From forward to backward. */
struct alltoall {
    struct moe_layer layer;
    enum kept kept;
    int32_t *index; /* [received]: where sorted row i was received */
    int32_t *pinned;
    struct event uploaded;
    void *received, *sorted; /* rows; received NULL unless all is kept */
    struct moe_hidden hidden;
    void *silu, *unsorted; /* NULL unless all is kept */
};

static enum kept kept_of(const struct moe_options *options)
{
    return options->keep == MOE_KEEP_EAGER ? KEPT_ALL : KEPT_FUSED;
}

static int64_t received_rows(const struct alltoall *s)
{
    return moe_layer_received(&s->layer, 0);
}

static int64_t received_bytes(const struct alltoall *s)
{
    return moe_rows_bytes(&s->layer.m->shape, received_rows(s));
}

static int64_t sent_bytes(const struct alltoall *s)
{
    return moe_rows_bytes(&s->layer.m->shape, moe_layer_sent(&s->layer, 0));
}

static void free_block(struct alltoall *s, void **block)
{
    dev_free(s->layer.m->dev, *block);
    *block = NULL;
}

/* ---- sorting ----------------------------------------------------------------------------------
 * Received rows lie by source rank, then matrix; sorted rows by matrix, then source rank. */

static int fill_index(const struct moe_layout *layout, int rank, int32_t *index)
{
    int32_t *next = calloc((size_t)layout->ranks + 1, sizeof *next), at = 0;
    if (!next)
        return -1;
    for (int64_t p = layout->rank_first[rank]; p < layout->rank_first[rank + 1]; p++)
        for (int source = 0; source < layout->ranks; source++)
            next[source + 1] += (int32_t)moe_layout_count(layout, source, 0, p);
    for (int source = 1; source <= layout->ranks; source++)
        next[source] += next[source - 1];
    for (int64_t p = layout->rank_first[rank]; p < layout->rank_first[rank + 1]; p++)
        for (int source = 0; source < layout->ranks; source++)
            for (int64_t i = moe_layout_count(layout, source, 0, p); i > 0; i--)
                index[at++] = next[source]++;
    free(next);
    return 0;
}

static void upload_index(struct alltoall *s)
{
    struct device *dev = s->layer.m->dev;
    struct stream *main = dev_main_stream(dev);
    int64_t bytes = received_rows(s) * (int64_t)sizeof *s->index;
    s->index = dev_alloc(dev, bytes, LIVE_WORKSPACE, "sort index");
    s->pinned = dev_host_alloc(dev, bytes, LIVE_WORKSPACE, "sort index");
    if (dev_status(dev) != DEV_OK)
        return;
    if (fill_index(&s->layer.layout, s->layer.m->rank, s->pinned)) {
        dev_fail(dev, DEV_FAILED, "no host memory for the sort index");
        return;
    }
    dev_copy_h2d(main, s->index, s->pinned, bytes);
    s->uploaded = dev_record(main);
}

static void sort_rows(const struct alltoall *s, const void *from, void *to, int64_t row_bytes)
{
    int64_t rows = received_rows(s);
    gather_rows(dev_main_stream(s->layer.m->dev), &(struct gather_rows_args){.to = to,
                                                      .from = from,
                                                      .index = s->index,
                                                      .count = rows,
                                                      .from_rows = rows,
                                                      .row_bytes = row_bytes});
}

static void unsort_rows(const struct alltoall *s, const void *from, void *to, int64_t row_bytes)
{
    int64_t rows = received_rows(s);
    scatter_rows(dev_main_stream(s->layer.m->dev), &(struct scatter_rows_args){.to = to,
                                                       .from = from,
                                                       .index = s->index,
                                                       .count = rows,
                                                       .to_rows = rows,
                                                       .row_bytes = row_bytes});
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static int64_t rows_between(const struct moe_layout *layout, int from, int to)
{
    int64_t rows = 0;
    for (int64_t p = layout->rank_first[to]; p < layout->rank_first[to + 1]; p++)
        rows += moe_layout_count(layout, from, 0, p);
    return rows;
}

/* Adds this rank's rows in send order `sent` and its received rows to the next exchange. */
static void add_rows(
    struct alltoall *s, const void *sent, const void *received, int64_t row_bytes, bool home)
{
    struct moe_layer *layer = &s->layer;
    const char *out = sent, *in = received;
    if (dev_status(layer->m->dev) != DEV_OK)
        return;
    for (int peer = 0; peer < layer->layout.ranks; peer++) {
        int64_t out_bytes = rows_between(&layer->layout, layer->m->rank, peer) * row_bytes;
        int64_t in_bytes = rows_between(&layer->layout, peer, layer->m->rank) * row_bytes;
        if (home) {
            moe_layer_add_send(layer, peer, in, in_bytes);
            moe_layer_add_receive(layer, peer, (void *)(uintptr_t)out, out_bytes);
        } else {
            moe_layer_add_send(layer, peer, out, out_bytes);
            moe_layer_add_receive(layer, peer, (void *)(uintptr_t)in, in_bytes);
        }
        out += out_bytes;
        in += in_bytes;
    }
}

static void exchange(struct alltoall *s, const char *label)
{
    struct moe *m = s->layer.m;
    moe_layer_exchange(&s->layer, m->comm, dev_main_stream(m->dev), label);
}

/* Rows of this rank's tokens, [N, H], to their experts' ranks. */
static void send_rows(struct alltoall *s, const void *tokens, void *received, const char *label)
{
    struct moe *m = s->layer.m;
    void *rows = dev_alloc(m->dev, sent_bytes(s), LIVE_STAGING, "send rows");
    moe_layer_gather(&s->layer, dev_main_stream(m->dev), 0, tokens, rows);
    add_rows(s, rows, received, moe_rows_bytes(&m->shape, 1), false);
    exchange(s, label);
    dev_free(m->dev, rows);
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* Room for what the experts form, as much of it as is kept on its own. */
static void alloc_hidden(struct alltoall *s)
{
    struct moe *m = s->layer.m;
    int64_t bytes = received_rows(s) * m->shape.ffn * dtype_bytes(m->shape.dtype);
    if (s->kept == KEPT_INPUT) {
        moe_hidden_alloc(m, received_rows(s), false, &s->hidden);
        return;
    }
    if (m->gate)
        s->hidden.gate = dev_alloc(m->dev, bytes, LIVE_EXPERT, "gate");
    s->hidden.up = dev_alloc(m->dev, bytes, LIVE_EXPERT, "up");
    if (m->gate && s->kept == KEPT_ALL)
        s->silu = dev_alloc(m->dev, bytes, LIVE_EXPERT, "silu of gate");
    s->hidden.act = dev_alloc(m->dev, bytes, LIVE_EXPERT, "activation");
}

static void through_experts(struct alltoall *s)
{
    struct moe *m = s->layer.m;
    struct stream *main = dev_main_stream(m->dev);
    alloc_hidden(s);
    s->hidden.out = dev_alloc(m->dev, received_bytes(s), LIVE_COMBINE, "expert outputs");
    moe_experts_activate(&s->layer, &nothing_lent, main, 0, s->sorted, &s->hidden);
    if (s->silu)
        expert_activation(
            main, &(struct expert_activation_args){.count = received_rows(s) * m->shape.ffn,
                      .type = m->shape.dtype,
                      .g = s->hidden.gate,
                      .a = s->silu});
    moe_experts_output(&s->layer, &nothing_lent, main, 0, &s->hidden);
}

/* Rows that came home over each token's slots; in an order that is given, where there is one. */
static void sum_slots(struct alltoall *s, const void *home, bool weighted, void *to)
{
    struct moe *m = s->layer.m;
    if (m->run_order && m->run_order->combine_slot)
        moe_recombine(&s->layer, dev_main_stream(m->dev), home, weighted, to);
    else
        moe_layer_combine(&s->layer, dev_main_stream(m->dev), 0, home, weighted, to);
}

/* Received outputs home, and summed. */
static void combine(struct alltoall *s)
{
    struct moe *m = s->layer.m;
    void *home = dev_alloc(m->dev, sent_bytes(s), LIVE_STAGING, "returned rows");
    add_rows(s, home, s->unsorted, moe_rows_bytes(&m->shape, 1), true);
    exchange(s, "outputs home");
    if (s->kept != KEPT_ALL)
        free_block(s, &s->unsorted);
    sum_slots(s, home, true, m->y);
    dev_free(m->dev, home);
}

static enum dev_status open_state(struct moe *m, enum kept kept)
{
    struct alltoall *s = calloc(1, sizeof *s);
    if (!s) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for alltoall");
        return dev_status(m->dev);
    }
    m->state = s;
    s->kept = kept;
    if (moe_layer_open(&s->layer, m, &whole, NULL) == DEV_OK)
        upload_index(s);
    return dev_status(m->dev);
}

static enum dev_status forward(struct moe *m, enum kept kept)
{
    if (open_state(m, kept) != DEV_OK)
        return dev_status(m->dev);
    struct alltoall *s = m->state;
    int64_t bytes = received_bytes(s), row_bytes = moe_rows_bytes(&m->shape, 1);
    moe_alloc_forward(m);
    s->received = dev_alloc(m->dev, bytes, LIVE_DISPATCH, "received rows");
    send_rows(s, m->x, s->received, "rows to experts");
    s->sorted = dev_alloc(m->dev, bytes, LIVE_DISPATCH, "sorted rows");
    sort_rows(s, s->received, s->sorted, row_bytes);
    if (kept != KEPT_ALL)
        free_block(s, &s->received);
    through_experts(s);
    void *out = s->hidden.out;
    if (kept == KEPT_INPUT)
        moe_hidden_free(m, &s->hidden);
    s->unsorted = dev_alloc(m->dev, bytes, LIVE_COMBINE, "unsorted outputs");
    unsort_rows(s, out, s->unsorted, row_bytes);
    if (kept != KEPT_ALL) {
        dev_free(m->dev, out);
        s->hidden.out = NULL;
    }
    combine(s);
    moe_layer_settle(&s->layer);
    dev_sync_event(s->uploaded);
    dev_host_free(m->dev, s->pinned);
    s->pinned = NULL;
    return dev_status(m->dev);
}

static enum dev_status forward_kept(struct moe *m)
{
    return forward(m, kept_of(&m->options));
}

static enum dev_status forward_ckpt(struct moe *m)
{
    return forward(m, KEPT_INPUT);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* A value per route: router weights, later their gradients, in send order and as received; both
 * sorted. */
struct route_values {
    float *sent, *received;
    float *weight, *gradient;
};

static void values_alloc(const struct alltoall *s, struct route_values *v)
{
    struct device *dev = s->layer.m->dev;
    int64_t sent = moe_layer_sent(&s->layer, 0) * (int64_t)sizeof(float);
    int64_t received = received_rows(s) * (int64_t)sizeof(float);
    v->sent = dev_alloc(dev, sent, LIVE_WORKSPACE, "router values sent");
    v->received = dev_alloc(dev, received, LIVE_WORKSPACE, "router values received");
    v->weight = dev_alloc(dev, received, LIVE_WORKSPACE, "router weights");
    v->gradient = dev_alloc(dev, received, LIVE_WORKSPACE, "router gradients");
}

static void values_free(const struct alltoall *s, struct route_values *v)
{
    struct device *dev = s->layer.m->dev;
    dev_free(dev, v->sent);
    dev_free(dev, v->received);
    dev_free(dev, v->weight);
    dev_free(dev, v->gradient);
}

/* dY rows and router weights to the experts; returns the sorted rows. */
static void *fetch_gradients(struct alltoall *s, const struct route_values *v)
{
    struct moe *m = s->layer.m;
    int64_t bytes = received_bytes(s);
    void *dy = dev_alloc(m->dev, bytes, LIVE_COMBINE, "gradient rows");
    moe_layer_gather_weights(&s->layer, dev_main_stream(m->dev), 0, v->sent);
    add_rows(s, v->sent, v->received, sizeof(float), false);
    send_rows(s, m->dy, dy, "gradients to experts");
    free_block(s, &s->unsorted);
    void *sorted = dev_alloc(m->dev, bytes, LIVE_COMBINE, "sorted gradient rows");
    sort_rows(s, dy, sorted, moe_rows_bytes(&m->shape, 1));
    sort_rows(s, v->received, v->weight, sizeof(float));
    dev_free(m->dev, dy);
    return sorted;
}

/* Makes present what moe_experts_backward reads and was not kept. */
static void form_again(struct alltoall *s)
{
    struct moe *m = s->layer.m;
    struct stream *main = dev_main_stream(m->dev);
    if (s->kept == KEPT_INPUT) {
        moe_hidden_alloc(m, received_rows(s), true, &s->hidden);
        moe_experts_forward(&s->layer, &nothing_lent, main, 0, s->sorted, &s->hidden);
    } else if (s->kept == KEPT_FUSED) {
        s->hidden.out = dev_alloc(m->dev, received_bytes(s), LIVE_EXPERT, "expert outputs");
        moe_experts_output(&s->layer, &nothing_lent, main, 0, &s->hidden);
    }
}

/* The dX rows, sorted, home; the order of frees is that of an autograd graph's nodes. */
static void bring_home(struct alltoall *s, void *sorted, const struct route_values *v)
{
    struct moe *m = s->layer.m;
    struct stream *main = dev_main_stream(m->dev);
    int64_t row_bytes = moe_rows_bytes(&m->shape, 1);
    void *dx = dev_alloc(m->dev, received_bytes(s), LIVE_COMBINE, "unsorted gradient rows");
    unsort_rows(s, sorted, dx, row_bytes);
    unsort_rows(s, v->gradient, v->received, sizeof(float));
    dev_free(m->dev, sorted);
    free_block(s, &s->received);
    void *home = dev_alloc(m->dev, sent_bytes(s), LIVE_STAGING, "returned rows");
    add_rows(s, home, dx, row_bytes, true);
    add_rows(s, v->sent, v->received, sizeof(float), true);
    exchange(s, "gradients home");
    dev_free(m->dev, dx);
    sum_slots(s, home, false, m->dx);
    moe_layer_scatter_weights(&s->layer, main, 0, v->sent, m->router_gradient);
    dev_free(m->dev, home);
}

static void free_experts(struct alltoall *s)
{
    struct moe *m = s->layer.m;
    moe_hidden_free(m, &s->hidden);
    free_block(s, &s->silu);
    free_block(s, &s->sorted);
}

static void release(struct moe *m)
{
    struct alltoall *s = m->state;
    if (!s)
        return;
    if (s->layer.m) {
        free_experts(s);
        free_block(s, &s->received);
        free_block(s, &s->unsorted);
        dev_free(m->dev, s->index);
        dev_host_free(m->dev, s->pinned);
        moe_layer_close(&s->layer);
    }
    free(s);
    m->state = NULL;
}

static enum dev_status backward(struct moe *m)
{
    struct alltoall *s = m->state;
    struct route_values values;
    moe_alloc_backward(m);
    values_alloc(s, &values);
    void *rows = fetch_gradients(s, &values);
    form_again(s);
    struct moe_reorder reorder = {0};
    if (m->run_order) {
        moe_reorder_open(&reorder, m);
        s->layer.reorder = &reorder;
    }
    moe_experts_backward(&s->layer, &nothing_lent, dev_main_stream(m->dev), 0, s->sorted,
        &s->hidden, rows, values.weight, values.gradient);
    moe_reorder_close(&reorder);
    free_experts(s);
    bring_home(s, rows, &values);
    values_free(s, &values);
    release(m);
    return dev_status(m->dev);
}

/* ---- memory and order -------------------------------------------------------------------------
 */

/* What is kept, in values of H and F per received route, by live set. */
struct kept_values {
    int dispatch, combine; /* of H */
    int expert;            /* of F */
};

static struct kept_values values_kept(const struct moe_shape *shape, enum kept kept)
{
    bool relu = shape->activation == MOE_RELU;
    switch (kept) {
    case KEPT_ALL:
        return (struct kept_values){2, 2, relu ? 2 : 4};
    case KEPT_FUSED:
        return (struct kept_values){1, 0, relu ? 2 : 3};
    case KEPT_INPUT:
        break;
    }
    return (struct kept_values){1, 0, 0};
}

/* A moment: rows of H in dispatch and combine and in send order, bytes of the experts'. */
static struct moe_phase moment(const struct moe_phase *held, int64_t dispatch_bytes,
    int64_t combine_bytes, int64_t expert_bytes, int64_t staging_bytes)
{
    struct moe_phase phase = *held;
    phase.set_bytes[LIVE_DISPATCH] += dispatch_bytes;
    phase.set_bytes[LIVE_COMBINE] += combine_bytes;
    phase.set_bytes[LIVE_EXPERT] += expert_bytes;
    phase.set_bytes[LIVE_STAGING] += staging_bytes;
    return phase;
}

/* The moments of a pass where it may hold the most. */
static int forward_phases(const struct moe_shape *shape, const struct moe_layout *layout, int rank,
    enum kept kept, struct moe_phase *out)
{
    int64_t received = moe_layout_received(layout, rank, 0);
    int64_t r = moe_rows_bytes(shape, received);
    int64_t s = moe_rows_bytes(shape, moe_layout_sent(layout, rank, 0));
    struct kept_values k = values_kept(shape, kept);
    int64_t expert = k.expert * received * shape->ffn * dtype_bytes(shape->dtype);
    int64_t formed = kept == KEPT_INPUT ? moe_hidden_bytes(shape, received, false) : expert;
    struct moe_phase held = moe_phase_forward(shape, layout, rank);
    held.set_bytes[LIVE_WORKSPACE] += received * (int64_t)sizeof(int32_t);
    out[0] = moment(&held, r, 0, 0, s);
    out[1] = moment(&held, 2 * r, 0, 0, 0);
    out[2] = moment(&held, k.dispatch * r, r, formed, 0);
    out[3] = moment(&held, k.dispatch * r, 2 * r, expert, 0);
    out[4] = moment(&held, k.dispatch * r, (kept == KEPT_ALL ? 2 : 1) * r, expert, s);
    return 5;
}

static int backward_phases(const struct moe_shape *shape, const struct moe_layout *layout, int rank,
    enum kept kept, struct moe_phase *out)
{
    int64_t sent = moe_layout_sent(layout, rank, 0);
    int64_t received = moe_layout_received(layout, rank, 0);
    int64_t r = moe_rows_bytes(shape, received), s = moe_rows_bytes(shape, sent);
    struct kept_values k = values_kept(shape, kept);
    int64_t expert = k.expert * received * shape->ffn * dtype_bytes(shape->dtype);
    bool all = kept == KEPT_ALL;
    struct moe_phase held = moe_phase_backward(shape, layout, rank);
    held.set_bytes[LIVE_WORKSPACE] += received * (int64_t)sizeof(int32_t);
    held.set_bytes[LIVE_WORKSPACE] += (sent + 3 * received) * (int64_t)sizeof(float);
    out[0] = moment(&held, k.dispatch * r, (k.combine + 1) * r, expert, s);
    out[1] = moment(&held, k.dispatch * r, (all ? 3 : 2) * r, expert, 0);
    out[2] = moment(&held, k.dispatch * r, (all ? 2 : 1) * r,
        all ? expert : moe_hidden_bytes(shape, received, true), 0);
    out[3] = moment(&held, all ? r : 0, 2 * r, 0, 0);
    out[4] = moment(&held, 0, r, 0, s);
    return 5;
}

static int expected(const struct moe_shape *shape, const int32_t *const *idx, bool with_backward,
    enum kept kept, struct moe_peaks *out)
{
    struct moe_layout layout;
    if (moe_layout_from_routing(&layout, shape, &whole, NULL, idx))
        return -1;
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct moe_phase phases[10];
        int count = forward_phases(shape, &layout, rank, kept, phases);
        if (with_backward)
            count += backward_phases(shape, &layout, rank, kept, phases + count);
        out[rank] = moe_phases_peaks(phases, count);
    }
    moe_layout_free(&layout);
    return 0;
}

static int expected_kept(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    return expected(shape, idx, with_backward, kept_of(options), out);
}

static int expected_ckpt(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    (void)options;
    return expected(shape, idx, with_backward, KEPT_INPUT, out);
}

/* Sorted rows lie by expert, then source rank, token and slot: the default. */
static int order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    (void)shape, (void)options, (void)idx, (void)out;
    return 0;
}

const struct moe_impl moe_alltoall = {
    .name = "alltoall",
    .summary = "expert parallelism as it is: everything of a route kept for backward",
    .options = " keep ",
    .takes_run_order = true,
    .forward = forward_kept,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_kept,
    .order = order,
};

const struct moe_impl moe_alltoall_ckpt = {
    .name = "alltoall-ckpt",
    .summary = "the same, the experts' part formed again in backward",
    .options = " ",
    .takes_run_order = true,
    .forward = forward_ckpt,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_ckpt,
    .order = order,
};
