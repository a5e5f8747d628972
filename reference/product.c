/* The plain matrix loops of the reference.
 *
 * The definition is three nested loops around one fmaf, k ascending for each element of C. That
 * much is free to choose: which element is next. Here the column j runs innermost, so that
 * neighbouring elements of C, which are independent chains, fill a vector without the compiler
 * having to reorder any of them; two rows take four steps of k at a time, so that a loaded element
 * of C is used four times and a loaded element of B twice; and B is walked in blocks that stay in
 * the first-level cache. Every chain still meets its k in ascending order, block after block. */
#include "reference/product.h"
#include <math.h>
#include <string.h>

#define BLOCK_COLUMNS 128
#define BLOCK_STEPS 32 /* 32 x 128 elements of B: 16 KiB */

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Two rows of C, four steps of each chain. */
static inline void two_rows_four_steps(const float *a0, const float *a1, const float *b,
    float *restrict c0, float *restrict c1, int64_t columns)
{
    const float *b0 = b, *b1 = b0 + BLOCK_COLUMNS, *b2 = b1 + BLOCK_COLUMNS,
                *b3 = b2 + BLOCK_COLUMNS;
    float a00 = a0[0], a01 = a0[1], a02 = a0[2], a03 = a0[3];
    float a10 = a1[0], a11 = a1[1], a12 = a1[2], a13 = a1[3];
    for (int64_t j = 0; j < columns; j++) {
        c0[j] = fmaf(a03, b3[j], fmaf(a02, b2[j], fmaf(a01, b1[j], fmaf(a00, b0[j], c0[j]))));
        c1[j] = fmaf(a13, b3[j], fmaf(a12, b2[j], fmaf(a11, b1[j], fmaf(a10, b0[j], c1[j]))));
    }
}

/* One row of C, one step of each chain. */
static inline void one_row_one_step(float a, const float *b, float *restrict c, int64_t columns)
{
    for (int64_t j = 0; j < columns; j++)
        c[j] = fmaf(a, b[j], c[j]);
}

/* A block of B meets every row of A and C. */
static void product_block(const float *a, int64_t lda, const float b[BLOCK_STEPS * BLOCK_COLUMNS],
    float *c, int64_t ldc, int64_t m, int64_t columns, int64_t steps)
{
    int64_t paired_rows = m / 2 * 2, grouped_steps = steps / 4 * 4;
    for (int64_t i = 0; i < paired_rows; i += 2) {
        const float *a0 = a + i * lda, *a1 = a0 + lda;
        float *c0 = c + i * ldc, *c1 = c0 + ldc;
        for (int64_t p = 0; p < grouped_steps; p += 4)
            two_rows_four_steps(a0 + p, a1 + p, b + p * BLOCK_COLUMNS, c0, c1, columns);
        for (int64_t p = grouped_steps; p < steps; p++) {
            one_row_one_step(a0[p], b + p * BLOCK_COLUMNS, c0, columns);
            one_row_one_step(a1[p], b + p * BLOCK_COLUMNS, c1, columns);
        }
    }
    for (int64_t i = paired_rows; i < m; i++)
        for (int64_t p = 0; p < steps; p++)
            one_row_one_step(a[i * lda + p], b + p * BLOCK_COLUMNS, c + i * ldc, columns);
}

void ref_product(const float *a, const float *b, float *c, int64_t m, int64_t n, int64_t k)
{
    float block[BLOCK_STEPS * BLOCK_COLUMNS];
    for (int64_t p = 0; p < k; p += BLOCK_STEPS) {
        int64_t steps = min_i64(BLOCK_STEPS, k - p);
        for (int64_t j = 0; j < n; j += BLOCK_COLUMNS) {
            int64_t columns = min_i64(BLOCK_COLUMNS, n - j);
            for (int64_t step = 0; step < steps; step++)
                memcpy(block + step * BLOCK_COLUMNS, b + (p + step) * n + j,
                    (size_t)columns * sizeof *block);
            product_block(a + p, k, block, c + j, n, m, columns, steps);
        }
    }
}

/* The same walk in FP64, over blocks of half the columns. */
#define BLOCK_COLUMNS_F64 (BLOCK_COLUMNS / 2)

static inline void two_rows_four_steps_f64(const double *a0, const double *a1, const double *b,
    double *restrict c0, double *restrict c1, int64_t columns)
{
    const double *b0 = b, *b1 = b0 + BLOCK_COLUMNS_F64, *b2 = b1 + BLOCK_COLUMNS_F64,
                 *b3 = b2 + BLOCK_COLUMNS_F64;
    double a00 = a0[0], a01 = a0[1], a02 = a0[2], a03 = a0[3];
    double a10 = a1[0], a11 = a1[1], a12 = a1[2], a13 = a1[3];
    for (int64_t j = 0; j < columns; j++) {
        c0[j] = fma(a03, b3[j], fma(a02, b2[j], fma(a01, b1[j], fma(a00, b0[j], c0[j]))));
        c1[j] = fma(a13, b3[j], fma(a12, b2[j], fma(a11, b1[j], fma(a10, b0[j], c1[j]))));
    }
}

static void product_block_f64(const double *a, int64_t lda,
    const double b[BLOCK_STEPS * BLOCK_COLUMNS_F64], double *c, int64_t ldc, int64_t m,
    int64_t columns, int64_t steps)
{
    int64_t paired_rows = m / 2 * 2, grouped_steps = steps / 4 * 4;
    for (int64_t i = 0; i < paired_rows; i += 2)
        for (int64_t p = 0; p < grouped_steps; p += 4)
            two_rows_four_steps_f64(a + i * lda + p, a + (i + 1) * lda + p,
                b + p * BLOCK_COLUMNS_F64, c + i * ldc, c + (i + 1) * ldc, columns);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = i < paired_rows ? grouped_steps : 0; p < steps; p++)
            for (int64_t j = 0; j < columns; j++)
                c[i * ldc + j] = fma(a[i * lda + p], b[p * BLOCK_COLUMNS_F64 + j], c[i * ldc + j]);
}

void ref_product_f64(const double *a, const double *b, double *c, int64_t m, int64_t n, int64_t k)
{
    double block[BLOCK_STEPS * BLOCK_COLUMNS_F64];
    for (int64_t p = 0; p < k; p += BLOCK_STEPS) {
        int64_t steps = min_i64(BLOCK_STEPS, k - p);
        for (int64_t j = 0; j < n; j += BLOCK_COLUMNS_F64) {
            int64_t columns = min_i64(BLOCK_COLUMNS_F64, n - j);
            for (int64_t step = 0; step < steps; step++)
                memcpy(block + step * BLOCK_COLUMNS_F64, b + (p + step) * n + j,
                    (size_t)columns * sizeof *block);
            product_block_f64(a + p, k, block, c + j, n, m, columns, steps);
        }
    }
}

void ref_load_rows(enum dtype type, const void *matrix, const int64_t *list, int64_t first,
    int64_t count, int64_t columns, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t row = list ? list[first + i] : first + i;
        if (type == DTYPE_F32) {
            memcpy(out + i * columns, (const float *)matrix + row * columns,
                (size_t)columns * sizeof *out);
            continue;
        }
        const uint16_t *from = (const uint16_t *)matrix + row * columns;
        for (int64_t j = 0; j < columns; j++)
            out[i * columns + j] = bf16_to_f32(from[j]);
    }
}

/* Squares of 16 by 16 keep both sides in cache. */
void ref_transpose(const float *in, int64_t rows, int64_t columns, float *out)
{
    for (int64_t i0 = 0; i0 < rows; i0 += 16)
        for (int64_t j0 = 0; j0 < columns; j0 += 16)
            for (int64_t j = j0; j < min_i64(j0 + 16, columns); j++)
                for (int64_t i = i0; i < min_i64(i0 + 16, rows); i++)
                    out[j * rows + i] = in[i * columns + j];
}
