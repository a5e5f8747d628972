/* alltoall-dedup: a token travels once to every rank that has experts for it, however many (the
 * traffic of DeepEP), and comes back as one partial sum per rank.
 *
 *   forward    a row per (token, rank) out, with its k router weights --expand--> a row per route,
 *              by expert, source rank, token, slot --experts--> outputs --sum over the rank's
 *              slots--> an FP32 row per (token, rank) home --sum over ranks--> Y
 *   backward   dY rows out the same way, expanded --experts recomputed, then their backward--> dX
 *              rows --sum over the rank's slots--> FP32 rows home --sum over ranks--> dX, and dw
 *
 * Which expert a row is for, a rank must know before it can place the rows: every rank gathers all
 * ranks' routing on the host, once per layer. Places follow from it, never from when a row arrived.
 * From forward to backward live the received rows, one per (token, rank), their router weights and
 * the index arrays.
 *
 * Bound: none. Order: Y and dX of a token are sums of groups, a group being the slots that one rank
 * serves, ascending, and groups by ascending rank; dw and the weight gradients the default. Cost:
 * fewer rows out; rows home are FP32; the experts' forward twice. Everything on the main stream. */
#include <stdlib.h>
#include "baselines/moe_dedup_index.h"
#include "ops/moe_expert.h"
#include "ops/moe_layer.h"
#include "ops/moe_memory.h"

static const struct moe_partition whole = {.chunks = 1};
static const struct moe_lent nothing_lent = {0};

/* ---- opening ----------------------------------------------------------------------------------
 */

/* From forward to backward. */
struct dedup {
    struct moe_layer layer; /* of its own: groups, and no index arrays by route */
    struct dedup_sizes z;
    struct dedup_index index;
    int64_t *sent, *received; /* [ranks]: rows to and from each */
    void *x;                  /* [received, H] */
    float *weight;            /* [received, k] */
};

static void upload(struct dedup *s, const int32_t *const *idx)
{
    struct moe_layer *layer = &s->layer;
    struct device *dev = layer->m->dev;
    int64_t bytes = dedup_block_bytes(&s->z, layer->m->shape.topk);
    layer->block = dev_alloc(dev, bytes, LIVE_WORKSPACE, "route indices");
    layer->pinned = dev_host_alloc(dev, bytes, LIVE_WORKSPACE, "route indices");
    if (dev_status(dev) != DEV_OK)
        return;
    if (dedup_fill(&layer->layout, layer->m->rank, idx, &s->z, layer->pinned)) {
        dev_fail(dev, DEV_FAILED,
            "no host memory for the route indices, or a rank has more than %d rows x slots",
            INT32_MAX);
        return;
    }
    layer->groups = layer->block;
    s->index = dedup_index_in(layer->block, &s->z);
    dev_copy_h2d(dev_main_stream(dev), layer->block, layer->pinned, bytes);
    layer->uploaded = dev_record(dev_main_stream(dev));
}

static int plan(struct dedup *s, const int32_t *const *idx)
{
    struct moe_layer *layer = &s->layer;
    const struct moe *m = layer->m;
    size_t ranks = (size_t)m->shape.ranks;
    if (moe_layout_from_routing(&layer->layout, &m->shape, &whole, NULL, idx))
        return -1;
    s->z = dedup_sizes(&layer->layout, idx, m->rank);
    s->sent = malloc(ranks * sizeof *s->sent);
    s->received = malloc(ranks * sizeof *s->received);
    layer->group_first = malloc(2 * sizeof *layer->group_first);
    if (!s->sent || !s->received || !layer->group_first)
        return -1;
    for (int peer = 0; peer < m->shape.ranks; peer++) {
        s->sent[peer] = dedup_rows(&layer->layout, idx, m->rank, peer);
        s->received[peer] = dedup_rows(&layer->layout, idx, peer, m->rank);
    }
    layer->group_first[0] = 0;
    layer->group_first[1] = s->z.groups;
    return 0;
}

/* Agrees on who meets whom and uploads the index arrays; collective. */
static enum dev_status dedup_open(struct moe *m)
{
    const int32_t *idx[MOE_RANKS_MAX];
    struct dedup *s = calloc(1, sizeof *s);
    if (!s) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for alltoall-dedup");
        return dev_status(m->dev);
    }
    m->state = s;
    s->layer.m = m;
    int32_t *all = moe_gather_routing(m, idx);
    if (all && plan(s, idx))
        dev_fail(m->dev, DEV_FAILED,
            "no host memory for the layout, or a rank has more than %d routes", INT32_MAX);
    else if (all)
        upload(s, idx);
    free(all);
    return dev_status(m->dev);
}

static void release(struct moe *m)
{
    struct dedup *s = m->state;
    if (!s)
        return;
    dev_free(m->dev, s->x);
    dev_free(m->dev, s->weight);
    moe_layer_close(&s->layer);
    free(s->sent);
    free(s->received);
    free(s);
    m->state = NULL;
}

/* ---- steps ------------------------------------------------------------------------------------
 */

static struct stream *stream_of(const struct dedup *s)
{
    return dev_main_stream(s->layer.m->dev);
}

static void gather(const struct dedup *s, const void *from, int64_t from_rows, const int32_t *index,
    int64_t count, int64_t row_bytes, void *to)
{
    gather_rows(stream_of(s), &(struct gather_rows_args){.to = to,
                                  .from = from,
                                  .index = index,
                                  .count = count,
                                  .from_rows = from_rows,
                                  .row_bytes = row_bytes});
}

static void scatter(const struct dedup *s, const void *from, const int32_t *index, int64_t count,
    int64_t to_rows, void *to)
{
    scatter_rows(stream_of(s), &(struct scatter_rows_args){.to = to,
                                   .from = from,
                                   .index = index,
                                   .count = count,
                                   .to_rows = to_rows,
                                   .row_bytes = sizeof(float)});
}

/* Adds the rows between this rank and its peers to the next exchange: `here` [sent], `there`
 * [received]; out, or home. */
static void add_rows(
    struct dedup *s, const void *here, const void *there, int64_t row_bytes, bool home)
{
    struct moe_layer *layer = &s->layer;
    const char *sent = here, *received = there;
    if (dev_status(layer->m->dev) != DEV_OK)
        return;
    for (int peer = 0; peer < layer->m->shape.ranks; peer++) {
        int64_t out_bytes = s->sent[peer] * row_bytes, in_bytes = s->received[peer] * row_bytes;
        if (home) {
            moe_layer_add_send(layer, peer, received, in_bytes);
            moe_layer_add_receive(layer, peer, (void *)(uintptr_t)sent, out_bytes);
        } else {
            moe_layer_add_send(layer, peer, sent, out_bytes);
            moe_layer_add_receive(layer, peer, (void *)(uintptr_t)received, in_bytes);
        }
        sent += out_bytes;
        received += in_bytes;
    }
}

static void exchange(struct dedup *s, const char *label)
{
    moe_layer_exchange(&s->layer, s->layer.m->comm, stream_of(s), label);
}

/* Rows of this rank's tokens, [N, H], to every rank that serves them. */
static void send_tokens(struct dedup *s, const void *tokens, void *received, const char *label)
{
    struct moe *m = s->layer.m;
    int64_t row_bytes = moe_rows_bytes(&m->shape, 1);
    void *rows = dev_alloc(m->dev, s->z.sent * row_bytes, LIVE_STAGING, "send rows");
    gather(s, tokens, s->z.tokens, s->index.sent_token, s->z.sent, row_bytes, rows);
    add_rows(s, rows, received, row_bytes, false);
    exchange(s, label);
    dev_free(m->dev, rows);
}

/* A received row per route: [received, H] -> [expanded, H]. */
static void *expand(struct dedup *s, const void *received, enum live_set set, const char *label)
{
    struct moe *m = s->layer.m;
    int64_t row_bytes = moe_rows_bytes(&m->shape, 1);
    void *rows = dev_alloc(m->dev, s->z.expanded * row_bytes, set, label);
    gather(s, received, s->z.received, s->index.row, s->z.expanded, row_bytes, rows);
    return rows;
}

/* The expanded rows summed over each received row's slots, in FP32; frees them. */
static float *sum_slots(struct dedup *s, void *expanded, bool weighted)
{
    struct moe *m = s->layer.m;
    const struct moe_shape *shape = &m->shape;
    int64_t bytes = s->z.received * shape->hidden * (int64_t)sizeof(float);
    float *partial = dev_alloc(m->dev, bytes, LIVE_COMBINE, "partial sums");
    combine_rows(stream_of(s), &(struct combine_rows_args){.from = expanded,
                                   .from_rows = s->z.expanded,
                                   .from_type = shape->dtype,
                                   .position = s->index.position,
                                   .weight = weighted ? s->weight : NULL,
                                   .count = s->z.received,
                                   .columns = shape->hidden,
                                   .to_rows = s->z.received,
                                   .slots = shape->topk,
                                   .to_type = DTYPE_F32,
                                   .to = partial});
    dev_free(m->dev, expanded);
    return partial;
}

/* The partial sums home with what else was added, and summed over ranks into [N, H]; frees them. */
static void bring_home(struct dedup *s, float *partial, void *to, const char *label)
{
    struct moe *m = s->layer.m;
    const struct moe_shape *shape = &m->shape;
    int64_t row_bytes = shape->hidden * (int64_t)sizeof(float);
    float *home = dev_alloc(m->dev, s->z.sent * row_bytes, LIVE_STAGING, "partial sums home");
    add_rows(s, home, partial, row_bytes, true);
    exchange(s, label);
    dev_free(m->dev, partial);
    combine_rows(stream_of(s), &(struct combine_rows_args){.from = home,
                                   .from_rows = s->z.sent,
                                   .from_type = DTYPE_F32,
                                   .position = s->index.home,
                                   .count = s->z.tokens,
                                   .columns = shape->hidden,
                                   .to_rows = s->z.tokens,
                                   .slots = s->z.meetings,
                                   .take_first = true,
                                   .to_type = shape->dtype,
                                   .to = to});
    dev_free(m->dev, home);
}

/* ---- passes -----------------------------------------------------------------------------------
 */

static void send_x(struct dedup *s)
{
    struct moe *m = s->layer.m;
    int64_t slots_bytes = m->shape.topk * (int64_t)sizeof(float);
    s->weight = dev_alloc(m->dev, s->z.received * slots_bytes, LIVE_WORKSPACE, "router weights");
    s->x =
        dev_alloc(m->dev, moe_rows_bytes(&m->shape, s->z.received), LIVE_DISPATCH, "received rows");
    float *sent = dev_alloc(m->dev, s->z.sent * slots_bytes, LIVE_WORKSPACE, "router weights sent");
    gather(s, m->router_weight, s->z.tokens, s->index.sent_token, s->z.sent, slots_bytes, sent);
    add_rows(s, sent, s->weight, slots_bytes, false);
    send_tokens(s, m->x, s->x, "tokens to ranks");
    dev_free(m->dev, sent);
}

static enum dev_status forward(struct moe *m)
{
    if (dedup_open(m) != DEV_OK)
        return dev_status(m->dev);
    struct dedup *s = m->state;
    struct moe_hidden hidden;
    moe_alloc_forward(m);
    send_x(s);
    void *x = expand(s, s->x, LIVE_DISPATCH, "expanded rows");
    moe_hidden_alloc(m, s->z.expanded, false, &hidden);
    void *out = hidden.out =
        dev_alloc(m->dev, moe_rows_bytes(&m->shape, s->z.expanded), LIVE_COMBINE, "expert outputs");
    moe_experts_forward(&s->layer, &nothing_lent, stream_of(s), 0, x, &hidden);
    moe_hidden_free(m, &hidden);
    dev_free(m->dev, x);
    bring_home(s, sum_slots(s, out, true), m->y, "outputs home");
    moe_layer_settle(&s->layer);
    return dev_status(m->dev);
}

/* The router's part of backward. */
struct router_values {
    float *weight, *gradient; /* [expanded] */
    float *home;              /* dw by sent row, [sent, k] */
    float *compact;           /* [routes] */
};

static void values_alloc(const struct dedup *s, struct router_values *v)
{
    struct device *dev = s->layer.m->dev;
    const struct dedup_sizes *z = &s->z;
    int64_t expanded = z->expanded * (int64_t)sizeof(float);
    int64_t sent = z->sent * s->layer.m->shape.topk * (int64_t)sizeof(float);
    v->weight = dev_alloc(dev, expanded, LIVE_WORKSPACE, "router weights by route");
    v->gradient = dev_alloc(dev, expanded, LIVE_WORKSPACE, "router gradients by route");
    v->home = dev_alloc(dev, sent, LIVE_WORKSPACE, "router gradients home");
    v->compact =
        dev_alloc(dev, z->routes * (int64_t)sizeof(float), LIVE_WORKSPACE, "router gradients");
}

static void values_free(const struct dedup *s, struct router_values *v)
{
    struct device *dev = s->layer.m->dev;
    dev_free(dev, v->weight);
    dev_free(dev, v->gradient);
    dev_free(dev, v->home);
    dev_free(dev, v->compact);
}

/* dY rows in, dX rows by route out, in a block of LIVE_COMBINE; dw takes the place of the weights
 * that travelled with the tokens. */
static void *through_experts(struct dedup *s, const struct router_values *v)
{
    struct moe *m = s->layer.m;
    const struct dedup_sizes *z = &s->z;
    int64_t slots = z->received * m->shape.topk;
    struct moe_hidden hidden;
    void *dy_tokens =
        dev_alloc(m->dev, moe_rows_bytes(&m->shape, z->received), LIVE_COMBINE, "gradient rows");
    send_tokens(s, m->dy, dy_tokens, "gradients to ranks");
    void *dy = expand(s, dy_tokens, LIVE_COMBINE, "expanded gradient rows");
    dev_free(m->dev, dy_tokens);
    void *x = expand(s, s->x, LIVE_DISPATCH, "expanded rows");
    dev_free(m->dev, s->x);
    s->x = NULL;
    gather(s, s->weight, slots, s->index.served, z->expanded, sizeof(float), v->weight);
    moe_hidden_alloc(m, z->expanded, true, &hidden);
    moe_experts_forward(&s->layer, &nothing_lent, stream_of(s), 0, x, &hidden);
    moe_experts_backward(
        &s->layer, &nothing_lent, stream_of(s), 0, x, &hidden, dy, v->weight, v->gradient);
    moe_hidden_free(m, &hidden);
    dev_free(m->dev, x);
    scatter(s, v->gradient, s->index.served, z->expanded, slots, s->weight);
    return dy;
}

static enum dev_status backward(struct moe *m)
{
    struct dedup *s = m->state;
    struct router_values values;
    moe_alloc_backward(m);
    values_alloc(s, &values);
    float *partial = sum_slots(s, through_experts(s, &values), false);
    add_rows(s, values.home, s->weight, m->shape.topk * (int64_t)sizeof(float), true);
    bring_home(s, partial, m->dx, "gradients home");
    int64_t slots = s->z.tokens * m->shape.topk;
    gather(s, values.home, s->z.sent * m->shape.topk, s->index.value, s->z.routes, sizeof(float),
        values.compact);
    scatter(s, values.compact, s->index.route, s->z.routes, slots, m->router_gradient);
    values_free(s, &values);
    release(m);
    return dev_status(m->dev);
}

/* ---- memory and order -------------------------------------------------------------------------
 */

/* What a rank holds throughout forward. */
static struct moe_phase held_in_forward(
    const struct moe_shape *shape, const struct dedup_sizes *z, int rank)
{
    struct moe_phase held = {{0}};
    held.set_bytes[LIVE_OUTPUT] = moe_rows_bytes(shape, shape->tokens[rank]);
    held.set_bytes[LIVE_WORKSPACE] =
        dedup_block_bytes(z, shape->topk) + z->received * shape->topk * (int64_t)sizeof(float);
    return held;
}

/* A moment: rows in dispatch and combine, bytes of the experts', rows in staging. */
static struct moe_phase moment(const struct moe_phase *held, int64_t dispatch_bytes,
    int64_t combine_bytes, int64_t expert_bytes, int64_t staging_bytes)
{
    struct moe_phase phase = *held;
    phase.set_bytes[LIVE_DISPATCH] = dispatch_bytes;
    phase.set_bytes[LIVE_COMBINE] = combine_bytes;
    phase.set_bytes[LIVE_EXPERT] = expert_bytes;
    phase.set_bytes[LIVE_STAGING] = staging_bytes;
    return phase;
}

/* The moments of both passes where a rank may hold the most. Returns how many. */
static int phases(const struct moe_shape *shape, const struct dedup_sizes *z, int rank,
    bool with_backward, struct moe_phase *out)
{
    int64_t rows = moe_rows_bytes(shape, z->received), sent = moe_rows_bytes(shape, z->sent);
    int64_t expanded = moe_rows_bytes(shape, z->expanded), f32 = shape->hidden * 4;
    struct moe_phase held = held_in_forward(shape, z, rank);
    out[0] = moment(&held, rows, 0, 0, sent);
    out[0].set_bytes[LIVE_WORKSPACE] += z->sent * shape->topk * 4;
    out[1] =
        moment(&held, rows + expanded, expanded, moe_hidden_bytes(shape, z->expanded, false), 0);
    out[2] = moment(&held, rows, expanded + z->received * f32, 0, 0);
    out[3] = moment(&held, rows, z->received * f32, 0, z->sent * f32);
    if (!with_backward)
        return 4;
    held.set_bytes[LIVE_OUTPUT] += moe_rows_bytes(shape, z->tokens) + z->tokens * shape->topk * 4;
    held.set_bytes[LIVE_GRADIENTS] = moe_experts_per_rank(shape) * moe_expert_values(shape) * 4;
    held.set_bytes[LIVE_WORKSPACE] +=
        (2 * z->expanded + z->sent * shape->topk + z->routes) * (int64_t)sizeof(float);
    out[4] = moment(&held, rows, rows, 0, sent);
    out[5] = moment(&held, rows, rows + expanded, 0, 0);
    out[6] = moment(&held, rows + expanded, expanded, 0, 0);
    out[7] = moment(&held, expanded, expanded, moe_hidden_bytes(shape, z->expanded, true), 0);
    out[8] = moment(&held, 0, expanded + z->received * f32, 0, 0);
    out[9] = moment(&held, 0, z->received * f32, 0, z->sent * f32);
    return 10;
}

static int expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    struct moe_layout layout;
    (void)options;
    if (moe_layout_from_routing(&layout, shape, &whole, NULL, idx))
        return -1;
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct moe_phase all[10];
        struct dedup_sizes z = dedup_sizes(&layout, idx, rank);
        out[rank] = moe_phases_peaks(all, phases(shape, &z, rank, with_backward, all));
    }
    moe_layout_free(&layout);
    return 0;
}

/* A token's slots by the rank that serves them, each rank's a group; empty slots last. */
static void order_token(
    const struct moe_shape *shape, const int32_t *slots, int8_t *slot, bool *starts)
{
    int at = 0;
    for (int rank = 0; rank < shape->ranks && at < shape->topk; rank++) {
        bool first = true;
        for (int j = 0; j < shape->topk; j++) {
            if (slots[j] == MOE_EMPTY || moe_owner(shape, slots[j]) != rank)
                continue;
            slot[at] = (int8_t)j;
            starts[at++] = first;
            first = false;
        }
    }
    for (int j = 0; j < shape->topk; j++) {
        if (slots[j] != MOE_EMPTY)
            continue;
        slot[at] = (int8_t)j;
        starts[at++] = false;
    }
}

static int order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    size_t slots = (size_t)(out->tokens * out->topk);
    int8_t *slot = malloc(slots + 1);
    bool *starts = malloc((slots + 1) * sizeof *starts);
    (void)options;
    if (!slot || !starts) {
        free(slot);
        free(starts);
        return -1;
    }
    int64_t at = 0;
    for (int r = 0; r < shape->ranks; r++)
        for (int64_t t = 0; t < shape->tokens[r]; t++, at += shape->topk)
            order_token(shape, idx[r] + t * shape->topk, slot + at, starts + at);
    free(out->combine_slot);
    free(out->combine_starts);
    out->combine_slot = slot;
    out->combine_starts = starts;
    return 0;
}

const struct moe_impl moe_alltoall_dedup = {
    .name = "alltoall-dedup",
    .summary = "a token travels once per rank and comes back as one partial sum",
    .options = " ",
    .forward = forward,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_bytes,
    .order = order,
};
