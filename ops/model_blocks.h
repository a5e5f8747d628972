/* The two kinds of blocks that a layer of the composed model is made of, as steps of a stack: block
 * 2 l is layer l's attention, 2 l + 1 its experts. steps_context is the model. */
#pragma once
#include "kernels/attention.h"
#include "kernels/rotary.h"
#include "ops/model.h"
#include "ops/stack_layer.h"

extern const struct stack_steps model_steps;
extern const struct stack_steps model_attention_steps, model_expert_steps;

/* ---- what they share; on the main stream ----------------------------------------------------- */

static inline struct model *model_of(const struct stack *s)
{
    return s->steps_context;
}

/* Not on a simulated device: what would be written to it is not made. */
static inline bool model_computes(const struct model *m)
{
    return !dev_is_simulated(m->dev);
}

/* Bytes of [N, H] in BF16. */
int64_t model_row_bytes(const struct model *m);

/* The attention of this rank's heads; bytes of a column of it, max or log_z: [sequences * length,
 * heads / D]. */
struct attention_shape model_attention_shape(const struct model_shape *shape);
/* Of this rank's tokens: rows, heads, places. */
struct rotary_args model_rotary(const struct model_shape *shape);
int64_t model_normaliser_bytes(const struct model_shape *shape);

/* n = rmsnorm(x) gain of block (2 L: the final norm), in two new blocks. */
void model_norm(struct model *m, int64_t block, const void *x, void **n, void **scales);

/* dx = dy + the norm's backward from dn (dx may be dy), and the gain's gradient. */
void model_norm_backward(struct model *m, int64_t block, const void *x, const void *dn,
    const void *dy, const void *scales, void *dx);

/* out [N, n] = a [N, k] W. */
void model_matmul(struct model *m, enum gemm_layout layout, int64_t n, int64_t k, const void *a,
    const void *w, void *out);

/* Sends a^T b, the gradient of a [columns_a, columns_b] tensor, to its slices. */
void model_product_gradient(struct model *m, enum model_tensor tensor, int64_t layer, const void *a,
    enum dtype a_type, int64_t columns_a, const void *b, int64_t columns_b);

/* After a step: the loads of all ranks, and the routers' biases that follow from them. */
void model_balance(struct model *m);
