/* Sums in a stated order, and the collectives built on them. */
#pragma once
#include <stdint.h>
#include "device/comm.h"
#include "kernels/arith.h"

/* out[i] = part 0 [i] + part 1 [i] + ... ascending, FP32, part p at parts + p*stride. `out` may be
 * part 0. count elements each; parts >= 1. */
struct rank_sum_args {
    const float *parts;
    int64_t count, stride;
    int64_t parts_count;
    float *out;
};
extern const struct kernel kernel_rank_sum;
void rank_sum(struct stream *stream, const struct rank_sum_args *args);

/* to[i] = to[i] + from[i]. */
struct add_args {
    float *to;
    const float *from;
    int64_t count;
};
extern const struct kernel kernel_add;
void add_f32(struct stream *stream, float *to, const float *from, int64_t count);

/* to[i] = from[i] rounded to BF16. The arrays must not overlap. */
struct round_bf16_args {
    uint16_t *to;
    const float *from;
    int64_t count;
};
extern const struct kernel kernel_round_bf16;
void round_bf16(struct stream *stream, uint16_t *to, const float *from, int64_t count);

/* Rank r ends with the sum over ranks, in rank order, of slice r of `values`: slice p has counts[p]
 * elements and begins at sum(counts[0..p-1]). The slices travel into `scratch`, FP32
 * [comm_size * counts[rank]]; the sum lands in `out` [counts[rank]]. */
void rank_sum_scatter(struct comm *comm, struct stream *stream, const float *values,
    const int64_t *counts, float *scratch, float *out);
