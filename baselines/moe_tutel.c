/* tutel: expert parallelism with a fixed room for every expert, the Tutel kind. Every rank sends
 * every expert `capacity` rows, padded with zeros, in d parts that overlap the experts; the
 * capacity is the smallest that drops nothing, so it is the busiest (rank, expert) pair's.
 *
 *   forward    rows into their cells --d exchanges--> padded cells --experts--> outputs --d
 *              exchanges--> cells home, summed
 *   backward   dw and de where the tokens are, from the outputs that were kept --> de into cells
 *              --d exchanges--> experts' backward --d exchanges--> dX rows home, summed
 *
 *     dispatch | part 0 | part 1 | part 2 |
 *     main              | exp 0  | exp 1  | exp 2 |
 *     combine                    | home 0 | home 1 | home 2 |
 *
 * One message per pair of ranks and part, all of one size; cells lie by source where they land and
 * are multiplied there. Products run over padding too, as upstream's do; gradients leave it out, so
 * that a sum has no term but its routes'. Router weights do not travel.
 *
 * What is kept from forward to backward, with R = E x capacity x d rows: R (2H + 3F) b: received
 * rows, gate, up, activation, and the outputs that came home.
 *
 * Bound: none: one hot expert on one rank makes every cell as large. Order: outputs, dX, dw the
 * default; a weight gradient is one chain over parts, then source rank, token and slot: the default
 * when d = 1. Cost: everything once, times the padding. */
#include <stdlib.h>
#include "baselines/moe_tutel_index.h"
#include "ops/moe_expert.h"
#include "ops/moe_lend.h"
#include "ops/moe_memory.h"

/* From forward to backward. */
struct tutel {
    struct moe *m;
    struct tutel_sizes z;
    struct tutel_index index;
    void *block, *pinned;
    struct event uploaded;
    struct stream *dispatch, *main, *combine;
    struct comm *home;
    void *x; /* received cells [parts, ranks, owned, capacity, H] */
    struct moe_hidden hidden;
    void *returned; /* cells that came home [parts, experts, capacity, H]: e, later dx */
};

/* ---- opening ----------------------------------------------------------------------------------
 */

static void upload(struct tutel *s, const int64_t *counts)
{
    struct moe *m = s->m;
    int64_t bytes = tutel_block_bytes(&s->z);
    s->block = dev_alloc(m->dev, bytes, LIVE_WORKSPACE, "route indices");
    s->pinned = dev_host_alloc(m->dev, bytes, LIVE_WORKSPACE, "route indices");
    if (dev_status(m->dev) != DEV_OK)
        return;
    if (tutel_fill(&s->z, counts, m->rank, m->idx, s->pinned)) {
        dev_fail(m->dev, DEV_FAILED,
            "no host memory for the route indices, or cells of more than %d rows", INT32_MAX);
        return;
    }
    s->index = tutel_index_in(s->block, &s->z);
    dev_copy_h2d(s->main, s->block, s->pinned, bytes);
    s->uploaded = dev_record(s->main);
}

static enum dev_status tutel_open(struct moe *m)
{
    struct tutel *s = calloc(1, sizeof *s);
    if (!s) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for tutel");
        return dev_status(m->dev);
    }
    m->state = s;
    *s = (struct tutel){.m = m,
        .dispatch = dev_stream(m->dev, "dispatch"),
        .main = dev_main_stream(m->dev),
        .combine = dev_stream(m->dev, "combine"),
        .home = comm_dup(m->comm, "combine")};
    int64_t *counts = moe_gather_counts(m);
    if (counts) {
        s->z = tutel_sizes(&m->shape, &m->options, counts, m->rank);
        upload(s, counts);
    }
    free(counts);
    return dev_status(m->dev);
}

static void settle(struct tutel *s)
{
    dev_sync_event(s->uploaded);
    dev_host_free(s->m->dev, s->pinned);
    s->pinned = NULL;
}

static void release(struct moe *m)
{
    struct tutel *s = m->state;
    if (!s)
        return;
    settle(s);
    dev_free(m->dev, s->block);
    dev_free(m->dev, s->x);
    moe_hidden_free(m, &s->hidden);
    dev_free(m->dev, s->returned);
    free(s);
    m->state = NULL;
}

/* ---- cells ------------------------------------------------------------------------------------
 */

static int64_t rows_bytes(const struct tutel *s, int64_t rows)
{
    return moe_rows_bytes(&s->m->shape, rows);
}

/* cells[i] = the row that `index` [rows] names, zeros for padding. */
static void encode(
    const struct tutel *s, const void *from, int64_t from_rows, const int32_t *index, void *cells)
{
    const struct moe_shape *shape = &s->m->shape;
    combine_rows(s->main, &(struct combine_rows_args){.from = from,
                              .from_rows = from_rows,
                              .from_type = shape->dtype,
                              .position = index,
                              .count = s->z.rows,
                              .columns = shape->hidden,
                              .to_rows = s->z.rows,
                              .slots = 1,
                              .take_first = true,
                              .to_type = shape->dtype,
                              .to = cells});
}

/* Sums each token's cells that came home. */
static void decode(const struct tutel *s, bool weighted, void *to)
{
    const struct moe_shape *shape = &s->m->shape;
    combine_rows(s->main, &(struct combine_rows_args){.from = s->returned,
                              .from_rows = s->z.rows,
                              .from_type = shape->dtype,
                              .position = s->index.position,
                              .weight = weighted ? s->m->router_weight : NULL,
                              .count = s->z.tokens,
                              .columns = shape->hidden,
                              .to_rows = s->z.tokens,
                              .slots = shape->topk,
                              .to_type = shape->dtype,
                              .to = to});
}

static char *part_at(const struct tutel *s, void *rows, int64_t part, int64_t columns)
{
    int64_t row_bytes = columns * dtype_bytes(s->m->shape.dtype);
    return rows ? (char *)rows + part * s->z.part_rows * row_bytes : NULL;
}

/* A part's cells to all ranks: as many rows to each as from each. */
static void exchange(const struct tutel *s, struct comm *comm, struct stream *stream,
    const char *label, void *out, void *in)
{
    struct comm_part send[MOE_RANKS_MAX], receive[MOE_RANKS_MAX];
    int64_t bytes = rows_bytes(s, s->z.owned * s->z.capacity);
    for (int peer = 0; peer < s->z.ranks; peer++) {
        send[peer] = (struct comm_part){peer, (char *)out + peer * bytes, bytes};
        receive[peer] = (struct comm_part){peer, (char *)in + peer * bytes, bytes};
    }
    if (dev_status(s->m->dev) == DEV_OK)
        comm_exchange(comm, stream, label, send, s->z.ranks, receive, s->z.ranks);
}

static struct moe_hidden hidden_of_part(const struct tutel *s, int64_t part, void *out)
{
    const struct moe_hidden *h = &s->hidden;
    int64_t ffn = s->m->shape.ffn;
    return (struct moe_hidden){part_at(s, h->gate, part, ffn), part_at(s, h->up, part, ffn),
        part_at(s, h->act, part, ffn), out};
}

/* A part's products: every cell a group. */
static struct moe_work products_of(const struct tutel *s)
{
    const struct moe *m = s->m;
    return (struct moe_work){.shape = &m->shape,
        .stream = s->main,
        .groups = s->index.products,
        .group_count = s->z.experts,
        .rows = s->z.part_rows,
        .owned = s->z.owned,
        .gate = m->gate,
        .up = m->up,
        .down = m->down,
        .gate_gradient = m->gate_gradient,
        .up_gradient = m->up_gradient,
        .down_gradient = m->down_gradient};
}

/* ---- forward ----------------------------------------------------------------------------------
 */

static void alloc_kept(struct tutel *s)
{
    struct moe *m = s->m;
    int64_t bytes = s->z.rows * m->shape.ffn * dtype_bytes(m->shape.dtype);
    s->x = dev_alloc(m->dev, rows_bytes(s, s->z.rows), LIVE_DISPATCH, "received cells");
    if (m->gate)
        s->hidden.gate = dev_alloc(m->dev, bytes, LIVE_EXPERT, "gate");
    s->hidden.up = dev_alloc(m->dev, bytes, LIVE_EXPERT, "up");
    s->hidden.act = dev_alloc(m->dev, bytes, LIVE_EXPERT, "activation");
    s->returned = dev_alloc(m->dev, rows_bytes(s, s->z.rows), LIVE_COMBINE, "cells home");
}

static enum dev_status forward(struct moe *m)
{
    if (tutel_open(m) != DEV_OK)
        return dev_status(m->dev);
    struct tutel *s = m->state;
    int64_t hidden = m->shape.hidden;
    moe_alloc_forward(m);
    alloc_kept(s);
    void *cells = dev_alloc(m->dev, rows_bytes(s, s->z.rows), LIVE_STAGING, "cells to send");
    void *outputs = dev_alloc(m->dev, rows_bytes(s, s->z.rows), LIVE_COMBINE, "expert outputs");
    encode(s, m->x, s->z.tokens, s->index.token_at, cells);
    dev_wait_stream(s->dispatch, s->main);
    dev_wait_stream(s->combine, s->main);
    for (int64_t part = 0; part < s->z.parts; part++) {
        struct moe_work work = products_of(s);
        char *out = part_at(s, outputs, part, hidden);
        struct moe_hidden h = hidden_of_part(s, part, out);
        exchange(s, m->comm, s->dispatch, "cells to experts", part_at(s, cells, part, hidden),
            part_at(s, s->x, part, hidden));
        dev_wait_stream(s->main, s->dispatch);
        moe_work_activate(&work, part_at(s, s->x, part, hidden), &h);
        moe_work_output(&work, &h);
        dev_wait_stream(s->combine, s->main);
        exchange(
            s, s->home, s->combine, "outputs home", out, part_at(s, s->returned, part, hidden));
    }
    dev_wait_stream(s->main, s->combine);
    dev_free(m->dev, cells);
    dev_free(m->dev, outputs);
    decode(s, true, m->y);
    settle(s);
    return dev_status(m->dev);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* dw, and de in cells, from the outputs that came home; both where the tokens are. */
static void route_gradients(struct tutel *s, void *cells)
{
    struct moe *m = s->m;
    void *rows = dev_alloc(m->dev, rows_bytes(s, s->z.routes), LIVE_STAGING, "rows by route");
    gather_rows(s->main, &(struct gather_rows_args){.to = rows,
                             .from = s->returned,
                             .index = s->index.row,
                             .count = s->z.routes,
                             .from_rows = s->z.rows,
                             .row_bytes = rows_bytes(s, 1)});
    struct route_backward_args args = {.count = s->z.routes,
        .columns = m->shape.hidden,
        .type = m->shape.dtype,
        .dy = m->dy,
        .dy_rows = s->z.tokens,
        .dy_row = s->index.token,
        .route = s->index.slot,
        .routes = s->z.tokens * m->shape.topk,
        .e = rows,
        .dw = m->router_gradient};
    route_backward(s->main, &args);
    args.e = NULL; /* read, and its place taken by de */
    args.dw = NULL;
    args.weight = m->router_weight;
    args.de = rows;
    route_backward(s->main, &args);
    encode(s, rows, s->z.routes, s->index.route_at, cells);
    dev_free(m->dev, rows);
}

/* One source's rows of a part, padding left out of the sums. */
static struct moe_work routes_of(const struct tutel *s, int64_t part, int source)
{
    struct moe_work work = products_of(s);
    work.groups = s->index.gradients + part * s->z.experts + source * s->z.owned;
    work.group_count = s->z.owned;
    work.rows = s->z.owned * s->z.capacity;
    return work;
}

static void *source_at(const struct tutel *s, void *rows, int source, int64_t columns)
{
    int64_t first = source * s->z.owned * s->z.capacity;
    return rows ? (char *)rows + first * columns * dtype_bytes(s->m->shape.dtype) : NULL;
}

static struct moe_hidden hidden_of_source(
    const struct tutel *s, const struct moe_hidden *h, int source)
{
    int64_t ffn = s->m->shape.ffn;
    return (struct moe_hidden){source_at(s, h->gate, source, ffn), source_at(s, h->up, source, ffn),
        source_at(s, h->act, source, ffn), NULL};
}

static void backward_part(struct tutel *s, int64_t part, void *de)
{
    int64_t hidden = s->m->shape.hidden;
    struct moe_hidden h = hidden_of_part(s, part, NULL);
    struct moe_work work = products_of(s);
    char *x = part_at(s, s->x, part, hidden);
    for (int source = 0; source < s->z.ranks; source++) {
        struct moe_work routes = routes_of(s, part, source);
        struct moe_hidden from = hidden_of_source(s, &h, source);
        moe_work_down_gradient(&routes, &from, source_at(s, de, source, hidden));
    }
    moe_work_input_gradient(&work, &h, de);
    for (int source = 0; source < s->z.ranks; source++) {
        struct moe_work routes = routes_of(s, part, source);
        struct moe_hidden from = hidden_of_source(s, &h, source);
        moe_work_up_gradients(&routes, source_at(s, x, source, hidden), &from);
    }
}

static enum dev_status backward(struct moe *m)
{
    struct tutel *s = m->state;
    int64_t hidden = m->shape.hidden, bytes = rows_bytes(s, s->z.rows);
    moe_alloc_backward(m);
    void *cells = dev_alloc(m->dev, bytes, LIVE_STAGING, "gradient cells to send");
    route_gradients(s, cells);
    void *de = dev_alloc(m->dev, bytes, LIVE_COMBINE, "gradient cells");
    dev_wait_stream(s->dispatch, s->main);
    for (int64_t part = 0; part < s->z.parts; part++) {
        char *received = part_at(s, de, part, hidden);
        exchange(s, m->comm, s->dispatch, "gradients to experts", part_at(s, cells, part, hidden),
            received);
        dev_wait_stream(s->main, s->dispatch);
        backward_part(s, part, received);
        dev_wait_stream(s->combine, s->main);
        exchange(s, s->home, s->combine, "gradients home", received,
            part_at(s, s->returned, part, hidden));
    }
    dev_wait_stream(s->main, s->combine);
    dev_free(m->dev, cells);
    dev_free(m->dev, de);
    decode(s, false, m->dx);
    release(m);
    return dev_status(m->dev);
}

/* ---- memory and order -------------------------------------------------------------------------
 */

/* All ranks' counts; NULL when memory is short. */
static int64_t *counts_of(const struct moe_shape *shape, const int32_t *const *idx)
{
    int64_t *counts = malloc((size_t)(shape->ranks * shape->experts) * sizeof *counts);
    for (int r = 0; counts && r < shape->ranks; r++)
        moe_count_routes(shape, r, idx[r], counts + r * shape->experts);
    return counts;
}

static struct moe_peaks expected(
    const struct moe_shape *shape, const struct tutel_sizes *z, bool with_backward)
{
    int64_t cells = moe_rows_bytes(shape, z->rows), tokens = moe_rows_bytes(shape, z->tokens);
    struct moe_phase phases[3] = {{{0}}};
    int64_t *set = phases[0].set_bytes;
    set[LIVE_OUTPUT] = tokens;
    set[LIVE_WORKSPACE] = tutel_block_bytes(z);
    set[LIVE_DISPATCH] = cells;
    set[LIVE_EXPERT] = moe_hidden_bytes(shape, z->rows, true) - cells;
    set[LIVE_STAGING] = cells;
    set[LIVE_COMBINE] = 2 * cells;
    phases[1] = phases[2] = phases[0];
    for (int i = 1; i < 3; i++) {
        set = phases[i].set_bytes;
        set[LIVE_OUTPUT] += tokens + z->tokens * z->topk * 4;
        set[LIVE_GRADIENTS] = z->owned * moe_expert_values(shape) * (int64_t)sizeof(float);
    }
    phases[1].set_bytes[LIVE_STAGING] += moe_rows_bytes(shape, z->routes); /* dw and de */
    phases[1].set_bytes[LIVE_COMBINE] = cells;
    return moe_phases_peaks(phases, with_backward ? 3 : 1);
}

static int expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    int64_t *counts = counts_of(shape, idx);
    if (!counts)
        return -1;
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct tutel_sizes z = tutel_sizes(shape, options, counts, rank);
        out[rank] = expected(shape, &z, with_backward);
    }
    free(counts);
    return 0;
}

/* Part by part, in a part source by source. */
static void order_expert(const struct tutel_sizes *z, const int64_t *counts, int64_t expert,
    const int64_t *routes, int64_t *out)
{
    int64_t at = 0;
    for (int64_t part = 0; part < z->parts; part++) {
        int64_t first = 0;
        for (int source = 0; source < z->ranks; source++) {
            int64_t count = counts[source * z->experts + expert];
            int64_t from = part * z->capacity, to = from + z->capacity;
            for (int64_t i = from; i < to && i < count; i++)
                out[at++] = routes[first + i];
            first += count;
        }
    }
}

static int order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    int64_t *counts = counts_of(shape, idx), total = out->expert_first[out->experts];
    int64_t *routes = malloc((size_t)(total + 1) * sizeof *routes);
    bool room = counts && routes;
    if (room) {
        struct tutel_sizes z = tutel_sizes(shape, options, counts, 0);
        for (int64_t i = 0; i < total; i++)
            routes[i] = out->gradient_route[i];
        for (int64_t e = 0; e < out->experts; e++)
            order_expert(&z, counts, e, routes + out->expert_first[e],
                out->gradient_route + out->expert_first[e]);
    }
    free(counts);
    free(routes);
    return room ? 0 : -1;
}

const struct moe_impl moe_tutel = {
    .name = "tutel",
    .summary = "the same room for every expert on every rank, padded, in parts that overlap",
    .options = " parts ",
    .forward = forward,
    .backward = backward,
    .release = release,
    .expected_bytes = expected_bytes,
    .order = order,
};
