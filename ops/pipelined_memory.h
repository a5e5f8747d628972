/* What pipelined-llep holds: before any routing is known, and with the realised one. */
#pragma once
#include "ops/moe.h"
#include "ops/moe_route.h"

/* Slots of a chunk's received rows: one chunk needs one. */
int pipelined_slots(int64_t chunks);

/* The partition and the planner's parameters that follow from the options. */
struct moe_partition pipelined_partition(
    const struct moe_shape *shape, const struct moe_options *options);
struct llep_options pipelined_planner(const struct moe_options *options);

/* What forward and backward hold when every rank receives what it sends and no expert is lent: what
 * balanced routing needs. */
struct moe_peaks pipelined_balanced_peaks(
    const struct moe_shape *shape, const struct moe_options *options, int rank);

/* The largest that index arrays can be: on the device, and pinned while they are made. */
int64_t pipelined_index_bound_bytes(
    const struct moe_shape *shape, const struct moe_options *options, int rank);

/* The functions of struct moe_impl. */
int64_t pipelined_bound_bytes(const struct moe_shape *shape, const struct moe_options *options,
    int rank, int live_set, bool with_backward);
int pipelined_expected_bytes(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, bool with_backward, struct moe_peaks *out);
int pipelined_order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out);
