/* What a dispatcher's plan and chunks make of a routing: counts alone, nothing is moved. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/moe_load.h"
#include "ops/moe.h"

struct moe_replay {
    int64_t chunks;           /* K */
    int64_t chunk_tokens;     /* c_eff, of one rank */
    bool planned;             /* experts were moved: the gate was passed */
    int64_t capacity, excess; /* of a rank in routes, and the largest load beyond it */
    int64_t transfers;        /* experts lent */
    struct moe_load rank;     /* routes to the experts of a rank */
    struct moe_load expert;   /* routes to an expert */
    struct moe_load computed; /* routes that a rank computes under the plan */
    /* Over chunks and sending ranks: the most rows to one destination over the mean to one. 1 where
     * nothing is sent. */
    double send_ratio;
    /* Over chunks and receiving ranks: the most rows received, and that over the bound of Eq. 1,
     * P k c_eff. */
    int64_t received;
    double received_share;
};

/* idx[r] is [N_r, k], of every rank. `llep` false = every expert stays with its owner. Of the
 * options those of chunks and of LLEP count. 0, or -1 when memory is short. */
int moe_replay(struct moe_replay *replay, const struct moe_shape *shape,
    const struct moe_options *options, bool llep, const int32_t *const *idx);
