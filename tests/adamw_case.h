/* Small optimizer problems for the tests: tensors of awkward sizes, options, and one call that runs
 * an implementation and compares what it leaves with the reference. */
#pragma once
#include <stdbool.h>
#include "bench/harness/adamw_check.h"
#include "bench/harness/adamw_run.h"

/* Tensors of both groups, alternating, one of them empty. */
#define ADAMW_CASE_TENSORS 7
#define ADAMW_CASE_PARAMS (1 + 4099 + 37 + 0 + 8192 + 5 + 331)
extern const struct adamw_tensor adamw_case_tensors[ADAMW_CASE_TENSORS];

struct adamw_case {
    const struct adamw_impl *impl;
    struct adamw_options options;
    const struct adamw_tensor *tensor;
    int64_t tensors;
    int ranks, world, threads;
    int64_t steps, first_step, nonfinite;
    uint64_t shuffle;
    bool extremes, check_order, serial_streams;
    double up_bytes_per_s, down_bytes_per_s;
    int64_t device_limit_bytes;
    const float *g; /* gradients in place of seeded ones; NULL = seeded */
};

/* One step on adamw_case_tensors; the groups' hyperparameters differ, and the clip does clip. */
struct adamw_case adamw_case_default(const struct adamw_impl *impl);

/* Runs and checks against the reference: bits, norms, FP64 bounds, both memories' closed forms.
 * True when all hold; else `text` says what does not. *report, when not NULL, is the last step's.
 */
bool adamw_case_run(const struct adamw_case *c, struct adamw_report *report, char *text, int size);
