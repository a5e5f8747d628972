/* The optimizer family against its reference: every implementation, bucket size, slot count,
 * instruction set, thread count and order of readiness gives the same bits, within the FP64 bounds,
 * in exactly the memory that the closed forms say. */
#include <stdio.h>
#include <string.h>
#include "kernels/isa.h"
#include "tests/adamw_case.h"
#include "tests/tap.h"

static int64_t failed, ran;
static char first_failure[1024];

/* One of many like it: they make one line of TAP together. */
static void run(const struct adamw_case *c)
{
    char text[512];
    ran++;
    if (adamw_case_run(c, NULL, text, sizeof text))
        return;
    if (!failed++)
        snprintf(first_failure, sizeof first_failure,
            "%s, bucket %lld, slots %d, %d threads, %lld steps, %d ranks of %d: %s", c->impl->name,
            (long long)c->options.bucket, c->options.slots, c->threads, (long long)c->steps,
            c->ranks, c->world, text);
}

static void report(const char *what)
{
    tap_ok(!failed && ran, "%s: %lld runs", what, (long long)ran);
    if (failed)
        tap_note("%lld failed, the first: %s", (long long)failed, first_failure);
    failed = ran = 0;
}

static void set_gradients(struct adamw_case *c, int i)
{
    c->options.gradients = i ? ADAMW_DEVICE_BF16 : ADAMW_HOST_F32;
}

static void test_steps(void)
{
    static const int64_t steps[] = {1, 2, 10};
    for (int i = 0; adamw_impls[i]; i++)
        for (int gradients = 0; gradients < 2; gradients++)
            for (int s = 0; s < 3; s++) {
                struct adamw_case c = adamw_case_default(adamw_impls[i]);
                set_gradients(&c, gradients);
                c.steps = steps[s];
                run(&c);
            }
    report("every implementation after 1, 2 and 10 steps, gradients on host and device");
}

static void test_buckets(void)
{
    /* 1 is tried on a smaller problem; the last two are the whole and more than the whole. */
    static const int64_t buckets[] = {
        7, 15, 16, 17, 31, 33, 64, 255, 1023, 1025, 4096, 4099, ADAMW_CASE_PARAMS, 1 << 20};
    for (int b = 0; b < 14; b++)
        for (int slots = 1; slots <= 4; slots++) {
            struct adamw_case c = adamw_case_default(&adamw_offload_stream);
            c.options.bucket = buckets[b];
            c.options.slots = slots;
            set_gradients(&c, (b + slots) % 2);
            if (buckets[b] < 64 && slots % 2 == 0)
                continue;
            run(&c);
            c.options.whole_tensors = true;
            if (slots == 2)
                run(&c);
            c.options.whole_tensors = false;
            c.impl = &adamw_staged;
            if (slots == 1)
                run(&c);
        }
    static const struct adamw_tensor small[] = {{"a", 67, ADAMW_DECAY}, {"b", 3, ADAMW_NO_DECAY}};
    struct adamw_case c = adamw_case_default(&adamw_offload_stream);
    c.tensor = small;
    c.tensors = 2;
    for (c.options.bucket = 1; c.options.bucket < 72; c.options.bucket++)
        run(&c);
    report("buckets from 1 to more than all parameters, 1 to 4 slots, cut and whole tensors");
}

static void test_isas(void)
{
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (isa_force((enum isa)isa)) {
            tap_skip("this CPU cannot run it", "bits of %s", isa_name((enum isa)isa));
            continue;
        }
        for (int i = 0; adamw_impls[i]; i++)
            for (int gradients = 0; gradients < 2; gradients++)
                for (int threads = 1; threads <= 4; threads++) {
                    struct adamw_case c = adamw_case_default(adamw_impls[i]);
                    set_gradients(&c, gradients);
                    c.threads = threads;
                    c.options.bucket = 3001;
                    c.options.clip = threads % 2 ? c.options.clip : 0;
                    run(&c);
                }
        report(isa_name((enum isa)isa));
    }
    char error[256];
    isa_from_environment(error, sizeof error);
}

static void test_extremes(void)
{
    for (int i = 0; adamw_impls[i]; i++)
        for (int eps = 0; eps < 2; eps++)
            for (int isa = 0; isa < ISA_COUNT; isa++) {
                struct adamw_case c = adamw_case_default(adamw_impls[i]);
                if (isa_force((enum isa)isa))
                    continue;
                c.extremes = true;
                c.steps = 3;
                c.options.clip = 0;
                c.options.scale = 1;
                c.options.hyper[0].wd = 0;
                c.options.hyper[0].eps = eps ? c.options.hyper[0].eps : 0;
                c.options.hyper[1].eps = c.options.hyper[0].eps;
                run(&c);
                c.options.nonfinite = ADAMW_PROPAGATE;
                c.nonfinite = 5;
                run(&c);
            }
    char error[256];
    isa_from_environment(error, sizeof error);
    report("denormal, huge and zero values, wd = 0, eps = 0 with v = 0, infinities let through");
}

static void test_late_steps(void)
{
    static const int64_t first[] = {2, 1000, (INT64_C(1) << 31) - 1, INT64_C(1) << 40};
    for (int i = 0; i < 4; i++)
        for (int extreme = 0; extreme < 2; extreme++) {
            struct adamw_case c = adamw_case_default(&adamw_offload_stream);
            c.first_step = first[i];
            c.steps = 2;
            c.options.hyper[0].b1 = extreme ? 0 : 0.9;
            c.options.hyper[0].b2 = extreme ? 1 - 0x1p-20 : 0.95;
            run(&c);
        }
    report("steps up to 2^40");
}

static void test_ranks(void)
{
    for (int i = 0; adamw_impls[i]; i++)
        for (int ranks = 1; ranks <= 4; ranks++)
            for (int spare = 0; spare < 3; spare += 2) {
                struct adamw_case c = adamw_case_default(adamw_impls[i]);
                c.ranks = ranks;
                c.world = ranks + spare;
                c.steps = 2;
                run(&c);
            }
    report("shards over 1 to 4 ranks, all of a world and a part of it");
}

static void test_readiness(void)
{
    for (int i = 0; adamw_impls[i]; i++)
        for (uint64_t shuffle = 1; shuffle <= 8; shuffle++) {
            struct adamw_case c = adamw_case_default(adamw_impls[i]);
            c.shuffle = shuffle;
            c.steps = 3;
            c.options.slots = (int)(1 + shuffle % 4);
            set_gradients(&c, (int)(shuffle / 4 % 2));
            if (shuffle % 2) { /* buckets start at once */
                c.options.clip = 0;
                c.options.nonfinite = ADAMW_PROPAGATE;
            }
            run(&c);
        }
    report("any order of readiness, started early or after the scan");
}

static void test_order_is_proved(void)
{
    for (int i = 0; adamw_impls[i]; i++)
        for (int slots = 1; slots <= 4; slots++)
            for (int early = 0; early < 2; early++) {
                struct adamw_case c = adamw_case_default(adamw_impls[i]);
                c.check_order = true;
                c.steps = 2;
                c.options.slots = slots;
                c.shuffle = slots == 3 ? 5 : 0;
                set_gradients(&c, slots % 2);
                if (early) {
                    c.options.clip = 0;
                    c.options.nonfinite = ADAMW_PROPAGATE;
                }
                run(&c);
            }
    struct adamw_case c = adamw_case_default(&adamw_offload_stream);
    c.serial_streams = true;
    run(&c);
    report("events order every conflicting access; one stream does too");
}

static void test_nothing_to_do(void)
{
    static const struct adamw_tensor empty[] = {{"empty", 0, ADAMW_DECAY}};
    static const struct adamw_tensor single[] = {{"single", 1, ADAMW_NO_DECAY}};
    for (int i = 0; adamw_impls[i]; i++) {
        struct adamw_case c = adamw_case_default(adamw_impls[i]);
        c.tensor = empty;
        c.tensors = 1;
        run(&c);
        c.tensor = single;
        c.ranks = c.world = 2; /* the second rank holds nothing */
        run(&c);
    }
    report("no parameters, one parameter, a rank without any");
}

int main(void)
{
    test_steps();
    test_buckets();
    test_isas();
    test_extremes();
    test_late_steps();
    test_ranks();
    test_readiness();
    test_order_is_proved();
    test_nothing_to_do();
    return tap_done();
}
