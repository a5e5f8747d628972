/* relay-expert: expert parallelism on a ring, the experts travelling. No token is copied k-fold and
 * none leaves its rank: each rank's partition of the experts goes round, and after P hops every
 * token has met every expert. Serves RelayMoE's claim that the dispatch's memory is two partitions
 * and one hop's matches instead of the expanded batch.
 *
 *   rank r, P = 4; at hop h it holds partition r - h
 *
 *     main   | own experts  | partition r-1 | partition r-2 | partition r-3 |
 *     ring   | hop to slot 0 | hop to slot 1 | hop to slot 0 |
 *
 *     one hop: matching routes --gather--> rows --experts--> outputs --add w e to the sums of Y
 *
 *   backward: the gradients of a partition follow it one hop behind, in the same exchange
 *
 *     main   | hop 0 -> c0 | hop 1 -> c1 | c1 += in | hop 2 -> c2 | c2 += in | ...
 *     ring   | weights     | weights, c0 > in       | weights, c1 > in       | ... | last sum home
 *
 *     one hop: rows gathered again, intermediates formed again --> dw, dX sums, the partition's
 *     gradients; nothing of route size survives forward, and no ring pass is made for it
 *
 * Three buffers rotate for the gradients (being filled, arriving, leaving); one of them is the
 * output, chosen so that the last hop lands in it. The weights of the last hop come home and are
 * not read: the paper's hops are uniform. An expert without routes here passes the sum that arrives
 * on, one that no earlier rank had routes for begins it: so a sum has no part but those of its
 * routes, and counts are gathered on the host for that.
 *
 * Bound and bytes: ops/relay_memory.c. Order: Y and dX one chain per token, slots by hop, then
 * slot; a weight gradient one chain per rank, added from the owner on round the ring; dw the
 * default. Cost: P - 1 partitions travel in forward, P and P gradients in backward, in P + 1
 * exchanges; the experts' products twice in forward and backward together. */
#include <stdlib.h>
#include "kernels/rank_sum.h"
#include "ops/moe_lend.h"
#include "ops/relay_hop.h"
#include "ops/relay_memory.h"

/* A partition's matrices. */
struct weights {
    void *gate, *up, *down;
};

struct gradients {
    float *gate, *up, *down;
};

struct ring {
    struct moe *m;
    struct relay_plan plan;
    struct relay_hop hop;
    struct stream *main, *ring;
    int ranks, rank, next, previous, slots;
    int64_t owned, matrix_values;
    struct weights slot[2];
    struct gradients moving[3];
    float *sums;     /* FP32 [N, H]: of Y or dX, the output itself where that is FP32 */
    int64_t *counts; /* [ranks, experts]: routes by source, in backward */
};

/* ---- opening --------------------------------------------------------------------------------- */

static void *alloc_part(const struct ring *ring, int64_t element_bytes, const char *label)
{
    return dev_alloc(
        ring->m->dev, ring->owned * ring->matrix_values * element_bytes, LIVE_RING, label);
}

static void slots_alloc(struct ring *ring)
{
    int64_t type_bytes = dtype_bytes(ring->m->shape.dtype);
    for (int i = 0; i < ring->slots; i++) {
        struct weights *slot = &ring->slot[i];
        if (ring->m->gate)
            slot->gate = alloc_part(ring, type_bytes, "visiting gate weights");
        slot->up = alloc_part(ring, type_bytes, "visiting up weights");
        slot->down = alloc_part(ring, type_bytes, "visiting down weights");
    }
}

/* At hop j buffer j mod 3 is filled, (j + 1) mod 3 takes the sum that arrives, (j + 2) mod 3 holds
 * the sum that leaves. After the last hop the sum that comes home lands in (P + 1) mod 3. */
static int home_buffer(int ranks)
{
    return ranks == 1 ? 0 : (ranks + 1) % 3;
}

static void gradients_alloc(struct ring *ring)
{
    const struct moe *m = ring->m;
    for (int i = 0; i < 3 && ring->ranks > 1; i++) {
        struct gradients *g = &ring->moving[i];
        if (i == home_buffer(ring->ranks))
            continue;
        if (m->gate)
            g->gate = alloc_part(ring, sizeof(float), "travelling gate gradient");
        g->up = alloc_part(ring, sizeof(float), "travelling up gradient");
        g->down = alloc_part(ring, sizeof(float), "travelling down gradient");
    }
    ring->moving[home_buffer(ring->ranks)] =
        (struct gradients){m->gate_gradient, m->up_gradient, m->down_gradient};
}

static enum dev_status ring_open(struct ring *ring, struct moe *m, bool backward)
{
    const struct moe_shape *shape = &m->shape;
    *ring = (struct ring){.m = m,
        .main = dev_main_stream(m->dev),
        .ring = m->options.overlap_off ? dev_main_stream(m->dev) : dev_stream(m->dev, "ring"),
        .ranks = shape->ranks,
        .rank = m->rank,
        .next = (m->rank + 1) % shape->ranks,
        .previous = (m->rank + shape->ranks - 1) % shape->ranks,
        .slots = relay_expert_slots(shape->ranks, backward),
        .owned = moe_experts_per_rank(shape),
        .matrix_values = shape->hidden * shape->ffn};
    if (relay_plan_experts(&ring->plan, shape, &m->options, m->rank, m->idx)) {
        dev_fail(m->dev, DEV_FAILED,
            "no host memory for the hops, or a rank has more than %d slots", INT32_MAX);
        return dev_status(m->dev);
    }
    if (backward)
        moe_alloc_backward(m);
    else
        moe_alloc_forward(m);
    if (backward)
        gradients_alloc(ring);
    if (backward && ring->ranks > 1)
        ring->counts = moe_gather_counts(m);
    slots_alloc(ring);
    ring->sums = relay_sums_alloc(m, backward ? m->dx : m->y);
    relay_hop_open(&ring->hop, m, &ring->plan, backward);
    dev_wait_stream(ring->ring, ring->main);
    return dev_status(m->dev);
}

/* Rounds the sums into the output and frees what the pass held. */
static enum dev_status ring_close(struct ring *ring, void *output)
{
    struct moe *m = ring->m;
    if (!ring->plan.meetings)
        return dev_status(m->dev);
    dev_wait_stream(ring->main, ring->ring);
    relay_sums_store(m, ring->sums, output);
    relay_hop_close(&ring->hop);
    for (int i = 0; i < 2; i++) {
        dev_free(m->dev, ring->slot[i].gate);
        dev_free(m->dev, ring->slot[i].up);
        dev_free(m->dev, ring->slot[i].down);
    }
    for (int i = 0; i < 3; i++) {
        if (i == home_buffer(ring->ranks))
            continue;
        dev_free(m->dev, ring->moving[i].gate);
        dev_free(m->dev, ring->moving[i].up);
        dev_free(m->dev, ring->moving[i].down);
    }
    relay_plan_free(&ring->plan);
    free(ring->counts);
    return dev_status(m->dev);
}

/* ---- hops ------------------------------------------------------------------------------------ */

/* What this rank holds at a hop: its own experts first, then the slot that was filled last. */
static struct weights held(const struct ring *ring, int hop)
{
    const struct moe *m = ring->m;
    if (hop > 0)
        return ring->slot[(hop - 1) % 2];
    return (struct weights){
        (void *)(uintptr_t)m->gate, (void *)(uintptr_t)m->up, (void *)(uintptr_t)m->down};
}

/* The messages of one hop: a part for each matrix kind. */
struct parts {
    struct comm_part send[6], receive[6];
    int count;
};

static void add_part(
    const struct ring *ring, struct parts *parts, void *send, void *receive, int64_t element_bytes)
{
    int64_t bytes = ring->owned * ring->matrix_values * element_bytes;
    parts->send[parts->count] = (struct comm_part){ring->next, send, bytes};
    parts->receive[parts->count++] = (struct comm_part){ring->previous, receive, bytes};
}

static void add_weights(const struct ring *ring, struct parts *parts, int hop)
{
    struct weights from = held(ring, hop), to = ring->slot[hop % 2];
    int64_t type_bytes = dtype_bytes(ring->m->shape.dtype);
    if (from.gate)
        add_part(ring, parts, from.gate, to.gate, type_bytes);
    add_part(ring, parts, from.up, to.up, type_bytes);
    add_part(ring, parts, from.down, to.down, type_bytes);
}

/* The sum of what was held a hop ago goes on, the sum for what is held now arrives. */
static void add_gradients(const struct ring *ring, struct parts *parts, int hop)
{
    const struct gradients *from = &ring->moving[(hop + 2) % 3], *to = &ring->moving[(hop + 1) % 3];
    if (ring->m->gate)
        add_part(ring, parts, from->gate, to->gate, sizeof(float));
    add_part(ring, parts, from->up, to->up, sizeof(float));
    add_part(ring, parts, from->down, to->down, sizeof(float));
}

/* Behind everything that the main stream was given so far. */
static struct event start(const struct ring *ring, const struct parts *parts, const char *label)
{
    dev_wait_stream(ring->ring, ring->main);
    comm_exchange(
        ring->m->comm, ring->ring, label, parts->send, parts->count, parts->receive, parts->count);
    return dev_record(ring->ring);
}

static void meet(struct ring *ring, int hop, bool backward)
{
    const struct moe *m = ring->m;
    struct weights here = held(ring, hop);
    struct gradients *filled = &ring->moving[hop % 3];
    relay_meet(&ring->hop, hop,
        &(struct relay_batch){.x = m->x,
            .dy = m->dy,
            .weight = m->router_weight,
            .sums = ring->sums,
            .router_gradient = backward ? m->router_gradient : NULL},
        &(struct relay_experts){
            here.gate, here.up, here.down, filled->gate, filled->up, filled->down});
}

/* ---- sums of gradients ----------------------------------------------------------------------- */

enum kind { KEEP_OWN, TAKE_ARRIVED, ADD_ARRIVED };

/* What becomes of expert e's own part when the sum of the ranks before arrives. */
static enum kind kind_of(const struct ring *ring, int hop, int64_t expert)
{
    int owner = moe_owner(&ring->m->shape, expert);
    bool own = ring->counts[ring->rank * ring->m->shape.experts + expert] > 0, before = false;
    for (int i = 0; i < hop && !before; i++)
        before = ring->counts[(owner + i) % ring->ranks * ring->m->shape.experts + expert] > 0;
    return !before ? KEEP_OWN : own ? ADD_ARRIVED : TAKE_ARRIVED;
}

static void add_run(const struct ring *ring, enum kind kind, float *own, const float *arrived,
    int64_t first, int64_t experts)
{
    int64_t at = first * ring->matrix_values, count = experts * ring->matrix_values;
    if (kind == ADD_ARRIVED)
        add_f32(ring->main, own + at, arrived + at, count);
    else if (kind == TAKE_ARRIVED)
        dev_copy_d2d(ring->main, own + at, arrived + at, count * (int64_t)sizeof(float));
}

/* Earlier ranks' sum + this rank's part, run by run of experts that fare alike. */
static void take_sums(const struct ring *ring, int hop)
{
    const struct gradients *own = &ring->moving[hop % 3], *in = &ring->moving[(hop + 1) % 3];
    int64_t first_expert = relay_held(ring->rank, hop, ring->ranks) * ring->owned;
    if (dev_status(ring->m->dev) != DEV_OK)
        return;
    for (int64_t e = 0, end; e < ring->owned; e = end) {
        enum kind kind = kind_of(ring, hop, first_expert + e);
        for (end = e + 1; end < ring->owned && kind_of(ring, hop, first_expert + end) == kind;)
            end++;
        if (own->gate)
            add_run(ring, kind, own->gate, in->gate, e, end - e);
        add_run(ring, kind, own->up, in->up, e, end - e);
        add_run(ring, kind, own->down, in->down, e, end - e);
    }
}

/* ---- passes ---------------------------------------------------------------------------------- */

static enum dev_status forward(struct moe *m)
{
    struct ring ring;
    if (ring_open(&ring, m, false) == DEV_OK)
        for (int hop = 0; hop < ring.ranks; hop++) {
            struct parts parts = {.count = 0};
            struct event arrived = {0};
            if (hop + 1 < ring.ranks) {
                add_weights(&ring, &parts, hop);
                arrived = start(&ring, &parts, "experts on");
            }
            meet(&ring, hop, false);
            dev_wait(ring.main, arrived);
        }
    return ring_close(&ring, m->y);
}

static enum dev_status backward(struct moe *m)
{
    struct ring ring;
    if (ring_open(&ring, m, true) == DEV_OK) {
        for (int hop = 0; hop < ring.ranks; hop++) {
            struct parts parts = {.count = 0};
            struct event arrived = {0};
            if (ring.ranks > 1) {
                add_weights(&ring, &parts, hop);
                if (hop > 0)
                    add_gradients(&ring, &parts, hop);
                arrived = start(&ring, &parts, "experts on, gradients behind");
            }
            meet(&ring, hop, true);
            dev_wait(ring.main, arrived);
            if (hop > 0)
                take_sums(&ring, hop);
        }
        if (ring.ranks > 1) {
            struct parts parts = {.count = 0};
            add_gradients(&ring, &parts, ring.ranks);
            start(&ring, &parts, "gradients home");
        }
    }
    return ring_close(&ring, m->dx);
}

const struct moe_impl moe_relay_expert = {
    .name = "relay-expert",
    .summary = "experts travel a ring and meet the tokens where they are, nothing is expanded",
    .options = " hop-rows overlap grouped ",
    .backward_alone = true,
    .forward = forward,
    .backward = backward,
    .bound_bytes = relay_expert_bound_bytes,
    .expected_bytes = relay_expert_expected_bytes,
    .order = relay_expert_order,
};
