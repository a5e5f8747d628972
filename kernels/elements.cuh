/* What the CUDA kernels share: elements of either storage type, singly and in packs; kernels that
 * treat every element alike; and rows, each the work of one warp, whose 32 threads are the lanes of
 * docs/ARITHMETIC.md, rule 6.
 *
 * Memory is what these kernels wait for, so that they touch every byte once and 16 bytes at a time
 * where addresses allow it, and element by element where they do not. */
#pragma once
#include "kernels/launch.cuh"
extern "C" {
#include "kernels/arith.h"
}

enum {
    WARP = ARITH_LANES,
    WHOLE_WARP = -1, /* a mask of all its threads */
    PACK = 8,        /* elements: 16 bytes of BF16, twice as many of FP32 */
    PACK_ALIGNMENT = 16,
    BLOCK_THREADS = 256
};

static inline __host__ __device__ int64_t parts_of(int64_t count, int64_t part)
{
    return (count + part - 1) / part;
}

static inline __host__ __device__ bool pack_aligned(const void *address)
{
    return (uintptr_t)address % PACK_ALIGNMENT == 0;
}

/* ---- elements and packs ----------------------------------------------------------------------
 * N is 1, or PACK where the address of element `at` is aligned. */

template <enum dtype TYPE, int N>
__device__ inline void load(const void *array, int64_t at, float (&values)[N])
{
    static_assert(N == 1 || N == PACK, "an element or a pack");
    if constexpr (TYPE == DTYPE_F32) {
        const float *from = (const float *)array + at;
        if constexpr (N == 1) {
            values[0] = *from;
        } else {
            const float4 low = ((const float4 *)from)[0], high = ((const float4 *)from)[1];
            values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
            values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
        }
    } else {
        const uint16_t *from = (const uint16_t *)array + at;
        if constexpr (N == 1) {
            values[0] = bf16_to_f32(*from);
        } else {
            const uint4 raw = *(const uint4 *)from;
            const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
            for (int i = 0; i < PACK / 2; i++) {
                values[2 * i] = bf16_to_f32((uint16_t)words[i]);
                values[2 * i + 1] = bf16_to_f32((uint16_t)(words[i] >> 16));
            }
        }
    }
}

template <enum dtype TYPE, int N>
__device__ inline void store(void *array, int64_t at, const float (&values)[N])
{
    static_assert(N == 1 || N == PACK, "an element or a pack");
    if constexpr (TYPE == DTYPE_F32) {
        float *to = (float *)array + at;
        if constexpr (N == 1) {
            *to = values[0];
        } else {
            ((float4 *)to)[0] = make_float4(values[0], values[1], values[2], values[3]);
            ((float4 *)to)[1] = make_float4(values[4], values[5], values[6], values[7]);
        }
    } else {
        uint16_t *to = (uint16_t *)array + at;
        if constexpr (N == 1) {
            *to = f32_to_bf16(values[0]);
        } else {
            uint32_t words[PACK / 2];
            for (int i = 0; i < PACK / 2; i++)
                words[i] = f32_to_bf16(values[2 * i]) | (uint32_t)f32_to_bf16(values[2 * i + 1])
                                                            << 16;
            *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

template <enum dtype TYPE> __device__ inline float element(const void *array, int64_t at)
{
    float value[1];
    load<TYPE>(array, at, value);
    return value[0];
}

/* ---- every element alike ---------------------------------------------------------------------
 * An Operation is a launch's arguments with a method apply<N>(at), which makes elements
 * [at, at + N). A thread makes one pack, or one of the elements that are in none. */

template <class Operation>
__global__ void __launch_bounds__(BLOCK_THREADS)
    each_element(const Operation operation, const int64_t packs, const int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (i < packs)
        operation.template apply<PACK>(i * PACK);
    else if (packs * PACK + (i - packs) < count)
        operation.template apply<1>(packs * PACK + (i - packs));
}

/* aligned: every array of the operation is. */
template <class Operation>
static int launch_each(const Operation &operation, int64_t count, bool aligned, void *stream)
{
    const int64_t packs = aligned ? count / PACK : 0;
    const int64_t threads = packs + (count - packs * PACK);
    if (count <= 0)
        return cudaSuccess;
    return launch(each_element<Operation>, dim3((unsigned)parts_of(threads, BLOCK_THREADS)),
        dim3(BLOCK_THREADS), 0, (cudaStream_t)stream, operation, packs, count);
}

/* ---- threads along a row ---------------------------------------------------------------------
 * A block is threads_along(units) threads by as many rows as it holds then: a power of two that
 * does not leave half of them without a unit of their row. */

static inline int threads_along(int64_t units)
{
    int threads = 1;
    while (threads < units && threads < BLOCK_THREADS)
        threads *= 2;
    return threads;
}

/* ---- a warp for each row --------------------------------------------------------------------- */

/* A thread's row and its place in the warp. */
__device__ inline int64_t warp_row(int warps)
{
    return (int64_t)blockIdx.x * warps + threadIdx.x / WARP;
}

__device__ inline int warp_lane(void)
{
    return threadIdx.x % WARP;
}

/* Rule 6 over the lanes: pairwise at distance 16, 8, 4, 2, 1. Every lane gets the sum. */
template <typename T> __device__ inline T add_lanes(T value)
{
    for (int distance = WARP / 2; distance; distance /= 2)
        value = value + __shfl_down_sync((unsigned)WHOLE_WARP, value, distance);
    return __shfl_sync((unsigned)WHOLE_WARP, value, 0);
}

__device__ inline float max_lanes(float value)
{
    for (int distance = WARP / 2; distance; distance /= 2)
        value = arith_max(value, __shfl_xor_sync((unsigned)WHOLE_WARP, value, distance));
    return value;
}

/* How a launch divides rows. A warp reads rows that it needs twice or lane by lane once, 16 bytes
 * at a time, into shared memory; rows that do not fit there it reads where they are. */
struct row_launch {
    int warps;            /* of a block */
    int64_t staged_rows;  /* that a warp holds in shared memory; 0 = they do not fit */
    int64_t staged_bytes; /* of one of them, up to the next pack */
};

static inline row_launch plan_rows(int64_t row_bytes, int64_t staged_rows)
{
    const int64_t bytes = parts_of(row_bytes, PACK_ALIGNMENT) * PACK_ALIGNMENT;
    const int64_t most_warps = bytes ? SHARED_BYTES_UNASKED / (bytes * staged_rows) : 4;
    if (!most_warps)
        return {4, 0, 0};
    return {most_warps < 4 ? (int)most_warps : 4, staged_rows, bytes};
}

static inline dim3 row_blocks(const row_launch &plan, int64_t rows)
{
    return dim3((unsigned)parts_of(rows, plan.warps));
}

static inline dim3 row_threads(const row_launch &plan)
{
    return dim3((unsigned)plan.warps * WARP);
}

/* At least a pack: the kernels name their shared memory whether or not they use it. */
static inline size_t row_shared_bytes(const row_launch &plan)
{
    const int64_t bytes = plan.warps * plan.staged_rows * plan.staged_bytes;
    return bytes ? (size_t)bytes : (size_t)PACK_ALIGNMENT;
}

/* Row `number` of the warp, of row_bytes (even), copied to shared memory; or where it is. Whoever
 * reads it waits (__syncwarp) after the last. */
__device__ inline const void *stage_row(
    const row_launch &plan, char *shared, int number, const void *row, int64_t row_bytes)
{
    if (!plan.staged_rows)
        return row;
    char *staged = shared + (threadIdx.x / WARP * plan.staged_rows + number) * plan.staged_bytes;
    const int64_t packs = pack_aligned(row) ? row_bytes / PACK_ALIGNMENT : 0;
    for (int64_t i = warp_lane(); i < packs; i += WARP)
        ((uint4 *)staged)[i] = ((const uint4 *)row)[i];
    for (int64_t i = packs * PACK_ALIGNMENT / 2 + warp_lane(); i < row_bytes / 2; i += WARP)
        ((uint16_t *)staged)[i] = ((const uint16_t *)row)[i];
    return staged;
}
