/* full-activations: no checkpointing. Every layer's tensors stay from forward to backward.
 *
 *   forward    x0 -> layer 0 -> x1 -> layer 1 -> ... -> y      each layer keeps x, n, r, g, u, a
 *   backward   layer L-1, ..., layer 0                         from what it kept; nothing
 * recomputed
 *
 * A layer keeps its boundary x and the normed rows n (2 N H values), gate, up and activation (3 N
 * F), and the rows' scales r (N FP32): what its backward reads. An eager framework keeps more.
 *
 * Bound: none; it grows with L times all of them. */
#include <stdlib.h>
#include "ops/stack_layer.h"

struct layer_state {
    void *x;
    struct stack_kept kept;
};

static void release(struct stack *s)
{
    struct layer_state *layers = s->state;
    if (!layers)
        return;
    for (int64_t l = 0; l < s->shape.layers; l++) {
        dev_free(s->dev, layers[l].x);
        stack_kept_free(s, &layers[l].kept);
    }
    free(layers);
    s->state = NULL;
}

static enum dev_status forward(struct stack *s)
{
    const int64_t count = s->shape.layers;
    struct layer_state *layers = s->state = calloc((size_t)count, sizeof *layers);
    if (!layers) {
        dev_fail(s->dev, DEV_FAILED, "full-activations: no host memory");
        return dev_status(s->dev);
    }
    layers[0].x = s->x;
    for (int64_t l = 0; l < count; l++) {
        stack_layer_hidden(s, l, layers[l].x, STACK_FOR_BOTH, &layers[l].kept);
        void *y = stack_layer_output(s, l, layers[l].x, &layers[l].kept);
        if (l + 1 < count)
            layers[l + 1].x = y;
    }
    return dev_status(s->dev);
}

static enum dev_status backward(struct stack *s)
{
    struct layer_state *layers = s->state;
    if (!layers)
        return dev_status(s->dev);
    stack_backward_begin(s);
    for (int64_t l = s->shape.layers - 1; l >= 0; l--) {
        stack_layer_backward(s, l, layers[l].x, &layers[l].kept);
        dev_free(s->dev, layers[l].x);
        layers[l].x = NULL;
    }
    return dev_status(s->dev);
}

static void replay(const struct stack_shape *shape, const struct stack_options *options,
    struct stack_ledger *ledger)
{
    (void)options;
    for (int64_t l = 0; l < shape->layers; l++) {
        stack_ledger_hidden(ledger, true);
        stack_ledger_output(ledger, l);
    }
    if (!ledger->backward)
        return;
    stack_ledger_backward_begin(ledger);
    for (int64_t l = shape->layers - 1; l >= 0; l--) {
        stack_ledger_kept_free(ledger, true);
        stack_ledger_boundary(ledger, -1);
    }
}

const struct stack_impl stack_full_activations = {
    .name = "full-activations",
    .summary = "no checkpointing: every layer keeps what its backward reads",
    .forward = forward,
    .backward = backward,
    .release = release,
    .replay = replay,
};
