/* Sums of what phases hold. */
#include "ops/moe_memory.h"
#include "ops/moe_expert.h"
#include "ops/moe_layer.h"

int64_t moe_phases_peak(const struct moe_phase *phases, int count, int live_set)
{
    int64_t peak = 0;
    for (int i = 0; i < count; i++) {
        int64_t bytes = 0;
        for (int set = 0; set < LIVE_SET_COUNT; set++)
            if (live_set < 0 || live_set == set)
                bytes += phases[i].set_bytes[set];
        peak = bytes > peak ? bytes : peak;
    }
    return peak;
}

int64_t moe_lent_weight_bytes(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank)
{
    return moe_layout_lent(layout, rank) * moe_expert_values(shape) * dtype_bytes(shape->dtype);
}

int64_t moe_lent_gradient_bytes(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank)
{
    return moe_layout_lent(layout, rank) * moe_expert_values(shape) * (int64_t)sizeof(float);
}

struct moe_phase moe_phase_forward(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank)
{
    struct moe_phase phase = {{0}};
    phase.set_bytes[LIVE_OUTPUT] = moe_rows_bytes(shape, shape->tokens[rank]);
    phase.set_bytes[LIVE_WORKSPACE] = moe_layer_bytes(layout, rank);
    return phase;
}

struct moe_phase moe_phase_backward(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank)
{
    struct moe_phase phase = moe_phase_forward(shape, layout, rank);
    int64_t tokens = shape->tokens[rank];
    phase.set_bytes[LIVE_OUTPUT] += moe_rows_bytes(shape, tokens) + tokens * shape->topk * 4;
    phase.set_bytes[LIVE_GRADIENTS] =
        layout->owned * moe_expert_values(shape) * (int64_t)sizeof(float) +
        moe_lent_gradient_bytes(shape, layout, rank);
    return phase;
}
