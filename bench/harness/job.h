/* What the harness does where the ranks are several processes (device/launch.h): brings a rank's
 * results to the main process, which alone checks, prints and writes, and lets the others follow
 * its decisions. With thread ranks there is nothing to bring. */
#pragma once
#include <stdbool.h>
#include "bench/harness/case.h"
#include "bench/harness/result.h"
#include "device/comm.h"

struct report;
struct trace;

/* Takes over what the command line says of processes: where a launcher has started them, they are
 * the ranks, `ranks_per_process` (-1 = 1) of each, and `*ranks`, where a parsed option "ranks" puts
 * its value, must agree in every case. Without a launcher --ranks-per-process is refused. Returns
 * -1 to go on, or the exit status after one line on stderr; leaves `parsed` rewound. */
int job_setup(
    struct options *parsed, const int64_t *ranks, int64_t ranks_per_process, double timeout_s);

/* How many of a host's `threads` are this process's, at least one. */
int job_threads(int64_t threads);

/* ---- on a rank, collective over its group ---------------------------------------------------- */

/* Reads a rank's block into its place in `array` and has it in the main process's array too. 0, or
 * -1 after a failure. */
int job_collect(struct rank *rank, void *array, int64_t at_bytes, const void *block, int64_t bytes);

/* Brings bytes that the rank has put in their place itself. */
int job_collect_written(struct rank *rank, void *array, int64_t at_bytes, int64_t bytes);

/* Every process gets every rank's entry of result->ranks. 0, or -1 after a failure. */
int job_gather_ranks(const struct rank *rank, struct case_result *result);

/* The main process gets every rank's samples; all ranks have as many. 0, or -1 after a failure. */
int job_gather_samples(
    const struct rank *rank, const struct timing *own, struct case_result *result);

/* ---- between groups, collective over the processes --------------------------------------------
 */

/* Whether the hosts hold a case of that many bytes over all ranks. If not the result says so;
 * `hint` ends its reason. */
bool job_fits(double total_bytes, const char *hint, struct case_result *result);

/* ---- on the main process; nothing on others ---------------------------------------------------
 */

/* Writes the trace to --trace, which shows the ranks of the main process. */
void job_write_trace(
    const struct case_options *common, const struct trace *trace, struct report *report);

/* The record's `job`; NULL for thread ranks. The caller owns it. */
json_t *job_json(void);

/* "slowest: rank 3 on a; fullest: rank 0 on b" as a line of its own; nothing for thread ranks. */
void job_name_ranks(FILE *out, const struct case_result *result);
