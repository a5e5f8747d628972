/* What --device cuda makes of a case: which options lose their meaning, what the GPUs are, and the
 * label of cases whose ranks share one. */
#pragma once
#include <jansson.h>
#include "bench/harness/case.h"

/* Looks for the GPUs and fills options->gpu. Refuses what a GPU cannot honour. -1, or the exit
 * status after one line on stderr. */
int gpu_setup(struct case_options *options, struct options *parsed);

/* After the check is known: --gemm fast proves its products on every GPU, and is refused where it
 * has no part, where its bits would be checked, and where the proof fails. */
int gpu_setup_products(struct case_options *options, struct options *parsed);

/* Adds `gpu` to a record's env: name, count, memory, driver, runtime, message library. 0, or -1
 * when memory is short. */
int gpu_describe(const struct case_options *options, json_t *env);
