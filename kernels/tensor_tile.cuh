/* A block's tile of a matrix product of BF16 operands on tensor cores: the fast way beside
 * kernels/gemm_tile.cuh, with functions of the same names, so that one kernel serves both.
 *
 * A tensor core adds 16 products at a time in an order and with roundings of its own: results are
 * within a bound of the exact ones and not equal to them. They depend all the same on nothing but
 * their row of A, their column of B and their start: k ascends in slabs of 32 whatever the shape.
 *
 * A block makes 128 x 128 elements, each of its eight warps 64 x 32 as 4 x 4 products of 16 x 8.
 * Shared memory holds rows of A and columns of B with k along them, both halves of two slabs; rows
 * are 80 bytes, so that the words of a fragment lie in 32 banks. Past an end everything is +0. An
 * FP32 operand whose values are BF16's is narrowed on its way there, which loses nothing. */
#pragma once
#include "kernels/gemm_tile.cuh"

enum {
    TENSOR_EDGE = 128,
    TENSOR_THREADS = 256,
    TENSOR_DEPTH = 32,
    TENSOR_ROW = TENSOR_DEPTH + 8, /* elements of a row in shared memory */
    TENSOR_K = 16,                 /* of one instruction */
    TENSOR_PIECES =
        TENSOR_EDGE * TENSOR_DEPTH / PIECE / TENSOR_THREADS /* of a thread, an operand */
};

struct alignas(16) tensor_slabs {
    uint16_t a[2][TENSOR_EDGE][TENSOR_ROW];
    uint16_t b[2][TENSOR_EDGE][TENSOR_ROW];
    struct gemm_tile tile;
};

/* Product (i, j) of the warp; element e of it is row lane / 4 + e / 2 * 8, column
 * lane % 4 * 2 + e % 2. */
struct tensor_sums {
    float sum[4][4][4];
};

/* ---- one instruction ------------------------------------------------------------------------- */

/* sum += A[16, 16] B[16, 8], a fragment of each in every lane:
 *     a[r]: row lane / 4 + r % 2 * 8, k lane % 4 * 2 + r / 2 * 8 and the next
 *     b[r]: column lane / 4,          k lane % 4 * 2 + r * 8     and the next */
#ifdef CUDA_EMULATOR

/* In the emulator the lanes hand each other their fragments, two words at a time. The sixteen
 * products are added to one another first, so that a result is near the exact one and seldom equal
 * to it. */
static inline void share_words(uint32_t low, uint32_t high, uint32_t (&words)[2][WARP])
{
    const uint64_t both = low | (uint64_t)high << 32;
    const uint64_t *all = emulated_warp_meet((unsigned)WHOLE_WARP, both, "mma", __builtin_LINE());
    for (int lane = 0; lane < WARP; lane++) {
        words[0][lane] = (uint32_t)all[lane];
        words[1][lane] = (uint32_t)(all[lane] >> 32);
    }
}

static inline void multiply_fragments(
    const uint32_t (&a)[4], const uint32_t (&b)[2], float (&sum)[4])
{
    uint32_t first[2][WARP], second[2][WARP], columns[2][WARP];
    const int lane = warp_lane();
    share_words(a[0], a[1], first);
    share_words(a[2], a[3], second);
    share_words(b[0], b[1], columns);
    for (int e = 0; e < 4; e++) {
        const int row_lane = lane / 4 * 4, column_lane = (lane % 4 * 2 + e % 2) * 4;
        float together = 0.0f;
        for (int k = 0; k < TENSOR_K; k++) {
            const int from = k % 8 / 2, shift = k % 2 * 16;
            const uint32_t row = (k < 8 ? first : second)[e / 2][row_lane + from] >> shift;
            const uint32_t column = columns[k / 8][column_lane + from] >> shift;
            together += bf16_to_f32((uint16_t)row) * bf16_to_f32((uint16_t)column);
        }
        sum[e] += together;
    }
}

#else

static __device__ inline void multiply_fragments(
    const uint32_t (&a)[4], const uint32_t (&b)[2], float (&sum)[4])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

/* ---- from global to shared memory ------------------------------------------------------------ */

/* A thread's pieces of a slab as they are stored, two elements to a word. */
struct tensor_pieces {
    uint32_t words[TENSOR_PIECES][PIECE / 2];
};

template <bool ALONG> static __device__ inline piece_place tensor_place(int piece)
{
    const int number = (int)threadIdx.x + piece * TENSOR_THREADS;
    const int pieces_of_k = TENSOR_DEPTH / PIECE, pieces_of_rows = TENSOR_EDGE / PIECE;
    if (ALONG)
        return {number / pieces_of_k, number % pieces_of_k * PIECE};
    return {number % pieces_of_rows * PIECE, number / pieces_of_rows};
}

/* How many elements of the piece exist, where the first is, and whether it is fetched whole. */
struct tensor_source {
    const char *from;
    int present;
    bool whole;
};

template <bool ALONG>
static __device__ inline tensor_source source_of(const gemm_operand<ALONG> &operand,
    const struct piece_place &place, int64_t first_row, int64_t first_k, int64_t k_end)
{
    const int64_t row = first_row + place.row, k = first_k + place.k;
    const int rows_left = at_most(operand.rows - row, PIECE), k_left = at_most(k_end - k, PIECE);
    const int across = ALONG ? rows_left : k_left, along = ALONG ? k_left : rows_left;
    const int present = across > 0 && along > 0 ? along : 0;
    const int64_t at = ALONG ? row * operand.ld + k : k * operand.ld + row;
    return {operand.from + (present ? at : 0) * dtype_bytes(operand.type), present,
        operand.aligned && present == PIECE};
}

/* The upper halves of a pair of FP32 words. */
static __device__ inline uint32_t narrowed_pair(uint32_t low, uint32_t high)
{
    return low >> 16 | (high & 0xffff0000u);
}

/* A piece that exists as a whole. */
static __device__ inline void fetch_whole(const char *from, enum dtype type, uint32_t *words)
{
    uint32_t wide[PIECE / 2];
    if (type == DTYPE_BF16) {
        fetch_words(from, words);
        return;
    }
    fetch_words(from, wide);
    words[0] = narrowed_pair(wide[0], wide[1]), words[1] = narrowed_pair(wide[2], wide[3]);
    fetch_words(from + PACK_ALIGNMENT, wide);
    words[2] = narrowed_pair(wide[0], wide[1]), words[3] = narrowed_pair(wide[2], wide[3]);
}

static __device__ inline uint32_t element_bits(const char *from, enum dtype type, int at)
{
    const void *array = from;
    return type == DTYPE_BF16 ? ((const uint16_t *)array)[at] : ((const uint32_t *)array)[at] >> 16;
}

template <bool ALONG>
static __device__ inline void fetch_pieces(const gemm_operand<ALONG> &operand, int64_t first_row,
    int64_t first_k, int64_t k_end, struct tensor_pieces *pieces)
{
#pragma unroll
    for (int i = 0; i < TENSOR_PIECES; i++) {
        const tensor_source source =
            source_of(operand, tensor_place<ALONG>(i), first_row, first_k, k_end);
        if (source.whole) {
            fetch_whole(source.from, operand.type, pieces->words[i]);
        } else {
            for (int e = 0; e < PIECE; e++) {
                const uint32_t half =
                    e < source.present ? element_bits(source.from, operand.type, e) : 0;
                pieces->words[i][e / 2] = e % 2 ? pieces->words[i][e / 2] | half << 16 : half;
            }
        }
    }
}

template <bool ALONG>
static __device__ inline void put_pieces(
    const struct tensor_pieces &pieces, uint16_t (*slab)[TENSOR_ROW])
{
#pragma unroll
    for (int i = 0; i < TENSOR_PIECES; i++) {
        const piece_place place = tensor_place<ALONG>(i);
        const uint32_t *words = pieces.words[i];
        void *to = &slab[place.row][place.k];
        if (ALONG)
            *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        else
            for (int e = 0; e < PIECE; e++)
                slab[place.row + e][place.k] = (uint16_t)(words[e / 2] >> (e % 2 * 16));
    }
}

/* ---- the sums -------------------------------------------------------------------------------- */

static __device__ inline void start_sums(struct tensor_sums *sums)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums->sum[i][j][e] = 0.0f;
}

/* Two elements of a row of a slab. */
static __device__ inline uint32_t pair_at(const uint16_t (*slab)[TENSOR_ROW], int row, int k)
{
    const void *pair = &slab[row][k];
    return *(const uint32_t *)pair;
}

static __device__ inline void multiply_slabs(
    const uint16_t (*a)[TENSOR_ROW], const uint16_t (*b)[TENSOR_ROW], struct tensor_sums *sums)
{
    const int warp = (int)threadIdx.x / WARP, lane = warp_lane();
    const int row = warp % 2 * 64 + lane / 4, column = warp / 2 * 32 + lane / 4;
#pragma unroll
    for (int k = lane % 4 * 2; k < TENSOR_DEPTH; k += TENSOR_K) {
        uint32_t columns[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++)
            for (int r = 0; r < 2; r++)
                columns[j][r] = pair_at(b, column + j * 8, k + r * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t rows[4];
            for (int r = 0; r < 4; r++)
                rows[r] = pair_at(a, row + i * 16 + r % 2 * 8, k + r / 2 * 8);
#pragma unroll
            for (int j = 0; j < 4; j++)
                multiply_fragments(rows, columns[j], sums->sum[i][j]);
        }
    }
}

template <bool A_ALONG, bool B_ALONG>
static __device__ inline void add_chain(struct tensor_slabs *slabs, const gemm_operand<A_ALONG> &a,
    const gemm_operand<B_ALONG> &b, int64_t k, struct tensor_sums *sums)
{
    const int64_t row = (int64_t)slabs->tile.row * TENSOR_EDGE;
    const int64_t column = (int64_t)slabs->tile.column * TENSOR_EDGE;
    struct tensor_pieces next_a, next_b;
    if (k <= 0)
        return;
    fetch_pieces(a, row, 0, k, &next_a);
    fetch_pieces(b, column, 0, k, &next_b);
    put_pieces<A_ALONG>(next_a, slabs->a[0]);
    put_pieces<B_ALONG>(next_b, slabs->b[0]);
    __syncthreads();
    int half = 0;
    for (int64_t at = 0; at < k; at += TENSOR_DEPTH, half = 1 - half) {
        const bool more = at + TENSOR_DEPTH < k;
        if (more) {
            fetch_pieces(a, row, at + TENSOR_DEPTH, k, &next_a);
            fetch_pieces(b, column, at + TENSOR_DEPTH, k, &next_b);
        }
        multiply_slabs(slabs->a[half], slabs->b[half], sums);
        if (more) {
            put_pieces<A_ALONG>(next_a, slabs->a[1 - half]);
            put_pieces<B_ALONG>(next_b, slabs->b[1 - half]);
        }
        __syncthreads();
    }
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Calls visit(sum, at) for the thread's sums that exist, each element `at` of the result. */
template <class Visit>
static __device__ inline void each_tensor_sum(struct tensor_sums *sums,
    const struct gemm_result &result, const struct gemm_tile &tile, Visit visit)
{
    const int warp = (int)threadIdx.x / WARP, lane = warp_lane();
    const int64_t first_row = (int64_t)tile.row * TENSOR_EDGE + warp % 2 * 64 + lane / 4;
    const int64_t first_column = (int64_t)tile.column * TENSOR_EDGE + warp / 2 * 32 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t row = first_row + i * 16 + e / 2 * 8;
                const int64_t column = first_column + j * 8 + e % 2;
                if (row < result.rows && column < result.columns)
                    visit(&sums->sum[i][j][e], row * result.ld + column);
            }
}

static __device__ inline void take_result(
    struct tensor_sums *sums, const struct gemm_result &result, const struct gemm_tile &tile)
{
    each_tensor_sum(
        sums, result, tile, [&](float *sum, int64_t at) { *sum = ((const float *)result.to)[at]; });
}

static __device__ inline void put_result(struct tensor_sums *sums, const struct gemm_result &result,
    const struct gemm_tile &tile, bool add)
{
    each_tensor_sum(sums, result, tile, [&](float *sum, int64_t at) {
        if (result.type == DTYPE_BF16)
            ((uint16_t *)result.to)[at] = f32_to_bf16(*sum);
        else
            ((float *)result.to)[at] = add ? ((const float *)result.to)[at] + *sum : *sum;
    });
}

struct tensor_tiles {
    using slabs = struct tensor_slabs;
    using sums = struct tensor_sums;
    enum { edge = TENSOR_EDGE, threads = TENSOR_THREADS, blocks = 1 };
};
