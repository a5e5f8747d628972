/* The least-loaded expert-parallel plan: a pure function of the counts, the same on every rank.
 *
 * Positions of an expert's routes are numbered by source rank, then token * k + slot. A segment
 * gives positions [first, last) of an expert to a rank; the segments of an expert tile [0, count)
 * in order of position, and an (expert, rank) pair occurs at most once. */
#pragma once
#include <stdint.h>

struct llep_segment {
    int64_t expert, first, last;
    int rank;
};

struct llep_options {
    double alpha;            /* capacity factor, > 0 */
    int64_t min_gemm_tokens; /* m >= 1 */
    double lambda; /* gate: below this busiest / mean load no plan is made; 0 = always plan */
};

struct llep_plan {
    int planned;          /* 0: the gate held, plain expert parallelism (one segment per expert) */
    int64_t cap;          /* soft capacity of a rank */
    int64_t excess;       /* the largest load over cap, 0 = kept */
    int64_t *load;        /* [ranks]: routes that each rank computes */
    int64_t *native_load; /* [ranks]: before the plan */
    struct llep_segment *segments; /* by expert; an expert's owner first (when it keeps any), then
                                      helpers in plan order: positions ascend */
    int64_t segment_count;
    int64_t *expert_first; /* [experts + 1]: expert e's segments */
    int64_t transfers;     /* experts lent: (expert, helper) pairs */
};

/* counts [experts]: routes of each expert over all ranks; expert e is owned by e div (experts /
 * ranks). 0, or -1 when memory is short. */
int llep_plan(struct llep_plan *plan, int ranks, int64_t experts, const int64_t *counts,
    const struct llep_options *options);
void llep_plan_free(struct llep_plan *plan);
