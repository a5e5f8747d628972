/* The definition of the checkpoint-boundary problem's result (ops/stack.h has the formulas): one
 * rank's tokens, one thread, nothing forgotten between forward and backward but what a layer
 * computes again from its input. */
#pragma once
#include <stdint.h>
#include "kernels/arith.h"

struct ref_stack_problem {
    int64_t tokens, layers, hidden, ffn;
    enum dtype dtype;
    const void *x, *dy;                  /* [N, H] */
    const void *gain, *gate, *up, *down; /* [L, H], [L, H, F], [L, H, F], [L, F, H] */
};

/* Arrays are the caller's. dx is NULL for a forward pass alone; the gradients go unused then. */
struct ref_stack_result {
    void *y, *dx; /* [N, H] in the problem's type */
    float *dgain, *dgate, *dup, *ddown;
};

/* 0, or -1 with `error`: sizes that are not positive (tokens may be 0), or memory. */
int ref_stack(const struct ref_stack_problem *problem, struct ref_stack_result *result, char *error,
    int size);

/* The same in FP64, every rounding to a stored type left out: what the bits should be near to. y
 * and dx [N, H], the gradients as in ref_stack_result, dx NULL for forward alone. No bound for the
 * distance through L layers is derived: tests/test_stack_reference.c states what it allows. */
struct ref_stack_f64 {
    double *y, *dx;
    double *dgain, *dgate, *dup, *ddown;
};
int ref_stack_f64(
    const struct ref_stack_problem *problem, struct ref_stack_f64 *result, char *error, int size);
