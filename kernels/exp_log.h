/* arith_exp and arith_log over arrays, with the selected instruction set, on the calling thread:
 * what the kernels that need an exponential contain, by itself, so that it can be proved and timed.
 */
#pragma once
#include <stdint.h>

/* results[i] = arith_exp(values[i]). The arrays must not overlap. */
void exp_cpu(const float *values, float *results, int64_t count);

/* results[i] = arith_log(values[i]). The arrays must not overlap. */
void log_cpu(const float *values, float *results, int64_t count);
