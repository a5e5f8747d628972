/* The definition of an optimizer step's result (docs/ARITHMETIC.md, rule 9; ops/adamw.h has the
 * formulas): one thread, all ranks' shares in one address space, element after element. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/arith.h"

#define REF_ADAMW_GROUPS 2

struct ref_adamw_hyper {
    double lr, b1, b2, eps, wd;
};

/* A rank's part of a tensor: elements first .. first + count - 1 of the rank's arrays. */
struct ref_adamw_tensor {
    int64_t first, count;
    int group;
};

/* One rank's share. Arrays are the caller's. */
struct ref_adamw_share {
    int64_t tensors;
    const struct ref_adamw_tensor *tensor; /* in the model's order */
    const void *g;
    float *p, *m, *v;
    uint16_t *w; /* written only */
};

struct ref_adamw_problem {
    int ranks;
    const struct ref_adamw_share *share; /* [ranks] */
    enum dtype g_type;
    int64_t t; /* of this step, from 1 */
    double scale, clip;
    bool propagate; /* gradients that are not finite are used as they are */
    struct ref_adamw_hyper hyper[REF_ADAMW_GROUPS];
};

struct ref_adamw_report {
    double norm;       /* over all ranks */
    double factor;     /* in FP64; NaN when the step was skipped */
    int64_t nonfinite; /* elements, over all ranks */
    int first_rank;    /* of the first such element, ranks before tensors; -1 = none */
    int64_t first_tensor;
    bool skipped;
};

/* One step in place on p, m and v, and w written; or nothing but the report when a gradient is not
 * finite and problem->propagate is off. */
void ref_adamw_step(const struct ref_adamw_problem *problem, struct ref_adamw_report *report);

/* The same step in FP64 on one share, from the FP32 state before it and without rounding the
 * constants; and for each value the largest error that an FP32 implementation under the contract
 * can have (reference/adamw.c derives it). Infinite where an intermediate value can leave FP32's
 * range. Arrays have as many elements as the share's. `factor` is the report's. */
struct ref_adamw_f64 {
    double *p, *p_bound, *m, *m_bound, *v, *v_bound;
};
void ref_adamw_f64(const struct ref_adamw_problem *problem, int rank, double factor,
    const struct ref_adamw_f64 *result);
