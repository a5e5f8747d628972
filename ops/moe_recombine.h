/* Sums over a token's slots in an order that is given: with ops/moe_reorder.h what lets a plain
 * dispatcher run in the declared order of another (`run_order` of struct moe). A tool of
 * comparison, not of speed: a launch for each group of slots, and one that adds the groups. */
#pragma once
#include "ops/moe_layer.h"

/* moe_layer_combine of a layer of one chunk, in the order of layer->m->run_order, which lists its
 * slots: rows `from` in send order, with the router weights or as they are, into to [N, H].
 * Scratch, LIVE_WORKSPACE: with G the most groups of a token that this rank has, FP32 [G, N, H]
 * where G > 1, and 4 N (2 G k + G + 2 k) + 8 bytes of indices and weights. */
void moe_recombine(const struct moe_layer *layer, struct stream *stream, const void *from,
    bool weighted, void *to);
