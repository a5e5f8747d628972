/* One run of one dispatcher on a small problem against the reference, for tests of schedules. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "ops/moe.h"
#include "ops/moe_order.h"
#include "reference/moe.h"

enum { MOE_CASE_RANKS_MAX = 8 };

/* How tokens choose experts. */
enum moe_case_routing { ROUTE_RANDOM, ROUTE_SKEWED, ROUTE_ONE_EXPERT, ROUTE_ONE_RANK };

/* The whole problem: ranks one after the other. */
struct moe_case {
    struct moe_shape shape;
    int64_t tokens[MOE_CASE_RANKS_MAX];
    int64_t all_tokens;
    void *x, *dy, *gate, *up, *down;
    float *weight;
    int32_t *idx;
    const int32_t *rank_idx[MOE_CASE_RANKS_MAX];
};

/* Fills everything from the seed; the shape's ranks, hidden, ffn, experts, topk, dtype and
 * activation are given, tokens by rank. One slot in `empty_every` is empty (0: none). 0, or -1. */
int moe_case_init(struct moe_case *c, const struct moe_shape *shape, const int64_t *tokens,
    enum moe_case_routing routing, int empty_every, uint64_t seed);
void moe_case_free(struct moe_case *c);

/* All ranks' outputs, in global order. */
struct moe_case_result {
    void *y, *dx;
    float *router_gradient, *gate_gradient, *up_gradient, *down_gradient;
    int64_t allocations; /* of rank 0 in a round */
};
void moe_case_result_free(struct moe_case_result *result);

/* The reference in the order that the variant declares (order NULL: the default). 0, or -1. */
int moe_case_reference(const struct moe_case *c, const struct moe_impl *impl,
    const struct moe_options *options, struct moe_case_result *result, char *why, int size);

/* The same in an order that is given. */
int moe_case_reference_in(const struct moe_case *c, const struct moe_order *order,
    struct moe_case_result *result, char *why, int size);

/* Runs forward, and backward unless `forward_only`, with the order check on. Demands that tracked
 * peaks equal expected_bytes by live set and stay within bound_bytes, and that nothing is left.
 * `rounds` > 1 repeats both passes. 0, or -1 and why; `result` holds the last round's outputs. */
struct moe_case_run {
    const struct moe_impl *impl;
    struct moe_options options;
    const struct moe_order
        *run_order; /* NULL = the implementation's own; else memory is not told */
    bool forward_only;
    bool keeps_nothing;        /* between the passes only Y is live */
    const int64_t *kept_bytes; /* [ranks], live between the passes beside Y; or NULL */
    bool no_order_check;
    bool serial_streams;
    int64_t device_limit_bytes; /* 0 = none */
    int rounds;
    /* With rounds: called with the round's outputs; false ends the run as a failure. */
    bool (*each)(
        const struct moe_case *c, const struct moe_case_result *result, int round, void *context);
    void *context;
};
int moe_case_run(const struct moe_case *c, const struct moe_case_run *run,
    struct moe_case_result *result, char *why, int size);

/* Whether all outputs (Y alone with forward_only) have the same bits. */
bool moe_case_equal(const struct moe_case *c, const struct moe_case_result *got,
    const struct moe_case_result *want, bool forward_only, char *why, int size);

/* Runs and compares with the reference in the declared order, and Y, dX, dw are the default's. */
bool moe_case_holds(const struct moe_case *c, const struct moe_case_run *run, char *why, int size);
