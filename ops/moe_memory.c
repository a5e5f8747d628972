/* Sums of what phases hold. */
#include "ops/moe_memory.h"
#include "ops/moe_expert.h"
#include "ops/moe_layer.h"

struct moe_peaks moe_phases_peaks(const struct moe_phase *phases, int count)
{
    struct moe_peaks peaks = {0};
    for (int i = 0; i < count; i++) {
        int64_t all_bytes = 0;
        for (int set = 0; set < LIVE_SET_COUNT; set++) {
            int64_t bytes = phases[i].set_bytes[set];
            all_bytes += bytes;
            if (bytes > peaks.set_bytes[set])
                peaks.set_bytes[set] = bytes;
        }
        if (all_bytes > peaks.all_bytes)
            peaks.all_bytes = all_bytes;
    }
    return peaks;
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
