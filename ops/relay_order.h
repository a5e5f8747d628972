/* Orders of a schedule in which a token meets experts part by part, and an expert's gradient is
 * made rank by rank. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "ops/moe.h"

/* Y and dX: one chain per token, slots by turn(context, rank, expert) ascending, then slot; empty
 * ones last. `turns` is how many turns there are; a turn outside [0, turns) is never listed, which
 * the order's check then refuses. 0, or -1 when memory is short. */
int relay_order_combine(const struct moe_shape *shape, const int32_t *const *idx, int turns,
    int (*turn)(const struct moe_shape *shape, int rank, int64_t expert), struct moe_order *out);

/* Weight gradients: of each expert's routes those of source(owner, i) for i = 0, 1, ...; each
 * rank's a segment of its own, or all one chain. */
int relay_order_gradients(const struct moe_shape *shape,
    int (*source)(const struct moe_shape *shape, int owner, int i), bool segments,
    struct moe_order *out);
