/* pipelined-llep: least-loaded expert parallelism in K chunks of tokens, so that what any router
 * can force on a rank is bounded before it has routed anything. Serves the papers' claim that a
 * token budget bounds the dispatch (Eq. 1) and changes no value.
 *
 * Every rank cuts its tokens into K chunks (strided: token t is in chunk t mod K, which spreads
 * runs of equal routing over all chunks; only routing that cycles in step with K, such as the
 * profile `balanced` with E = K, makes every chunk the work of few ranks, which then take turns).
 * Counts, plan and lent weights once per layer, and one exchange of everybody's table of rows;
 * then, on three streams and with two slots for received rows,
 *
 *   dispatch  | X 0  | X 1    | X 2    | X 3    |
 *   main             | exp 0  | exp 1  | exp 2  | exp 3  |
 *   combine                   | Y 0    | Y 1    | Y 2    | Y 3 |
 *
 *   backward: X rows, then dY rows with their router weights, travel to the experts, which are
 *   recomputed from X as soon as it is there; dX rows take the place of the dY rows and go home
 *
 *   dispatch  | X 0, dY 0 | X 1, dY 1     | ...
 *   main            | recompute 0, back 0 | recompute 1, back 1 | ...
 *   combine                               | dX 0, dw 0          | ...       | gradients home
 *
 * Slot i mod 2 of the X rows is free when main is done with chunk i - 2, that of the output (in
 * backward dY and dX) rows when they have left for home. The way out and the way home have a slot
 * each, since a stream's steps follow one another anyway. All slots are allocated once, at the
 * largest realised chunk; the experts' intermediates once, and used by chunk after chunk. Nothing
 * but Y survives forward: backward counts, plans, fetches the lent weights and dispatches again,
 * and finds every row in its place, since places follow from the counts.
 *
 * Bound: ops/pipelined_memory.c. Order: outputs, dX, dw the default, at every K. A weight gradient
 * is one chain per rank that computes the expert, over its chunks, owner first, then helpers in
 * plan order; at K = 1 that of llep. Cost: dispatch and combine twice, the experts' products twice
 * in forward and backward together, 2 + 3 exchanges per chunk. */
#include "ops/moe_expert.h"
#include "ops/moe_layer.h"
#include "ops/moe_lend.h"
#include "ops/pipelined_memory.h"

/* Received rows of a chunk, in use by turns. */
struct slot {
    void *x;
    void *rows;            /* forward: expert outputs; backward: dY rows, then dX rows */
    float *weight;         /* backward: the rows' router weights */
    float *dw;             /* and their gradients */
    struct event computed; /* main is done with x and weight */
    struct event returned; /* rows and dw are home */
};

struct pipeline {
    struct moe *m;
    struct moe_layer layer;
    struct moe_lent lent;
    struct moe_hidden hidden;
    struct stream *dispatch, *main, *combine;
    struct comm *out, *home; /* exchanges that overlap do not share a communicator */
    int64_t chunks;
    int slots;
    struct slot slot[2];
    /* this rank's rows in send order */
    void *sent, *returned;
    float *sent_weight, *returned_dw;
};

/* ---- memory ---------------------------------------------------------------------------------- */

static void alloc_slots(struct pipeline *p, bool backward)
{
    struct device *dev = p->m->dev;
    const struct moe_shape *shape = &p->m->shape;
    int64_t sent = moe_layout_most_sent(&p->layer.layout, p->m->rank);
    int64_t received = moe_layout_most_received(&p->layer.layout, p->m->rank);
    int64_t sent_bytes = moe_rows_bytes(shape, sent), bytes = moe_rows_bytes(shape, received);
    p->sent = dev_alloc(dev, sent_bytes, LIVE_STAGING, "rows on their way out");
    p->returned = dev_alloc(dev, sent_bytes, LIVE_STAGING, "rows come home");
    for (int i = 0; i < p->slots; i++) {
        struct slot *slot = &p->slot[i];
        slot->x = dev_alloc(dev, bytes, LIVE_DISPATCH, "received rows");
        slot->rows =
            dev_alloc(dev, bytes, LIVE_COMBINE, backward ? "gradient rows" : "expert outputs");
        if (!backward)
            continue;
        slot->weight = dev_alloc(dev, received * 4, LIVE_WORKSPACE, "router weights");
        slot->dw = dev_alloc(dev, received * 4, LIVE_WORKSPACE, "router gradients");
    }
    if (backward) {
        p->sent_weight = dev_alloc(dev, sent * 4, LIVE_WORKSPACE, "router weights sent");
        p->returned_dw = dev_alloc(dev, sent * 4, LIVE_WORKSPACE, "router gradients home");
    }
    moe_hidden_alloc(p->m, received, backward, &p->hidden);
}

/* Behind all three streams. */
static void free_slots(struct pipeline *p)
{
    struct device *dev = p->m->dev;
    dev_wait_stream(p->main, p->dispatch);
    dev_wait_stream(p->main, p->combine);
    void *single[] = {p->sent, p->returned, p->sent_weight, p->returned_dw};
    for (int i = 0; i < 4; i++)
        dev_free(dev, single[i]);
    for (int i = 0; i < p->slots; i++) {
        void *each[] = {p->slot[i].x, p->slot[i].rows, p->slot[i].weight, p->slot[i].dw};
        for (int j = 0; j < 4; j++)
            dev_free(dev, each[j]);
    }
    moe_hidden_free(p->m, &p->hidden);
    moe_lent_free(&p->layer, &p->lent);
}

/* Agrees on the layout, allocates everything, fetches the lent weights ahead of the first chunk. */
static enum dev_status pipeline_open(struct pipeline *p, struct moe *m, bool backward)
{
    struct moe_partition partition = pipelined_partition(&m->shape, &m->options);
    struct llep_options planner = pipelined_planner(&m->options);
    *p = (struct pipeline){.m = m,
        .dispatch = dev_stream(m->dev, "dispatch"),
        .main = dev_main_stream(m->dev),
        .combine = dev_stream(m->dev, "combine"),
        .out = m->comm,
        .home = comm_dup(m->comm, "combine"),
        .chunks = partition.chunks,
        .slots = pipelined_slots(partition.chunks)};
    if (moe_layer_open(&p->layer, m, &partition, &planner) != DEV_OK)
        return dev_status(m->dev);
    if (backward)
        moe_alloc_backward(m);
    else
        moe_alloc_forward(m);
    moe_lent_alloc(&p->layer, &p->lent);
    if (backward)
        moe_lent_alloc_gradients(&p->layer, &p->lent);
    alloc_slots(p, backward);
    dev_wait_stream(p->dispatch, p->main);
    dev_wait_stream(p->combine, p->main);
    moe_lent_fetch(&p->layer, &p->lent, p->out, p->dispatch);
    return dev_status(m->dev);
}

static struct slot *slot_of(struct pipeline *p, int64_t chunk)
{
    return &p->slot[chunk % p->slots];
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* This rank's rows of the chunk, from [N, H], to the experts. */
static void send_rows(
    struct pipeline *p, int64_t chunk, const void *tokens, void *received, const char *label)
{
    moe_layer_gather(&p->layer, p->dispatch, chunk, tokens, p->sent);
    moe_layer_send(&p->layer, chunk, p->sent, received, moe_rows_bytes(&p->m->shape, 1));
    moe_layer_exchange(&p->layer, p->out, p->dispatch, label);
}

static void send_x(struct pipeline *p, int64_t chunk)
{
    struct slot *slot = slot_of(p, chunk);
    dev_wait(p->dispatch, slot->computed);
    send_rows(p, chunk, p->m->x, slot->x, "X to experts");
}

static void send_dy(struct pipeline *p, int64_t chunk)
{
    struct slot *slot = slot_of(p, chunk);
    dev_wait(p->dispatch, slot->returned);
    moe_layer_gather_weights(&p->layer, p->dispatch, chunk, p->sent_weight);
    moe_layer_send(&p->layer, chunk, p->sent_weight, slot->weight, sizeof(float));
    send_rows(p, chunk, p->m->dy, slot->rows, "dY to experts");
}

/* The slot's rows home, and the chunk's tokens summed. */
static void bring_home(struct pipeline *p, int64_t chunk, bool backward)
{
    struct moe *m = p->m;
    struct slot *slot = slot_of(p, chunk);
    dev_wait(p->combine, slot->computed);
    moe_layer_return(&p->layer, chunk, slot->rows, p->returned, moe_rows_bytes(&m->shape, 1));
    if (backward)
        moe_layer_return(&p->layer, chunk, slot->dw, p->returned_dw, sizeof(float));
    moe_layer_exchange(&p->layer, p->home, p->combine, backward ? "dX home" : "outputs home");
    slot->returned = dev_record(p->combine);
    moe_layer_combine(
        &p->layer, p->combine, chunk, p->returned, !backward, backward ? m->dx : m->y);
    if (backward)
        moe_layer_scatter_weights(&p->layer, p->combine, chunk, p->returned_dw, m->router_gradient);
}

/* ---- passes ---------------------------------------------------------------------------------- */

static enum dev_status forward(struct moe *m)
{
    struct pipeline p;
    if (pipeline_open(&p, m, false) != DEV_OK) {
        moe_layer_close(&p.layer);
        return dev_status(m->dev);
    }
    for (int64_t i = 0; i < p.chunks; i++) {
        struct slot *slot = slot_of(&p, i);
        send_x(&p, i);
        dev_wait_stream(p.main, p.dispatch);
        dev_wait(p.main, slot->returned);
        p.hidden.out = slot->rows;
        moe_experts_forward(&p.layer, &p.lent, p.main, i, slot->x, &p.hidden);
        slot->computed = dev_record(p.main);
        bring_home(&p, i, false);
    }
    p.hidden.out = NULL;
    free_slots(&p);
    moe_layer_close(&p.layer);
    return dev_status(m->dev);
}

static enum dev_status backward(struct moe *m)
{
    struct pipeline p;
    if (pipeline_open(&p, m, true) != DEV_OK) {
        moe_layer_close(&p.layer);
        return dev_status(m->dev);
    }
    for (int64_t i = 0; i < p.chunks; i++) {
        struct slot *slot = slot_of(&p, i);
        send_x(&p, i);
        struct event x_arrived = dev_record(p.dispatch);
        send_dy(&p, i);
        dev_wait(p.main, x_arrived);
        moe_experts_forward(&p.layer, &p.lent, p.main, i, slot->x, &p.hidden);
        dev_wait_stream(p.main, p.dispatch);
        moe_experts_backward(
            &p.layer, &p.lent, p.main, i, slot->x, &p.hidden, slot->rows, slot->weight, slot->dw);
        slot->computed = dev_record(p.main);
        bring_home(&p, i, true);
    }
    free_slots(&p);
    moe_lent_return_gradients(&p.layer, &p.lent, p.out);
    moe_layer_close(&p.layer);
    return dev_status(m->dev);
}

const struct moe_impl moe_pipelined_llep = {
    .name = "pipelined-llep",
    .summary = "the same in chunks under a token budget, travel hidden behind the experts",
    .options = " chunk-budget max-chunks chunk-count chunks alpha lambda min-gemm ",
    .backward_alone = true,
    .forward = forward,
    .backward = backward,
    .bound_bytes = pipelined_bound_bytes,
    .expected_bytes = pipelined_expected_bytes,
    .order = pipelined_order,
};
