/* Every implementation of the checkpoint-boundary problem, at every budget, dtype, instruction set,
 * width of the pool and number of ranks: bits, memory to the byte, recompute counts, no leaks, and
 * the order checker on. Then faults planted into sco's schedule, and delayed copies.
 *
 * The faults are planted from outside: the linker sends dev_wait and the copies through this file
 * (--wrap), so the schedule holds no hook. Wrapped calls take no context: that is the one reason
 * for the state in `planted`. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "bench/harness/stack_check.h"
#include "kernels/isa.h"
#include "tests/tap.h"

enum fault {
    NONE,
    RESTORE_EARLY, /* main does not wait until a boundary is restored */
    REUSE_EARLY,   /* main does not wait until a boundary is copied out before it frees it */
    DELAYS         /* no fault: copies are held up at random, before and after */
};

static struct {
    enum fault fault;
    atomic_int times; /* the fault took place */
    atomic_uint random;
} planted;

/* ---- wrapped calls ----------------------------------------------------------------------------
 */

void __real_dev_wait(struct stream *stream, struct event event);
void __wrap_dev_wait(struct stream *stream, struct event event);
void __real_dev_copy_h2d(struct stream *stream, void *to, const void *from, int64_t bytes);
void __wrap_dev_copy_h2d(struct stream *stream, void *to, const void *from, int64_t bytes);
void __real_dev_copy_d2h(struct stream *stream, void *to, const void *from, int64_t bytes);
void __wrap_dev_copy_d2h(struct stream *stream, void *to, const void *from, int64_t bytes);

void __wrap_dev_wait(struct stream *stream, struct event event)
{
    struct device *dev = stream_device(stream);
    struct stream *main = dev_main_stream(dev);
    bool of_main = stream && stream == main && event.stream;
    bool skipped =
        of_main &&
        ((planted.fault == RESTORE_EARLY && event.stream == dev_stream(dev, "restore")) ||
            (planted.fault == REUSE_EARLY && event.stream == dev_stream(dev, "offload")));
    if (skipped)
        atomic_fetch_add(&planted.times, 1);
    else
        __real_dev_wait(stream, event);
}

static void sleep_cpu(const void *args, const struct dev_team *team)
{
    (void)team;
    nanosleep(args, NULL);
}

static int sleep_access(const void *args, struct dev_access *ranges)
{
    (void)args;
    (void)ranges;
    return 0;
}

static const struct kernel kernel_sleep = {
    .name = "sleep", .cpu = sleep_cpu, .access = sleep_access};

/* Up to 0.4 ms. */
static void delay(struct stream *stream)
{
    if (planted.fault != DELAYS)
        return;
    unsigned random = atomic_fetch_add(&planted.random, 2654435761u) * 2246822519u;
    struct timespec time = {0, (long)(random >> 16) * 6};
    dev_launch(stream, &kernel_sleep, &time, sizeof time);
    atomic_fetch_add(&planted.times, 1);
}

void __wrap_dev_copy_h2d(struct stream *stream, void *to, const void *from, int64_t bytes)
{
    delay(stream);
    __real_dev_copy_h2d(stream, to, from, bytes);
    delay(stream);
}

void __wrap_dev_copy_d2h(struct stream *stream, void *to, const void *from, int64_t bytes)
{
    delay(stream);
    __real_dev_copy_d2h(stream, to, from, bytes);
    delay(stream);
}

/* ---- one run ----------------------------------------------------------------------------------
 */

struct problem {
    struct stack_inputs inputs;
    struct stack_checker checker;
    int64_t tokens[STACK_RANKS_MAX];
};

struct setting {
    const struct stack_impl *impl;
    struct stack_options options;
    int threads;
    int64_t steps;
    bool forward_only, unchecked_order;
};

static void open_problem(struct problem *p, int ranks, const int64_t *tokens, int64_t layers,
    int64_t hidden, int64_t ffn, enum dtype dtype)
{
    struct stack_shape shape = {.ranks = ranks,
        .tokens = p->tokens,
        .layers = layers,
        .hidden = hidden,
        .ffn = ffn,
        .dtype = dtype};
    memset(&p->checker, 0, sizeof p->checker);
    memcpy(p->tokens, tokens, (size_t)ranks * sizeof *tokens);
    if (stack_inputs_seeded(&p->inputs, &shape, 11)) {
        printf("Bail out! no memory\n");
        exit(1);
    }
}

static void close_problem(struct problem *p)
{
    stack_checker_free(&p->checker);
    stack_inputs_free(&p->inputs);
}

/* Whether the run succeeds with the reference's bits and the promised memory; why not. */
static bool run(struct problem *p, const struct setting *setting, struct case_result *result,
    char *why, int size)
{
    struct dev_pool *pool = dev_pool_create(setting->threads ? setting->threads : 1);
    struct ranks_config ranks = {.count = p->inputs.shape.ranks,
        .device = {.kind = DEV_CPU, .check_order = !setting->unchecked_order, .pool = pool},
        .timeout_s = 20};
    struct stack_run run = {.impl = setting->impl,
        .options = &setting->options,
        .inputs = &p->inputs,
        .backward = !setting->forward_only,
        .steps = setting->steps ? setting->steps : 1,
        .ranks = &ranks,
        .collect = true};
    bool good = pool && case_result_init(result, ranks.count) == 0;
    snprintf(why, (size_t)size, "no memory for the test");
    if (good && stack_run(&run, result)) {
        snprintf(why, (size_t)size, "rank %d: %s", run.failure.rank, run.failure.message);
        good = false;
    }
    good = good && stack_check(&p->checker, &run, CASE_CHECK_REFERENCE, 0, result, why, size) == 0;
    if (good && case_verdict(result) != VERDICT_BITWISE) {
        good = false;
        for (int i = result->tensor_count - 1; i >= 0; i--)
            if (result->tensors[i].fault[0])
                snprintf(why, (size_t)size, "%s", result->tensors[i].fault);
    }
    good = good && !case_memory_fault(result, why, size);
    stack_outputs_free(&run.outputs);
    dev_pool_free(pool);
    return good;
}

static bool holds(struct problem *p, const struct setting *setting)
{
    struct case_result result;
    char why[CASE_FAULT_MAX + 128];
    bool good = run(p, setting, &result, why, sizeof why);
    if (!good)
        tap_note("%s, budget %lld: %s", setting->impl->name,
            (long long)setting->options.budget.bytes, why);
    case_result_free(&result);
    return good;
}

/* ---- all implementations, all budgets ---------------------------------------------------------
 */

static bool every_budget(struct problem *p, int threads)
{
    const int64_t boundary = stack_row_bytes(&p->inputs.shape, 0);
    const int64_t budgets[] = {0, boundary - 1, boundary, 2 * boundary, 2 * boundary - 1, -1};
    bool good = true;
    for (int i = 0; stack_impls[i]; i++) {
        struct setting setting = {.impl = stack_impls[i], .threads = threads};
        for (size_t b = 0; b < (setting.impl->takes_budget ? 6 : 1); b++) {
            setting.options.budget.bytes = budgets[b] < -1 ? 0 : budgets[b];
            good = holds(p, &setting) && good;
        }
    }
    return good;
}

static void shapes(void)
{
    static const struct {
        int ranks;
        int64_t tokens[4], layers, hidden, ffn;
    } cases[] = {{1, {24}, 5, 48, 80}, {1, {7}, 1, 33, 17}, {1, {5}, 2, 64, 32},
        {2, {9, 0}, 3, 40, 24}, {4, {3, 17, 0, 8}, 4, 37, 41}, {1, {0}, 3, 16, 16},
        {1, {3}, 2, 1, 1}, {1, {2}, 2, 1029, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            struct problem p;
            open_problem(&p, cases[i].ranks, cases[i].tokens, cases[i].layers, cases[i].hidden,
                cases[i].ffn, (enum dtype)dtype);
            tap_ok(every_budget(&p, 1 + (int)(i % 2) * 2),
                "all budgets: P=%d, N0=%lld, L=%lld, H=%lld, F=%lld, %s", cases[i].ranks,
                (long long)cases[i].tokens[0], (long long)cases[i].layers,
                (long long)cases[i].hidden, (long long)cases[i].ffn, dtype ? "bf16" : "f32");
            close_problem(&p);
        }
}

static void instruction_sets(void)
{
    const enum isa selected = isa_selected();
    static const enum isa sets[] = {ISA_GENERIC, ISA_SCALAR, ISA_AVX2, ISA_AVX512};
    for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        struct problem p;
        open_problem(&p, 1, (int64_t[]){70}, 2, 545, 70, (enum dtype)dtype);
        for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
            if (!isa_available(sets[i]) || isa_force(sets[i]))
                continue;
            for (int threads = 1; threads <= 3; threads++) {
                struct setting setting = {
                    .impl = &stack_sco, .options.budget.bytes = -1, .threads = threads};
                tap_ok(holds(&p, &setting), "%s, %s, %d threads", isa_name(sets[i]),
                    dtype ? "bf16" : "f32", threads);
            }
        }
        isa_force(selected);
        close_problem(&p);
    }
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* The peak falls by one boundary for each that goes, down to two. */
static void monotone(void)
{
    struct problem p;
    struct case_result result;
    char why[512];
    const int64_t layers = 6;
    int64_t last = 0;
    bool good = true;
    open_problem(&p, 1, (int64_t[]){16}, layers, 32, 48, DTYPE_BF16);
    const int64_t boundary = stack_row_bytes(&p.inputs.shape, 0);
    for (int64_t count = 0; count <= layers; count++) {
        struct setting setting = {
            .impl = &stack_sco, .options.budget = {.bytes = count * boundary}};
        good = run(&p, &setting, &result, why, sizeof why) && good;
        int64_t peak = case_increment_bytes(&result, 0, WINDOW_PASS);
        int64_t fall = count <= layers - 2 ? boundary : 0;
        good = good && (count == 0 || last - peak == fall) &&
               result.ranks[0].host_pinned_peak_bytes == count * boundary;
        last = peak;
        case_result_free(&result);
    }
    tap_ok(good, "the device's peak falls by one boundary for each on the host, down to two");
    close_problem(&p);
}

static void many_steps(void)
{
    struct problem p;
    open_problem(&p, 2, (int64_t[]){6, 11}, 4, 24, 40, DTYPE_BF16);
    for (int keep = 0; keep <= 1; keep++) {
        struct setting setting = {.impl = &stack_sco,
            .options = {.budget = {.bytes = -1, .rounding = PINNED_POW2}, .keep_pool = keep},
            .steps = 30};
        tap_ok(holds(&p, &setting), "30 steps, pool %s: no growth on the device or the host",
            keep ? "kept" : "returned");
        setting.impl = &stack_offload_all;
        tap_ok(holds(&p, &setting), "the same with offload-all");
    }
    struct setting forward = {
        .impl = &stack_sco, .options.budget.bytes = -1, .steps = 3, .forward_only = true};
    tap_ok(holds(&p, &forward), "forward alone");
    close_problem(&p);
}

/* ---- faults -----------------------------------------------------------------------------------
 */

static void caught(enum fault fault, const char *name)
{
    struct problem p;
    struct case_result result;
    char why[512];
    open_problem(&p, 1, (int64_t[]){16}, 4, 32, 48, DTYPE_F32);
    struct setting setting = {.impl = &stack_sco, .options.budget.bytes = -1};
    planted.fault = fault;
    atomic_store(&planted.times, 0);
    bool good = run(&p, &setting, &result, why, sizeof why);
    planted.fault = NONE;
    tap_ok(!good && atomic_load(&planted.times) > 0, "%s is caught", name);
    tap_note("%s", good ? "not caught" : why);
    case_result_free(&result);
    close_problem(&p);
}

static void delayed_copies(void)
{
    struct problem p;
    int bad = 0;
    open_problem(&p, 2, (int64_t[]){5, 9}, 4, 24, 40, DTYPE_F32);
    planted.fault = DELAYS;
    atomic_store(&planted.times, 0);
    for (int round = 0; round < 50; round++) {
        struct setting setting = {.impl = &stack_sco,
            .options.budget.bytes = round % 2 ? -1 : 2 * stack_row_bytes(&p.inputs.shape, 1),
            .threads = 2,
            .unchecked_order = round % 4 > 1};
        bad += !holds(&p, &setting);
    }
    planted.fault = NONE;
    tap_ok(bad == 0 && atomic_load(&planted.times) > 0, "50 rounds with delayed copies: same bits");
    close_problem(&p);
}

int main(void)
{
    shapes();
    instruction_sets();
    monotone();
    many_steps();
    caught(RESTORE_EARLY, "a boundary used before it is restored");
    caught(REUSE_EARLY, "a boundary freed before it is copied out");
    delayed_copies();
    return tap_done();
}
