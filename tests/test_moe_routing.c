/* Routings: the text of --routing, the paper's formulas, what each workload does, and that a rank's
 * indices depend on nothing but (routing, shape, seed, step, rank). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/moe_load.h"
#include "bench/harness/moe_routing.h"
#include "bench/harness/moe_urn.h"
#include "tests/tap.h"

#define RANKS_MOST 8

static void parse(struct moe_routing *routing, const char *text)
{
    char error[1000];
    if (moe_routing_parse(routing, text, error, sizeof error)) {
        tap_note("%s", error);
        abort();
    }
}

/* A routing at work: all ranks' indices in one array, by rank. */
struct world {
    struct moe_routing routing;
    struct moe_shape shape;
    int64_t tokens[RANKS_MOST];
    int64_t total;
    int32_t *idx;
};

static struct moe_shape shape_of(int ranks, const int64_t *tokens, int64_t experts, int topk)
{
    return (struct moe_shape){
        .ranks = ranks, .tokens = tokens, .hidden = 8, .ffn = 8, .experts = experts, .topk = topk};
}

static void open_world(struct world *w, const char *text, int ranks, int64_t tokens,
    int64_t experts, int topk, uint64_t seed, int64_t step)
{
    char error[1000];
    int64_t asked[RANKS_MOST];
    *w = (struct world){0};
    parse(&w->routing, text);
    for (int r = 0; r < ranks; r++)
        asked[r] = tokens;
    if (moe_routing_tokens(&w->routing, ranks, topk, asked, w->tokens, error, sizeof error))
        abort();
    w->shape = shape_of(ranks, w->tokens, experts, topk);
    if (moe_routing_check(&w->routing, &w->shape, error, sizeof error))
        abort();
    for (int r = 0; r < ranks; r++)
        w->total += w->tokens[r];
    w->idx = malloc((size_t)(w->total * topk) * sizeof *w->idx + 1);
    int32_t *at = w->idx;
    for (int r = 0; r < ranks; r++) {
        if (!w->idx || moe_routing_fill(&w->routing, &w->shape, seed, step, r, at))
            abort();
        at += w->tokens[r] * topk;
    }
}

static void close_world(struct world *w)
{
    free(w->idx);
    moe_routing_free(&w->routing);
}

/* Routes of each expert. */
static void count(const struct world *w, int64_t *counts)
{
    memset(counts, 0, (size_t)w->shape.experts * sizeof *counts);
    for (int64_t i = 0; i < w->total * w->shape.topk; i++)
        if (w->idx[i] != MOE_EMPTY)
            counts[w->idx[i]]++;
}

static int64_t count_of_rank(const struct world *w, int rank)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < w->total * w->shape.topk; i++)
        sum += w->idx[i] != MOE_EMPTY && moe_owner(&w->shape, w->idx[i]) == rank;
    return sum;
}

static bool all_empty(const int32_t *idx, int topk)
{
    for (int j = 0; j < topk; j++)
        if (idx[j] != MOE_EMPTY)
            return false;
    return true;
}

static bool distinct(const int32_t *idx, int topk)
{
    for (int i = 0; i < topk; i++)
        for (int j = i + 1; j < topk; j++)
            if (idx[i] == idx[j] && idx[i] != MOE_EMPTY)
                return false;
    return true;
}

static bool all_distinct(const struct world *w)
{
    for (int64_t i = 0; i < w->total; i++)
        if (!distinct(w->idx + i * w->shape.topk, w->shape.topk))
            return false;
    return true;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void test_accepted_text(void)
{
    static const char *const named[] = {"balanced", "uniform", "hot-expert", "hot-rank",
        "spread-hot", "ragged-sources", "idle-rank", "idle-experts", "moving-hot-spot", "burst",
        "duplicates", "empty-slots"};
    struct moe_routing routing;
    bool fine = true;
    for (int i = 0; i < 12; i++) {
        parse(&routing, named[i]);
        fine &= !strcmp(moe_routing_name(routing.profile), named[i]);
        moe_routing_free(&routing);
    }
    tap_ok(fine, "every name gives the routing of that name");
    parse(&routing, "95/16");
    tap_ok(routing.profile == MOE_HOT_TOKENS && routing.hot_percent == 95 &&
               routing.hot_experts == 16 && moe_routing_is_paper(&routing),
        "95/16: 95 percent of the tokens into 16 experts");
    parse(&routing, "zipf:1.25");
    tap_ok(routing.profile == MOE_ZIPF && routing.zipf_exponent == 1.25 &&
               !moe_routing_is_paper(&routing),
        "zipf:1.25");
    int stress = 0;
    for (int p = MOE_STRESS_FIRST; p <= MOE_STRESS_LAST; p++)
        stress += moe_routing_name((enum moe_profile)p) != NULL;
    tap_ok(stress == 8, "eight stress workloads have names");
}

static void test_refused_text(void)
{
    static const struct {
        const char *text, *word;
    } faults[] = {{"balance", "moving-hot-spot"}, {"", "zipf:S"}, {"101/4", "0..100"},
        {"50/0", "at least 1"}, {"50/", "R/H"}, {"/4", "R/H"}, {"50/4/2", "R/H"}, {"-5/4", "R/H"},
        {"9999999999999999999/4", "0..100"}, {"zipf:", "zipf:S"}, {"zipf:x", "0..16"},
        {"zipf:-1", "0..16"}, {"zipf:17", "0..16"}, {"zipf:nan", "0..16"},
        {"no-such-file.npy", "no-such-file.npy"}, {"counts:no-such", "no-such"}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct moe_routing routing;
        char error[1000] = "";
        int status = moe_routing_parse(&routing, faults[i].text, error, sizeof error);
        tap_ok(status == -1 && strstr(error, faults[i].word) &&
                   strstr(error, faults[i].text + (faults[i].text[0] == 'c' ? 7 : 0)),
            "refused: %.100s", error);
        moe_routing_free(&routing);
    }
}

static void test_refused_shape(void)
{
    struct moe_routing routing;
    char error[300];
    int64_t tokens[1] = {4};
    struct moe_shape shape = shape_of(1, tokens, 16, 2);
    parse(&routing, "50/16");
    tap_ok(moe_routing_check(&routing, &shape, error, sizeof error) == -1 && strstr(error, "15"),
        "refused: %s", error);
    parse(&routing, "50/15");
    tap_ok(moe_routing_check(&routing, &shape, error, sizeof error) == 0,
        "50/15 with 16 experts is allowed");
}

/* ---- the paper's ------------------------------------------------------------------------------
 */

static void expect(
    const char *text, int ranks, int64_t tokens, int64_t experts, int topk, const int32_t *one_rank)
{
    struct world w;
    open_world(&w, text, ranks, tokens, experts, topk, 5, 3);
    bool same = true;
    for (int r = 0; r < ranks; r++)
        same &= !memcmp(
            w.idx + r * tokens * topk, one_rank, (size_t)(tokens * topk) * sizeof *one_rank);
    tap_ok(same, "%s: %" PRId64 " tokens, %" PRId64 " experts, k=%d, the same on %d ranks", text,
        tokens, experts, topk, ranks);
    close_world(&w);
}

static void test_paper(void)
{
    static const int32_t balanced[] = {0, 1, 1, 2, 2, 3, 3, 0, 0, 1};
    static const int32_t half[] = {0, 1, 0, 0, 1, 0, 4, 5, 2, 5, 2, 3, 2, 3, 4};
    static const int32_t none[] = {1, 2, 2, 3, 3, 1};
    static const int32_t all[] = {0, 0, 0, 0};
    expect("balanced", 2, 5, 4, 2, balanced);
    expect("40/2", 3, 5, 6, 3, half);
    expect("0/1", 2, 3, 4, 2, none);
    expect("100/1", 2, 2, 4, 2, all);
}

static void test_weights(void)
{
    struct world w;
    float weights[600];
    open_world(&w, "30/4", 2, 100, 16, 3, 1, 0);
    moe_routing_weights(&w.routing, &w.shape, 1, 0, 1, false, weights);
    bool third = true, small = true, ones = false, twos = false, spread = true;
    for (int i = 0; i < 300; i++)
        third &= weights[i] == 1.0f / 3.0f;
    tap_ok(third, "the paper's routings have weights of 1/k");
    moe_routing_weights(&w.routing, &w.shape, 1, 0, 1, true, weights);
    for (int i = 0; i < 300; i++) {
        small &= weights[i] == 1 || weights[i] == 2;
        ones |= weights[i] == 1;
        twos |= weights[i] == 2;
    }
    tap_ok(small && ones && twos, "with integers they are 1 or 2, both");
    close_world(&w);
    open_world(&w, "uniform", 2, 100, 16, 3, 1, 0);
    moe_routing_weights(&w.routing, &w.shape, 1, 0, 1, false, weights);
    for (int i = 0; i < 300; i++)
        spread &=
            weights[i] >= 1.0f / 6.0f && weights[i] < 0.5f && (i == 0 || weights[i] != weights[0]);
    moe_routing_weights(&w.routing, &w.shape, 1, 0, 0, false, weights + 300);
    tap_ok(spread && memcmp(weights, weights + 300, 300 * sizeof *weights),
        "else they are spread over [1/2k, 3/2k), other ones on another rank");
    moe_routing_weights(&w.routing, &w.shape, 1, 0, 1, false, weights + 300);
    tap_ok(!memcmp(weights, weights + 300, 300 * sizeof *weights), "and the same when made again");
    close_world(&w);
}

/* ---- purity -----------------------------------------------------------------------------------
 */

static void test_pure(void)
{
    static const char *const names[] = {
        "uniform", "zipf:1", "hot-expert", "duplicates", "empty-slots"};
    for (int i = 0; i < 5; i++) {
        struct world one, four, seed, step;
        open_world(&one, names[i], 1, 64, 16, 4, 1, 2);
        open_world(&four, names[i], 4, 16, 16, 4, 1, 2);
        open_world(&seed, names[i], 4, 16, 16, 4, 2, 2);
        open_world(&step, names[i], 4, 16, 16, 4, 1, 1);
        size_t bytes = 64 * 4 * sizeof *one.idx;
        tap_ok(!memcmp(one.idx, four.idx, bytes) && memcmp(four.idx, seed.idx, bytes) &&
                   memcmp(four.idx, step.idx, bytes),
            "%s depends on the token's number, the seed and the step, not on how many ranks there "
            "are",
            names[i]);
        close_world(&one);
        close_world(&four);
        close_world(&seed);
        close_world(&step);
    }
}

/* Every workload, on shapes from the ordinary to the odd. */
static void test_ranges(void)
{
    static const struct {
        int ranks;
        int64_t tokens, experts;
        int topk;
    } shapes[] = {{1, 33, 8, 2}, {2, 17, 4, 4}, {4, 40, 8, 1}, {8, 9, 8, 8}, {8, 1, 64, 8},
        {4, 0, 8, 2}, {2, 5, 2, 5}};
    static const char *const names[] = {"balanced", "uniform", "hot-expert", "hot-rank",
        "spread-hot", "ragged-sources", "idle-rank", "idle-experts", "moving-hot-spot", "burst",
        "duplicates", "empty-slots", "30/1", "zipf:0", "zipf:1.5", "zipf:16"};
    for (int i = 0; i < 16; i++) {
        bool inside = true;
        for (int s = 0; s < 7; s++) {
            struct world w;
            open_world(&w, names[i], shapes[s].ranks, shapes[s].tokens, shapes[s].experts,
                shapes[s].topk, 1, 7);
            for (int64_t j = 0; j < w.total * w.shape.topk; j++)
                inside &= w.idx[j] >= MOE_EMPTY && w.idx[j] < w.shape.experts;
            close_world(&w);
        }
        tap_ok(inside, "%s stays within the experts on every shape", names[i]);
    }
}

/* ---- what each workload does ------------------------------------------------------------------
 */

static void test_uniform(void)
{
    struct world w;
    int64_t counts[16];
    bool even = true;
    open_world(&w, "uniform", 4, 2000, 16, 4, 1, 0);
    count(&w, counts);
    for (int e = 0; e < 16; e++)
        even &= llabs(counts[e] - 2000) < 200;
    tap_ok(even && all_distinct(&w), "uniform: different experts, all alike");
    close_world(&w);
    open_world(&w, "uniform", 2, 50, 8, 8, 1, 0);
    tap_ok(all_distinct(&w), "with k = E a token names every expert once");
    close_world(&w);
}

static void test_zipf(void)
{
    struct world w;
    int64_t counts[8];
    double sum = 0, worst = 0;
    open_world(&w, "zipf:1.2", 1, 100000, 8, 1, 1, 0);
    count(&w, counts);
    for (int e = 0; e < 8; e++)
        sum += pow(e + 1, -1.2);
    for (int e = 0; e < 8; e++)
        worst = fmax(worst, fabs((double)counts[e] / 1e5 - pow(e + 1, -1.2) / sum));
    tap_ok(worst < 0.005, "zipf:1.2: shares within %.4f of (e + 1)^-1.2", worst);
    close_world(&w);
    open_world(&w, "zipf:2", 2, 500, 8, 4, 1, 0);
    tap_ok(all_distinct(&w), "a token's experts differ however steep the law");
    close_world(&w);
}

static void test_hot_expert(void)
{
    struct world w;
    int64_t counts[16];
    open_world(&w, "hot-expert", 4, 100, 16, 4, 1, 0);
    count(&w, counts);
    tap_ok(counts[8] == 400 && all_distinct(&w),
        "hot-expert: one expert in every token, the others different");
    close_world(&w);
}

static void test_hot_rank(void)
{
    struct world w;
    open_world(&w, "hot-rank", 4, 100, 16, 4, 1, 0);
    tap_ok(count_of_rank(&w, 2) == 1600 && all_distinct(&w), "hot-rank: every route to one rank");
    close_world(&w);
    open_world(&w, "hot-rank", 8, 10, 8, 3, 1, 0);
    tap_ok(count_of_rank(&w, 4) == 240, "hot-rank with fewer experts than slots names one again");
    close_world(&w);
}

static void test_spread_hot(void)
{
    struct world w;
    int64_t counts[32], low = INT64_MAX, high = 0;
    open_world(&w, "spread-hot", 4, 1000, 32, 2, 1, 0);
    count(&w, counts);
    for (int r = 0; r < 4; r++) {
        int64_t of_rank = count_of_rank(&w, r);
        low = of_rank < low ? of_rank : low;
        high = of_rank > high ? of_rank : high;
    }
    tap_ok(counts[0] > 1000 && counts[8] > 1000 && counts[16] > 1000 && counts[24] > 1000 &&
               high - low < 200,
        "spread-hot: a hot expert on every rank, ranks within %" PRId64 " of %" PRId64
        " routes of each other",
        high - low, high);
    close_world(&w);
}

static void test_sources(void)
{
    struct world w;
    open_world(&w, "ragged-sources", 4, 100, 8, 2, 1, 0);
    tap_ok(w.tokens[0] == 25 && w.tokens[1] == 75 && w.tokens[2] == 125 && w.tokens[3] == 175,
        "ragged-sources: 25, 75, 125 and 175 tokens of 100 a rank");
    close_world(&w);
    open_world(&w, "idle-rank", 4, 100, 8, 2, 1, 0);
    tap_ok(w.tokens[0] == 100 && w.tokens[1] == 100 && w.tokens[2] == 0 && w.tokens[3] == 100,
        "idle-rank: rank 2 of 4 has no tokens");
    close_world(&w);
    open_world(&w, "idle-experts", 4, 100, 8, 2, 1, 0);
    tap_ok(count_of_rank(&w, 2) == 0 && count_of_rank(&w, 0) > 150 && w.tokens[2] == 100,
        "idle-experts: rank 2 of 4 gets no route");
    close_world(&w);
    open_world(&w, "idle-experts", 1, 10, 8, 2, 1, 0);
    tap_ok(all_empty(w.idx, 20), "and one rank alone has only empty slots");
    close_world(&w);
}

static void test_moving(void)
{
    bool moves = true;
    for (int64_t step = 0; step < 9; step++) {
        struct world w;
        open_world(&w, "moving-hot-spot", 4, 500, 32, 1, 1, step);
        int64_t hot = count_of_rank(&w, (int)(step % 4));
        moves &= hot > 1400 && hot < 1600;
        close_world(&w);
    }
    tap_ok(moves, "moving-hot-spot: three quarters of the draws, another rank every step");
}

static void test_burst(void)
{
    struct world w;
    open_world(&w, "burst", 4, 80, 16, 2, 1, 0);
    bool inside = true;
    int64_t outside = 0;
    for (int64_t i = 0; i < w.total; i++)
        for (int j = 0; j < 2; j++) {
            bool there = moe_owner(&w.shape, w.idx[2 * i + j]) == 2;
            if (i % 80 >= 30 && i % 80 < 50)
                inside &= there;
            else
                outside += there;
        }
    tap_ok(inside && outside > 60 && outside < 180,
        "burst: tokens 30 to 49 of 80 go to one rank, the others anywhere");
    close_world(&w);
}

static void test_duplicates_and_empties(void)
{
    struct world w;
    bool same = true, eighth = true;
    int64_t empty = 0;
    open_world(&w, "duplicates", 2, 50, 16, 3, 1, 0);
    for (int64_t i = 0; i < w.total; i++)
        same &= w.idx[3 * i] == w.idx[3 * i + 1] && w.idx[3 * i] == w.idx[3 * i + 2];
    tap_ok(same, "duplicates: one expert in all slots");
    close_world(&w);
    open_world(&w, "empty-slots", 2, 400, 16, 4, 1, 0);
    for (int64_t i = 0; i < w.total; i++) {
        eighth &= i % 8 != 7 || all_empty(w.idx + 4 * i, 4);
        for (int j = 0; j < 4; j++)
            empty += w.idx[4 * i + j] == MOE_EMPTY;
    }
    tap_ok(eighth && llabs(empty - 3200 * 11 / 32) < 150,
        "empty-slots: every eighth token and a quarter of the other slots: %" PRId64 " of 3200",
        empty);
    close_world(&w);
}

/* ---- the urn ----------------------------------------------------------------------------------
 */

static void test_urn(void)
{
    static const int64_t weights[5] = {3, 0, INT64_C(1) << 40, 1, 2}, nothing[2] = {0, 0};
    struct moe_urn urn;
    int64_t held[8], met[5] = {0}, second[5] = {0};
    struct moe_named named = {.experts = held};
    if (moe_urn_init(&urn, 5, weights))
        abort();
    for (int i = 0; i < 8; i++) {
        int64_t expert = moe_urn_draw(&urn, &named, 1, i);
        (i < 4 ? met : second)[expert]++;
    }
    tap_ok(met[0] == 1 && met[1] == 0 && met[2] == 1 && met[3] == 1 && met[4] == 1,
        "four draws name the four experts that have a weight");
    tap_ok(!memcmp(met, second, sizeof met), "then it starts again");
    moe_urn_free(&urn);
    if (moe_urn_init(&urn, 2, nothing))
        abort();
    named = (struct moe_named){.experts = held};
    tap_ok(moe_urn_draw(&urn, &named, 1, 0) == -1, "an urn without weight gives nothing");
    moe_urn_free(&urn);
}

/* Without one back: after expert 2 (weight 2 of 4), the others follow their weights. */
static void test_urn_shares(void)
{
    static const int64_t weights[4] = {1, 3, 4, 2};
    struct moe_urn urn;
    int64_t held[4], counts[4] = {0};
    if (moe_urn_init(&urn, 4, weights))
        abort();
    for (int64_t i = 0; i < 60000; i++) {
        struct moe_named named = {.experts = held};
        moe_urn_name(&urn, &named, 2);
        counts[moe_urn_draw(&urn, &named, 9, i)]++;
    }
    tap_ok(llabs(counts[0] - 10000) < 400 && llabs(counts[1] - 30000) < 500 && counts[2] == 0 &&
               llabs(counts[3] - 20000) < 500,
        "beside a named expert the others keep their shares");
    moe_urn_free(&urn);
}

/* ---- loads ------------------------------------------------------------------------------------
 */

static void test_loads(void)
{
    int64_t values[40];
    struct moe_load load, per_rank, per_expert;
    char text[200];
    for (int i = 0; i < 40; i++)
        values[i] = 40 - i;
    if (moe_load_of(&load, values, 40))
        abort();
    moe_load_text(&load, text, sizeof text);
    tap_ok(
        !strcmp(text, "min 1, median 20, p95 38, max 40") && load.mean == 20.5 && values[0] == 40,
        "of 1 to 40: %s", text);
    if (moe_load_of(&load, values, 1))
        abort();
    tap_ok(load.min == 40 && load.median == 40 && load.p95 == 40 && load.max == 40,
        "of one value all four are that value");
    static const int64_t counts[6] = {0, 9, 1, 1, 0, 1};
    if (moe_load_measure(&per_rank, &per_expert, 3, 6, counts))
        abort();
    tap_ok(per_rank.min == 1 && per_rank.median == 2 && per_rank.max == 9 && per_expert.min == 0 &&
               per_expert.median == 1 && per_expert.max == 9 &&
               moe_load_imbalance(&per_rank) == 2.25,
        "ranks are summed over their experts; the busiest has 2.25 times the mean");
    json_t *json = moe_load_json(&per_rank);
    tap_ok(json && json_integer_value(json_object_get(json, "max")) == 9 &&
               json_real_value(json_object_get(json, "mean")) == 4,
        "the record holds the same figures");
    json_decref(json);
    static const int64_t none[4] = {0};
    if (moe_load_measure(&per_rank, &per_expert, 2, 4, none))
        abort();
    tap_ok(moe_load_imbalance(&per_rank) == 1, "without routes nobody is busier than the mean");
}

int main(void)
{
    test_accepted_text();
    test_refused_text();
    test_refused_shape();
    test_paper();
    test_weights();
    test_pure();
    test_ranges();
    test_uniform();
    test_zipf();
    test_hot_expert();
    test_hot_rank();
    test_spread_hot();
    test_sources();
    test_moving();
    test_burst();
    test_duplicates_and_empties();
    test_urn();
    test_urn_shares();
    test_loads();
    return tap_done();
}
