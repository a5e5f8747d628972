/* Vectors of 16 floats, and the tile that 32 registers hold: 14 x 2 accumulators, two vectors of B
 * and one broadcast of A. */
#pragma once
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include "kernels/gemm_unroll.h"

enum {
    LANES = 16,
    TILE_ROWS = 14,
    TILE_VECTORS = 2,
    DIRECT_ROWS = 8, /* the tile that reads B in place */
    DIRECT_VECTORS = 3,
    LANE_ACCUMULATORS = 24 /* the tile whose lanes are rows of C */
};

typedef __m512 vec;

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vec vec_set(float value)
{
    return _mm512_set1_ps(value);
}

static inline vec vec_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

static inline void vec_store(float *to, vec value)
{
    _mm512_storeu_ps(to, value);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline __mmask16 first_lanes(int count)
{
    return (__mmask16)((1u << count) - 1u);
}

/* The first `count` (0 to LANES) lanes; no other element is touched, the other lanes are +0. */
static inline vec vec_load_first(const float *from, int count)
{
    return _mm512_maskz_loadu_ps(first_lanes(count), from);
}

static inline void vec_store_first(float *to, int count, vec value)
{
    _mm512_mask_storeu_ps(to, first_lanes(count), value);
}

static inline vec widen(__m256i bf16)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

static inline vec vec_load_bf16(const uint16_t *from)
{
    return widen(_mm256_loadu_si256((const __m256i *)from));
}

static inline vec vec_load_bf16_first(const uint16_t *from, int count)
{
    return widen(_mm256_maskz_loadu_epi16(first_lanes(count), from));
}

/* Turns LANES rows into LANES columns: within 128-bit quarters first, then between them. */
static inline void vec_transpose(vec row[LANES])
{
    __m512d pair[LANES];
    vec quarter[LANES];
    UNROLLED
    for (int i = 0; i < LANES; i += 2) {
        pair[i] = _mm512_castps_pd(_mm512_unpacklo_ps(row[i], row[i + 1]));
        pair[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(row[i], row[i + 1]));
    }
    /* quarter[i + c], 128-bit part q: column 4q + c of rows i .. i+3 */
    UNROLLED
    for (int i = 0; i < LANES; i += 4) {
        quarter[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pair[i], pair[i + 2]));
        quarter[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pair[i], pair[i + 2]));
        quarter[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pair[i + 1], pair[i + 3]));
        quarter[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pair[i + 1], pair[i + 3]));
    }
    UNROLLED
    for (int c = 0; c < 4; c++) {
        vec even_top = _mm512_shuffle_f32x4(quarter[c], quarter[4 + c], 0x88);
        vec odd_top = _mm512_shuffle_f32x4(quarter[c], quarter[4 + c], 0xdd);
        vec even_bottom = _mm512_shuffle_f32x4(quarter[8 + c], quarter[12 + c], 0x88);
        vec odd_bottom = _mm512_shuffle_f32x4(quarter[8 + c], quarter[12 + c], 0xdd);
        row[c] = _mm512_shuffle_f32x4(even_top, even_bottom, 0x88);
        row[4 + c] = _mm512_shuffle_f32x4(odd_top, odd_bottom, 0x88);
        row[8 + c] = _mm512_shuffle_f32x4(even_top, even_bottom, 0xdd);
        row[12 + c] = _mm512_shuffle_f32x4(odd_top, odd_bottom, 0xdd);
    }
}
