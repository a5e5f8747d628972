/* The definition of the dispatch problem's result (ops/moe.h has the formulas): one thread, the
 * whole problem in one address space, no ranks. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/arith.h"
#include "ops/moe_order.h"

struct ref_moe_problem {
    int64_t tokens; /* of all ranks, one rank after the other */
    int64_t hidden, ffn, experts;
    int topk;
    enum dtype dtype;
    const void *x;                /* [tokens, H] */
    const int32_t *idx;           /* [tokens, k]; -1 = empty slot */
    const float *weight;          /* [tokens, k] */
    const void *gate, *up, *down; /* [E, F, H], [E, F, H], [E, H, F]; gate NULL = ReLU expert */
    const void *dy;               /* [tokens, H]; NULL = forward only */
};

/* Checks sizes and expert ids. 0, or -1 with `error` naming what is wrong. */
int ref_moe_check(const struct ref_moe_problem *problem, char *error, int size);

/* Arrays are the caller's. What is NULL is not formed; gate_gradient stays untouched with the ReLU
 * expert. */
struct ref_moe_result {
    void *y;                                            /* [tokens, H] in the problem's type */
    void *dx;                                           /* [tokens, H] in the problem's type */
    float *router_gradient;                             /* [tokens, k] */
    float *gate_gradient, *up_gradient, *down_gradient; /* as the weights, FP32 */
};

/* Runs the problem with sums in `order` (NULL = default). 0, or -1 with `error`: the order does not
 * cover the problem exactly (moe_order_check), an expert id outside [0, E), memory. */
int ref_moe(const struct ref_moe_problem *problem, const struct moe_order *order,
    struct ref_moe_result *result, char *error, int size);

/* Some tokens and some experts only: y, dx and router_gradient of the tokens listed, and the weight
 * gradients of the experts listed (both lists ascending), written compactly. */
struct ref_moe_sample {
    int64_t tokens_count;
    const int64_t *tokens;
    int64_t experts_count;
    const int64_t *experts;
};
int ref_moe_sampled(const struct ref_moe_problem *problem, const struct moe_order *order,
    const struct ref_moe_sample *sample, struct ref_moe_result *result, char *error, int size);

/* FP64 and free of any order: values, and for each the largest error that an FP32 implementation
 * under docs/ARITHMETIC.md can have, derived in moe_f64.c. NaN: every implementation gives NaN. A
 * bound of infinity: nothing can be said (sums near the end of FP32's range, infinite inputs). A
 * NULL value array is not formed, nor its bound. */
struct ref_moe_f64 {
    double *y, *y_bound;                    /* [tokens, H] */
    double *dx, *dx_bound;                  /* [tokens, H] */
    double *router_gradient, *router_bound; /* [tokens, k] */
    double *gate_gradient, *gate_bound;     /* [E, F, H] */
    double *up_gradient, *up_bound;         /* [E, F, H] */
    double *down_gradient, *down_bound;     /* [E, H, F] */
};
int ref_moe_f64(
    const struct ref_moe_problem *problem, struct ref_moe_f64 *result, char *error, int size);
