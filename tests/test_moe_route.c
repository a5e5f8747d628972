/* Where routes go: chunks, places, the table of rows and the index arrays, on random routings.
 * Every chunk's exchange is acted out with tags in place of rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ops/moe_route.h"
#include "tests/tap.h"

#define INSTANCES 600
#define RANKS 8

/* A random routing. */
struct routing {
    struct moe_shape shape;
    int64_t tokens[RANKS];
    int32_t *idx[RANKS];
    const int32_t *const_idx[RANKS];
    struct moe_partition partition;
    struct llep_options llep;
};

static uint64_t seed_state;

static int64_t below(int64_t limit)
{
    seed_state = seed_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed_state >> 33) % (uint64_t)limit);
}

/* Skewed towards expert 0, with duplicates and empty slots. */
static int32_t random_expert(int64_t experts)
{
    if (below(8) == 0)
        return MOE_EMPTY;
    return (int32_t)(below(2) ? below(experts) : below(1 + experts / 4));
}

static bool routing_make(struct routing *r, int instance)
{
    static const int rank_counts[] = {1, 2, 3, 4, 8};
    seed_state = (uint64_t)instance;
    int ranks = rank_counts[below(5)];
    *r = (struct routing){.shape = {.ranks = ranks,
                              .hidden = 4,
                              .ffn = 4,
                              .experts = ranks * (1 + below(4)),
                              .topk = (int)(1 + below(5))},
        .partition = {1 + below(below(2) ? 4 : 40), (enum moe_chunks)below(2)},
        .llep = {.alpha = 1.0, .min_gemm_tokens = 1 + below(6), .lambda = below(2) ? 0 : 1.3}};
    for (int p = 0; p < ranks; p++) {
        r->tokens[p] = below(4) ? below(30) : 0;
        int64_t slots = r->tokens[p] * r->shape.topk;
        r->idx[p] = malloc((size_t)slots * sizeof(int32_t) + 1);
        if (!r->idx[p])
            return false;
        for (int64_t i = 0; i < slots; i++)
            r->idx[p][i] = random_expert(r->shape.experts);
        r->const_idx[p] = r->idx[p];
    }
    r->shape.tokens = r->tokens;
    return true;
}

static void routing_free(struct routing *r)
{
    for (int p = 0; p < RANKS; p++)
        free(r->idx[p]);
}

/* Every rank's index arrays. */
struct indices {
    struct moe_index of[RANKS];
};

static bool indices_make(
    struct indices *all, const struct moe_layout *layout, const struct routing *r)
{
    *all = (struct indices){0};
    for (int p = 0; p < r->shape.ranks; p++) {
        size_t slots = (size_t)(r->tokens[p] * r->shape.topk) + 1;
        struct moe_index *index = &all->of[p];
        index->token = malloc(slots * sizeof(int32_t));
        index->route = malloc(slots * sizeof(int32_t));
        index->chunk_token = malloc(slots * sizeof(int32_t));
        index->position = malloc(slots * sizeof(int32_t));
        if (!index->token || !index->route || !index->chunk_token || !index->position ||
            moe_layout_index(layout, p, r->idx[p], index))
            return false;
    }
    return true;
}

static void indices_free(struct indices *all)
{
    for (int p = 0; p < RANKS; p++) {
        free(all->of[p].token);
        free(all->of[p].route);
        free(all->of[p].chunk_token);
        free(all->of[p].position);
    }
}

/* ---- properties -------------------------------------------------------------------------------
 */

static bool chunks_tile(const struct routing *r)
{
    int64_t most = 0, limit = moe_chunk_tokens_max(&r->shape, r->partition.chunks);
    for (int p = 0; p < r->shape.ranks; p++) {
        int64_t seen = 0;
        for (int64_t c = 0; c < r->partition.chunks; c++) {
            int64_t count = moe_chunk_tokens(&r->partition, r->tokens[p], c), last = -1;
            for (int64_t i = 0; i < count; i++) {
                int64_t token = moe_chunk_token(&r->partition, r->tokens[p], c, i);
                if (token <= last || token >= r->tokens[p] ||
                    moe_chunk_of(&r->partition, r->tokens[p], token) != c)
                    return false;
                last = token;
            }
            seen += count;
            most = count > most ? count : most;
        }
        if (seen != r->tokens[p])
            return false;
    }
    return most <= limit;
}

static bool places_hold(const struct moe_layout *layout, const struct routing *r)
{
    for (int p = 0; p < r->shape.ranks; p++) {
        int64_t first = layout->rank_first[p], last = layout->rank_first[p + 1], before = -1;
        for (int64_t i = first; i < last; i++) {
            const struct moe_place *place = &layout->places[i];
            bool own = i - first < layout->owned;
            if (place->rank != p || place->matrix != i - first ||
                (own && place->expert != p * layout->owned + i - first) ||
                (!own && (moe_owner(&r->shape, place->expert) == p || place->expert <= before)))
                return false;
            before = own ? -1 : place->expert;
        }
    }
    return layout->rank_first[r->shape.ranks] == layout->place_count;
}

/* What a rank computes over all chunks is its load in the plan. */
static bool loads_hold(const struct moe_layout *layout)
{
    for (int p = 0; p < layout->ranks; p++) {
        int64_t sum = 0;
        for (int64_t c = 0; c < layout->partition.chunks; c++)
            sum += moe_layout_received(layout, p, c);
        if (sum != layout->plan.load[p])
            return false;
    }
    return true;
}

/* Rows that `rank` receives in a chunk, as (source rank, route) tags, by the rule of the exchange:
 * by matrix, then source, each run as it lies in the source's send order. */
static int64_t act_out(const struct moe_layout *layout, const struct indices *all, int rank,
    int64_t chunk, const int64_t *first_row, int64_t (*tag)[2])
{
    int64_t at = 0;
    for (int64_t p = layout->rank_first[rank]; p < layout->rank_first[rank + 1]; p++)
        for (int s = 0; s < layout->ranks; s++) {
            int64_t row = first_row[s];
            for (int64_t q = 0; q < p; q++)
                row += moe_layout_count(layout, s, chunk, q);
            for (int64_t i = 0; i < moe_layout_count(layout, s, chunk, p); i++, at++) {
                tag[at][0] = s;
                tag[at][1] = all->of[s].route[row + i];
            }
        }
    return at;
}

/* Each group's rows are its expert's, of this chunk, and ascend by source, token and slot. */
static bool rows_ordered(const struct moe_layout *layout, const struct routing *r, int rank,
    int64_t chunk, int64_t (*tag)[2], int64_t rows, bool *met[])
{
    struct expert_group groups[256];
    int64_t count = moe_layout_groups(layout, rank, chunk, groups), at = 0;
    for (int64_t g = 0; g < count; g++) {
        int64_t expert = layout->places[layout->rank_first[rank] + groups[g].weight].expert;
        if (groups[g].first != at || groups[g].init != (chunk ? GEMM_CHAIN : GEMM_FRESH))
            return false;
        for (int64_t i = 0; i < groups[g].rows; i++, at++) {
            int64_t s = tag[at][0], route = tag[at][1];
            if (r->idx[s][route] != expert || met[s][route] ||
                moe_chunk_of(&r->partition, r->tokens[s], route / r->shape.topk) != chunk)
                return false;
            if (i && (tag[at - 1][0] > s || (tag[at - 1][0] == s && tag[at - 1][1] >= route)))
                return false;
            met[s][route] = true;
        }
    }
    return at == rows && (chunk || count == moe_layout_places(layout, rank));
}

/* A route's position leads back to the row that carries it. */
static bool positions_hold(const struct routing *r, int p, int64_t chunk, int64_t row,
    int64_t token_at, const struct moe_index *index)
{
    int topk = r->shape.topk;
    for (int64_t i = 0; i < moe_chunk_tokens(&r->partition, r->tokens[p], chunk); i++) {
        int64_t token = index->chunk_token[token_at + i];
        if (token != moe_chunk_token(&r->partition, r->tokens[p], chunk, i))
            return false;
        for (int slot = 0; slot < topk; slot++) {
            int32_t position = index->position[(token_at + i) * topk + slot];
            int64_t route = token * topk + slot;
            if ((position < 0) != (r->idx[p][route] == MOE_EMPTY))
                return false;
            if (position >= 0 &&
                (index->route[row + position] != route || index->token[row + position] != token))
                return false;
        }
    }
    return true;
}

static bool chunk_holds(const struct moe_layout *layout, const struct routing *r,
    const struct indices *all, int64_t chunk, const int64_t *first_row, const int64_t *first_token,
    bool *met[])
{
    int64_t(*tag)[2] = malloc(RANKS * 30 * 5 * sizeof *tag);
    bool good = tag;
    for (int p = 0; good && p < r->shape.ranks; p++) {
        int64_t rows = act_out(layout, all, p, chunk, first_row, tag);
        good = rows == moe_layout_received(layout, p, chunk) &&
               rows_ordered(layout, r, p, chunk, tag, rows, met) &&
               positions_hold(r, p, chunk, first_row[p], first_token[p], &all->of[p]);
    }
    free(tag);
    return good;
}

/* Every route travels once, in its own chunk, to a rank that computes its expert. */
static bool routes_travel(
    const struct moe_layout *layout, const struct routing *r, const struct indices *all)
{
    int64_t first_row[RANKS] = {0}, first_token[RANKS] = {0};
    bool *met[RANKS] = {0}, good = true;
    for (int p = 0; p < r->shape.ranks; p++)
        good = (met[p] = calloc((size_t)(r->tokens[p] * r->shape.topk) + 1, 1)) && good;
    for (int64_t c = 0; good && c < r->partition.chunks; c++) {
        good = chunk_holds(layout, r, all, c, first_row, first_token, met);
        for (int p = 0; p < r->shape.ranks; p++) {
            first_row[p] += moe_layout_sent(layout, p, c);
            first_token[p] += moe_chunk_tokens(&r->partition, r->tokens[p], c);
        }
    }
    for (int p = 0; p < r->shape.ranks; p++) {
        for (int64_t i = 0; good && i < r->tokens[p] * r->shape.topk; i++)
            good = met[p][i] == (r->idx[p][i] != MOE_EMPTY);
        good = good && first_row[p] == moe_layout_routes(layout, p);
        free(met[p]);
    }
    return good;
}

static bool instance_holds(int instance)
{
    struct routing r;
    struct moe_layout layout = {0};
    struct indices all = {0};
    bool good = routing_make(&r, instance) &&
                !moe_layout_from_routing(
                    &layout, &r.shape, &r.partition, below(4) ? &r.llep : NULL, r.const_idx) &&
                indices_make(&all, &layout, &r) && chunks_tile(&r) && places_hold(&layout, &r) &&
                loads_hold(&layout) && routes_travel(&layout, &r, &all);
    if (!good)
        tap_note("instance %d: P=%d E=%lld k=%d K=%lld", instance, r.shape.ranks,
            (long long)r.shape.experts, r.shape.topk, (long long)r.partition.chunks);
    indices_free(&all);
    moe_layout_free(&layout);
    routing_free(&r);
    return good;
}

/* ---- ranks ------------------------------------------------------------------------------------
 */

static bool layouts_equal(const struct moe_layout *a, const struct moe_layout *b)
{
    if (a->place_count != b->place_count || a->plan.segment_count != b->plan.segment_count)
        return false;
    for (int64_t i = 0; i < a->plan.segment_count; i++) {
        const struct llep_segment *x = &a->plan.segments[i], *y = &b->plan.segments[i];
        if (x->expert != y->expert || x->first != y->first || x->last != y->last ||
            x->rank != y->rank)
            return false;
    }
    size_t cells = (size_t)(a->ranks * a->partition.chunks * a->place_count);
    return !memcmp(a->table, b->table, cells * sizeof *a->table);
}

/* Whether what ranks agree on equals what one sees who knows all. */
static int agree_on_rank(struct rank *rank, void *context)
{
    const struct routing *r = context;
    struct moe m = {.shape = r->shape,
        .rank = rank->index,
        .dev = rank->dev,
        .comm = rank->comm,
        .idx = r->idx[rank->index]};
    struct moe_layout agreed, known;
    if (moe_layout_agree(&agreed, &m, &r->partition, &r->llep) != DEV_OK)
        return -1;
    int status = moe_layout_from_routing(&known, &r->shape, &r->partition, &r->llep, r->const_idx);
    if (status == 0) {
        if (!layouts_equal(&agreed, &known))
            status = -1;
        moe_layout_free(&known);
    }
    moe_layout_free(&agreed);
    return status;
}

static void agreement(void)
{
    int good = 0, done = 0;
    struct dev_pool *pool = dev_pool_create(1);
    for (int instance = 1000; instance < 1030; instance++) {
        struct routing r;
        struct ranks_failure failure;
        if (!routing_make(&r, instance))
            break;
        if (instance % 3 == 0)
            r.partition.chunks = 1;
        struct ranks_config config = {
            .count = r.shape.ranks, .device = {.kind = DEV_CPU, .pool = pool}, .timeout_s = 20};
        done++;
        if (!ranks_run(&config, agree_on_rank, &r, &failure))
            good++;
        else
            tap_note("instance %d: rank %d: %s", instance, failure.rank, failure.message);
        routing_free(&r);
    }
    dev_pool_free(pool);
    tap_ok(good == 30 && done == 30, "ranks agree on the layout that follows from all routings");
}

/* ---- Eq. 1 ------------------------------------------------------------------------------------
 */

static void chunk_counts(void)
{
    static const int64_t tokens[2] = {65536, 100};
    struct moe_shape shape = {.ranks = 2, .tokens = tokens};
    struct moe_options o = {.chunk_budget = 6554, .max_chunks = 10};
    tap_ok(moe_chunk_count(&shape, &o) == 10, "K = ceil(N/c) of the largest N: 10");
    o.chunk_budget = 0;
    tap_ok(moe_chunk_count(&shape, &o) == 1, "no budget: one chunk");
    o.chunk_budget = 1024;
    tap_ok(moe_chunk_count(&shape, &o) == 10, "the ceiling cuts 64 to 10");
    o.max_chunks = 0;
    tap_ok(moe_chunk_count(&shape, &o) == 64, "without a ceiling 64");
    o.chunk_count = 7;
    tap_ok(moe_chunk_count(&shape, &o) == 7, "a count given overrides the budget");
    static const int64_t none[2] = {0, 0};
    shape.tokens = none;
    o.chunk_count = 0;
    tap_ok(moe_chunk_count(&shape, &o) == 1, "no tokens: one chunk");
}

int main(void)
{
    int good = 0;
    for (int i = 0; i < INSTANCES; i++)
        good += instance_holds(i);
    tap_ok(good == INSTANCES, "%d random layouts: every route once, in order, where it is computed",
        good);
    agreement();
    chunk_counts();
    return tap_done();
}
