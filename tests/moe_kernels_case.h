/* What tests of kernels of expert dispatch share: arrays of either type with a guard behind them,
 * and a launch with every instruction set and team. */
#pragma once
#include <stdint.h>
#include "device/device.h"
#include "device/pool.h"
#include "kernels/arith.h"

enum { MOE_KERNEL_WIDTHS = 3, ARRAY_GUARD = 64 };

struct array {
    enum dtype type;
    int64_t count;
    void *values; /* with ARRAY_GUARD elements after them */
};

/* Values of many magnitudes, so that another order of a sum gives other bits. Every call ends the
 * test where memory is short. */
struct array array_of(enum dtype type, int64_t count, int64_t seed);
struct array array_copy(const struct array *a);
void array_release(struct array *arrays[], int count);
void array_set(struct array *a, int64_t i, float value);
float array_get(const struct array *a, int64_t i);

int32_t array_random_below(int64_t end);
/* The numbers below `count` in some order; the caller's to free. */
int32_t *array_permutation(int64_t count);

struct launch {
    struct dev_pool *pool;
    const struct kernel *kernel;
    const void *args;
    struct array *out[2];        /* what args points to */
    const struct array *want[2]; /* NULL = none */
};

/* Runs the launch with each instruction set and teams of one to MOE_KERNEL_WIDTHS on a fresh copy
 * of what it writes, and counts elements that differ from what is wanted, guards included. */
int64_t launch_faults(const struct launch *l);
