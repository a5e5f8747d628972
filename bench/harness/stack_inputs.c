/* Inputs of the checkpoint-boundary problem. X and dY uniform in [-1, 1), gains around 1, weights
 * scaled by their width so that every layer adds about as much as it is given. */
#include <math.h>
#include <stdlib.h>
#include "bench/harness/stack_run.h"
#include "probe/seed.h"

#define FIRST_TENSOR 64 /* tensor numbers under the seed */

int64_t stack_first_token(const struct stack_shape *shape, int rank)
{
    int64_t first = 0;
    for (int r = 0; r < rank; r++)
        first += shape->tokens[r];
    return first;
}

int64_t stack_inputs_count(const struct stack_inputs *inputs, enum stack_tensor tensor)
{
    const struct stack_shape *s = &inputs->shape;
    if (tensor <= STACK_DY)
        return inputs->total * s->hidden;
    return s->layers * s->hidden * (tensor == STACK_GAIN ? 1 : s->ffn);
}

static void fill(const struct stack_inputs *inputs, enum stack_tensor tensor, uint64_t seed)
{
    const struct stack_shape *s = &inputs->shape;
    const int64_t count = stack_inputs_count(inputs, tensor);
    const uint32_t number = FIRST_TENSOR + (uint32_t)tensor;
    const double width = tensor == STACK_DOWN ? (double)s->ffn : (double)s->hidden;
    const float scale = tensor <= STACK_GAIN ? 1.0f : (float)(2.0 / sqrt(width));
    const float add = tensor == STACK_GAIN ? 1.5f : 0.0f;
    for (int64_t i = 0; i < count; i++) {
        float value = seed_f32(seed, number, i, scale) + add;
        if (s->dtype == DTYPE_BF16)
            ((uint16_t *)inputs->arrays[tensor])[i] = f32_to_bf16(value);
        else
            ((float *)inputs->arrays[tensor])[i] = value;
    }
}

int stack_inputs_seeded(struct stack_inputs *inputs, const struct stack_shape *shape, uint64_t seed)
{
    *inputs =
        (struct stack_inputs){.shape = *shape, .total = stack_first_token(shape, shape->ranks)};
    for (int t = 0; t < STACK_TENSORS; t++) {
        int64_t count = stack_inputs_count(inputs, (enum stack_tensor)t);
        inputs->arrays[t] = malloc((size_t)(count * dtype_bytes(shape->dtype)) + 1);
        if (!inputs->arrays[t]) {
            stack_inputs_free(inputs);
            return -1;
        }
        fill(inputs, (enum stack_tensor)t, seed);
    }
    return 0;
}

struct stack_inputs stack_inputs_none(const struct stack_shape *shape)
{
    return (struct stack_inputs){.shape = *shape, .total = stack_first_token(shape, shape->ranks)};
}

void stack_inputs_free(struct stack_inputs *inputs)
{
    for (int t = 0; t < STACK_TENSORS; t++)
        free(inputs->arrays[t]);
    *inputs = (struct stack_inputs){.total = 0};
}
