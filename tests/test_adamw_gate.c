/* The optimizer's gate: what its checks must catch, done on purpose by implementations that are
 * offload-stream with one thing wrong. */
#include <stdio.h>
#include <string.h>
#include "ops/offload_stream.h"
#include "tests/adamw_case.h"
#include "tests/tap.h"

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif
#ifndef THREAD_SANITIZER
#define THREAD_SANITIZER 0
#endif

/* offload-stream, to be made wrong in one place. */
static struct adamw_impl wrong(void)
{
    struct adamw_impl impl = adamw_offload_stream;
    impl.name = "wrong";
    return impl;
}

/* The case must fail, and say all of the words. */
static void must_fail(
    const struct adamw_case *c, const char *what, const char *word1, const char *word2)
{
    char text[512] = "";
    bool passed = adamw_case_run(c, NULL, text, sizeof text);
    bool caught = !passed && strstr(text, word1) && strstr(text, word2);
    tap_ok(caught, "%s: %s", what, passed ? "passed" : text);
}

/* ---- a slot reused before its write-back finished ------------------------------------------ */

static void reuse_slot(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    offload_stream_bucket(a, bucket, ready, true);
}

static void test_reused_slot(void)
{
    struct adamw_impl impl = wrong();
    struct adamw_case c = adamw_case_default(&impl);
    impl.update_bucket = reuse_slot;
    c.check_order = true;
    must_fail(&c, "the order check finds a slot reused too early", "slot of", "no event orders");
    if (THREAD_SANITIZER) {
        tap_skip("a data race on purpose", "the bits show a slot reused too early");
        return;
    }
    /* Downloads so slow that the next upload into the slot comes before them. */
    c.check_order = false;
    c.down_bytes_per_s = 1e6;
    must_fail(&c, "the bits show a slot reused too early", "differ", ", ");
}

/* ---- buckets ------------------------------------------------------------------------------- */

static void update_twice(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    adamw_offload_stream.update_bucket(a, bucket, ready);
    if (bucket->first == 0)
        adamw_offload_stream.update_bucket(a, bucket, ready);
}

static void update_not_the_last(
    struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    if (bucket != &a->plan.bucket[a->plan.buckets - 1])
        adamw_offload_stream.update_bucket(a, bucket, ready);
}

static void update_one_short(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    struct adamw_bucket cut = *bucket;
    cut.count--;
    adamw_offload_stream.update_bucket(a, &cut, ready);
}

static void update_in_the_other_group(
    struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    struct adamw_bucket other = *bucket;
    other.group = ADAMW_DECAY;
    adamw_offload_stream.update_bucket(a, &other, ready);
}

static void test_buckets(void)
{
    static const struct {
        void (*update)(struct adamw *, const struct adamw_bucket *, struct event);
        const char *what;
    } faults[] = {{update_twice, "a bucket updated twice"},
        {update_not_the_last, "a bucket left out"},
        {update_one_short, "the last element of each bucket left out"},
        {update_in_the_other_group, "a bucket with the other group's hyperparameters"}};
    for (int i = 0; i < 4; i++) {
        struct adamw_impl impl = wrong();
        struct adamw_case c = adamw_case_default(&impl);
        impl.update_bucket = faults[i].update;
        c.options.slots = 1; /* what comes twice comes after what came once */
        must_fail(&c, faults[i].what, ", p[", "differ");
    }
}

/* ---- bits and memory ----------------------------------------------------------------------- */

/* Element 4711 of the tensor "weight" loses the lowest bit of its second moment. */
static void finish_flipped(struct adamw *a)
{
    adamw_offload_stream.finish(a);
    const struct adamw_part *part = &a->shape.part[4];
    float v;
    adamw_read_state(a, ADAMW_V, part->first + 4711, 1, &v);
    v = f32_from_bits(f32_bits(v) ^ 1u);
    adamw_write_state(a, ADAMW_V, part->first + 4711, 1, &v);
}

static void *extra; /* the block that the wrong implementations take besides */

static void open_one_byte_more(struct adamw *a)
{
    adamw_offload_stream.open(a);
    extra = dev_alloc(a->dev, 1, LIVE_STAGING, "one byte more");
}

static void close_one_byte_more(struct adamw *a)
{
    dev_free(a->dev, extra);
    adamw_offload_stream.close(a);
}

static void open_one_host_byte_more(struct adamw *a)
{
    adamw_offload_stream.open(a);
    extra = dev_host_alloc(a->dev, 1, LIVE_OPTIMIZER, "one byte more");
}

static void close_one_host_byte_more(struct adamw *a)
{
    dev_host_free(a->dev, extra);
    adamw_offload_stream.close(a);
}

static void open_and_forget(struct adamw *a)
{
    adamw_offload_stream.open(a);
    dev_alloc(a->dev, 1, LIVE_STAGING, "forgotten");
}

static void test_bits_and_memory(void)
{
    struct adamw_impl impl = wrong();
    struct adamw_case c = adamw_case_default(&impl);
    impl.finish = finish_flipped;
    must_fail(&c, "one bit of one moment", "weight[4711], v[", "1 of ");

    impl = wrong();
    impl.open = open_one_byte_more;
    impl.close = close_one_byte_more;
    must_fail(&c, "one byte more on the device", "staging", "closed form");

    impl = wrong();
    impl.open = open_one_host_byte_more;
    impl.close = close_one_host_byte_more;
    must_fail(&c, "one byte more on the host", "pinned", "closed form");

    impl = wrong();
    impl.open = open_and_forget;
    must_fail(&c, "a block that is not freed", "left", "bytes allocated");

    c.impl = &adamw_offload_stream;
    c.device_limit_bytes = ADAMW_CASE_PARAMS * 2 + 2 * 1000 * 16 - 1;
    must_fail(&c, "a device one byte too small", "staging", "slot of");
    char text[512];
    c.device_limit_bytes++;
    tap_ok(adamw_case_run(&c, NULL, text, sizeof text), "a device just large enough: %s", text);
}

/* ---- calls out of turn --------------------------------------------------------------------- */

static void finish_again(struct adamw *a)
{
    adamw_offload_stream.finish(a);
    if (a->t == 0)
        adamw_finish(a); /* the step is already being finished */
}

static void ready_again(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    adamw_offload_stream.update_bucket(a, bucket, ready);
    adamw_bucket_ready(a, 0, ready);
}

static void begin_again(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    adamw_offload_stream.update_bucket(a, bucket, ready);
    adamw_begin(a);
}

static void ready_beyond(struct adamw *a, const struct adamw_bucket *bucket, struct event ready)
{
    adamw_offload_stream.update_bucket(a, bucket, ready);
    adamw_bucket_ready(a, a->plan.buckets, ready);
}

static void test_calls(void)
{
    struct adamw_impl impl = wrong();
    struct adamw_case c = adamw_case_default(&impl);
    impl.finish = finish_again;
    must_fail(&c, "finish twice", "finish without", "step");

    c.options.clip = 0;
    c.options.nonfinite = ADAMW_PROPAGATE; /* buckets start at once: within adamw_bucket_ready */
    impl = wrong();
    impl.update_bucket = ready_again;
    must_fail(&c, "a bucket ready twice", "bucket 0", "ready before");
    impl.update_bucket = ready_beyond;
    must_fail(&c, "a bucket beyond the plan", "not in the plan", "allowed");
    impl.update_bucket = begin_again;
    must_fail(&c, "begin twice", "begun", "finished");
}

static int missing_bucket(struct rank *rank, void *context)
{
    struct adamw a = {.options = adamw_case_default(NULL).options, .dev = rank->dev};
    (void)context;
    if (adamw_shape_init(&a.shape, adamw_case_tensors, ADAMW_CASE_TENSORS, 1, 0))
        return -1;
    a.weights = dev_alloc(rank->dev, a.shape.params * 2, LIVE_WEIGHTS, "weights");
    void *gradients = dev_host_alloc(rank->dev, a.shape.params * 4, LIVE_GRADIENTS, "gradients");
    a.gradients = gradients;
    if (adamw_open(&a, &adamw_offload_stream) == DEV_OK) {
        adamw_begin(&a);
        for (int64_t i = 0; i < a.plan.buckets; i++)
            if (i != 3)
                adamw_bucket_ready(&a, i, (struct event){0});
        adamw_finish(&a);
    }
    adamw_close(&a);
    dev_host_free(rank->dev, gradients);
    dev_free(rank->dev, a.weights);
    adamw_shape_free(&a.shape);
    return dev_status(rank->dev) == DEV_OK ? 0 : -1;
}

static void test_missing_bucket(void)
{
    struct dev_pool *pool = dev_pool_create(1);
    struct ranks_config config = {
        .count = 1, .device = {.kind = DEV_CPU, .kernel_threads = 1, .pool = pool}};
    struct ranks_failure failure = {0};
    int status = ranks_run(&config, missing_bucket, NULL, &failure);
    tap_ok(status && strstr(failure.message, "bucket 3 of 14 was never ready"),
        "a bucket that never became ready: %s", failure.message);
    dev_pool_free(pool);
}

/* ---- gradients that are not finite --------------------------------------------------------- */

static void test_nonfinite(void)
{
    static float g[ADAMW_CASE_PARAMS];
    static const float bad[] = {INFINITY, -INFINITY, NAN, 2e38f};
    for (int i = 0; adamw_impls[i]; i++)
        for (int kind = 0; kind < 4; kind++) {
            struct adamw_case c = adamw_case_default(adamw_impls[i]);
            struct adamw_report report;
            char text[512] = "";
            memset(g, 0, sizeof g);
            g[1 + 4099 + 5] = bad[kind]; /* of "odd" */
            g[1 + 4099 + 37 + 8000] = bad[kind];
            c.g = g;
            c.steps = 2;
            if (kind == 3) { /* finite, but not once it is scaled */
                c.options.clip = 0;
                c.options.scale = 2;
            }
            bool fine = adamw_case_run(&c, &report, text, sizeof text);
            tap_ok(fine && report.skipped && report.nonfinite == 2 && report.first_tensor == 2,
                "%s leaves all as it was for gradients of %g: %lld, the first in tensor %lld %s",
                c.impl->name, (double)bad[kind], (long long)report.nonfinite,
                (long long)report.first_tensor, text);
        }
}

int main(void)
{
    char text[512];
    struct adamw_case c = adamw_case_default(&adamw_offload_stream);
    tap_ok(
        adamw_case_run(&c, NULL, text, sizeof text), "without a fault the case passes: %s", text);
    test_reused_slot();
    test_buckets();
    test_bits_and_memory();
    test_calls();
    test_missing_bucket();
    test_nonfinite();
    return tap_done();
}
