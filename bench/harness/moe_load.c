/* Loads of ranks and experts in four figures. */
#include "bench/harness/moe_load.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* The smallest value that `percent` of them do not exceed. */
static int64_t quantile(const int64_t *sorted, int64_t n, int percent)
{
    int64_t rank = (n * percent + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}

int moe_load_of(struct moe_load *load, const int64_t *values, int64_t n)
{
    int64_t *sorted = malloc((size_t)n * sizeof *sorted), sum = 0;
    if (!sorted)
        return -1;
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    for (int64_t i = 0; i < n; i++)
        sum += sorted[i];
    *load = (struct moe_load){.min = sorted[0],
        .median = quantile(sorted, n, 50),
        .p95 = quantile(sorted, n, 95),
        .max = sorted[n - 1],
        .mean = (double)sum / (double)n};
    free(sorted);
    return 0;
}

int moe_load_measure(struct moe_load *per_rank, struct moe_load *per_expert, int ranks,
    int64_t experts, const int64_t *counts)
{
    int64_t *of_rank = calloc((size_t)ranks, sizeof *of_rank), owned = experts / ranks;
    if (!of_rank)
        return -1;
    for (int64_t e = 0; e < experts; e++)
        of_rank[e / owned] += counts[e];
    int status = moe_load_of(per_rank, of_rank, ranks) || moe_load_of(per_expert, counts, experts);
    free(of_rank);
    return status ? -1 : 0;
}

double moe_load_imbalance(const struct moe_load *load)
{
    return load->mean > 0 ? (double)load->max / load->mean : 1.0;
}

void moe_load_text(const struct moe_load *load, char *text, int size)
{
    snprintf(text, (size_t)size,
        "min %" PRId64 ", median %" PRId64 ", p95 %" PRId64 ", max %" PRId64, load->min,
        load->median, load->p95, load->max);
}

json_t *moe_load_json(const struct moe_load *load)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:f}", "min", (json_int_t)load->min, "median",
        (json_int_t)load->median, "p95", (json_int_t)load->p95, "max", (json_int_t)load->max,
        "mean", load->mean);
}
