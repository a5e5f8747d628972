/* Speed that a GPU should reach, held against the records of a run and the ceilings measured beside
 * it (tests/gpu_bars.cu): the bars that need whole operators. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include <jansson.h>

/* Rates of one GPU; 0 = not measured. */
struct bar_ceilings {
    double h2d_bytes_per_s, d2h_bytes_per_s;
    double both_bytes_per_s; /* each direction, both at once */
    double f32_flops_per_s, bf16_flops_per_s;
};

/* Reads what gpu_bars wrote. 0, or -1 with `error`. */
int bars_read_ceilings(const char *path, struct bar_ceilings *ceilings, char *error, int size);

struct bar_counts {
    int met, missed, not_judged; /* bars, or the shapes of one */
};

/* Prints a line for each: every timed record of a GPU beside the ceiling of its work; then, at
 * every shape that was timed,
 *
 *     pipelined-llep   at least llep's throughput, on the fast path
 *     offload-stream   at most 1.10 times the link's floor: its copies in the direction that takes
 *                      longer, at the ceiling of both directions at once; without ceilings, at the
 *                      pace that they had in the traced step (figures.floor_s)
 *
 * Emulated GPUs are judged by nothing. Ranks that share a GPU are, and the line says so. */
struct bar_counts bars_print(const json_t *records, const struct bar_ceilings *ceilings, FILE *out);
