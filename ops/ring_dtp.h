/* Facts of ring-dtp that programs and tables report. */
#pragma once
#include "ops/vocab.h"

/* True when the schedule moves weight shards: asked for, or under auto when max N_r > V/P. */
bool ring_dtp_weights_move(const struct vocab_shape *shape, const struct vocab_options *options);

/* 0, or -1 with why the options do not fit the shape: when activations move, a tile is a run of
 * vocabulary rows and must be a multiple of VOCAB_SEGMENT (or cover the largest shard), because the
 * normaliser is summed in whole segments. */
int ring_dtp_check_options(
    const struct vocab_shape *shape, const struct vocab_options *options, char *error, int size);
