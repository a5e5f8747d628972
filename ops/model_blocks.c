/* What attention and experts share: the norm before each of them, products with a weight, a
 * weight's gradient on its way; and which of the two a block is. */
#include "ops/model_blocks.h"
#include "kernels/rmsnorm.h"
#include "ops/model_parts.h"

int64_t model_row_bytes(const struct model *m)
{
    return model_tokens(&m->shape) * m->shape.hidden * 2;
}

static const uint16_t *gain_of(const struct model *m, int64_t block)
{
    return model_weights(m, MODEL_GAINS, -1) + block * m->shape.hidden;
}

void model_norm(struct model *m, int64_t block, const void *x, void **n, void **scales)
{
    int64_t rows = model_tokens(&m->shape);
    *n = dev_alloc(m->dev, model_row_bytes(m), LIVE_WORKSPACE, "normed");
    *scales = dev_alloc(m->dev, rows * 4, LIVE_WORKSPACE, "row scales");
    rmsnorm(dev_main_stream(m->dev), &(struct rmsnorm_args){.rows = rows,
                                         .columns = m->shape.hidden,
                                         .type = DTYPE_BF16,
                                         .x = x,
                                         .gain = gain_of(m, block),
                                         .r = *scales,
                                         .n = *n});
}

void model_norm_backward(struct model *m, int64_t block, const void *x, const void *dn,
    const void *dy, const void *scales, void *dx)
{
    struct stream *main = dev_main_stream(m->dev);
    int64_t rows = model_tokens(&m->shape);
    rmsnorm_gain(main, &(struct rmsnorm_gain_args){.rows = rows,
                           .columns = m->shape.hidden,
                           .type = DTYPE_BF16,
                           .x = x,
                           .dn = dn,
                           .r = scales,
                           .dgain = m->gain_gradient + block * m->shape.hidden});
    rmsnorm_backward(main, &(struct rmsnorm_backward_args){.rows = rows,
                               .columns = m->shape.hidden,
                               .type = DTYPE_BF16,
                               .x = x,
                               .gain = gain_of(m, block),
                               .dn = dn,
                               .dy = dy,
                               .r = scales,
                               .dx = dx});
}

void model_matmul(struct model *m, enum gemm_layout layout, int64_t n, int64_t k, const void *a,
    const void *w, void *out)
{
    expert_matmul(dev_main_stream(m->dev), &(struct expert_matmul_args){.groups = m->all_rows,
                                               .group_count = 1,
                                               .rows = model_tokens(&m->shape),
                                               .n = n,
                                               .k = k,
                                               .layout = layout,
                                               .type = DTYPE_BF16,
                                               .out_type = DTYPE_BF16,
                                               .a = a,
                                               .weights = {.owned = w, .owned_count = 1},
                                               .out = out});
}

void model_product_gradient(struct model *m, enum model_tensor tensor, int64_t layer, const void *a,
    enum dtype a_type, int64_t columns_a, const void *b, int64_t columns_b)
{
    float *gradient =
        dev_alloc(m->dev, columns_a * columns_b * 4, LIVE_GRADIENTS, "gradient of a tensor");
    gemm(dev_main_stream(m->dev), &(struct gemm_args){.layout = GEMM_TN,
                                      .init = GEMM_FRESH,
                                      .a_type = a_type,
                                      .b_type = DTYPE_BF16,
                                      .m = columns_a,
                                      .n = columns_b,
                                      .k = model_tokens(&m->shape),
                                      .a = a,
                                      .lda = columns_a,
                                      .b = b,
                                      .ldb = columns_b,
                                      .c = gradient,
                                      .ldc = columns_b});
    model_send_gradient(m, tensor, layer, gradient);
}

/* ---- blocks --------------------------------------------------------------------------------- */

static const struct stack_steps *steps_of(int64_t block)
{
    return block % 2 ? &model_expert_steps : &model_attention_steps;
}

static void hidden(struct stack *s, int64_t block, const void *x, enum stack_purpose purpose,
    struct stack_kept *kept)
{
    steps_of(block)->hidden(s, block, x, purpose, kept);
}

static void output(
    struct stack *s, int64_t block, const void *x, const struct stack_kept *kept, void *y)
{
    steps_of(block)->output(s, block, x, kept, y);
}

static void backward(
    struct stack *s, int64_t block, const void *x, const void *dy, struct stack_kept *kept)
{
    steps_of(block)->backward(s, block, x, dy, kept);
}

/* Only blocks of experts have a state. */
static void release(struct stack *s, struct stack_kept *kept)
{
    model_expert_steps.release(s, kept);
}

/* Only blocks of attention keep anything. */
static uint32_t stays(const struct stack *s, int64_t block)
{
    return steps_of(block)->stays ? steps_of(block)->stays(s, block) : 0;
}

const struct stack_steps model_steps = {
    .hidden = hidden, .output = output, .backward = backward, .release = release, .stays = stays};
