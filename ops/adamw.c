/* What every implementation of the offloaded optimizer shares: the table, the state's place, and
 * the life of a step from begin through readiness to finish. */
#include "ops/adamw.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ops/adamw_scan.h"

const struct adamw_impl *const adamw_impls[] = {
    &adamw_device,
    &adamw_cpu_offload,
    &adamw_staged,
    &adamw_offload_stream,
    NULL,
};

/* ---- options ------------------------------------------------------------------------------- */

static int refuse(char *error, int size, const char *what, double found, const char *allowed)
{
    snprintf(error, (size_t)size, "%s: got %g, allowed %s", what, found, allowed);
    return -1;
}

static int check_hyper(const struct adamw_hyper *hyper, char *error, int size)
{
    if (!isfinite(hyper->lr))
        return refuse(error, size, "learning rate", hyper->lr, "a finite number");
    if (!(hyper->b1 >= 0 && hyper->b1 < 1))
        return refuse(error, size, "beta1", hyper->b1, "at least 0 and below 1");
    if (!(hyper->b2 >= 0 && hyper->b2 < 1))
        return refuse(error, size, "beta2", hyper->b2, "at least 0 and below 1");
    if (!(hyper->eps >= 0 && isfinite(hyper->eps)))
        return refuse(error, size, "eps", hyper->eps, "a finite number of at least 0");
    if (!isfinite(hyper->wd))
        return refuse(error, size, "weight decay", hyper->wd, "a finite number");
    return 0;
}

int adamw_check_options(const struct adamw_options *options, char *error, int size)
{
    if (options->bucket < 0)
        return refuse(error, size, "bucket", (double)options->bucket, "at least 1 parameter");
    if (options->slots < 0 || options->slots > ADAMW_SLOTS_MAX)
        return refuse(error, size, "slots", options->slots, "1 to 16");
    if (!(options->scale > 0 && isfinite((float)options->scale)))
        return refuse(error, size, "gradient scale", options->scale, "above 0 and finite in FP32");
    if (!(options->clip >= 0 && isfinite(options->clip)))
        return refuse(error, size, "clip", options->clip, "a finite norm, or 0 for none");
    for (int group = 0; group < ADAMW_GROUPS; group++)
        if (check_hyper(&options->hyper[group], error, size))
            return -1;
    return 0;
}

struct adamw_options adamw_resolve(const struct adamw_impl *impl, const struct adamw_shape *shape,
    const struct adamw_options *options)
{
    struct adamw_options resolved = *options;
    if (!resolved.bucket)
        resolved.bucket = ADAMW_BUCKET_DEFAULT;
    if (!resolved.slots)
        resolved.slots = ADAMW_SLOTS_DEFAULT;
    if (!impl->takes_bucket) {
        resolved.bucket = shape->params > 0 ? shape->params : 1;
        resolved.whole_tensors = false;
    }
    if (!impl->takes_slots)
        resolved.slots = 1;
    return resolved;
}

int64_t adamw_slot_bytes(enum adamw_gradients gradients)
{
    return ADAMW_STATE_BYTES + (gradients == ADAMW_HOST_F32 ? (int64_t)sizeof(float) : 0);
}

int64_t adamw_sum_sets(const int64_t *set_bytes, int live_set)
{
    int64_t sum = 0;
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        sum += live_set < 0 || set == live_set ? set_bytes[set] : 0;
    return sum;
}

/* ---- open and close ------------------------------------------------------------------------ */

static float *alloc_state(struct adamw *a, const char *label)
{
    int64_t bytes = a->shape.params * (int64_t)sizeof(float);
    return a->impl->state_on_device ? dev_alloc(a->dev, bytes, LIVE_OPTIMIZER, label)
                                    : dev_host_alloc(a->dev, bytes, LIVE_OPTIMIZER, label);
}

static int build_plan(struct adamw *a)
{
    if (a->options.whole_tensors)
        return adamw_plan_whole_tensors(&a->plan, &a->shape, a->options.bucket);
    return adamw_plan_cut(&a->plan, &a->shape, a->options.bucket);
}

enum dev_status adamw_open(struct adamw *a, const struct adamw_impl *impl)
{
    char error[160];
    a->impl = impl;
    a->t = 0;
    a->begun = false;
    a->ready = NULL;
    a->is_ready = NULL;
    a->state = NULL;
    a->scan = NULL;
    a->plan = (struct adamw_plan){0};
    a->report = (struct adamw_report){.norm = NAN, .factor = NAN, .first_tensor = -1};
    a->p = a->m = a->v = NULL;
    if (adamw_check_options(&a->options, error, sizeof error)) {
        dev_fail(a->dev, DEV_FAILED, "%s: %s", impl->name, error);
        return dev_status(a->dev);
    }
    a->options = adamw_resolve(impl, &a->shape, &a->options);
    if (build_plan(a) == 0) {
        a->ready = calloc((size_t)a->plan.buckets + 1, sizeof *a->ready);
        a->is_ready = calloc((size_t)a->plan.buckets + 1, sizeof *a->is_ready);
    }
    if (!a->ready || !a->is_ready) {
        dev_fail(a->dev, DEV_FAILED, "%s: no host memory for the bucket plan", impl->name);
        return dev_status(a->dev);
    }
    a->p = alloc_state(a, "master parameters");
    a->m = alloc_state(a, "first moments");
    a->v = alloc_state(a, "second moments");
    adamw_scan_open(a);
    impl->open(a);
    return dev_status(a->dev);
}

static void free_state(struct adamw *a, float *block)
{
    if (a->impl->state_on_device)
        dev_free(a->dev, block);
    else
        dev_host_free(a->dev, block);
}

void adamw_close(struct adamw *a)
{
    dev_sync(a->dev);
    if (a->impl->close)
        a->impl->close(a);
    adamw_scan_close(a);
    free_state(a, a->p);
    free_state(a, a->m);
    free_state(a, a->v);
    a->p = a->m = a->v = NULL;
    free(a->ready);
    free(a->is_ready);
    a->ready = NULL;
    a->is_ready = NULL;
    adamw_plan_free(&a->plan);
}

static float *state_array(const struct adamw *a, enum adamw_array array)
{
    return array == ADAMW_P ? a->p : array == ADAMW_M ? a->m : a->v;
}

void adamw_write_state(
    struct adamw *a, enum adamw_array array, int64_t first, int64_t count, const float *values)
{
    dev_write(a->dev, state_array(a, array) + first, values, count * (int64_t)sizeof *values);
}

void adamw_read_state(
    struct adamw *a, enum adamw_array array, int64_t first, int64_t count, float *values)
{
    dev_read(a->dev, values, state_array(a, array) + first, count * (int64_t)sizeof *values);
}

/* ---- the constants of a step --------------------------------------------------------------- */

/* base^exponent, by squaring from the exponent's lowest bit up. */
static double power(double base, int64_t exponent)
{
    double result = 1.0;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1)
            result = result * base;
        base = base * base;
    }
    return result;
}

struct adamw_constants adamw_constants_at(const struct adamw_hyper *hyper, int64_t t, double factor)
{
    return (struct adamw_constants){.scale = (float)factor,
        .b1 = (float)hyper->b1,
        .c1 = (float)(1.0 - hyper->b1),
        .b2 = (float)hyper->b2,
        .c2 = (float)(1.0 - hyper->b2),
        .rs = (float)(1.0 / sqrt(1.0 - power(hyper->b2, t))),
        .eps = (float)hyper->eps,
        .step = (float)(hyper->lr / (1.0 - power(hyper->b1, t))),
        .decay = (float)(1.0 - hyper->lr * hyper->wd)};
}

static void set_constants(struct adamw *a, double factor)
{
    a->report.factor = factor;
    for (int group = 0; group < ADAMW_GROUPS; group++)
        a->constants[group] = adamw_constants_at(&a->options.hyper[group], a->t + 1, factor);
}

struct adamw_args adamw_bucket_args(const struct adamw *a, const struct adamw_bucket *bucket,
    float *p, float *m, float *v, const void *g, enum dtype g_type, uint16_t *w)
{
    return (struct adamw_args){.count = bucket->count,
        .p = p,
        .m = m,
        .v = v,
        .g = g,
        .g_type = g_type,
        .w = w,
        .constants = a->constants[bucket->group]};
}

const void *adamw_gradient_at(const struct adamw *a, int64_t first)
{
    return (const char *)a->gradients +
           first * dtype_bytes(adamw_gradient_dtype(a->options.gradients));
}

/* ---- a step -------------------------------------------------------------------------------- */

bool adamw_starts_early(const struct adamw_options *options)
{
    return options->nonfinite == ADAMW_PROPAGATE && !(options->clip > 0);
}

static enum dev_status wrong_call(struct adamw *a, const char *what)
{
    dev_fail(a->dev, DEV_FAILED, "%s: %s", a->impl->name, what);
    return dev_status(a->dev);
}

enum dev_status adamw_begin(struct adamw *a)
{
    if (a->begun)
        return wrong_call(a, "a step was begun before the last one was finished");
    a->begun = true;
    a->ready_count = 0;
    memset(a->is_ready, 0, (size_t)a->plan.buckets * sizeof *a->is_ready);
    a->report = (struct adamw_report){.norm = NAN, .factor = NAN, .first_tensor = -1};
    if (adamw_starts_early(&a->options))
        set_constants(a, a->options.scale);
    return dev_status(a->dev);
}

enum dev_status adamw_bucket_ready(struct adamw *a, int64_t bucket, struct event gradients_final)
{
    char what[128];
    if (!a->begun)
        return wrong_call(a, "a bucket became ready outside a step");
    if (bucket < 0 || bucket >= a->plan.buckets || a->is_ready[bucket]) {
        snprintf(what, sizeof what, "bucket %lld %s; allowed: each of 0 .. %lld once a step",
            (long long)bucket,
            bucket < 0 || bucket >= a->plan.buckets ? "is not in the plan" : "was ready before",
            (long long)a->plan.buckets - 1);
        return wrong_call(a, what);
    }
    a->is_ready[bucket] = true;
    a->ready[a->ready_count++] = bucket;
    if (adamw_starts_early(&a->options))
        a->impl->update_bucket(a, &a->plan.bucket[bucket], gradients_final);
    else
        dev_wait(adamw_scan_stream(a), gradients_final);
    return dev_status(a->dev);
}

/* The scan's verdict on a step that could not start early; then its updates. */
static void decide_and_update(struct adamw *a)
{
    if (adamw_scan_run(a) != DEV_OK || a->report.skipped)
        return;
    set_constants(a, adamw_scan_factor(a));
    struct event past = {0}; /* the scan's verdict is on the host: every gradient is final */
    for (int64_t i = 0; i < a->plan.buckets; i++)
        a->impl->update_bucket(a, &a->plan.bucket[a->ready[i]], past);
}

enum dev_status adamw_finish(struct adamw *a)
{
    char what[128];
    if (!a->begun)
        return wrong_call(a, "finish without a step");
    a->begun = false;
    for (int64_t bucket = 0; bucket < a->plan.buckets; bucket++)
        if (!a->is_ready[bucket]) {
            snprintf(what, sizeof what, "bucket %lld of %lld was never ready", (long long)bucket,
                (long long)a->plan.buckets);
            return wrong_call(a, what);
        }
    if (!adamw_starts_early(&a->options))
        decide_and_update(a);
    if (a->impl->finish)
        a->impl->finish(a);
    if (!a->report.skipped)
        a->t++;
    return dev_status(a->dev);
}

enum dev_status adamw_step(struct adamw *a)
{
    adamw_begin(a);
    struct event now = dev_record(dev_main_stream(a->dev));
    for (int64_t bucket = 0; bucket < a->plan.buckets && dev_status(a->dev) == DEV_OK; bucket++)
        adamw_bucket_ready(a, bucket, now);
    return dev_status(a->dev) == DEV_OK ? adamw_finish(a) : dev_status(a->dev);
}
