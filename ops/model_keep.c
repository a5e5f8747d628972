/* The options of a layer from the launches that its recomputation consists of: what a launch costs
 * is asked of the kernel, so that the plan counts what the device will. */
#include "ops/model_keep.h"
#include <stdlib.h>
#include "kernels/attention.h"
#include "kernels/rmsnorm.h"
#include "ops/model_blocks.h"

static int64_t flops_of(const struct kernel *kernel, const void *args)
{
    struct kernel_cost cost = {0};
    kernel->cost(args, &cost);
    return (int64_t)cost.flops;
}

void model_keep_options(
    const struct model_shape *shape, struct recompute_option options[MODEL_KEEP_OPTIONS])
{
    const int64_t rows = model_tokens(shape), row_bytes = rows * shape->hidden * 2;
    const struct attention_args attend = {.shape = model_attention_shape(shape)};
    const struct expert_matmul_args project = {.group_count = 1,
        .rows = rows,
        .n = shape->hidden,
        .k = shape->hidden,
        .type = DTYPE_BF16,
        .out_type = DTYPE_BF16};
    const struct rotary_args turn = model_rotary(shape);
    const struct rmsnorm_args norm = {.rows = rows, .columns = shape->hidden, .type = DTYPE_BF16};
    options[MODEL_KEEP_OUTPUT] = (struct recompute_option){
        row_bytes + 2 * model_normaliser_bytes(shape), flops_of(&kernel_attention, &attend)};
    options[MODEL_KEEP_PROJECTIONS] = (struct recompute_option){3 * row_bytes,
        3 * flops_of(&kernel_expert_matmul, &project) + 2 * flops_of(&kernel_rotary, &turn)};
    options[MODEL_KEEP_NORMED] =
        (struct recompute_option){row_bytes + rows * 4, flops_of(&kernel_rmsnorm, &norm)};
    for (int i = 1; i < MODEL_KEEP_OPTIONS; i++) {
        options[i].kept_bytes += options[i - 1].kept_bytes;
        options[i].saved_flops += options[i - 1].saved_flops;
    }
}

int model_keep_choose(const struct model_shape *shape, const struct model_options *options,
    int32_t *choice, struct recompute_plan *plan)
{
    struct recompute_problem problem = {.layers = shape->layers,
        .options_per_layer = MODEL_KEEP_OPTIONS,
        .budget_bytes = options->keep_attention_bytes};
    *plan = (struct recompute_plan){0};
    for (int64_t layer = 0; layer < shape->layers; layer++)
        choice[layer] = -1;
    if (!options->checkpoint->recomputes)
        return 0;
    struct recompute_option *all =
        malloc((size_t)(shape->layers * MODEL_KEEP_OPTIONS) * sizeof *all);
    if (!all)
        return -1;
    for (int64_t layer = 0; layer < shape->layers; layer++)
        model_keep_options(shape, all + layer * MODEL_KEEP_OPTIONS);
    problem.options = all;
    int status = recompute_choose(&problem, choice, plan);
    free(all);
    return status;
}
