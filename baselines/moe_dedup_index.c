/* Where a rank's rows go when a token travels once per rank. Rows out are by destination, then
 * token; rows in by source, then token; expanded rows by expert, then source, token, slot. */
#include "baselines/moe_dedup_index.h"
#include <stdbool.h>
#include <stdlib.h>

/* ---- who meets whom ---------------------------------------------------------------------------
 */

/* Does a token, given its slots, go to this rank? */
static bool meets(const struct moe_layout *layout, const int32_t *slots, int rank)
{
    for (int j = 0; j < layout->topk; j++)
        if (slots[j] != MOE_EMPTY && slots[j] / layout->owned == rank)
            return true;
    return false;
}

int64_t dedup_rows(const struct moe_layout *layout, const int32_t *const *idx, int from, int to)
{
    int64_t rows = 0;
    for (int64_t t = 0; t < layout->tokens[from]; t++)
        rows += meets(layout, idx[from] + t * layout->topk, to);
    return rows;
}

struct dedup_sizes dedup_sizes(const struct moe_layout *layout, const int32_t *const *idx, int rank)
{
    struct dedup_sizes z = {.tokens = layout->tokens[rank],
        .routes = moe_layout_routes(layout, rank),
        .expanded = moe_layout_received(layout, rank, 0),
        .groups = moe_layout_group_count(layout, rank, 0),
        .meetings = layout->topk < layout->ranks ? layout->topk : layout->ranks};
    for (int peer = 0; peer < layout->ranks; peer++) {
        z.sent += dedup_rows(layout, idx, rank, peer);
        z.received += dedup_rows(layout, idx, peer, rank);
    }
    return z;
}

/* ---- index arrays -----------------------------------------------------------------------------
 */

int64_t dedup_block_bytes(const struct dedup_sizes *z, int topk)
{
    int64_t integers =
        z->sent + z->tokens * z->meetings + 2 * z->routes + 2 * z->expanded + z->received * topk;
    return z->groups * (int64_t)sizeof(struct expert_group) + integers * (int64_t)sizeof(int32_t);
}

struct dedup_index dedup_index_in(void *block, const struct dedup_sizes *z)
{
    struct dedup_index at;
    at.sent_token = (int32_t *)((struct expert_group *)block + z->groups);
    at.home = at.sent_token + z->sent;
    at.route = at.home + z->tokens * z->meetings;
    at.value = at.route + z->routes;
    at.row = at.value + z->routes;
    at.served = at.row + z->expanded;
    at.position = at.served + z->expanded;
    return at;
}

static void index_home(const struct moe_layout *layout, int rank, const int32_t *idx,
    const struct dedup_sizes *z, struct dedup_index *at)
{
    int topk = layout->topk;
    int32_t row = 0;
    int64_t route = 0;
    for (int64_t i = 0; i < z->tokens * z->meetings; i++)
        at->home[i] = -1;
    for (int peer = 0; peer < layout->ranks; peer++)
        for (int32_t t = 0; t < layout->tokens[rank]; t++) {
            const int32_t *slots = idx + (int64_t)t * topk;
            if (!meets(layout, slots, peer))
                continue;
            int32_t *home = at->home + (int64_t)t * z->meetings;
            while (*home >= 0)
                home++;
            *home = row;
            at->sent_token[row] = t;
            for (int j = 0; j < topk; j++) {
                if (slots[j] == MOE_EMPTY || slots[j] / layout->owned != peer)
                    continue;
                at->route[route] = t * topk + j;
                at->value[route++] = row * topk + j;
            }
            row++;
        }
}

/* `next` [owned]: the first expanded row of each expert. */
static void index_served(const struct moe_layout *layout, int rank, const int32_t *const *idx,
    int32_t *next, struct dedup_index *at)
{
    int topk = layout->topk;
    int32_t row = 0;
    for (int source = 0; source < layout->ranks; source++)
        for (int64_t t = 0; t < layout->tokens[source]; t++) {
            const int32_t *slots = idx[source] + t * topk;
            if (!meets(layout, slots, rank))
                continue;
            for (int j = 0; j < topk; j++) {
                int32_t *position = at->position + (int64_t)row * topk + j;
                *position = -1;
                if (slots[j] == MOE_EMPTY || slots[j] / layout->owned != rank)
                    continue;
                *position = next[slots[j] % layout->owned]++;
                at->row[*position] = row;
                at->served[*position] = row * topk + j;
            }
            row++;
        }
}

int dedup_fill(const struct moe_layout *layout, int rank, const int32_t *const *idx,
    const struct dedup_sizes *z, void *block)
{
    struct expert_group *groups = block;
    struct dedup_index at = dedup_index_in(block, z);
    int32_t *next = calloc((size_t)layout->owned, sizeof *next);
    if (!next || z->sent > INT32_MAX / layout->topk || z->received > INT32_MAX / layout->topk) {
        free(next);
        return -1;
    }
    moe_layout_groups(layout, rank, 0, groups);
    for (int64_t g = 0; g < z->groups; g++)
        next[groups[g].weight] = (int32_t)groups[g].first;
    index_home(layout, rank, idx[rank], z, &at);
    index_served(layout, rank, idx, next, &at);
    free(next);
    return 0;
}
