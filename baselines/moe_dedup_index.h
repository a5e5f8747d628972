/* Index arrays of alltoall-dedup: who meets whom, and where every row goes. Pure functions of all
 * ranks' routing. */
#pragma once
#include <stdint.h>
#include "ops/moe_route.h"

/* What follows from all ranks' routing, for one rank. */
struct dedup_sizes {
    int64_t tokens, routes;   /* N and the routes of this rank */
    int64_t sent, received;   /* rows: a token and a rank that serves it */
    int64_t expanded, groups; /* routes that this rank serves, and their groups */
    int meetings;             /* ranks that a token can meet: min(k, P) */
};

/* In one block, behind the groups. */
struct dedup_index {
    /* at home */
    int32_t *sent_token; /* [sent], by rank, then token */
    int32_t *home;       /* [tokens, meetings]: a token's sent rows by rank; -1 = no more */
    int32_t *route;      /* [routes]: token * k + slot */
    int32_t *value;      /* [routes]: its sent row * k + slot */
    /* where the experts are */
    int32_t *row;      /* [expanded]: received row */
    int32_t *served;   /* [expanded]: received row * k + slot */
    int32_t *position; /* [received, k]: expanded row; -1 = empty, or another rank's */
};

/* Rows from one rank to another: tokens with a slot that it serves. */
int64_t dedup_rows(const struct moe_layout *layout, const int32_t *const *idx, int from, int to);

struct dedup_sizes dedup_sizes(
    const struct moe_layout *layout, const int32_t *const *idx, int rank);

int64_t dedup_block_bytes(const struct dedup_sizes *sizes, int topk);
struct dedup_index dedup_index_in(void *block, const struct dedup_sizes *sizes);

/* Fills a block on the host. 0, or -1 when memory is short or an index does not fit 31 bits. */
int dedup_fill(const struct moe_layout *layout, int rank, const int32_t *const *idx,
    const struct dedup_sizes *sizes, void *block);
