/* The matrix product: sharing C out among the threads of a team, and each thread's scratch. The
 * arithmetic is in gemm_isa.c. */
#include "kernels/gemm.h"
#include "kernels/gemm_isa.h"
#include "kernels/isa_variants.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

ISA_DECLARE(struct gemm_variant, gemm_variant);
static const struct gemm_variant *const variants[ISA_COUNT] = ISA_TABLE(gemm_variant);

/* Below this many multiply-adds, waking other threads costs more than they save. */
#define ALONE_BELOW (1 << 17)

/* ---- scratch -----------------------------------------------------------------------------------
 * Packing needs memory that outlives a call (a fresh block would be paged in anew each time) and
 * belongs to a thread, whoever made the thread. A C11 thread-specific slot is exactly that, and its
 * destructor releases the block when the thread ends. */

static once_flag slot_once = ONCE_FLAG_INIT;
static tss_t slot;
static atomic_bool slot_made;

static void make_slot(void)
{
    atomic_store(&slot_made, tss_create(&slot, free) == thrd_success);
}

int64_t gemm_scratch_bytes(void)
{
    return (int64_t)sizeof(float) * (GEMM_FULL_A + GEMM_FULL_B + GEMM_FULL_SUM);
}

/* This thread's block, or NULL when memory is short. */
static float *thread_block(void)
{
    call_once(&slot_once, make_slot);
    if (!atomic_load(&slot_made))
        return NULL;
    float *block = tss_get(slot);
    if (block)
        return block;
    block = aligned_alloc(4096, (size_t)(gemm_scratch_bytes() + 4095) / 4096 * 4096);
    if (block && tss_set(slot, block) != thrd_success) {
        free(block);
        return NULL;
    }
    return block;
}

/* Without memory of its own the thread works on its stack: slower, the same bits. */
static __attribute__((noinline)) void run_on_stack(const struct gemm_variant *variant,
    const struct gemm_args *args, const struct gemm_share *share)
{
    _Alignas(64) float a[GEMM_LEAST_A];
    _Alignas(64) float b[GEMM_LEAST_B];
    _Alignas(64) float sum[GEMM_LEAST_SUM];
    const struct gemm_scratch scratch = {a, b, sum, GEMM_LEAST_A, GEMM_LEAST_B, GEMM_LEAST_SUM};
    variant->run(args, share, &scratch);
}

static void run_share(const struct gemm_variant *variant, const struct gemm_args *args,
    const struct gemm_share *share)
{
    float *block = thread_block();
    if (!block) {
        run_on_stack(variant, args, share);
        return;
    }
    const struct gemm_scratch scratch = {.a = block,
        .b = block + GEMM_FULL_A,
        .sum = block + GEMM_FULL_A + GEMM_FULL_B,
        .a_floats = GEMM_FULL_A,
        .b_floats = GEMM_FULL_B,
        .sum_floats = GEMM_FULL_SUM};
    variant->run(args, share, &scratch);
}

/* ---- threads ----------------------------------------------------------------------------- */

/* C cut into row_parts x column_parts shares of whole tiles. */
struct grid {
    int row_parts, column_parts;
    int64_t row_tiles, column_tiles;
    const struct gemm_variant *variant;
    const struct gemm_args *args;
};

/* The grid whose largest share is smallest; of equals the one with fewer cuts across rows, since
 * every share packs all of its A. */
static struct grid grid_of(
    const struct gemm_variant *variant, const struct gemm_args *args, int threads)
{
    struct grid grid = {.row_parts = 1,
        .column_parts = 1,
        .row_tiles = (args->m + variant->tile_rows - 1) / variant->tile_rows,
        .column_tiles = (args->n + variant->tile_columns - 1) / variant->tile_columns,
        .variant = variant,
        .args = args};
    if ((double)args->m * (double)args->n * (double)args->k < ALONE_BELOW)
        return grid;
    int64_t smallest = INT64_MAX;
    for (int row_parts = 1; row_parts <= threads; row_parts++) {
        const int column_parts = threads / row_parts;
        const int64_t tiles = ((grid.row_tiles + row_parts - 1) / row_parts) *
                              ((grid.column_tiles + column_parts - 1) / column_parts);
        if (tiles < smallest) {
            smallest = tiles;
            grid.row_parts = row_parts;
            grid.column_parts = column_parts;
        }
    }
    return grid;
}

/* Where part `index` of `parts` begins, in elements. */
static int64_t cut(int64_t tiles, int index, int parts, int64_t tile, int64_t count)
{
    const int64_t at = tiles * index / parts * tile;
    return at < count ? at : count;
}

static void run_part(void *context, int index, int parts)
{
    (void)parts;
    const struct grid *grid = context;
    const struct gemm_args *args = grid->args;
    const int i = index / grid->column_parts, j = index % grid->column_parts;
    const int64_t tile_rows = grid->variant->tile_rows, tile_columns = grid->variant->tile_columns;
    const int64_t row = cut(grid->row_tiles, i, grid->row_parts, tile_rows, args->m);
    const int64_t row_end = cut(grid->row_tiles, i + 1, grid->row_parts, tile_rows, args->m);
    const int64_t column = cut(grid->column_tiles, j, grid->column_parts, tile_columns, args->n);
    const int64_t column_end =
        cut(grid->column_tiles, j + 1, grid->column_parts, tile_columns, args->n);
    const struct gemm_share share = {row, row_end - row, column, column_end - column};
    if (share.rows > 0 && share.columns > 0)
        run_share(grid->variant, args, &share);
}

/* k = 0: every chain is its start. */
static void empty_chains(const struct gemm_args *args)
{
    for (int64_t m = 0; m < args->m; m++) {
        float *row = args->c + m * args->ldc;
        if (args->init == GEMM_FRESH)
            memset(row, 0, (size_t)args->n * sizeof *row);
        else if (args->init == GEMM_ADD)
            for (int64_t n = 0; n < args->n; n++)
                row[n] += 0.0f; /* turns -0 into +0, as the written sum does */
    }
}

void gemm_cpu(const struct gemm_args *args, const struct dev_team *team)
{
    if (args->m <= 0 || args->n <= 0)
        return;
    if (args->k <= 0) {
        empty_chains(args);
        return;
    }
    struct grid grid = grid_of(variants[isa_selected()], args, team ? team_size(team) : 1);
    const int parts = grid.row_parts * grid.column_parts;
    if (parts == 1)
        run_part(&grid, 0, 1);
    else
        team_run(team, parts, run_part, &grid);
}

/* ---- the kernel -------------------------------------------------------------------------- */

static void run_cpu(const void *args, const struct dev_team *team)
{
    gemm_cpu(args, team);
}

static void cost(const void *launch_args, struct kernel_cost *out)
{
    const struct gemm_args *args = launch_args;
    const double m = (double)args->m, n = (double)args->n, k = (double)args->k;
    const bool reads_c = args->init != GEMM_FRESH;
    out->flops = 2.0 * m * n * k + (args->init == GEMM_ADD ? m * n : 0.0);
    out->bytes = m * k * (double)dtype_bytes(args->a_type) +
                 k * n * (double)dtype_bytes(args->b_type) + m * n * (reads_c ? 8.0 : 4.0);
    out->rate =
        args->a_type == DTYPE_BF16 && args->b_type == DTYPE_BF16 ? DEV_RATE_BF16 : DEV_RATE_F32;
    out->m = args->m;
    out->n = args->n;
    out->k = args->k;
}

/* Adds the range of `rows` rows of `columns` elements unless it is empty; returns the new count. */
static int add_range(struct dev_access *ranges, int count, const void *from, int64_t rows,
    int64_t columns, int64_t ld, int64_t element_bytes, bool write)
{
    if (rows <= 0 || columns <= 0)
        return count;
    ranges[count] = (struct dev_access){from, ((rows - 1) * ld + columns) * element_bytes, write};
    return count + 1;
}

static int access_ranges(const void *launch_args, struct dev_access *ranges)
{
    const struct gemm_args *args = launch_args;
    const bool a_turned = args->layout == GEMM_TN, b_turned = args->layout == GEMM_NT;
    const int64_t m = args->m, n = args->n, k = args->k;
    int count = 0;
    if (m <= 0 || n <= 0)
        return count;
    count = add_range(ranges, count, args->a, a_turned ? k : m, a_turned ? m : k, args->lda,
        dtype_bytes(args->a_type), false);
    count = add_range(ranges, count, args->b, b_turned ? n : k, b_turned ? k : n, args->ldb,
        dtype_bytes(args->b_type), false);
    return add_range(ranges, count, args->c, m, n, args->ldc, 4, true);
}

int gemm_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_gemm = {
    .name = "gemm",
    .cpu = run_cpu,
    .cuda = gemm_cuda,
    .cost = cost,
    .access = access_ranges,
};

void gemm(struct stream *stream, const struct gemm_args *args)
{
    dev_launch(stream, &kernel_gemm, args, sizeof *args);
}
