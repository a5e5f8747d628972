/* One number for all 2^32 results of exp or log, for the CPU variants and for CUDA alike.
 *
 * The inputs are the FP32 bit patterns ascending, in blocks of ARITH_BLOCK. A block's results,
 * every NaN replaced by the one quiet NaN, are hashed with XXH3-64; the hash of the block hashes in
 * ascending order is the function's. So blocks can be made in any order and on any thread.
 *
 * The expected hashes are those of the results that tests/slow_arith.c has compared with MPFR. */
#pragma once
#include <stdint.h>
#include <xxhash.h>
#include "kernels/arith.h"

#define ARITH_BLOCK ((int64_t)1 << 16)
#define ARITH_BLOCKS ((int64_t)1 << 16)

#define ARITH_EXP_HASH 0x8708c723aa1f74c2u
#define ARITH_LOG_HASH 0x9d1531a0fb5712fbu

static inline void arith_block_inputs(int64_t block, float *inputs)
{
    for (int64_t i = 0; i < ARITH_BLOCK; i++)
        inputs[i] = f32_from_bits((uint32_t)(block * ARITH_BLOCK + i));
}

/* Makes every NaN the same one. */
static inline void arith_block_canonical(float *results)
{
    for (int64_t i = 0; i < ARITH_BLOCK; i++) {
        uint32_t bits = f32_bits(results[i]);
        results[i] = f32_from_bits((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits);
    }
}

static inline uint64_t arith_block_hash(float *results)
{
    arith_block_canonical(results);
    return XXH3_64bits(results, (size_t)ARITH_BLOCK * sizeof *results);
}

static inline uint64_t arith_combine_hashes(const uint64_t *block_hashes)
{
    return XXH3_64bits(block_hashes, (size_t)ARITH_BLOCKS * sizeof *block_hashes);
}
