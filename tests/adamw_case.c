/* One case of the optimizer family: run, check, say in words what does not hold. */
#include "tests/adamw_case.h"
#include <stdio.h>
#include <string.h>

const struct adamw_tensor adamw_case_tensors[ADAMW_CASE_TENSORS] = {
    {"one", 1, ADAMW_DECAY},
    {"bias", 4099, ADAMW_NO_DECAY},
    {"odd", 37, ADAMW_DECAY},
    {"empty", 0, ADAMW_NO_DECAY},
    {"weight", 8192, ADAMW_DECAY},
    {"norm", 5, ADAMW_NO_DECAY},
    {"last", 331, ADAMW_DECAY},
};

struct adamw_case adamw_case_default(const struct adamw_impl *impl)
{
    return (struct adamw_case){.impl = impl,
        .options = {.bucket = 1000,
            .slots = 2,
            .scale = 1.0 / 1024,
            .clip = 2e-4,
            .hyper = {{1e-3, 0.9, 0.95, 1e-8, 0.1}, {3e-4, 0.8, 0.999, 1e-6, 0.0}}},
        .tensor = adamw_case_tensors,
        .tensors = ADAMW_CASE_TENSORS,
        .ranks = 1,
        .world = 1,
        .threads = 1,
        .steps = 1,
        .first_step = 1};
}

static bool check(const struct adamw_case *c, struct adamw_run *run, struct case_result *result,
    char *text, int size)
{
    (void)c;
    if (adamw_run(run, result)) {
        snprintf(text, (size_t)size, "%s", run->failure.message);
        return false;
    }
    if (adamw_check(run, CASE_CHECK_REFERENCE, 0, result, text, size))
        return false;
    for (int i = 0; i < result->tensor_count; i++)
        if (result->tensors[i].verdict != VERDICT_BITWISE) {
            snprintf(text, (size_t)size, "%s", result->tensors[i].fault);
            return false;
        }
    return !case_memory_fault(result, text, size);
}

bool adamw_case_run(const struct adamw_case *c, struct adamw_report *report, char *text, int size)
{
    struct adamw_inputs inputs;
    struct case_result result;
    struct dev_pool *pool = dev_pool_create(c->threads);
    struct ranks_config ranks = {.count = c->ranks,
        .device = {.kind = DEV_CPU,
            .device_limit_bytes = c->device_limit_bytes,
            .h2d_bytes_per_s = c->up_bytes_per_s,
            .d2h_bytes_per_s = c->down_bytes_per_s,
            .serial_streams = c->serial_streams,
            .check_order = c->check_order,
            .kernel_threads = c->threads,
            .pool = pool}};
    bool fine = false;
    snprintf(text, (size_t)size, "no memory for the test");
    if (pool && !adamw_inputs_seeded(
                    &inputs, c->tensor, c->tensors, c->world, c->ranks, 1 + (uint64_t)c->steps)) {
        inputs.extremes = c->extremes;
        inputs.nonfinite = c->nonfinite;
        inputs.g = c->g;
        struct adamw_run run = {.impl = c->impl,
            .options = &c->options,
            .inputs = &inputs,
            .ranks = &ranks,
            .steps = c->steps,
            .first_step = c->first_step,
            .shuffle = c->shuffle,
            .collect = true};
        if (case_result_init(&result, c->ranks) == 0) {
            fine = check(c, &run, &result, text, size);
            if (report)
                *report = run.report;
            adamw_run_free(&run);
            case_result_free(&result);
        }
        adamw_inputs_free(&inputs);
    }
    dev_pool_free(pool);
    if (fine)
        *text = 0;
    return fine;
}
