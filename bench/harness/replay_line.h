/* The command line of the replay program. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/options.h"

enum { REPLAY_PLAN_NONE, REPLAY_PLAN_LLEP };
extern const char *const replay_plan_names[];
extern const char *const replay_chunks_names[]; /* by enum moe_chunks */

struct replay_line {
    int64_t ranks, tokens, experts, topk, steps, seed;
    struct option_counts tokens_per_rank;
    const char *routing, *json;
    int64_t chunk_budget, max_chunks, min_gemm_tokens;
    int chunks, plan;
    double alpha, lambda;
    bool csv;
};

struct option_group replay_routing_group(struct replay_line *line);
struct option_group replay_plan_group(struct replay_line *line);

/* Is this option one of the LLEP plan's settings? */
bool replay_is_of_llep(const char *option);
