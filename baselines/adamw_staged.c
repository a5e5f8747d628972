/* staged: bucket by bucket through one slot on one stream. The device holds one bucket, as bounded
 * as offload-stream with one slot, but the link and the update take turns:
 *
 *   main   | up 0 | update 0 | down 0 | up 1 | update 1 | down 1 | ...
 *
 * Time: the plain sum, G (T_up + T_update + T_down). Bound: one bucket of 16 bytes a parameter (12
 * with gradients on the device). */
#include <stdlib.h>
#include "ops/adamw_slot.h"

static void open(struct adamw *a)
{
    struct adamw_slot *slot = a->state = calloc(1, sizeof *slot);
    if (slot)
        adamw_slot_alloc(a, slot);
    else
        dev_fail(a->dev, DEV_FAILED, "staged: no host memory");
}

static void close(struct adamw *a)
{
    if (!a->state)
        return;
    adamw_slot_free(a, a->state);
    free(a->state);
    a->state = NULL;
}

static void update_bucket(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    struct stream *main = dev_main_stream(a->dev);
    dev_wait(main, ready);
    adamw_slot_up(a, main, a->state, bucket);
    adamw_slot_update(a, main, a->state, bucket);
    adamw_slot_down(a, main, a->state, bucket);
}

const struct adamw_impl adamw_staged = {
    .name = "staged",
    .summary = "bucket by bucket through one slot, copies and update one after the other",
    .takes_bucket = true,
    .open = open,
    .update_bucket = update_bucket,
    .close = close,
    .expected_bytes = adamw_slots_expected_bytes,
    .expected_host_bytes = adamw_slots_expected_host_bytes,
    .bound_bytes = adamw_slots_bound_bytes,
};
