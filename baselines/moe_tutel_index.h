/* Sizes and index arrays of tutel: pure functions of all ranks' counts and this rank's routing. */
#pragma once
#include <stdint.h>
#include "ops/moe_route.h"

/* The exchange has a cell of `capacity` rows for every (part, expert) of a source. */
struct tutel_sizes {
    int ranks, topk;
    int64_t tokens, routes; /* of this rank */
    int64_t experts, owned;
    int64_t parts, capacity;
    int64_t part_rows; /* experts x capacity: what a rank sends, and receives, in a part */
    int64_t rows;      /* in all parts */
};

/* counts [ranks, experts]. The capacity is the smallest that drops nothing: the most routes from
 * one rank to one expert, cut into parts. */
struct tutel_sizes tutel_sizes(const struct moe_shape *shape, const struct moe_options *options,
    const int64_t *counts, int rank);

/* In one block. */
struct tutel_index {
    struct expert_group *products;  /* [ranks, owned]: a part's received cells, by source, expert */
    struct expert_group *gradients; /* [parts, ranks, owned]: their rows that are routes, counted
                                       from the source's first */
    int32_t *token_at; /* [rows], by part, expert, then row: whose row is sent; -1 = padding */
    int32_t *route_at; /* [rows]: number of the route among this rank's; -1 = padding */
    int32_t *row;      /* [routes], by token, slot: where it is sent from */
    int32_t *token;    /* [routes] */
    int32_t *slot;     /* [routes]: token * k + slot */
    int32_t *position; /* [tokens, k]: row, -1 = empty */
};
int64_t tutel_block_bytes(const struct tutel_sizes *sizes);
struct tutel_index tutel_index_in(void *block, const struct tutel_sizes *sizes);

/* Fills a block on the host. 0, or -1 when memory is short or an index does not fit 31 bits. */
int tutel_fill(const struct tutel_sizes *sizes, const int64_t *counts, int rank, const int32_t *idx,
    void *block);
