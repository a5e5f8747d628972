/* The problem of checkpoint boundaries and its implementations.
 *
 * Each rank runs N_r tokens of width H through L layers that all ranks hold alike, forward to an
 * output Y, and backward from an output gradient dY given from outside. Ranks are independent: a
 * weight gradient is over the rank's own tokens, and its sum over ranks is another problem's.
 *
 * Layer l, on its input x = boundary l (x of layer 0 is the stack's input), every operation
 * rounded (docs/ARITHMETIC.md; kernels/rmsnorm.h has RMSNorm's operations one by one):
 *
 *     s = rule 6 over x[h] x[h],  r = 1 / sqrt(s / H + 1e-5)                              r  FP32
 *     n[h] = (x[h] r) gain[h]                                                             n
 *     g[f] = chain over h of n[h] Wgate[h, f],  u[f] likewise with Wup                    g, u
 *     a[f] = silu(g[f]) u[f]                                                              a
 *     d[h] = chain over f of a[f] Wdown[f, h]                                             d
 *     y[h] = d[h] + x[h]                                                                  y
 *
 * backward, from dy:
 *
 *     dWdown[f, h] = chain over tokens of a[t, f] dy[t, h]                               FP32
 *     da[f] = chain over h of dy[h] Wdown[f, h]                                           da
 *     s = sigmoid(g);  du = da (g s);  dg = (da u) (s fma(g, 1 - s, 1))                   dg, du
 *     dWgate[h, f] = chain over tokens of n[t, h] dg[t, f];  dWup likewise with du       FP32
 *     dn[h] = one chain over f of dg[f] Wgate[h, f], continued with du[f] Wup[h, f]       dn
 *     q[h] = dn[h] gain[h],  c = (r r) (rule 6 with fma over q[h] x[h], / H)
 *     dgain[h] = chain over tokens of fma(dn[t, h], x[t, h] r[t], .)                     FP32
 *     dx[h] = dy[h] + r fma(-c, x[h], q[h])                                               dx
 *
 * The right column lists the stored tensors: in the problem's type, FP32 or BF16, unless it says
 * otherwise. Tokens are met in ascending order, layers in turn: there is one order and nothing to
 * declare, so every implementation must give the reference's bits. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/comm.h"
#include "kernels/arith.h"
#include "kernels/moe.h"
#include "ops/sco_policy.h"
#include "ops/stack_memory.h"

#define STACK_RANKS_MAX 64
#define STACK_LAYERS_MAX 4096

/* Weights and gradients of one layer, on the device. */
struct stack_layer {
    const void *gain, *gate, *up, *down; /* [H], [H, F], [H, F], [F, H] */
    float *dgain, *dgate, *dup, *ddown;  /* the same, FP32 */
};

struct stack_options {
    struct sco_budget budget; /* sco; offload-all takes its rounding */
    bool keep_pool;           /* pinned blocks stay from step to step, until stack_pool_free */
};

/* Pinned blocks, one for each offloaded boundary. */
struct stack_pool {
    void **block; /* [boundaries], NULL where there is none; owned */
    int64_t *bytes;
    int64_t boundaries;
};

struct stack;

/* What a layer's forward leaves for its output and its backward: blocks of the device, and where
 * the layer needs it something of its own. */
#define STACK_KEPT_BLOCKS 12
struct stack_kept {
    void *block[STACK_KEPT_BLOCKS]; /* NULL where there is none */
    void *state;
};

/* What a pass over a layer's input is for. */
enum stack_purpose {
    STACK_FOR_OUTPUT,  /* forward of a checkpointed layer: what `output` needs, and what stays */
    STACK_FOR_BOTH,    /* forward without checkpointing: what `output` and `backward` need */
    STACK_FOR_BACKWARD /* again, from the boundary and from what stayed: what `backward` needs */
};

/* The arithmetic of the layers. The problem's own is stack_swiglu; a composed model brings others,
 * and every way to treat boundaries serves them. All of it is enqueued on, or joined to, the main
 * stream.
 *
 * A checkpointed layer may keep some blocks of its forward for its backward, which then has less to
 * compute again. `stays` names them layer by layer, whatever happens to the boundaries:
 *
 *     forward    x -> hidden -> n r q k v o ... -> output -> y
 *                               |       | |   |
 *                               freed   stays freed                    s->stayed[layer]: q k v o
 *
 *     backward   x -> hidden -> n r, beside q k v o that are there -> backward
 */
struct stack_steps {
    /* x -> kept. For the backward, blocks that stayed are there already, and stay untouched. For
     * the output nothing is left but what `output` needs and the blocks that stay. */
    void (*hidden)(struct stack *, int64_t layer, const void *x, enum stack_purpose purpose,
        struct stack_kept *kept);
    /* x, kept -> y. */
    void (*output)(
        struct stack *, int64_t layer, const void *x, const struct stack_kept *kept, void *y);
    /* From dy: the layer's weight gradients, and s->dx, which may be dy itself. Blocks of `kept`
     * may be written over; they are freed afterwards. */
    void (*backward)(
        struct stack *, int64_t layer, const void *x, const void *dy, struct stack_kept *kept);
    /* Frees kept->state, which is not NULL. NULL = layers have none. */
    void (*release)(struct stack *, struct stack_kept *kept);
    /* The blocks of a checkpointed layer that stay from forward to backward: bit i is block i. NULL
     * = none; else the stack has `stayed`. */
    uint32_t (*stays)(const struct stack *, int64_t layer);
};

extern const struct stack_steps stack_swiglu;

/* One rank's part. The caller fills the first three groups; before each forward it also allocates
 * and fills `x`, which forward takes over: it is boundary 0. */
struct stack {
    struct stack_shape shape;
    struct stack_options options;
    int rank;

    struct device *dev;
    const struct stack_steps *steps; /* NULL = stack_swiglu */
    void *steps_context;             /* theirs */

    /* resident, on the device */
    const struct stack_layer *layer;  /* [L], on the host */
    const struct expert_group *group; /* one: all of the rank's tokens meet one matrix */
    const void *dy;                   /* [N_r, H] */

    void *x; /* [N_r, H], LIVE_BOUNDARY */

    /* outputs, on the device */
    void *y;  /* [N_r, H], by forward */
    void *dx; /* [N_r, H], by backward; and the gradients of all layers */

    int64_t *recomputes; /* [L], the caller's: counts the recomputations of each layer */
    /* [L], the caller's, starts as zeros: the blocks that stay; NULL = steps keep nothing. */
    struct stack_kept *stayed;
    struct stack_pool pool; /* starts as zeros */
    void *state;            /* the implementation's own, from forward to stack_release */
};

struct stack_impl {
    const char *name, *summary;
    bool takes_budget, takes_pool; /* which options have an effect */
    int recomputes;                /* of each layer in a step */
    enum dev_status (*forward)(struct stack *);
    /* After forward, once. */
    enum dev_status (*backward)(struct stack *);
    /* Frees the state. NULL = nothing. */
    void (*release)(struct stack *);
    /* The step's allocations and frees in order. */
    void (*replay)(const struct stack_shape *, const struct stack_options *, struct stack_ledger *);
    /* What the device may hold over resident memory; what the replay finds never passes it. NULL =
     * not bounded: it grows with every activation of every layer. */
    int64_t (*bound_bytes)(
        const struct stack_shape *, const struct stack_options *, int rank, bool backward);
};

extern const struct stack_impl stack_full_activations, stack_resident, stack_offload_all, stack_sco;

/* NULL-terminated, in the order of --list; the family's baseline comes first. */
extern const struct stack_impl *const stack_impls[];

/* The end of a step: frees outputs, state, and the pool unless it is kept. */
void stack_release(struct stack *s, const struct stack_impl *impl);

/* What the budget chooses on one rank. chosen [L] may be NULL. */
struct sco_choice stack_choose(
    const struct stack_shape *shape, const struct stack_options *options, int rank, bool *chosen);

/* ---- the pool --------------------------------------------------------------------------------
 * Blocks are allocated when a step first needs them. */

/* The block of a boundary, of what `bytes` take under the rounding. NULL after a failure. */
void *stack_pool_block(struct stack *s, int64_t boundary, int64_t bytes);
/* Waits for what uses the blocks, and frees them. */
void stack_pool_free(struct stack *s);
