/* Closed forms of a dispatcher's memory: a schedule is cut into phases, each with what it holds of
 * every live set, over the resident tensors. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "ops/moe.h"
#include "ops/moe_route.h"
#include "probe/memory.h"

struct moe_phase {
    int64_t set_bytes[LIVE_SET_COUNT];
};

/* The most that any phase holds, of each live set and of all together. */
struct moe_peaks moe_phases_peaks(const struct moe_phase *phases, int count);

/* What every phase of a pass holds: Y and the index arrays in forward; in backward the gradients
 * too, of owned and of lent experts. */
struct moe_phase moe_phase_forward(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank);
struct moe_phase moe_phase_backward(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank);

/* Of the experts lent to a rank, in bytes: their weights; their FP32 gradients. */
int64_t moe_lent_weight_bytes(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank);
int64_t moe_lent_gradient_bytes(
    const struct moe_shape *shape, const struct moe_layout *layout, int rank);
