/* Checks the outputs of a checkpoint-boundary run at the level that was asked for. */
#pragma once
#include "bench/harness/case.h"
#include "bench/harness/stack_run.h"

/* A reference result and what it was computed for; starts as zeros. All implementations and budgets
 * of a shape share it. */
struct stack_checker {
    const struct stack_inputs *inputs; /* NULL: empty */
    bool backward;
    struct stack_outputs want;
};
void stack_checker_free(struct stack_checker *checker);

/* Multiply-adds of the reference: what decides the automatic level. */
int64_t stack_check_operations(const struct stack_shape *shape, bool backward);

/* Fills the tensors of `result` with digest and verdict, and result->against.
 *
 *   reference  every output byte-equal to the reference
 *   sample:N   Y and dX of N tokens; weight gradients, which are sums over all, digests alone
 *   baseline   every output byte-equal to the family's baseline's, run here
 *   off        digests alone
 *
 * The inputs must stay as they are while the checker holds their result. 0, or -1 with `error` when
 * the check itself could not be made. */
int stack_check(struct stack_checker *checker, const struct stack_run *run, enum case_check level,
    int64_t samples, struct case_result *result, char *error, int size);

/* The same case's outputs on the fast path beside `run`, which was checked (products_bound). */
int stack_bound(const struct stack_run *run, const struct stack_run *fast,
    struct case_result *result, char *error, int size);

/* The reference's result of all ranks. 0, or -1 with `error`. The outputs are the caller's. */
int stack_reference(const struct stack_inputs *inputs, bool backward, struct stack_outputs *want,
    char *error, int size);
