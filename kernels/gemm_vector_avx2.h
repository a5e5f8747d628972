/* Vectors of 8 floats, and the tile that 16 registers hold: 6 x 2 accumulators, two vectors of B
 * and one broadcast of A. */
#pragma once
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include "kernels/gemm_unroll.h"

enum {
    LANES = 8,
    TILE_ROWS = 6,
    TILE_VECTORS = 2,
    DIRECT_ROWS = 6, /* the tile that reads B in place */
    DIRECT_VECTORS = 2,
    LANE_ACCUMULATORS = 12 /* the tile whose lanes are rows of C */
};

typedef __m256 vec;

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vec vec_set(float value)
{
    return _mm256_set1_ps(value);
}

static inline vec vec_load(const float *from)
{
    return _mm256_loadu_ps(from);
}

static inline void vec_store(float *to, vec value)
{
    _mm256_storeu_ps(to, value);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline __m256i first_lanes(int count)
{
    static const int32_t masks[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(masks + LANES - count));
}

/* The first `count` (0 to LANES) lanes; no other element is touched, the other lanes are +0. */
static inline vec vec_load_first(const float *from, int count)
{
    return _mm256_maskload_ps(from, first_lanes(count));
}

static inline void vec_store_first(float *to, int count, vec value)
{
    _mm256_maskstore_ps(to, first_lanes(count), value);
}

static inline vec vec_load_bf16(const uint16_t *from)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline vec vec_load_bf16_first(const uint16_t *from, int count)
{
    uint16_t whole[LANES] = {0};
    for (int i = 0; i < count; i++)
        whole[i] = from[i];
    return vec_load_bf16(whole);
}

/* Turns LANES rows into LANES columns: within 128-bit halves first, then between them. */
static inline void vec_transpose(vec row[LANES])
{
    vec pair[LANES], half[LANES];
    UNROLLED
    for (int i = 0; i < LANES; i += 2) {
        pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    /* half[i + c], 128-bit part h: column 4h + c of rows i .. i+3 */
    UNROLLED
    for (int i = 0; i < LANES; i += 4) {
        half[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        half[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
        half[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        half[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
    }
    UNROLLED
    for (int c = 0; c < 4; c++) {
        row[c] = _mm256_permute2f128_ps(half[c], half[4 + c], 0x20);
        row[4 + c] = _mm256_permute2f128_ps(half[c], half[4 + c], 0x31);
    }
}
