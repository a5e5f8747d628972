/* The reference's matrix loops, and the copies that put rows where those loops want them.
 * Everything is row-major and contiguous, and outputs overlap no input. */
#pragma once
#include <stdint.h>
#include "kernels/arith.h"

/* c[i, j]: for p ascending, c[i, j] = fmaf(a[i, p], b[p, j], c[i, j]) with a [m, k], b [k, n] and
 * c [m, n]: continues the chain that c holds. */
void ref_product(const float *a, const float *b, float *c, int64_t m, int64_t n, int64_t k);

/* The same in FP64. */
void ref_product_f64(const double *a, const double *b, double *c, int64_t m, int64_t n, int64_t k);

/* Rows of a matrix [.., columns] stored as `type`, widened. Row i of the copy is row first + i, or
 * row list[first + i] where a list is given. */
void ref_load_rows(enum dtype type, const void *matrix, const int64_t *list, int64_t first,
    int64_t count, int64_t columns, float *out);

/* out[columns, rows] = in[rows, columns] turned over. */
void ref_transpose(const float *in, int64_t rows, int64_t columns, float *out);
