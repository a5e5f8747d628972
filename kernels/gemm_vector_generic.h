/* Vectors for any CPU, in plain C: 4 lanes for the generic variant, which a compiler maps to what
 * there is (a fused multiply-add of 4 lanes on aarch64, four calls of fmaf on x86-64), and 1 lane
 * for the scalar variant. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "kernels/arith.h"
#include "kernels/gemm_unroll.h"

#ifdef ISA_IS_scalar
enum {
    LANES = 1,
    TILE_ROWS = 4,
    TILE_VECTORS = 3,
    DIRECT_ROWS = 4,
    DIRECT_VECTORS = 3,
    LANE_ACCUMULATORS = 12
};
#else
enum {
    LANES = 4,
    TILE_ROWS = 8,
    TILE_VECTORS = 3,
    DIRECT_ROWS = 8,
    DIRECT_VECTORS = 3,
    LANE_ACCUMULATORS = 24
};
#endif

typedef struct {
    float lane[LANES];
} vec;

static inline vec vec_set(float value)
{
    vec out;
    for (int i = 0; i < LANES; i++)
        out.lane[i] = value;
    return out;
}

static inline vec vec_zero(void)
{
    return vec_set(0.0f);
}

static inline vec vec_load(const float *from)
{
    vec out;
    memcpy(&out, from, sizeof out);
    return out;
}

static inline void vec_store(float *to, vec value)
{
    memcpy(to, &value, sizeof value);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    for (int i = 0; i < LANES; i++)
        c.lane[i] = fmaf(a.lane[i], b.lane[i], c.lane[i]);
    return c;
}

static inline vec vec_add(vec a, vec b)
{
    for (int i = 0; i < LANES; i++)
        a.lane[i] += b.lane[i];
    return a;
}

/* The first `count` (0 to LANES) lanes; no other element is touched, the other lanes are +0. */
static inline vec vec_load_first(const float *from, int count)
{
    vec out = vec_zero();
    for (int i = 0; i < count; i++)
        out.lane[i] = from[i];
    return out;
}

static inline void vec_store_first(float *to, int count, vec value)
{
    for (int i = 0; i < count; i++)
        to[i] = value.lane[i];
}

static inline vec vec_load_bf16_first(const uint16_t *from, int count)
{
    vec out = vec_zero();
    for (int i = 0; i < count; i++)
        out.lane[i] = bf16_to_f32(from[i]);
    return out;
}

static inline vec vec_load_bf16(const uint16_t *from)
{
    return vec_load_bf16_first(from, LANES);
}

/* Turns LANES rows into LANES columns. */
static inline void vec_transpose(vec row[LANES])
{
    vec column[LANES];
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++)
            column[j].lane[i] = row[i].lane[j];
    memcpy(row, column, sizeof column);
}
