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

/* A tile's chains are rows x vectors registers, chain[i * vectors + j]. Every loop over them is
 * unrolled whole: an index that is not a constant would put them all in memory.
 *
 * `lanes[j]` is how many lanes of vector j lie inside C; NULL: all. */
ALWAYS_INLINE void chains_begin(
    vec *chain, const int rows, const int vectors, const int *lanes, const struct chains *chains)
{
    const float *from = chains->from;
    if (!from) {
        UNROLLED
        for (int q = 0; q < rows * vectors; q++)
            chain[q] = vec_zero();
        return;
    }
    UNROLLED
    for (int i = 0; i < rows; i++, from += chains->from_ld) {
        UNROLLED
        for (int j = 0; j < vectors; j++)
            chain[i * vectors + j] =
                lanes ? vec_load_first(from + j * LANES, lanes[j]) : vec_load(from + j * LANES);
    }
}

ALWAYS_INLINE void chains_store(const vec *chain, const int rows, const int vectors,
    const int *lanes, const bool add, const struct chains *chains)
{
    float *to = chains->to;
    UNROLLED
    for (int i = 0; i < rows; i++, to += chains->to_ld) {
        UNROLLED
        for (int j = 0; j < vectors; j++) {
            float *at = to + j * LANES;
            vec value = chain[i * vectors + j];
            if (add)
                value = vec_add(lanes ? vec_load_first(at, lanes[j]) : vec_load(at), value);
            if (lanes)
                vec_store_first(at, lanes[j], value);
            else
                vec_store(at, value);
        }
    }
}

ALWAYS_INLINE void chains_end(const vec *chain, const int rows, const int vectors, const int *lanes,
    const struct chains *chains)
{
    if (chains->add)
        chains_store(chain, rows, vectors, lanes, true, chains);
    else
        chains_store(chain, rows, vectors, lanes, false, chains);
}

/* One step of k: every row's element of A times every column of B. */
ALWAYS_INLINE void chains_step(
    vec *chain, const int rows, const int vectors, const float *a, const vec *column)
{
    UNROLLED
    for (int i = 0; i < rows; i++) {
        const vec row = vec_set(a[i]);
        UNROLLED
        for (int j = 0; j < vectors; j++)
            chain[i * vectors + j] = vec_fma(row, column[j], chain[i * vectors + j]);
    }
}

ALWAYS_INLINE void tile(const int rows, const int *lanes, int64_t depth, const float *a,
    const float *b, const struct chains *chains)
{
    vec chain[TILE_ROWS * TILE_VECTORS];
    chains_begin(chain, rows, TILE_VECTORS, lanes, chains);
    for (int64_t k = 0; k < depth; k++, a += TILE_ROWS, b += TILE_COLUMNS) {
        vec column[TILE_VECTORS];
        UNROLLED
        for (int j = 0; j < TILE_VECTORS; j++)
            column[j] = vec_load(b + j * LANES);
        chains_step(chain, rows, TILE_VECTORS, a, column);
    }
    chains_end(chain, rows, TILE_VECTORS, lanes, chains);
}

/* `next`: C of the tile that follows, fetched while this one's chains run. */
static __attribute__((noinline)) void tile_full(
    int64_t depth, const float *a, const float *b, const struct chains *chains, const float *next)
{
    for (int i = 0; i < TILE_ROWS; i++)
        for (int j = 0; j < TILE_COLUMNS; j += 16)
            __builtin_prefetch(next + i * chains->to_ld + j, 1, 3);
    tile(TILE_ROWS, NULL, depth, a, b, chains);
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
            tile(count, lanes, depth, a, b, chains);                                               \
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
