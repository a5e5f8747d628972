/* offload-stream: AdamW on the device over state that lives on the host, in buckets of at most β
 * parameters through s slots. Serves the papers' claim that the optimizer needs O(s β) device
 * memory and takes the time of the link alone (Eq. 5); here tensors are cut, so that β bounds the
 * bucket whatever the model.
 *
 *   s = 2; each bucket takes the slot of the one before last
 *
 *     up     | 0 | 1 |     | 2 |     | 3 |          up(b)     after down(b - s)
 *     main       | 0 | 1 |     | 2 |     | 3 |      update(b) after up(b)
 *     down           |  0  |  1  |  2  |  3  |      down(b)   after update(b)
 *
 *   up: p, m, v and, where it comes from the host, g.  down: p, m, v.  The new BF16 weights stay:
 * the update writes them where the model reads them.
 *
 * Time: G max(T_up, T_update, T_down, (T_up + T_update + T_down) / s) and once the rest of one
 * bucket's three stages to fill and drain. Eq. 5 has the first three; the fourth is the slot's own
 * round trip, which decides for s = 1 (the plain sum), and for s = 2 only when no stage is as long
 * as the other two together. Floor: the larger direction over the link, 16 bytes a parameter up (12
 * with gradients on the device), 12 down.
 *
 * Bound: s β 16 bytes (12 with gradients on the device), all allocated before the first bucket.
 * Bits: an element is updated once, by itself, wherever its bucket is cut and whenever it comes. */
#include "ops/offload_stream.h"
#include <stdlib.h>
#include "ops/adamw_slot.h"

struct offload {
    struct stream *up, *main, *down;
    struct adamw_slot slot[ADAMW_SLOTS_MAX];
    int next; /* the slot that the next bucket takes */
};

static void open(struct adamw *a)
{
    struct offload *offload = a->state = calloc(1, sizeof *offload);
    if (!offload) {
        dev_fail(a->dev, DEV_FAILED, "offload-stream: no host memory");
        return;
    }
    offload->up = dev_stream(a->dev, "up");
    offload->main = dev_main_stream(a->dev);
    offload->down = dev_stream(a->dev, "down");
    for (int i = 0; i < a->options.slots; i++)
        adamw_slot_alloc(a, &offload->slot[i]);
    dev_wait_stream(offload->up, offload->main); /* before they touch new blocks */
    dev_wait_stream(offload->down, offload->main);
}

static void close(struct adamw *a)
{
    struct offload *offload = a->state;
    if (!offload)
        return;
    dev_wait_stream(offload->main, offload->down); /* up is behind it: every upload is updated */
    for (int i = 0; i < a->options.slots; i++)
        adamw_slot_free(a, &offload->slot[i]);
    free(offload);
    a->state = NULL;
}

void offload_stream_bucket(
    struct adamw *a, const struct adamw_bucket *bucket, struct event ready, bool reuse_at_once)
{
    struct offload *offload = a->state;
    struct adamw_slot *slot = &offload->slot[offload->next];
    offload->next = (offload->next + 1) % a->options.slots;

    /* Gradients from the host are read by the upload, gradients on the device by the update. */
    dev_wait(a->options.gradients == ADAMW_HOST_F32 ? offload->up : offload->main, ready);
    if (!reuse_at_once)
        dev_wait(offload->up, slot->written_back);
    adamw_slot_up(a, offload->up, slot, bucket);
    dev_wait_stream(offload->main, offload->up);
    adamw_slot_update(a, offload->main, slot, bucket);
    dev_wait_stream(offload->down, offload->main);
    adamw_slot_down(a, offload->down, slot, bucket);
    slot->written_back = dev_record(offload->down);
}

static void update_bucket(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    offload_stream_bucket(a, bucket, ready, false);
}

/* The next step may take the buckets in another order: its uploads wait for the whole write-back,
 * not only for their slot's. */
static void finish(struct adamw *a)
{
    struct offload *offload = a->state;
    dev_wait_stream(offload->main, offload->down);
    dev_wait_stream(offload->up, offload->down);
}

const struct adamw_impl adamw_offload_stream = {
    .name = "offload-stream",
    .summary = "buckets through s slots on three streams: up, update, down",
    .takes_bucket = true,
    .takes_slots = true,
    .open = open,
    .update_bucket = update_bucket,
    .finish = finish,
    .close = close,
    .expected_bytes = adamw_slots_expected_bytes,
    .expected_host_bytes = adamw_slots_expected_host_bytes,
    .bound_bytes = adamw_slots_bound_bytes,
};
