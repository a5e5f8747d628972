/* llep and pipelined-llep: bit for bit the reference, at every rank count, chunk count, membership,
 * type and plan, with the order of their streams proved and their memory known to the byte. */
#include <stdio.h>
#include <stdlib.h>
#include "tests/moe_schedule_case.h"
#include "tests/tap.h"

static const int64_t even[8] = {9, 9, 9, 9, 9, 9, 9, 9};
static const int64_t ragged[8] = {5, 0, 11, 1, 0, 8, 2, 3};

struct variant {
    int64_t chunks;
    enum moe_chunks kind;
    double lambda;
};

static const struct variant variants[] = {
    {1, MOE_CHUNKS_STRIDED, 0},
    {2, MOE_CHUNKS_STRIDED, 0},
    {3, MOE_CHUNKS_CONTIGUOUS, 0},
    {4, MOE_CHUNKS_STRIDED, 1e9},
    {5, MOE_CHUNKS_STRIDED, 1.3},
    {16, MOE_CHUNKS_CONTIGUOUS, 1.3},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static struct moe_options options_of(const struct variant *v)
{
    return (struct moe_options){.chunk_count = v->chunks,
        .chunks = v->kind,
        .alpha = 1.0,
        .lambda = v->lambda,
        .min_gemm_tokens = 2};
}

/* llep at the variant's lambda, and pipelined-llep at its chunks. */
static int run_variant(const struct moe_case *c, const struct variant *v, bool forward_only)
{
    char why[512] = "";
    const struct moe_impl *impls[] = {&moe_llep, &moe_pipelined_llep};
    int good = 0;
    for (int i = 0; i < 2; i++) {
        struct moe_case_run run = {.impl = impls[i],
            .options = options_of(v),
            .forward_only = forward_only,
            .keeps_nothing = i == 1};
        if (moe_case_holds(c, &run, why, sizeof why))
            good++;
        else
            tap_note("%s, K=%lld, %s, lambda %g: %s", impls[i]->name, (long long)v->chunks,
                v->kind == MOE_CHUNKS_STRIDED ? "strided" : "contiguous", v->lambda, why);
    }
    return good;
}

static const char *const routing_names[] = {"random", "skewed", "one expert", "one rank"};

static void all_variants(const struct moe_shape *shape, const int64_t *tokens, const char *name,
    enum moe_case_routing routing, int empty_every)
{
    struct moe_case c;
    int good = 0;
    if (moe_case_init(&c, shape, tokens, routing, empty_every, 17)) {
        tap_ok(false, "memory");
        moe_case_free(&c);
        return;
    }
    for (int i = 0; i < VARIANTS; i++)
        good += run_variant(&c, &variants[i], false);
    good += run_variant(&c, &variants[1], true);
    tap_ok(good == 2 * VARIANTS + 2, "P=%d E=%lld k=%d %s %s, %s tokens, %s routing", shape->ranks,
        (long long)shape->experts, shape->topk, shape->dtype == DTYPE_BF16 ? "bf16" : "f32",
        shape->activation == MOE_RELU ? "relu" : "swiglu", name, routing_names[routing]);
    moe_case_free(&c);
}

static void matrix(void)
{
    static const int rank_counts[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++)
        for (int type = 0; type < 2; type++) {
            struct moe_shape shape = {.ranks = rank_counts[i],
                .hidden = 12,
                .ffn = 20,
                .experts = rank_counts[i] * (i % 2 ? 3 : 2),
                .topk = i % 2 ? 3 : 2,
                .dtype = (enum dtype)type,
                .activation = MOE_SWIGLU};
            all_variants(&shape, even, "even", ROUTE_RANDOM, 0);
            all_variants(&shape, ragged, "ragged", ROUTE_SKEWED, 5);
            if (i == 1 || i == 3) {
                all_variants(&shape, even, "even", ROUTE_ONE_EXPERT, 0);
                all_variants(&shape, ragged, "ragged", ROUTE_ONE_RANK, 3);
                shape.activation = MOE_RELU;
                all_variants(&shape, ragged, "ragged", ROUTE_SKEWED, 7);
            }
        }
    static const int64_t none[8] = {0};
    struct moe_shape shape = {
        .ranks = 4, .hidden = 8, .ffn = 8, .experts = 4, .topk = 4, .activation = MOE_SWIGLU};
    all_variants(&shape, none, "no", ROUTE_RANDOM, 0);
    shape.topk = 1;
    all_variants(&shape, ragged, "ragged", ROUTE_RANDOM, 1);
    all_variants(&shape, ragged, "ragged", ROUTE_RANDOM, 0);
}

/* ---- K = 1 ------------------------------------------------------------------------------------
 */

static void one_chunk_is_llep(void)
{
    struct moe_shape shape = {.ranks = 4,
        .hidden = 12,
        .ffn = 16,
        .experts = 8,
        .topk = 3,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    struct variant v = {1, MOE_CHUNKS_STRIDED, 0};
    struct moe_case_run run = {.impl = &moe_llep, .options = options_of(&v)};
    struct moe_case c;
    struct moe_case_result llep = {0}, pipelined = {0};
    char why[512] = "";
    bool good = !moe_case_init(&c, &shape, ragged, ROUTE_SKEWED, 6, 23) &&
                !moe_case_run(&c, &run, &llep, why, sizeof why);
    run.impl = &moe_pipelined_llep;
    good = good && !moe_case_run(&c, &run, &pipelined, why, sizeof why) &&
           moe_case_equal(&c, &pipelined, &llep, false, why, sizeof why);
    if (!good)
        tap_note("%s", why);
    tap_ok(good, "at K = 1 every output is llep's, bit for bit");
    moe_case_result_free(&llep);
    moe_case_result_free(&pipelined);
    moe_case_free(&c);
}

int main(void)
{
    matrix();
    one_chunk_is_llep();
    return tap_done();
}
