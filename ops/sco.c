/* sco: as many checkpoint boundaries on the host as its budget holds, copied beside the kernels.
 * Serves the papers' claim that device memory for boundaries is bounded by 2 N H b (Eq. 4) at no
 * cost in time, and that a budget is never an error.
 *
 * The policy (ops/sco_policy.h) says which boundaries go; this engine moves them.
 *
 *   forward, boundaries 0 1 2 chosen; out(l) = copy of x(l) to the host
 *
 *     main      layer 0 | layer 1       | layer 2       |            before x(l+1) is allocated,
 *     offload    out 0  |   out 1       |   out 2       |            main waits for out(l-1), and
 *                                 free 0          free 1   free 2    x(l-1) is freed
 *
 *   backward; in(l) = copy of x(l) to a new device block
 *
 *     main      |      | layer 2        | layer 1        | layer 0      recompute, then backward
 *     restore   | in 2 |  in 1          |  in 0          |              in(l-1) begins with layer l
 *
 * A boundary that is not chosen stays where it is. Two offloaded boundaries are on the device at
 * most: in forward the one at work and the one on its way out, in backward the one at work and the
 * one on its way in. The last copies out and the first copy in are exposed; between forward and
 * backward the device holds no chosen boundary at all, since the loss wants that memory.
 *
 * Bound: device max(2, L - |S|) N H b and a layer's working set; host the chosen boundaries,
 * rounded as pinned memory is. Bits: copies alone; the kernels are resident's, in its order. */
#include <stdlib.h>
#include "ops/stack_layer.h"

struct boundary {
    void *device, *host;           /* NULL where it is not */
    struct event copied, restored; /* past where there is no copy */
    bool chosen;
};

struct sco {
    struct stream *offload, *restore;
    int64_t bytes; /* of a boundary */
    struct boundary boundary[];
};

/* The boundary is on the host, if it is to go there, and its device block is freed. */
static void leave(struct stack *s, struct sco *sco, int64_t l)
{
    if (l < 0 || !sco->boundary[l].chosen)
        return;
    dev_wait(dev_main_stream(s->dev), sco->boundary[l].copied);
    dev_free(s->dev, sco->boundary[l].device);
    sco->boundary[l].device = NULL;
}

/* The boundary is final on the main stream: its copy may start. */
static void copy_out(struct stack *s, struct sco *sco, int64_t l)
{
    struct boundary *b = &sco->boundary[l];
    if (!b->chosen)
        return;
    b->host = stack_pool_block(s, l, sco->bytes);
    dev_wait_stream(sco->offload, dev_main_stream(s->dev));
    dev_copy_d2h(sco->offload, b->host, b->device, sco->bytes);
    b->copied = dev_record(sco->offload);
}

static void copy_in(struct stack *s, struct sco *sco, int64_t l)
{
    if (l < 0 || !sco->boundary[l].chosen)
        return;
    struct boundary *b = &sco->boundary[l];
    b->device = dev_alloc(s->dev, sco->bytes, LIVE_BOUNDARY, "restored boundary");
    dev_wait_stream(
        sco->restore, dev_main_stream(s->dev)); /* the block is new, the copy out past */
    dev_copy_h2d(sco->restore, b->device, b->host, sco->bytes);
    b->restored = dev_record(sco->restore);
}

static struct sco *open(struct stack *s)
{
    const int64_t layers = s->shape.layers;
    struct sco *sco = calloc(1, sizeof *sco + (size_t)layers * sizeof sco->boundary[0]);
    bool *chosen = malloc((size_t)layers * sizeof *chosen);
    if (!sco || !chosen) {
        free(sco);
        free(chosen);
        dev_fail(s->dev, DEV_FAILED, "sco: no host memory");
        return NULL;
    }
    sco->offload = dev_stream(s->dev, "offload");
    sco->restore = dev_stream(s->dev, "restore");
    sco->bytes = stack_row_bytes(&s->shape, s->rank);
    stack_choose(&s->shape, &s->options, s->rank, chosen);
    for (int64_t l = 0; l < layers; l++)
        sco->boundary[l].chosen = chosen[l];
    free(chosen);
    return sco;
}

static void release(struct stack *s)
{
    struct sco *sco = s->state;
    if (!sco)
        return;
    for (int64_t l = 0; l < s->shape.layers; l++)
        dev_free(s->dev, sco->boundary[l].device);
    free(sco);
    s->state = NULL;
}

static enum dev_status forward(struct stack *s)
{
    const int64_t layers = s->shape.layers;
    struct sco *sco = s->state = open(s);
    if (!sco)
        return dev_status(s->dev);
    sco->boundary[0].device = s->x;
    for (int64_t l = 0; l < layers; l++) {
        struct stack_kept kept = {0};
        const void *x = sco->boundary[l].device;
        copy_out(s, sco, l);
        stack_layer_hidden(s, l, x, STACK_FOR_OUTPUT, &kept);
        leave(s, sco, l - 1);
        void *y = stack_layer_output(s, l, x, &kept);
        stack_layer_leave(s, l, &kept);
        if (l + 1 < layers)
            sco->boundary[l + 1].device = y;
    }
    leave(s, sco, layers - 1);
    return dev_status(s->dev);
}

static enum dev_status backward(struct stack *s)
{
    const int64_t layers = s->shape.layers;
    struct sco *sco = s->state;
    if (!sco)
        return dev_status(s->dev);
    stack_backward_begin(s);
    copy_in(s, sco, layers - 1);
    for (int64_t l = layers - 1; l >= 0; l--) {
        struct stack_kept kept = {0};
        struct boundary *b = &sco->boundary[l];
        copy_in(s, sco, l - 1);
        dev_wait(dev_main_stream(s->dev), b->restored);
        stack_layer_recompute(s, l, b->device, &kept);
        stack_layer_backward(s, l, b->device, &kept);
        dev_free(s->dev, b->device);
        b->device = NULL;
    }
    return dev_status(s->dev);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Equal boundaries are chosen from the front: |S| tells which. */
static void replay(const struct stack_shape *shape, const struct stack_options *options,
    struct stack_ledger *ledger)
{
    const int rank = ledger->rank;
    const int64_t layers = shape->layers;
    const int64_t count = stack_choose(shape, options, rank, NULL).count;
    const int64_t pinned = sco_pinned_bytes(stack_row_bytes(shape, rank), options->budget.rounding);
    for (int64_t l = 0; l < layers; l++) {
        if (l < count)
            mem_add(&ledger->host, pinned, LIVE_BOUNDARY, "replay");
        stack_ledger_hidden(ledger, false);
        stack_ledger_boundary(ledger, l >= 1 && l - 1 < count ? -1 : 0);
        stack_ledger_output(ledger, l);
        stack_ledger_kept_free(ledger, false);
    }
    stack_ledger_boundary(ledger, count == layers ? -1 : 0);
    if (!ledger->backward)
        return;
    stack_ledger_backward_begin(ledger);
    stack_ledger_boundary(ledger, count == layers ? 1 : 0);
    for (int64_t l = layers - 1; l >= 0; l--) {
        stack_ledger_boundary(ledger, l >= 1 && l - 1 < count ? 1 : 0);
        stack_ledger_hidden(ledger, true);
        stack_ledger_kept_free(ledger, true);
        stack_ledger_boundary(ledger, -1);
    }
}

static int64_t bound_bytes(
    const struct stack_shape *shape, const struct stack_options *options, int rank, bool backward)
{
    int64_t left = shape->layers - stack_choose(shape, options, rank, NULL).count;
    return (left > 2 ? left : 2) * stack_row_bytes(shape, rank) +
           stack_working_bytes(shape, rank, backward);
}

const struct stack_impl stack_sco = {
    .name = "sco",
    .summary = "boundaries to the host as the budget allows, copies beside the kernels",
    .takes_budget = true,
    .takes_pool = true,
    .recomputes = 1,
    .forward = forward,
    .backward = backward,
    .release = release,
    .replay = replay,
    .bound_bytes = bound_bytes,
};
