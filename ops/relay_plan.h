/* What meets on a ring, and in which pieces: pure functions of the routing, made on the host.
 *
 * A meeting is a batch of tokens and a run of experts in one place: the routes of these tokens that
 * name these experts. A meeting's routes, by token and slot, are cut into pieces of at most
 * `hop_rows`; each piece is gathered, computed, summed and gone before the next. Within a piece
 * rows lie by expert, then token, then slot, so that a grouped product finds each expert's rows
 * side by side:
 *
 *   routes of a meeting   | t0 s1 e5 | t0 s2 e4 | t3 s0 e5 | ...
 *   rows of a piece       | e4: t0 s2 | e5: t0 s1, t3 s0 | ...
 *
 * A token's sum and an expert's gradient go on from piece to piece, so the cut changes no bit. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/moe.h"
#include "ops/moe.h"

/* What rank `rank` holds at hop `hop` of a ring on which everything moves to the next rank: the
 * partition, or the batch, of rank (rank - hop) mod ranks. */
int relay_held(int rank, int hop, int ranks);

struct relay_meeting {
    const int32_t *idx; /* [tokens, k], the batch's */
    int64_t tokens;
    int64_t first_expert, experts;
    bool fresh; /* gradients of all its experts begin here; else they go on */
    /* found by relay_plan_make */
    int64_t first_route, routes;
    int64_t first_piece, pieces; /* at least one */
};

struct relay_piece {
    int64_t first_route, rows;
    int64_t tokens; /* with a route in the piece */
    int64_t groups; /* all of the meeting's experts where they are fresh, else those with rows */
    bool fresh;
};

struct relay_plan {
    int topk;
    struct relay_meeting *meetings;
    int meeting_count;
    int32_t *route; /* by meeting: token * k + slot, ascending */
    struct relay_piece *pieces;
    int64_t piece_count;
    int64_t most_rows, most_groups, most_block_bytes; /* of a piece */
    int32_t *next;                                    /* [most experts of a meeting]: scratch */
};

/* `experts` in all. hop_rows 0 = a meeting is one piece. No expert is in two meetings of one batch.
 * 0, or -1 when memory is short or a batch has more than 2^31 - 1 slots. */
int relay_plan_make(struct relay_plan *plan, int topk, int64_t experts, int64_t hop_rows,
    const struct relay_meeting *meetings, int count);
void relay_plan_free(struct relay_plan *plan);

/* A piece's index arrays, in one block. */
struct relay_block {
    struct expert_group *groups;
    int32_t *token;    /* [rows]: whose row it is */
    int32_t *route;    /* [rows]: token * k + slot */
    int32_t *summed;   /* [tokens]: those with a row, ascending */
    int32_t *position; /* [tokens, k]: row; -1 = none in this piece */
};
int64_t relay_block_bytes(int64_t groups, int64_t rows, int64_t tokens, int topk);
struct relay_block relay_block_in(void *block, const struct relay_piece *piece);

/* Fills a block on the host; groups' weights count from the meeting's first expert. */
void relay_block_fill(const struct relay_plan *plan, const struct relay_meeting *meeting,
    const struct relay_piece *piece, void *block);
