/* One thread's share of a matrix product, compiled once per instruction set.
 *
 * The chain of each element is the contract (gemm.h), and it costs nothing: a tile of C stays in
 * registers, is loaded before a block of k and stored after it, and blocks of k follow in ascending
 * order, so that each element sees one unbroken chain of fused multiply-adds. Lanes run across
 * outputs, never along k.
 *
 * Blocks are chosen for the caches: `rows` x `depth` of packed A and a panel of B fit the second
 * level, `columns` x `depth` of packed B the third. Products with few rows do not repay packing B
 * (gemm_few_rows.h). */
#include "kernels/gemm_isa.h"
#include "kernels/isa_variants.h"
#if defined ISA_IS_avx512
#include "kernels/gemm_vector_avx512.h"
#elif defined ISA_IS_avx2
#include "kernels/gemm_vector_avx2.h"
#else
#include "kernels/gemm_vector_generic.h"
#endif
#include "kernels/gemm_pack.h"
#include "kernels/gemm_tile.h"

enum {
    BLOCK_DEPTH = 512,
    BLOCK_COLUMNS = 1024,
    BLOCK_PANELS = 12, /* of A, TILE_ROWS each */
    SHORT_DEPTH = 160, /* so few steps that moving C costs as much as the chains */
    SUM_COLUMNS = 1024,
    SUM_PAD = 16 /* keeps rows of sums from meeting in one set of the cache */
};

/* A product in terms of lines and steps: the layouts differ only in how the operands are stored. */
struct product {
    struct operand a, b;
    int64_t rows, columns, depth;
    enum gemm_init init;
    float *c;
    int64_t ldc;
    float *partial; /* chains between blocks of k: C itself, or scratch under GEMM_ADD */
    int64_t partial_ld;
};

static struct product product_of(const struct gemm_args *args)
{
    return (struct product){
        .a = {args->a, args->lda, args->a_type == DTYPE_BF16, args->layout == GEMM_TN},
        .b = {args->b, args->ldb, args->b_type == DTYPE_BF16, args->layout != GEMM_NT},
        .rows = args->m,
        .columns = args->n,
        .depth = args->k,
        .init = args->init,
        .c = args->c,
        .ldc = args->ldc,
        .partial = args->c,
        .partial_ld = args->ldc,
    };
}

/* The chains of one block of k. */
static struct chains chains_of_block(const struct product *p, bool first, bool last)
{
    struct chains chains = {
        .from = p->partial,
        .from_ld = p->partial_ld,
        .to = last ? p->c : p->partial,
        .to_ld = last ? p->ldc : p->partial_ld,
        .add = last && p->init == GEMM_ADD,
    };
    if (first && p->init != GEMM_CHAIN)
        chains.from = NULL;
    return chains;
}

static int64_t at_most_long(int64_t count, int64_t limit)
{
    return count < limit ? count : limit;
}

static int64_t round_down(int64_t count, int64_t multiple)
{
    return count / multiple * multiple;
}

#include "kernels/gemm_few_rows.h"

/* ---- blocks ------------------------------------------------------------------------------ */

struct blocking {
    int64_t rows, columns, depth;
};

/* The most steps that one block can take. */
static int64_t blocked_depth(const struct gemm_scratch *scratch)
{
    const int64_t deepest = at_most_long(BLOCK_DEPTH, scratch->a_floats / TILE_ROWS);
    return at_most_long(deepest, scratch->b_floats / TILE_COLUMNS);
}

/* As large as the scratch allows; k is cut evenly, so that no short block is left over. */
static struct blocking blocking_of(const struct product *p, const struct gemm_scratch *scratch)
{
    const int64_t deepest = blocked_depth(scratch);
    const int64_t blocks = (p->depth + deepest - 1) / deepest;
    struct blocking block = {.depth = (p->depth + blocks - 1) / blocks};
    const int64_t panels = scratch->a_floats / (TILE_ROWS * block.depth);
    block.rows = TILE_ROWS * at_most_long(BLOCK_PANELS, panels);
    block.columns = round_down(scratch->b_floats / block.depth, TILE_COLUMNS);
    if (block.depth > SHORT_DEPTH)
        block.columns = at_most_long(block.columns, BLOCK_COLUMNS);
    return block;
}

/* One tile; `next_row`, `next_column`: where the following one begins, relative to this one. */
static void multiply_tile(int64_t rows, int64_t columns, int64_t depth, const float *a,
    const float *b, const struct chains *chains, int64_t next_row, int64_t next_column)
{
    if (rows >= TILE_ROWS && columns >= TILE_COLUMNS)
        tile_full(depth, a, b, chains, chains->to + next_row * chains->to_ld + next_column);
    else
        tile_edge(at_most(rows, TILE_ROWS), at_most(columns, TILE_COLUMNS), depth, a, b, chains);
}

/* Packed A times packed B. The inner loop goes down C's rows, so that one panel of B, once near,
 * serves all of them. */
static void multiply_block(int64_t rows, int64_t columns, int64_t depth,
    const struct gemm_scratch *scratch, const struct chains *whole)
{
    for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            const struct chains here = chains_at(*whole, i, j);
            const bool turn = i + TILE_ROWS >= rows;
            multiply_tile(rows - i, columns - j, depth, scratch->a + i * depth,
                scratch->b + j * depth, &here, turn ? -i : TILE_ROWS, turn ? TILE_COLUMNS : 0);
        }
}

/* The same for a short depth, where C is the traffic: the inner loop goes along its rows. */
static void multiply_short_block(int64_t rows, int64_t columns, int64_t depth,
    const struct gemm_scratch *scratch, const struct chains *whole)
{
    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS) {
            const struct chains here = chains_at(*whole, i, j);
            multiply_tile(rows - i, columns - j, depth, scratch->a + i * depth,
                scratch->b + j * depth, &here, 0, 2 * TILE_COLUMNS);
        }
}

static void blocked(const struct product *p, const struct gemm_scratch *scratch)
{
    const struct blocking block = blocking_of(p, scratch);
    for (int64_t column = 0; column < p->columns; column += block.columns) {
        const int64_t columns = at_most_long(p->columns - column, block.columns);
        for (int64_t k = 0; k < p->depth; k += block.depth) {
            const int64_t depth = at_most_long(p->depth - k, block.depth);
            const struct chains whole = chains_of_block(p, k == 0, k + depth == p->depth);
            pack(TILE_COLUMNS, &p->b, column, columns, k, depth, scratch->b);
            for (int64_t row = 0; row < p->rows; row += block.rows) {
                const int64_t rows = at_most_long(p->rows - row, block.rows);
                pack(TILE_ROWS, &p->a, row, rows, k, depth, scratch->a);
                const struct chains here = chains_at(whole, row, column);
                if (depth <= SHORT_DEPTH)
                    multiply_short_block(rows, columns, depth, scratch, &here);
                else
                    multiply_block(rows, columns, depth, scratch, &here);
            }
        }
    }
}

/* ---- choosing ---------------------------------------------------------------------------- */

/* The part of a product that makes the given rows and columns. */
static struct product part_of(const struct product *p, const struct gemm_share *share)
{
    struct product part = *p;
    part.a.data = line_of(&p->a, share->row);
    part.b.data = line_of(&p->b, share->column);
    part.rows = share->rows;
    part.columns = share->columns;
    part.c += share->row * p->ldc + share->column;
    part.partial += share->row * p->partial_ld + share->column;
    return part;
}

enum path { BLOCKED, DIRECT, LANES_OVER_ROWS };

static enum path path_of(const struct product *p)
{
    if (p->b.steps_stored_apart)
        return p->rows <= DIRECT_MOST_ROWS ? DIRECT : BLOCKED;
    return p->rows >= LANES_LEAST_ROWS && p->rows <= LANES_MOST_ROWS ? LANES_OVER_ROWS : BLOCKED;
}

/* So many steps are never cut by any kernel that takes part in the product. */
static int64_t uncut_depth(const struct product *p, const struct gemm_scratch *scratch)
{
    switch (path_of(p)) {
    case DIRECT:
        return at_most_long(blocked_depth(scratch), direct_depth(p, scratch));
    case LANES_OVER_ROWS:
        return at_most_long(blocked_depth(scratch), lanes_depth(p, scratch));
    default:
        return blocked_depth(scratch);
    }
}

static void multiply(const struct product *p, const struct gemm_scratch *scratch)
{
    int64_t done = 0;
    if (path_of(p) == DIRECT)
        done = multiply_direct(p, scratch);
    else if (path_of(p) == LANES_OVER_ROWS)
        done = multiply_lanes(p, scratch);
    if (done == p->columns)
        return;
    const struct product rest =
        part_of(p, &(struct gemm_share){0, p->rows, done, p->columns - done});
    blocked(&rest, scratch);
}

/* C + chain rounds once, after the chain is whole: chains that are cut wait in scratch. */
static void multiply_and_add(const struct product *p, const struct gemm_scratch *scratch)
{
    const int64_t widest = round_down(scratch->sum_floats / TILE_ROWS - SUM_PAD, TILE_COLUMNS);
    const int64_t columns = at_most_long(p->columns, at_most_long(widest, SUM_COLUMNS));
    const int64_t ld = columns + SUM_PAD;
    const int64_t rows = round_down(scratch->sum_floats / ld, TILE_ROWS);
    for (int64_t row = 0; row < p->rows; row += rows)
        for (int64_t column = 0; column < p->columns; column += columns) {
            struct gemm_share share = {row, at_most_long(p->rows - row, rows), column,
                at_most_long(p->columns - column, columns)};
            struct product part = part_of(p, &share);
            part.partial = scratch->sum;
            part.partial_ld = ld;
            multiply(&part, scratch);
        }
}

static void run(const struct gemm_args *args, const struct gemm_share *share,
    const struct gemm_scratch *scratch)
{
    const struct product whole = product_of(args);
    const struct product part = part_of(&whole, share);
    if (part.init == GEMM_ADD && part.depth > uncut_depth(&part, scratch))
        multiply_and_add(&part, scratch);
    else
        multiply(&part, scratch);
}

const struct gemm_variant ISA_VARIANT(gemm_variant) = {TILE_ROWS, TILE_COLUMNS, run};
