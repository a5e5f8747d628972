/* Inputs of the optimizer problem, seeded or the user's own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/adamw_run.h"
#include "probe/seed.h"

/* Streams under one seed: four for each tensor. */
enum { STREAMS = 4 };
/* Apart from every tensor's. */
#define STREAM_NONFINITE UINT32_MAX

/* Sizes of seeded values: weights and gradients of a model in training. The second moment is
 * a square of the gradient's size and never negative. */
#define SIZE_P 0.1f
#define SIZE_M 1e-3f
#define SIZE_V 1e-6f
#define SIZE_G 1e-2f

int adamw_inputs_seeded(struct adamw_inputs *inputs, const struct adamw_tensor *tensor,
    int64_t tensors, int world, int ranks, uint64_t seed)
{
    *inputs = (struct adamw_inputs){
        .tensors = tensors, .tensor = tensor, .world = world, .ranks = ranks, .seed = seed};
    inputs->held_first = calloc((size_t)tensors + 1, sizeof *inputs->held_first);
    if (!inputs->held_first)
        return -1;
    for (int64_t i = 0; i < tensors; i++) {
        int64_t leftover = tensor[i].count % world;
        int64_t held = tensor[i].count / world * ranks + (leftover < ranks ? leftover : ranks);
        inputs->held_first[i + 1] = inputs->held_first[i] + held;
    }
    return 0;
}

void adamw_inputs_free(struct adamw_inputs *inputs)
{
    free(inputs->held_first);
    *inputs = (struct adamw_inputs){0};
}

/* ---- extremes ---------------------------------------------------------------------------------
 *
 * Every seventh element takes a value that arithmetic treats specially: zero, the smallest
 * denormal, the edge of the normal numbers, values whose square underflows or overflows, and the
 * largest. */

#define EXTREME_EVERY 7

static float extreme(enum adamw_value value, uint64_t bits)
{
    static const float p[] = {0.0f, -0.0f, 1e30f, -3e38f, 0x1p-149f, 0x1p-126f, 1.0f, 1e-20f};
    static const float m[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-126f, 1e-30f, 1.0f, -1e10f, 1e-6f};
    static const float v[] = {0.0f, 0.0f, 0x1p-149f, 0x1p-126f, 1e-38f, 1.0f, 1e20f, 1e-12f};
    static const float g[] = {
        0.0f, -0.0f, 0x1p-133f, 0x1p-126f, -0x1p-75f, 1e-23f, 0x1p+63f, -0x1p+65f};
    static const float *const table[] = {p, m, v, g};
    return table[value][bits % 8];
}

static void put_extremes(const struct adamw_inputs *inputs, enum adamw_value value, uint32_t stream,
    uint64_t seed, int64_t first, int64_t count, float *out)
{
    int64_t next = (first + EXTREME_EVERY - 1) / EXTREME_EVERY * EXTREME_EVERY;
    for (; inputs->extremes && next < first + count; next += EXTREME_EVERY)
        out[next - first] = extreme(value, seed_bits(seed, stream, next) >> 7);
}

/* ---- gradients that are not finite --------------------------------------------------------- */

/* Where the k-th of them stands in held order. */
static int64_t nonfinite_at(const struct adamw_inputs *inputs, int64_t k)
{
    return seed_index(inputs->seed, STREAM_NONFINITE, k, adamw_inputs_held(inputs));
}

static void put_nonfinite(
    const struct adamw_inputs *inputs, int64_t tensor, int64_t first, int64_t count, float *out)
{
    static const float values[] = {INFINITY, -INFINITY, NAN};
    int64_t begin = inputs->held_first[tensor] + first;
    for (int64_t k = 0; k < inputs->nonfinite; k++) {
        int64_t at = nonfinite_at(inputs, k) - begin;
        if (at >= 0 && at < count)
            out[at] = values[k % 3];
    }
}

/* ---- fill ---------------------------------------------------------------------------------- */

static const float *array_of(const struct adamw_inputs *inputs, enum adamw_value value)
{
    const float *const arrays[] = {inputs->p, inputs->m, inputs->v, inputs->g};
    return arrays[value];
}

void adamw_inputs_fill(const struct adamw_inputs *inputs, enum adamw_value value, int64_t step,
    int64_t tensor, int64_t first, int64_t count, float *out)
{
    static const float sizes[] = {SIZE_P, SIZE_M, SIZE_V, SIZE_G};
    const float *array = array_of(inputs, value);
    uint32_t stream = (uint32_t)tensor * STREAMS + (uint32_t)value;
    uint64_t seed = inputs->seed + (value == ADAMW_VALUE_G ? (uint64_t)step : 0);
    if (array) {
        memcpy(out, array + inputs->held_first[tensor] + first, (size_t)count * sizeof *out);
        return;
    }
    seed_fill_f32(out, seed, stream, first, count, sizes[value]);
    if (value == ADAMW_VALUE_V)
        for (int64_t i = 0; i < count; i++)
            out[i] = fabsf(out[i]);
    put_extremes(inputs, value, stream, seed, first, count, out);
    if (value == ADAMW_VALUE_G)
        put_nonfinite(inputs, tensor, first, count, out);
}

#define PIECE 4096

void adamw_inputs_fill_bf16(const struct adamw_inputs *inputs, int64_t step, int64_t tensor,
    int64_t first, int64_t count, uint16_t *out)
{
    float piece[PIECE];
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t part = count - done < PIECE ? count - done : PIECE;
        adamw_inputs_fill(inputs, ADAMW_VALUE_G, step, tensor, first + done, part, piece);
        for (int64_t i = 0; i < part; i++)
            out[done + i] = f32_to_bf16(piece[i]);
    }
}
