/* What ring-dtp holds and in which order it sums, shared between its schedule and its closed forms.
 * `weights_move`: ring_dtp_weights_move of the shape and options. */
#pragma once
#include "ops/vocab.h"

/* Rows of the payload that shard or batch `index` is; rows on the side that stays with a rank; rows
 * of the largest payload. */
int64_t ring_dtp_moving_rows(const struct vocab_shape *shape, bool weights_move, int index);
int64_t ring_dtp_staying_rows(const struct vocab_shape *shape, bool weights_move, int rank);
int64_t ring_dtp_most_moving_rows(const struct vocab_shape *shape, bool weights_move);

/* Rows of the side that stays in one tile. */
int64_t ring_dtp_tile_rows(const struct vocab_shape *shape, const struct vocab_options *options,
    bool weights_move, int rank);

/* Slots for payloads that travel: two, or as many as there are hops. */
int ring_dtp_slots(int ranks);

/* The functions of struct vocab_impl. */
int64_t ring_dtp_expected_bytes(const struct vocab_shape *shape,
    const struct vocab_options *options, int rank, int live_set, bool backward);
int64_t ring_dtp_bound_bytes(
    const struct vocab_shape *shape, const struct vocab_options *options, int rank, bool backward);
void ring_dtp_order(
    const struct vocab_shape *shape, const struct vocab_options *options, struct vocab_order *out);
