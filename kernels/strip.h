/* Kernels over a strip of logits: `rows` tokens by `columns` vocabulary entries, FP32, row-major
 * with `ld` elements between rows (docs/ARITHMETIC.md, rules 6 and 7). A strip may be a whole
 * shard's columns or any run of them that begins on a multiple of VOCAB_SEGMENT from the shard's
 * start.
 *
 * Targets are global vocabulary indices; VOCAB_IGNORED marks a token without a target. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"
#include "kernels/arith.h"

#define VOCAB_SEGMENT SOFTMAX_SEGMENT
#define VOCAB_IGNORED (-100)

/* Folds the strip's segments from the left into each row's state (max, sum), and picks up the
 * target's logit where the target lies in [first_column, first_column + columns). `fresh` starts
 * from the empty state (-inf, 0) instead of what the arrays hold; target_logit is only written,
 * never read. columns = 0 with fresh leaves the empty state. */
struct strip_fold_args {
    const float *logits;
    int64_t rows, columns, ld;
    int64_t first_column; /* global vocabulary index of column 0 */
    const int64_t *targets;
    float *max, *sum, *target_logit; /* [rows] */
    bool fresh;
};
extern const struct kernel kernel_strip_fold;
void strip_fold(struct stream *stream, const struct strip_fold_args *args);

/* Folds `shards` states in ascending order and forms the token's loss:
 *     log_z = log(sum), loss = (max - target_logit) + log_z, +0 for an ignored token.
 * Shard s's states begin at shard_max + s*stride, shard_sum + s*stride. */
struct strip_finish_args {
    const float *shard_max, *shard_sum;
    int64_t shards, stride, rows;
    const int64_t *targets;
    const float *target_logit;
    float *max, *log_z, *loss; /* [rows] */
};
extern const struct kernel kernel_strip_finish;
void strip_finish(struct stream *stream, const struct strip_finish_args *args);

/* out = (logits - max) - log_z, row by row. */
struct strip_log_softmax_args {
    const float *logits;
    int64_t rows, columns, ld;
    const float *max, *log_z;
    float *out;
    int64_t ld_out;
};
extern const struct kernel kernel_strip_log_softmax;
void strip_log_softmax(struct stream *stream, const struct strip_log_softmax_args *args);

/* The loss's gradient by the logits:
 *     p = exp(x), x = (logits - max) - log_z, or x = logits itself when max is NULL (log-softmax
 * given) out = (p - [column = target]) * scale, rounded to BF16 (and kept as FP32) when round_bf16;
 *     +0 in every column of an ignored token.
 * In place (out == logits, ld_out == ld) is ordinary. */
struct strip_residual_args {
    const float *logits;
    int64_t rows, columns, ld;
    int64_t first_column;
    const int64_t *targets;
    const float *max, *log_z;
    float scale;
    bool round_bf16;
    float *out;
    int64_t ld_out;
};
extern const struct kernel kernel_strip_residual;
void strip_residual(struct stream *stream, const struct strip_residual_args *args);

/* target_logit[i] = candidate[i] where targets[i] is in [first_column, first_column + columns). */
struct strip_take_target_args {
    const float *candidate;
    const int64_t *targets;
    int64_t rows, first_column, columns;
    float *target_logit;
};
extern const struct kernel kernel_strip_take_target;
void strip_take_target(struct stream *stream, const struct strip_take_target_args *args);
