/* The functions of exp_log_isa.c, one table per instruction set. */
#pragma once
#include <stdint.h>

struct exp_log_functions {
    void (*exp)(const float *values, float *results, int64_t count);
    void (*log)(const float *values, float *results, int64_t count);
};
