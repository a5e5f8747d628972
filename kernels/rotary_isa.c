/* Turning rows, once per instruction set: plain loops over a head's pairs, in the shapes that
 * compilers vectorise. */
#include "kernels/isa_variants.h"
#include "kernels/rotary_variants.h"

#define BLOCK 128 /* pairs at a time */

ARITH void load(enum dtype type, const void *array, int64_t at, int64_t count, float *restrict to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)array)[at + i])
                                   : ((const float *)array)[at + i];
}

ARITH void store(
    enum dtype type, void *array, int64_t at, int64_t count, const float *restrict from)
{
    for (int64_t i = 0; i < count; i++)
        if (type == DTYPE_BF16)
            ((uint16_t *)array)[at + i] = f32_to_bf16(from[i]);
        else
            ((float *)array)[at + i] = from[i];
}

/* `count` pairs whose first columns begin at element `at`; sign: 1, or -1 backward. */
ARITH void turn_pairs(enum dtype type, void *x, int64_t at, int64_t half, int64_t count,
    const float *restrict cosines, const float *restrict sines, float sign)
{
    float low[BLOCK], high[BLOCK];
    load(type, x, at, count, low);
    load(type, x, at + half, count, high);
    for (int64_t i = 0; i < count; i++) {
        const float a = low[i], b = high[i], s = sign * sines[i];
        low[i] = fmaf(a, cosines[i], -(b * s));
        high[i] = fmaf(b, cosines[i], a * s);
    }
    store(type, x, at, count, low);
    store(type, x, at + half, count, high);
}

ARITH void turn_row(const struct rotary_args *args, enum dtype type, int64_t row)
{
    const int64_t half = args->head_columns / 2;
    const float *turns = args->turns + row % args->run * 2 * half;
    for (int64_t head = 0; head < args->heads; head++)
        for (int64_t i = 0; i < half; i += BLOCK)
            turn_pairs(type, args->x, (row * args->heads + head) * args->head_columns + i, half,
                half - i < BLOCK ? half - i : BLOCK, turns + i, turns + half + i,
                args->backward ? -1.0f : 1.0f);
}

static void turn(const struct rotary_args *args, int64_t begin, int64_t end)
{
    if (args->type == DTYPE_BF16)
        for (int64_t row = begin; row < end; row++)
            turn_row(args, DTYPE_BF16, row);
    else
        for (int64_t row = begin; row < end; row++)
            turn_row(args, DTYPE_F32, row);
}

extern const struct rotary_functions ISA_VARIANT(rotary_functions);
const struct rotary_functions ISA_VARIANT(rotary_functions) = {.turn = turn};
