/* What a step should take: Eq. 5 with the stages' own times. */
#pragma once
#include <stdint.h>
#include "bench/harness/overlap.h"

struct adamw_stages {
    double up_s, update_s, down_s; /* of one full bucket */
    double buckets;                /* parameters / those of a full bucket: the last may be a part */
    int slots;
};

/* (G - 1) period + (T_up + T_update + T_down), where a bucket follows another after
 *     period = max(T_up, T_update, T_down, (T_up + T_update + T_down) / slots)
 * The last term is a slot's own round trip. Eq. 5 leaves it out: with 2 slots it decides only when
 * no stage is as long as the other two together; with 1 slot it always does, and the time is the
 * plain sum. */
double adamw_stream_s(const struct adamw_stages *stages);

/* The stages of one traced step: of each, its busy time over the buckets. */
struct adamw_stages adamw_stages_of(const struct overlap *overlap, double buckets, int slots);
