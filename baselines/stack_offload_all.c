/* offload-all: every boundary to the host, each copy in turn with the kernels.
 *
 *   main   out x0 | layer 0 | out x1 | layer 1 | ... | in x(L-1) | backward L-1 | in x(L-2) | ...
 *
 * What a saved-tensor hook does that moves a tensor when it is saved and brings it back when it is
 * asked for. No copy hides behind anything: a step takes 2 L copies longer than resident.
 *
 * Bound: 2 N H b of boundaries (a layer's input and its output), and one layer's working set. Host:
 * L N H b, rounded as pinned memory is. */
#include <stdlib.h>
#include "ops/stack_layer.h"

struct offload_all {
    void *host[STACK_LAYERS_MAX];
    void *x; /* the one boundary on the device */
};

static void release(struct stack *s)
{
    struct offload_all *o = s->state;
    if (!o)
        return;
    dev_free(s->dev, o->x);
    free(o);
    s->state = NULL;
}

static enum dev_status forward(struct stack *s)
{
    const int64_t count = s->shape.layers, bytes = stack_row_bytes(&s->shape, s->rank);
    struct stream *main = dev_main_stream(s->dev);
    struct offload_all *o = s->state = calloc(1, sizeof *o);
    if (!o) {
        dev_fail(s->dev, DEV_FAILED, "offload-all: no host memory");
        return dev_status(s->dev);
    }
    o->x = s->x;
    for (int64_t l = 0; l < count; l++) {
        struct stack_kept kept = {0};
        o->host[l] = stack_pool_block(s, l, bytes);
        dev_copy_d2h(main, o->host[l], o->x, bytes);
        stack_layer_hidden(s, l, o->x, STACK_FOR_OUTPUT, &kept);
        void *y = stack_layer_output(s, l, o->x, &kept);
        stack_layer_leave(s, l, &kept);
        dev_free(s->dev, o->x);
        o->x = l + 1 < count ? y : NULL;
    }
    return dev_status(s->dev);
}

static enum dev_status backward(struct stack *s)
{
    const int64_t bytes = stack_row_bytes(&s->shape, s->rank);
    struct offload_all *o = s->state;
    if (!o)
        return dev_status(s->dev);
    stack_backward_begin(s);
    for (int64_t l = s->shape.layers - 1; l >= 0; l--) {
        struct stack_kept kept = {0};
        o->x = dev_alloc(s->dev, bytes, LIVE_BOUNDARY, "restored boundary");
        dev_copy_h2d(dev_main_stream(s->dev), o->x, o->host[l], bytes);
        stack_layer_recompute(s, l, o->x, &kept);
        stack_layer_backward(s, l, o->x, &kept);
        dev_free(s->dev, o->x);
        o->x = NULL;
    }
    return dev_status(s->dev);
}

static void replay(const struct stack_shape *shape, const struct stack_options *options,
    struct stack_ledger *ledger)
{
    const int64_t pinned =
        sco_pinned_bytes(stack_row_bytes(shape, ledger->rank), options->budget.rounding);
    for (int64_t l = 0; l < shape->layers; l++) {
        mem_add(&ledger->host, pinned, LIVE_BOUNDARY, "replay");
        stack_ledger_hidden(ledger, false);
        stack_ledger_output(ledger, l);
        stack_ledger_kept_free(ledger, false);
        stack_ledger_boundary(ledger, -1);
    }
    if (!ledger->backward)
        return;
    stack_ledger_backward_begin(ledger);
    for (int64_t l = shape->layers - 1; l >= 0; l--) {
        stack_ledger_boundary(ledger, 1);
        stack_ledger_hidden(ledger, true);
        stack_ledger_kept_free(ledger, true);
        stack_ledger_boundary(ledger, -1);
    }
}

static int64_t bound_bytes(
    const struct stack_shape *shape, const struct stack_options *options, int rank, bool backward)
{
    (void)options;
    return 2 * stack_row_bytes(shape, rank) + stack_working_bytes(shape, rank, backward);
}

const struct stack_impl stack_offload_all = {
    .name = "offload-all",
    .summary = "every boundary to the host and back, no copy beside a kernel",
    .takes_pool = true,
    .recomputes = 1,
    .forward = forward,
    .backward = backward,
    .release = release,
    .replay = replay,
    .bound_bytes = bound_bytes,
};
