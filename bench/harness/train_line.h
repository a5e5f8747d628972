/* The options of bin/train. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/options.h"

enum composition { COMPOSED, STANDARD, STANDARD_IN_ORDER, COMPOSITIONS };
extern const char *const composition_names[];

enum freeze { FREEZE_NONE, FREEZE_ATTENTION, FREEZE_EXPERTS };
extern const char *const freeze_names[];

struct train_line {
    int composition, dispatch, vocab, checkpoint, optimizer, freeze; /* -1: the composition's */
    int64_t steps, ranks, threads, layers, hidden, heads, ffn, experts, topk, length, sequences;
    int64_t sequence_group, expert_group, vocab_group;
    int64_t chunk_budget, max_chunks, tile, host_budget, bucket, slots, seed, report;
    double lr, bias_step;
    const char *text, *dump_routes, *json;
    bool explain, check_order;
};

#define TRAIN_GROUPS 3

/* Composition, model and run; they write into *line. */
void train_groups(struct train_line *line, struct option_group groups[TRAIN_GROUPS]);
