/* ring-dtp's sizes, closed forms of memory and order of sums: pure functions of the shape. What
 * each pass allocates stands in ops/ring_dtp.c. */
#include "ops/ring_dtp_memory.h"
#include <stdio.h>
#include "kernels/strip.h"
#include "ops/ring_dtp.h"

#define DEFAULT_TILE 1024

/* ---- shapes ---------------------------------------------------------------------------------- */

bool ring_dtp_weights_move(const struct vocab_shape *shape, const struct vocab_options *options)
{
    if (options->move != VOCAB_MOVE_AUTO)
        return options->move == VOCAB_MOVE_WEIGHTS;
    return vocab_max_tokens(shape) * shape->ranks > shape->vocab;
}

int ring_dtp_check_options(
    const struct vocab_shape *shape, const struct vocab_options *options, char *error, int size)
{
    if (ring_dtp_weights_move(shape, options) || options->tile % VOCAB_SEGMENT == 0 ||
        options->tile >= vocab_max_shard_rows(shape))
        return 0;
    snprintf(error, (size_t)size,
        "got %lld, allowed a multiple of %d or at least %lld (the largest shard), since "
        "activations move here",
        (long long)options->tile, VOCAB_SEGMENT, (long long)vocab_max_shard_rows(shape));
    return -1;
}

/* Rows on the side that moves: a shard's, or a batch's. */
int64_t ring_dtp_moving_rows(const struct vocab_shape *shape, bool weights_move, int index)
{
    return weights_move ? vocab_shard_rows(shape->vocab, shape->ranks, index)
                        : shape->tokens[index];
}

int64_t ring_dtp_staying_rows(const struct vocab_shape *shape, bool weights_move, int rank)
{
    return ring_dtp_moving_rows(shape, !weights_move, rank);
}

int64_t ring_dtp_most_moving_rows(const struct vocab_shape *shape, bool weights_move)
{
    return weights_move ? vocab_max_shard_rows(shape) : vocab_max_tokens(shape);
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t ring_dtp_tile_rows(const struct vocab_shape *shape, const struct vocab_options *options,
    bool weights_move, int rank)
{
    int64_t tile = options->tile > 0 ? options->tile : DEFAULT_TILE;
    return min64(tile, ring_dtp_staying_rows(shape, weights_move, rank));
}

int ring_dtp_slots(int ranks)
{
    return ranks > 2 ? 2 : ranks - 1;
}

/* ---- memory and order ------------------------------------------------------------------------ */

/* Bytes of everything that a pass holds over resident; each is written where it is allocated. */
struct sizes {
    int64_t vectors, tile, payload, states, stay, move, dx_rounded;
    int slots;
};

static struct sizes sizes(
    const struct vocab_shape *shape, const struct vocab_options *options, int rank, bool backward)
{
    bool weights = ring_dtp_weights_move(shape, options);
    int64_t hidden = shape->hidden, ranks = shape->ranks, tokens = shape->tokens[rank];
    int64_t most = ring_dtp_most_moving_rows(shape, weights);
    int64_t rows_bytes = most * hidden * dtype_bytes(shape->dtype);
    struct sizes s = {.slots = ring_dtp_slots(shape->ranks)};
    s.vectors = VOCAB_TOKEN_OUTPUT_BYTES * tokens;
    s.tile = 4 * ring_dtp_tile_rows(shape, options, weights, rank) * most;
    s.payload = rows_bytes + (weights ? 0 : backward ? 16 * most : 8 * most);
    if (!backward) {
        s.states = tokens * (8 * ranks + 4);
        if (!weights && ranks > 1)
            s.states += 4 * tokens + s.slots * 12 * most;
        return s;
    }
    s.stay = 4 * ring_dtp_staying_rows(shape, weights, rank) * hidden;
    s.move = 4 * most * hidden;
    s.dx_rounded = shape->dtype == DTYPE_BF16 ? 2 * tokens * hidden : 0;
    return s;
}

static int64_t pass_bytes(const struct vocab_shape *shape, const struct vocab_options *options,
    int rank, int live_set, bool backward)
{
    struct sizes s = sizes(shape, options, rank, backward);
    bool weights = ring_dtp_weights_move(shape, options);
    int64_t ring = s.slots * s.payload + s.states + (shape->ranks > 1 ? 2 * s.move : 0);
    int64_t output = s.vectors + (weights ? s.stay : s.move);
    int64_t gradients = weights ? s.move : s.stay;
    switch (live_set) {
    case LIVE_LOGITS:
        return s.tile;
    case LIVE_RING:
        return ring;
    case LIVE_OUTPUT:
        return output + s.dx_rounded;
    case LIVE_GRADIENTS:
        return gradients;
    }
    return live_set >= 0 ? 0 : output + gradients + max64(s.tile + ring, s.dx_rounded);
}

int64_t ring_dtp_expected_bytes(const struct vocab_shape *shape,
    const struct vocab_options *options, int rank, int live_set, bool backward)
{
    int64_t first = pass_bytes(shape, options, rank, live_set, false);
    return backward ? max64(first, pass_bytes(shape, options, rank, live_set, true)) : first;
}

/* One tile + dX + dW + two ring buffers (payload and FP32 gradient) + per-token states and targets,
 * all at the group's largest batch and shard: the same on every rank. */
int64_t ring_dtp_bound_bytes(
    const struct vocab_shape *shape, const struct vocab_options *options, int rank, bool backward)
{
    (void)rank;
    bool weights = ring_dtp_weights_move(shape, options);
    int64_t hidden = shape->hidden, ranks = shape->ranks;
    int64_t tokens = vocab_max_tokens(shape), rows = vocab_max_shard_rows(shape);
    int64_t moving = weights ? rows : tokens, staying = weights ? tokens : rows;
    int64_t tile = min64(options->tile > 0 ? options->tile : DEFAULT_TILE, staying);
    int64_t strip = 4 * tile * moving;
    int64_t payload = moving * hidden * dtype_bytes(shape->dtype);
    int64_t states = tokens * (8 * ranks + 4);
    int64_t per_token = VOCAB_TOKEN_OUTPUT_BYTES * tokens + states + 44 * tokens;
    int64_t gradients = backward ? 4 * (tokens + rows) * hidden : 0;
    int64_t ring = 2 * payload + (backward ? 8 * moving * hidden : 0);
    int64_t rounded = backward && shape->dtype == DTYPE_BF16 ? 2 * tokens * hidden : 0;
    return gradients + per_token + max64(strip + ring, rounded);
}

void ring_dtp_order(
    const struct vocab_shape *shape, const struct vocab_options *options, struct vocab_order *out)
{
    int ranks = out->ranks, step = ring_dtp_weights_move(shape, options) ? -1 : 1;
    for (int i = 0; i < ranks; i++)
        for (int j = 0; j < ranks; j++) {
            int ahead = (i + j) % ranks, behind = (i - j + ranks) % ranks;
            out->dx[i * ranks + j] = (struct vocab_part){step > 0 ? ahead : behind, true};
            out->dw[i * ranks + j] = (struct vocab_part){step > 0 ? behind : ahead, true};
        }
}
