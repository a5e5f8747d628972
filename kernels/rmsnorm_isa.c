/* RMSNorm once per instruction set: plain loops over blocks of FP32 in the first-level cache, in
 * the shapes that compilers vectorise. BLOCK is a multiple of the lanes of rule 6, so that a lane
 * of a block is a lane of the row. */
#include "kernels/arith.h"
#include "kernels/isa_variants.h"
#include "kernels/rmsnorm.h"
#include "kernels/rmsnorm_variants.h"

#define BLOCK 512

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements [at, at + count) of an array, widened; the rest of the block is 0. */
ARITH void load(enum dtype type, const void *array, int64_t at, int64_t count, float *restrict to)
{
    if (type == DTYPE_BF16) {
        const uint16_t *from = (const uint16_t *)array + at;
        for (int64_t i = 0; i < count; i++)
            to[i] = bf16_to_f32(from[i]);
    } else {
        memcpy(to, (const float *)array + at, (size_t)count * sizeof *to);
    }
    for (int64_t i = count; i < BLOCK; i++)
        to[i] = 0.0f;
}

ARITH void store(
    enum dtype type, void *array, int64_t at, int64_t count, const float *restrict from)
{
    if (type == DTYPE_BF16) {
        uint16_t *to = (uint16_t *)array + at;
        for (int64_t i = 0; i < count; i++)
            to[i] = f32_to_bf16(from[i]);
    } else {
        memcpy((float *)array + at, from, (size_t)count * sizeof *from);
    }
}

/* ---- forward ------------------------------------------------------------------------------ */

/* Lanes end at `count`: a lane that meets no further element is not touched again. */
ARITH void add_squares(const float *restrict x, int64_t count, float *restrict lanes)
{
    const int64_t whole = count / ARITH_LANES * ARITH_LANES;
    for (int64_t i = 0; i < whole; i += ARITH_LANES)
        for (int lane = 0; lane < ARITH_LANES; lane++)
            lanes[lane] = lanes[lane] + x[i + lane] * x[i + lane];
    for (int64_t i = whole; i < count; i++)
        lanes[i - whole] = lanes[i - whole] + x[i] * x[i];
}

ARITH void forward_row(const struct rmsnorm_args *args, enum dtype type, int64_t row)
{
    const int64_t columns = args->columns, first = row * columns;
    float x[BLOCK], gain[BLOCK], lanes[ARITH_LANES] = {0.0f};
    for (int64_t at = 0; at < columns; at += BLOCK) {
        load(type, args->x, first + at, least(BLOCK, columns - at), x);
        add_squares(x, least(BLOCK, columns - at), lanes);
    }
    const float mean = arith_add_lanes(lanes) / (float)columns;
    const float r = args->r[row] = 1.0f / sqrtf(mean + RMSNORM_EPS);
    for (int64_t at = 0; at < columns; at += BLOCK) {
        const int64_t count = least(BLOCK, columns - at);
        load(type, args->x, first + at, count, x);
        load(type, args->gain, at, count, gain);
        for (int64_t i = 0; i < BLOCK; i++)
            x[i] = (x[i] * r) * gain[i];
        store(type, args->n, first + at, count, x);
    }
}

static void forward(const void *launched, int64_t begin, int64_t end)
{
    const struct rmsnorm_args *args = launched;
    if (args->type == DTYPE_BF16)
        for (int64_t row = begin; row < end; row++)
            forward_row(args, DTYPE_BF16, row);
    else
        for (int64_t row = begin; row < end; row++)
            forward_row(args, DTYPE_F32, row);
}

/* ---- backward ----------------------------------------------------------------------------- */

ARITH void add_products(
    const float *restrict q, const float *restrict x, int64_t count, float *restrict lanes)
{
    const int64_t whole = count / ARITH_LANES * ARITH_LANES;
    for (int64_t i = 0; i < whole; i += ARITH_LANES)
        for (int lane = 0; lane < ARITH_LANES; lane++)
            lanes[lane] = fmaf(q[i + lane], x[i + lane], lanes[lane]);
    for (int64_t i = whole; i < count; i++)
        lanes[i - whole] = fmaf(q[i], x[i], lanes[i - whole]);
}

/* q = dn * gain of a block, and its x. */
ARITH void load_backward(const struct rmsnorm_backward_args *args, enum dtype type, int64_t first,
    int64_t at, int64_t count, float *restrict q, float *restrict x)
{
    float gain[BLOCK];
    load(type, args->dn, first + at, count, q);
    load(type, args->gain, at, count, gain);
    load(type, args->x, first + at, count, x);
    for (int64_t i = 0; i < BLOCK; i++)
        q[i] = q[i] * gain[i];
}

ARITH void backward_row(const struct rmsnorm_backward_args *args, enum dtype type, int64_t row)
{
    const int64_t columns = args->columns, first = row * columns;
    float q[BLOCK], x[BLOCK], dy[BLOCK], lanes[ARITH_LANES] = {0.0f};
    for (int64_t at = 0; at < columns; at += BLOCK) {
        const int64_t count = least(BLOCK, columns - at);
        load_backward(args, type, first, at, count, q, x);
        add_products(q, x, count, lanes);
    }
    const float r = args->r[row];
    const float c = (r * r) * (arith_add_lanes(lanes) / (float)columns);
    for (int64_t at = 0; at < columns; at += BLOCK) {
        const int64_t count = least(BLOCK, columns - at);
        load_backward(args, type, first, at, count, q, x);
        load(type, args->dy, first + at, count, dy);
        for (int64_t i = 0; i < BLOCK; i++)
            dy[i] = dy[i] + r * fmaf(-c, x[i], q[i]);
        store(type, args->dx, first + at, count, dy);
    }
}

static void backward(const void *launched, int64_t begin, int64_t end)
{
    const struct rmsnorm_backward_args *args = launched;
    if (args->type == DTYPE_BF16)
        for (int64_t row = begin; row < end; row++)
            backward_row(args, DTYPE_BF16, row);
    else
        for (int64_t row = begin; row < end; row++)
            backward_row(args, DTYPE_F32, row);
}

/* ---- gradient of the gain ----------------------------------------------------------------- */

/* Columns [begin, begin + count), at most a block. */
ARITH void gain_columns(
    const struct rmsnorm_gain_args *args, enum dtype type, int64_t begin, int64_t count)
{
    float sum[BLOCK] = {0.0f}, x[BLOCK], dn[BLOCK];
    for (int64_t row = 0; row < args->rows; row++) {
        const float r = args->r[row];
        load(type, args->x, row * args->columns + begin, count, x);
        load(type, args->dn, row * args->columns + begin, count, dn);
        for (int64_t i = 0; i < count; i++)
            sum[i] = fmaf(dn[i], x[i] * r, sum[i]);
    }
    memcpy(args->dgain + begin, sum, (size_t)count * sizeof *sum);
}

static void gain(const void *launched, int64_t begin, int64_t end)
{
    const struct rmsnorm_gain_args *args = launched;
    for (int64_t at = begin; at < end; at += BLOCK) {
        if (args->type == DTYPE_BF16)
            gain_columns(args, DTYPE_BF16, at, least(BLOCK, end - at));
        else
            gain_columns(args, DTYPE_F32, at, least(BLOCK, end - at));
    }
}

/* ---- residual ----------------------------------------------------------------------------- */

static void add(const void *launched, int64_t begin, int64_t end)
{
    const struct residual_add_args *args = launched;
    float to[BLOCK], from[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        const int64_t count = least(BLOCK, end - at);
        load(args->type, args->to, at, count, to);
        load(args->type, args->from, at, count, from);
        for (int64_t i = 0; i < BLOCK; i++)
            to[i] = to[i] + from[i];
        store(args->type, args->to, at, count, to);
    }
}

extern const struct rmsnorm_functions ISA_VARIANT(rmsnorm_functions);
const struct rmsnorm_functions ISA_VARIANT(rmsnorm_functions) = {
    .forward = forward,
    .backward = backward,
    .gain = gain,
    .add = add,
};
