/* --search NAME: the largest value of a count, on a grid, at which a case still fits its memory.
 * The value given for NAME is where the search begins; it doubles while the case fits, then halves
 * the gap. Only running out of memory says "does not fit". */
#pragma once
#include "bench/harness/case.h"
#include "bench/harness/options.h"
#include "bench/harness/result.h"

struct report;

/* Can the search be made? -1, or the exit status after one line on stderr. */
int search_setup(const struct case_options *common, const struct options *options);

/* Runs the current case at one value after the other and leaves the result, and in `options` the
 * value, of the largest that fits; when none does, of the smallest that was tried. 0, or -1 when
 * memory is short for a result. */
int search_run(const struct case_options *common, struct options *options, struct report *report,
    void (*run_case)(void *context, struct report *report, struct case_result *result),
    void *context, struct case_result *result);
