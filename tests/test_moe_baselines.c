/* What is particular to fastermoe, tutel and janus: the cost rule of shadows, by hand; the room
 * that padding takes; what each keeps, and where; and their schedules at rank counts, parts and
 * credits beyond those of tests/test_moe.c, with the order of their streams proved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "baselines/moe_shadow.h"
#include "baselines/moe_tutel_index.h"
#include "bench/harness/moe_run.h"
#include "ops/moe_lend.h"
#include "tests/moe_schedule_case.h"
#include "tests/tap.h"

enum { WHY = 512 };

static const int64_t even[4] = {9, 9, 9, 9};
static const int64_t ragged[8] = {5, 0, 11, 1, 0, 8, 2, 3};

/* ---- schedules --------------------------------------------------------------------------------
 */

struct variant {
    const struct moe_impl *impl;
    const char *name;
    struct moe_options options;
};

static const struct variant variants[] = {
    {&moe_fastermoe, "fastermoe, all that is hot", {.flops_per_byte = 1e-6}},
    {&moe_fastermoe, "fastermoe, by the rule", {.flops_per_byte = 1840}},
    {&moe_tutel, "tutel, 1 part", {.parts = 1}},
    {&moe_tutel, "tutel, 5 parts", {.parts = 5}},
    {&moe_janus, "janus, 1 credit", {.credits = 1}},
    {&moe_janus, "janus, 3 credits", {.credits = 3}},
    {&moe_janus, "janus, more credits than experts", {.credits = 64}},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static bool holds(const struct moe_case *c, const struct variant *v, bool forward_only)
{
    struct moe_case_run run = {
        .impl = v->impl, .options = v->options, .forward_only = forward_only};
    struct moe_case_result got = {0}, want = {0};
    char why[WHY] = "";
    bool good = !moe_case_run(c, &run, &got, why, WHY) &&
                !moe_case_reference(c, v->impl, &v->options, &want, why, WHY) &&
                moe_case_equal(c, &got, &want, forward_only, why, WHY);
    if (!good)
        tap_note("%s: %s", v->name, why);
    moe_case_result_free(&got);
    moe_case_result_free(&want);
    return good;
}

static void schedules(int ranks, enum dtype type, enum moe_activation activation)
{
    static const enum moe_case_routing routings[] = {ROUTE_SKEWED, ROUTE_ONE_EXPERT};
    struct moe_shape shape = {.ranks = ranks,
        .hidden = 12,
        .ffn = 20,
        .experts = 3 * ranks,
        .topk = 3,
        .dtype = type,
        .activation = activation};
    int good = 0;
    for (int i = 0; i < 2; i++) {
        struct moe_case c;
        if (!moe_case_init(&c, &shape, ragged, routings[i], 5, 19))
            for (int v = 0; v < VARIANTS; v++)
                good += holds(&c, &variants[v], false) && (i || holds(&c, &variants[v], true));
        moe_case_free(&c);
    }
    tap_ok(good == 2 * VARIANTS, "P=%d %s %s: %d variants on skewed routing and on one expert",
        ranks, type == DTYPE_BF16 ? "bf16" : "f32", activation == MOE_RELU ? "relu" : "swiglu",
        VARIANTS);
}

/* ---- shadows ----------------------------------------------------------------------------------
 */

/* Two ranks, four experts of H = F = 2 in FP32: W = 12 values, 12 x 8 = 96 bytes a shadow. With
 * flops_per_byte 1 a row costs 6 x 12 + 4 x 2 x 4 = 104 bytes. Routes by (rank, expert):
 * {6, 0, 0, 1}, {4, 1, 1, 0}: rank 0 has 11 of 13. Shadowing expert 0 leaves 7 and 6: 4 rows less,
 * 416 bytes for 96. Then expert 1 (one route): 6 and 7: nothing gained, so it stops. */
static void rule_by_hand(void)
{
    static const int64_t tokens[2] = {7, 6};
    struct moe_shape shape = {.ranks = 2,
        .tokens = tokens,
        .hidden = 2,
        .ffn = 2,
        .experts = 4,
        .topk = 1,
        .dtype = DTYPE_F32,
        .activation = MOE_SWIGLU};
    static const int32_t first[7] = {0, 0, 0, 3, 0, 0, 0}, second[6] = {1, 0, 2, 0, 0, 0};
    const int32_t *idx[2] = {first, second};
    const struct moe_partition whole = {.chunks = 1};
    struct shadow_rule rule = {&shape, 1};
    struct moe_planner planner = {shadow_plan, &rule};
    struct moe_layout layout;
    bool good = !moe_layout_from_planner(&layout, &shape, &whole, &planner, idx);
    const struct llep_segment *s = layout.plan.segments;
    tap_ok(good && layout.plan.transfers == 1 && layout.plan.segment_count == 5 && s[0].rank == 0 &&
               s[0].last == 6 && s[1].rank == 1 && s[1].first == 6 && s[1].last == 10 &&
               layout.plan.load[0] == 7 && layout.plan.load[1] == 6,
        "expert 0 is shadowed, its routes stay on their ranks; the next one would not pay");
    tap_ok(good && shadow_return_bytes(&layout, &shape, 0) == 2 * 12 * 4 &&
               shadow_return_bytes(&layout, &shape, 1) == 0,
        "its owner sums two parts in a buffer, the other rank needs none");
    if (good)
        moe_layout_free(&layout);
    rule.flops_per_byte = 1e9; /* a row costs its trips alone: 4 x 32 bytes for 96 */
    good = !moe_layout_from_planner(&layout, &shape, &whole, &planner, idx);
    tap_ok(good && layout.plan.transfers == 1, "its rows' trips alone are worth the weights");
    if (good)
        moe_layout_free(&layout);
}

/* ---- padding ----------------------------------------------------------------------------------
 */

static void room_of_cells(void)
{
    static const int64_t tokens[2] = {8, 8};
    const struct moe_shape shape = {
        .ranks = 2, .tokens = tokens, .hidden = 4, .ffn = 4, .experts = 4, .topk = 1};
    static const int64_t counts[8] = {5, 1, 2, 0, 0, 0, 7, 1}, none[8] = {0};
    struct moe_options options = {.parts = 1};
    struct tutel_sizes one = tutel_sizes(&shape, &options, counts, 0);
    options.parts = 3;
    struct tutel_sizes three = tutel_sizes(&shape, &options, counts, 1);
    struct tutel_sizes empty = tutel_sizes(&shape, &options, none, 0);
    tap_ok(one.capacity == 7 && one.rows == 28 && one.routes == 8,
        "the busiest pair has 7 routes: 4 cells of 7 rows for 8 routes");
    tap_ok(three.capacity == 3 && three.rows == 36, "in three parts 3 rows each, 36 in all");
    tap_ok(empty.capacity == 0 && empty.rows == 0, "without routes no rows");
}

/* ---- what is kept -----------------------------------------------------------------------------
 */

static void survives(
    const struct moe_case *c, const struct variant *v, const int64_t *kept, const char *what)
{
    struct moe_case_run run = {.impl = v->impl, .options = v->options, .kept_bytes = kept};
    struct moe_case_result got = {0};
    char why[WHY] = "";
    bool good = !moe_case_run(c, &run, &got, why, WHY);
    if (!good)
        tap_note("%s", why);
    tap_ok(good, "%s: between the passes %s", v->name, what);
    moe_case_result_free(&got);
}

static void what_survives(void)
{
    const struct moe_shape shape = {.ranks = 4,
        .hidden = 24,
        .ffn = 20,
        .experts = 8,
        .topk = 3,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    struct moe_case c;
    const struct moe_partition whole = {.chunks = 1};
    int64_t kept[4] = {0}, counts[4 * 8] = {0}, row = 2 * (2 * 24 + 3 * 20);
    struct moe_layout layout;
    if (moe_case_init(&c, &shape, even, ROUTE_SKEWED, 5, 7))
        abort();
    for (int r = 0; r < 4; r++)
        moe_count_routes(&c.shape, r, c.rank_idx[r], counts + r * 8);
    for (int r = 0; r < 4; r++) {
        struct tutel_sizes z = tutel_sizes(&c.shape, &variants[3].options, counts, r);
        kept[r] = z.rows * row + tutel_block_bytes(&z);
    }
    survives(&c, &variants[3], kept, "2H + 3F values a padded row, and the index arrays");
    struct shadow_rule rule = {&c.shape, 1e-6};
    struct moe_planner planner = {shadow_plan, &rule};
    if (moe_layout_from_planner(&layout, &c.shape, &whole, &planner, c.rank_idx))
        abort();
    for (int r = 0; r < 4; r++)
        kept[r] = moe_layout_received(&layout, r, 0) * row + moe_layer_bytes(&layout, r) +
                  moe_layout_lent(&layout, r) * 3 * 24 * 20 * 2;
    tap_ok(layout.plan.transfers >= 3, "%lld shadows", (long long)layout.plan.transfers);
    moe_layout_free(&layout);
    survives(&c, &variants[0], kept, "2H + 3F values a received row, shadows, index arrays");
    memset(kept, 0, sizeof kept);
    survives(&c, &variants[5], kept, "nothing on the device");
    moe_case_free(&c);
}

/* Fetched experts wait in host memory: those of other ranks that this one has routes for. */
static void janus_keeps_on_the_host(void)
{
    static const int64_t tokens[2] = {6, 6};
    const struct moe_shape shape = {.ranks = 2,
        .tokens = tokens,
        .hidden = 12,
        .ffn = 8,
        .experts = 8,
        .topk = 2,
        .dtype = DTYPE_F32,
        .activation = MOE_SWIGLU};
    const struct moe_options options = {.credits = 2};
    struct dev_pool *pool = dev_pool_create(2);
    struct ranks_config ranks = {
        .count = 2, .device = {.kind = DEV_CPU, .pool = pool}, .timeout_s = 60};
    struct moe_routing routing;
    struct moe_inputs inputs;
    struct case_result result;
    char error[256];
    if (!pool || moe_routing_parse(&routing, "balanced", error, sizeof error) ||
        moe_inputs_init(&inputs, &shape, &routing, 1, 0, false) || case_result_init(&result, 2))
        abort();
    int64_t pinned[2];
    for (int backward = 0; backward < 2; backward++) {
        struct moe_run run = {.impl = &moe_janus,
            .options = &options,
            .inputs = &inputs,
            .backward = backward,
            .ranks = &ranks};
        pinned[backward] = moe_run(&run, &result) ? -1 : result.ranks[0].host_pinned_peak_bytes;
    }
    /* balanced: tokens 0 to 5 name experts 0 to 6; of rank 1's, 4 to 6 */
    tap_ok(pinned[0] >= 0 && pinned[1] - pinned[0] == 3 * 3 * 12 * 8 * 4,
        "janus: the three experts that rank 0 fetched are pinned until backward is through");
    case_result_free(&result);
    moe_inputs_free(&inputs);
    moe_routing_free(&routing);
    dev_pool_free(pool);
}

int main(void)
{
    schedules(1, DTYPE_F32, MOE_SWIGLU);
    schedules(2, DTYPE_BF16, MOE_SWIGLU);
    schedules(3, DTYPE_F32, MOE_SWIGLU);
    schedules(3, DTYPE_BF16, MOE_RELU);
    schedules(4, DTYPE_F32, MOE_RELU);
    schedules(8, DTYPE_BF16, MOE_SWIGLU);
    rule_by_hand();
    room_of_cells();
    what_survives();
    janus_keeps_on_the_host();
    return tap_done();
}
