/* chunked: expert parallelism over contiguous runs of tokens, one after the other, each formed
 * again in backward (the MemFine kind).
 *
 *   forward    for every chunk:  X out | experts | outputs home, summed
 *   backward   for every chunk:  X out | dY and router weights out | experts recomputed, then their
 *                                backward | dX and dw home
 *
 * A chunk's rows live as long as the chunk: nothing but Y and the index arrays of this rank's own
 * routes is alive from forward to backward. No expert is lent, so one chunk's rows may all go to
 * one rank; runs of equal routing stay together, since chunks are contiguous. Rows land where the
 * experts' products want them.
 *
 * Bound: with R = P k c_eff rows received and S = k c_eff sent in a chunk (Eq. 1) the terms of
 * `phases` below; indices of all chunks. Order: outputs, dX, dw the default, at every K. A weight
 * gradient is one chain over chunks, then source rank, token and slot; at K = 1 the default. Cost:
 * dispatch of X and the experts' forward twice; everything on the main stream, nothing overlaps. */
#include <stdlib.h>
#include "ops/moe_expert.h"
#include "ops/moe_layer.h"
#include "ops/moe_memory.h"
#include "ops/moe_trip.h"

static const struct moe_lent nothing_lent = {0};

static struct moe_partition partition_of(
    const struct moe_shape *shape, const struct moe_options *options)
{
    return (struct moe_partition){
        .chunks = moe_chunk_count(shape, options), .kind = MOE_CHUNKS_CONTIGUOUS};
}

static int64_t received_bytes(const struct moe_layer *layer, int64_t chunk)
{
    return moe_rows_bytes(&layer->m->shape, moe_layer_received(layer, chunk));
}

/* ---- forward ----------------------------------------------------------------------------------
 */

static void forward_chunk(struct moe_layer *layer, int64_t chunk)
{
    struct moe *m = layer->m;
    struct stream *main = dev_main_stream(m->dev);
    int64_t bytes = received_bytes(layer, chunk);
    struct moe_hidden hidden;
    void *x = dev_alloc(m->dev, bytes, LIVE_DISPATCH, "received rows");
    moe_trip_out(layer, chunk, m->x, x);
    moe_hidden_alloc(m, moe_layer_received(layer, chunk), false, &hidden);
    void *out = hidden.out = dev_alloc(m->dev, bytes, LIVE_COMBINE, "expert outputs");
    moe_experts_forward(layer, &nothing_lent, main, chunk, x, &hidden);
    moe_hidden_free(m, &hidden);
    dev_free(m->dev, x);
    moe_trip_home(layer, chunk, out, out);
}

static enum dev_status forward(struct moe *m)
{
    struct moe_partition partition = partition_of(&m->shape, &m->options);
    struct moe_layer *layer = malloc(sizeof *layer);
    if (!layer) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for chunked");
        return dev_status(m->dev);
    }
    m->state = layer;
    if (moe_layer_open(layer, m, &partition, NULL) != DEV_OK)
        return dev_status(m->dev);
    moe_alloc_forward(m);
    for (int64_t chunk = 0; chunk < partition.chunks; chunk++)
        forward_chunk(layer, chunk);
    moe_layer_settle(layer);
    return dev_status(m->dev);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* The chunk's dY rows through the experts: dX rows in their place. */
static void through_experts(
    struct moe_layer *layer, int64_t chunk, void *x, void *dy, const struct moe_route_values *v)
{
    struct moe *m = layer->m;
    struct stream *main = dev_main_stream(m->dev);
    struct moe_hidden hidden;
    moe_hidden_alloc(m, moe_layer_received(layer, chunk), true, &hidden);
    moe_experts_forward(layer, &nothing_lent, main, chunk, x, &hidden);
    moe_experts_backward(layer, &nothing_lent, main, chunk, x, &hidden, dy, v->weight, v->gradient);
    moe_hidden_free(m, &hidden);
    dev_free(m->dev, x);
}

static void backward_chunk(struct moe_layer *layer, int64_t chunk)
{
    struct moe *m = layer->m;
    int64_t bytes = received_bytes(layer, chunk);
    struct moe_route_values values;
    moe_route_values_alloc(layer, chunk, &values);
    void *x = dev_alloc(m->dev, bytes, LIVE_DISPATCH, "received rows");
    moe_trip_out(layer, chunk, m->x, x);
    void *dy = dev_alloc(m->dev, bytes, LIVE_COMBINE, "gradient rows");
    moe_trip_gradients_out(layer, chunk, &values, dy);
    through_experts(layer, chunk, x, dy, &values);
    moe_trip_gradients_home(layer, chunk, &values, dy);
    moe_route_values_free(layer, &values);
}

static void release(struct moe *m)
{
    struct moe_layer *layer = m->state;
    if (!layer)
        return;
    if (layer->m)
        moe_layer_close(layer);
    free(layer);
    m->state = NULL;
}

static enum dev_status backward(struct moe *m)
{
    struct moe_layer *layer = m->state;
    moe_alloc_backward(m);
    for (int64_t chunk = 0; chunk < layer->layout.partition.chunks; chunk++)
        backward_chunk(layer, chunk);
    release(m);
    return dev_status(m->dev);
}

/* ---- memory and order -------------------------------------------------------------------------
 */

enum { PHASES = 4 };

/* The moments of a chunk of `sent` and `received` rows where it may hold the most; forward_held and
 * backward_held live throughout. Returns how many. */
static int phases(const struct moe_shape *shape, int64_t sent, int64_t received,
    const struct moe_phase *forward_held, const struct moe_phase *backward_held, bool with_backward,
    struct moe_phase *out)
{
    int64_t r = moe_rows_bytes(shape, received), s = moe_rows_bytes(shape, sent);
    out[0] = out[1] = *forward_held;
    out[0].set_bytes[LIVE_DISPATCH] = r;
    out[0].set_bytes[LIVE_STAGING] = s;
    out[1].set_bytes[LIVE_DISPATCH] = r;
    out[1].set_bytes[LIVE_EXPERT] = moe_hidden_bytes(shape, received, false);
    out[1].set_bytes[LIVE_COMBINE] = r;
    if (!with_backward) {
        out[2] = *forward_held;
        out[2].set_bytes[LIVE_COMBINE] = r;
        out[2].set_bytes[LIVE_STAGING] = s;
        return 3;
    }
    /* forward's way home holds less than backward's way out */
    out[2] = *backward_held;
    out[2].set_bytes[LIVE_WORKSPACE] += 2 * (sent + received) * (int64_t)sizeof(float);
    out[3] = out[2];
    out[2].set_bytes[LIVE_DISPATCH] = r;
    out[2].set_bytes[LIVE_COMBINE] = r;
    out[2].set_bytes[LIVE_STAGING] = s;
    out[3].set_bytes[LIVE_DISPATCH] = r;
    out[3].set_bytes[LIVE_COMBINE] = r;
    out[3].set_bytes[LIVE_EXPERT] = moe_hidden_bytes(shape, received, true);
    return 4;
}

static int expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out)
{
    struct moe_partition partition = partition_of(shape, options);
    struct moe_phase *all = malloc((size_t)(partition.chunks * PHASES) * sizeof *all);
    struct moe_layout layout;
    if (!all || moe_layout_from_routing(&layout, shape, &partition, NULL, idx)) {
        free(all);
        return -1;
    }
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct moe_phase forward_held = moe_phase_forward(shape, &layout, rank);
        struct moe_phase backward_held = moe_phase_backward(shape, &layout, rank);
        int count = 0;
        for (int64_t chunk = 0; chunk < partition.chunks; chunk++)
            count += phases(shape, moe_layout_sent(&layout, rank, chunk),
                moe_layout_received(&layout, rank, chunk), &forward_held, &backward_held,
                with_backward, all + count);
        out[rank] = moe_phases_peaks(all, count);
    }
    moe_layout_free(&layout);
    free(all);
    return 0;
}

static int64_t bound_bytes(const struct moe_shape *shape, const struct moe_options *options,
    int rank, int live_set, bool with_backward)
{
    int64_t chunks = moe_chunk_count(shape, options), tokens = shape->tokens[rank];
    int64_t sent = shape->topk * moe_chunk_tokens_max(shape, chunks);
    struct moe_phase forward_held = {{0}}, most[PHASES];
    forward_held.set_bytes[LIVE_OUTPUT] = moe_rows_bytes(shape, tokens);
    forward_held.set_bytes[LIVE_WORKSPACE] =
        chunks * moe_experts_per_rank(shape) * (int64_t)sizeof(struct expert_group) +
        (3 * tokens * shape->topk + tokens) * (int64_t)sizeof(int32_t);
    struct moe_phase backward_held = forward_held;
    backward_held.set_bytes[LIVE_OUTPUT] +=
        moe_rows_bytes(shape, tokens) + tokens * shape->topk * 4;
    backward_held.set_bytes[LIVE_GRADIENTS] =
        moe_experts_per_rank(shape) * moe_expert_values(shape) * (int64_t)sizeof(float);
    int count = phases(
        shape, sent, shape->ranks * sent, &forward_held, &backward_held, with_backward, most);
    struct moe_peaks peaks = moe_phases_peaks(most, count);
    return live_set < 0 ? peaks.all_bytes : peaks.set_bytes[live_set];
}

static int order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    struct moe_partition partition = partition_of(shape, options);
    struct moe_layout layout;
    if (moe_layout_from_routing(&layout, shape, &partition, NULL, idx))
        return -1;
    int status = moe_layout_order(&layout, idx, out);
    moe_layout_free(&layout);
    return status;
}

const struct moe_impl moe_chunked = {
    .name = "chunked",
    .summary = "alltoall-ckpt over contiguous chunks of tokens, one after the other",
    .options = " chunk-budget max-chunks chunk-count ",
    .forward = forward,
    .backward = backward,
    .release = release,
    .bound_bytes = bound_bytes,
    .expected_bytes = expected_bytes,
    .order = order,
};
