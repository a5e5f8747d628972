/* Checks the outputs of a dispatch run at the level that was asked for. */
#pragma once
#include "bench/harness/case.h"
#include "bench/harness/moe_run.h"

struct moe_checker;

/* Holds reference results, so that implementations that sum in the same order share them. NULL when
 * memory is short. */
struct moe_checker *moe_checker_create(void);
void moe_checker_free(struct moe_checker *checker);

/* Multiply-adds of the reference: what decides the automatic level. */
int64_t moe_check_operations(const struct moe_inputs *inputs, bool backward);

/* Fills the tensors of `result`: Y, dX, dw, dWgate, dWup, dWdown.
 *
 *   reference  every output byte-equal to the reference in the declared order, and within the FP64
 *              bounds; with integer inputs byte-equal to the default order's, whatever the order
 *   sample:N   N tokens' Y, dX, dw and at most N experts' weight gradients, the same way
 *   baseline   those of Y, dX and dw in the default order equal to the baseline's, run here
 *   off        digests alone
 *
 * 0, or -1 with `error` when the check itself could not be made. */
int moe_check(struct moe_checker *checker, struct moe_run *run, struct moe_inputs *inputs,
    enum case_check level, int64_t samples, struct case_result *result, char *error, int size);

/* The same case's outputs on the fast path beside `run`, which was checked (products_bound). */
int moe_bound(const struct moe_run *run, const struct moe_run *fast, struct case_result *result,
    char *error, int size);
