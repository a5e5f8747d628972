/* Chunks, places and the table of rows, from counts to index arrays. All of it is integer work on
 * the host that every rank repeats on the same numbers; only a rank's own routing is its own. */
#include "ops/moe_route.h"
#include "ops/moe_walk.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static int64_t most_tokens(const struct moe_shape *shape)
{
    int64_t most = 0;
    for (int r = 0; r < shape->ranks; r++)
        most = max64(most, shape->tokens[r]);
    return most;
}

int64_t moe_chunk_count(const struct moe_shape *shape, const struct moe_options *options)
{
    if (options->chunk_count > 0)
        return options->chunk_count;
    if (options->chunk_budget <= 0)
        return 1;
    int64_t chunks = max64(ceil_div(most_tokens(shape), options->chunk_budget), 1);
    return options->max_chunks > 0 ? min64(chunks, options->max_chunks) : chunks;
}

int64_t moe_chunk_tokens_max(const struct moe_shape *shape, int64_t chunks)
{
    return ceil_div(most_tokens(shape), chunks);
}

/* Tokens in a whole run of a contiguous partition, at least 1. */
static int64_t run_tokens(const struct moe_partition *partition, int64_t tokens)
{
    return max64(ceil_div(tokens, partition->chunks), 1);
}

int64_t moe_chunk_tokens(const struct moe_partition *partition, int64_t tokens, int64_t chunk)
{
    if (partition->kind == MOE_CHUNKS_STRIDED)
        return ceil_div(max64(tokens - chunk, 0), partition->chunks);
    int64_t run = run_tokens(partition, tokens);
    return max64(min64(tokens - chunk * run, run), 0);
}

int64_t moe_chunk_token(
    const struct moe_partition *partition, int64_t tokens, int64_t chunk, int64_t i)
{
    if (partition->kind == MOE_CHUNKS_STRIDED)
        return chunk + i * partition->chunks;
    return chunk * run_tokens(partition, tokens) + i;
}

int64_t moe_chunk_of(const struct moe_partition *partition, int64_t tokens, int64_t token)
{
    if (partition->kind == MOE_CHUNKS_STRIDED)
        return token % partition->chunks;
    return token / run_tokens(partition, tokens);
}

/* ---- plan and places ------------------------------------------------------------------------- */

void moe_count_routes(const struct moe_shape *shape, int rank, const int32_t *idx, int64_t *counts)
{
    int64_t slots = shape->tokens[rank] * shape->topk;
    memset(counts, 0, (size_t)shape->experts * sizeof *counts);
    for (int64_t i = 0; i < slots; i++)
        if (idx[i] != MOE_EMPTY)
            counts[idx[i]]++;
}

/* The planner behind moe_layout_agree and moe_layout_from_routing; context: LLEP's options, or
 * NULL.
 */
static int make_llep_plan(
    struct llep_plan *plan, const struct moe_layout *layout, const void *context)
{
    const struct llep_options at_home = {.alpha = 1.0, .min_gemm_tokens = 1, .lambda = INFINITY};
    const struct llep_options *llep = context;
    int64_t *total = calloc((size_t)layout->experts, sizeof *total);
    if (!total)
        return -1;
    for (int r = 0; r < layout->ranks; r++)
        for (int64_t e = 0; e < layout->experts; e++)
            total[e] += layout->counts[r * layout->experts + e];
    int status = llep_plan(plan, layout->ranks, layout->experts, total, llep ? llep : &at_home);
    free(total);
    return status;
}

static struct moe_planner llep_planner(const struct llep_options *llep)
{
    return (struct moe_planner){.make = make_llep_plan, .context = llep};
}

static bool is_lent(const struct moe_layout *layout, const struct llep_segment *segment)
{
    return segment->expert / layout->owned != segment->rank;
}

/* A rank's places: its own experts, then what it was lent. Segments come by expert, and so do both.
 */
static int64_t make_places_of(struct moe_layout *layout, int rank, int64_t at)
{
    const struct llep_plan *plan = &layout->plan;
    int32_t matrix = 0;
    layout->rank_first[rank] = at;
    for (int64_t i = 0; i < layout->owned; i++)
        layout->places[at++] = (struct moe_place){
            .expert = rank * layout->owned + i, .matrix = matrix++, .rank = rank};
    for (int64_t s = 0; s < plan->segment_count; s++) {
        const struct llep_segment *segment = &plan->segments[s];
        if (segment->rank != rank)
            continue;
        layout->segment_place[s] = is_lent(layout, segment)
                                       ? at
                                       : layout->rank_first[rank] + segment->expert % layout->owned;
        if (is_lent(layout, segment))
            layout->places[at++] =
                (struct moe_place){.expert = segment->expert, .matrix = matrix++, .rank = rank};
    }
    return at;
}

static int make_places(struct moe_layout *layout)
{
    const struct llep_plan *plan = &layout->plan;
    layout->place_count = layout->experts + plan->transfers;
    layout->places = calloc((size_t)layout->place_count, sizeof *layout->places);
    layout->rank_first = calloc((size_t)layout->ranks + 1, sizeof *layout->rank_first);
    layout->segment_place = calloc((size_t)plan->segment_count + 1, sizeof *layout->segment_place);
    layout->table = calloc((size_t)(layout->ranks * layout->partition.chunks * layout->place_count),
        sizeof *layout->table);
    if (!layout->places || !layout->rank_first || !layout->segment_place || !layout->table)
        return -1;
    int64_t at = 0;
    for (int r = 0; r < layout->ranks; r++)
        at = make_places_of(layout, r, at);
    layout->rank_first[layout->ranks] = at;
    return 0;
}

int moe_layout_plan(struct moe_layout *layout, const struct moe_shape *shape,
    const struct moe_partition *partition, const struct moe_planner *planner, const int64_t *counts)
{
    size_t ranks = (size_t)shape->ranks, cells = ranks * (size_t)shape->experts;
    *layout = (struct moe_layout){.ranks = shape->ranks,
        .topk = shape->topk,
        .experts = shape->experts,
        .owned = shape->experts / shape->ranks,
        .partition = *partition,
        .tokens = malloc(ranks * sizeof *layout->tokens),
        .counts = malloc(cells * sizeof *layout->counts)};
    bool good = layout->tokens && layout->counts;
    for (int r = 0; good && r < shape->ranks; r++)
        good = shape->tokens[r] <= INT32_MAX / shape->topk;
    if (good) {
        memcpy(layout->tokens, shape->tokens, ranks * sizeof *layout->tokens);
        memcpy(layout->counts, counts, cells * sizeof *layout->counts);
        good = !planner->make(&layout->plan, layout, planner->context) && !make_places(layout);
    }
    if (!good)
        moe_layout_free(layout);
    return good ? 0 : -1;
}

void moe_layout_free(struct moe_layout *layout)
{
    free(layout->tokens);
    free(layout->counts);
    llep_plan_free(&layout->plan);
    free(layout->places);
    free(layout->rank_first);
    free(layout->segment_place);
    free(layout->table);
    *layout = (struct moe_layout){0};
}

/* ---- the table ------------------------------------------------------------------------------- */

int moe_layout_rows(const struct moe_layout *layout, int rank, const int32_t *idx, int32_t *rows)
{
    struct moe_walk walk;
    int64_t tokens = layout->tokens[rank];
    if (moe_walk_open(&walk, layout, rank))
        return -1;
    memset(rows, 0, (size_t)moe_layout_cells(layout) * sizeof *rows);
    for (int64_t t = 0; t < tokens; t++) {
        int32_t *row = rows + moe_chunk_of(&layout->partition, tokens, t) * layout->place_count;
        for (const int32_t *e = idx + t * layout->topk; e < idx + (t + 1) * layout->topk; e++)
            if (*e != MOE_EMPTY)
                row[moe_walk_place(&walk, *e)]++;
    }
    moe_walk_close(&walk);
    return 0;
}

/* One chunk: what a rank sends to a place follows from the counts alone, as the overlap of its
 * positions with the segment. */
static void fill_whole(struct moe_layout *layout)
{
    const struct llep_plan *plan = &layout->plan;
    for (int64_t s = 0; s < plan->segment_count; s++) {
        const struct llep_segment *segment = &plan->segments[s];
        int64_t first = 0;
        for (int r = 0; r < layout->ranks; r++) {
            int64_t last = first + layout->counts[r * layout->experts + segment->expert];
            int64_t shared = min64(last, segment->last) - max64(first, segment->first);
            layout->table[r * layout->place_count + layout->segment_place[s]] =
                (int32_t)max64(shared, 0);
            first = last;
        }
    }
}

int moe_layout_from_planner(struct moe_layout *layout, const struct moe_shape *shape,
    const struct moe_partition *partition, const struct moe_planner *planner,
    const int32_t *const *idx)
{
    int64_t *counts = malloc((size_t)(shape->ranks * shape->experts) * sizeof *counts);
    if (!counts)
        return -1;
    for (int r = 0; r < shape->ranks; r++)
        moe_count_routes(shape, r, idx[r], counts + r * shape->experts);
    int status = moe_layout_plan(layout, shape, partition, planner, counts);
    free(counts);
    for (int r = 0; r < shape->ranks && status == 0; r++)
        status = moe_layout_rows(layout, r, idx[r], layout->table + r * moe_layout_cells(layout));
    if (status)
        moe_layout_free(layout);
    return status;
}

int moe_layout_from_routing(struct moe_layout *layout, const struct moe_shape *shape,
    const struct moe_partition *partition, const struct llep_options *llep,
    const int32_t *const *idx)
{
    struct moe_planner planner = llep_planner(llep);
    return moe_layout_from_planner(layout, shape, partition, &planner, idx);
}

/* ---- agreeing -------------------------------------------------------------------------------- */

/* Each rank's rows of the table, made from its own routing, to all. */
static int gather_table(struct moe_layout *layout, const struct moe *m)
{
    int64_t rows = moe_layout_cells(layout);
    int32_t *own = malloc((size_t)rows * sizeof *own);
    int status = own ? moe_layout_rows(layout, m->rank, m->idx, own) : -1;
    if (status)
        dev_fail(m->dev, DEV_FAILED, "no host memory for the table of rows");
    else
        status = comm_host_all_gather(m->comm, own, layout->table, rows * (int64_t)sizeof *own);
    free(own);
    return status;
}

int64_t *moe_gather_counts(const struct moe *m)
{
    size_t experts = (size_t)m->shape.experts;
    int64_t *own = malloc(experts * sizeof *own);
    int64_t *all = malloc((size_t)m->shape.ranks * experts * sizeof *all);
    int status = own && all ? 0 : -1;
    if (status)
        dev_fail(m->dev, DEV_FAILED, "no host memory for the counts of routes");
    else
        moe_count_routes(&m->shape, m->rank, m->idx, own);
    if (status == 0)
        status = comm_host_all_gather(m->comm, own, all, (int64_t)(experts * sizeof *own));
    free(own);
    if (status) {
        free(all);
        all = NULL;
    }
    return all;
}

enum dev_status moe_layout_agree_by(struct moe_layout *layout, const struct moe *m,
    const struct moe_partition *partition, const struct moe_planner *planner)
{
    int64_t *all = moe_gather_counts(m);
    *layout = (struct moe_layout){0};
    if (all) {
        if (moe_layout_plan(layout, &m->shape, partition, planner, all))
            dev_fail(m->dev, DEV_FAILED,
                "no host memory for the layout, or a rank has more than %d routes", INT32_MAX);
        else if (partition->chunks == 1)
            fill_whole(layout);
        else
            gather_table(layout, m);
    }
    free(all);
    if (dev_status(m->dev) != DEV_OK)
        moe_layout_free(layout);
    return dev_status(m->dev);
}

enum dev_status moe_layout_agree(struct moe_layout *layout, const struct moe *m,
    const struct moe_partition *partition, const struct llep_options *llep)
{
    struct moe_planner planner = llep_planner(llep);
    return moe_layout_agree_by(layout, m, partition, &planner);
}

/* ---- sums over the table --------------------------------------------------------------------- */

int64_t moe_layout_count(const struct moe_layout *layout, int rank, int64_t chunk, int64_t place)
{
    int64_t row = rank * layout->partition.chunks + chunk;
    return layout->table[row * layout->place_count + place];
}

int64_t moe_layout_sent(const struct moe_layout *layout, int rank, int64_t chunk)
{
    int64_t sum = 0;
    for (int64_t p = 0; p < layout->place_count; p++)
        sum += moe_layout_count(layout, rank, chunk, p);
    return sum;
}

/* Rows of a chunk that a place receives from all ranks. */
static int64_t received_by_place(const struct moe_layout *layout, int64_t chunk, int64_t place)
{
    int64_t sum = 0;
    for (int r = 0; r < layout->ranks; r++)
        sum += moe_layout_count(layout, r, chunk, place);
    return sum;
}

int64_t moe_layout_received(const struct moe_layout *layout, int rank, int64_t chunk)
{
    int64_t sum = 0;
    for (int64_t p = layout->rank_first[rank]; p < layout->rank_first[rank + 1]; p++)
        sum += received_by_place(layout, chunk, p);
    return sum;
}

int64_t moe_layout_most_sent(const struct moe_layout *layout, int rank)
{
    int64_t most = 0;
    for (int64_t c = 0; c < layout->partition.chunks; c++)
        most = max64(most, moe_layout_sent(layout, rank, c));
    return most;
}

int64_t moe_layout_most_received(const struct moe_layout *layout, int rank)
{
    int64_t most = 0;
    for (int64_t c = 0; c < layout->partition.chunks; c++)
        most = max64(most, moe_layout_received(layout, rank, c));
    return most;
}

int64_t moe_layout_routes(const struct moe_layout *layout, int rank)
{
    int64_t sum = 0;
    for (int64_t e = 0; e < layout->experts; e++)
        sum += layout->counts[rank * layout->experts + e];
    return sum;
}

int64_t moe_layout_places(const struct moe_layout *layout, int rank)
{
    return layout->rank_first[rank + 1] - layout->rank_first[rank];
}

int64_t moe_layout_lent(const struct moe_layout *layout, int rank)
{
    return moe_layout_places(layout, rank) - layout->owned;
}

int64_t moe_layout_group_count(const struct moe_layout *layout, int rank, int64_t chunk)
{
    int64_t count = 0;
    for (int64_t p = layout->rank_first[rank]; p < layout->rank_first[rank + 1]; p++)
        count += chunk == 0 || received_by_place(layout, chunk, p);
    return count;
}

int64_t moe_layout_group_total(const struct moe_layout *layout, int rank)
{
    int64_t sum = 0;
    for (int64_t c = 0; c < layout->partition.chunks; c++)
        sum += moe_layout_group_count(layout, rank, c);
    return sum;
}

int64_t moe_layout_groups(
    const struct moe_layout *layout, int rank, int64_t chunk, struct expert_group *groups)
{
    int64_t count = 0, first = 0;
    for (int64_t p = layout->rank_first[rank]; p < layout->rank_first[rank + 1]; p++) {
        int64_t rows = received_by_place(layout, chunk, p);
        if (rows || chunk == 0)
            groups[count++] = (struct expert_group){.first = first,
                .rows = rows,
                .weight = layout->places[p].matrix,
                .init = chunk == 0 ? GEMM_FRESH : GEMM_CHAIN};
        first += rows;
    }
    return count;
}
