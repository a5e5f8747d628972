/* RelayMoE's closed forms: bytes of a hop, memory, and the orders in which the ring sums. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "ops/moe.h"
#include "ops/moe_memory.h"
#include "ops/relay_plan.h"

/* The plan of a rank whose partitions travel, from its own routing; of one whose batches travel,
 * from all ranks'. 0, or -1 when memory is short. */
int relay_plan_experts(struct relay_plan *plan, const struct moe_shape *shape,
    const struct moe_options *options, int rank, const int32_t *idx);
int relay_plan_tokens(struct relay_plan *plan, const struct moe_shape *shape,
    const struct moe_options *options, int rank, const int32_t *const *idx);

/* Payload buffers of a pass: the hop that comes home at the end of backward needs one too. */
int relay_expert_slots(int ranks, bool backward);

/* Most tokens of a rank. */
int64_t relay_most_tokens(const struct moe_shape *shape);

/* What all schedules of experts that visit hold in a pass: outputs, gradients, the FP32 sums of a
 * BF16 problem, and a hop's room. */
struct moe_phase relay_phase(const struct moe_shape *shape, int rank, int slots, int64_t rows,
    int64_t block_bytes, bool backward);

/* As struct moe_impl says. */
int64_t relay_expert_bound_bytes(const struct moe_shape *shape, const struct moe_options *options,
    int rank, int live_set, bool backward);
int64_t relay_token_bound_bytes(const struct moe_shape *shape, const struct moe_options *options,
    int rank, int live_set, bool backward);
int relay_expert_expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool backward, struct moe_peaks *out);
int relay_token_expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool backward, struct moe_peaks *out);
int relay_expert_order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out);
int relay_token_order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out);
