/* Checks the state that an optimizer run left at the level that was asked for. */
#pragma once
#include "bench/harness/adamw_run.h"
#include "bench/harness/case.h"

/* Multiply-adds of the reference: what decides the automatic level. */
int64_t adamw_check_operations(int64_t held, int64_t steps);

/* Fills the tensors p, m, v and w of `result` with digest and verdict, and result->against.
 *
 *   reference  p, m, v and w byte-equal to the reference after the same steps, norm and counts of
 * every step equal too, and p, m, v within the FP64 bounds of the last step sample:N   N elements
 * of each, with the factor that the run reports for each step baseline   all four byte-equal to the
 * family's baseline's, run here off        digests alone
 *
 * A pinned peak that differs from its closed form is a mismatch at every level. 0, or -1 with
 * `error` when the check itself could not be made. */
int adamw_check(const struct adamw_run *run, enum case_check level, int64_t samples,
    struct case_result *result, char *error, int size);
