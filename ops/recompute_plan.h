/* Selective recompute of attention (RelayMoE, section 3.4): what to keep from forward to backward
 * in the memory that a layer's dispatch no longer takes. A pure function of sizes. */
#pragma once
#include <stdint.h>

/* What may be kept of one layer. The options of a layer are nested: each keeps what the one before
 * keeps and more, so both numbers ascend strictly within a layer. */
struct recompute_option {
    int64_t kept_bytes;
    int64_t saved_flops; /* of backward's recomputation */
};

/* options [layers, options_per_layer]. Of each layer at most one is chosen, none = all of it is
 * recomputed. */
struct recompute_problem {
    int64_t layers, options_per_layer;
    const struct recompute_option *options;
    int64_t budget_bytes; /* capacity less the peak under full recompute; < 0 counts as 0 */
};

struct recompute_plan {
    int64_t kept_bytes, saved_flops;
    int64_t freed_bytes; /* what keeping the last option of every layer would take beyond it */
};

/* 0, or -1 with `error` where a layer's options are not nested. */
int recompute_check(const struct recompute_problem *problem, char *error, int size);

/* The paper's greedy choice: options of all layers by saving per byte, ties by layer, then option;
 * each is taken while it fits, in place of a smaller one of its layer. chosen [layers]: the
 * option's number, -1 = none. 0, or -1 when memory is short. */
int recompute_choose(
    const struct recompute_problem *problem, int32_t *chosen, struct recompute_plan *plan);

/* The largest saving within the budget, fewest bytes among equals, by trying every choice. 0, or -1
 * where there are more than 10^7 of them. */
int recompute_choose_best(
    const struct recompute_problem *problem, int32_t *chosen, struct recompute_plan *plan);
