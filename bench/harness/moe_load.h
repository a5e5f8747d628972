/* The load that a routing really puts on ranks and experts. */
#pragma once
#include <stdint.h>
#include <jansson.h>

/* Of n >= 1 values. Each figure is one of the values: the median and p95 are the smallest that at
 * least 50 % and 95 % of the values do not exceed. */
struct moe_load {
    int64_t min, median, p95, max;
    double mean;
};

/* 0, or -1 when memory is short. */
int moe_load_of(struct moe_load *load, const int64_t *values, int64_t n);

/* From the routes of each expert over all source ranks, counts [experts]: routes to the experts of
 * a rank, and to an expert. 0, or -1 when memory is short. */
int moe_load_measure(struct moe_load *per_rank, struct moe_load *per_expert, int ranks,
    int64_t experts, const int64_t *counts);

/* The largest over the mean; 1 without routes. */
double moe_load_imbalance(const struct moe_load *load);

/* "min 12, median 30, p95 64, max 80" */
void moe_load_text(const struct moe_load *load, char *text, int size);

/* {"min": ..., "median": ..., "p95": ..., "max": ..., "mean": ...}; NULL when memory is short. */
json_t *moe_load_json(const struct moe_load *load);
