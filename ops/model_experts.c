/* A layer's router and experts as a block of the stack.
 *
 *     n = rmsnorm(x);  s = n Wrouter^T;  idx, w = choice      idx goes to the host
 *     y = moe(n, idx, w) + x                                  by the implementation that was chosen
 *
 * A checkpointed block ends its dispatch with the output. For its backward the dispatch is made
 * again, for the state that it leaves; one whose backward needs none is not, since nobody asks for
 * its output a second time. Without checkpointing the state stays from forward to backward.
 *
 * dn = (dX of the dispatch) + (ds Wrouter, an FP32 chain rounded once), one rounded addition. */
#include <stdlib.h>
#include <string.h>
#include "kernels/rank_sum.h"
#include "kernels/rmsnorm.h"
#include "kernels/router.h"
#include "ops/model_blocks.h"
#include "ops/model_parts.h"

enum { NORMED, SCALES, WEIGHT, SUM /* [N, H]: what the experts give */ };

static int64_t routes_of(const struct model *m)
{
    return model_tokens(&m->shape) * m->shape.topk;
}

static struct gemm_args router_product(const struct model *m, enum gemm_layout layout)
{
    return (struct gemm_args){.layout = layout,
        .init = GEMM_FRESH,
        .a_type = DTYPE_BF16,
        .b_type = DTYPE_BF16,
        .m = model_tokens(&m->shape)};
}

/* ---- routing --------------------------------------------------------------------------------- */

/* The choice on the device, and on the host where every backend has its routing; `again`: the host
 * has it, and need not wait. */
static void route(struct model *m, int64_t layer, const void *n, float *weight, bool again)
{
    struct stream *main = dev_main_stream(m->dev);
    int64_t experts = m->shape.layout.experts, tokens = model_tokens(&m->shape);
    int64_t idx_bytes = routes_of(m) * (int64_t)sizeof(int32_t);
    float *scores = dev_alloc(m->dev, tokens * experts * 4, LIVE_WORKSPACE, "router scores");
    int32_t *idx = dev_alloc(m->dev, idx_bytes, LIVE_WORKSPACE, "router choice");
    struct gemm_args product = router_product(m, GEMM_NT);
    product.n = experts;
    product.k = product.lda = product.ldb = m->shape.hidden;
    product.a = n;
    product.b = model_weights(m, MODEL_ROUTER, layer);
    product.c = scores;
    product.ldc = experts;
    gemm(main, &product);
    router_choose(main, &(struct router_choose_args){.tokens = tokens,
                            .experts = experts,
                            .topk = m->shape.topk,
                            .scores = scores,
                            .bias = m->bias + layer * experts,
                            .idx = idx,
                            .weight = weight});
    if (!again) {
        dev_copy_d2h(main, m->idx_pinned, idx, idx_bytes);
        dev_sync_event(dev_record(main));
        if (dev_status(m->dev) == DEV_OK && m->chosen)
            memcpy(m->chosen + layer * routes_of(m), m->idx_pinned, (size_t)idx_bytes);
    }
    dev_free(m->dev, idx);
    dev_free(m->dev, scores);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* The order of another implementation for this routing, from all of the block's. */
static struct moe_order *order_of(struct model *m, const struct moe *moe)
{
    int ranks = moe->shape.ranks;
    int64_t routes = routes_of(m), tokens = model_tokens(&m->shape);
    struct moe_order *order = calloc(1, sizeof *order);
    int32_t *all = malloc((size_t)(routes * ranks) * sizeof *all + 1);
    const int32_t **idx = malloc((size_t)ranks * sizeof *idx);
    char fault[160] = "no host memory for the order of a dispatch";
    bool made = order && all && idx &&
                comm_host_all_gather(moe->comm, moe->idx, all, routes * (int64_t)sizeof *all) == 0;
    for (int r = 0; made && r < ranks; r++)
        idx[r] = all + r * routes;
    made = made &&
           moe_order_init(order, tokens * ranks, moe->shape.topk, moe->shape.experts, all) == 0;
    if (made)
        made = m->options.dispatch_order->order(&moe->shape, &moe->options, idx, order) == 0 &&
               moe_order_check(order, all, fault, sizeof fault) == 0;
    if (!made)
        dev_fail(m->dev, DEV_FAILED, "%s", fault);
    free(all);
    free(idx);
    return order;
}

static struct moe *open_dispatch(
    struct model *m, int64_t layer, const struct stack_kept *kept, bool with_backward)
{
    struct moe *moe = calloc(1, sizeof *moe);
    if (!moe) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for a dispatch");
        return NULL;
    }
    *moe = (struct moe){.shape = {.ranks = m->shape.layout.degree[LAYOUT_EXPERTS],
                            .tokens = m->tokens_of,
                            .hidden = m->shape.hidden,
                            .ffn = m->shape.ffn,
                            .experts = m->shape.layout.experts,
                            .topk = m->shape.topk,
                            .dtype = DTYPE_BF16,
                            .activation = MOE_SWIGLU},
        .options = m->options.moe,
        .rank = m->layout.block[LAYOUT_EXPERTS].place,
        .with_backward = with_backward,
        .dev = m->dev,
        .comm = m->layout.block_comm[LAYOUT_EXPERTS],
        .x = kept->block[NORMED],
        .router_weight = kept->block[WEIGHT],
        .gate = model_weights(m, MODEL_GATE, layer),
        .up = model_weights(m, MODEL_UP, layer),
        .down = model_weights(m, MODEL_DOWN, layer),
        .idx = m->idx[layer]};
    if (m->options.dispatch_order)
        moe->run_order = order_of(m, moe);
    return moe;
}

static void close_dispatch(struct model *m, struct moe *moe)
{
    if (moe->run_order) {
        struct moe_order *order = (struct moe_order *)moe->run_order; /* order_of's */
        moe_order_free(order);
        free(order);
    }
    moe_release(moe, m->options.dispatch);
    free(moe);
}

static void experts_hidden(struct stack *s, int64_t block, const void *x,
    enum stack_purpose purpose, struct stack_kept *kept)
{
    struct model *m = model_of(s);
    bool keep = purpose != STACK_FOR_OUTPUT, again = purpose == STACK_FOR_BACKWARD;
    model_norm(m, block, x, &kept->block[NORMED], &kept->block[SCALES]);
    kept->block[WEIGHT] = dev_alloc(m->dev, routes_of(m) * 4, LIVE_WORKSPACE, "router weights");
    route(m, block / 2, kept->block[NORMED], kept->block[WEIGHT], again);
    struct moe *moe = open_dispatch(m, block / 2, kept, keep);
    if (!moe)
        return;
    if (!again || !m->options.dispatch->backward_alone)
        m->options.dispatch->forward(moe);
    kept->block[SUM] = moe->y;
    moe->y = NULL; /* the block's now */
    if (keep) {
        kept->state = moe;
        return;
    }
    close_dispatch(m, moe);
    for (int i = NORMED; i < SUM; i++) {
        dev_free(m->dev, kept->block[i]);
        kept->block[i] = NULL;
    }
}

static void experts_output(
    struct stack *s, int64_t block, const void *x, const struct stack_kept *kept, void *y)
{
    struct model *m = model_of(s);
    (void)block;
    dev_copy_d2d(dev_main_stream(m->dev), y, kept->block[SUM], model_row_bytes(m));
    residual_add(dev_main_stream(m->dev),
        &(struct residual_add_args){.count = model_tokens(&m->shape) * m->shape.hidden,
            .type = DTYPE_BF16,
            .to = y,
            .from = x});
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The scores' gradient to Wrouter, and to `dn` [N, H], which it is added to. */
static void router_back(
    struct model *m, int64_t layer, const struct stack_kept *kept, const float *dweight, void *dn)
{
    struct stream *main = dev_main_stream(m->dev);
    int64_t tokens = model_tokens(&m->shape), experts = m->shape.layout.experts;
    int64_t elements = tokens * m->shape.hidden, idx_bytes = routes_of(m) * 4;
    int32_t *idx = dev_alloc(m->dev, idx_bytes, LIVE_WORKSPACE, "router choice");
    float *dscores = dev_alloc(m->dev, tokens * experts * 4, LIVE_WORKSPACE, "score gradients");
    float *sum = dev_alloc(m->dev, elements * 4, LIVE_WORKSPACE, "router's input gradient");
    uint16_t *rounded = dev_alloc(m->dev, elements * 2, LIVE_WORKSPACE, "the same, rounded");
    dev_sync_event(m->idx_read); /* whoever read the pinned choice is through */
    if (dev_status(m->dev) == DEV_OK && m->chosen)
        memcpy(m->idx_pinned, m->idx[layer], (size_t)idx_bytes);
    dev_copy_h2d(main, idx, m->idx_pinned, idx_bytes);
    m->idx_read = dev_record(main);
    router_backward(main, &(struct router_backward_args){.tokens = tokens,
                              .experts = experts,
                              .topk = m->shape.topk,
                              .idx = idx,
                              .weight = kept->block[WEIGHT],
                              .dweight = dweight,
                              .dscores = dscores});
    model_product_gradient(
        m, MODEL_ROUTER, layer, dscores, DTYPE_F32, experts, kept->block[NORMED], m->shape.hidden);
    struct gemm_args product = router_product(m, GEMM_NN);
    product.a_type = DTYPE_F32;
    product.n = product.ldb = product.ldc = m->shape.hidden;
    product.k = product.lda = experts;
    product.a = dscores;
    product.b = model_weights(m, MODEL_ROUTER, layer);
    product.c = sum;
    gemm(main, &product);
    round_bf16(main, rounded, sum, elements);
    residual_add(main, &(struct residual_add_args){
                           .count = elements, .type = DTYPE_BF16, .to = dn, .from = rounded});
    dev_free(m->dev, rounded);
    dev_free(m->dev, sum);
    dev_free(m->dev, dscores);
    dev_free(m->dev, idx);
}

static void send_expert_gradients(struct model *m, int64_t layer, struct moe *moe)
{
    model_send_gradient(m, MODEL_GATE, layer, moe->gate_gradient);
    model_send_gradient(m, MODEL_UP, layer, moe->up_gradient);
    model_send_gradient(m, MODEL_DOWN, layer, moe->down_gradient);
    moe->gate_gradient = moe->up_gradient = moe->down_gradient = NULL; /* handed over */
}

static void experts_backward(
    struct stack *s, int64_t block, const void *x, const void *dy, struct stack_kept *kept)
{
    struct model *m = model_of(s);
    struct moe *moe = kept->state;
    if (!moe)
        return;
    moe->dy = dy;
    m->options.dispatch->backward(moe);
    send_expert_gradients(m, block / 2, moe);
    router_back(m, block / 2, kept, moe->router_gradient, moe->dx);
    model_norm_backward(m, block, x, moe->dx, dy, kept->block[SCALES], s->dx);
}

static void release_dispatch(struct stack *s, struct stack_kept *kept)
{
    close_dispatch(model_of(s), kept->state);
    kept->state = NULL;
}

const struct stack_steps model_expert_steps = {.hidden = experts_hidden,
    .output = experts_output,
    .backward = experts_backward,
    .release = release_dispatch};
