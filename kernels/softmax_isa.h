/* The state of a segment (rule 7) as loops that compilers vectorise: for the files that are
 * compiled once per instruction set.
 *
 * Everything is elementwise over a segment that stays in the first-level cache, or over the 32
 * lanes of rule 6 with a constant trip count. There is no remainder loop: a short segment is copied
 * and padded to whole lanes with -inf, which changes no maximum and whose exponential, +0, changes
 * no sum. */
#pragma once
#include <string.h>
#include "kernels/arith.h"

static inline int64_t lane_blocks(int64_t count)
{
    return (count + ARITH_LANES - 1) / ARITH_LANES;
}

/* The largest number; a NaN among the values is passed over. */
static inline float max_of_numbers(const float *values, int64_t blocks)
{
    float lanes[ARITH_LANES];
    for (int lane = 0; lane < ARITH_LANES; lane++)
        lanes[lane] = -INFINITY;
    for (int64_t block = 0; block < blocks; block++, values += ARITH_LANES)
        for (int lane = 0; lane < ARITH_LANES; lane++)
            lanes[lane] = values[lane] > lanes[lane] ? values[lane] : lanes[lane];
    float max = -INFINITY;
    for (int lane = 0; lane < ARITH_LANES; lane++)
        max = lanes[lane] > max ? lanes[lane] : max;
    return max + 0.0f; /* +0 for a zero, as arith_max */
}

static inline float sum_of_exp(const float *values, int64_t blocks, float max)
{
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t block = 0; block < blocks; block++, values += ARITH_LANES)
        for (int lane = 0; lane < ARITH_LANES; lane++)
            lanes[lane] = lanes[lane] + arith_exp(values[lane] - max);
    return arith_add_lanes(lanes);
}

/* softmax_segment, vectorised. Infinite maxima are rare and go through the definition. Below a
 * finite maximum every exponential is at most 1, so the sum is NaN exactly when a logit is. */
static inline struct softmax_state segment_state(const float *logits, int64_t count)
{
    float padded[SOFTMAX_SEGMENT];
    int64_t blocks = lane_blocks(count);
    const float *values = logits;
    if (count < blocks * ARITH_LANES) {
        memcpy(padded, logits, (size_t)count * sizeof *logits);
        for (int64_t i = count; i < blocks * ARITH_LANES; i++)
            padded[i] = -INFINITY;
        values = padded;
    }
    struct softmax_state state;
    state.max = max_of_numbers(values, blocks);
    if (state.max == -INFINITY || state.max == INFINITY)
        return softmax_segment(logits, count);
    state.sum = sum_of_exp(values, blocks, state.max);
    if (state.sum != state.sum)
        state.max = NAN;
    return state;
}
