/* Inputs of the vocabulary problem, seeded or the user's own. */
#include "bench/harness/vocab_run.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/strip.h"
#include "probe/seed.h"

/* Tensor numbers under one seed. */
enum { TENSOR_X = 1, TENSOR_W = 2, TENSOR_TARGET = 3, TENSOR_IGNORED = 4 };

static bool is_ignored(const struct vocab_inputs *inputs, int64_t token)
{
    uint64_t bits = seed_bits(inputs->seed, TENSOR_IGNORED, token);
    return (double)(bits >> 11) * 0x1p-53 < inputs->ignored;
}

int vocab_inputs_seeded(
    struct vocab_inputs *inputs, const struct vocab_shape *shape, uint64_t seed, double ignored)
{
    int64_t total = vocab_total_tokens(shape);
    *inputs = vocab_inputs_counted(shape, seed, ignored);
    inputs->targets = malloc((size_t)(total ? total : 1) * sizeof *inputs->targets);
    if (!inputs->targets)
        return -1;
    for (int64_t i = 0; i < total; i++)
        inputs->targets[i] = is_ignored(inputs, i)
                                 ? VOCAB_IGNORED
                                 : seed_index(seed, TENSOR_TARGET, i, shape->vocab);
    return 0;
}

struct vocab_inputs vocab_inputs_counted(
    const struct vocab_shape *shape, uint64_t seed, double ignored)
{
    return (struct vocab_inputs){.shape = *shape, .seed = seed, .ignored = ignored};
}

int64_t vocab_inputs_valid(const struct vocab_inputs *inputs, int64_t first, int64_t count)
{
    int64_t valid = 0;
    if (!inputs->targets && inputs->ignored <= 0)
        return count;
    for (int64_t i = first; i < first + count; i++)
        valid += inputs->targets ? inputs->targets[i] != VOCAB_IGNORED : !is_ignored(inputs, i);
    return valid;
}

/* Rows of a seeded tensor [.., hidden]. */
static void seeded_rows(const struct vocab_inputs *inputs, uint32_t tensor, float scale,
    int64_t first, int64_t count, void *out)
{
    int64_t hidden = inputs->shape.hidden;
    if (inputs->shape.dtype == DTYPE_BF16)
        seed_fill_bf16(out, inputs->seed, tensor, first * hidden, count * hidden, scale);
    else
        seed_fill_f32(out, inputs->seed, tensor, first * hidden, count * hidden, scale);
}

static void array_rows(
    const struct vocab_inputs *inputs, const void *array, int64_t first, int64_t count, void *out)
{
    int64_t row_bytes = inputs->shape.hidden * dtype_bytes(inputs->shape.dtype);
    memcpy(out, (const char *)array + first * row_bytes, (size_t)(count * row_bytes));
}

void vocab_inputs_x(const struct vocab_inputs *inputs, int64_t first, int64_t count, void *out)
{
    if (inputs->x)
        array_rows(inputs, inputs->x, first, count, out);
    else
        seeded_rows(inputs, TENSOR_X, 1.0f, first, count, out);
}

void vocab_inputs_w(const struct vocab_inputs *inputs, int64_t first, int64_t count, void *out)
{
    if (inputs->w)
        array_rows(inputs, inputs->w, first, count, out);
    else
        seeded_rows(
            inputs, TENSOR_W, (float)(4.0 / sqrt((double)inputs->shape.hidden)), first, count, out);
}

int vocab_inputs_materialize(struct vocab_inputs *inputs)
{
    int64_t total = vocab_total_tokens(&inputs->shape), vocab = inputs->shape.vocab;
    size_t row_bytes = (size_t)(inputs->shape.hidden * dtype_bytes(inputs->shape.dtype));
    if (!inputs->x) {
        void *x = malloc((size_t)total * row_bytes + 1);
        if (!x)
            return -1;
        vocab_inputs_x(inputs, 0, total, x);
        inputs->x = inputs->owned_x = x;
    }
    if (!inputs->w) {
        void *w = malloc((size_t)vocab * row_bytes + 1);
        if (!w)
            return -1;
        vocab_inputs_w(inputs, 0, vocab, w);
        inputs->w = inputs->owned_w = w;
    }
    return 0;
}

void vocab_inputs_free(struct vocab_inputs *inputs)
{
    free(inputs->owned_x);
    free(inputs->owned_w);
    free(inputs->targets);
    *inputs = (struct vocab_inputs){0};
}
