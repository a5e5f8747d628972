/* What --device cuda makes of a case: which options lose their meaning, what the GPUs are, and the
 * label of cases whose ranks share one. */
#pragma once
#include <jansson.h>
#include "bench/harness/case.h"

/* Looks for the GPUs and fills options->gpu. Refuses what a GPU cannot honour. -1, or the exit
 * status after one line on stderr. */
int gpu_setup(struct case_options *options, struct options *parsed);

/* --gemm: unless it says otherwise, products of BF16 problems are timed on the fast path, which is
 * proved on every GPU here. Where the proof fails it is refused if it was asked for, and under a
 * launcher; else products are exact, and a line on stderr says why. */
int gpu_setup_products(struct case_options *options, struct options *parsed);

/* In the current case: products of FP32 problems have one path, and none to choose. */
void gpu_case(const struct case_options *options, struct options *parsed);

/* Between processes: makes known which GPU each rank is on; collective, nothing on other devices.
 * False when memory is short or a GPU is gone, on all. */
bool gpu_place_ranks(const struct case_options *options);

/* GPUs of this machine; between processes, how many their ranks are on. */
int gpu_count(const struct case_options *options);

/* Adds `gpu` to a record's env: name, count, memory, driver, runtime, message library. 0, or -1
 * when memory is short. */
int gpu_describe(const struct case_options *options, json_t *env);
