/* resident: checkpointing with every boundary on the device.
 *
 *   forward    x0 -> layer 0 -> x1 -> layer 1 -> ... -> y      keeps the boundaries x0 .. x(L-1)
 *   backward   recompute layer L-1 from its boundary, its backward, free; ...; layer 0
 *
 * Bound: L N H b of boundaries, and one layer's working set. */
#include <stdlib.h>
#include "ops/stack_layer.h"

static void release(struct stack *s)
{
    void **x = s->state;
    if (!x)
        return;
    for (int64_t l = 0; l < s->shape.layers; l++)
        dev_free(s->dev, x[l]);
    free(x);
    s->state = NULL;
}

static enum dev_status forward(struct stack *s)
{
    const int64_t count = s->shape.layers;
    void **x = s->state = calloc((size_t)count, sizeof *x);
    if (!x) {
        dev_fail(s->dev, DEV_FAILED, "resident: no host memory");
        return dev_status(s->dev);
    }
    x[0] = s->x;
    for (int64_t l = 0; l < count; l++) {
        struct stack_kept kept = {0};
        stack_layer_hidden(s, l, x[l], STACK_FOR_OUTPUT, &kept);
        void *y = stack_layer_output(s, l, x[l], &kept);
        stack_layer_leave(s, l, &kept);
        if (l + 1 < count)
            x[l + 1] = y;
    }
    return dev_status(s->dev);
}

static enum dev_status backward(struct stack *s)
{
    void **x = s->state;
    if (!x)
        return dev_status(s->dev);
    stack_backward_begin(s);
    for (int64_t l = s->shape.layers - 1; l >= 0; l--) {
        struct stack_kept kept = {0};
        stack_layer_recompute(s, l, x[l], &kept);
        stack_layer_backward(s, l, x[l], &kept);
        dev_free(s->dev, x[l]);
        x[l] = NULL;
    }
    return dev_status(s->dev);
}

static void replay(const struct stack_shape *shape, const struct stack_options *options,
    struct stack_ledger *ledger)
{
    (void)options;
    for (int64_t l = 0; l < shape->layers; l++) {
        stack_ledger_hidden(ledger, false);
        stack_ledger_output(ledger, l);
        stack_ledger_kept_free(ledger, false);
    }
    if (!ledger->backward)
        return;
    stack_ledger_backward_begin(ledger);
    for (int64_t l = shape->layers - 1; l >= 0; l--) {
        stack_ledger_hidden(ledger, true);
        stack_ledger_kept_free(ledger, true);
        stack_ledger_boundary(ledger, -1);
    }
}

static int64_t bound_bytes(
    const struct stack_shape *shape, const struct stack_options *options, int rank, bool backward)
{
    (void)options;
    return shape->layers * stack_row_bytes(shape, rank) +
           stack_working_bytes(shape, rank, backward);
}

const struct stack_impl stack_resident = {
    .name = "resident",
    .summary = "checkpointed, every boundary stays on the device",
    .recomputes = 1,
    .forward = forward,
    .backward = backward,
    .release = release,
    .replay = replay,
    .bound_bytes = bound_bytes,
};
