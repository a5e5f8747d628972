/* The definition of causal attention's result (kernels/attention.h has the formulas): the plain
 * algorithm, token by token, one thread, with a row of scores at a time. */
#pragma once
#include <stdint.h>
#include "kernels/arith.h"

struct ref_attention_problem {
    int64_t sequences, tokens, heads, head_columns;
    enum dtype dtype;
    float scale;
    const void *q, *k, *v, *d_o; /* [sequences * tokens, heads, head_columns]; d_o for backward */
};

/* Arrays are the caller's, in the problem's type. dq is NULL for a forward pass alone; dk and dv
 * go unused then. */
struct ref_attention_result {
    void *o;
    float *max, *log_z; /* [sequences * tokens, heads] */
    void *dq, *dk, *dv;
};

/* 0, or -1 when memory is short. */
int ref_attention(const struct ref_attention_problem *problem, struct ref_attention_result *result);

/* The same in FP64, every rounding left out. dq NULL for forward alone. */
struct ref_attention_f64 {
    double *o, *dq, *dk, *dv;
};
int ref_attention_f64(
    const struct ref_attention_problem *problem, struct ref_attention_f64 *result);
