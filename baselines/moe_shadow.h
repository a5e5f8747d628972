/* Shadowing: experts whose weights go to all ranks, so that their routes stay where they are. */
#pragma once
#include <stdint.h>
#include "ops/moe_layer.h"
#include "ops/moe_lend.h"

struct shadow_rule {
    const struct moe_shape *shape;
    double flops_per_byte;
};

/* As a moe_planner's: the hottest experts are shadowed one after the other while the estimate
 *
 *     busiest rank's routes x (18 H F / flops_per_byte + 4 H b) + shadowed x W (b + 4)   [bytes]
 *
 * falls (12 H F with ReLU): a row's arithmetic and its four trips, an expert's weights out and its
 * FP32 gradient home. Experts with more routes first, ties by lower id. A shadowed expert has a
 * segment on every rank, its own routes, also where there are none. */
int shadow_plan(struct llep_plan *plan, const struct moe_layout *layout, const void *rule);

/* Gradients of shadows to their owners, summed there in rank order over the ranks that have routes.
 * On the main stream, a shadowed expert of each owner at a time, through a buffer (LIVE_WORKSPACE)
 * of the largest sum's parts. Collective. */
void shadow_return_gradients(struct moe_layer *layer, const struct moe_lent *lent);

/* Bytes of the buffer on this rank: 0 where no shadow of its own has routes elsewhere. */
int64_t shadow_return_bytes(
    const struct moe_layout *layout, const struct moe_shape *shape, int rank);
