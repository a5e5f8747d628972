/* Products with few rows read B hardly more often than packing it would, so they read it in place.
 *
 * B[K, N]: a tile of DIRECT_ROWS by at most DIRECT_VECTORS vectors of columns walks down B's rows,
 * in slabs of k short enough that the next tile over the same columns finds them in cache. B stored
 * [N, K]: a column's steps lie one after the other, so the lanes are rows of C instead: A is turned
 * once, and each step of one column of B is broadcast to all rows. */
#pragma once

enum {
    DIRECT_SLAB = 128, /* steps of k; 128 rows of B by 192 bytes stay in the first-level cache */
    DIRECT_MOST_ROWS = 128,           /* more rows repay packing B */
    LANES_LEAST_ROWS = LANES / 2 + 1, /* fewer would leave most lanes empty */
    LANES_MOST_ROWS = 4 * LANES < 64 ? 4 * LANES : 64,
    LANES_SLAB = 256, /* steps of k that are widened and laid out at a time */
    LANES_PAD = 16,
    CACHE_LINE_BYTES = 64
};

/* ---- B[K, N] in place -------------------------------------------------------------------- */

/* Where a tile reads B: vectors of columns from `b` on, a step of k every `b_step_bytes`. */
struct direct_columns {
    const char *b;
    int64_t b_step_bytes;
    bool bf16;
};

ALWAYS_INLINE void direct_tile(const int rows, const int vectors, const bool bf16, int64_t depth,
    const float *a, const struct direct_columns *from, const struct chains *chains)
{
    const int vector_bytes = LANES * (bf16 ? 2 : 4);
    const char *b = from->b;
    vec chain[DIRECT_ROWS * DIRECT_VECTORS];
    chains_begin(chain, rows, vectors, NULL, chains);
    for (int64_t k = 0; k < depth; k++, a += DIRECT_ROWS, b += from->b_step_bytes) {
        vec column[DIRECT_VECTORS];
        UNROLLED
        for (int j = 0; j < vectors; j++) {
            column[j] = load(b + j * vector_bytes, bf16);
            __builtin_prefetch(b + (2 * vectors + j) * vector_bytes);
        }
        chains_step(chain, rows, vectors, a, column);
    }
    chains_end(chain, rows, vectors, NULL, chains);
}

ALWAYS_INLINE void direct_tile_rows(const int vectors, int rows, int64_t depth, const float *a,
    const struct direct_columns *from, const struct chains *chains)
{
#define ROWS(count)                                                                                \
    case count:                                                                                    \
        if (count <= DIRECT_ROWS && from->bf16)                                                    \
            direct_tile(count, vectors, true, depth, a, from, chains);                             \
        else if (count <= DIRECT_ROWS)                                                             \
            direct_tile(count, vectors, false, depth, a, from, chains);                            \
        break
    switch (rows) {
        ROWS(1);
        ROWS(2);
        ROWS(3);
        ROWS(4);
        ROWS(5);
        ROWS(6);
        ROWS(7);
        ROWS(8);
    }
#undef ROWS
}

static __attribute__((noinline)) void direct_tile_vectors(int vectors, int rows, int64_t depth,
    const float *a, const struct direct_columns *from, const struct chains *chains)
{
    if (vectors == 1)
        direct_tile_rows(1, rows, depth, a, from, chains);
    else if (vectors == 2 || DIRECT_VECTORS == 2)
        direct_tile_rows(2, rows, depth, a, from, chains);
    else
        direct_tile_rows(DIRECT_VECTORS, rows, depth, a, from, chains);
}

static int64_t direct_panels(const struct product *p)
{
    return (p->rows + DIRECT_ROWS - 1) / DIRECT_ROWS;
}

/* The most steps between two stores of the chains. */
static int64_t direct_depth(const struct product *p, const struct gemm_scratch *scratch)
{
    return at_most_long(DIRECT_SLAB, scratch->a_floats / (direct_panels(p) * DIRECT_ROWS));
}

/* Makes the whole vectors of columns, in tiles of nearly equal widths; returns how many columns
 * that is. */
static int64_t multiply_direct(const struct product *p, const struct gemm_scratch *scratch)
{
    const int64_t vectors = p->columns / LANES,
                  tiles = (vectors + DIRECT_VECTORS - 1) / DIRECT_VECTORS;
    const int64_t panels = direct_panels(p);
    const int64_t slab = direct_depth(p, scratch);
    for (int64_t k = 0; k < p->depth && tiles; k += slab) {
        const int64_t depth = at_most_long(p->depth - k, slab);
        const struct chains whole = chains_of_block(p, k == 0, k + depth == p->depth);
        pack(DIRECT_ROWS, &p->a, 0, p->rows, k, depth, scratch->a);
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t first = vectors * tile / tiles, end = vectors * (tile + 1) / tiles;
            const struct direct_columns from = {
                element(&p->b, k, first * LANES), p->b.ld * element_bytes_of(&p->b), p->b.bf16};
            for (int64_t i = 0; i < panels; i++) {
                const struct chains here = chains_at(whole, i * DIRECT_ROWS, first * LANES);
                direct_tile_vectors((int)(end - first),
                    at_most(p->rows - i * DIRECT_ROWS, DIRECT_ROWS), depth,
                    scratch->a + i * DIRECT_ROWS * depth, &from, &here);
            }
        }
    }
    return vectors * LANES;
}

/* ---- B stored [N, K] ---------------------------------------------------------------------
 * A tile is `groups` vectors of rows by `columns` columns of chains. */

/* C is row-major and the chains lie across it: each is gathered through a small square. */
ALWAYS_INLINE void lanes_begin(
    vec *chain, const int groups, const int columns, int64_t rows, const struct chains *chains)
{
    float lane[LANE_ACCUMULATORS * LANES];
    if (!chains->from) {
        UNROLLED
        for (int q = 0; q < groups * columns; q++)
            chain[q] = vec_zero();
        return;
    }
    memset(lane, 0, sizeof lane);
    for (int64_t m = 0; m < rows; m++)
        for (int i = 0; i < columns; i++)
            lane[i * groups * LANES + m] = chains->from[m * chains->from_ld + i];
    UNROLLED
    for (int q = 0; q < groups * columns; q++)
        chain[q] = vec_load(lane + q * LANES);
}

/* Rows [0, rows) of a square of `columns` columns from `first` on, turned: row by row to C. */
ALWAYS_INLINE void lanes_store(
    const vec *square, int rows, int columns, int64_t row, int first, const struct chains *chains)
{
    for (int m = 0; m < rows; m++) {
        float *to = chains->to + (row + m) * chains->to_ld + first;
        vec value = square[m];
        if (chains->add)
            value = vec_add(vec_load_first(to, columns), value);
        vec_store_first(to, columns, value);
    }
}

ALWAYS_INLINE void lanes_end(const vec *chain, const int groups, const int columns, int64_t rows,
    const struct chains *chains)
{
    UNROLLED
    for (int g = 0; g < groups; g++) {
        UNROLLED
        for (int first = 0; first < columns; first += LANES) {
            const int count = columns - first < LANES ? columns - first : LANES;
            vec square[LANES];
            UNROLLED
            for (int i = 0; i < LANES; i++)
                square[i] = i < count ? chain[(first + i) * groups + g] : vec_zero();
            vec_transpose(square);
            lanes_store(square, at_most(rows - g * LANES, LANES), count, g * LANES, first, chains);
        }
    }
}

/* Copies `steps` steps of each column to `to`, widened: columns whose stored rows are a multiple of
 * a page apart would evict each other from the first-level cache while the chains run. */
ALWAYS_INLINE void lanes_copy(const int columns, const bool bf16, const char *b,
    int64_t b_line_bytes, int64_t steps, float *to, int64_t to_ld)
{
    for (int i = 0; i < columns; i++, b += b_line_bytes, to += to_ld) {
        int64_t k = 0;
        for (; k + LANES <= steps; k += LANES)
            vec_store(to + k, load(b + k * (bf16 ? 2 : 4), bf16));
        if (k < steps)
            vec_store(to + k, load_first(b + k * (bf16 ? 2 : 4), (int)(steps - k), bf16));
    }
}

/* Runs the chains over one slab: `a` holds a panel of LANES rows per group, `a_group` floats apart.
 * Meanwhile `next`, what is copied after it, is fetched: one cache line per column at each turn. */
ALWAYS_INLINE void lanes_steps(vec *chain, const int groups, const bool bf16, int64_t steps,
    const float *a, int64_t a_group, const float *copy, int64_t copy_ld, const char *next,
    int64_t b_line_bytes)
{
    const int columns = LANE_ACCUMULATORS / groups;
    const int per_line = CACHE_LINE_BYTES / (bf16 ? 2 : 4);
    for (int64_t k0 = 0; k0 < steps; k0 += per_line) {
        for (int i = 0; i < columns; i++)
            __builtin_prefetch(next + i * b_line_bytes + k0 * (bf16 ? 2 : 4));
        const int64_t end = at_most_long(k0 + per_line, steps);
        for (int64_t k = k0; k < end; k++, a += LANES) {
            vec row[4];
            UNROLLED
            for (int g = 0; g < groups; g++)
                row[g] = vec_load(a + g * a_group);
            UNROLLED
            for (int i = 0; i < columns; i++) {
                const vec column = vec_set(copy[i * copy_ld + k]);
                UNROLLED
                for (int g = 0; g < groups; g++)
                    chain[i * groups + g] = vec_fma(row[g], column, chain[i * groups + g]);
            }
        }
    }
}

/* `a`: one panel of LANES rows and `depth` steps per group. */
ALWAYS_INLINE void lanes_tile(const int groups, const bool bf16, int64_t rows, int64_t depth,
    const float *a, const char *b, int64_t b_line_bytes, float *copy, int64_t slab,
    const struct chains *chains)
{
    const int columns = LANE_ACCUMULATORS / groups;
    const int64_t copy_ld = slab + LANES_PAD;
    vec chain[LANE_ACCUMULATORS];
    lanes_begin(chain, groups, columns, rows, chains);
    for (int64_t k = 0; k < depth; k += slab) {
        const int64_t steps = at_most_long(depth - k, slab);
        const char *here = b + k * (bf16 ? 2 : 4);
        const char *next =
            k + slab < depth ? here + slab * (bf16 ? 2 : 4) : b + columns * b_line_bytes;
        lanes_copy(columns, bf16, here, b_line_bytes, steps, copy, copy_ld);
        lanes_steps(chain, groups, bf16, steps, a + k * LANES, depth * LANES, copy, copy_ld, next,
            b_line_bytes);
    }
    lanes_end(chain, groups, columns, rows, chains);
}

static __attribute__((noinline)) void lanes_tile_groups(int groups, bool bf16, int64_t rows,
    int64_t depth, const float *a, const char *b, int64_t b_line_bytes, float *copy, int64_t slab,
    const struct chains *chains)
{
#define GROUPS(count)                                                                              \
    case count:                                                                                    \
        if (bf16)                                                                                  \
            lanes_tile(count, true, rows, depth, a, b, b_line_bytes, copy, slab, chains);          \
        else                                                                                       \
            lanes_tile(count, false, rows, depth, a, b, b_line_bytes, copy, slab, chains);         \
        break
    switch (groups) {
        GROUPS(1);
        GROUPS(2);
        GROUPS(3);
        GROUPS(4);
    }
#undef GROUPS
}

static int lanes_groups(const struct product *p)
{
    return (int)((p->rows + LANES - 1) / LANES);
}

/* The most steps between two stores of the chains. */
static int64_t lanes_depth(const struct product *p, const struct gemm_scratch *scratch)
{
    return scratch->a_floats / (lanes_groups(p) * LANES);
}

/* Makes as many whole tiles of columns as there are; returns how many columns that is. Where every
 * chain is made at once, the last tile may go back over columns that are made: the same chains, and
 * the same bits, and no columns are left over. */
static int64_t multiply_lanes(const struct product *p, const struct gemm_scratch *scratch)
{
    const int groups = lanes_groups(p);
    const int width = LANE_ACCUMULATORS / groups;
    const int64_t block = lanes_depth(p, scratch);
    const bool at_once = p->init == GEMM_FRESH && p->depth <= block && p->columns >= width;
    const int64_t columns = at_once ? p->columns : round_down(p->columns, width);
    const int64_t room = round_down(scratch->b_floats / width, LANES) - LANES_PAD;
    const int64_t slab = at_most_long(LANES_SLAB, room);
    for (int64_t k = 0; k < p->depth; k += block) {
        const int64_t depth = at_most_long(p->depth - k, block);
        const struct chains whole = chains_of_block(p, k == 0, k + depth == p->depth);
        pack(LANES, &p->a, 0, p->rows, k, depth, scratch->a);
        for (int64_t next = 0; next < columns; next += width) {
            const int64_t column = at_most_long(next, columns - width);
            const struct chains here = chains_at(whole, 0, column);
            lanes_tile_groups(groups, p->b.bf16, p->rows, depth, scratch->a,
                element(&p->b, column, k), p->b.ld * element_bytes_of(&p->b), scratch->b, slab,
                &here);
        }
    }
    return columns;
}
