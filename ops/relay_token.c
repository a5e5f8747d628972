/* relay-token: the other side of relay-expert. Experts and their gradients stay; the batches of
 * tokens go round, with the sums of their outputs behind them. Worth it where a batch is smaller
 * than a partition: many or wide experts, short contexts.
 *
 *   rank r, P = 4; at hop h it holds the batch of rank r - h
 *
 *     main   | own batch -> s0 | batch r-1 | s1 += | batch r-2 | s0 += | batch r-3 | s1 += |
 *     ring   | tokens          | tokens, s0 > s1    | tokens, s1 > s0  | ...  | last sums home
 *
 *   A hop's products need the tokens alone; only where their outputs are added must the sums be
 *   there, which left the rank before when that was done. In backward dY travels with the tokens
 *   and dw with the sums, which are those of dX; the experts' gradients are one chain, continued
 *   in place from batch to batch.
 *
 * Which routes of a batch are for its experts a rank must know before it can gather them: all
 * ranks' routing is gathered on the hosts, once per pass. Router weights travel with the tokens.
 * After P hops tokens and sums are home; the tokens are not read there: the paper's hops are
 * uniform.
 *
 * Bound and bytes: ops/relay_memory.c. Order: Y and dX one chain per token, slots by hop, then
 * slot; a weight gradient one chain, over batches r, r - 1, ..., then token and slot; dw the
 * default. Cost: P payloads of tokens and P of sums each way, in P + 1 exchanges; the experts'
 * products twice in forward and backward together. */
#include <stdlib.h>
#include "kernels/rank_sum.h"
#include "ops/relay_hop.h"
#include "ops/relay_memory.h"

/* A batch on its way, and what is summed for it. */
struct tokens {
    void *x, *dy; /* dy in backward */
    float *weight;
};

struct sums {
    float *rows, *router_gradient; /* the latter in backward */
};

struct ring {
    struct moe *m;
    bool backward;
    int32_t *routing; /* all ranks' */
    struct relay_plan plan;
    struct relay_hop hop;
    struct stream *main, *ring;
    int ranks, rank, next, previous;
    struct tokens slot[2];
    struct sums sums[2];
    struct sums
        home; /* where the last hop lands: the outputs, or sums that are rounded into them */
};

/* ---- opening --------------------------------------------------------------------------------- */

static int64_t f32_rows_bytes(const struct ring *ring, int64_t rows)
{
    return rows * ring->m->shape.hidden * (int64_t)sizeof(float);
}

static int64_t slots_bytes(const struct ring *ring, int64_t tokens)
{
    return tokens * ring->m->shape.topk * (int64_t)sizeof(float);
}

static void alloc_travellers(struct ring *ring)
{
    struct device *dev = ring->m->dev;
    int64_t most = relay_most_tokens(&ring->m->shape);
    int64_t bytes = moe_rows_bytes(&ring->m->shape, most);
    for (int i = 0; i < 2; i++) {
        ring->slot[i].x = dev_alloc(dev, bytes, LIVE_RING, "visiting tokens");
        ring->slot[i].weight =
            dev_alloc(dev, slots_bytes(ring, most), LIVE_RING, "visiting router weights");
        ring->sums[i].rows =
            dev_alloc(dev, f32_rows_bytes(ring, most), LIVE_RING, "travelling sums");
        if (!ring->backward)
            continue;
        ring->slot[i].dy = dev_alloc(dev, bytes, LIVE_RING, "visiting output gradients");
        ring->sums[i].router_gradient =
            dev_alloc(dev, slots_bytes(ring, most), LIVE_RING, "travelling router gradients");
    }
}

/* Everything that the pass holds; where sums begin and end. */
static void alloc_all(struct ring *ring)
{
    struct moe *m = ring->m;
    int64_t tokens = m->shape.tokens[m->rank];
    bool rounded = m->shape.dtype == DTYPE_BF16;
    if (ring->backward)
        moe_alloc_backward(m);
    else
        moe_alloc_forward(m);
    if (ring->ranks > 1)
        alloc_travellers(ring);
    else if (rounded)
        ring->sums[0].rows =
            dev_alloc(m->dev, f32_rows_bytes(ring, tokens), LIVE_RING, "sums over slots");
    ring->home = (struct sums){ring->backward ? m->dx : m->y, m->router_gradient};
    if (rounded)
        ring->home.rows = ring->sums[ring->ranks > 1 ? ring->ranks % 2 : 0].rows;
    struct sums *first = ring->ranks > 1 ? &ring->sums[0] : &ring->home;
    dev_fill(ring->main, first->rows, 0, f32_rows_bytes(ring, tokens));
    if (ring->backward)
        dev_fill(ring->main, first->router_gradient, 0, slots_bytes(ring, tokens));
}

static enum dev_status ring_open(struct ring *ring, struct moe *m, bool backward)
{
    const int32_t *idx[MOE_RANKS_MAX];
    int ranks = m->shape.ranks;
    *ring = (struct ring){.m = m,
        .backward = backward,
        .main = dev_main_stream(m->dev),
        .ring = m->options.overlap_off ? dev_main_stream(m->dev) : dev_stream(m->dev, "ring"),
        .ranks = ranks,
        .rank = m->rank,
        .next = (m->rank + 1) % ranks,
        .previous = (m->rank + ranks - 1) % ranks,
        .routing = moe_gather_routing(m, idx)};
    if (!ring->routing)
        return dev_status(m->dev);
    if (relay_plan_tokens(&ring->plan, &m->shape, &m->options, m->rank, idx)) {
        dev_fail(m->dev, DEV_FAILED,
            "no host memory for the hops, or a rank has more than %d slots", INT32_MAX);
        return dev_status(m->dev);
    }
    alloc_all(ring);
    relay_hop_open(&ring->hop, m, &ring->plan, backward);
    dev_wait_stream(ring->ring, ring->main);
    return dev_status(m->dev);
}

/* Rounds the sums into the output and frees what the pass held. */
static enum dev_status ring_close(struct ring *ring)
{
    struct moe *m = ring->m;
    void *output = ring->backward ? m->dx : m->y;
    if (ring->plan.meetings) {
        dev_wait_stream(ring->main, ring->ring);
        if (m->shape.dtype == DTYPE_BF16)
            round_bf16(
                ring->main, output, ring->home.rows, m->shape.tokens[m->rank] * m->shape.hidden);
        relay_hop_close(&ring->hop);
        for (int i = 0; i < 2; i++) {
            dev_free(m->dev, ring->slot[i].x);
            dev_free(m->dev, ring->slot[i].dy);
            dev_free(m->dev, ring->slot[i].weight);
            dev_free(m->dev, ring->sums[i].rows);
            dev_free(m->dev, ring->sums[i].router_gradient);
        }
    }
    relay_plan_free(&ring->plan);
    free(ring->routing);
    return dev_status(m->dev);
}

/* ---- hops ------------------------------------------------------------------------------------ */

/* The messages of one hop. */
struct parts {
    struct comm_part send[5], receive[5];
    int count;
};

static void add_part(const struct ring *ring, struct parts *parts, const void *send,
    int64_t send_bytes, void *receive, int64_t receive_bytes)
{
    parts->send[parts->count] = (struct comm_part){ring->next, (void *)(uintptr_t)send, send_bytes};
    parts->receive[parts->count++] = (struct comm_part){ring->previous, receive, receive_bytes};
}

static int64_t batch_tokens(const struct ring *ring, int hop)
{
    return ring->m->shape.tokens[relay_held(ring->rank, hop, ring->ranks)];
}

/* What this rank holds at a hop: its own batch first, then the slot that was filled last. */
static struct tokens held(const struct ring *ring, int hop)
{
    const struct moe *m = ring->m;
    if (hop > 0)
        return ring->slot[(hop - 1) % 2];
    return (struct tokens){
        (void *)(uintptr_t)m->x, (void *)(uintptr_t)m->dy, (float *)(uintptr_t)m->router_weight};
}

static void add_tokens(const struct ring *ring, struct parts *parts, int hop)
{
    const struct moe_shape *shape = &ring->m->shape;
    struct tokens from = held(ring, hop), to = ring->slot[hop % 2];
    int64_t out = batch_tokens(ring, hop), in = batch_tokens(ring, hop + 1);
    int64_t out_bytes = moe_rows_bytes(shape, out), in_bytes = moe_rows_bytes(shape, in);
    add_part(ring, parts, from.x, out_bytes, to.x, in_bytes);
    if (ring->backward)
        add_part(ring, parts, from.dy, out_bytes, to.dy, in_bytes);
    add_part(ring, parts, from.weight, slots_bytes(ring, out), to.weight, slots_bytes(ring, in));
}

/* Where the sums of what is held at a hop are: the last of all are home. */
static struct sums sums_at(const struct ring *ring, int hop)
{
    return hop == ring->ranks || ring->ranks == 1 ? ring->home : ring->sums[hop % 2];
}

/* The sums of what was held a hop ago go on, those of what is held now arrive. */
static void add_sums(const struct ring *ring, struct parts *parts, int hop)
{
    struct sums from = sums_at(ring, hop - 1), to = sums_at(ring, hop);
    int64_t out = batch_tokens(ring, hop - 1), in = batch_tokens(ring, hop);
    add_part(ring, parts, from.rows, f32_rows_bytes(ring, out), to.rows, f32_rows_bytes(ring, in));
    if (ring->backward)
        add_part(ring, parts, from.router_gradient, slots_bytes(ring, out), to.router_gradient,
            slots_bytes(ring, in));
}

/* Behind everything that the main stream was given so far. */
static struct event start(const struct ring *ring, const struct parts *parts, const char *label)
{
    dev_wait_stream(ring->ring, ring->main);
    comm_exchange(
        ring->m->comm, ring->ring, label, parts->send, parts->count, parts->receive, parts->count);
    return dev_record(ring->ring);
}

static void meet(struct ring *ring, int hop, struct event arrived)
{
    const struct moe *m = ring->m;
    struct tokens here = held(ring, hop);
    struct sums sums = sums_at(ring, hop);
    relay_meet(&ring->hop, hop,
        &(struct relay_batch){
            here.x, here.dy, here.weight, sums.rows, sums.router_gradient, arrived},
        &(struct relay_experts){
            m->gate, m->up, m->down, m->gate_gradient, m->up_gradient, m->down_gradient});
}

static enum dev_status pass(struct moe *m, bool backward)
{
    struct ring ring;
    const char *label = backward ? "tokens and dY on, dX behind" : "tokens on, sums behind";
    if (ring_open(&ring, m, backward) == DEV_OK) {
        for (int hop = 0; hop < ring.ranks; hop++) {
            struct parts parts = {.count = 0};
            struct event arrived = {0};
            if (ring.ranks > 1) {
                add_tokens(&ring, &parts, hop);
                if (hop > 0)
                    add_sums(&ring, &parts, hop);
                arrived = start(&ring, &parts, label);
            }
            meet(&ring, hop, arrived);
        }
        if (ring.ranks > 1) {
            struct parts parts = {.count = 0};
            add_sums(&ring, &parts, ring.ranks);
            start(&ring, &parts, "sums home");
        }
    }
    return ring_close(&ring);
}

static enum dev_status forward(struct moe *m)
{
    return pass(m, false);
}

static enum dev_status backward(struct moe *m)
{
    return pass(m, true);
}

const struct moe_impl moe_relay_token = {
    .name = "relay-token",
    .summary = "tokens travel a ring and meet the experts where they are, their sums behind them",
    .options = " hop-rows overlap grouped ",
    .backward_alone = true,
    .forward = forward,
    .backward = backward,
    .bound_bytes = relay_token_bound_bytes,
    .expected_bytes = relay_token_expected_bytes,
    .order = relay_token_order,
};
