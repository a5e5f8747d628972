/* The state of a segment (docs/ARITHMETIC.md, rule 7) by a warp. */
#pragma once
#include "kernels/elements.cuh"

/* softmax_segment with a lane for each thread, which reads its logits once. */
__device__ inline struct softmax_state segment_state(const float *logits, int64_t count)
{
    float values[SOFTMAX_SEGMENT / WARP], max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SOFTMAX_SEGMENT / WARP; i++) {
        const int64_t at = i * WARP + warp_lane();
        values[i] = at < count ? logits[at] : -INFINITY;
        max = arith_max(max, values[i]);
    }
    max = max_lanes(max);
    if (max == -INFINITY)
        return softmax_empty();
#pragma unroll
    for (int i = 0; i < SOFTMAX_SEGMENT / WARP; i++)
        if (i * WARP + warp_lane() < count)
            sum = sum + arith_exp(values[i] - max);
    struct softmax_state state = {max, add_lanes(sum)};
    return state;
}
