/* The dispatch program's own options. */
#pragma once
#include <stdbool.h>
#include "bench/harness/options.h"
#include "ops/moe.h"

struct moe_line {
    int64_t tokens, hidden, ffn, experts, topk, steps;
    struct option_counts tokens_per_rank;
    const char *routing;
    int64_t hop_rows, parts, credits;
    int overlap, grouped, volume;
    bool plan;
    int keep, chunks, activation, data;
    int64_t chunk_budget, max_chunks, chunk_count, min_gemm;
    double alpha, lambda, flops_per_byte;
};

/* Shape and routing, then the schedules' settings; both write into *line. */
struct option_group moe_shape_group(struct moe_line *line);
struct option_group moe_schedule_group(struct moe_line *line);

struct moe_options moe_line_options(const struct moe_line *line);
