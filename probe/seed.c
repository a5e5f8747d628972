/* Seeded inputs by counter, not by sequence: element i costs the same wherever a slice begins.
 *
 * Two rounds of SplitMix64's finaliser: the seed and the tensor give a key, the key and the index
 * give the element. Each round adds a multiple of the golden ratio's odd fraction first, so that
 * neighbouring counters differ in half of their bits before they are mixed. */
#include "probe/seed.h"
#include <assert.h>
#include <string.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline uint64_t tensor_key(uint64_t seed, uint32_t tensor)
{
    return mix(mix(seed + GOLDEN) + GOLDEN * ((uint64_t)tensor + 1));
}

static inline uint64_t element_bits(uint64_t key, int64_t index)
{
    return mix(key + GOLDEN * ((uint64_t)index + 1));
}

/* The top 24 bits as a signed fraction k/2^23, k in [-2^23, 2^23): exact in FP32. The product with
 * the scale rounds once and stays below the scale, which is a whole ulp or more away. */
static inline float uniform(uint64_t bits, float scale)
{
    int32_t fraction = (int32_t)(bits >> 40) - (1 << 23);
    return (float)fraction * (scale * 0x1p-23f);
}

/* To nearest even; the values here are finite. */
static inline uint16_t round_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint64_t seed_bits(uint64_t seed, uint32_t tensor, int64_t index)
{
    return element_bits(tensor_key(seed, tensor), index);
}

float seed_f32(uint64_t seed, uint32_t tensor, int64_t index, float scale)
{
    return uniform(seed_bits(seed, tensor, index), scale);
}

uint16_t seed_bf16(uint64_t seed, uint32_t tensor, int64_t index, float scale)
{
    return round_bf16(seed_f32(seed, tensor, index, scale));
}

/* The high half of a 64x64-bit product: no division, and each result's share is off by less than
 * bound / 2^64. */
int64_t seed_index(uint64_t seed, uint32_t tensor, int64_t index, int64_t bound)
{
    assert(bound >= 1);
    unsigned __int128 product = (unsigned __int128)seed_bits(seed, tensor, index) * (uint64_t)bound;
    return (int64_t)(product >> 64);
}

void seed_fill_f32(
    float *out, uint64_t seed, uint32_t tensor, int64_t first, int64_t count, float scale)
{
    uint64_t key = tensor_key(seed, tensor);
    for (int64_t i = 0; i < count; i++)
        out[i] = uniform(element_bits(key, first + i), scale);
}

void seed_fill_bf16(
    uint16_t *out, uint64_t seed, uint32_t tensor, int64_t first, int64_t count, float scale)
{
    uint64_t key = tensor_key(seed, tensor);
    for (int64_t i = 0; i < count; i++)
        out[i] = round_bf16(uniform(element_bits(key, first + i), scale));
}
