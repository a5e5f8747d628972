/* Meetings: their routes in one list, cut into pieces, and each piece's index arrays. Meetings of
 * one batch that follow each other are listed in one walk over its slots. */
#include "ops/relay_plan.h"
#include <stdlib.h>
#include <string.h>

int relay_held(int rank, int hop, int ranks)
{
    return ((rank - hop) % ranks + ranks) % ranks;
}

/* ---- routes ---------------------------------------------------------------------------------- */

/* Meetings [first, last) that share a batch, and which of them an expert is in: 1 + its number, 0 =
 * none. number[1 + e] is expert e's, so that an empty slot has one too. */
struct run {
    struct relay_meeting *first, *last;
    int32_t *number; /* [1 + experts] */
    int64_t *next; /* [1 + meetings]: where the next route of each is listed; the first = nowhere */
};

static void run_free(struct run *run)
{
    free(run->number);
    free(run->next);
}

/* 0, or -1 when memory is short; run_free in either case. */
static int run_at(
    struct run *run, int64_t experts, struct relay_meeting *first, struct relay_meeting *end)
{
    *run = (struct run){.first = first, .last = first};
    /* where both batches are empty the pointers alone say nothing */
    while (run->last < end && run->last->idx == first->idx && run->last->tokens == first->tokens)
        run->last++;
    run->number = calloc((size_t)experts + 1, sizeof *run->number);
    run->next = calloc((size_t)(run->last - first) + 1, sizeof *run->next);
    if (!run->number || !run->next)
        return -1;
    for (struct relay_meeting *m = first; m < run->last; m++)
        for (int64_t e = m->first_expert; e < m->first_expert + m->experts; e++)
            run->number[1 + e] = (int32_t)(m - first) + 1;
    return 0;
}

static void count_routes(const struct run *run, int topk)
{
    int64_t slots = run->first->tokens * topk;
    for (int64_t i = 0; i < slots; i++)
        run->next[run->number[1 + run->first->idx[i]]]++;
    for (struct relay_meeting *m = run->first; m < run->last; m++)
        m->routes = run->next[1 + (m - run->first)];
}

static void list_routes(const struct run *run, int topk, int32_t *route)
{
    int64_t slots = run->first->tokens * topk;
    for (struct relay_meeting *m = run->first; m < run->last; m++)
        run->next[1 + (m - run->first)] = m->first_route;
    for (int64_t i = 0; i < slots; i++) {
        int32_t number = run->number[1 + run->first->idx[i]];
        if (number)
            route[run->next[number]++] = (int32_t)i;
    }
}

/* Every meeting's routes, counted or listed. */
static int walk(struct relay_plan *plan, int64_t experts, bool list)
{
    struct relay_meeting *end = plan->meetings + plan->meeting_count;
    for (struct relay_meeting *m = plan->meetings; m < end;) {
        struct run run;
        int status = run_at(&run, experts, m, end);
        if (status == 0 && list)
            list_routes(&run, plan->topk, plan->route);
        else if (status == 0)
            count_routes(&run, plan->topk);
        m = run.last;
        run_free(&run);
        if (status)
            return -1;
    }
    return 0;
}

static int find_routes(struct relay_plan *plan, int64_t experts)
{
    int64_t total = 0;
    if (walk(plan, experts, false))
        return -1;
    for (int i = 0; i < plan->meeting_count; i++) {
        plan->meetings[i].first_route = total;
        total += plan->meetings[i].routes;
    }
    plan->route = malloc((size_t)(total + 1) * sizeof *plan->route);
    return plan->route ? walk(plan, experts, true) : -1;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static int64_t pieces_of(const struct relay_meeting *m, int64_t hop_rows)
{
    return hop_rows > 0 && m->routes > hop_rows ? (m->routes + hop_rows - 1) / hop_rows : 1;
}

/* Routes of a piece by expert, into plan->next. Returns how many experts have any. */
static int64_t count_by_expert(const struct relay_plan *plan, const struct relay_meeting *meeting,
    const struct relay_piece *piece)
{
    const int32_t *route = plan->route + piece->first_route, *idx = meeting->idx;
    const int32_t first_expert = (int32_t)meeting->first_expert;
    int64_t with_rows = 0;
    memset(plan->next, 0, (size_t)meeting->experts * sizeof *plan->next);
    for (int64_t i = 0; i < piece->rows; i++)
        plan->next[idx[route[i]] - first_expert]++;
    for (int64_t e = 0; e < meeting->experts; e++)
        with_rows += plan->next[e] > 0;
    return with_rows;
}

static int64_t count_tokens(const struct relay_plan *plan, const struct relay_piece *piece)
{
    int64_t tokens = 0;
    int32_t last = -1;
    for (int64_t i = 0; i < piece->rows; i++) {
        int32_t token = plan->route[piece->first_route + i] / plan->topk;
        tokens += token != last;
        last = token;
    }
    return tokens;
}

static void cut(struct relay_plan *plan, struct relay_meeting *meeting, int64_t hop_rows)
{
    int64_t done = 0;
    for (int64_t p = 0; p < meeting->pieces; p++) {
        struct relay_piece *piece = &plan->pieces[meeting->first_piece + p];
        int64_t left = meeting->routes - done;
        *piece = (struct relay_piece){.first_route = meeting->first_route + done,
            .rows = meeting->pieces > 1 && left > hop_rows ? hop_rows : left,
            .fresh = meeting->fresh && p == 0};
        int64_t with_rows = count_by_expert(plan, meeting, piece);
        piece->groups = piece->fresh ? meeting->experts : with_rows;
        piece->tokens = count_tokens(plan, piece);
        done += piece->rows;
        int64_t bytes = relay_block_bytes(piece->groups, piece->rows, piece->tokens, plan->topk);
        if (piece->rows > plan->most_rows)
            plan->most_rows = piece->rows;
        if (piece->groups > plan->most_groups)
            plan->most_groups = piece->groups;
        if (bytes > plan->most_block_bytes)
            plan->most_block_bytes = bytes;
    }
}

static int cut_all(struct relay_plan *plan, int64_t hop_rows)
{
    int64_t most_experts = 0;
    for (int i = 0; i < plan->meeting_count; i++) {
        struct relay_meeting *m = &plan->meetings[i];
        m->first_piece = plan->piece_count;
        m->pieces = pieces_of(m, hop_rows);
        plan->piece_count += m->pieces;
        most_experts = m->experts > most_experts ? m->experts : most_experts;
    }
    plan->pieces = malloc((size_t)(plan->piece_count + 1) * sizeof *plan->pieces);
    plan->next = malloc((size_t)(most_experts + 1) * sizeof *plan->next);
    if (!plan->pieces || !plan->next)
        return -1;
    for (int i = 0; i < plan->meeting_count; i++)
        cut(plan, &plan->meetings[i], hop_rows);
    return 0;
}

int relay_plan_make(struct relay_plan *plan, int topk, int64_t experts, int64_t hop_rows,
    const struct relay_meeting *meetings, int count)
{
    *plan = (struct relay_plan){.topk = topk,
        .meetings = malloc((size_t)(count + 1) * sizeof *meetings),
        .meeting_count = count};
    bool good = plan->meetings;
    for (int i = 0; good && i < count; i++) {
        plan->meetings[i] = meetings[i];
        good = meetings[i].tokens <= INT32_MAX / topk;
    }
    if (good && !find_routes(plan, experts) && !cut_all(plan, hop_rows))
        return 0;
    relay_plan_free(plan);
    return -1;
}

void relay_plan_free(struct relay_plan *plan)
{
    free(plan->meetings);
    free(plan->route);
    free(plan->pieces);
    free(plan->next);
    *plan = (struct relay_plan){0};
}

/* ---- index arrays ---------------------------------------------------------------------------- */

int64_t relay_block_bytes(int64_t groups, int64_t rows, int64_t tokens, int topk)
{
    return groups * (int64_t)sizeof(struct expert_group) +
           (2 * rows + tokens * (topk + 1)) * (int64_t)sizeof(int32_t);
}

struct relay_block relay_block_in(void *block, const struct relay_piece *piece)
{
    struct relay_block at = {.groups = block};
    at.token = (int32_t *)(at.groups + piece->groups);
    at.route = at.token + piece->rows;
    at.summed = at.route + piece->rows;
    at.position = at.summed + piece->tokens;
    return at;
}

/* The groups, and in plan->next each expert's first row. */
static void fill_groups(const struct relay_plan *plan, const struct relay_meeting *meeting,
    const struct relay_piece *piece, struct expert_group *groups)
{
    int32_t first = 0;
    count_by_expert(plan, meeting, piece);
    for (int64_t e = 0; e < meeting->experts; e++) {
        int32_t rows = plan->next[e];
        if (rows || piece->fresh)
            *groups++ = (struct expert_group){.first = first,
                .rows = rows,
                .weight = (int32_t)e,
                .init = piece->fresh ? GEMM_FRESH : GEMM_CHAIN};
        plan->next[e] = first;
        first += rows;
    }
}

void relay_block_fill(const struct relay_plan *plan, const struct relay_meeting *meeting,
    const struct relay_piece *piece, void *block)
{
    struct relay_block at = relay_block_in(block, piece);
    int64_t token_count = 0;
    int32_t last = -1;
    fill_groups(plan, meeting, piece, at.groups);
    for (int64_t i = 0; i < piece->tokens * plan->topk; i++)
        at.position[i] = -1;
    for (int64_t i = 0; i < piece->rows; i++) {
        int32_t route = plan->route[piece->first_route + i], token = route / plan->topk;
        int32_t row = plan->next[meeting->idx[route] - meeting->first_expert]++;
        if (token != last)
            at.summed[token_count++] = token;
        last = token;
        at.token[row] = token;
        at.route[row] = route;
        at.position[(token_count - 1) * plan->topk + route % plan->topk] = row;
    }
}
