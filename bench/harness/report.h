/* Prints and records the cases of a program: one aligned line each, a JSON record, CSV, progress,
 * and the exit status over all of them.
 *
 *     struct report *report = report_open(&common, options, &program, argc, argv);
 *     while (report_next(report)) {              // until the last case, or Ctrl-C
 *         struct case_result result;
 *         ...
 *         report_progress(report, "checking");
 *         report_case(report, &result);
 *         case_result_free(&result);
 *     }
 *     return report_close(report);
 *
 * Saved is the share of the baseline's peak that a case does without, when implementation 0 ran at
 * the same shape in this command. Implementations are met in the order of --list, so it always ran
 * before. */
#pragma once
#include "bench/harness/case.h"
#include "bench/harness/options.h"
#include "bench/harness/result.h"

struct report;

/* Prints the header. NULL (after a line on stderr) when memory is short. Everything passed must
 * outlive the report. */
struct report *report_open(const struct case_options *common, struct options *options,
    const struct program *program, int argc, char *const *argv);

/* Moves to the next case; false after the last one or an interrupt. */
bool report_next(struct report *report);

/* What is being done, on a terminal only. */
void report_progress(struct report *report, const char *phase);

/* Prints and records the current case. */
void report_case(struct report *report, const struct case_result *result);

/* All of the above: opens, runs every case, closes. run_case fills the result of the current case.
 * Returns the exit status. */
int report_run(const struct case_options *common, struct options *options,
    const struct program *program, int argc, char *const *argv,
    void (*run_case)(void *context, struct report *report, struct case_result *result),
    void *context);

/* A failure outside any case (EXIT_FAILED_CHECK or EXIT_ENVIRONMENT): one line on stderr. */
void report_failure(struct report *report, int exit_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints the notes, frees, and returns the exit status of the program: 130 after an interrupt; else
 * 1 when a check, bound or comparison failed; else 3 when memory was short or a case could not run;
 * else 0. All cases ran whatever it says. */
int report_close(struct report *report);

/* ---- parts (for tests and for other reports) ----------------------------------------------------
 */

/* The whole record of the current case; the caller owns it. NULL when memory is short. saved: share
 * of the baseline's peak, NaN = no baseline. */
json_t *report_record(const struct case_options *common, const struct options *options,
    const char *op, const char *impl, const struct case_result *result, double saved);

/* Adds the family's own figures to a record. */
void report_record_figures(
    json_t *record, const char *const *names, const struct case_result *result);

/* The exit status that one case asks for. */
int report_exit_status(const struct case_options *common, const struct case_result *result);

/* "bitwise", "bitwise (sample:64)", "bounded, at most 3% of the bound, dW in declared order". */
void report_print_verdict(FILE *out, const struct case_result *result);

/* What stands under the line: the reason, each mismatch, the note, and the ways of products.
 * memory_fault: case_memory_fault's text, "" = none. */
void report_print_faults(FILE *out, const struct case_result *result, const char *memory_fault);

/* One header and one line per case; columns are fixed by the program's options. */
void report_csv_header(FILE *out, const struct options *options, const char *const *figures);
void report_csv_case(FILE *out, const struct options *options, const char *op, const char *impl,
    const char *device, const char *const *figures, const struct case_result *result, double saved);
