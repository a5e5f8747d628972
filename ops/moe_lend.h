/* Experts lent to this rank by a plan: their weights on the way out, their gradients on the way
 * home. */
#pragma once
#include <stdint.h>
#include "ops/moe_layer.h"

/* Matrices of a rank beside its own, in the order of its places. NULL where there is none. */
struct moe_lent {
    int64_t count;
    void *gate, *up, *down; /* [count, F, H], [count, F, H], [count, H, F]; gate NULL for ReLU */
    float *gate_gradient, *up_gradient, *down_gradient;
};

/* Allocates room for the lent weights (LIVE_WEIGHTS) and fetches them on `stream`, which has waited
 * for the main stream since; collective. */
void moe_lent_alloc(struct moe_layer *layer, struct moe_lent *lent);
void moe_lent_fetch(
    struct moe_layer *layer, struct moe_lent *lent, struct comm *comm, struct stream *stream);
void moe_lent_free(struct moe_layer *layer, struct moe_lent *lent);

/* Room for the gradients of what is lent (LIVE_GRADIENTS): not filled. */
void moe_lent_alloc_gradients(struct moe_layer *layer, struct moe_lent *lent);
void moe_lent_free_gradients(struct moe_layer *layer, struct moe_lent *lent);

/* Sends the gradients home and adds them there, behind the owner's own: helpers in plan order, the
 * first as it is where the owner kept no route. On the main stream, an expert of each owner at a
 * time, through a buffer (LIVE_WORKSPACE) of one expert's gradient on owners that add; frees the
 * lent gradients. Collective. */
void moe_lent_return_gradients(struct moe_layer *layer, struct moe_lent *lent, struct comm *comm);

/* Values of one expert: 3FH, or 2FH for ReLU. */
int64_t moe_expert_values(const struct moe_shape *shape);

/* Bytes of the buffer on this rank: 0 where nothing is added. */
int64_t moe_lent_return_bytes(
    const struct moe_layout *layout, const struct moe_shape *shape, int rank);
