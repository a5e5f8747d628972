/* The elementwise and row-wise kernels of expert dispatch, once per instruction set: plain loops
 * over kernels/arith.h in the shapes that compilers vectorise.
 *
 * The storage type is a constant in every loop: a function is written once for both and inlined
 * twice. Elementwise work goes block by block through FP32 arrays in the first-level cache, which
 * also lets an output be the array of an input. */
#include "kernels/arith.h"
#include "kernels/isa_variants.h"
#include "kernels/moe.h"
#include "kernels/moe_variants.h"
#include "kernels/stream_copy.h"

/* Elements at work at a time. */
#define BLOCK 512

/* How far ahead of a sum its rows are asked for. */
#define AHEAD_BYTES 8192

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements [at, at + count) of an array, widened. */
ARITH void load(enum dtype type, const void *array, int64_t at, int64_t count, float *restrict to)
{
    if (type == DTYPE_BF16) {
        const uint16_t *from = (const uint16_t *)array + at;
        for (int64_t i = 0; i < count; i++)
            to[i] = bf16_to_f32(from[i]);
    } else {
        memcpy(to, (const float *)array + at, (size_t)count * sizeof *to);
    }
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

static void round_bf16(uint16_t *to, const float *from, int64_t count)
{
    store(DTYPE_BF16, to, 0, count, from);
}

/* ---- activation --------------------------------------------------------------------------- */

/* Whole blocks are computed, whatever they hold past `count`: it is not stored. */
ARITH void swiglu_block(const float *restrict g, const float *restrict u, float *restrict a)
{
    for (int64_t i = 0; i < BLOCK; i++)
        a[i] = arith_silu(g[i]) * u[i];
}

ARITH void silu_block(const float *restrict g, float *restrict a)
{
    for (int64_t i = 0; i < BLOCK; i++)
        a[i] = arith_silu(g[i]);
}

static void activation(const void *launched, int64_t begin, int64_t end)
{
    const struct expert_activation_args *args = launched;
    float g[BLOCK] = {0}, u[BLOCK] = {0}, a[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t count = least(BLOCK, end - at);
        if (args->u)
            load(args->type, args->u, at, count, u);
        if (args->g)
            load(args->type, args->g, at, count, g);
        if (args->g && args->u) {
            swiglu_block(g, u, a);
        } else if (args->g) {
            silu_block(g, a);
        } else {
            for (int64_t i = 0; i < BLOCK; i++)
                a[i] = arith_max(u[i], 0.0f);
        }
        store(args->type, args->a, at, count, a);
    }
}

ARITH void swiglu_backward_block(const float *restrict g, const float *restrict u,
    const float *restrict dh, float *restrict dg, float *restrict du)
{
    for (int64_t i = 0; i < BLOCK; i++) {
        float s = arith_sigmoid(g[i]);
        du[i] = dh[i] * (g[i] * s);
        dg[i] = (dh[i] * u[i]) * (s * fmaf(g[i], 1.0f - s, 1.0f));
    }
}

static void activation_backward(const void *launched, int64_t begin, int64_t end)
{
    const struct expert_activation_backward_args *args = launched;
    float g[BLOCK] = {0}, u[BLOCK] = {0}, dh[BLOCK] = {0}, dg[BLOCK], du[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t count = least(BLOCK, end - at);
        load(args->type, args->u, at, count, u);
        load(args->type, args->dh, at, count, dh);
        if (args->g) {
            load(args->type, args->g, at, count, g);
            swiglu_backward_block(g, u, dh, dg, du);
            store(args->type, args->dg, at, count, dg);
        } else {
            for (int64_t i = 0; i < BLOCK; i++)
                du[i] = u[i] > 0.0f ? dh[i] : 0.0f;
        }
        store(args->type, args->du, at, count, du);
    }
}

/* ---- combine ------------------------------------------------------------------------------ */

ARITH float element(enum dtype type, const void *row, int64_t i)
{
    return type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

/* sum[i] = sum[i] + row[i], or fmaf(weight, row[i], sum[i]). */
ARITH void add_row(
    enum dtype type, const void *row, const float *weight, int64_t count, float *restrict sum)
{
    if (weight) {
        const float w = *weight;
        for (int64_t i = 0; i < count; i++)
            sum[i] = fmaf(w, element(type, row, i), sum[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            sum[i] = sum[i] + element(type, row, i);
    }
}

/* Columns [at, at + count) of the sum of token `to`. */
ARITH void combine_columns(const struct combine_rows_args *args, enum dtype from_type,
    const int32_t *position, int64_t to, int64_t at, int64_t count, float *sum)
{
    const int64_t element_bytes = dtype_bytes(from_type);
    const float *weight = args->weight ? args->weight + to * args->slots : NULL;
    bool any = false;
    if (args->continued)
        load(DTYPE_F32, args->to, to * args->columns + at, count, sum);
    else
        for (int64_t i = 0; i < count; i++)
            sum[i] = 0.0f;
    for (int slot = 0; slot < args->slots; slot++) {
        if (position[slot] < 0)
            continue;
        const char *row =
            (const char *)args->from + (position[slot] * args->columns + at) * element_bytes;
        if (args->take_first && !any)
            load(from_type, row, 0, count, sum);
        else
            add_row(from_type, row, weight ? weight + slot : NULL, count, sum);
        any = true;
    }
}

/* A block of columns of a token's sum; blocks follow each other along rows. */
struct sum_block {
    int64_t token, at;
};

ARITH struct sum_block next_block(struct sum_block block, int64_t columns)
{
    block.at += BLOCK;
    return block.at < columns ? block : (struct sum_block){block.token + 1, 0};
}

/* Asks for what a block will sum: where it lies only the positions tell. */
ARITH void prefetch_block(
    const struct combine_rows_args *args, enum dtype from_type, struct sum_block block)
{
    const int64_t element_bytes = dtype_bytes(from_type);
    const int64_t bytes = least(BLOCK, args->columns - block.at) * element_bytes;
    const int32_t *position = args->position + block.token * args->slots;
    for (int slot = 0; slot < args->slots; slot++)
        if (position[slot] >= 0)
            prefetch_bytes((const char *)args->from +
                               (position[slot] * args->columns + block.at) * element_bytes,
                bytes);
}

/* How many blocks ahead are asked for: enough bytes to hide the memory's latency. */
ARITH int64_t blocks_ahead(const struct combine_rows_args *args, enum dtype from_type)
{
    const int64_t block_bytes =
        args->slots * least(BLOCK, args->columns) * dtype_bytes(from_type) + 1;
    return 1 + AHEAD_BYTES / block_bytes;
}

/* Stores a block of sums, past the caches where the whole result is long. */
ARITH void store_sums(
    const struct combine_rows_args *args, bool streamed, int64_t at, int64_t count, float *sum)
{
    if (!streamed) {
        store(args->to_type, args->to, at, count, sum);
        return;
    }
    uint16_t rounded[BLOCK];
    const int64_t element_bytes = dtype_bytes(args->to_type);
    if (args->to_type == DTYPE_BF16)
        round_bf16(rounded, sum, count);
    stream_copy((char *)args->to + at * element_bytes,
        args->to_type == DTYPE_BF16 ? (const void *)rounded : sum, count * element_bytes);
}

ARITH void combine_typed(
    const struct combine_rows_args *args, enum dtype from_type, int64_t begin, int64_t end)
{
    const bool streamed =
        args->count * args->columns * dtype_bytes(args->to_type) >= STREAM_FROM_BYTES;
    struct sum_block block = {begin, 0}, ahead = block;
    float sum[BLOCK];
    for (int64_t i = blocks_ahead(args, from_type); i > 0; i--)
        ahead = next_block(ahead, args->columns);
    for (; block.token < end; block = next_block(block, args->columns)) {
        const int64_t to = args->token ? args->token[block.token] : block.token;
        const int64_t count = least(BLOCK, args->columns - block.at);
        if (ahead.token < end)
            prefetch_block(args, from_type, ahead);
        ahead = next_block(ahead, args->columns);
        combine_columns(
            args, from_type, args->position + block.token * args->slots, to, block.at, count, sum);
        store_sums(args, streamed, to * args->columns + block.at, count, sum);
    }
    if (streamed)
        stream_finish();
}

static void combine(const void *launched, int64_t begin, int64_t end)
{
    const struct combine_rows_args *args = launched;
    if (args->from_type == DTYPE_BF16)
        combine_typed(args, DTYPE_BF16, begin, end);
    else
        combine_typed(args, DTYPE_F32, begin, end);
}

/* ---- backward at a route ------------------------------------------------------------------ */

/* Rule 6 with fmaf. */
ARITH float row_dot(enum dtype type, const void *a, const void *b, int64_t count)
{
    const int64_t whole = count / ARITH_LANES * ARITH_LANES;
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t i = 0; i < whole; i += ARITH_LANES)
        for (int lane = 0; lane < ARITH_LANES; lane++)
            lanes[lane] = fmaf(element(type, a, i + lane), element(type, b, i + lane), lanes[lane]);
    for (int64_t i = whole; i < count; i++)
        lanes[i - whole] = fmaf(element(type, a, i), element(type, b, i), lanes[i - whole]);
    return arith_add_lanes(lanes);
}

/* de = weight * dy; `de` may be `dy`. */
ARITH void scale_row(enum dtype type, float weight, const void *dy, void *de, int64_t count)
{
    float block[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t some = least(BLOCK, count - at);
        for (int64_t i = 0; i < some; i++)
            block[i] = weight * element(type, dy, at + i);
        store(type, de, at, some, block);
    }
}

ARITH void route_backward_typed(
    const struct route_backward_args *args, enum dtype type, int64_t begin, int64_t end)
{
    const int64_t row_bytes = args->columns * dtype_bytes(type);
    for (int64_t i = begin; i < end; i++) {
        const int64_t t = args->dy_row ? args->dy_row[i] : i;
        const int64_t route = args->route ? args->route[i] : i;
        const char *dy = (const char *)args->dy + t * row_bytes;
        if (args->dw)
            args->dw[route] =
                row_dot(type, (const char *)args->e + i * row_bytes, dy, args->columns);
        if (args->de)
            scale_row(
                type, args->weight[route], dy, (char *)args->de + i * row_bytes, args->columns);
    }
}

static void route_backward_rows(const void *launched, int64_t begin, int64_t end)
{
    const struct route_backward_args *args = launched;
    if (args->type == DTYPE_BF16)
        route_backward_typed(args, DTYPE_BF16, begin, end);
    else
        route_backward_typed(args, DTYPE_F32, begin, end);
}

extern const struct moe_functions ISA_VARIANT(moe_functions);
const struct moe_functions ISA_VARIANT(moe_functions) = {
    .activation = activation,
    .activation_backward = activation_backward,
    .combine = combine,
    .route_backward = route_backward_rows,
    .round_bf16 = round_bf16,
};
