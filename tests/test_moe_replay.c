/* Replayed plans: Table 8's oracle at full shape, and small cases counted by hand. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "bench/harness/moe_replay.h"
#include "bench/harness/moe_routing.h"
#include "tests/tap.h"

#define RANKS_MOST 8

static void replay(struct moe_replay *out, const char *text, const struct moe_shape *shape,
    const struct moe_options *options, bool llep)
{
    const int32_t *idx[RANKS_MOST];
    struct moe_routing routing;
    char error[1000];
    int64_t routes = 0;
    for (int r = 0; r < shape->ranks; r++)
        routes += shape->tokens[r] * shape->topk;
    int32_t *all = malloc((size_t)routes * sizeof *all + 1), *at = all;
    if (!all || moe_routing_parse(&routing, text, error, sizeof error) ||
        moe_routing_check(&routing, shape, error, sizeof error))
        abort();
    for (int r = 0; r < shape->ranks; r++) {
        if (moe_routing_fill(&routing, shape, 1, 0, r, at))
            abort();
        idx[r] = at;
        at += shape->tokens[r] * shape->topk;
    }
    if (moe_replay(out, shape, options, llep, idx))
        abort();
    free(all);
    moe_routing_free(&routing);
}

/* ---- Table 8 --------------------------------------------------------------------------------- */

static void test_table_8(void)
{
    /* Strided, contiguous; imbalance, send ratio to 3 decimals, received share to 4. */
    static const struct {
        const char *routing;
        double alpha, owned, send[2], share[2];
    } rows[] = {{"balanced", 1.0, 1, {1.000, 1.016}, {.1251, .1269}},
        {"95/16", 1.0, 7.6, {1.350, 2.628}, {.1251, .1581}},
        {"80/16", 1.0, 6.4, {2.400, 4.000}, {.1251, .1563}},
        {"50/4", 1.0, 4.387, {2.290, 6.001}, {.1251, .1712}},
        {"30/16", 1.0, 2.4, {1.411, 4.000}, {.1251, .4219}},
        {"50/16", 1.0, 4.0, {2.073, 3.000}, {.1251, .2500}},
        {"30/4", 1.0, 2.942, {2.285, 5.998}, {.1251, .1975}},
        {"50/4", 1.1, 4.387, {1.518, 2.002}, {.1376, .1875}},
        {"30/16", 1.1, 2.4, {1.200, 4.000}, {.1375, .4688}}};
    static const int64_t tokens[8] = {65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536};
    const struct moe_shape shape = {.ranks = 8, .tokens = tokens, .experts = 128, .topk = 8};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct moe_replay got[2];
        bool good = true;
        for (int kind = 0; kind < 2; kind++) {
            const struct moe_options options = {.chunk_budget = 6554,
                .max_chunks = 10,
                .chunks = (enum moe_chunks)kind,
                .alpha = rows[i].alpha,
                .lambda = 1.3,
                .min_gemm_tokens = 1024};
            replay(&got[kind], rows[i].routing, &shape, &options, true);
            good &= got[kind].chunks == 10 && got[kind].chunk_tokens == 6554 &&
                    fabs(got[kind].send_ratio - rows[i].send[kind]) < 0.00051 &&
                    fabs(got[kind].received_share - rows[i].share[kind]) < 0.00006 &&
                    fabs(moe_load_imbalance(&got[kind].rank) - rows[i].owned) < 0.0051;
        }
        tap_ok(good, "%s, alpha %.1f: send %.3f and %.3f, received %.4f and %.4f of the bound",
            rows[i].routing, rows[i].alpha, got[0].send_ratio, got[1].send_ratio,
            got[0].received_share, got[1].received_share);
    }
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* Two ranks of 4 tokens, 4 experts, k = 1; 50/1: tokens 0 and 1 of a rank to expert 0, then token i
 * to expert 1 + i mod 3: 3 and 1. So experts have 4, 2, 0, 2 routes, ranks 6 and 2. */
static void test_by_hand(void)
{
    static const int64_t tokens[2] = {4, 4};
    const struct moe_shape shape = {.ranks = 2, .tokens = tokens, .experts = 4, .topk = 1};
    struct moe_options options = {.chunk_count = 2, .alpha = 1, .min_gemm_tokens = 1};
    struct moe_replay r;
    replay(&r, "50/1", &shape, &options, false);
    tap_ok(!r.planned && r.transfers == 0 && r.rank.max == 6 && r.rank.min == 2 &&
               r.expert.max == 4 && r.expert.min == 0 && r.computed.max == 6,
        "at home: ranks of 6 and 2 routes");
    tap_ok(r.chunks == 2 && r.chunk_tokens == 2 && r.received == 4 && r.received_share == 1.0 &&
               r.send_ratio == 2.0,
        "strided chunks {0, 2} and {1, 3} of both ranks: 4 of at most 4 rows reach rank 0 in the "
        "second");
    options.chunks = MOE_CHUNKS_CONTIGUOUS;
    replay(&r, "50/1", &shape, &options, false);
    tap_ok(r.received == 4 && r.send_ratio == 2.0,
        "contiguous chunks: both tokens of the first go to rank 0");
    replay(&r, "50/1", &shape, &options, true);
    tap_ok(r.planned && r.capacity == 4 && r.excess == 0 && r.transfers == 1 &&
               r.computed.max == 4 && r.rank.max == 6,
        "planned: 4 routes each, one expert lent");
    options.lambda = 1.6;
    replay(&r, "50/1", &shape, &options, true);
    tap_ok(!r.planned && r.excess == 2 && r.transfers == 0,
        "below the gate all stay at home, 2 routes over the capacity");
}

static void test_nothing(void)
{
    static const int64_t tokens[2] = {0, 0};
    const struct moe_shape shape = {.ranks = 2, .tokens = tokens, .experts = 4, .topk = 2};
    const struct moe_options options = {.chunk_budget = 8, .alpha = 1, .min_gemm_tokens = 1};
    struct moe_replay r;
    replay(&r, "uniform", &shape, &options, true);
    tap_ok(r.chunks == 1 && r.chunk_tokens == 0 && r.received == 0 && r.received_share == 0 &&
               r.send_ratio == 1 && r.rank.max == 0 && r.computed.max == 0,
        "no tokens: nothing is sent or received, and no figure is infinite");
}

int main(void)
{
    test_table_8();
    test_by_hand();
    test_nothing();
    return tap_done();
}
