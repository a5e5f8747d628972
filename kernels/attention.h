/* Causal attention in streamed blocks: no [T, T] matrix is ever stored, memory is linear in T, and
 * the result is that of the algorithm that stores one.
 *
 * `sequences` sequences of T tokens, one after the other; token i attends to tokens 0 .. i of its
 * own. q, k, v, o and their gradients are [sequences * T, heads, D], row-major without gaps, in the
 * problem's type (FP32 or BF16); for each sequence and head, with every operation rounded:
 *
 *     s[i, j] = (chain over c of q[i, c] k[j, c]) scale            j <= i          FP32
 *     (max[i], z) = rule 7 over s[i, 0 .. i], one shard;  log_z[i] = log z         FP32
 *     p[i, j] = exp((s[i, j] - max[i]) - log_z[i])                                 FP32
 *     o[i, c] = chain over j = 0 .. i of p[i, j] v[j, c]                           stored
 *
 *     delta[i]  = rule 6 with fmaf over do[i, c] o[i, c]                           FP32
 *     dp[i, j]  = chain over c of do[i, c] v[j, c]                                 FP32
 *     ds[i, j]  = (p[i, j] (dp[i, j] - delta[i])) scale                            FP32
 *     dq[i, c]  = chain over j = 0 .. i of ds[i, j] k[j, c]                        stored
 *     dk[j, c]  = chain over i = j .. T - 1 of ds[i, j] q[i, c]                    stored
 *     dv[j, c]  = chain over i = j .. T - 1 of p[i, j] do[i, c]                    stored
 *
 * A query depends on its own past alone, whatever blocks the work is cut into: later tokens take no
 * part, not even with weight 0, so a NaN among them stays where it is. Scores are formed three
 * times (once more per backward kernel), which is what makes every chain's order that of the plain
 * algorithm. FP32 sums are rounded to the problem's type once. */
#pragma once
#include <stdint.h>
#include "device/device.h"
#include "kernels/arith.h"

#define ATTENTION_HEAD_MAX 256 /* D */

struct attention_shape {
    int64_t sequences, tokens, heads, head_columns; /* head_columns: D, 1 .. ATTENTION_HEAD_MAX */
    enum dtype type;
    float scale; /* 1 / sqrt(D) */
};

/* Every args struct begins with its shape. [rows] is sequences * tokens. */
struct attention_args {
    struct attention_shape shape;
    const void *q, *k, *v;
    void *o;
    float *max, *log_z; /* [rows, heads] */
};
extern const struct kernel kernel_attention;
void attention(struct stream *stream, const struct attention_args *args);

/* delta, dq. */
struct attention_queries_args {
    struct attention_shape shape;
    const void *q, *k, *v, *o, *d_o;
    const float *max, *log_z;
    float *delta; /* [rows, heads] */
    void *dq;
};
extern const struct kernel kernel_attention_queries;
void attention_queries(struct stream *stream, const struct attention_queries_args *args);

/* dk, dv, after delta. */
struct attention_keys_args {
    struct attention_shape shape;
    const void *q, *k, *v, *d_o;
    const float *max, *log_z, *delta;
    void *dk, *dv;
};
extern const struct kernel kernel_attention_keys;
void attention_keys(struct stream *stream, const struct attention_keys_args *args);
