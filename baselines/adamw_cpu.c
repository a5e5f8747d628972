/* cpu: the ZeRO-Offload kind. The host's cores update the state where it lies, in one vectorised
 * and threaded pass, and the new BF16 weights go up.
 *
 *   main   | (g down) | update on the host | weights up |
 *
 * Nothing of the optimizer is on the device; in exchange the host's memory and cores carry the
 * whole step, 30 bytes for each parameter, and nothing hides the copies. Host memory beyond the
 * state: the refreshed weights, 2 bytes for each parameter, and with device gradients their copy, 2
 * bytes more. */
#include "ops/adamw.h"
#include <stdlib.h>

struct cpu {
    uint16_t *refreshed; /* [Θ/W] on the host */
    uint16_t *gradients; /* [Θ/W] on the host, where they come from the device */
};

static void open(struct adamw *a)
{
    struct cpu *cpu = a->state = calloc(1, sizeof *cpu);
    if (!cpu) {
        dev_fail(a->dev, DEV_FAILED, "cpu: no host memory");
        return;
    }
    cpu->refreshed = dev_host_alloc(a->dev, a->shape.params * 2, LIVE_STAGING, "refreshed weights");
    if (a->options.gradients == ADAMW_DEVICE_BF16)
        cpu->gradients = dev_host_alloc(
            a->dev, a->shape.params * 2, LIVE_GRADIENTS, "gradients from the device");
}

static void close(struct adamw *a)
{
    struct cpu *cpu = a->state;
    if (!cpu)
        return;
    dev_host_free(a->dev, cpu->refreshed);
    dev_host_free(a->dev, cpu->gradients);
    free(cpu);
    a->state = NULL;
}

static void update_bucket(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    struct cpu *cpu = a->state;
    struct stream *main = dev_main_stream(a->dev);
    int64_t first = bucket->first, bf16_bytes = bucket->count * 2;
    const void *g = adamw_gradient_at(a, first);
    dev_wait(main, ready);
    if (a->options.gradients == ADAMW_DEVICE_BF16) {
        dev_copy_d2h(main, cpu->gradients + first, g, bf16_bytes);
        g = cpu->gradients + first;
    }
    struct adamw_args args = adamw_bucket_args(a, bucket, a->p + first, a->m + first, a->v + first,
        g, adamw_gradient_dtype(a->options.gradients), cpu->refreshed + first);
    dev_launch_host(main, &kernel_adamw, &args, sizeof args);
    dev_copy_h2d(main, a->weights + first, cpu->refreshed + first, bf16_bytes);
}

static int64_t expected_bytes(const struct adamw_shape *shape, const struct adamw_options *options,
    const struct adamw_plan *plan, int live_set)
{
    (void)shape;
    (void)plan;
    int64_t bytes[LIVE_SET_COUNT] = {[LIVE_WORKSPACE] = adamw_scan_device_bytes(options)};
    return adamw_sum_sets(bytes, live_set);
}

static int64_t expected_host_bytes(const struct adamw_shape *shape,
    const struct adamw_options *options, const struct adamw_plan *plan, int live_set)
{
    (void)plan;
    int64_t bytes[LIVE_SET_COUNT] = {[LIVE_OPTIMIZER] = ADAMW_STATE_BYTES * shape->params,
        [LIVE_STAGING] = 2 * shape->params,
        [LIVE_GRADIENTS] = options->gradients == ADAMW_DEVICE_BF16 ? 2 * shape->params : 0,
        [LIVE_WORKSPACE] = adamw_scan_host_bytes(options)};
    return adamw_sum_sets(bytes, live_set);
}

static int64_t bound_bytes(const struct adamw_shape *shape, const struct adamw_options *options)
{
    (void)shape;
    return adamw_scan_device_bytes(options);
}

const struct adamw_impl adamw_cpu_offload = {
    .name = "cpu",
    .summary = "vectorised AdamW on the host's cores, then the new weights go up",
    .open = open,
    .update_bucket = update_bucket,
    .close = close,
    .expected_bytes = expected_bytes,
    .expected_host_bytes = expected_host_bytes,
    .bound_bytes = bound_bytes,
};
