/* What a layer's attention keeps from forward to backward within a budget of bytes on every rank,
 * so that less of it is computed again: RelayMoE's selective recompute (ops/recompute_plan.h). The
 * options of a layer are nested:
 *
 *     option        what stays, beside the option's before                not computed again
 *     output        o of the heads, their scores' maxima and log z        attention
 *     projections   q, k, v of the heads                                  three products, two turns
 *     normed        n and its rows' scales                                RMSNorm
 *
 * What stays has the bits that recomputation gives, so no result changes. Where a checkpoint
 * implementation recomputes nothing, everything stays as it is and nothing is chosen. */
#pragma once
#include "ops/model.h"

enum model_keep {
    MODEL_KEEP_OUTPUT,
    MODEL_KEEP_PROJECTIONS,
    MODEL_KEEP_NORMED,
    MODEL_KEEP_OPTIONS
};

/* A layer's options: bytes of this rank, and FLOP by the kernels' cost functions. */
void model_keep_options(
    const struct model_shape *shape, struct recompute_option options[MODEL_KEEP_OPTIONS]);

/* choice [L]: the options within options->keep_attention_bytes, -1 = none. 0, or -1 when memory is
 * short. */
int model_keep_choose(const struct model_shape *shape, const struct model_options *options,
    int32_t *choice, struct recompute_plan *plan);
