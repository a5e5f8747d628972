/* A staging slot: one bucket's state on the device while it is updated. Private to the family. */
#pragma once
#include "ops/adamw.h"

struct adamw_slot {
    float *p, *m, *v; /* [largest bucket] */
    float *g;         /* likewise; NULL with gradients on the device */
    struct event written_back;
};

/* Each array is a block of its own, so that each begins on a cache line. */
void adamw_slot_alloc(struct adamw *a, struct adamw_slot *slot);
void adamw_slot_free(struct adamw *a, struct adamw_slot *slot);

/* The three stages of a bucket, each enqueued on the given stream. */
void adamw_slot_up(struct adamw *a, struct stream *stream, const struct adamw_slot *slot,
    const struct adamw_bucket *bucket);
void adamw_slot_update(struct adamw *a, struct stream *stream, const struct adamw_slot *slot,
    const struct adamw_bucket *bucket);
void adamw_slot_down(struct adamw *a, struct stream *stream, const struct adamw_slot *slot,
    const struct adamw_bucket *bucket);

/* expected_bytes and expected_host_bytes of an implementation with options->slots slots. */
int64_t adamw_slots_expected_bytes(const struct adamw_shape *shape,
    const struct adamw_options *options, const struct adamw_plan *plan, int live_set);
int64_t adamw_slots_expected_host_bytes(const struct adamw_shape *shape,
    const struct adamw_options *options, const struct adamw_plan *plan, int live_set);

/* bound_bytes likewise: the bucket size asked for is the bound when tensors are cut; whole tensors
 * are bounded only by the largest of them. */
int64_t adamw_slots_bound_bytes(
    const struct adamw_shape *shape, const struct adamw_options *options);
