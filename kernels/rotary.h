/* Rotary positions: queries and keys are turned by angles that grow with their place, so that the
 * product of the two depends on how far apart they stand.
 *
 * x is [rows, heads, D] without gaps, in the problem's type (FP32 or BF16); row r stands at place
 * r mod run of those that `turns` holds. In each head the columns i and j = i + D div 2 are a pair,
 * for i in [0, D div 2), and an odd last column is left alone. With (c, s) of the place and i:
 *
 *     x[i] = fmaf(x[i], c, -(x[j] s))     stored          backward, the turn the other way:
 *     x[j] = fmaf(x[j], c, x[i] s)        stored          the same with -s for s
 *
 * both from the values before. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"
#include "kernels/arith.h"

struct rotary_args {
    int64_t rows, heads, head_columns; /* D */
    int64_t run;
    enum dtype type;
    bool backward;
    const float *turns; /* [run, 2, D div 2]: cosines, then sines */
    void *x;
};
extern const struct kernel kernel_rotary;
void rotary(struct stream *stream, const struct rotary_args *args);

/* turns [run, 2, half] of the places first .. first + run - 1: pair i turns by 10000^(-i / half)
 * from one place to the next. The angles' cosines and sines are made in FP64 from sums and products
 * alone, place after place from 0 on, and rounded once: the same on every machine. */
void rotary_turns(int64_t first, int64_t run, int64_t half, float *turns);
