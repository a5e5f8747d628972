/* A small mixture-of-experts language model, trained with one implementation of each family: the
 * composed step. Whatever is chosen, the loss and the weights are those of the same arithmetic;
 * only the declared orders of a few sums differ.
 *
 *     x = embedding[token]                                            [N, H], BF16
 *     for each layer
 *         n = rmsnorm(x) gain;  q, k, v = n Wq, n Wk, n Wv            [N, H] each
 *         q, k turned by their places                                 (kernels/rotary.h)
 *         x = attention(q, k, v) Wo + x         causal, per sequence  (kernels/attention.h)
 *         n = rmsnorm(x) gain;  s = n Wrouter^T                       [N, E], FP32
 *         idx, w = k experts by s + bias        (kernels/router.h)
 *         x = moe(n, idx, w) + x                (ops/moe.h, SwiGLU)
 *     n = rmsnorm(x) gain;  loss = mean over all tokens of vocab(n, target)      (ops/vocab.h)
 *
 * Every [N, H] that is named is stored in BF16. Attention and experts are blocks of a stack
 * (ops/stack.h), two to a layer, so that every way to treat boundaries serves them. Working weights
 * and activations are BF16, gradients FP32, master weights and moments AdamW's (ops/adamw.h).
 *
 * Ranks stand in the MoP layout (ops/layout.h). A rank works on N = sequences * length / D tokens:
 * a run of length / D tokens of each of its block's sequences; for attention a block of D ranks
 * exchanges sequence parts for heads and back. Experts are split over blocks of E_p, the vocabulary
 * over blocks of P. Attention, router, embedding and norms are held by every rank.
 *
 * A tensor's gradient is summed over the ranks that hold it, in rank order, as soon as it is whole:
 * each of them receives a slice, which leaves for the host; AdamW updates the slices, and the
 * holders gather the new weights. So the device holds no gradient longer than its block's backward,
 * and 1/W of the optimizer's state per rank. */
#pragma once
#include "ops/adamw.h"
#include "ops/layout.h"
#include "ops/moe.h"
#include "ops/recompute_plan.h"
#include "ops/stack.h"
#include "ops/vocab.h"

struct model_shape {
    struct layout_shape layout; /* ranks, degrees, heads, experts */
    int64_t layers, hidden, ffn, vocab;
    int topk;
    int64_t length;    /* tokens of a sequence; D divides it */
    int64_t sequences; /* of a sequence block in one step */
};

struct model_options {
    const struct moe_impl *dispatch;
    struct moe_options moe;
    const struct vocab_impl *vocab;
    struct vocab_options vocab_options;
    const struct stack_impl *checkpoint;
    struct stack_options stack;
    const struct adamw_impl *optimizer;
    struct adamw_options adamw; /* gradients on the host */
    /* NULL, or whose declared orders dispatch and vocab run in instead of their own: a standard
     * step in a composed one's orders, so that both give the same bits. */
    const struct moe_impl *dispatch_order;
    const struct vocab_impl *vocab_order;
    double bias_step;                      /* of the router's bias, per step; 0 = none */
    bool freeze_attention, freeze_experts; /* their weights stay as they were */
    int64_t keep_attention_bytes; /* of attention's intermediates, forward to backward; per rank */
    uint64_t seed;
};

/* 0, or -1 with a message: layout_check's conditions, D | length, heads | hidden, k <= experts and
 * what the router and the stack can take, and byte counts that 64 bits hold. */
int model_check(const struct model_shape *shape, char *error, int size);

/* Of a shape that passed it: 0, or -1 with a message: the tile of a ring-dtp whose activations move
 * cuts segments, or an implementation is to sum in another's order and cannot. */
int model_check_options(
    const struct model_shape *shape, const struct model_options *options, char *error, int size);

int64_t model_tokens(const struct model_shape *shape); /* N */

/* ---- parameters ------------------------------------------------------------------------------ */

enum model_tensor {
    MODEL_EMBEDDING, /* [V, H] */
    MODEL_Q,         /* [H, H], input by output, as K, V, O */
    MODEL_K,
    MODEL_V,
    MODEL_O,
    MODEL_ROUTER, /* [E, H] */
    MODEL_GATE,   /* [E/E_p, F, H] */
    MODEL_UP,     /* [E/E_p, F, H] */
    MODEL_DOWN,   /* [E/E_p, H, F] */
    MODEL_HEAD,   /* [V_r, H] */
    MODEL_GAINS   /* [2 L + 1, H], all norms */
};

/* A tensor, or a rank's part of one, that several ranks hold alike. */
struct model_part {
    enum model_tensor tensor;
    int64_t layer; /* -1 where the tensor is no layer's */
    char name[32];
    int64_t count, first;        /* elements; the first of them in the resident weights */
    int64_t global_first;        /* in the whole tensor */
    struct layout_group holders; /* who updates which slice */
    struct comm *comm;           /* over them */
    int64_t slice_first, slice;  /* this rank's, in the part */
    int64_t flat_first;          /* of the slice, in the optimizer's order */
};

const char *model_tensor_name(enum model_tensor tensor); /* "embedding", "q", ... */
/* Elements of the whole tensor that the part belongs to, and of all tensors of the model. */
int64_t model_whole_count(const struct model_shape *shape, const struct model_part *part);
int64_t model_elements(const struct model_shape *shape);

/* One rank's model. */
struct model {
    struct model_shape shape;
    struct model_options options;
    int rank;
    struct device *dev;
    struct comm *world;
    struct layout layout;

    struct model_part *part; /* [parts] */
    int64_t parts;
    uint16_t *weights; /* resident, on the device; parts one after the other */
    struct adamw_shape flat;
    struct adamw adamw;
    float *gradients; /* pinned, [flat.params] */

    /* routing: of the last step */
    float *bias;           /* device, [L, E] */
    float *host_bias;      /* [L, E] */
    int32_t *chosen;       /* host, [L, N, k]: by the device; NULL where it is simulated */
    const int32_t **idx;   /* host, [L] times [N, k]: chosen, or given by model_set_routing */
    int32_t *idx_pinned;   /* [N, k] */
    struct event idx_read; /* the last copy out of idx_pinned */
    int64_t *loads;        /* host, [L, E]: routes of all ranks */

    /* constant tables on the device */
    int32_t *to_parts, *from_parts; /* [N * D], where D > 1 */
    struct expert_group *all_rows;
    uint16_t *ones; /* [N] */
    float *turns;   /* of this rank's places (kernels/rotary.h) */

    int64_t *tokens_of; /* host, [ranks]: N each */
    int64_t *recomputes;
    int32_t *keep_choice;       /* [L]: what attention keeps (ops/model_keep.h), -1 = nothing */
    struct recompute_plan keep; /* the same in numbers */
    struct stack_kept *stayed;  /* [2 L] */
    struct model_leaving {
        float *gradient, *sum, *scratch; /* on the device; NULL where there is none */
        struct event gone;
    } leaving;            /* the gradient that is on its way to its slices (ops/model_parts.h) */
    struct stack stack;   /* the pool of boundaries stays from step to step */
    float *gain_gradient; /* device, during backward */
};

/* Collective. Allocates and seeds; model_close follows even after a failure. */
enum dev_status model_open(struct model *m, const struct model_shape *shape,
    const struct model_options *options, struct device *dev, struct comm *world);
void model_close(struct model *m);

/* One training step on this rank's tokens and their targets, [N] each on the host, sequence by
 * sequence. *loss is the mean over all ranks' tokens, the same on every rank. A simulated device
 * looks at no tokens (NULL), and every layer's routing is given before. */
enum dev_status model_step(
    struct model *m, const int32_t *tokens, const int64_t *targets, double *loss);

/* The routing of a layer on a device that computes nothing: idx [N, k] stays the caller's, and
 * where it is. Layers may have the same one, which then is looked at once. */
void model_set_routing(struct model *m, int64_t layer, const int32_t *idx);

/* A part's resident weights, to [count]. */
void model_read_part(struct model *m, const struct model_part *part, uint16_t *to);
