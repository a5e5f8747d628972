/* A bucket's way through the device: up into a slot, updated there, down again. With gradients on
 * the device the update reads them in place and a slot holds only the state. */
#include "ops/adamw_slot.h"

static bool stages_gradients(const struct adamw *a)
{
    return a->options.gradients == ADAMW_HOST_F32;
}

void adamw_slot_alloc(struct adamw *a, struct adamw_slot *slot)
{
    int64_t bytes = a->plan.largest * (int64_t)sizeof(float);
    *slot = (struct adamw_slot){0};
    slot->p = dev_alloc(a->dev, bytes, LIVE_STAGING, "slot of master parameters");
    slot->m = dev_alloc(a->dev, bytes, LIVE_STAGING, "slot of first moments");
    slot->v = dev_alloc(a->dev, bytes, LIVE_STAGING, "slot of second moments");
    if (stages_gradients(a))
        slot->g = dev_alloc(a->dev, bytes, LIVE_STAGING, "slot of gradients");
}

void adamw_slot_free(struct adamw *a, struct adamw_slot *slot)
{
    dev_free(a->dev, slot->p);
    dev_free(a->dev, slot->m);
    dev_free(a->dev, slot->v);
    dev_free(a->dev, slot->g);
    *slot = (struct adamw_slot){0};
}

void adamw_slot_up(struct adamw *a, struct stream *stream, const struct adamw_slot *slot,
    const struct adamw_bucket *bucket)
{
    int64_t first = bucket->first, bytes = bucket->count * (int64_t)sizeof(float);
    dev_copy_h2d(stream, slot->p, a->p + first, bytes);
    dev_copy_h2d(stream, slot->m, a->m + first, bytes);
    dev_copy_h2d(stream, slot->v, a->v + first, bytes);
    if (stages_gradients(a))
        dev_copy_h2d(stream, slot->g, adamw_gradient_at(a, first), bytes);
}

void adamw_slot_update(struct adamw *a, struct stream *stream, const struct adamw_slot *slot,
    const struct adamw_bucket *bucket)
{
    const void *g = stages_gradients(a) ? slot->g : adamw_gradient_at(a, bucket->first);
    struct adamw_args args = adamw_bucket_args(a, bucket, slot->p, slot->m, slot->v, g,
        adamw_gradient_dtype(a->options.gradients), a->weights + bucket->first);
    dev_launch(stream, &kernel_adamw, &args, sizeof args);
}

void adamw_slot_down(struct adamw *a, struct stream *stream, const struct adamw_slot *slot,
    const struct adamw_bucket *bucket)
{
    int64_t first = bucket->first, bytes = bucket->count * (int64_t)sizeof(float);
    dev_copy_d2h(stream, a->p + first, slot->p, bytes);
    dev_copy_d2h(stream, a->m + first, slot->m, bytes);
    dev_copy_d2h(stream, a->v + first, slot->v, bytes);
}

/* ---- memory -------------------------------------------------------------------------------- */

int64_t adamw_slots_expected_bytes(const struct adamw_shape *shape,
    const struct adamw_options *options, const struct adamw_plan *plan, int live_set)
{
    (void)shape;
    int64_t bytes[LIVE_SET_COUNT] = {
        [LIVE_STAGING] = options->slots * plan->largest * adamw_slot_bytes(options->gradients),
        [LIVE_WORKSPACE] = adamw_scan_device_bytes(options)};
    return adamw_sum_sets(bytes, live_set);
}

int64_t adamw_slots_expected_host_bytes(const struct adamw_shape *shape,
    const struct adamw_options *options, const struct adamw_plan *plan, int live_set)
{
    (void)plan;
    int64_t bytes[LIVE_SET_COUNT] = {[LIVE_OPTIMIZER] = ADAMW_STATE_BYTES * shape->params,
        [LIVE_WORKSPACE] = adamw_scan_host_bytes(options)};
    return adamw_sum_sets(bytes, live_set);
}

int64_t adamw_slots_bound_bytes(
    const struct adamw_shape *shape, const struct adamw_options *options)
{
    int64_t most = options->bucket, largest_tensor = 0;
    for (int64_t i = 0; i < shape->tensors; i++)
        if (shape->part[i].count > largest_tensor)
            largest_tensor = shape->part[i].count;
    if (options->whole_tensors && largest_tensor)
        most += largest_tensor - 1;
    return options->slots * most * adamw_slot_bytes(options->gradients) +
           adamw_scan_device_bytes(options);
}
