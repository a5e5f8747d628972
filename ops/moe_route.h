/* Where every route of a layer goes: pure functions of the routing, made on the host.
 *
 * A layer's tokens are cut into chunks; a plan gives each expert's routes to its owner and to
 * helpers. A place is one expert on one rank: a matrix there, owned or lent. From the counts of all
 * ranks follow, for every chunk, who sends how many rows to which place, and at which row each
 * lands:
 *
 *   rows to send, by place (so by destination rank, then matrix), then token, then slot
 *
 *     | rank 0: matrix 0 | matrix 1 | rank 1: matrix 0 | ... |
 *
 *   rows received, by matrix, then source rank, then token, then slot
 *
 *     | matrix 0: from rank 0 | from rank 1 | ... | matrix 1: from rank 0 | ... |
 *
 * So a grouped product finds each matrix's rows side by side where they land, and a replay finds
 * every row where it was: a row's place depends on the counts, never on when it arrived. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/comm.h"
#include "kernels/moe.h"
#include "ops/llep_plan.h"
#include "ops/moe.h"

/* ---- chunks -----------------------------------------------------------------------------------
 * Strided: chunk i of K holds tokens i, i + K, i + 2K, ... Contiguous: chunk i holds the i-th run
 * of ceil(N / K) tokens. A chunk may be empty. */
struct moe_partition {
    int64_t chunks; /* K >= 1 */
    enum moe_chunks kind;
};

/* K: chunk_count where it is given, else min(ceil(N/c), max_chunks) with the largest N over the
 * ranks (Eq. 1), at least 1. */
int64_t moe_chunk_count(const struct moe_shape *shape, const struct moe_options *options);

/* c_eff = ceil(N / K) with the largest N: no rank's chunk has more tokens. */
int64_t moe_chunk_tokens_max(const struct moe_shape *shape, int64_t chunks);

/* How many of a rank's `tokens` are in a chunk; the i-th of them; the chunk that a token is in. */
int64_t moe_chunk_tokens(const struct moe_partition *partition, int64_t tokens, int64_t chunk);
int64_t moe_chunk_token(
    const struct moe_partition *partition, int64_t tokens, int64_t chunk, int64_t i);
int64_t moe_chunk_of(const struct moe_partition *partition, int64_t tokens, int64_t token);

/* ---- the layout ------------------------------------------------------------------------------ */

struct moe_place {
    int64_t expert;
    int32_t matrix; /* on its rank: experts owned 0 .. E/P - 1, lent ones from E/P on */
    int rank;
};

struct moe_layout {
    int ranks, topk;
    int64_t experts, owned; /* all, and a rank's */
    int64_t *tokens;        /* [ranks] */
    struct moe_partition partition;
    int64_t *counts; /* [ranks, experts]: routes by source */
    struct llep_plan plan;
    struct moe_place *places; /* by rank, then matrix: owned by expert, then lent by expert */
    int64_t place_count;      /* experts + plan.transfers */
    int64_t *rank_first;      /* [ranks + 1]: a rank's places */
    int64_t *segment_place;   /* [plan.segment_count] */
    int32_t *table;           /* [ranks, chunks, place_count]: rows sent from a rank to a place */
};

/* The layout of a layer, given all ranks' routing: idx[r] is [N_r, k]. `llep` NULL = every expert
 * stays with its owner. 0, or -1 when memory is short or a rank has more than 2^31 - 1 routes. */
int moe_layout_from_routing(struct moe_layout *layout, const struct moe_shape *shape,
    const struct moe_partition *partition, const struct llep_options *llep,
    const int32_t *const *idx);

/* The same where each rank knows its own routing; collective. One exchange of counts, and where
 * there are several chunks one of the table. DEV_OK, or the device's status, failed. */
enum dev_status moe_layout_agree(struct moe_layout *layout, const struct moe *m,
    const struct moe_partition *partition, const struct llep_options *llep);

/* Who makes the plan, from the layout's counts: 0, or -1 when memory is short. An expert's segments
 * may be empty here: its rank is lent the expert without routes for it. */
struct moe_planner {
    int (*make)(struct llep_plan *plan, const struct moe_layout *layout, const void *context);
    const void *context;
};
int moe_layout_from_planner(struct moe_layout *layout, const struct moe_shape *shape,
    const struct moe_partition *partition, const struct moe_planner *planner,
    const int32_t *const *idx);
enum dev_status moe_layout_agree_by(struct moe_layout *layout, const struct moe *m,
    const struct moe_partition *partition, const struct moe_planner *planner);

/* Its three steps: a rank's counts [experts]; plan and places from all ranks' counts [ranks,
 * experts], the table left zero; a rank's rows of the table [chunks, place_count]. 0, or -1 when
 * memory is short. */
void moe_count_routes(const struct moe_shape *shape, int rank, const int32_t *idx, int64_t *counts);
int64_t *moe_gather_counts(const struct moe *m); /* all ranks', on every rank; collective. The
                                                    caller's to free; NULL after a failure */
int moe_layout_plan(struct moe_layout *layout, const struct moe_shape *shape,
    const struct moe_partition *partition, const struct moe_planner *planner,
    const int64_t *counts);
int moe_layout_rows(const struct moe_layout *layout, int rank, const int32_t *idx, int32_t *rows);

void moe_layout_free(struct moe_layout *layout);

/* Rows from a rank to a place in one chunk. */
int64_t moe_layout_count(const struct moe_layout *layout, int rank, int64_t chunk, int64_t place);

/* Rows that a rank sends, and receives, in one chunk; over all chunks the most. */
int64_t moe_layout_sent(const struct moe_layout *layout, int rank, int64_t chunk);
int64_t moe_layout_received(const struct moe_layout *layout, int rank, int64_t chunk);
int64_t moe_layout_most_sent(const struct moe_layout *layout, int rank);
int64_t moe_layout_most_received(const struct moe_layout *layout, int rank);

/* A rank's routes: what it sends in all chunks together. */
int64_t moe_layout_routes(const struct moe_layout *layout, int rank);

/* Places of a rank, and how many of them are lent. */
int64_t moe_layout_places(const struct moe_layout *layout, int rank);
int64_t moe_layout_lent(const struct moe_layout *layout, int rank);

/* How many groups a chunk's received rows form; over all chunks. */
int64_t moe_layout_group_count(const struct moe_layout *layout, int rank, int64_t chunk);
int64_t moe_layout_group_total(const struct moe_layout *layout, int rank);

/* The received rows of a chunk by matrix: at most one group per place of the rank. In the first
 * chunk every matrix has a group, with GEMM_FRESH; later only those with rows, with GEMM_CHAIN: so
 * a gradient is one chain over the chunks. Returns how many. */
int64_t moe_layout_groups(
    const struct moe_layout *layout, int rank, int64_t chunk, struct expert_group *groups);

/* A rank's index arrays, for all chunks one after the other. */
struct moe_index {
    int32_t *token;       /* [routes]: whose row is sent */
    int32_t *route;       /* [routes]: token * k + slot */
    int32_t *chunk_token; /* [N]: tokens by chunk */
    int32_t *position;    /* [N, k], in that order: row among the chunk's sent ones; -1 = empty */
};

/* Fills the arrays of `index`. 0, or -1 when memory is short. */
int moe_layout_index(
    const struct moe_layout *layout, int rank, const int32_t *idx, const struct moe_index *index);

/* Writes the gradient segments that follow from the layout into the default order: an expert's
 * owner first, then its helpers in plan order, each one chain over chunks, then source rank, token
 * and slot. 0, or -1 when memory is short. */
int moe_layout_order(
    const struct moe_layout *layout, const int32_t *const *idx, struct moe_order *out);
