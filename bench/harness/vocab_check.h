/* Checks the outputs of a vocabulary run at the level that was asked for. */
#pragma once
#include "bench/harness/case.h"
#include "bench/harness/vocab_run.h"

struct vocab_checker;

/* Holds reference results, so that implementations that sum in the same order share them, and the
 * baseline's forward result. NULL when memory is short. */
struct vocab_checker *vocab_checker_create(void);
void vocab_checker_free(struct vocab_checker *checker);

/* Multiply-adds of the reference: what decides the automatic level. */
int64_t vocab_check_operations(const struct vocab_shape *shape, bool backward);

/* Fills the tensors of `result` with digest, verdict, order and distance, and result->against.
 *
 *   reference  every output byte-equal to the reference in the declared order, and within the FP64
 * bounds sample:N   N tokens' max, log z, loss and dX, and N rows of dW, the same way; dW's rows
 * take the normalisers of the tokens outside the sample from the run itself baseline   max, log z
 * and loss equal to the family's baseline's, run here off        digests alone
 *
 * 0, or -1 with `error` when the check itself could not be made. */
int vocab_check(struct vocab_checker *checker, struct vocab_run *run, struct vocab_inputs *inputs,
    enum case_check level, int64_t samples, struct case_result *result, char *error, int size);

/* The same case's outputs on the fast path beside `run`, which was checked (products_bound). */
int vocab_bound(const struct vocab_run *run, const struct vocab_run *fast,
    struct case_result *result, char *error, int size);
