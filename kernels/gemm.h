/* Matrix product with one written order of its sums (docs/ARITHMETIC.md, rule 3).
 *
 *     chain(m, n) = init; for k ascending: chain = fmaf(A[m,k], B[k,n], chain)
 *
 * Each element of C depends on its own row of A, its own column of B and nothing else: not on M, N,
 * blocking, threads, ISA, or which other rows share the call. A and B are FP32 or BF16 (widened
 * exactly), C is FP32, all row-major. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"
#include "kernels/arith.h"

enum gemm_layout {
    GEMM_NN, /* A[M,K] B[K,N] */
    GEMM_NT, /* A[M,K] B stored [N,K] */
    GEMM_TN  /* A stored [K,M], B[K,N] */
};

enum gemm_init {
    GEMM_FRESH, /* C = chain from +0 */
    GEMM_CHAIN, /* C = chain from C: continues an earlier call's chain */
    GEMM_ADD    /* C = C + (chain from +0), one rounded addition */
};

struct gemm_args {
    enum gemm_layout layout;
    enum gemm_init init;
    enum dtype a_type, b_type;
    int64_t m, n, k; /* any may be 0; k = 0 makes the chain +0 (or leaves C under GEMM_CHAIN) */
    const void *a;
    int64_t lda; /* elements between rows as stored */
    const void *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    bool a_rounded; /* a_type is FP32 and its values are BF16's, as those of a residual that was
                       rounded: tensor cores may take it (kernels/gemm_fast.h) */
};

extern const struct kernel kernel_gemm;

/* Enqueues the product. */
void gemm(struct stream *stream, const struct gemm_args *args);

/* Runs it now on the calling thread and its team (NULL = alone), with the selected ISA. */
void gemm_cpu(const struct gemm_args *args, const struct dev_team *team);

/* Bytes of private packing scratch that one thread keeps, at most. */
int64_t gemm_scratch_bytes(void);
