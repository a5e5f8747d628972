/* Small cases of every implementation of every family, on any device: for what the simulated device
 * must have in common with others, and for the laws that its time obeys. */
#pragma once
#include <stdbool.h>
#include "bench/harness/measure.h"
#include "bench/harness/result.h"
#include "device/comm.h"
#include "device/profile.h"

/* A machine of round numbers, apart from the shipped ones: nothing in a test changes with them. */
struct profile sim_case_profile(void);

/* One implementation with one set of its options on one problem. */
struct sim_case {
    const char *family, *impl;
    char what[96]; /* "weights move, 3 ranks" */
    int ranks;
    /* Fills ranks, traffic and, with `timed`, the time of `result`. 0, or -1 and why. */
    int (*run)(const struct sim_case *c, const struct ranks_config *ranks, bool timed,
        struct case_result *result, char *why, int size);
    /* of `run` alone */
    const void *implementation;
    int variant, problem;
};

/* All cases; the caller frees them. NULL when memory is short. */
struct sim_case *sim_cases(int *count);

/* Runs a case on a device and with machines as in `device`. 0, or -1 and why. */
int sim_case_run(const struct sim_case *c, const struct dev_config *device, bool timed,
    struct case_result *result, char *why, int size);
