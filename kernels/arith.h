/* The scalar arithmetic contract (docs/ARITHMETIC.md), for host and device alike.
 *
 * Every function is a fixed sequence of IEEE operations: the same bits on every instruction set and
 * on CUDA, whether the compiler vectorises a loop over it or not. Where a fused multiply-add is
 * meant it is written as fma; the build forbids the compiler to form others (-ffp-contract=off,
 * -fmad=false). Choices are written as conditional expressions, which vectorise; there is no branch
 * and no table in the elementwise functions. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ARITH static inline __host__ __device__
#else
#define ARITH static inline __attribute__((always_inline))
#endif

/* ---- storage ------------------------------------------------------------------------------ */

/* Storage types of tensors. Arithmetic is FP32. */
enum dtype { DTYPE_F32, DTYPE_BF16 };

ARITH int64_t dtype_bytes(enum dtype type)
{
    return type == DTYPE_BF16 ? 2 : 4;
}

ARITH uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ARITH float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ARITH uint64_t f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ARITH double f64_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exact. */
ARITH float bf16_to_f32(uint16_t value)
{
    return f32_from_bits((uint32_t)value << 16);
}

/* To nearest even; every NaN becomes 0x7FC0. */
ARITH uint16_t f32_to_bf16(float value)
{
    uint32_t bits = f32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return value != value ? (uint16_t)0x7fc0 : (uint16_t)rounded;
}

/* ---- exp and log (rule 4) ------------------------------------------------------------------
 *
 * Both evaluate in FP64 with a relative error near 2^-53 and round to FP32 once. Such a value
 * rounds the wrong way only if the true result lies that close to the middle of two FP32 numbers;
 * all 2^32 inputs were compared with MPFR (tests/slow_arith.c repeats it): exp has no such input,
 * log has five, which are mended by name. */

/* e^x, correctly rounded for every FP32 x; NaN stays NaN.
 *
 * x = k ln2 + r with |r| <= ln2 / 2; e^x = 2^k (1 + r + r^2 p(r)). */
ARITH float arith_exp(float value)
{
    /* Beyond these limits the result is +inf and +0, which the last rounding delivers: e^89 exceeds
     * the largest FP32, e^-104 is below half of the smallest. A NaN passes both comparisons. */
    float upper = 89.0f < value ? 89.0f : value;
    double x = -104.0f > upper ? -104.0f : upper;

    /* Adding 1.5 * 2^52, where neighbours are 1 apart, rounds x / ln2 to the integer k and leaves
     * it in the low bits of the sum; the 1023 added there makes those bits the exponent of 2^k. */
    const double to_integer = 0x1.8p52 + 1023.0;
    double shifted = fma(x, 0x1.71547652b82fep+0, to_integer);
    double k = shifted - to_integer;
    double power = f64_from_bits(f64_bits(shifted) << 52);

    /* ln2 in two parts. The first is a multiple of 2^-39; so is x whenever k is not 0, and their
     * difference is below 1: 39 bits, exact. The second adds one rounding. */
    double r = fma(k, -0x1.62e42fefa4000p-1, x);
    r = fma(k, 0x1.8432a1b0e2634p-43, r);

    /* p: the polynomial of degree 9 that is best for (e^r - 1 - r) / r^2 on the interval, its
     * relative error in e^r below 2^-57; near the series 1/2! + r/3! + ... + r^9/11!. Even and odd
     * powers are two independent chains. */
    double r2 = r * r;
    double even = fma(r2, 0x1.28adef617bd24p-22, 0x1.a019996c8027fp-16);
    double odd = fma(r2, 0x1.adb6f0f6be8a0p-26, 0x1.71df01035cec1p-19);
    even = fma(r2, even, 0x1.6c16c18472b12p-10);
    odd = fma(r2, odd, 0x1.a01a013b4ea64p-13);
    even = fma(r2, even, 0x1.55555555506cap-5);
    odd = fma(r2, odd, 0x1.11111111246f7p-7);
    even = fma(r2, even, 0x1.000000000000ap-1);
    odd = fma(r2, odd, 0x1.5555555555508p-3);
    double tail = fma(r2, fma(r, odd, even), r);

    /* 2^k is exact and FP64 has room for every k here, so this fma is 2^k times the rounded sum
     * 1 + tail. The conversion is the one rounding to FP32, denormals included. */
    return (float)fma(power, tail, power);
}

/* The natural logarithm, correctly rounded for every FP32 x: log(+-0) = -inf, log(x < 0) = NaN,
 * log(+inf) = +inf, NaN stays NaN.
 *
 * x = 2^e m with m in [sqrt(1/2), sqrt(2)); f = m - 1; log x = e ln2 + log(1 + f), and with
 * s = f / (2 + f), log(1 + f) = f - (f^2/2 - s (f^2/2 + R(s^2))). */
ARITH float arith_log(float value)
{
    /* Adding (bits of 2.0) - (bits of sqrt(2)) to the bits carries into the exponent exactly when
     * the mantissa reaches sqrt(2). FP32 denormals are normal numbers here. Zero, negative numbers,
     * infinity and NaN make nonsense until the end. */
    double x = value;
    uint64_t bits = f64_bits(x);
    uint64_t biased = (bits + 0x95f619980c433u) >> 52;
    double m = f64_from_bits(bits - ((biased - 1023) << 52));
    /* An integer below 2^52 put under the exponent of 2^52 is 2^52 plus that integer. */
    double e = f64_from_bits(biased | 0x4330000000000000u) - (0x1p52 + 1023.0);

    /* m has 24 bits, so f (a multiple of 2^-24), m + 1 and f^2/2 (48 bits) are exact. */
    double f = m - 1.0;
    double half = 0.5 * f * f;
    double s = f / (m + 1.0);

    /* R: a polynomial in s^2 close to the series 2/3 s^2 + 2/5 s^4 + ... + 2/17 s^16. */
    double s2 = s * s;
    double s4 = s2 * s2;
    double r0 = fma(s2, 0x1.9999999999d59p-2, 0x1.5555555555555p-1);
    double r2 = fma(s2, 0x1.c71c725c5fa81p-3, 0x1.249249242ee17p-2);
    double r4 = fma(s2, 0x1.3b21594e186efp-3, 0x1.745cdb74b84c1p-3);
    double r6 = fma(s2, 0x1.1023db2644e2cp-3, 0x1.0f4a12330049dp-3);
    double series = s2 * fma(s4, fma(s4, fma(s4, r6, r4), r2), r0);
    double below = fma(-s, half + series, half);

    /* ln2 in two parts. The first is a multiple of 2^-42, e has 8 bits: e ln2 + f is below 2^7 and
     * a multiple of 2^-42, 49 bits, exact. What is small is added last. */
    double high = fma(e, 0x1.62e42fefa3800p-1, f);
    double low = fma(e, 0x1.ef35793c76730p-45, -below);
    float result = (float)(high + low);

    /* The five inputs whose logarithm is too near the middle of two FP32 numbers: the FP64 value
     * lies on its other side. One step of the bit pattern, away from zero or towards it. */
    uint32_t input = f32_bits(value);
    uint32_t away = (uint32_t)(input == 0x6f31a8ecu) + (uint32_t)(input == 0x4c5d65a5u) +
                    (uint32_t)(input == 0x65d890d3u);
    uint32_t towards = (uint32_t)(input == 0x3c413d3au) + (uint32_t)(input == 0x41178febu);
    result = f32_from_bits(f32_bits(result) + away - towards);

    result = value == 0.0f ? -INFINITY : result;
    result = value < 0.0f ? NAN : result;
    return value < INFINITY ? result : value + value;
}

/* ---- sigmoid (rule 5) --------------------------------------------------------------------- */

/* 1 / (1 + e^-x), the exponential, the sum and the quotient each rounded. */
ARITH float arith_sigmoid(float value)
{
    return 1.0f / (1.0f + arith_exp(-value));
}

/* x sigmoid(x), the product rounded. silu(-inf) is NaN: -inf times 0. */
ARITH float arith_silu(float value)
{
    return value * arith_sigmoid(value);
}

/* ---- rows (rule 6) ------------------------------------------------------------------------ */

/* The larger of two; a NaN on either side gives NaN. A zero result is +0, whatever the signs of the
 * zeros it met, so that a maximum over many is the same in any order. */
ARITH float arith_max(float a, float b)
{
    return (a > b || a != a ? a : b) + 0.0f;
}

/* The lanes of a row reduction: lane l adds elements l, l + 32, ... ascending from +0. */
#define ARITH_LANES 32

/* Adds the lanes pairwise at distance 16, 8, 4, 2, 1. Overwrites them. */
ARITH float arith_add_lanes(float *lanes)
{
    for (int distance = ARITH_LANES / 2; distance; distance /= 2)
        for (int lane = 0; lane < distance; lane++)
            lanes[lane] = lanes[lane] + lanes[lane + distance];
    return lanes[0];
}

/* The sum of values[0 .. count) in the order of rule 6; +0 when count is 0. */
ARITH float arith_row_sum(const float *values, int64_t count)
{
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t i = 0; i < count; i++)
        lanes[i % ARITH_LANES] = lanes[i % ARITH_LANES] + values[i];
    return arith_add_lanes(lanes);
}

/* The maximum of values[0 .. count), NaN when one of them is; -inf when count is 0. */
ARITH float arith_row_max(const float *values, int64_t count)
{
    float max = -INFINITY;
    for (int64_t i = 0; i < count; i++)
        max = arith_max(max, values[i]);
    return max;
}

/* ---- log-sum-exp (rule 7) ----------------------------------------------------------------- */

/* What a run of logits contributes to a softmax: their maximum, and the sum of e^(y - max). The
 * empty state is (-inf, 0). */
struct softmax_state {
    float max, sum;
};

ARITH struct softmax_state softmax_empty(void)
{
    struct softmax_state empty = {-INFINITY, 0.0f};
    return empty;
}

#define SOFTMAX_SEGMENT 1024

/* The state of one segment: at most SOFTMAX_SEGMENT logits that begin on a multiple of it from the
 * shard's start. Without logits, or with none above -inf, it is empty. A NaN makes both parts NaN;
 * +inf makes the sum NaN. */
ARITH struct softmax_state softmax_segment(const float *logits, int64_t count)
{
    struct softmax_state state = {arith_row_max(logits, count), 0.0f};
    if (state.max == -INFINITY)
        return softmax_empty();
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t i = 0; i < count; i++)
        lanes[i % ARITH_LANES] = lanes[i % ARITH_LANES] + arith_exp(logits[i] - state.max);
    state.sum = arith_add_lanes(lanes);
    return state;
}

/* The state of `left` followed by `right`: two products and one sum, each rounded. An empty state
 * leaves the other as it is. */
ARITH struct softmax_state softmax_fold(struct softmax_state left, struct softmax_state right)
{
    if (left.max == -INFINITY)
        return right;
    if (right.max == -INFINITY)
        return left;
    float max = arith_max(left.max, right.max);
    float left_sum = left.sum * arith_exp(left.max - max);
    float right_sum = right.sum * arith_exp(right.max - max);
    struct softmax_state both = {max, left_sum + right_sum};
    return both;
}
