/* A block's tile of a matrix product on FP32 cores, in the one order of docs/ARITHMETIC.md, rule 3.
 *
 * A block makes EDGE x EDGE elements of C: 128 x 128, or 64 x 64 where the product is small. It
 * walks along k in slabs of DEPTH; while it multiplies one slab out of shared memory, the next is
 * on its way from global memory in registers, and is put into the other half of shared memory when
 * that is free: one barrier per slab. Shared memory holds FP32, rows of A and columns of B side by
 * side for each k, whatever layout and type they come from.
 *
 *     a thread's elements: EDGE/16 x 8, in pieces of 4 x 4, 32 rows and 16 columns apart
 *     a warp's elements:   EDGE/2 x 32, its threads 8 x 4; so that its reads of shared memory are
 *                          16 bytes a thread, without conflicts
 *
 * Every element is one chain, fmaf by fmaf, k ascending, in one register of one thread: it depends
 * on its row of A, its column of B and its start, and not on EDGE, on the grid or on other rows.
 *
 * There is no code for a last, shorter slab. What lies past the end of k is -0 in A and +0 in B:
 * fmaf(-0, +0, c) is c for every c, -0 included. */
#pragma once
#include "kernels/elements.cuh"
extern "C" {
#include "kernels/gemm.h"
}

enum {
    DEPTH = 16, /* of a slab */
    PIECE = 8,  /* elements of an operand that a thread fetches: 16 bytes, or twice as many */
    COLUMNS_EACH = 8,
    SMALL_EDGE = 64,
    LARGE_EDGE = 128,
    FEW_TILES = 132 /* multiprocessors of a large GPU: with fewer large tiles, small ones */
};

static constexpr __host__ __device__ int tile_threads(int edge)
{
    return 2 * edge; /* so that each fetches one piece of both operands */
}

static constexpr __host__ __device__ int rows_each(int edge)
{
    return edge / 16;
}

/* Two blocks of large tiles to a multiprocessor, so that one computes while the other waits. */
static constexpr __host__ __device__ int tile_blocks(int edge)
{
    return edge == LARGE_EDGE ? 2 : 4;
}

/* One operand: rows of A, or columns of B, by k. Element (row, k) lies at row * ld + k where k is
 * `along`, else at k * ld + row. */
struct gemm_operand {
    const char *from;
    int64_t rows, ld;
    enum dtype type;
    bool along;   /* k runs along memory */
    bool aligned; /* every PIECE begins on 16 bytes */
};

static inline __host__ __device__ struct gemm_operand gemm_operand(
    const void *from, enum dtype type, int64_t rows, int64_t ld, bool along)
{
    const bool aligned = pack_aligned(from) && ld * dtype_bytes(type) % PACK_ALIGNMENT == 0;
    struct gemm_operand operand = {(const char *)from, rows, ld, type, along, aligned};
    return operand;
}

/* Both halves of a block's shared memory. */
template <int EDGE> struct alignas(16) gemm_slabs {
    float a[2][DEPTH][EDGE];
    float b[2][DEPTH][EDGE];
};

/* ---- from global to shared memory ------------------------------------------------------------ */

/* PIECE elements as they are stored: FP32 in all words, BF16 two to a word in the first four. */
struct gemm_piece {
    uint32_t words[PIECE];
};

/* Where in a slab a thread's piece begins. */
struct piece_place {
    int row, k;
};

template <int EDGE> __device__ inline piece_place place_of(const struct gemm_operand &operand)
{
    const int thread = (int)threadIdx.x, pieces_of_k = DEPTH / PIECE, pieces_of_rows = EDGE / PIECE;
    if (operand.along)
        return {thread / pieces_of_k, thread % pieces_of_k * PIECE};
    return {thread % pieces_of_rows * PIECE, thread / pieces_of_rows};
}

__device__ inline void fetch_words(const char *from, uint32_t *words)
{
    const uint4 raw = *(const uint4 *)from;
    words[0] = raw.x, words[1] = raw.y, words[2] = raw.z, words[3] = raw.w;
}

/* The first `present` elements, and zeros of the sign bit `zero` after them. */
__device__ inline void fetch_present(
    const char *from, enum dtype type, int64_t present, uint32_t zero, uint32_t *words)
{
    for (int i = 0; i < PIECE; i++) {
        if (type == DTYPE_F32) {
            words[i] = i < present ? ((const uint32_t *)from)[i] : zero;
        } else {
            const uint32_t half = i < present ? ((const uint16_t *)from)[i] : zero >> 16;
            words[i / 2] = i % 2 ? words[i / 2] | half << 16 : half;
        }
    }
}

/* The thread's piece of the slab of rows from first_row on, k from first_k to k_end. */
template <int EDGE>
__device__ inline void fetch(const struct gemm_operand &operand, int64_t first_row, int64_t first_k,
    int64_t k_end, uint32_t zero, struct gemm_piece *piece)
{
    const piece_place place = place_of<EDGE>(operand);
    const int64_t row = first_row + place.row, k = first_k + place.k;
    const int64_t rows_left = operand.rows - row, k_left = k_end - k;
    int64_t present = operand.along ? k_left : rows_left;
    if ((operand.along ? rows_left : k_left) <= 0)
        present = 0;
    const int64_t at = operand.along ? row * operand.ld + k : k * operand.ld + row;
    const char *from = operand.from + at * dtype_bytes(operand.type);
    if (present >= PIECE && operand.aligned) {
        fetch_words(from, piece->words);
        if (operand.type == DTYPE_F32)
            fetch_words(from + PACK_ALIGNMENT, piece->words + 4);
    } else {
        fetch_present(from, operand.type, present, zero, piece->words);
    }
}

template <int EDGE>
__device__ inline void put(
    const struct gemm_operand &operand, const struct gemm_piece &piece, float (*slab)[EDGE])
{
    float values[PIECE];
    for (int i = 0; i < PIECE; i++) {
        const uint32_t half = piece.words[i / 2] >> (i % 2 * 16);
        values[i] =
            operand.type == DTYPE_F32 ? f32_from_bits(piece.words[i]) : bf16_to_f32((uint16_t)half);
    }
    const piece_place place = place_of<EDGE>(operand);
    if (operand.along)
        for (int i = 0; i < PIECE; i++)
            slab[place.k + i][place.row] = values[i];
    else
        store<DTYPE_F32>(slab[place.k], place.row, values);
}

/* ---- the chains ------------------------------------------------------------------------------ */

/* A thread's chains and where in the tile they are: element (i, j) is row
 * first_row + i / 4 * 32 + i % 4 and column first_column + j / 4 * 16 + j % 4. */
template <int EDGE> struct gemm_sums {
    float sum[rows_each(EDGE)][COLUMNS_EACH];
    int first_row, first_column;
};

template <int EDGE> __device__ inline void start_sums(struct gemm_sums<EDGE> *sums)
{
    const int warp = (int)threadIdx.x / WARP, lane = warp_lane();
    sums->first_row = warp % 2 * (EDGE / 2) + lane / 4 * 4;
    sums->first_column = warp / 2 * 32 + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < rows_each(EDGE); i++)
#pragma unroll
        for (int j = 0; j < COLUMNS_EACH; j++)
            sums->sum[i][j] = 0.0f;
}

__device__ inline void read_four(const float *from, float *values)
{
    const float4 four = *(const float4 *)from;
    values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
}

template <int EDGE>
__device__ inline void multiply_slab(
    const float (*a)[EDGE], const float (*b)[EDGE], struct gemm_sums<EDGE> *sums)
{
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        float rows[rows_each(EDGE)], columns[COLUMNS_EACH];
#pragma unroll
        for (int i = 0; i < rows_each(EDGE); i += 4)
            read_four(&a[k][sums->first_row + i * 8], &rows[i]);
#pragma unroll
        for (int j = 0; j < COLUMNS_EACH; j += 4)
            read_four(&b[k][sums->first_column + j * 4], &columns[j]);
#pragma unroll
        for (int i = 0; i < rows_each(EDGE); i++)
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; j++)
                sums->sum[i][j] = fmaf(rows[i], columns[j], sums->sum[i][j]);
    }
}

/* Continues the chains of the tile at (row, column) over k of a[row, k] * b[column, k]. All threads
 * of the block. */
template <int EDGE>
__device__ inline void add_chain(struct gemm_slabs<EDGE> *slabs, const struct gemm_operand &a,
    const struct gemm_operand &b, int64_t row, int64_t column, int64_t k,
    struct gemm_sums<EDGE> *sums)
{
    const uint32_t minus_zero = 0x80000000u, plus_zero = 0;
    struct gemm_piece next_a, next_b;
    if (k <= 0)
        return;
    fetch<EDGE>(a, row, 0, k, minus_zero, &next_a);
    fetch<EDGE>(b, column, 0, k, plus_zero, &next_b);
    put<EDGE>(a, next_a, slabs->a[0]);
    put<EDGE>(b, next_b, slabs->b[0]);
    __syncthreads();
    int half = 0;
    for (int64_t at = 0; at < k; at += DEPTH, half = 1 - half) {
        const bool more = at + DEPTH < k;
        if (more) {
            fetch<EDGE>(a, row, at + DEPTH, k, minus_zero, &next_a);
            fetch<EDGE>(b, column, at + DEPTH, k, plus_zero, &next_b);
        }
        multiply_slab<EDGE>(slabs->a[half], slabs->b[half], sums);
        if (more) {
            put<EDGE>(a, next_a, slabs->a[1 - half]);
            put<EDGE>(b, next_b, slabs->b[1 - half]);
        }
        __syncthreads();
    }
}

/* ---- the result ------------------------------------------------------------------------------ */

/* The matrix that a tile belongs to; only its rows and columns are touched. */
struct gemm_result {
    void *to;
    enum dtype type;
    int64_t rows, columns, ld;
};

/* Calls visit(four, at, count) for the thread's sums of the tile at (row, column), four columns at
 * a time, of which the first `count` exist, from element `at` of the result on. */
template <int EDGE, class Visit>
__device__ inline void each_four(struct gemm_sums<EDGE> *sums, const struct gemm_result &result,
    int64_t row, int64_t column, Visit visit)
{
#pragma unroll
    for (int i = 0; i < rows_each(EDGE); i++) {
        const int64_t to_row = row + sums->first_row + i / 4 * 32 + i % 4;
#pragma unroll
        for (int j = 0; j < COLUMNS_EACH; j += 4) {
            const int64_t to_column = column + sums->first_column + j * 4;
            const int64_t left = result.columns - to_column;
            if (to_row < result.rows && left > 0)
                visit(&sums->sum[i][j], to_row * result.ld + to_column, left < 4 ? (int)left : 4);
        }
    }
}

/* Makes every sum combine(sum, what the FP32 result holds there). */
template <int EDGE, class Combine>
__device__ inline void take_result(struct gemm_sums<EDGE> *sums, const struct gemm_result &result,
    int64_t row, int64_t column, Combine combine)
{
    const bool aligned = pack_aligned(result.to) && result.ld % 4 == 0;
    each_four(sums, result, row, column, [&](float *sum, int64_t at, int count) {
        const float *from = (const float *)result.to + at;
        float held[4];
        if (aligned && count == 4)
            read_four(from, held);
        else
            for (int i = 0; i < 4; i++)
                held[i] = i < count ? from[i] : 0.0f;
        for (int i = 0; i < 4; i++)
            sum[i] = combine(sum[i], held[i]);
    });
}

__device__ inline void put_four(
    const struct gemm_result &result, const float *sum, int64_t at, int count, bool aligned)
{
    if (result.type == DTYPE_F32) {
        float *to = (float *)result.to + at;
        if (aligned && count == 4)
            *(float4 *)to = make_float4(sum[0], sum[1], sum[2], sum[3]);
        else
            for (int i = 0; i < 4; i++)
                if (i < count)
                    to[i] = sum[i];
    } else {
        uint16_t *to = (uint16_t *)result.to + at, four[4];
        for (int i = 0; i < 4; i++)
            four[i] = f32_to_bf16(sum[i]);
        if (aligned && count == 4)
            *(uint2 *)to =
                make_uint2(four[0] | (uint32_t)four[1] << 16, four[2] | (uint32_t)four[3] << 16);
        else
            for (int i = 0; i < 4; i++)
                if (i < count)
                    to[i] = four[i];
    }
}

template <int EDGE>
__device__ inline void put_result(
    struct gemm_sums<EDGE> *sums, const struct gemm_result &result, int64_t row, int64_t column)
{
    const bool aligned = pack_aligned(result.to) && result.ld % 4 == 0;
    each_four(sums, result, row, column, [&](const float *sum, int64_t at, int count) {
        put_four(result, sum, at, count, aligned);
    });
}

/* The whole of a tile under `init`: its start, one chain, its end. */
template <int EDGE>
__device__ inline void make_tile(struct gemm_slabs<EDGE> *slabs, enum gemm_init init,
    const struct gemm_operand &a, const struct gemm_operand &b, int64_t k,
    const struct gemm_result &result, int64_t row, int64_t column)
{
    struct gemm_sums<EDGE> sums;
    start_sums(&sums);
    if (init == GEMM_CHAIN)
        take_result(&sums, result, row, column, [](float, float held) { return held; });
    add_chain(slabs, a, b, row, column, k, &sums);
    if (init == GEMM_ADD)
        take_result(&sums, result, row, column, [](float sum, float held) { return held + sum; });
    put_result(&sums, result, row, column);
}
