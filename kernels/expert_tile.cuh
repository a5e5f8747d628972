/* Where the tiles of the experts' products lie: what the kernels of kernels/moe_expert.cu and their
 * audit have in common. */
#pragma once
#include "kernels/gemm_tile.cuh"
extern "C" {
#include "kernels/moe.h"
}

static __device__ const void *matrix_at(
    const struct expert_matrices &matrices, int64_t number, int64_t matrix_bytes)
{
    if (number < matrices.owned_count)
        return (const char *)matrices.owned + number * matrix_bytes;
    return (const char *)matrices.lent + (number - matrices.owned_count) * matrix_bytes;
}

/* The most tiles of rows that groups can have: each may end with one that is not full. */
static inline int64_t most_row_tiles(const struct expert_matmul_args *args, int edge)
{
    return args->rows / edge + args->group_count;
}

/* The tile of block `number`, its row that of its group; product -1 where the groups have fewer. */
template <int EDGE>
static __device__ struct gemm_tile find_tile(
    const struct expert_matmul_args &args, int number, int row_tiles)
{
    int row = number % row_tiles;
    for (int group = 0; group < (int)args.group_count; group++) {
        const int tiles = (int)parts_of(args.groups[group].rows, EDGE);
        if (row < tiles)
            return {row, number / row_tiles, group};
        row -= tiles;
    }
    return {0, 0, -1};
}
