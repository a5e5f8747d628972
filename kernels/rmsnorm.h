/* RMSNorm, its backward, and the residual addition: rows [rows, columns], row-major without gaps,
 * FP32 or BF16 as `type` says; arithmetic is FP32, what is stored is rounded once. ops/stack.h has
 * the formulas among those of its problem; operation by operation they are:
 *
 *     s = rule 6 over x[h] * x[h]                    each square rounded, then added
 *     r = 1 / sqrt(s / columns + RMSNORM_EPS)        every operation rounded, kept in FP32
 *     n[h] = (x[h] * r) * gain[h]
 *
 *     q[h] = dn[h] * gain[h]
 *     c = (r * r) * (d / columns), d = rule 6 with fmaf over q[h] * x[h]
 *     dx[h] = dy[h] + r * fmaf(-c, x[h], q[h])
 *     dgain[h] = chain over rows ascending of fmaf(dn[h], x[h] * r, .), from +0     FP32
 *
 * A row depends on nothing but itself; rows are divided over threads, and of dgain the columns. */
#pragma once
#include <stdint.h>
#include "device/device.h"
#include "kernels/arith.h"

#define RMSNORM_EPS 1e-5f

struct rmsnorm_args {
    int64_t rows, columns;
    enum dtype type;
    const void *x, *gain; /* [rows, columns], [columns] */
    float *r;             /* [rows] */
    void *n;              /* [rows, columns] */
};
extern const struct kernel kernel_rmsnorm;
void rmsnorm(struct stream *stream, const struct rmsnorm_args *args);

struct rmsnorm_backward_args {
    int64_t rows, columns;
    enum dtype type;
    const void *x, *gain, *dn, *dy;
    const float *r; /* [rows] */
    void *dx;       /* may be dy itself */
};
extern const struct kernel kernel_rmsnorm_backward;
void rmsnorm_backward(struct stream *stream, const struct rmsnorm_backward_args *args);

struct rmsnorm_gain_args {
    int64_t rows, columns;
    enum dtype type;
    const void *x, *dn;
    const float *r;
    float *dgain; /* [columns] */
};
extern const struct kernel kernel_rmsnorm_gain;
void rmsnorm_gain(struct stream *stream, const struct rmsnorm_gain_args *args);

/* to[i] = to[i] + from[i] for i in [0, count), rounded to `type`. */
struct residual_add_args {
    int64_t count;
    enum dtype type;
    void *to;
    const void *from;
};
extern const struct kernel kernel_residual_add;
void residual_add(struct stream *stream, const struct residual_add_args *args);
