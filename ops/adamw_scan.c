/* The scan of all gradients before a step.
 *
 * It runs where the gradients are: device BF16 gradients are scanned by the device and 24 bytes
 * come home, host FP32 gradients by the host's cores. Its workspace is a constant, 16 KiB of block
 * sums and the running result, whatever the number of parameters. The main stream carries it, and
 * the host waits for it: the clipping factor is an argument of every update that follows. */
#include "ops/adamw_scan.h"
#include <math.h>
#include <stdlib.h>

/* Both where the gradients are. */
struct adamw_scan {
    struct gradient_scan_block *scratch;
    struct gradient_scan *result;
};

static bool on_device(const struct adamw *a)
{
    return a->options.gradients == ADAMW_DEVICE_BF16;
}

static bool needed(const struct adamw_options *options)
{
    return options->nonfinite == ADAMW_REFUSE || options->clip > 0;
}

#define SCRATCH_BYTES ((int64_t)GRADIENT_SCAN_BLOCKS * (int64_t)sizeof(struct gradient_scan_block))
#define RESULT_BYTES ((int64_t)sizeof(struct gradient_scan))

int64_t adamw_scan_device_bytes(const struct adamw_options *options)
{
    bool there = options->gradients == ADAMW_DEVICE_BF16;
    return needed(options) && there ? SCRATCH_BYTES + RESULT_BYTES : 0;
}

int64_t adamw_scan_host_bytes(const struct adamw_options *options)
{
    bool here = options->gradients == ADAMW_HOST_F32;
    return needed(options) && here ? SCRATCH_BYTES + RESULT_BYTES : 0;
}

void adamw_scan_open(struct adamw *a)
{
    if (!needed(&a->options))
        return;
    struct adamw_scan *scan = a->scan = calloc(1, sizeof *scan);
    if (!scan) {
        dev_fail(a->dev, DEV_FAILED, "%s: no host memory", a->impl->name);
        return;
    }
    const char *sums = "block sums of the gradient scan", *result = "result of the gradient scan";
    if (on_device(a)) {
        scan->result = dev_alloc(a->dev, RESULT_BYTES, LIVE_WORKSPACE, result);
        scan->scratch = dev_alloc(a->dev, SCRATCH_BYTES, LIVE_WORKSPACE, sums);
    } else {
        scan->result = dev_host_alloc(a->dev, RESULT_BYTES, LIVE_WORKSPACE, result);
        scan->scratch = dev_host_alloc(a->dev, SCRATCH_BYTES, LIVE_WORKSPACE, sums);
    }
}

void adamw_scan_close(struct adamw *a)
{
    struct adamw_scan *scan = a->scan;
    if (!scan)
        return;
    if (on_device(a)) {
        dev_free(a->dev, scan->result);
        dev_free(a->dev, scan->scratch);
    } else {
        dev_host_free(a->dev, scan->result);
        dev_host_free(a->dev, scan->scratch);
    }
    free(scan);
    a->scan = NULL;
}

struct stream *adamw_scan_stream(struct adamw *a)
{
    return dev_main_stream(a->dev);
}

static void launch(struct adamw *a, const struct gradient_scan_args *args)
{
    if (on_device(a))
        dev_launch(adamw_scan_stream(a), &kernel_gradient_scan, args, sizeof *args);
    else
        dev_launch_host(adamw_scan_stream(a), &kernel_gradient_scan, args, sizeof *args);
}

/* One launch for each GRADIENT_SCAN_ELEMENTS of a tensor; each continues the chain of the last. */
static void enqueue(struct adamw *a)
{
    enum dtype type = adamw_gradient_dtype(a->options.gradients);
    /* Clipping brings every gradient below the clip: only without it can the scale overflow one. */
    float scale = a->options.clip > 0 ? 1.0f : (float)a->options.scale;
    bool fresh = true;
    for (int64_t i = 0; i < a->shape.tensors; i++) {
        const struct adamw_part *part = &a->shape.part[i];
        for (int64_t done = 0; done < part->count; done += GRADIENT_SCAN_ELEMENTS) {
            int64_t left = part->count - done;
            launch(a, &(struct gradient_scan_args){.g = adamw_gradient_at(a, part->first + done),
                          .g_type = type,
                          .count = left < GRADIENT_SCAN_ELEMENTS ? left : GRADIENT_SCAN_ELEMENTS,
                          .scale = scale,
                          .tensor = i,
                          .fresh = fresh,
                          .scan = a->scan->result,
                          .scratch = a->scan->scratch});
            fresh = false;
        }
    }
}

/* This rank's result. A simulated device is told that every sum of squares is 1 and all is finite.
 */
static struct gradient_scan mine(struct adamw *a)
{
    const struct gradient_scan simulated = {.sum = 1.0, .first_tensor = -1};
    struct gradient_scan scan = {.first_tensor = -1};
    if (a->shape.params)
        dev_fetch(adamw_scan_stream(a), &scan, a->scan->result, RESULT_BYTES, &simulated);
    return scan;
}

/* Every rank adds the sums in rank order. */
static int over_ranks(struct adamw *a, struct gradient_scan *scan)
{
    int ranks = a->comm ? comm_size(a->comm) : 1;
    if (ranks == 1)
        return 0;
    struct gradient_scan *all = malloc((size_t)ranks * sizeof *all);
    int status = all ? comm_host_all_gather(a->comm, scan, all, sizeof *all) : -1;
    if (!all)
        dev_fail(a->dev, DEV_FAILED, "%s: no host memory", a->impl->name);
    scan->sum = 0.0;
    scan->nonfinite = 0;
    for (int r = 0; r < ranks && status == 0; r++) {
        scan->sum = scan->sum + all[r].sum;
        scan->nonfinite += all[r].nonfinite;
    }
    free(all);
    return status;
}

enum dev_status adamw_scan_run(struct adamw *a)
{
    enqueue(a);
    struct gradient_scan scan = mine(a);
    if (dev_status(a->dev) != DEV_OK)
        return dev_status(a->dev);
    if (over_ranks(a, &scan)) {
        dev_fail(a->dev, DEV_ABORTED, "%s: another rank failed", a->impl->name);
        return dev_status(a->dev);
    }
    a->report.norm = a->options.scale * sqrt(scan.sum);
    a->report.nonfinite = scan.nonfinite;
    a->report.first_tensor = scan.first_tensor;
    a->report.skipped = scan.nonfinite && a->options.nonfinite == ADAMW_REFUSE;
    return dev_status(a->dev);
}

double adamw_scan_factor(const struct adamw *a)
{
    double norm = a->report.norm, clip = a->options.clip;
    return clip > 0 && norm > clip ? a->options.scale * (clip / norm) : a->options.scale;
}
