/* The tile: TILE_ROWS x TILE_COLUMNS chains held in registers while k runs over one packed panel of
 * A and one of B. A chain that is longer than one panel is stored and taken up again, which changes
 * no bit. */
#pragma once

enum { TILE_COLUMNS = TILE_VECTORS * LANES };

/* Where one depth block's chains come from and go to. */
struct chains {
    const float *from; /* NULL: they start at +0 */
    int64_t from_ld;
    float *to;
    int64_t to_ld;
    bool add; /* to = to + chain instead of to = chain */
};

ALWAYS_INLINE struct chains chains_at(struct chains whole, int64_t row, int64_t column)
{
    if (whole.from)
        whole.from += row * whole.from_ld + column;
    whole.to += row * whole.to_ld + column;
    return whole;
}

/* `lanes[j]`: how many lanes of vector j lie inside C; unused when `full`. */
ALWAYS_INLINE void tile(const int rows, const bool full, const int *lanes, int64_t depth,
    const float *a, const float *b, const struct chains *chains)
{
    vec chain[TILE_ROWS][TILE_VECTORS];
    const float *from = chains->from;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < TILE_VECTORS; j++) {
            const float *at = from ? from + i * chains->from_ld + j * LANES : NULL;
            if (!from)
                chain[i][j] = vec_zero();
            else
                chain[i][j] = full ? vec_load(at) : vec_load_first(at, lanes[j]);
        }
    for (int64_t k = 0; k < depth; k++, a += TILE_ROWS, b += TILE_COLUMNS) {
        vec column[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; j++)
            column[j] = vec_load(b + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vec row = vec_set(a[i]);
#pragma GCC unroll 4
            for (int j = 0; j < TILE_VECTORS; j++)
                chain[i][j] = vec_fma(row, column[j], chain[i][j]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < TILE_VECTORS; j++) {
            float *to = chains->to + i * chains->to_ld + j * LANES;
            if (full)
                vec_store(to, chains->add ? vec_add(vec_load(to), chain[i][j]) : chain[i][j]);
            else if (chains->add)
                vec_store_first(to, lanes[j], vec_add(vec_load_first(to, lanes[j]), chain[i][j]));
            else
                vec_store_first(to, lanes[j], chain[i][j]);
        }
}

/* `next`: C of the tile that follows, fetched while this one's chains run; NULL at an edge. */
static __attribute__((noinline)) void tile_full(
    int64_t depth, const float *a, const float *b, const struct chains *chains, const float *next)
{
    if (next)
        for (int i = 0; i < TILE_ROWS; i++)
            for (int j = 0; j < TILE_COLUMNS; j += 16)
                __builtin_prefetch(next + i * chains->to_ld + j, 1, 3);
    tile(TILE_ROWS, true, NULL, depth, a, b, chains);
}

/* Fewer rows, fewer columns, or both. Rows are a constant of each call so that the chains stay in
 * registers; a case beyond TILE_ROWS is never compiled. */
static __attribute__((noinline)) void tile_edge(int rows, int columns, int64_t depth,
    const float *a, const float *b, const struct chains *chains)
{
    int lanes[TILE_VECTORS];
    for (int j = 0; j < TILE_VECTORS; j++)
        lanes[j] = at_most(columns - j * LANES, LANES);
#define ROWS(count)                                                                                \
    case count:                                                                                    \
        if (count <= TILE_ROWS)                                                                    \
            tile(count, false, lanes, depth, a, b, chains);                                        \
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
        ROWS(9);
        ROWS(10);
        ROWS(11);
        ROWS(12);
        ROWS(13);
        ROWS(14);
    }
#undef ROWS
}
