/* Between gemm.c, which shares a product out among threads, and gemm_isa.c, which computes one
 * share with one instruction set. Private to the two and to their tests. */
#pragma once
#include <stdint.h>
#include "kernels/gemm.h"

/* One thread's working memory, 64-byte aligned. Its size changes no bit; less of it is slower. */
struct gemm_scratch {
    float *a;   /* packed rows of A */
    float *b;   /* packed columns of B */
    float *sum; /* chains of a GEMM_ADD between blocks of k */
    int64_t a_floats, b_floats, sum_floats;
};

/* The least that every variant works with: it fits on a stack. */
enum { GEMM_LEAST_A = 16 * 32, GEMM_LEAST_B = 64 * 32, GEMM_LEAST_SUM = 16 * (64 + 16) };

/* What repays itself: A's block in the second-level cache, B's in the third, and sums of about
 * 1024 x 1024. */
enum { GEMM_FULL_A = 172 * 512, GEMM_FULL_B = 1056 * 512, GEMM_FULL_SUM = 1024 * (1024 + 16) };

/* C[row, row+rows) x [column, column+columns). */
struct gemm_share {
    int64_t row, rows, column, columns;
};

struct gemm_variant {
    int64_t tile_rows, tile_columns; /* shares are best cut at multiples of these */

    /* Makes one share; its rows and columns and args->k are at least 1. */
    void (*run)(const struct gemm_args *args, const struct gemm_share *share,
        const struct gemm_scratch *scratch);
};
