/* The options of bin/train. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/case.h"
#include "bench/harness/options.h"

enum composition { COMPOSED, STANDARD, STANDARD_IN_ORDER, COMPOSITIONS };
extern const char *const composition_names[];

enum freeze { FREEZE_NONE, FREEZE_ATTENTION, FREEZE_EXPERTS };
extern const char *const freeze_names[];

struct train_line {
    int composition, dispatch, vocab_impl, checkpoint, optimizer, freeze; /* -1: composition's */
    int chunks;
    int64_t steps, layers, hidden, heads, ffn, experts, topk, vocab, length, sequences;
    int64_t sequence_group, expert_group, vocab_group;
    int64_t chunk_budget, max_chunks, tile, host_budget, keep_attention, bucket, slots, report;
    double lr, bias_step;
    const char *model, *routing, *text, *dump_routes;
    bool explain, all_ranks;
};

#define TRAIN_GROUPS 4

/* Composition, model and run, which write into *line, and what all programs have. */
void train_groups(
    struct train_line *line, struct case_options *common, struct option_group groups[TRAIN_GROUPS]);

/* After options_parse and case_setup: the widths of --model, and what the device makes of the
 * other options. -1 to go on, or the exit status after one line on stderr. */
int train_line_setup(struct train_line *line, struct case_options *common, struct options *options);
