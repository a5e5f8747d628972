/* Inputs of the dispatch problem. X and dY uniform in [-1, 1), weights scaled by their width so
 * that outputs stay of order one. Integer inputs are -1, 0 or 1, mostly 0, with router weights of 1
 * or 2. */
#include <math.h>
#include <stdlib.h>
#include "bench/harness/moe_run.h"
#include "probe/seed.h"

/* Of integer inputs one element in this many is not 0. */
#define INTEGER_SPARSITY 8
#define FIRST_TENSOR 16 /* tensor numbers under the seed, apart from the routing's */

int64_t moe_first_token(const struct moe_shape *shape, int rank)
{
    int64_t first = 0;
    for (int r = 0; r < rank; r++)
        first += shape->tokens[r];
    return first;
}

static int fill_routing(struct moe_inputs *inputs, const struct moe_routing *routing, int64_t step)
{
    const struct moe_shape *shape = &inputs->shape;
    for (int r = 0; r < shape->ranks; r++) {
        int64_t at = moe_first_token(shape, r) * shape->topk;
        inputs->rank_idx[r] = inputs->idx + at;
        if (moe_routing_fill(routing, shape, inputs->seed, step, r, inputs->idx + at))
            return -1;
        if (inputs->router_weight)
            moe_routing_weights(routing, shape, inputs->seed, step, r, inputs->integers,
                inputs->router_weight + at);
    }
    return 0;
}

/* `weighted`: with the router's weights. */
static int init(
    struct moe_inputs *inputs, const struct moe_routing *routing, int64_t step, bool weighted)
{
    inputs->total = moe_first_token(&inputs->shape, inputs->shape.ranks);
    size_t slots = (size_t)(inputs->total * inputs->shape.topk) + 1;
    inputs->idx = malloc(slots * sizeof *inputs->idx);
    if (weighted)
        inputs->router_weight = malloc(slots * sizeof *inputs->router_weight);
    if (!inputs->idx || (weighted && !inputs->router_weight) ||
        fill_routing(inputs, routing, step)) {
        moe_inputs_free(inputs);
        return -1;
    }
    return 0;
}

int moe_inputs_init(struct moe_inputs *inputs, const struct moe_shape *shape,
    const struct moe_routing *routing, uint64_t seed, int64_t step, bool integers)
{
    *inputs = (struct moe_inputs){.shape = *shape, .seed = seed, .integers = integers};
    return init(inputs, routing, step, true);
}

int moe_inputs_routed(struct moe_inputs *inputs, const struct moe_shape *shape,
    const struct moe_routing *routing, uint64_t seed, int64_t step)
{
    *inputs = (struct moe_inputs){.shape = *shape, .seed = seed};
    return init(inputs, routing, step, false);
}

void moe_inputs_free(struct moe_inputs *inputs)
{
    free(inputs->idx);
    free(inputs->router_weight);
    for (int i = 0; i < MOE_TENSORS; i++)
        free(inputs->arrays[i]);
    *inputs = (struct moe_inputs){.total = 0};
}

int64_t moe_inputs_count(const struct moe_inputs *inputs, enum moe_tensor tensor)
{
    const struct moe_shape *s = &inputs->shape;
    return tensor <= MOE_DY ? inputs->total * s->hidden : s->experts * s->ffn * s->hidden;
}

static float integer_value(uint64_t seed, uint32_t tensor, int64_t index)
{
    int64_t drawn = seed_index(seed, tensor, index, 2 * INTEGER_SPARSITY);
    return drawn == 0 ? 1.0f : drawn == 1 ? -1.0f : 0.0f;
}

void moe_inputs_fill(const struct moe_inputs *inputs, enum moe_tensor tensor, int64_t first,
    int64_t count, void *out)
{
    const struct moe_shape *s = &inputs->shape;
    uint32_t number = FIRST_TENSOR + (uint32_t)tensor;
    if (inputs->integers) {
        for (int64_t i = 0; i < count; i++) {
            float value = integer_value(inputs->seed, number, first + i);
            if (s->dtype == DTYPE_BF16)
                ((uint16_t *)out)[i] = f32_to_bf16(value);
            else
                ((float *)out)[i] = value;
        }
        return;
    }
    double width = tensor == MOE_DOWN ? (double)s->ffn : (double)s->hidden;
    float scale = tensor <= MOE_DY ? 1.0f : (float)(2.0 / sqrt(width));
    if (s->dtype == DTYPE_BF16)
        seed_fill_bf16(out, inputs->seed, number, first, count, scale);
    else
        seed_fill_f32(out, inputs->seed, number, first, count, scale);
}

int moe_inputs_materialize(struct moe_inputs *inputs)
{
    for (int t = MOE_X; t < MOE_TENSORS; t++) {
        int64_t count = moe_inputs_count(inputs, (enum moe_tensor)t);
        if (inputs->arrays[t] || (t == MOE_GATE && inputs->shape.activation == MOE_RELU))
            continue;
        inputs->arrays[t] = malloc((size_t)(count * dtype_bytes(inputs->shape.dtype)) + 1);
        if (!inputs->arrays[t])
            return -1;
        moe_inputs_fill(inputs, (enum moe_tensor)t, 0, count, inputs->arrays[t]);
    }
    return 0;
}
