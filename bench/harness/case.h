/* The options that every benchmark program has, and what follows from them.
 *
 * A program adds case_group() to its own groups of options, calls case_setup() after
 * options_parse(), and reads the fields of its struct case_options in each case. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/measure.h"
#include "bench/harness/options.h"
#include "device/comm.h"
#include "device/profile.h"
#include "kernels/arith.h"
#include "probe/timing.h"

#define CASE_OPTIONS_MAX 32

enum case_pass { CASE_FORWARD, CASE_BACKWARD, CASE_BOTH };

enum case_check {
    CASE_CHECK_AUTO,      /* by counted work: case_check_level */
    CASE_CHECK_REFERENCE, /* every output against the reference */
    CASE_CHECK_SAMPLE,    /* check_samples of each output recomputed exactly */
    CASE_CHECK_BASELINE,  /* what no order touches, against the baseline's result */
    CASE_CHECK_OFF
};

/* Without --check the reference runs whole up to this many multiply-adds, and beyond it on a sample
 * of CASE_SAMPLES: a stated amount of work, so that the level never depends on the machine. */
#define CASE_REFERENCE_OPERATIONS (INT64_C(1) << 35)
#define CASE_SAMPLES 64

struct case_options {
    /* by option, of the current case */
    int impl; /* index into the program's impl_names */
    int64_t ranks, threads;
    int64_t ranks_per_process; /* -1 = 1 */
    int dtype;                 /* enum dtype */
    int pass;                  /* enum case_pass */
    int64_t iters, warmup;
    double min_time_s, timeout_s;
    int64_t seed;
    const char *search; /* NULL = none */
    int64_t search_step;
    const char *check_text, *device_text;
    int64_t device_memory_bytes, host_memory_bytes; /* -1 = no limit */
    struct option_reals link_gbps;
    double message_gbps;
    int streams, oom;
    int messages; /* enum dev_messages */
    int gemm;     /* enum gemm_path */
    bool check_order, csv;
    const char *json, *trace, *load, *dump;

    /* by case_setup */
    enum dev_kind device_kind;
    enum case_check check;
    int64_t check_samples;
    struct profile machines[DEV_MACHINES_MAX]; /* of the simulated device; the first is its own */
    int machine_count;                         /* 0 on other devices */
    struct dev_facts gpu;                      /* of the cuda device */
    char device_name[128];                     /* "cpu", "sim:h200-8", "cuda:NVIDIA H200" */
    char shared_name[128];                     /* of the cuda device, where ranks share a GPU */

    struct option table[CASE_OPTIONS_MAX]; /* behind case_group */
    int table_count;
    char threads_default[16], ranks_default[16];
};

/* The common options as a group that writes into *options (which must outlive the parsed options).
 * impl_names as in struct program. A program's own group of shape options comes before this one. */
struct option_group case_group(struct case_options *options, const char *const *impl_names);

/* Takes options out of a case_group that mean nothing to a program; the fields keep their zeros. */
void case_group_drop(
    struct case_options *options, struct option_group *group, const char *const *names);

/* Checks what the table cannot: the device, the check, files that take one case only, the forced
 * ISA, and that the record file can be written. Returns -1 to go on, or the exit status after one
 * line on stderr. Leaves `parsed` rewound. Installs the handling of Ctrl-C. */
int case_setup(struct case_options *options, struct options *parsed);

/* The level to check a case at, of that many multiply-adds in the reference. Fills *samples. */
enum case_check case_check_level(
    const struct case_options *options, int64_t operations, int64_t *samples);

/* "reference", "sample:64", "baseline", "off": what a record says it was checked against. */
void case_check_text(enum case_check check, int64_t samples, char *text, int size);

/* How many of the current case's threads are this process's. */
int case_threads(const struct case_options *options);

/* Devices and ranks of the current case. `pool` has case_threads() threads; trace may be NULL. */
struct ranks_config case_ranks_config(
    const struct case_options *options, struct dev_pool *pool, struct trace *trace);

/* What --pass puts on the clock. */
enum measure_timed case_timed(const struct case_options *options);

/* --iters N: exactly N samples; else the rules of timing_default with --min-time. */
struct timing_protocol case_timing_protocol(const struct case_options *options);

/* More runnable threads than cores: times say more about the scheduler then. */
bool case_oversubscribed(const struct case_options *options);

/* --device sim: nothing is computed, and one pass gives every time. */
bool case_simulates(const struct case_options *options);

/* The limit of a rank's pinned host memory; 0 = none. */
int64_t case_host_limit_bytes(const struct case_options *options);

/* With --oom record an out-of-memory case is a row and no failure. */
bool case_records_oom(const struct case_options *options);

/* More ranks than GPUs: their times are no figures of a machine with a GPU for each. */
bool case_shares_gpu(const struct case_options *options);

/* "cpu", "sim:h200-8", "cuda:NVIDIA H200", "cuda:NVIDIA H200 shared-gpu". */
const char *case_device_name(const struct case_options *options);
