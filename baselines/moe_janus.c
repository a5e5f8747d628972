/* janus: tokens stay and experts are fetched, the Janus kind. A rank fetches every expert that its
 * tokens name from the expert's owner, computes, and lets it go; what it fetched is kept in host
 * memory, from where backward takes it. A credit is room for one expert on the device.
 *
 *   forward, c = 2 credits: own experts need no fetch
 *
 *     fetch | e0    | e1         | e2 (room of e0)  | e3 (room of e1) |
 *     main  | own   | e0         | e1               | e2              | e3 |
 *     cache         | e0 to host | e1 to host       | ...
 *
 *   backward: experts from host memory; an expert's gradient goes to its owner when it is formed,
 *   and is added there in the order of the rounds
 *
 *     fetch | e0, e1 from host | e2 ...   |
 *     main  | own              | e0 -> g0 | e1 -> g1 | + g0 | e2 -> g0 | + g1 | ...
 *     send                                | g0       | g1   |
 *
 * Rounds are the same on all ranks: in round (d, i) rank r fetches expert i of rank r + d, so that
 * every owner serves one rank at a time. A rank without routes for an expert leaves its fetch out.
 * Matching rows are gathered, computed and summed as the ring does it (ops/relay_hop.h).
 *
 * Bound: none for the rows, all of a rank's tokens may name one expert. Order: Y and dX one chain
 * per token, slots of the rank's own experts first, then by round, then slot; a weight gradient one
 * chain per rank, added from the owner on, against the ring's direction; dw the default. Cost: a
 * rank's experts once over the wire, twice over the host link; the experts' products twice. */
#include <stdlib.h>
#include "kernels/rank_sum.h"
#include "ops/moe_lend.h"
#include "ops/relay_hop.h"
#include "ops/relay_memory.h"
#include "ops/relay_order.h"

enum { CREDITS_MAX = 64 };

/* Room for one expert. */
struct credit {
    char *weights;           /* gate, up, down */
    float *formed, *arrived; /* its gradient; one of an expert of this rank's, from another */
    struct event used;       /* the main stream is done with the weights */
    struct event cached;     /* they are in host memory */
    struct event sent;       /* the round's gradients have left and come */
    int64_t round;           /* whose gradient `arrived` is; -1 = none's */
};

struct janus {
    struct moe *m;
    int64_t *counts; /* [ranks, experts] */
    char *cache;     /* pinned: fetched experts in the order of the rounds */
    struct relay_plan plan;
    struct relay_hop hop;
    struct stream *main, *fetch, *copy, *send;
    int ranks, rank;
    int64_t owned, rounds, matrix_values;
    int credits;
    struct credit credit[CREDITS_MAX];
    float *sums;
};

/* ---- rounds -----------------------------------------------------------------------------------
 */

static int64_t rounds_of(const struct moe_shape *shape)
{
    return (shape->ranks - 1) * moe_experts_per_rank(shape);
}

/* The expert that a rank fetches in a round, and who fetches one of this rank's. */
static int64_t fetched(const struct moe_shape *shape, int rank, int64_t round)
{
    int64_t owned = moe_experts_per_rank(shape), owner = (rank + 1 + round / owned) % shape->ranks;
    return owner * owned + round % owned;
}

static int served(const struct moe_shape *shape, int rank, int64_t round)
{
    return relay_held(rank, (int)(1 + round / moe_experts_per_rank(shape)), shape->ranks);
}

static int credits_of(const struct moe_shape *shape, const struct moe_options *options)
{
    int64_t credits = options->credits > 0 ? options->credits : 1, rounds = rounds_of(shape);
    credits = credits < CREDITS_MAX ? credits : CREDITS_MAX;
    return (int)(credits < rounds ? credits : rounds);
}

static int64_t routes_for(const struct janus *s, int rank, int64_t expert)
{
    return s->counts[rank * s->m->shape.experts + expert];
}

/* A rank's own experts are one meeting, every fetched one another. */
static int make_plan(
    struct relay_plan *plan, const struct moe_shape *shape, int rank, const int32_t *idx)
{
    int64_t owned = moe_experts_per_rank(shape), rounds = rounds_of(shape);
    struct relay_meeting *meetings = calloc((size_t)rounds + 1, sizeof *meetings);
    if (!meetings)
        return -1;
    for (int64_t i = 0; i <= rounds; i++)
        meetings[i] = (struct relay_meeting){.idx = idx,
            .tokens = shape->tokens[rank],
            .first_expert = i ? fetched(shape, rank, i - 1) : rank * owned,
            .experts = i ? 1 : owned,
            .fresh = true};
    int status = relay_plan_make(plan, shape->topk, shape->experts, 0, meetings, (int)rounds + 1);
    free(meetings);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------
 */

static int64_t expert_bytes(const struct janus *s)
{
    return moe_expert_values(&s->m->shape) * dtype_bytes(s->m->shape.dtype);
}

static void alloc_credits(struct janus *s, bool backward)
{
    struct device *dev = s->m->dev;
    int64_t gradient_bytes = moe_expert_values(&s->m->shape) * (int64_t)sizeof(float);
    for (int i = 0; i < s->credits; i++) {
        s->credit[i] = (struct credit){.round = -1};
        s->credit[i].weights = dev_alloc(dev, expert_bytes(s), LIVE_WEIGHTS, "fetched expert");
        if (!backward)
            continue;
        s->credit[i].formed =
            dev_alloc(dev, gradient_bytes, LIVE_GRADIENTS, "a fetched expert's gradient");
        s->credit[i].arrived =
            dev_alloc(dev, gradient_bytes, LIVE_GRADIENTS, "a gradient from another rank");
    }
}

static void free_credits(struct janus *s)
{
    for (int i = 0; i < s->credits; i++) {
        dev_free(s->m->dev, s->credit[i].weights);
        dev_free(s->m->dev, s->credit[i].formed);
        dev_free(s->m->dev, s->credit[i].arrived);
    }
}

static void alloc_cache(struct janus *s)
{
    int64_t experts = 0;
    for (int64_t n = 0; n < s->rounds; n++)
        experts += routes_for(s, s->rank, fetched(&s->m->shape, s->rank, n)) > 0;
    s->cache = dev_host_alloc(
        s->m->dev, experts * expert_bytes(s), LIVE_WEIGHTS, "fetched experts, for backward");
}

static enum dev_status janus_open(struct moe *m)
{
    struct janus *s = calloc(1, sizeof *s);
    if (!s) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for janus");
        return dev_status(m->dev);
    }
    m->state = s;
    *s = (struct janus){.m = m,
        .main = dev_main_stream(m->dev),
        .fetch = dev_stream(m->dev, "fetch"),
        .copy = dev_stream(m->dev, "cache"),
        .send = dev_stream(m->dev, "gradients"),
        .ranks = m->shape.ranks,
        .rank = m->rank,
        .owned = moe_experts_per_rank(&m->shape),
        .rounds = rounds_of(&m->shape),
        .matrix_values = m->shape.hidden * m->shape.ffn,
        .credits = credits_of(&m->shape, &m->options)};
    s->counts = moe_gather_counts(m);
    if (s->counts && make_plan(&s->plan, &m->shape, m->rank, m->idx))
        dev_fail(m->dev, DEV_FAILED,
            "no host memory for the rounds, or a rank has more than %d slots", INT32_MAX);
    return dev_status(m->dev);
}

static void begin(struct janus *s, void *output, bool backward)
{
    struct moe *m = s->m;
    s->sums = relay_sums_alloc(m, output);
    alloc_credits(s, backward);
    relay_hop_open(&s->hop, m, &s->plan, backward);
    dev_wait_stream(s->fetch, s->main);
    dev_wait_stream(s->send, s->main);
}

/* Rounds the sums into the output and frees what the pass held. */
static void end(struct janus *s, void *output)
{
    struct moe *m = s->m;
    dev_wait_stream(s->main, s->fetch);
    dev_wait_stream(s->main, s->copy);
    dev_wait_stream(s->main, s->send);
    relay_sums_store(m, s->sums, output);
    relay_hop_close(&s->hop);
    free_credits(s);
}

static void release(struct moe *m)
{
    struct janus *s = m->state;
    if (!s)
        return;
    dev_sync_event(dev_record(s->copy));
    dev_sync_event(dev_record(s->fetch));
    dev_host_free(m->dev, s->cache);
    relay_plan_free(&s->plan);
    free(s->counts);
    free(s);
    m->state = NULL;
}

/* ---- experts ----------------------------------------------------------------------------------
 * One expert's matrices follow each other, gate last: ReLU has none. */

static struct relay_experts experts_in(const struct janus *s, const struct credit *c)
{
    int64_t values = s->matrix_values, bytes = values * dtype_bytes(s->m->shape.dtype);
    struct relay_experts e = {.up = c->weights, .down = c->weights + bytes};
    if (c->formed) {
        e.up_gradient = c->formed;
        e.down_gradient = c->formed + values;
    }
    if (s->m->gate) {
        e.gate = c->weights + 2 * bytes;
        e.gate_gradient = c->formed ? c->formed + 2 * values : NULL;
    }
    return e;
}

static struct relay_experts own_experts(const struct moe *m)
{
    return (struct relay_experts){
        m->gate, m->up, m->down, m->gate_gradient, m->up_gradient, m->down_gradient};
}

static void meet(struct janus *s, int64_t meeting, const struct relay_experts *experts)
{
    const struct moe *m = s->m;
    relay_meet(&s->hop, (int)meeting,
        &(struct relay_batch){.x = m->x,
            .dy = m->dy,
            .weight = m->router_weight,
            .sums = s->sums,
            .router_gradient = m->router_gradient},
        experts);
}

/* The messages of a round. */
struct parts {
    struct comm_part send[3], receive[3];
    int sends, receives;
};

static void add_send(struct parts *parts, int peer, const void *data, int64_t bytes)
{
    parts->send[parts->sends++] = (struct comm_part){peer, (void *)(uintptr_t)data, bytes};
}

static void add_receive(struct parts *parts, int peer, void *data, int64_t bytes)
{
    parts->receive[parts->receives++] = (struct comm_part){peer, data, bytes};
}

/* Round n's expert into its credit, and this rank's to whom it serves. */
static void fetch(struct janus *s, int64_t n)
{
    const struct moe *m = s->m;
    struct credit *c = &s->credit[n % s->credits];
    int64_t bytes = s->matrix_values * dtype_bytes(m->shape.dtype), expert;
    int peer = served(&m->shape, s->rank, n);
    struct parts parts = {.sends = 0};
    expert = fetched(&m->shape, peer, n);
    if (routes_for(s, peer, expert) > 0) {
        int64_t at = expert % s->owned * bytes;
        add_send(&parts, peer, (const char *)m->up + at, bytes);
        add_send(&parts, peer, (const char *)m->down + at, bytes);
        if (m->gate)
            add_send(&parts, peer, (const char *)m->gate + at, bytes);
    }
    expert = fetched(&m->shape, s->rank, n);
    if (routes_for(s, s->rank, expert) > 0)
        for (int i = 0; i < (m->gate ? 3 : 2); i++)
            add_receive(&parts, moe_owner(&m->shape, expert), c->weights + i * bytes, bytes);
    dev_wait(s->fetch, c->used);
    dev_wait(s->fetch, c->cached);
    comm_exchange(m->comm, s->fetch, "experts fetched", parts.send, parts.sends, parts.receive,
        parts.receives);
}

/* ---- forward ----------------------------------------------------------------------------------
 */

static void keep(struct janus *s, struct credit *c, int64_t *kept)
{
    if (!s->m->with_backward)
        return;
    dev_wait_stream(s->copy, s->fetch);
    dev_copy_d2h(s->copy, s->cache + (*kept)++ * expert_bytes(s), c->weights, expert_bytes(s));
    c->cached = dev_record(s->copy);
}

static enum dev_status forward(struct moe *m)
{
    if (janus_open(m) != DEV_OK)
        return dev_status(m->dev);
    struct janus *s = m->state;
    struct relay_experts own = own_experts(m);
    int64_t kept = 0;
    moe_alloc_forward(m);
    if (m->with_backward)
        alloc_cache(s);
    begin(s, m->y, false);
    for (int64_t n = 0; n < s->rounds && dev_status(m->dev) == DEV_OK; n++) {
        struct credit *c = &s->credit[n % s->credits];
        fetch(s, n);
        if (n == 0) /* behind the first fetch */
            meet(s, 0, &own);
        if (routes_for(s, s->rank, fetched(&m->shape, s->rank, n)) == 0)
            continue;
        keep(s, c, &kept);
        struct relay_experts here = experts_in(s, c);
        dev_wait_stream(s->main, s->fetch);
        meet(s, n + 1, &here);
        c->used = dev_record(s->main);
    }
    if (s->rounds == 0)
        meet(s, 0, &own);
    end(s, m->y);
    return dev_status(m->dev);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* The round's formed gradient to its owner, and one of this rank's experts' from whom it serves. */
static void send_gradients(struct janus *s, int64_t n)
{
    const struct moe *m = s->m;
    struct credit *c = &s->credit[n % s->credits];
    int64_t bytes = moe_expert_values(&m->shape) * (int64_t)sizeof(float), expert;
    int peer = served(&m->shape, s->rank, n);
    struct parts parts = {.sends = 0};
    expert = fetched(&m->shape, s->rank, n);
    if (routes_for(s, s->rank, expert) > 0)
        add_send(&parts, moe_owner(&m->shape, expert), c->formed, bytes);
    expert = fetched(&m->shape, peer, n);
    if (routes_for(s, peer, expert) > 0)
        add_receive(&parts, peer, c->arrived, bytes);
    dev_wait_stream(s->send, s->main);
    comm_exchange(m->comm, s->send, "gradients to owners", parts.send, parts.sends, parts.receive,
        parts.receives);
    c->sent = dev_record(s->send);
    c->round = n;
}

static void add_matrix(const struct janus *s, bool first, float *own, const float *arrived)
{
    if (first) /* no rank before had routes: the sum begins here */
        dev_copy_d2d(s->main, own, arrived, s->matrix_values * (int64_t)sizeof(float));
    else
        add_f32(s->main, own, arrived, s->matrix_values);
}

/* Waits until the credit's round is through, and adds what it brought. */
static void take_gradient(struct janus *s, struct credit *c)
{
    const struct moe *m = s->m;
    int64_t n = c->round;
    if (n < 0)
        return;
    dev_wait(s->main, c->sent);
    c->round = -1;
    int peer = served(&m->shape, s->rank, n);
    int64_t expert = fetched(&m->shape, peer, n), at = expert % s->owned * s->matrix_values;
    if (routes_for(s, peer, expert) == 0)
        return;
    bool first = routes_for(s, s->rank, expert) == 0;
    for (int i = 1; relay_held(s->rank, i, s->ranks) != peer; i++)
        first = first && routes_for(s, relay_held(s->rank, i, s->ranks), expert) == 0;
    add_matrix(s, first, m->up_gradient + at, c->arrived);
    add_matrix(s, first, m->down_gradient + at, c->arrived + s->matrix_values);
    if (m->gate)
        add_matrix(s, first, m->gate_gradient + at, c->arrived + 2 * s->matrix_values);
}

static void restore(struct janus *s, struct credit *c, int64_t *restored)
{
    dev_wait(s->fetch, c->used);
    dev_copy_h2d(s->fetch, c->weights, s->cache + (*restored)++ * expert_bytes(s), expert_bytes(s));
}

static enum dev_status backward(struct moe *m)
{
    struct janus *s = m->state;
    int64_t restored = 0;
    moe_alloc_backward(m);
    struct relay_experts own = own_experts(m);
    begin(s, m->dx, true);
    for (int64_t n = 0; n < s->rounds && dev_status(m->dev) == DEV_OK; n++) {
        struct credit *c = &s->credit[n % s->credits];
        bool any = routes_for(s, s->rank, fetched(&m->shape, s->rank, n)) > 0;
        if (any)
            restore(s, c, &restored);
        if (n == 0) /* behind the first copy */
            meet(s, 0, &own);
        take_gradient(s, c);
        if (any) {
            struct relay_experts here = experts_in(s, c);
            dev_wait_stream(s->main, s->fetch);
            meet(s, n + 1, &here);
            c->used = dev_record(s->main);
        }
        send_gradients(s, n);
    }
    if (s->rounds == 0)
        meet(s, 0, &own);
    for (int64_t n = s->rounds - s->credits; n < s->rounds; n++) /* the last ones, in order */
        take_gradient(s, &s->credit[n % s->credits]);
    end(s, m->dx);
    release(m);
    return dev_status(m->dev);
}

/* ---- memory and order -------------------------------------------------------------------------
 */

static int expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    int64_t values = credits_of(shape, options) * moe_expert_values(shape);
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct moe_phase phases[2];
        struct relay_plan plan;
        if (make_plan(&plan, shape, rank, idx[rank]))
            return -1;
        for (int pass = 0; pass <= with_backward; pass++) {
            int64_t *set = phases[pass].set_bytes;
            phases[pass] = relay_phase(shape, rank, relay_hop_slots(plan.piece_count),
                plan.most_rows, plan.most_block_bytes, pass);
            set[LIVE_WEIGHTS] += values * dtype_bytes(shape->dtype);
            set[LIVE_GRADIENTS] += pass ? 2 * values * (int64_t)sizeof(float) : 0;
            if (shape->dtype == DTYPE_BF16)
                set[LIVE_COMBINE] += shape->tokens[rank] * shape->hidden * 4;
        }
        out[rank] = moe_phases_peaks(phases, 1 + with_backward);
        relay_plan_free(&plan);
    }
    return 0;
}

/* Own experts first, then by round. */
static int turn_of(const struct moe_shape *shape, int rank, int64_t expert)
{
    int64_t owned = moe_experts_per_rank(shape);
    int distance = relay_held(moe_owner(shape, expert), rank, shape->ranks);
    return distance ? (int)(1 + (distance - 1) * owned + expert % owned) : 0;
}

static int source_of(const struct moe_shape *shape, int owner, int i)
{
    return relay_held(owner, i, shape->ranks);
}

static int order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    (void)options;
    int turns = (int)rounds_of(shape) + 1;
    return relay_order_combine(shape, idx, turns, turn_of, out) ||
                   relay_order_gradients(shape, source_of, true, out)
               ? -1
               : 0;
}

const struct moe_impl moe_janus = {
    .name = "janus",
    .summary = "experts fetched under a credit limit, kept in host memory for backward",
    .options = " credits ",
    .forward = forward,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_bytes,
    .order = order,
};
