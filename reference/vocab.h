/* The definition of the vocabulary problem's result (ops/vocab.h has the formulas): one thread, the
 * whole problem in one address space. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/arith.h"
#include "ops/vocab_order.h"

#define REF_VOCAB_IGNORED (-100) /* the target of a token that takes no part */

struct ref_vocab_problem {
    int ranks;             /* = shards */
    const int64_t *tokens; /* [ranks] */
    int64_t hidden, vocab;
    enum dtype dtype;
    const void *x;          /* [sum of tokens, H], ranks one after the other */
    const void *w;          /* [V, H] */
    const int64_t *targets; /* [sum of tokens] */
};

/* Checks sizes and targets. The number of valid tokens, or -1 with `error` naming what is wrong. */
int64_t ref_vocab_check(const struct ref_vocab_problem *problem, char *error, int size);

/* Arrays are the caller's; dx and dw may be NULL (forward only). */
struct ref_vocab_result {
    float *max, *log_z, *loss; /* [tokens] */
    double mean;
    int64_t valid;
    void *dx;  /* [tokens, H] in the problem's type */
    float *dw; /* [V, H] */
};

/* Runs the problem with gradients summed in `order` (NULL = default). 0, or -1 with `error`: the
 * order does not cover the problem exactly (vocab_order_check), a target outside [0, V), memory. */
int ref_vocab(const struct ref_vocab_problem *problem, const struct vocab_order *order,
    struct ref_vocab_result *result, char *error, int size);

/* The two halves of ref_vocab: max, log_z, loss, mean and valid; and dx, dw from the max and log_z
 * that `result` holds (where dx or dw is NULL it is not formed). */
int ref_vocab_forward(const struct ref_vocab_problem *problem, struct ref_vocab_result *result,
    char *error, int size);
int ref_vocab_gradients(const struct ref_vocab_problem *problem, const struct vocab_order *order,
    struct ref_vocab_result *result, char *error, int size);

/* Some rows only: loss, max, log_z and dX of the tokens listed (ascending global indices), written
 * compactly; and dW of the vocabulary rows listed, for which every token's max and log_z must be
 * given (they are taken from `all_max`, `all_log_z`, not recomputed). `valid` counts the whole
 * problem; `mean` would need every token and is NaN. */
struct ref_vocab_sample {
    int64_t tokens_count;
    const int64_t *tokens;
    int64_t rows_count;
    const int64_t *rows;
    const float *all_max, *all_log_z; /* [sum of tokens]; unused when rows_count = 0 */
};
int ref_vocab_sampled(const struct ref_vocab_problem *problem, const struct vocab_order *order,
    const struct ref_vocab_sample *sample, struct ref_vocab_result *result, char *error, int size);

/* FP64 and free of any order: values, and for each the largest error that an FP32 implementation
 * under docs/ARITHMETIC.md can have, derived in vocab_f64.c. NaN: every implementation gives NaN. A
 * bound of infinity: nothing can be said (sums near the end of FP32's range, infinite inputs).
 * Arrays as in ref_vocab_result. */
struct ref_vocab_f64 {
    double *loss, *loss_bound; /* [tokens] */
    double *dx, *dx_bound;     /* [tokens, H]; NULL = forward only */
    double *dw, *dw_bound;     /* [V, H] */
};
int ref_vocab_f64(
    const struct ref_vocab_problem *problem, struct ref_vocab_f64 *result, char *error, int size);
