/* What bin/train prints and records of a case. */
#pragma once
#include "bench/harness/train_line.h"
#include "bench/harness/train_run.h"

struct train_report {
    const struct case_options *common;
    const struct options *options;
    const struct train_line *line;
    double bigram_nats, gemm_flops_per_s; /* NaN where there is no text, or another device */
    json_t *run, *env;                    /* owned */
};

/* The provenance of all records. 0, or -1 when memory is short. */
int train_report_open(struct train_report *report, int argc, char *const *argv);
void train_report_close(struct train_report *report);

/* Fills what follows from the run: times, throughput, digests with this verdict. 0, or -1 when
 * memory is short. */
int train_report_fill(const struct train_report *report, const struct train_run *run,
    enum verdict verdict, struct case_result *result);

/* The lines under a case's heading. `run` NULL: it failed, and the result says why. */
void train_report_print(const struct train_report *report, const struct train_run *run,
    const struct case_result *result);

/* Appends a record to --json. 0, or -1 after a line on stderr. */
int train_report_record(const struct train_report *report, const struct train_run *run,
    const struct model_options *options, const struct case_result *result);
