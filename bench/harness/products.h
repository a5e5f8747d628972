/* Which way a case's matrix products go on a GPU (--gemm), and what becomes of its verdict.
 *
 * The exact path is held to the reference bit by bit, as on every device. On the fast path
 * (kernels/gemm_fast.h) the case then runs again with each product audited, which says how far the
 * outputs are from the exact ones, and is timed:
 *
 *     products_gate       run, check            the verdict of the exact path
 *     products_audit      run, products_bound   bounded, or a mismatch
 *     products_time       run                   the times
 *
 * FP32 problems have one path, and so has everything but the cuda device. */
#pragma once
#include "bench/harness/case.h"
#include "bench/harness/tensor_check.h"
#include "kernels/gemm_fast.h"

/* The path that the current case is timed on. */
enum gemm_path products_path(const struct case_options *options);

/* For the run that is checked: exact, unless --check off leaves nothing to check. */
void products_gate(const struct case_options *options);

/* Whether the case is to be run once more and bounded. */
bool products_bounds(const struct case_options *options);

/* For that run. Of each product all tiles are audited, or with `samples` at most so many. */
void products_audit(int64_t samples);

void products_time(const struct case_options *options);

/* The outputs of the audited run beside those of the exact path, whose tensors `result` has, in
 * order. Each that was compared becomes `bounded`, with the digest of the fast path's bytes and its
 * distance from the exact ones; a product outside its bound makes all of them mismatches.
 * Collective over processes, which pass their own outputs: the main one's are looked at. 0, or -1
 * with `error` where the audit could not be made. */
int products_bound(const struct checked_tensor *exact, const struct checked_tensor *fast, int count,
    struct case_result *result, char *error, int size);

/* What this process's ranks have run since products_time. False where that was the exact path. */
bool products_count(const struct case_options *options, struct case_products *products);

/* "7.1% of the bound" and the line of counts that stands under the case. */
void products_text(const struct case_products *products, char *text, int size);
void products_note(const struct case_products *products, char *text, int size);
