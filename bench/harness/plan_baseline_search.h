/* The fastest launch of the baseline that fits: every EP, CP and TP, several sequences of a rank,
 * optimizer state on the device or on the host. */
#pragma once
#include "bench/harness/fsdp_step.h"
#include "bench/harness/plan_launch.h"

struct plan_baseline_choice {
    struct fsdp_launch launch;
    bool device_state;
    struct plan_baseline memory;
    double passes_s[DEV_MACHINES_MAX], optimizer_s[DEV_MACHINES_MAX], seconds[DEV_MACHINES_MAX];
};

struct plan_baseline_search {
    struct plan_baseline_choice best;
    int64_t count, fitting; /* launches */
    char error[256];
};

/* Of the plan's current case; --baseline-degrees and --device-state leave less to choose. Times on
 * the plan's machine and its variants. 0, or -1 with search->error; with fitting = 0 `best` is what
 * needs least memory and has no times. */
int plan_baseline_search(struct plan_baseline_search *search, const struct plan *p);

/* Tokens of a rank's share: of a step of all ranks, divided by their number. */
double plan_baseline_tokens(const struct plan_baseline_choice *choice);

/* Prints it, and appends its record where one is asked for. -1, or the exit status after one line
 * on stderr. `composed_rate`: tokens/s a rank of the composed step to compare with; 0 = none. */
int plan_baseline_report(const struct plan *p, double composed_rate);
