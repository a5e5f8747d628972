/* What follows from a layout route by route: a rank's index arrays, and the order of the weight
 * gradients' sums. */
#include <stdlib.h>
#include "ops/moe_route.h"
#include "ops/moe_walk.h"

/* ---- index arrays ---------------------------------------------------------------------------- */

/* Where in all chunks' rows a rank's next row to each place goes: [chunks, place_count]. */
static int64_t *row_cursors(const struct moe_layout *layout, int rank)
{
    int64_t cells = moe_layout_cells(layout), at = 0;
    int64_t *cursor = malloc((size_t)cells * sizeof *cursor);
    for (int64_t i = 0; cursor && i < cells; i++) {
        cursor[i] = at;
        at += layout->table[rank * cells + i];
    }
    return cursor;
}

/* One token's routes; `first` is the chunk's first row. */
static void index_token(struct moe_walk *walk, int64_t *cursor, int64_t first, int64_t token,
    const int32_t *idx, const struct moe_index *index, int32_t *position)
{
    int topk = walk->layout->topk;
    for (int slot = 0; slot < topk; slot++) {
        int64_t route = token * topk + slot;
        position[slot] = -1;
        if (idx[route] == MOE_EMPTY)
            continue;
        int64_t row = cursor[moe_walk_place(walk, idx[route])]++;
        index->token[row] = (int32_t)token;
        index->route[row] = (int32_t)route;
        position[slot] = (int32_t)(row - first);
    }
}

/* Where each chunk's rows and tokens begin. */
struct chunk_firsts {
    int64_t *row, *token; /* [chunks] */
};

static void find_firsts(const struct moe_layout *layout, int rank, struct chunk_firsts *first)
{
    int64_t row = 0, token = 0;
    for (int64_t c = 0; c < layout->partition.chunks; c++) {
        first->row[c] = row;
        first->token[c] = token;
        row += moe_layout_sent(layout, rank, c);
        token += moe_chunk_tokens(&layout->partition, layout->tokens[rank], c);
    }
}

int moe_layout_index(
    const struct moe_layout *layout, int rank, const int32_t *idx, const struct moe_index *index)
{
    struct moe_walk walk;
    size_t chunks = (size_t)layout->partition.chunks;
    struct chunk_firsts first = {
        calloc(chunks, sizeof *first.row), calloc(chunks, sizeof *first.token)};
    int64_t *cursor = row_cursors(layout, rank), tokens = layout->tokens[rank];
    int status = first.row && first.token && cursor ? moe_walk_open(&walk, layout, rank) : -1;
    if (status == 0) {
        find_firsts(layout, rank, &first);
        for (int64_t t = 0; t < tokens; t++) {
            int64_t chunk = moe_chunk_of(&layout->partition, tokens, t), at = first.token[chunk]++;
            index->chunk_token[at] = (int32_t)t;
            index_token(&walk, cursor + chunk * layout->place_count, first.row[chunk], t, idx,
                index, index->position + at * layout->topk);
        }
        moe_walk_close(&walk);
    }
    free(first.row);
    free(first.token);
    free(cursor);
    return status;
}

/* ---- the declared order ---------------------------------------------------------------------- */

/* Where in gradient_route each (segment, chunk, source) begins: [ranks, chunks, places], by place
 * since a segment has a place of its own. Marks the segments' starts. */
static void order_cursors(const struct moe_layout *layout, int64_t *cursor, struct moe_order *out)
{
    const struct llep_plan *plan = &layout->plan;
    int64_t at = 0;
    for (int64_t s = 0; s < plan->segment_count; s++) {
        int64_t place = layout->segment_place[s], begin = at;
        for (int64_t c = 0; c < layout->partition.chunks; c++)
            for (int r = 0; r < layout->ranks; r++) {
                cursor[(r * layout->partition.chunks + c) * layout->place_count + place] = at;
                at += moe_layout_count(layout, r, c, place);
            }
        for (int64_t i = begin; i < at; i++)
            out->gradient_starts[i] = i == begin;
    }
}

static int order_rank(const struct moe_layout *layout, int rank, const int32_t *idx,
    int64_t first_token, int64_t *cursor, struct moe_order *out)
{
    struct moe_walk walk;
    int64_t tokens = layout->tokens[rank];
    if (moe_walk_open(&walk, layout, rank))
        return -1;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t row = rank * layout->partition.chunks + moe_chunk_of(&layout->partition, tokens, t);
        for (int slot = 0; slot < layout->topk; slot++) {
            int64_t expert = idx[t * layout->topk + slot];
            if (expert == MOE_EMPTY)
                continue;
            int64_t *at = cursor + row * layout->place_count + moe_walk_place(&walk, expert);
            out->gradient_route[(*at)++] = (first_token + t) * layout->topk + slot;
        }
    }
    moe_walk_close(&walk);
    return 0;
}

int moe_layout_order(
    const struct moe_layout *layout, const int32_t *const *idx, struct moe_order *out)
{
    int64_t *cursor = malloc((size_t)(layout->ranks * moe_layout_cells(layout)) * sizeof *cursor);
    int64_t first_token = 0;
    int status = cursor ? 0 : -1;
    if (status == 0)
        order_cursors(layout, cursor, out);
    for (int r = 0; r < layout->ranks && status == 0; r++) {
        status = order_rank(layout, r, idx[r], first_token, cursor, out);
        first_token += layout->tokens[r];
    }
    free(cursor);
    return status;
}
