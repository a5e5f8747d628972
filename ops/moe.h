/* The expert-dispatch problem and its implementations.
 *
 * P ranks. Rank r holds tokens X_r[N_r, H], the router's choice idx_r[N_r, k] (expert ids, -1 =
 * empty slot) and weights w_r[N_r, k] (FP32), and the experts e with e div (E/P) = r: Wgate, Wup
 * [F, H] and Wdown [H, F] each. A token may name one expert in several slots: each (token, slot)
 * pair is a route of its own. With T the problem's type (FP32 or BF16) and [..] marking what is
 * stored in T:
 *
 *   forward, per route      [g] = chain over H of x * Wgate      [u] = chain over H of x * Wup
 *                           [a] = silu(g) * u                    [e] = chain over F of a * Wdown
 *            per token      [Y] = combine over slots: acc = fmaf(w, e, acc)
 *            (silu(g) * u is (g * sigmoid(g)) * u, each operation rounded in FP32)
 *   backward, per route     [de] = w * dY                        [dh] = chain over H of de * Wdown
 *                           dw = rule 6 with fmaf over e * dY    (FP32)
 *                           s = sigmoid(g);  [du] = dh * (g * s)
 *                           [dg] = (dh * u) * (s * fmaf(g, 1 - s, 1))
 *                           [dx] = chain over F of dg * Wgate, continued with du * Wup
 *            per token      [dX] = sum over slots: acc = acc + dx, in FP32 from +0
 *            per expert     dWdown[h, f] = sum over routes of de[h] * a[f]    (FP32)
 *                           dWgate[f, h] = sum of dg[f] * x[h],  dWup[f, h] = sum of du[f] * x[h]
 *
 * With the ReLU expert (two matrices, for inputs of small integers) a = max(u, 0) (arith_max: NaN
 * stays, a zero is +0) and du = u > 0 ? dh : +0; there is no gate, and dx is the chain of du * Wup.
 *
 * A sum accumulates in FP32 and what is in brackets is rounded to T once, when it is whole.
 *
 * The order of a combine, of dX over slots and of each weight gradient over routes:
 * ops/moe_order.h. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/comm.h"
#include "kernels/arith.h"
#include "ops/moe_order.h"

#define MOE_RANKS_MAX 1024

enum moe_activation { MOE_SWIGLU, MOE_RELU };
enum moe_keep { MOE_KEEP_EAGER, MOE_KEEP_MEGATRON };
enum moe_chunks { MOE_CHUNKS_STRIDED, MOE_CHUNKS_CONTIGUOUS };
enum moe_volume { MOE_VOLUME_PRINTED, MOE_VOLUME_TRUE };

struct moe_shape {
    int ranks;
    const int64_t *tokens; /* [ranks]: N_r */
    int64_t hidden, ffn, experts;
    int topk;
    enum dtype dtype;
    enum moe_activation activation;
};

struct moe_options {
    enum moe_keep keep;      /* alltoall */
    int64_t chunk_budget;    /* tokens per chunk and source rank; 0 = all */
    int64_t max_chunks;      /* ceiling of K; 0 = none */
    int64_t chunk_count;     /* K itself; 0 = from the budget */
    enum moe_chunks chunks;  /* pipelined-llep */
    double alpha, lambda;    /* LLEP: capacity factor, imbalance gate */
    int64_t min_gemm_tokens; /* LLEP: m */
    int64_t hop_rows;        /* relay: routes that a hop works on at a time; 0 = all */
    bool overlap_off;        /* relay: hops travel between the products, not behind them */
    bool grouped_off;        /* relay: a launch per expert */
    enum moe_volume volume;  /* relay: what its choice weighs */
    double flops_per_byte;   /* fastermoe: arithmetic that the time of one byte's message buys */
    int64_t parts;           /* tutel: pieces that the exchange is cut into; 0 = 1 */
    int64_t credits;         /* janus: experts on the device at a time; 0 = 1 */
};

/* One rank's part. The caller fills the first groups; forward and backward allocate the outputs and
 * whatever lives between them; moe_release frees both. */
struct moe {
    struct moe_shape shape;
    struct moe_options options;
    int rank;
    bool with_backward;

    struct device *dev;
    struct comm *comm;

    /* resident, on the device */
    const void *x;                /* [N_r, H] */
    const float *router_weight;   /* [N_r, k] */
    const void *gate, *up, *down; /* [E/P, F, H], [E/P, F, H], [E/P, H, F]; gate NULL for ReLU */
    const void *dy;               /* [N_r, H], before backward */
    /* on the host, on every backend */
    const int32_t *idx; /* [N_r, k] */
    /* Y, dX and weight gradients in this order instead of the implementation's own, for those that
     * take it (alltoall, alltoall-ckpt): any that moe_order_check passes, of all ranks' routes,
     * from forward to the release. NULL = its own. */
    const struct moe_order *run_order;

    /* outputs, on the device */
    void *y;                                            /* [N_r, H] */
    void *dx;                                           /* [N_r, H] */
    float *router_gradient;                             /* dw [N_r, k]; +0 in an empty slot */
    float *gate_gradient, *up_gradient, *down_gradient; /* as the weights, FP32; owned experts */

    void *state;
};

/* Peaks over resident: of all live sets together, and each one's own. */
struct moe_peaks {
    int64_t all_bytes;
    int64_t set_bytes[LIVE_SET_COUNT];
};

struct moe_impl {
    const char *name, *summary;
    const char *options; /* the options that have an effect: " keep chunk-budget " ... */
    bool takes_run_order;
    /* Backward reads nothing that forward left: where a checkpointed block is made again for its
     * gradients alone, forward need not run. */
    bool backward_alone;
    enum dev_status (*forward)(struct moe *);
    enum dev_status (*backward)(struct moe *);
    void (*release)(struct moe *);
    /* Of one live set, set < 0: all together, over resident; before any routing is known. NULL or a
     * negative result = unbounded. */
    int64_t (*bound_bytes)(const struct moe_shape *, const struct moe_options *, int rank,
        int live_set, bool backward);
    /* With the realised routing, given all ranks': must equal the tracked peaks. Every rank's at
     * once, out [ranks], since their layout is the same. 0, or -1 when memory is short. */
    int (*expected_bytes)(const struct moe_shape *, const struct moe_options *,
        const int32_t *const *idx, bool backward, struct moe_peaks *out);
    /* The order in which it sums, given all ranks' routing; `out` holds the default order. */
    int (*order)(const struct moe_shape *, const struct moe_options *, const int32_t *const *idx,
        struct moe_order *out);
};

extern const struct moe_impl moe_llep, moe_alltoall, moe_alltoall_ckpt, moe_alltoall_dedup,
    moe_chunked, moe_fastermoe, moe_tutel, moe_janus, moe_pipelined_llep, moe_relay_expert,
    moe_relay_token, moe_relay;

extern const struct moe_impl *const moe_impls[]; /* NULL-terminated; the baseline first */

/* First expert of a rank and its number of experts: E mod P = 0 is a condition of the problem. */
int64_t moe_experts_per_rank(const struct moe_shape *shape);
int moe_owner(const struct moe_shape *shape, int64_t expert);

/* All ranks' routing on this rank; collective. out[r] points into the block that is returned, the
 * caller's to free; NULL after a failure of the device. */
int32_t *moe_gather_routing(const struct moe *m, const int32_t **out);

void moe_release(struct moe *m, const struct moe_impl *impl);
