/* llep and pipelined-llep: bit for bit the reference, at every rank count, chunk count, membership,
 * type and plan, with the order of their streams proved and their memory known to the byte. */
#include <stdio.h>
#include <stdlib.h>
#include "kernels/isa.h"
#include "ops/moe_route.h"
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

/* ---- slots ------------------------------------------------------------------------------------
 */

/* Allocations of both passes; -1 when the run fails. */
static int64_t allocations_at(const struct moe_case *c, int64_t chunks, bool serial)
{
    struct variant v = {chunks, MOE_CHUNKS_STRIDED, 0};
    struct moe_case_run run = {
        .impl = &moe_pipelined_llep, .options = options_of(&v), .serial_streams = serial};
    struct moe_case_result got = {0}, want = {0};
    char why[512] = "";
    bool good = !moe_case_run(c, &run, &got, why, sizeof why) &&
                !moe_case_reference(c, run.impl, &run.options, &want, why, sizeof why) &&
                moe_case_equal(c, &got, &want, false, why, sizeof why);
    if (!good)
        tap_note("K=%lld: %s", (long long)chunks, why);
    int64_t allocations = good ? got.allocations : -1;
    moe_case_result_free(&got);
    moe_case_result_free(&want);
    return allocations;
}

static void slots_are_made_once(void)
{
    struct moe_shape shape = {.ranks = 4,
        .hidden = 12,
        .ffn = 16,
        .experts = 8,
        .topk = 2,
        .dtype = DTYPE_F32,
        .activation = MOE_SWIGLU};
    struct moe_case c;
    if (!moe_case_init(&c, &shape, even, ROUTE_SKEWED, 0, 37)) {
        int64_t two = allocations_at(&c, 2, false), nine = allocations_at(&c, 9, false);
        tap_ok(two > 0 && two == nine, "%lld allocations with 2 chunks, %lld with 9",
            (long long)two, (long long)nine);
        tap_ok(allocations_at(&c, 4, true) == two, "all streams in one: the same bits and blocks");
    }
    moe_case_free(&c);
}

/* ---- a budget, and instruction sets -----------------------------------------------------------
 */

/* Whether experts are lent and the gradients' order is not the default one: else the cases above
 * would prove little. */
static void relocation_is_met(const struct moe_case *c, const struct moe_options *o)
{
    struct moe_layout layout = {0};
    struct moe_order order = {0};
    struct moe_partition partition = {moe_chunk_count(&c->shape, o), o->chunks};
    struct llep_options llep = {o->alpha, o->min_gemm_tokens, o->lambda};
    bool good = !moe_layout_from_routing(&layout, &c->shape, &partition, &llep, c->rank_idx) &&
                !moe_order_init(&order, c->all_tokens, c->shape.topk, c->shape.experts, c->idx) &&
                !moe_pipelined_llep.order(&c->shape, o, c->rank_idx, &order);
    tap_ok(good && layout.plan.transfers > 1 && partition.chunks == 4 &&
               moe_order_default_combine(&order, c->idx) && !moe_order_default_gradient(&order),
        "a budget of 3 tokens of 11 makes 4 chunks; %lld experts are lent; only the weight "
        "gradients' order is declared",
        (long long)layout.plan.transfers);
    moe_layout_free(&layout);
    moe_order_free(&order);
}

static void budget(void)
{
    struct moe_shape shape = {.ranks = 4,
        .hidden = 40,
        .ffn = 24,
        .experts = 8,
        .topk = 8,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    struct moe_case_run run = {.impl = &moe_pipelined_llep,
        .options = {.chunk_budget = 3, .max_chunks = 9, .alpha = 1.0, .min_gemm_tokens = 4},
        .keeps_nothing = true};
    struct moe_case c;
    char why[512] = "";
    if (!moe_case_init(&c, &shape, ragged, ROUTE_SKEWED, 6, 29)) {
        relocation_is_met(&c, &run.options);
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            if (isa_force((enum isa)isa)) {
                tap_skip("not on this machine", "%s", isa_name((enum isa)isa));
                continue;
            }
            bool good = moe_case_holds(&c, &run, why, sizeof why);
            if (!good)
                tap_note("%s", why);
            tap_ok(good, "k = E = 8, BF16, a budget, %s", isa_name((enum isa)isa));
        }
    }
    moe_case_free(&c);
}

/* ---- failures ---------------------------------------------------------------------------------
 */

/* Device memory from too little for the first block up to the peak: every rank comes back. */
static void out_of_memory(const struct moe_impl *impl)
{
    struct moe_shape shape = {.ranks = 4,
        .hidden = 32,
        .ffn = 32,
        .experts = 4,
        .topk = 2,
        .dtype = DTYPE_F32,
        .activation = MOE_SWIGLU};
    struct variant v = {3, MOE_CHUNKS_STRIDED, 0};
    struct moe_case_run run = {.impl = impl, .options = options_of(&v)};
    struct moe_case c;
    struct moe_case_result got;
    char why[512] = "";
    int failed = 0, passed = 0;
    if (moe_case_init(&c, &shape, even, ROUTE_ONE_EXPERT, 0, 31) == 0)
        for (int64_t limit = 8 << 10; limit < 256 << 10 && !passed; limit += 2 << 10) {
            run.device_limit_bytes = limit;
            if (moe_case_run(&c, &run, &got, why, sizeof why))
                failed++;
            else
                passed++;
            moe_case_result_free(&got);
        }
    tap_ok(failed > 10 && passed == 1, "%s: %d limits of memory end in an error on all ranks",
        impl->name, failed);
    moe_case_free(&c);
}

static int same_comm(struct rank *rank, void *context)
{
    (void)context;
    struct comm *first = comm_dup(rank->comm, "one"), *other = comm_dup(rank->comm, "other");
    return first && first != other && comm_dup(rank->comm, "one") == first ? 0 : -1;
}

static void communicators_are_kept(void)
{
    struct ranks_failure failure;
    struct ranks_config config = {.count = 3, .device = {.kind = DEV_CPU}};
    tap_ok(!ranks_run(&config, same_comm, NULL, &failure),
        "a duplicated communicator is kept by its name");
}

int main(void)
{
    matrix();
    one_chunk_is_llep();
    slots_are_made_once();
    budget();
    out_of_memory(&moe_llep);
    out_of_memory(&moe_pipelined_llep);
    communicators_are_kept();
    return tap_done();
}
