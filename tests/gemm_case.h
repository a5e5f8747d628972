/* Cases of the matrix product for tests: operands that end at an unreadable page, three nested
 * loops, and a comparison of every variant with them, bit by bit. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"
#include "kernels/gemm.h"

enum values { ORDINARY, WIDE, DENORMAL, ZEROS, SPECIAL, VALUES_COUNT };

/* Memory whose last byte lies before an unreadable page. */
struct fenced {
    char *pages;
    int64_t bytes; /* whole pages, without the fence */
};

struct gemm_bench {
    struct fenced a, b, c;
    float *start;     /* C before the product, and what surrounds it */
    float *want;      /* C after it */
    int64_t c_floats; /* of C, start and want in the present case */
    struct dev_pool *pool;
    uint64_t random;
    int64_t compared, differ;
};

struct shape {
    int64_t m, n, k;
};

/* Operands of up to `floats` floats each; then a pool. Both end the program where they cannot be
 * had. */
void gemm_bench_create(struct gemm_bench *b, int64_t floats, uint64_t seed);
void gemm_bench_start_pool(struct gemm_bench *b, int threads);
void gemm_bench_free(struct gemm_bench *b);

int64_t random_below(uint64_t *state, int64_t bound);
void fill_values(
    struct gemm_bench *b, void *to, enum dtype type, int64_t count, enum values values);

/* Fills operands of that shape and returns the arguments. C lies in a sea of guard elements: a row
 * before it, a row after it, and `pad` + 1 elements between rows. */
struct gemm_args make_case(struct gemm_bench *b, enum gemm_layout layout, enum gemm_init init,
    enum dtype a_type, enum dtype b_type, struct shape s, enum values values, int64_t pad);

/* One element by the written chain; `c` is its value before. */
float naive_element(const struct gemm_args *g, int64_t m, int64_t n, float c);

/* Sets want: start, and C by naive_element. */
void naive(struct gemm_bench *b, const struct gemm_args *args);

/* Equal bits, or NaN and NaN. */
bool same_value(float got, float want);

/* C as it was before the product. */
void restore(struct gemm_bench *b, const struct gemm_args *args);

/* Compares C and every guard around it with want, counts, and notes the first differences. */
void compare(struct gemm_bench *b, const struct gemm_args *args, const char *how);

void run_threads(struct gemm_bench *b, struct gemm_args *args, int threads);

/* One case by every variant: by `threads` threads, and in the least scratch. */
void check_case(struct gemm_bench *b, struct gemm_args args, int threads);

/* Reports what was compared since the last report. */
void report(struct gemm_bench *b, const char *what);
