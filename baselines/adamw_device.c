/* device: all state resident on the device, the optimizer that needs no offloading. The fastest
 * where it fits, and what the others are there to avoid: 12 bytes for each parameter on the device,
 * and 4 more while gradients come from the host.
 *
 *   main   | (g up) | update |
 *
 * Unbounded: it grows with the parameters. */
#include "ops/adamw.h"

/* The gradients on the device, [Θ/W] FP32, where they come from the host. */
static void open(struct adamw *a)
{
    if (a->options.gradients == ADAMW_HOST_F32)
        a->state =
            dev_alloc(a->dev, a->shape.params * 4, LIVE_GRADIENTS, "gradients from the host");
}

static void close(struct adamw *a)
{
    dev_free(a->dev, a->state);
    a->state = NULL;
}

static void update_bucket(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    struct stream *main = dev_main_stream(a->dev);
    int64_t first = bucket->first;
    const void *g = adamw_gradient_at(a, first);
    dev_wait(main, ready);
    if (a->options.gradients == ADAMW_HOST_F32) {
        float *up = (float *)a->state + first;
        dev_copy_h2d(main, up, g, bucket->count * 4);
        g = up;
    }
    struct adamw_args args = adamw_bucket_args(a, bucket, a->p + first, a->m + first, a->v + first,
        g, adamw_gradient_dtype(a->options.gradients), a->weights + first);
    dev_launch(main, &kernel_adamw, &args, sizeof args);
}

static int64_t expected_bytes(const struct adamw_shape *shape, const struct adamw_options *options,
    const struct adamw_plan *plan, int live_set)
{
    (void)plan;
    bool from_host = options->gradients == ADAMW_HOST_F32;
    int64_t bytes[LIVE_SET_COUNT] = {[LIVE_OPTIMIZER] = ADAMW_STATE_BYTES * shape->params,
        [LIVE_GRADIENTS] = from_host ? 4 * shape->params : 0,
        [LIVE_WORKSPACE] = adamw_scan_device_bytes(options)};
    return adamw_sum_sets(bytes, live_set);
}

static int64_t expected_host_bytes(const struct adamw_shape *shape,
    const struct adamw_options *options, const struct adamw_plan *plan, int live_set)
{
    (void)shape;
    (void)plan;
    int64_t bytes[LIVE_SET_COUNT] = {[LIVE_WORKSPACE] = adamw_scan_host_bytes(options)};
    return adamw_sum_sets(bytes, live_set);
}

const struct adamw_impl adamw_device = {
    .name = "device",
    .summary = "all state resident on the device, updated in place",
    .state_on_device = true,
    .open = open,
    .update_bucket = update_bucket,
    .close = close,
    .expected_bytes = expected_bytes,
    .expected_host_bytes = expected_host_bytes,
};
