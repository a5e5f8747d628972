/* The scalar arithmetic contract (docs/ARITHMETIC.md), for host and device alike. */
#pragma once
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ARITH static inline __host__ __device__
#else
#define ARITH static inline __attribute__((always_inline))
#endif

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
