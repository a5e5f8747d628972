/* Inputs are a pure function of (seed, tensor, index): any rank, any process and the reference can
 * make any slice of any tensor, and nothing depends on rank count or launch shape. The generator is
 * a counter hashed by SplitMix64's finaliser; the values are exactly representable in BF16 when
 * asked for, so an FP32 and a BF16 problem may share them. */
#pragma once
#include <stdint.h>

/* 64 random bits for one element. */
uint64_t seed_bits(uint64_t seed, uint32_t tensor, int64_t index);

/* Uniform in [-scale, scale): element `index` of tensor `tensor`. */
float seed_f32(uint64_t seed, uint32_t tensor, int64_t index, float scale);

/* The same value rounded to BF16 (to nearest even). */
uint16_t seed_bf16(uint64_t seed, uint32_t tensor, int64_t index, float scale);

/* Integer uniform in [0, bound), bound >= 1. */
int64_t seed_index(uint64_t seed, uint32_t tensor, int64_t index, int64_t bound);

/* Elements first .. first+count-1 into out. */
void seed_fill_f32(
    float *out, uint64_t seed, uint32_t tensor, int64_t first, int64_t count, float scale);
void seed_fill_bf16(
    uint16_t *out, uint64_t seed, uint32_t tensor, int64_t first, int64_t count, float scale);
