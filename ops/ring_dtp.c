/* ring-dtp: the vocabulary projection on a ring. One of {weight shards, token batches} stays put,
 * the other travels; after P meetings every batch has met every shard, and no rank has held more
 * logits than one tile. Serves the papers' claim that the loss needs O(N V / P) live logits (Eq. 2)
 * and no value changes; here a strip is cut further, into tiles.
 *
 *   forward, rank r, P = 4, weights move (shard r - j at meeting j; activations: batch r - j)
 *
 *     main   | meet 0: tiles | meet 1: tiles | meet 2: tiles | meet 3: tiles | fold P states ->
 * loss ring   | hop to slot 0 | hop to slot 1 | hop to slot 0 |
 *
 *   backward: the gradient of what moves follows one hop behind, in the same message
 *
 *     main   | meet 0 -> c0 | meet 1 -> c1 | c1 += in | meet 2 -> c2 | c2 += in | ...
 *     ring   | payload      | payload, c0 > in        | payload, c1 > in        | ... | last sum
 * home
 *
 *     one tile: logits = X W^T -> residual in place over them
 *               -> what stays:  G_stay[tile] += chain      (complete: the tile spans what moves)
 *               -> what moves:  c = chain continued from the previous tile
 *
 * A tile is cut along the side that stays: --tile vocabulary rows when activations move, --tile
 * tokens when weights move. So the resident gradient needs no second buffer: each of its elements
 * gets a meeting's whole chain within one tile. Three buffers rotate for the gradient that moves
 * (being filled, arriving, leaving); one of them is the output itself, chosen so that the last hop
 * lands in it.
 *
 * Bound over resident: tile + dX + dW + two ring buffers (payload, and in backward its FP32
 * gradient)
 * + the per-token states (docs/MEMORY.md). Order: a batch meets shards r, r-1, ... (weights move)
 * or r, r+1, ... (activations move), a shard meets batches the other way round; each meeting is its
 * own chain from +0, added in meeting order. The loss is the default one: states are folded in
 * shard order at the end, whichever way the ring ran. Cost: four products of N V H for forward and
 * backward (logits are formed twice), P - 1 payload hops each way and P gradient hops. */
#include "ops/ring_dtp.h"
#include "kernels/gemm.h"
#include "kernels/rank_sum.h"
#include "kernels/strip.h"
#include "ops/ring_dtp_memory.h"

/* What travels: a shard's weight, or a batch with what its tokens need. */
struct payload {
    void *rows;         /* [rows, H]: W of a shard, or X of a batch */
    int64_t *targets;   /* a batch's; unused for a shard */
    float *max, *log_z; /* a batch's, in backward */
};

/* States of one meeting on their way to the batch's home (activations move). */
struct outbox {
    float *max, *sum, *target; /* [max N] */
};

struct ring {
    struct vocab *v;
    struct stream *main, *hop;
    bool weights_move;
    int ranks, rank, next, previous;
    int64_t tile, hidden;
    int64_t most;  /* rows of the largest payload */
    float *logits; /* the tile */
    struct payload slot[2];
};

/* ---- the ring -------------------------------------------------------------------------------- */

/* Which shard or batch this rank holds at a meeting. */
static int met(const struct ring *ring, int meeting)
{
    return (ring->rank - meeting + ring->ranks) % ring->ranks;
}

static void ring_open(struct ring *ring, struct vocab *v)
{
    *ring = (struct ring){.v = v,
        .main = dev_main_stream(v->dev),
        .hop = dev_stream(v->dev, "ring"),
        .weights_move = ring_dtp_weights_move(&v->shape, &v->options),
        .ranks = v->shape.ranks,
        .rank = v->rank,
        .next = (v->rank + 1) % v->shape.ranks,
        .previous = (v->rank + v->shape.ranks - 1) % v->shape.ranks,
        .hidden = v->shape.hidden};
    ring->tile = ring_dtp_tile_rows(&v->shape, &v->options, ring->weights_move, v->rank);
    ring->most = ring_dtp_most_moving_rows(&v->shape, ring->weights_move);
    ring->logits = dev_alloc(v->dev, ring->tile * ring->most * 4, LIVE_LOGITS, "tile of logits");
}

static void slots_alloc(struct ring *ring, bool backward)
{
    struct device *dev = ring->v->dev;
    for (int i = 0; i < ring_dtp_slots(ring->ranks); i++) {
        struct payload *slot = &ring->slot[i];
        slot->rows = dev_alloc(dev, ring->most * ring->hidden * dtype_bytes(ring->v->shape.dtype),
            LIVE_RING, "ring payload");
        if (ring->weights_move)
            continue;
        slot->targets = dev_alloc(dev, ring->most * 8, LIVE_RING, "ring targets");
        if (!backward)
            continue;
        slot->max = dev_alloc(dev, ring->most * 4, LIVE_RING, "ring maxima");
        slot->log_z = dev_alloc(dev, ring->most * 4, LIVE_RING, "ring log normalisers");
    }
}

static void ring_close(struct ring *ring)
{
    struct device *dev = ring->v->dev;
    dev_wait_stream(ring->main, ring->hop);
    dev_free(dev, ring->logits);
    for (int i = 0; i < 2; i++) {
        dev_free(dev, ring->slot[i].rows);
        dev_free(dev, ring->slot[i].targets);
        dev_free(dev, ring->slot[i].max);
        dev_free(dev, ring->slot[i].log_z);
    }
}

/* What this rank holds at a meeting: its own part first, then the slot that was filled last. */
static struct payload held(const struct ring *ring, int meeting)
{
    const struct vocab *v = ring->v;
    if (meeting > 0)
        return ring->slot[(meeting - 1) % 2];
    return (struct payload){
        .rows = (void *)(uintptr_t)(ring->weights_move ? v->w : v->x),
        .targets = (int64_t *)(uintptr_t)v->targets,
        .max = v->max,
        .log_z = v->log_z,
    };
}

/* The messages of one hop, grouped into one exchange. */
struct hop {
    struct comm_part send[8], receive[8];
    int sends, receives;
};

static void hop_send(struct hop *hop, int peer, void *data, int64_t bytes)
{
    hop->send[hop->sends++] = (struct comm_part){peer, data, bytes};
}

static void hop_receive(struct hop *hop, int peer, void *data, int64_t bytes)
{
    hop->receive[hop->receives++] = (struct comm_part){peer, data, bytes};
}

/* The payload of `meeting` goes on to the next rank while the next one arrives. */
static void hop_payload(const struct ring *ring, struct hop *hop, int meeting)
{
    const struct vocab_shape *shape = &ring->v->shape;
    struct payload from = held(ring, meeting), to = ring->slot[meeting % 2];
    int64_t out = ring_dtp_moving_rows(shape, ring->weights_move, met(ring, meeting));
    int64_t in = ring_dtp_moving_rows(shape, ring->weights_move, met(ring, meeting + 1));
    int64_t row_bytes = ring->hidden * dtype_bytes(shape->dtype);
    hop_send(hop, ring->next, from.rows, out * row_bytes);
    hop_receive(hop, ring->previous, to.rows, in * row_bytes);
    if (ring->weights_move)
        return;
    hop_send(hop, ring->next, from.targets, out * 8);
    hop_receive(hop, ring->previous, to.targets, in * 8);
    if (!to.max)
        return;
    hop_send(hop, ring->next, from.max, out * 4);
    hop_receive(hop, ring->previous, to.max, in * 4);
    hop_send(hop, ring->next, from.log_z, out * 4);
    hop_receive(hop, ring->previous, to.log_z, in * 4);
}

/* Enqueues the hop behind everything that `main` was given so far. */
static void hop_start(const struct ring *ring, const struct hop *hop, const char *label)
{
    dev_wait_stream(ring->hop, ring->main);
    comm_exchange(
        ring->v->comm, ring->hop, label, hop->send, hop->sends, hop->receive, hop->receives);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* A batch against a shard, and the tile of their strip that is being worked on. */
struct tile {
    const char *x, *w; /* first row of the tile's tokens, of its columns */
    int64_t tokens, columns;
    int64_t token, column; /* first of each, within batch and shard */
    int64_t first_column;  /* global */
    const int64_t *targets;
    const float *max, *log_z;
};

/* The tile that begins at row `at` of the side that stays. */
static struct tile tile_at(const struct ring *ring, int meeting, int64_t at)
{
    const struct vocab *v = ring->v;
    const struct vocab_shape *shape = &v->shape;
    struct payload moving = held(ring, meeting);
    int64_t row_bytes = ring->hidden * dtype_bytes(shape->dtype);
    int64_t stay = ring_dtp_staying_rows(shape, ring->weights_move, ring->rank);
    int64_t part = stay - at < ring->tile ? stay - at : ring->tile;
    int64_t whole = ring_dtp_moving_rows(shape, ring->weights_move, met(ring, meeting));
    int shard = ring->weights_move ? met(ring, meeting) : ring->rank;
    struct tile t;
    if (ring->weights_move)
        t = (struct tile){.x = (const char *)v->x + at * row_bytes,
            .w = moving.rows,
            .tokens = part,
            .columns = whole,
            .token = at,
            .targets = v->targets + at,
            .max = v->max + at,
            .log_z = v->log_z + at};
    else
        t = (struct tile){.x = moving.rows,
            .w = (const char *)v->w + at * row_bytes,
            .tokens = whole,
            .columns = part,
            .column = at,
            .targets = moving.targets,
            .max = moving.max,
            .log_z = moving.log_z};
    t.first_column = vocab_shard_first(shape->vocab, shape->ranks, shard) + t.column;
    return t;
}

static void tile_logits(const struct ring *ring, const struct tile *t)
{
    enum dtype type = ring->v->shape.dtype;
    gemm(ring->main, &(struct gemm_args){.layout = GEMM_NT,
                         .init = GEMM_FRESH,
                         .a_type = type,
                         .b_type = type,
                         .m = t->tokens,
                         .n = t->columns,
                         .k = ring->hidden,
                         .a = t->x,
                         .lda = ring->hidden,
                         .b = t->w,
                         .ldb = ring->hidden,
                         .c = ring->logits,
                         .ldc = t->columns});
}

/* Folds the meeting's strip, tile by tile, into states [tokens of the batch]. */
static void meet_forward(
    const struct ring *ring, int meeting, float *max, float *sum, float *target_logit)
{
    int64_t stay = ring_dtp_staying_rows(&ring->v->shape, ring->weights_move, ring->rank), at = 0;
    do { /* once even with nothing to fold: the states are then empty, not unwritten */
        struct tile t = tile_at(ring, meeting, at);
        tile_logits(ring, &t);
        strip_fold(ring->main, &(struct strip_fold_args){.logits = ring->logits,
                                   .rows = t.tokens,
                                   .columns = t.columns,
                                   .ld = t.columns,
                                   .first_column = t.first_column,
                                   .targets = t.targets,
                                   .max = max + t.token,
                                   .sum = sum + t.token,
                                   .target_logit = target_logit + t.token,
                                   .fresh = t.column == 0});
        at += ring->tile;
    } while (at < stay);
}

/* Forms each tile's residual and contracts it: `staying` gathers the gradient of the side that
 * stays over the meetings, `moving` takes this meeting's part of the other one. */
static void meet_backward(const struct ring *ring, int meeting, float *staying, float *moving)
{
    const struct vocab *v = ring->v;
    enum dtype type = v->shape.dtype;
    int64_t stay = ring_dtp_staying_rows(&v->shape, ring->weights_move, ring->rank), at = 0;
    do {
        struct tile t = tile_at(ring, meeting, at);
        tile_logits(ring, &t);
        strip_residual(ring->main, &(struct strip_residual_args){.logits = ring->logits,
                                       .rows = t.tokens,
                                       .columns = t.columns,
                                       .ld = t.columns,
                                       .first_column = t.first_column,
                                       .targets = t.targets,
                                       .max = t.max,
                                       .log_z = t.log_z,
                                       .scale = vocab_scale(v->valid),
                                       .round_bf16 = type == DTYPE_BF16,
                                       .out = ring->logits,
                                       .ld_out = t.columns});
        enum gemm_init meetings = meeting ? GEMM_ADD : GEMM_FRESH;
        enum gemm_init tiles = at ? GEMM_CHAIN : GEMM_FRESH;
        float *dx = ring->weights_move ? staying + t.token * ring->hidden : moving;
        float *dw = ring->weights_move ? moving : staying + t.column * ring->hidden;
        gemm(ring->main, &(struct gemm_args){.layout = GEMM_NN,
                             .init = ring->weights_move ? meetings : tiles,
                             .a_type = DTYPE_F32,
                             .a_rounded = type == DTYPE_BF16,
                             .b_type = type,
                             .m = t.tokens,
                             .n = ring->hidden,
                             .k = t.columns,
                             .a = ring->logits,
                             .lda = t.columns,
                             .b = t.w,
                             .ldb = ring->hidden,
                             .c = dx,
                             .ldc = ring->hidden});
        gemm(ring->main, &(struct gemm_args){.layout = GEMM_TN,
                             .init = ring->weights_move ? tiles : meetings,
                             .a_type = DTYPE_F32,
                             .a_rounded = type == DTYPE_BF16,
                             .b_type = type,
                             .m = t.columns,
                             .n = ring->hidden,
                             .k = t.tokens,
                             .a = ring->logits,
                             .lda = t.columns,
                             .b = t.x,
                             .ldb = ring->hidden,
                             .c = dw,
                             .ldc = ring->hidden});
        at += ring->tile;
    } while (at < stay);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* All shards' states of this rank's tokens, [P, N], folded when the ring has closed. */
struct home {
    float *max, *sum, *target_logit;
    float *candidate;        /* [N]: a visited shard's target logits */
    struct outbox outbox[2]; /* activations move: states on their way home */
};

static void home_alloc(const struct ring *ring, struct home *home)
{
    struct device *dev = ring->v->dev;
    int64_t bytes = ring->v->shape.tokens[ring->rank] * 4;
    *home = (struct home){0};
    home->max = dev_alloc(dev, ring->ranks * bytes, LIVE_RING, "shard maxima");
    home->sum = dev_alloc(dev, ring->ranks * bytes, LIVE_RING, "shard sums");
    home->target_logit = dev_alloc(dev, bytes, LIVE_RING, "target logits");
    if (ring->weights_move || ring->ranks == 1)
        return;
    home->candidate = dev_alloc(dev, bytes, LIVE_RING, "arriving target logits");
    for (int i = 0; i < ring_dtp_slots(ring->ranks); i++) {
        home->outbox[i].max = dev_alloc(dev, ring->most * 4, LIVE_RING, "leaving maxima");
        home->outbox[i].sum = dev_alloc(dev, ring->most * 4, LIVE_RING, "leaving sums");
        home->outbox[i].target = dev_alloc(dev, ring->most * 4, LIVE_RING, "leaving logits");
    }
}

static void home_free(const struct ring *ring, struct home *home)
{
    struct device *dev = ring->v->dev;
    float *own[] = {home->max, home->sum, home->target_logit, home->candidate};
    for (int i = 0; i < 4; i++)
        dev_free(dev, own[i]);
    for (int i = 0; i < 2; i++) {
        dev_free(dev, home->outbox[i].max);
        dev_free(dev, home->outbox[i].sum);
        dev_free(dev, home->outbox[i].target);
    }
}

/* Meeting j's states leave for the batch's home, and those of this rank's batch arrive from where
 * it was met: rank + j. */
static void hop_states(const struct ring *ring, struct hop *hop, struct home *home, int meeting)
{
    const struct vocab_shape *shape = &ring->v->shape;
    struct outbox *out = &home->outbox[(meeting - 1) % 2];
    int to = met(ring, meeting), from = (ring->rank + meeting) % ring->ranks;
    int64_t bytes = shape->tokens[to] * 4, tokens = shape->tokens[ring->rank];
    hop_send(hop, to, out->max, bytes);
    hop_send(hop, to, out->sum, bytes);
    hop_send(hop, to, out->target, bytes);
    hop_receive(hop, from, home->max + from * tokens, tokens * 4);
    hop_receive(hop, from, home->sum + from * tokens, tokens * 4);
    hop_receive(hop, from, home->candidate, tokens * 4);
}

/* Behind the hop that brought the candidates of meeting j. */
static void take_candidates(const struct ring *ring, const struct home *home, int meeting)
{
    const struct vocab *v = ring->v;
    int shard = (ring->rank + meeting) % ring->ranks;
    strip_take_target(
        ring->hop, &(struct strip_take_target_args){.candidate = home->candidate,
                       .targets = v->targets,
                       .rows = v->shape.tokens[ring->rank],
                       .first_column = vocab_shard_first(v->shape.vocab, ring->ranks, shard),
                       .columns = vocab_shard_rows(v->shape.vocab, ring->ranks, shard),
                       .target_logit = home->target_logit});
}

/* Meeting j's states go straight home, or into the outbox. */
static void meet_into(const struct ring *ring, struct home *home, int meeting)
{
    int64_t tokens = ring->v->shape.tokens[ring->rank];
    if (ring->weights_move || meeting == 0) {
        int64_t at = (ring->weights_move ? met(ring, meeting) : ring->rank) * tokens;
        meet_forward(ring, meeting, home->max + at, home->sum + at, home->target_logit);
    } else {
        struct outbox *out = &home->outbox[(meeting - 1) % 2];
        meet_forward(ring, meeting, out->max, out->sum, out->target);
    }
}

static enum dev_status forward(struct vocab *v)
{
    struct ring ring;
    struct home home;
    vocab_alloc_token_outputs(v);
    ring_open(&ring, v);
    slots_alloc(&ring, false);
    home_alloc(&ring, &home);

    for (int j = 0; j < ring.ranks; j++) {
        bool payload = j + 1 < ring.ranks, states = !ring.weights_move && j > 1;
        struct hop hop = {.sends = 0};
        if (payload)
            hop_payload(&ring, &hop, j);
        if (states)
            hop_states(&ring, &hop, &home, j - 1);
        if (payload || states)
            hop_start(&ring, &hop, "ring-dtp forward");
        if (states)
            take_candidates(&ring, &home, j - 1);
        struct event arrived = dev_record(ring.hop);
        meet_into(&ring, &home, j);
        dev_wait(ring.main, arrived);
    }
    if (!ring.weights_move && ring.ranks > 1) {
        struct hop hop = {.sends = 0};
        hop_states(&ring, &hop, &home, ring.ranks - 1);
        hop_start(&ring, &hop, "ring-dtp states");
        take_candidates(&ring, &home, ring.ranks - 1);
        dev_wait_stream(ring.main, ring.hop);
    }
    strip_finish(ring.main, &(struct strip_finish_args){.shard_max = home.max,
                                .shard_sum = home.sum,
                                .shards = ring.ranks,
                                .stride = v->shape.tokens[v->rank],
                                .rows = v->shape.tokens[v->rank],
                                .targets = v->targets,
                                .target_logit = home.target_logit,
                                .max = v->max,
                                .log_z = v->log_z,
                                .loss = v->loss});
    ring_close(&ring);
    home_free(&ring, &home);
    return dev_status(v->dev);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The three buffers of the gradient that moves. At meeting j one is filled, (j + 1) mod 3 takes the
 * sum that arrives, (j + 2) mod 3 holds the sum that leaves. After the last meeting P - 1 the sum
 * that comes home lands in (P + 1) mod 3: that one is the output. */
static int home_buffer(int ranks)
{
    return ranks == 1 ? 0 : (ranks + 1) % 3;
}

static void gradients_alloc(struct ring *ring, float *moving[3], float **staying)
{
    struct vocab *v = ring->v;
    int64_t row_bytes = ring->hidden * 4;
    int64_t stay = ring_dtp_staying_rows(&v->shape, ring->weights_move, ring->rank);
    enum live_set stays = ring->weights_move ? LIVE_OUTPUT : LIVE_GRADIENTS;
    enum live_set moves = ring->weights_move ? LIVE_GRADIENTS : LIVE_OUTPUT;
    *staying = dev_alloc(v->dev, stay * row_bytes, stays, "gradient that stays");
    for (int i = 0; i < 3; i++) {
        moving[i] = NULL;
        if (i == home_buffer(ring->ranks))
            moving[i] = dev_alloc(v->dev, ring->most * row_bytes, moves, "gradient that moves");
        else if (ring->ranks > 1)
            moving[i] = dev_alloc(v->dev, ring->most * row_bytes, LIVE_RING, "ring gradient");
    }
}

/* The sum of the previous meeting's payload goes on, the sum for this meeting's payload arrives. */
static void hop_gradient(const struct ring *ring, struct hop *hop, float *moving[3], int meeting)
{
    const struct vocab_shape *shape = &ring->v->shape;
    int64_t row_bytes = ring->hidden * 4;
    int64_t out = ring_dtp_moving_rows(shape, ring->weights_move, met(ring, meeting - 1));
    int64_t in = ring_dtp_moving_rows(shape, ring->weights_move, met(ring, meeting));
    hop_send(hop, ring->next, moving[(meeting + 2) % 3], out * row_bytes);
    hop_receive(hop, ring->previous, moving[(meeting + 1) % 3], in * row_bytes);
}

static enum dev_status backward(struct vocab *v)
{
    struct ring ring;
    float *moving[3], *staying;
    ring_open(&ring, v);
    slots_alloc(&ring, true);
    gradients_alloc(&ring, moving, &staying);

    for (int j = 0; j < ring.ranks; j++) {
        struct hop hop = {.sends = 0};
        if (j + 1 < ring.ranks)
            hop_payload(&ring, &hop, j);
        if (j > 0)
            hop_gradient(&ring, &hop, moving, j);
        if (ring.ranks > 1)
            hop_start(&ring, &hop, "ring-dtp backward");
        struct event arrived = dev_record(ring.hop);
        meet_backward(&ring, j, staying, moving[j % 3]);
        dev_wait(ring.main, arrived);
        if (j > 0) /* earlier meetings' sum + this meeting's part */
            add_f32(ring.main, moving[j % 3], moving[(j + 1) % 3],
                ring_dtp_moving_rows(&v->shape, ring.weights_move, met(&ring, j)) * ring.hidden);
    }
    if (ring.ranks > 1) {
        struct hop hop = {.sends = 0};
        hop_gradient(&ring, &hop, moving, ring.ranks);
        hop_start(&ring, &hop, "ring-dtp gradients home");
    }
    ring_close(&ring);
    for (int i = 0; i < 3; i++)
        if (i != home_buffer(ring.ranks))
            dev_free(v->dev, moving[i]);
    float *home = moving[home_buffer(ring.ranks)];
    v->dw = ring.weights_move ? home : staying;
    v->dx = vocab_store_input_gradient(v, ring.weights_move ? staying : home);
    return dev_status(v->dev);
}

const struct vocab_impl vocab_ring_dtp = {
    .name = "ring-dtp",
    .summary = "shards or batches travel a ring, one tile of logits at a time, nothing kept",
    .takes_move = true,
    .takes_tile = true,
    .forward = forward,
    .backward = backward,
    .expected_bytes = ring_dtp_expected_bytes,
    .bound_bytes = ring_dtp_bound_bytes,
    .order = ring_dtp_order,
};
