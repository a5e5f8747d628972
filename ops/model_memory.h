/* What a composed step holds on a rank, in closed form and before any routing is known: Eq. 6 with
 * our constants. The tracked peak never passes it, whatever the router does. */
#pragma once
#include <stdbool.h>
#include "ops/model_moments.h"

#define MODEL_TERMS_MAX 16

struct model_term {
    const char *name;
    const char *formula; /* in the symbols of docs/PLAN.md */
    int64_t bytes;
    bool per_context; /* it grows with the tokens of a rank */
};

/* Device terms that live together, and of those that take turns the largest. A turn's term is what
 * it adds to the others: what is not there in it is taken off. */
struct model_budget {
    struct model_term term[MODEL_TERMS_MAX];
    int count;
    int turns; /* the last `turns` of them take turns: only the largest counts */
    int64_t device_bytes;
    int64_t set_bytes[LIVE_SET_COUNT]; /* of each live set by itself */
    int64_t balanced_bytes; /* device_bytes when routing is balanced; only of pipelined-llep */
    int64_t balanced_dispatch_bytes; /* the dispatch's term then */
    int64_t host_bytes;              /* pinned */
    /* NULL, or the implementation that has no bound: the terms are then what is bounded, and
     * nothing of the dispatch. Of the implementations without a bound together: the live set that
     * they fill most when routing is balanced, and how far. */
    const char *unbounded;
    enum live_set unbounded_set;
    int64_t unbounded_bytes;
};

/* 0, or -1 when memory is short. The shape is checked. */
int model_budget(struct model_budget *budget, const struct model_shape *shape,
    const struct model_options *options, int rank);

/* No less than the bytes of any live set, of all parameters and of what a rank sends, by far: where
 * it is below 2^62 no sum of bytes overflows. */
double model_ceiling_bytes(const struct model_shape *shape);
