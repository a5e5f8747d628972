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

/* One operand: rows of A, or columns of B, by k. Element (row, k) lies at row * ld + k where k runs
 * ALONG memory, else at k * ld + row. */
template <bool ALONG> struct gemm_operand {
    const char *from;
    int64_t rows, ld;
    enum dtype type;
    bool aligned; /* every PIECE begins on 16 bytes */
};

template <bool ALONG>
__device__ inline gemm_operand<ALONG> make_operand(
    const void *from, enum dtype type, int64_t rows, int64_t ld)
{
    const bool aligned = pack_aligned(from) && ld * dtype_bytes(type) % PACK_ALIGNMENT == 0;
    return {(const char *)from, rows, ld, type, aligned};
}

/* The tile that a block makes: its number in either direction, and of which product. */
struct gemm_tile {
    int row, column, product;
};

/* A block's shared memory: both halves of the slabs. The tile is there too, to be read again after
 * the chains instead of being kept in registers, of which the chains leave none. */
template <int EDGE> struct alignas(16) gemm_slabs {
    float a[2][DEPTH][EDGE];
    float b[2][DEPTH][EDGE];
    struct gemm_tile tile;
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

template <int EDGE, bool ALONG> __device__ inline piece_place place_of(void)
{
    const int thread = (int)threadIdx.x, pieces_of_k = DEPTH / PIECE, pieces_of_rows = EDGE / PIECE;
    if (ALONG)
        return {thread / pieces_of_k, thread % pieces_of_k * PIECE};
    return {thread % pieces_of_rows * PIECE, thread / pieces_of_rows};
}

/* A thread's way through the slabs of an operand: where its piece of the next one begins, and how
 * many rows there are from there on. */
struct gemm_walk {
    const char *from;
    int rows_left;
};

__device__ inline int at_most(int64_t count, int most)
{
    return count < most ? (int)count : most;
}

template <int EDGE, bool ALONG>
__device__ inline gemm_walk start_walk(const gemm_operand<ALONG> &operand, int64_t first_row)
{
    const piece_place place = place_of<EDGE, ALONG>();
    const int64_t row = first_row + place.row;
    const int64_t at = ALONG ? row * operand.ld + place.k : place.k * operand.ld + row;
    return {operand.from + at * dtype_bytes(operand.type), at_most(operand.rows - row, PIECE)};
}

/* Whether the piece is fetched whole, 16 bytes at a time. */
template <bool ALONG>
__device__ inline bool whole_piece(
    const gemm_operand<ALONG> &operand, const struct gemm_walk &walk, int depth)
{
    return operand.aligned && depth == DEPTH && walk.rows_left >= (ALONG ? 1 : PIECE);
}

__device__ inline void fetch_words(const char *from, uint32_t *words)
{
    const uint4 raw = *(const uint4 *)from;
    words[0] = raw.x, words[1] = raw.y, words[2] = raw.z, words[3] = raw.w;
}

/* Sends for the thread's piece of a slab. */
template <bool ALONG>
__device__ inline void fetch(const gemm_operand<ALONG> &operand, const struct gemm_walk &walk,
    int depth, struct gemm_piece *piece)
{
    if (!whole_piece(operand, walk, depth))
        return;
    fetch_words(walk.from, piece->words);
    if (operand.type == DTYPE_F32)
        fetch_words(walk.from + PACK_ALIGNMENT, piece->words + 4);
}

template <int EDGE, bool ALONG>
__device__ inline void put_whole(
    const gemm_operand<ALONG> &operand, const struct gemm_piece &piece, float (*slab)[EDGE])
{
    const piece_place place = place_of<EDGE, ALONG>();
    float values[PIECE];
    for (int i = 0; i < PIECE; i++) {
        const uint32_t half = piece.words[i / 2] >> (i % 2 * 16);
        values[i] =
            operand.type == DTYPE_F32 ? f32_from_bits(piece.words[i]) : bf16_to_f32((uint16_t)half);
    }
    if (ALONG)
        for (int i = 0; i < PIECE; i++)
            slab[place.k + i][place.row] = values[i];
    else
        store<DTYPE_F32>(slab[place.k], place.row, values);
}

/* A piece at an end of the operand, or unaligned: element by element, and `zero` for what is past
 * the end. */
template <int EDGE, bool ALONG>
__device__ inline void put_present(const gemm_operand<ALONG> &operand, const struct gemm_walk &walk,
    int depth, float zero, float (*slab)[EDGE])
{
    const piece_place place = place_of<EDGE, ALONG>();
    const int k_present = at_most(depth - place.k, PIECE);
    const int across = ALONG ? walk.rows_left : k_present;
    const int present = across <= 0 ? 0 : ALONG ? k_present : walk.rows_left;
    float *to = &slab[place.k][place.row];
#pragma unroll 1
    for (int i = 0; i < PIECE; i++) {
        float value = zero;
        if (i < present)
            value = operand.type == DTYPE_F32 ? element<DTYPE_F32>(walk.from, i)
                                              : element<DTYPE_BF16>(walk.from, i);
        to[ALONG ? i * EDGE : i] = value;
    }
}

/* Puts what was fetched into the slab, and goes on to the next. */
template <int EDGE, bool ALONG>
__device__ inline void put(const gemm_operand<ALONG> &operand, struct gemm_walk *walk, int depth,
    const struct gemm_piece &piece, float zero, float (*slab)[EDGE])
{
    if (whole_piece(operand, *walk, depth))
        put_whole(operand, piece, slab);
    else
        put_present(operand, *walk, depth, zero, slab);
    walk->from += (ALONG ? 1 : operand.ld) * DEPTH * dtype_bytes(operand.type);
}

/* ---- the chains ------------------------------------------------------------------------------ */

/* A thread's chains. */
template <int EDGE> struct gemm_sums {
    float sum[rows_each(EDGE)][COLUMNS_EACH];
};

/* Where in the tile they are: chain (i, j) is in row + i / 4 * 32 + i % 4 and in
 * column + j / 4 * 16 + j % 4. */
struct chain_place {
    int row, column;
};

template <int EDGE> __device__ inline chain_place chains_of(int thread)
{
    const int warp = thread / WARP, lane = thread % WARP;
    return {warp % 2 * (EDGE / 2) + lane / 4 * 4, warp / 2 * 32 + lane % 4 * 4};
}

template <int EDGE> __device__ inline void start_sums(struct gemm_sums<EDGE> *sums)
{
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

/* The first half of a slab; the second begins DEPTH / 2 further on. Two values of k at a time: a
 * compiler that sees more fetches more than there are registers for; the warps of a multiprocessor
 * cover each other's waits. */
template <int EDGE>
__device__ inline void multiply_half(
    const float (*a)[EDGE], const float (*b)[EDGE], struct gemm_sums<EDGE> *sums)
{
    const chain_place place = chains_of<EDGE>((int)threadIdx.x);
#pragma unroll 2
    for (int k = 0; k < DEPTH / 2; k++) {
        float rows[rows_each(EDGE)], columns[COLUMNS_EACH];
#pragma unroll
        for (int i = 0; i < rows_each(EDGE); i += 4)
            read_four(&a[k][place.row + i * 8], &rows[i]);
#pragma unroll
        for (int j = 0; j < COLUMNS_EACH; j += 4)
            read_four(&b[k][place.column + j * 4], &columns[j]);
#pragma unroll
        for (int i = 0; i < rows_each(EDGE); i++)
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; j++)
                sums->sum[i][j] = fmaf(rows[i], columns[j], sums->sum[i][j]);
    }
}

/* Continues the tile's chains over k of a[row, k] * b[column, k]. All threads of the block, which
 * have met since the tile was set. */
template <int EDGE, bool A_ALONG, bool B_ALONG>
__device__ inline void add_chain(struct gemm_slabs<EDGE> *slabs, const gemm_operand<A_ALONG> &a,
    const gemm_operand<B_ALONG> &b, int64_t k, struct gemm_sums<EDGE> *sums)
{
    if (k <= 0)
        return;
    int to_come = (int)parts_of(k, DEPTH) - 1; /* slabs after the one that is multiplied */
    const int last_depth = (int)(k - (int64_t)to_come * DEPTH);
    struct gemm_walk walk_a = start_walk<EDGE>(a, (int64_t)slabs->tile.row * EDGE);
    struct gemm_walk walk_b = start_walk<EDGE>(b, (int64_t)slabs->tile.column * EDGE);
    struct gemm_piece piece;
    int depth = to_come ? DEPTH : last_depth, half = 0;
    fetch(a, walk_a, depth, &piece);
    put(a, &walk_a, depth, piece, -0.0f, slabs->a[0]);
    fetch(b, walk_b, depth, &piece);
    put(b, &walk_b, depth, piece, 0.0f, slabs->b[0]);
    __syncthreads();
    for (; to_come >= 0; to_come--, half = 1 - half) {
        const float(*slab_a)[EDGE] = slabs->a[half], (*slab_b)[EDGE] = slabs->b[half];
        depth = to_come > 1 ? DEPTH : last_depth;
        if (to_come)
            fetch(a, walk_a, depth, &piece);
        multiply_half<EDGE>(slab_a, slab_b, sums);
        if (to_come) {
            put(a, &walk_a, depth, piece, -0.0f, slabs->a[1 - half]);
            fetch(b, walk_b, depth, &piece);
        }
        multiply_half<EDGE>(slab_a + DEPTH / 2, slab_b + DEPTH / 2, sums);
        if (to_come)
            put(b, &walk_b, depth, piece, 0.0f, slabs->b[1 - half]);
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

/* The thread's number as if it were new: what is computed from it is computed again, instead of
 * being kept in registers that the chains need. */
__device__ inline int thread_anew(void)
{
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

/* Calls visit(four, at, count) for the thread's sums, four columns at a time, of which the first
 * `count` exist, from element `at` of the result on. */
template <int EDGE, class Visit>
__device__ inline void each_four(struct gemm_sums<EDGE> *sums, const struct gemm_result &result,
    const struct gemm_tile &tile, Visit visit)
{
    const chain_place place = chains_of<EDGE>(thread_anew());
    const int64_t row = (int64_t)tile.row * EDGE + place.row;
    const int64_t column = (int64_t)tile.column * EDGE + place.column;
    const int rows_left = at_most(result.rows - row, EDGE);
    const int columns_left = at_most(result.columns - column, EDGE);
    int64_t at = row * result.ld + column;
#pragma unroll
    for (int i = 0; i < rows_each(EDGE); i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS_EACH; j += 4)
            if (i / 4 * 32 + i % 4 < rows_left && j * 4 < columns_left)
                visit(&sums->sum[i][j], at + j * 4, at_most(columns_left - j * 4, 4));
        at += (i % 4 == 3 ? 32 - 3 : 1) * result.ld;
    }
}

__device__ inline bool four_aligned(const struct gemm_result &result)
{
    return pack_aligned(result.to) && result.ld % 4 == 0;
}

/* What an FP32 result holds. */
__device__ inline void get_four(
    const struct gemm_result &result, int64_t at, int count, bool aligned, float *held)
{
    const float *from = (const float *)result.to + at;
    if (aligned && count == 4)
        read_four(from, held);
    else
        for (int i = 0; i < 4; i++)
            held[i] = i < count ? from[i] : 0.0f;
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

/* The sums begin with what the result holds. */
template <int EDGE>
__device__ inline void take_result(
    struct gemm_sums<EDGE> *sums, const struct gemm_result &result, const struct gemm_tile &tile)
{
    const bool aligned = four_aligned(result);
    each_four(sums, result, tile,
        [&](float *sum, int64_t at, int count) { get_four(result, at, count, aligned, sum); });
}

/* Stores the sums, or with `add` what the result holds plus the sums. */
template <int EDGE>
__device__ inline void put_result(
    struct gemm_sums<EDGE> *sums, const struct gemm_result &result, struct gemm_tile tile, bool add)
{
    const bool aligned = four_aligned(result);
    each_four(sums, result, tile, [&](float *sum, int64_t at, int count) {
        if (add) {
            float held[4];
            get_four(result, at, count, aligned, held);
            for (int i = 0; i < 4; i++)
                sum[i] = held[i] + sum[i];
        }
        put_four(result, sum, at, count, aligned);
    });
}

/* What a kernel is made of: these tiles, or those of kernels/tensor_tile.cuh. */
template <int EDGE> struct exact_tiles {
    using slabs = struct gemm_slabs<EDGE>;
    using sums = struct gemm_sums<EDGE>;
    enum { edge = EDGE, threads = tile_threads(EDGE), blocks = tile_blocks(EDGE) };
};

/* The whole of a tile under `init`: its start, one chain, its end. */
template <class Tiles, bool A_ALONG, bool B_ALONG>
__device__ inline void make_tile(typename Tiles::slabs *slabs, enum gemm_init init,
    const gemm_operand<A_ALONG> &a, const gemm_operand<B_ALONG> &b, int64_t k,
    const struct gemm_result &result)
{
    typename Tiles::sums sums;
    start_sums(&sums);
    if (init == GEMM_CHAIN)
        take_result(&sums, result, slabs->tile);
    add_chain(slabs, a, b, k, &sums);
    put_result(&sums, result, slabs->tile, init == GEMM_ADD);
}
