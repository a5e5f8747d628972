/* Rows moved by an index on a GPU: nothing but memory traffic. A block takes a few rows, or a part
 * of one; threads run along a row in the widest words that addresses and lengths allow. */
#include "kernels/elements.cuh"
extern "C" {
#include "kernels/moe.h"
}

/* Row i goes from `from` to `to`, one of the two found by the index. */
struct row_move {
    void *to;
    const void *from;
    const int32_t *index;
    int64_t count, row_words;
};

template <typename Word, bool SCATTER>
static __global__ void __launch_bounds__(BLOCK_THREADS) move_rows(const struct row_move move)
{
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= move.count)
        return;
    const int64_t other = move.index[row];
    const Word *from = (const Word *)move.from + (SCATTER ? row : other) * move.row_words;
    Word *to = (Word *)move.to + (SCATTER ? other : row) * move.row_words;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < move.row_words; i += blockDim.x)
        to[i] = from[i];
}

template <typename Word, bool SCATTER>
static int launch_move(struct row_move move, int64_t row_bytes, void *stream)
{
    move.row_words = row_bytes / (int64_t)sizeof(Word);
    const int along = threads_along(move.row_words), rows = BLOCK_THREADS / along;
    return launch(move_rows<Word, SCATTER>, dim3((unsigned)parts_of(move.count, rows)),
        dim3((unsigned)along, (unsigned)rows), 0, (cudaStream_t)stream, move);
}

template <bool SCATTER>
static int launch_widest(const struct row_move &move, int64_t row_bytes, void *stream)
{
    const uintptr_t all = (uintptr_t)move.to | (uintptr_t)move.from | (uintptr_t)row_bytes;
    if (move.count <= 0 || row_bytes <= 0)
        return cudaSuccess;
    if (all % sizeof(uint4) == 0)
        return launch_move<uint4, SCATTER>(move, row_bytes, stream);
    if (all % sizeof(uint32_t) == 0)
        return launch_move<uint32_t, SCATTER>(move, row_bytes, stream);
    return launch_move<unsigned char, SCATTER>(move, row_bytes, stream);
}

extern "C" int gather_rows_cuda(const void *launched, void *stream)
{
    const struct gather_rows_args *args = (const struct gather_rows_args *)launched;
    const struct row_move move = {args->to, args->from, args->index, args->count, 0};
    return launch_widest<false>(move, args->row_bytes, stream);
}

extern "C" int scatter_rows_cuda(const void *launched, void *stream)
{
    const struct scatter_rows_args *args = (const struct scatter_rows_args *)launched;
    const struct row_move move = {args->to, args->from, args->index, args->count, 0};
    return launch_widest<true>(move, args->row_bytes, stream);
}
