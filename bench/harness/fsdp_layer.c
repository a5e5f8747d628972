/* A layer of the FSDP2 step: attention, then experts, forward and, from the layer's input again,
 * backward. */
#include "bench/harness/fsdp_parts.h"
#include "kernels/attention.h"
#include "kernels/moe.h"
#include "kernels/rmsnorm.h"
#include "kernels/router.h"
#include "ops/moe.h"

/* ---- attention ------------------------------------------------------------------------------- */

/* [rows, n] = [rows, k] W, BF16. */
static void product(struct fsdp_step *s, int64_t rows, int64_t n, int64_t k)
{
    expert_matmul(s->main, &(struct expert_matmul_args){.groups = s->any,
                               .group_count = 1,
                               .rows = rows,
                               .n = n,
                               .k = k,
                               .layout = GEMM_NN,
                               .type = DTYPE_BF16,
                               .out_type = DTYPE_BF16,
                               .a = s->any,
                               .weights = {.owned = s->any, .owned_count = 1},
                               .out = s->any});
}

/* The gradient [m, n] of a weight, over k rows. */
static void weight_product(struct fsdp_step *s, enum gemm_layout layout, enum dtype a_type,
    int64_t m, int64_t n, int64_t k)
{
    gemm(s->main, &(struct gemm_args){.layout = layout,
                      .init = GEMM_FRESH,
                      .a_type = a_type,
                      .b_type = DTYPE_BF16,
                      .m = m,
                      .n = n,
                      .k = k,
                      .a = s->any,
                      .lda = layout == GEMM_TN ? m : k,
                      .b = s->any,
                      .ldb = layout == GEMM_NT ? k : n,
                      .c = s->any,
                      .ldc = n});
}

void fsdp_norm(struct fsdp_step *s)
{
    rmsnorm(s->main, &(struct rmsnorm_args){.rows = s->local,
                         .columns = s->launch->model.hidden,
                         .type = DTYPE_BF16,
                         .x = s->any,
                         .gain = s->any,
                         .r = s->any,
                         .n = s->any});
}

void fsdp_norm_backward(struct fsdp_step *s)
{
    int64_t columns = s->launch->model.hidden;
    rmsnorm_gain(s->main, &(struct rmsnorm_gain_args){.rows = s->local,
                              .columns = columns,
                              .type = DTYPE_BF16,
                              .x = s->any,
                              .dn = s->any,
                              .r = s->any,
                              .dgain = s->any});
    rmsnorm_backward(s->main, &(struct rmsnorm_backward_args){.rows = s->local,
                                  .columns = columns,
                                  .type = DTYPE_BF16,
                                  .x = s->any,
                                  .gain = s->any,
                                  .dn = s->any,
                                  .dy = s->any,
                                  .r = s->any,
                                  .dx = s->any});
}

static void residual(struct fsdp_step *s)
{
    residual_add(s->main, &(struct residual_add_args){.count = s->local * s->launch->model.hidden,
                              .type = DTYPE_BF16,
                              .to = s->any,
                              .from = s->any});
}

/* Rows of all ranks of the tensor group from those of each; or their sums to each. */
static void exchange_rows(struct fsdp_step *s)
{
    fsdp_all_to_all(s, s->tensor, s->main, s->local * s->launch->model.hidden * 2);
}

/* A rank's share of attention: as much as whole sequences of 1/CP of its heads. */
static struct attention_shape attention_of(const struct fsdp_step *s)
{
    const struct fsdp_launch *l = s->launch;
    return (struct attention_shape){.sequences = l->sequences,
        .tokens = l->length,
        .heads = l->model.heads / (l->tensor * l->context),
        .head_columns = l->model.hidden / l->model.heads,
        .type = DTYPE_BF16,
        .scale = 1};
}

/* So many bytes of each token's and rank's keys and values go once around, beside main. */
static void around(struct fsdp_step *s, int64_t bytes_of_column)
{
    int size = comm_size(s->context), rank = comm_rank(s->context);
    int64_t bytes = s->tokens * (s->launch->model.hidden / s->launch->tensor) * bytes_of_column;
    struct comm_part to = {(rank + 1) % size, s->any, bytes};
    struct comm_part from = {(rank + size - 1) % size, s->received, bytes};
    dev_wait_stream(s->ring, s->main);
    for (int hop = 1; hop < size; hop++)
        comm_exchange(s->context, s->ring, "keys and values", &to, 1, &from, 1);
}

static void attention_forward(struct fsdp_step *s)
{
    int64_t hidden = s->launch->model.hidden, columns = hidden / s->launch->tensor;
    fsdp_norm(s);
    exchange_rows(s);
    product(s, s->tokens, 3 * columns, hidden);
    around(s, 2 * 2);
    attention(s->main, &(struct attention_args){.shape = attention_of(s),
                           .q = s->any,
                           .k = s->any,
                           .v = s->any,
                           .o = s->any,
                           .max = s->any,
                           .log_z = s->any});
    dev_wait_stream(s->main, s->ring);
    product(s, s->tokens, hidden, columns);
    exchange_rows(s);
    residual(s);
}

static void attention_backward(struct fsdp_step *s)
{
    int64_t hidden = s->launch->model.hidden, columns = hidden / s->launch->tensor;
    exchange_rows(s); /* dy */
    weight_product(s, GEMM_TN, DTYPE_BF16, columns, hidden, s->tokens);
    product(s, s->tokens, columns, hidden);
    around(s, 2 * 2 + 2 * 4); /* keys and values, and their gradients behind them */
    attention_queries(s->main, &(struct attention_queries_args){.shape = attention_of(s),
                                   .q = s->any,
                                   .k = s->any,
                                   .v = s->any,
                                   .o = s->any,
                                   .d_o = s->any,
                                   .max = s->any,
                                   .log_z = s->any,
                                   .delta = s->any,
                                   .dq = s->any});
    attention_keys(s->main, &(struct attention_keys_args){.shape = attention_of(s),
                                .q = s->any,
                                .k = s->any,
                                .v = s->any,
                                .d_o = s->any,
                                .max = s->any,
                                .log_z = s->any,
                                .delta = s->any,
                                .dk = s->any,
                                .dv = s->any});
    dev_wait_stream(s->main, s->ring);
    weight_product(s, GEMM_TN, DTYPE_BF16, hidden, 3 * columns, s->tokens);
    product(s, s->tokens, hidden, 3 * columns);
    exchange_rows(s);
    fsdp_norm_backward(s);
}

/* ---- experts --------------------------------------------------------------------------------- */

static struct moe dispatch_of(const struct fsdp_step *s, bool backward)
{
    const struct fsdp_launch *l = s->launch;
    return (struct moe){.shape = {.ranks = l->expert,
                            .tokens = s->tokens_of,
                            .hidden = l->model.hidden,
                            .ffn = l->model.ffn,
                            .experts = l->model.experts,
                            .topk = l->model.topk,
                            .dtype = DTYPE_BF16,
                            .activation = MOE_SWIGLU},
        .options = {.keep = MOE_KEEP_EAGER},
        .rank = comm_rank(s->experts),
        .with_backward = backward,
        .dev = s->dev,
        .comm = s->experts,
        .x = s->any,
        .router_weight = s->any,
        .gate = s->any,
        .up = s->any,
        .down = s->any,
        .dy = s->any,
        .idx = s->idx};
}

static void experts_forward(struct fsdp_step *s, struct moe *moe)
{
    const struct plan_model *model = &s->launch->model;
    fsdp_norm(s);
    weight_product(s, GEMM_NT, DTYPE_BF16, s->local, model->experts, model->hidden);
    router_choose(s->main, &(struct router_choose_args){.tokens = s->local,
                               .experts = model->experts,
                               .topk = model->topk,
                               .scores = s->any,
                               .bias = s->any,
                               .idx = s->any,
                               .weight = s->any});
    moe_alltoall.forward(moe);
    residual(s);
}

static void experts_backward(struct fsdp_step *s, struct moe *moe)
{
    const struct plan_model *model = &s->launch->model;
    if (dev_status(s->dev) != DEV_OK)
        return;
    moe_alltoall.backward(moe);
    router_backward(s->main, &(struct router_backward_args){.tokens = s->local,
                                 .experts = model->experts,
                                 .topk = model->topk,
                                 .idx = s->any,
                                 .weight = s->any,
                                 .dweight = s->any,
                                 .dscores = s->any});
    weight_product(s, GEMM_TN, DTYPE_BF16, model->experts, model->hidden, s->local);
    product(s, s->local, model->hidden, model->experts);
    fsdp_norm_backward(s);
}

/* ---- both ------------------------------------------------------------------------------------ */

void fsdp_layer_forward(struct fsdp_step *s)
{
    struct moe moe = dispatch_of(s, false);
    attention_forward(s);
    experts_forward(s, &moe);
    moe_release(&moe, &moe_alltoall);
}

void fsdp_layer_backward(struct fsdp_step *s)
{
    struct moe moe = dispatch_of(s, true);
    attention_forward(s);
    experts_forward(s, &moe);
    experts_backward(s, &moe);
    fsdp_reduce(s, s->expert_reduce, s->owned);
    moe_release(&moe, &moe_alltoall);
    attention_backward(s);
    fsdp_reduce(s, s->dense_reduce, s->dense / s->launch->tensor);
}
