/* The options of bin/plan. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/options.h"

enum baseline { BASELINE_NONE, BASELINE_FSDP2 };
enum plan_verdict { PLAN_GUARANTEED, PLAN_BALANCED };

struct plan_line {
    const char *model, *profile, *json;
    int64_t gpus, context, sequences, sequence_group, expert_group, vocab_group;
    int64_t chunk_budget, max_chunks, tile, host_budget, keep_attention, bucket, slots;
    int baseline, verdict;
    struct option_counts degrees;
    bool search, reach, device_state;
};

#define PLAN_GROUPS 2

/* The launch and its budgets; they write into *line. */
void plan_groups(struct plan_line *line, struct option_group groups[PLAN_GROUPS]);
