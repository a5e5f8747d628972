/* One meeting at work: a batch's matching routes through the experts that are here, piece by piece.
 * Room for one piece is made once and used by all of them. */
#pragma once
#include <stdint.h>
#include "ops/moe_expert.h"
#include "ops/relay_plan.h"

/* A batch as it lies here. Sums are FP32 and go on from what they hold. */
struct relay_batch {
    const void *x;               /* [tokens, H] */
    const void *dy;              /* [tokens, H], in backward */
    const float *weight;         /* [tokens, k] */
    float *sums;                 /* [tokens, H]: of Y, in backward of dX */
    float *router_gradient;      /* [tokens, k], in backward: written where a slot is met */
    struct event sums_are_there; /* what the main stream waits for before it touches the last two */
};

/* The experts that are here. */
struct relay_experts {
    const void *gate, *up, *down; /* gate NULL for ReLU */
    float *gate_gradient, *up_gradient, *down_gradient;
};

/* A piece's index arrays on the device and what they are copied from, in use by turns. */
struct relay_slot {
    void *block, *pinned;
    struct event uploaded, used;
};

struct relay_hop {
    struct moe *m;
    const struct relay_plan *plan;
    bool backward;
    struct stream *main, *copy;
    int64_t uploads;
    int slots;
    struct relay_slot slot[2];
    struct expert_group *each; /* on the host with --grouped off, else NULL */
    void *rows;                /* x; in forward the experts' outputs take their place */
    struct moe_hidden hidden;  /* in backward its out holds e, then de, then dx */
    float *dw;                 /* by row, in backward */
};

/* Allocates the room on the main stream; everything else waits for it. */
void relay_hop_open(
    struct relay_hop *hop, struct moe *m, const struct relay_plan *plan, bool backward);
void relay_hop_close(struct relay_hop *hop);

/* On the main stream. Forward adds w e to the sums, backward dx; backward also writes dw and the
 * experts' gradients. */
void relay_meet(struct relay_hop *hop, int meeting, const struct relay_batch *batch,
    const struct relay_experts *experts);

/* FP32 sums of this rank's tokens, +0: `output` [N, H] itself where the problem is FP32, else a
 * block of LIVE_COMBINE; and, when they are whole, rounded into the output and freed. */
float *relay_sums_alloc(struct moe *m, void *output);
void relay_sums_store(struct moe *m, float *sums, void *output);

/* How many slots there are; what open takes by live set: index arrays (and dw) LIVE_WORKSPACE, rows
 * LIVE_DISPATCH, intermediates LIVE_EXPERT. */
int relay_hop_slots(int64_t pieces);
struct moe_phase;
void relay_hop_add_bytes(struct moe_phase *phase, const struct moe_shape *shape, int slots,
    int64_t rows, int64_t block_bytes, bool backward);
