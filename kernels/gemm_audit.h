/* Holds a product that a GPU has made against FP64, element by element and on the GPU, so that a
 * pass on the fast path can be judged at any shape.
 *
 * A BF16 product is exact in FP32 and in FP64, so FP64's own sum is off by some k 2^-53 of the
 * products' sizes: nothing beside the bound. With n the number of terms (k, the start, one
 * addition), S the sum of their sizes and t the FP64 value, an element must lie within
 *
 *     e = n (3/4) 2^-22 S + n 2^-149
 *
 * of t: tensor cores cut off where FP32 would round, at the scale of the largest term, and do so
 * for each of the n terms: n 2^-23 S, and half as much again for what is added between. The exact
 * result is within n 2^-24 S of t, so the two are within n 2^-22 S of each other. An element that
 * is stored in BF16 must be what some value within e of t rounds to. Where S reaches the end of
 * FP32's range nothing is known and nothing is demanded. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/gemm.h"
#include "kernels/moe.h"

/* In device memory, zeros at first. */
struct audit_tally {
    unsigned long long elements, outside;
    unsigned int worst_bits; /* of the largest |error| / bound as FP32 */
};

/* A copy, one part after the other, of what a product is about to change, in memory of the current
 * GPU's own pool and in the stream's order; NULL, and the product counted as not audited, when
 * memory is short. audit_drop of NULL does nothing. */
struct audit_part {
    const void *from;
    size_t bytes;
};
float *audit_copy(const struct audit_part *parts, int count, void *cuda_stream);
void audit_drop(float *copy, void *cuda_stream);

/* What a product leaves of its start: `before` is a copy of C (ldc as C's), or of the gradients
 * (owned, then lent), made before the product; NULL where the product starts from +0. At most
 * `tiles` tiles are looked at, evenly spread; 0: all. 0, or a cudaError_t. */
int gemm_audit(const struct gemm_args *args, const float *before, struct audit_tally *tally,
    int64_t tiles, void *cuda_stream);
int expert_matmul_audit(const struct expert_matmul_args *args, struct audit_tally *tally,
    int64_t tiles, void *cuda_stream);
int expert_gradient_audit(const struct expert_gradient_args *args, const float *before,
    struct audit_tally *tally, int64_t tiles, void *cuda_stream);
