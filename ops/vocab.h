/* The vocabulary-projection problem and its implementations.
 *
 * P ranks. Rank r holds tokens X_r[N_r, H] and their targets, and shard r of a projection W[V, H]:
 * V rows cut into P shards, the V mod P leftover rows to the first ranks. The result is
 *
 *     y[n, v]  = chain over h of X[n, h] * W[v, h]                           FP32
 *     loss[n]  = (m - y[n, t]) + log z       by rule 7 over P shards          FP32
 *     mean     = FP64 chain of loss over valid tokens, ascending, / valid
 *     r[n, v]  = (exp((y - m) - log z) - [v = t]) * (1/valid)   FP32; in a BF16 problem BF16
 *     dX[n, h] = sum over v of r[n, v] * W[v, h]     FP32 sum, stored in the problem's type
 *     dW[v, h] = sum over n of r[n, v] * X[n, h]     FP32, over the tokens of ALL ranks
 *
 * X and W are FP32 or BF16. A target of VOCAB_IGNORED takes no part: loss +0, residual +0. When no
 * token is valid the mean is 0 and so are the gradients (scale = 0).
 *
 * Stored tensors (rounding points): logits FP32, residual as above, dX, dW. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/comm.h"
#include "kernels/arith.h"
#include "ops/vocab_order.h"

enum vocab_move { VOCAB_MOVE_AUTO, VOCAB_MOVE_WEIGHTS, VOCAB_MOVE_ACTIVATIONS };

struct vocab_shape {
    int ranks;
    const int64_t *tokens; /* [ranks]: N_r */
    int64_t hidden, vocab;
    enum dtype dtype;
};

struct vocab_options {
    enum vocab_move move; /* ring-dtp */
    int64_t tile;         /* ring-dtp: rows of the side that stays put in one tile; 0 = default */
    int64_t chunk;        /* chunked-tokens: tokens in one chunk; 0 = default */
};

/* One rank's part. The caller fills the first three groups; forward and backward allocate the
 * outputs and whatever lives between them; vocab_release frees both. */
struct vocab {
    struct vocab_shape shape;
    struct vocab_options options;
    int rank;
    bool with_backward; /* backward will follow: an implementation may prepare for it */

    struct device *dev;
    struct comm *comm;

    /* resident, on the device */
    const void *x;          /* [N_r, H] */
    const void *w;          /* [V_r, H], or [V, H] where the implementation holds the full weight */
    const int64_t *targets; /* [N_r] */
    /* on the host */
    const int64_t *host_targets; /* [N_r] */
    int64_t valid;               /* over all ranks: vocab_count_valid */
    /* Gradients in this order instead of the implementation's own, for those that take it
     * (materialized): any that vocab_order_check passes. NULL = its own. */
    const struct vocab_order *run_order;

    /* outputs, on the device */
    float *max, *log_z, *loss; /* [N_r], by forward */
    void *dx;                  /* [N_r, H] in the problem's type, by backward */
    float *dw;                 /* [V_r, H], by backward; shard r of the weight gradient */

    void *state; /* the implementation's own, from forward to backward */
};

struct vocab_impl {
    const char *name, *summary;
    bool full_weight;                         /* w is the whole [V, H] on every rank */
    bool takes_move, takes_tile, takes_chunk; /* which options have an effect */
    bool takes_run_order;
    /* DEV_OK, or the device's status. After forward: max, log_z, loss. */
    enum dev_status (*forward)(struct vocab *);
    /* After forward, once. After it: dx, dw. */
    enum dev_status (*backward)(struct vocab *);
    /* Frees what `state` holds; outputs are the caller's (vocab_release). NULL = nothing. */
    void (*release)(struct vocab *);
    /* Tracked peak of one live set on rank `rank` over resident inputs and weights, in forward
     * (backward = false) or in forward and backward; set < 0: of all sets together. Known from
     * shapes alone, and equal to the measured peak to the byte. */
    int64_t (*expected_bytes)(const struct vocab_shape *, const struct vocab_options *, int rank,
        int live_set, bool backward);
    /* The closed-form bound that docs/MEMORY.md states; expected <= bound. NULL = unbounded: the
     * live set grows with N*V. */
    int64_t (*bound_bytes)(
        const struct vocab_shape *, const struct vocab_options *, int rank, bool backward);
    /* The order in which it sums. */
    void (*order)(const struct vocab_shape *, const struct vocab_options *, struct vocab_order *);
};

extern const struct vocab_impl vocab_materialized, vocab_parallel, vocab_chunked_tokens,
    vocab_ring_dtp;

/* NULL-terminated, in the order of --list; the family's baseline comes first. */
extern const struct vocab_impl *const vocab_impls[];

/* First vocabulary row and number of rows of a shard. */
int64_t vocab_shard_first(int64_t vocab, int ranks, int shard);
int64_t vocab_shard_rows(int64_t vocab, int ranks, int shard);

int64_t vocab_total_tokens(const struct vocab_shape *shape);
int64_t vocab_max_tokens(const struct vocab_shape *shape);
int64_t vocab_max_shard_rows(const struct vocab_shape *shape);

/* Allocates max, log_z and loss, the outputs of forward. */
void vocab_alloc_token_outputs(struct vocab *v);

/* Takes over an FP32 input gradient [N_r, H] and returns it in the problem's type: the block
 * itself, or a rounded copy after which the block is freed. */
void *vocab_store_input_gradient(struct vocab *v, float *sum);

/* Takes over a full weight gradient [V, H] of this rank's tokens and returns shard r of the sum
 * over ranks, added in rank order; the block itself on one rank.
 * Scratch: [P, V_r, H]. */
float *vocab_scatter_weight_gradient(struct vocab *v, float *full);

/* Bytes that forward's outputs take: max, log_z, loss. */
#define VOCAB_TOKEN_OUTPUT_BYTES 12

/* A rank's valid targets, and the sum of them over ranks (collective). -1 after an abort. */
int64_t vocab_sum_valid(struct comm *comm, int64_t mine);
int64_t vocab_count_valid(struct comm *comm, const int64_t *host_targets, int64_t tokens);

/* FP32 of 1/valid taken in FP64; 0 when valid is 0. */
float vocab_scale(int64_t valid);

/* Frees the outputs and the implementation's state. */
void vocab_release(struct vocab *v, const struct vocab_impl *impl);
