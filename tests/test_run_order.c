/* The plain implementations in orders that are given: any that covers the problem, drawn by seed,
 * bit for bit the reference in that order. */
#include <stdio.h>
#include <stdlib.h>
#include "probe/seed.h"
#include "tests/moe_schedule_case.h"
#include "tests/tap.h"
#include "tests/vocab_case.h"

enum { WHY = 512, DRAWS = 4 };

/* Numbers below an end, one after the other. */
struct draw {
    uint64_t seed;
    int64_t next;
};

static int64_t below(struct draw *draw, int64_t end)
{
    return seed_index(draw->seed, 0, draw->next++, end);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* A token's slots shuffled, and cut into groups. */
static void shuffle_slots(
    struct draw *draw, const int32_t *idx, int topk, int8_t *slot, bool *starts)
{
    bool any = false;
    for (int i = topk - 1; i > 0; i--) {
        int j = (int)below(draw, i + 1);
        int8_t held = slot[i];
        slot[i] = slot[j];
        slot[j] = held;
    }
    for (int i = 0; i < topk; i++) {
        bool route = idx[slot[i]] != MOE_EMPTY;
        starts[i] = route && (!any || below(draw, 3) == 0);
        any = any || route;
    }
}

/* An expert's routes shuffled, and cut into segments. */
static void shuffle_routes(struct draw *draw, int64_t count, int64_t *route, bool *starts)
{
    for (int64_t i = count - 1; i >= 0; i--) {
        int64_t j = below(draw, i + 1), held = route[i];
        route[i] = route[j];
        route[j] = held;
        starts[i] = i == 0 || below(draw, 4) == 0;
    }
}

static int draw_moe(struct draw *draw, const struct moe_case *c, struct moe_order *o)
{
    int topk = c->shape.topk;
    if (moe_order_init(o, c->all_tokens, topk, c->shape.experts, c->idx) ||
        moe_order_list_combine(o, c->idx))
        return -1;
    for (int64_t at = 0; at < c->all_tokens * topk; at += topk)
        shuffle_slots(draw, c->idx + at, topk, o->combine_slot + at, o->combine_starts + at);
    for (int64_t e = 0; e < c->shape.experts; e++) {
        int64_t first = o->expert_first[e];
        shuffle_routes(draw, o->expert_first[e + 1] - first, o->gradient_route + first,
            o->gradient_starts + first);
    }
    return 0;
}

static bool moe_in(
    const struct moe_case *c, const struct moe_impl *impl, const struct moe_order *order, char *why)
{
    struct moe_case_run run = {.impl = impl, .run_order = order};
    struct moe_case_result got = {0}, want = {0};
    bool good = !moe_case_run(c, &run, &got, why, WHY) &&
                !moe_case_reference_in(c, order, &want, why, WHY) &&
                moe_case_equal(c, &got, &want, false, why, WHY);
    moe_case_result_free(&got);
    moe_case_result_free(&want);
    return good;
}

static void test_dispatch(int ranks, enum dtype dtype, enum moe_case_routing routing)
{
    static const int64_t tokens[MOE_CASE_RANKS_MAX] = {9, 0, 14, 5};
    const struct moe_impl *const impls[] = {&moe_alltoall, &moe_alltoall_ckpt};
    const struct moe_shape shape = {
        .ranks = ranks, .hidden = 20, .ffn = 12, .experts = 12, .topk = 4, .dtype = dtype};
    struct moe_case c = {.all_tokens = 0};
    char why[WHY] = "no memory";
    int good = 0;
    bool made = moe_case_init(&c, &shape, tokens, routing, 5, 3) == 0;
    for (int i = 0; made && i < DRAWS; i++) {
        struct draw draw = {.seed = (uint64_t)i};
        struct moe_order order = {0};
        good += !draw_moe(&draw, &c, &order) && moe_in(&c, impls[i % 2], &order, why);
        moe_order_free(&order);
    }
    tap_ok(good == DRAWS, "dispatch, P=%d, %s, routing %d: any order that is given", ranks,
        dtype == DTYPE_BF16 ? "bf16" : "f32", (int)routing);
    if (good != DRAWS)
        tap_note("%s", why);
    moe_case_free(&c);
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

static void shuffle_parts(struct draw *draw, int ranks, struct vocab_part *list)
{
    for (int i = ranks - 1; i >= 0; i--) {
        int j = (int)below(draw, i + 1);
        int32_t held = list[i].part;
        list[i].part = list[j].part;
        list[j].part = held;
        list[i].starts = i == 0 || below(draw, 2) == 0;
    }
}

static void test_vocab(int ranks, enum dtype dtype)
{
    static const int64_t tokens[] = {5, 0, 7, 1, 6, 9};
    const struct vocab_shape shape = {ranks, tokens, 24, 61, dtype};
    const struct vocab_variant variant = {&vocab_materialized, {0}};
    struct vocab_test test = {.name = "given orders"};
    struct vocab_cache cache = {.count = 0};
    char why[WHY] = "no memory";
    int good = 0;
    bool made = vocab_inputs_seeded(&test.inputs, &shape, 7, 0.15) == 0;
    for (int i = 0; made && i < DRAWS; i++) {
        struct draw draw = {.seed = 100 + (uint64_t)i};
        struct vocab_order order;
        if (vocab_order_init(&order, ranks))
            break;
        for (int r = 0; r < ranks; r++) {
            shuffle_parts(&draw, ranks, order.dx + (int64_t)r * ranks);
            shuffle_parts(&draw, ranks, order.dw + (int64_t)r * ranks);
        }
        good += vocab_test_run_in(&test, &variant, &order, &cache, why, WHY);
        vocab_order_free(&order);
    }
    tap_ok(good == DRAWS, "vocabulary, P=%d, %s: any order that is given", ranks,
        dtype == DTYPE_BF16 ? "bf16" : "f32");
    if (good != DRAWS)
        tap_note("%s", why);
    vocab_cache_clear(&cache);
    vocab_inputs_free(&test.inputs);
}

int main(void)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int type = 0; type < 2; type++) {
            test_dispatch(ranks, (enum dtype)type, ROUTE_RANDOM);
            test_dispatch(ranks, (enum dtype)type, ROUTE_SKEWED);
        }
    for (int ranks = 1; ranks <= 6; ranks++)
        for (int type = 0; type < 2; type++)
            test_vocab(ranks, (enum dtype)type);
    return tap_done();
}
