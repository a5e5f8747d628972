/* Every dispatcher on every routing that the dispatch program knows: bit for bit the reference in
 * the order that it declares, with its memory known to the byte; whole numbers, where no order
 * matters; what is kept from forward to backward; and what a route costs at the papers' shape. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/moe_check.h"
#include "bench/harness/moe_routing.h"
#include "kernels/isa.h"
#include "ops/moe_route.h"
#include "tests/moe_schedule_case.h"
#include "tests/tap.h"

enum { WHY = 512 };

/* A dispatcher with its options. */
struct variant {
    const struct moe_impl *impl;
    const char *name;
    struct moe_options options;
};

#define LLEP .alpha = 1.0, .min_gemm_tokens = 4
static const struct variant variants[] = {
    {&moe_llep, "llep", {LLEP}},
    {&moe_alltoall, "alltoall", {.keep = MOE_KEEP_EAGER}},
    {&moe_alltoall, "alltoall --keep megatron", {.keep = MOE_KEEP_MEGATRON}},
    {&moe_alltoall_ckpt, "alltoall-ckpt", {.keep = MOE_KEEP_EAGER}},
    {&moe_alltoall_dedup, "alltoall-dedup", {.keep = MOE_KEEP_EAGER}},
    {&moe_chunked, "chunked", {.chunk_count = 3}},
    {&moe_fastermoe, "fastermoe", {.flops_per_byte = 0.01}},
    {&moe_tutel, "tutel", {.parts = 2}},
    {&moe_janus, "janus", {.credits = 2}},
    {&moe_pipelined_llep, "pipelined-llep", {.chunk_count = 3, LLEP}},
    {&moe_relay_expert, "relay-expert", {.hop_rows = 7}},
    {&moe_relay_token, "relay-token", {.hop_rows = 0}},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* ---- cases ------------------------------------------------------------------------------------
 */

/* A problem whose routing is the program's; `tokens` as asked for. 0, or -1 and why. */
static int case_of(struct moe_case *c, const struct moe_shape *asked, int64_t tokens,
    const char *routing_text, int64_t step, bool integers, char *why)
{
    struct moe_routing routing;
    int64_t counts[MOE_CASE_RANKS_MAX];
    memset(c, 0, sizeof *c);
    for (int r = 0; r < asked->ranks; r++)
        counts[r] = tokens;
    int status = moe_routing_parse(&routing, routing_text, why, WHY);
    if (status == 0)
        status = moe_routing_tokens(&routing, asked->ranks, asked->topk, counts, counts, why, WHY);
    if (status == 0 && moe_case_init(c, asked, counts, ROUTE_RANDOM, 0, 11)) {
        snprintf(why, WHY, "no memory");
        status = -1;
    }
    if (status == 0)
        status = moe_routing_check(&routing, &c->shape, why, WHY);
    for (int64_t r = 0, at = 0; status == 0 && r < asked->ranks; r++) {
        status = moe_routing_fill(&routing, &c->shape, 5, step, (int)r, c->idx + at);
        moe_routing_weights(&routing, &c->shape, 5, step, (int)r, integers, c->weight + at);
        at += counts[r] * asked->topk;
    }
    moe_routing_free(&routing);
    return status;
}

/* Whether tokens and experts meet on a ring. */
static bool visits(const struct variant *v)
{
    return v->impl == &moe_relay_expert || v->impl == &moe_relay_token;
}

/* Whether Y and dX are to be summed in the default order. */
static bool default_outputs(const struct variant *v)
{
    return v->impl != &moe_alltoall_dedup && v->impl != &moe_janus && !visits(v);
}

/* One dispatcher against the reference in its declared order; `plain` is the default order's. */
static bool holds(const struct moe_case *c, const struct variant *v,
    const struct moe_case_result *plain, char *why)
{
    struct moe_case_run run = {.impl = v->impl,
        .options = v->options,
        .keeps_nothing = v->impl == &moe_pipelined_llep || visits(v)};
    struct moe_case_result got = {0}, declared = {0};
    struct moe_order order = {0};
    snprintf(why, WHY, "no memory for an order");
    bool good = !moe_order_init(&order, c->all_tokens, c->shape.topk, c->shape.experts, c->idx) &&
                !v->impl->order(&c->shape, &v->options, c->rank_idx, &order);
    if (good) {
        bool combine = moe_order_default_combine(&order, c->idx);
        bool usual = combine && moe_order_default_gradient(&order);
        snprintf(why, WHY, "declares an order for Y and dX");
        good = (combine || !default_outputs(v)) && !moe_case_run(c, &run, &got, why, WHY) &&
               (usual || !moe_case_reference(c, v->impl, &v->options, &declared, why, WHY)) &&
               moe_case_equal(c, &got, usual ? plain : &declared, false, why, WHY);
    }
    moe_order_free(&order);
    moe_case_result_free(&got);
    moe_case_result_free(&declared);
    return good;
}

/* All dispatchers on one case. */
static bool all_hold(const struct moe_case *c)
{
    struct moe_case_result plain = {0};
    char why[WHY] = "";
    bool good = !moe_case_reference(c, NULL, NULL, &plain, why, WHY);
    if (!good)
        tap_note("reference: %s", why);
    for (int i = 0; i < VARIANTS && plain.y; i++)
        if (!holds(c, &variants[i], &plain, why)) {
            tap_note("%s: %s", variants[i].name, why);
            good = false;
        }
    moe_case_result_free(&plain);
    return good;
}

static bool routing_holds(
    const struct moe_shape *shape, int64_t tokens, const char *routing, int64_t step)
{
    struct moe_case c;
    char why[WHY] = "";
    bool good = !case_of(&c, shape, tokens, routing, step, false, why);
    if (!good)
        tap_note("%s: %s", routing, why);
    good = good && all_hold(&c);
    if (!good)
        tap_note("with %s routing", routing);
    moe_case_free(&c);
    return good;
}

/* ---- routings ---------------------------------------------------------------------------------
 */

static const char *const papers[] = {
    "balanced", "95/16", "80/16", "50/4", "50/16", "30/16", "30/4", "zipf:1.2", "uniform"};
static const char *const others[] = {"duplicates", "empty-slots"};

static void every_routing(int ranks, enum dtype type)
{
    struct moe_shape shape = {.ranks = ranks,
        .hidden = 12,
        .ffn = 8,
        .experts = (32 + ranks - 1) / ranks * ranks,
        .topk = 4,
        .dtype = type,
        .activation = MOE_SWIGLU};
    const char *name = type == DTYPE_BF16 ? "BF16" : "FP32";
    int good = 0, count = 0;
    for (int i = MOE_STRESS_FIRST; i <= MOE_STRESS_LAST; i++, count++)
        good += routing_holds(&shape, 13, moe_routing_name((enum moe_profile)i), i % 3);
    tap_ok(good == count && count == 8, "P=%d %s: eight stress workloads", ranks, name);
    good = count = 0;
    for (size_t i = 0; i < sizeof papers / sizeof *papers; i++, count++)
        good += routing_holds(&shape, 13, papers[i], 0);
    tap_ok(good == count, "P=%d %s: balanced, r/h, zipf and uniform routing", ranks, name);
    good = count = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++, count++)
        good += routing_holds(&shape, 13, others[i], 0);
    tap_ok(good == count, "P=%d %s: one expert in all slots; empty slots and tokens", ranks, name);
}

static void extreme_slots(void)
{
    for (int type = 0; type < 2; type++) {
        struct moe_shape shape = {.ranks = 4,
            .hidden = 12,
            .ffn = 20,
            .experts = 8,
            .dtype = (enum dtype)type,
            .activation = MOE_SWIGLU};
        bool good = true;
        for (int relu = 0; relu < 2; relu++) {
            shape.activation = relu ? MOE_RELU : MOE_SWIGLU;
            shape.topk = 1;
            good = routing_holds(&shape, 9, "uniform", 0) && good;
            shape.topk = 8;
            good = routing_holds(&shape, 9, "uniform", 0) && good;
            good = routing_holds(&shape, 9, "empty-slots", 0) && good;
            good = routing_holds(&shape, 0, "uniform", 0) && good;
        }
        tap_ok(good, "%s: k = 1, k = E, no tokens, SwiGLU and ReLU", type ? "BF16" : "FP32");
    }
}

static void instruction_sets(void)
{
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (isa_force((enum isa)isa)) {
            tap_skip("not on this machine", "%s", isa_name((enum isa)isa));
            continue;
        }
        bool good = true;
        for (int type = 0; type < 2; type++) {
            struct moe_shape shape = {.ranks = 2,
                .hidden = 40,
                .ffn = 24,
                .experts = 4,
                .topk = 3,
                .dtype = (enum dtype)type,
                .activation = MOE_SWIGLU};
            good = routing_holds(&shape, 21, "zipf:1", 0) && good;
            good = routing_holds(&shape, 21, "empty-slots", 0) && good;
        }
        tap_ok(good, "all dispatchers, %s", isa_name((enum isa)isa));
    }
}

/* Whether the cases above put dispatchers to sums in other orders than the default. */
static void orders_differ(void)
{
    struct moe_shape shape = {
        .ranks = 4, .hidden = 12, .ffn = 8, .experts = 32, .topk = 4, .activation = MOE_SWIGLU};
    struct moe_case c;
    char why[WHY] = "";
    int combine = 0, gradient = 0;
    for (int v = 0; v < VARIANTS; v++) {
        struct moe_order order = {0};
        bool good = !case_of(&c, &shape, 13, "30/4", 0, false, why) &&
                    !moe_order_init(&order, c.all_tokens, 4, 32, c.idx) &&
                    !variants[v].impl->order(&c.shape, &variants[v].options, c.rank_idx, &order);
        combine += good && !moe_order_default_combine(&order, c.idx);
        gradient += good && !moe_order_default_gradient(&order);
        moe_order_free(&order);
        moe_case_free(&c);
    }
    tap_ok(combine == 4 && gradient == 8, "on 30/4 four dispatchers declare an order for Y and "
                                          "dX, eight for the weight gradients");
}

/* ---- experts without routes -------------------------------------------------------------------
 */

static bool is_zero(const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        if (bits)
            return false;
    }
    return true;
}

/* Under the order check every new block is full of NaN. */
static void idle_experts_have_zero_gradients(void)
{
    struct moe_shape shape = {.ranks = 4,
        .hidden = 12,
        .ffn = 20,
        .experts = 8,
        .topk = 2,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    struct moe_case c;
    char why[WHY] = "";
    int good = 0;
    bool made = !case_of(&c, &shape, 9, "idle-experts", 0, false, why);
    int64_t values = shape.hidden * shape.ffn, counts[8] = {0};
    for (int64_t i = 0; made && i < c.all_tokens * shape.topk; i++)
        counts[c.idx[i]]++;
    for (int v = 0; made && v < VARIANTS; v++) {
        struct moe_case_run run = {.impl = variants[v].impl, .options = variants[v].options};
        struct moe_case_result got = {0};
        int idle = 0, zero = 0;
        if (moe_case_run(&c, &run, &got, why, sizeof why)) {
            tap_note("%s: %s", variants[v].name, why);
        } else {
            for (int64_t e = 0; e < 8; e++) {
                idle += counts[e] == 0;
                zero += counts[e] == 0 && is_zero(got.gate_gradient + e * values, values) &&
                        is_zero(got.up_gradient + e * values, values) &&
                        is_zero(got.down_gradient + e * values, values);
            }
            good += idle >= 2 && zero == idle;
        }
        moe_case_result_free(&got);
    }
    tap_ok(good == VARIANTS, "experts without routes: +0 where the buffer held NaN");
    moe_case_free(&c);
}

/* ---- whole numbers ----------------------------------------------------------------------------
 */

/* A dispatcher run and checked as the dispatch program does it. */
static bool run_integers(struct moe_checker *checker, const struct variant *v,
    struct moe_inputs *inputs, struct ranks_config *ranks, struct moe_outputs *outputs)
{
    struct case_result result;
    char error[256] = "";
    struct moe_run run = {.impl = v->impl,
        .options = &v->options,
        .inputs = inputs,
        .backward = true,
        .ranks = ranks,
        .collect = true};
    if (case_result_init(&result, ranks->count))
        return false;
    bool good = !moe_run(&run, &result) && !moe_check(checker, &run, inputs, CASE_CHECK_REFERENCE,
                                               0, &result, error, sizeof error);
    for (int i = 0; good && i < result.tensor_count; i++)
        good = result.tensors[i].verdict == VERDICT_EXACT_INPUT;
    if (!good)
        tap_note("%s: %s%s", v->name, run.failure.message, error);
    *outputs = run.outputs;
    case_result_free(&result);
    return good;
}

static bool same_outputs(
    const struct moe_inputs *inputs, const struct moe_outputs *a, const struct moe_outputs *b)
{
    const struct moe_shape *s = &inputs->shape;
    size_t rows = (size_t)(inputs->total * s->hidden * dtype_bytes(s->dtype));
    size_t slots = (size_t)(inputs->total * s->topk) * 4;
    size_t matrices = (size_t)(s->experts * s->hidden * s->ffn) * 4;
    return !memcmp(a->y, b->y, rows) && !memcmp(a->dx, b->dx, rows) &&
           !memcmp(a->router_gradient, b->router_gradient, slots) &&
           !memcmp(a->up_gradient, b->up_gradient, matrices) &&
           !memcmp(a->down_gradient, b->down_gradient, matrices);
}

static void exact_input(enum dtype type, const char *routing_text)
{
    static const int64_t tokens[4] = {11, 11, 11, 11};
    struct moe_shape shape = {.ranks = 4,
        .tokens = tokens,
        .hidden = 12,
        .ffn = 8,
        .experts = 8,
        .topk = 3,
        .dtype = type,
        .activation = MOE_RELU};
    struct moe_routing routing;
    struct moe_inputs inputs;
    struct moe_outputs first = {0}, outputs = {0};
    char why[WHY] = "";
    struct dev_pool *pool = dev_pool_create(2);
    struct moe_checker *checker = moe_checker_create();
    struct ranks_config ranks = {
        .count = 4, .device = {.kind = DEV_CPU, .pool = pool}, .timeout_s = 60};
    bool made = !moe_routing_parse(&routing, routing_text, why, WHY) &&
                !moe_inputs_init(&inputs, &shape, &routing, 3, 0, true);
    int good = 0;
    for (int v = 0; made && pool && checker && v < VARIANTS; v++) {
        bool fine = run_integers(checker, &variants[v], &inputs, &ranks, &outputs);
        good += fine && (v == 0 || same_outputs(&inputs, &first, &outputs));
        if (v == 0)
            first = outputs;
        else
            moe_outputs_free(&outputs);
    }
    tap_ok(good == VARIANTS, "whole numbers, %s, %s: all dispatchers give the same bits",
        type == DTYPE_BF16 ? "BF16" : "FP32", routing_text);
    moe_outputs_free(&first);
    if (made)
        moe_inputs_free(&inputs);
    moe_routing_free(&routing);
    moe_checker_free(checker);
    dev_pool_free(pool);
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Bytes that survive forward beside Y, of `per_route` a received route. */
static void survives(
    const struct moe_case *c, const struct variant *v, int64_t per_route, const char *what)
{
    const struct moe_partition partition = {
        .chunks = moe_chunk_count(&c->shape, &v->options), .kind = MOE_CHUNKS_CONTIGUOUS};
    struct moe_layout layout;
    struct moe_case_result got = {0};
    int64_t kept[MOE_CASE_RANKS_MAX];
    struct moe_case_run run = {.impl = v->impl, .options = v->options, .kept_bytes = kept};
    char why[WHY] = "no memory";
    bool good = !moe_layout_from_routing(&layout, &c->shape, &partition, NULL, c->rank_idx);
    if (good) {
        for (int r = 0; r < c->shape.ranks; r++) {
            int64_t routes = moe_layout_routes(&layout, r), tokens = c->tokens[r];
            kept[r] = per_route * moe_layout_received(&layout, r, 0) +
                      24 * moe_layout_group_total(&layout, r) + 8 * routes +
                      4 * tokens * (1 + c->shape.topk);
        }
        moe_layout_free(&layout);
        good = !moe_case_run(c, &run, &got, why, sizeof why);
    }
    if (!good)
        tap_note("%s", why);
    tap_ok(good, "%s: %s survive forward, %lld bytes a received route, and the index arrays",
        v->name, what, (long long)per_route);
    moe_case_result_free(&got);
}

static void what_survives(void)
{
    struct moe_shape shape = {.ranks = 4,
        .hidden = 24,
        .ffn = 20,
        .experts = 8,
        .topk = 3,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    struct moe_case c;
    char why[WHY] = "";
    if (!case_of(&c, &shape, 17, "zipf:1", 0, false, why)) {
        survives(&c, &variants[1], 2 * (4 * 24 + 4 * 20) + 4, "4H + 4F values");
        survives(&c, &variants[2], 2 * (24 + 3 * 20) + 4, "H + 3F values");
        survives(&c, &variants[3], 2 * 24 + 4, "H values");
        survives(&c, &variants[5], 0, "no rows");
    }
    moe_case_free(&c);
}

/* All routes of both ranks' tokens: `to_first` of a rank's tokens go to rank 0's expert, the others
 * to rank 1's. The peak of rank 0. */
static int64_t peak_of(
    const struct moe_shape *shape, const struct variant *v, int64_t to_first, bool backward)
{
    int64_t slots = shape->tokens[0] * shape->topk;
    int32_t *idx = malloc((size_t)slots * sizeof *idx);
    const int32_t *both[2] = {idx, idx};
    struct moe_peaks peaks[2] = {{0}};
    for (int64_t i = 0; idx && i < slots; i++)
        idx[i] = i / shape->topk < to_first ? 0 : 1;
    if (!idx || v->impl->expected_bytes(shape, &v->options, both, backward, peaks))
        peaks[0].all_bytes = -1;
    free(idx);
    return peaks[0].all_bytes;
}

/* Table 6: a received route costs eight vectors of 4096 BF16 values and its metadata. */
static void slope_at_the_papers_shape(void)
{
    static const int64_t tokens[2] = {1024, 1024};
    struct moe_shape shape = {.ranks = 2,
        .tokens = tokens,
        .hidden = 4096,
        .ffn = 4096,
        .experts = 2,
        .topk = 1,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    int64_t slope[2], bends = 0;
    for (int backward = 0; backward < 2; backward++) {
        int64_t few = peak_of(&shape, &variants[1], 256, backward);
        int64_t some = peak_of(&shape, &variants[1], 512, backward);
        int64_t many = peak_of(&shape, &variants[1], 1024, backward);
        slope[backward] = (some - few) / (2 * 256);
        bends += many - some != 2 * (some - few) || (some - few) % 512;
    }
    tap_ok(bends == 0 && slope[0] == 65536 + 4,
        "alltoall, H=F=4096 BF16: a received route costs %lld bytes in forward, linearly",
        (long long)slope[0]);
    tap_ok(slope[1] == 65536 + 8192 + 4 + 12,
        "and %lld in backward: its gradient row, router weight and gradients", (long long)slope[1]);
}

/* ---- failures ---------------------------------------------------------------------------------
 */

/* Device memory from too little for the first block up to the peak: every rank comes back. */
static void out_of_memory(const struct variant *v)
{
    struct moe_shape shape = {.ranks = 4,
        .hidden = 32,
        .ffn = 32,
        .experts = 4,
        .topk = 2,
        .dtype = DTYPE_F32,
        .activation = MOE_SWIGLU};
    struct moe_case_run run = {.impl = v->impl, .options = v->options};
    struct moe_case c;
    struct moe_case_result got;
    char why[WHY] = "";
    int failed = 0, passed = 0;
    if (case_of(&c, &shape, 9, "hot-expert", 0, false, why) == 0)
        for (int64_t limit = 16 << 10; limit < 256 << 10 && !passed; limit += 3 << 10) {
            run.device_limit_bytes = limit;
            if (moe_case_run(&c, &run, &got, why, sizeof why))
                failed++;
            else
                passed++;
            moe_case_result_free(&got);
        }
    tap_ok(failed > 5 && passed == 1, "%s: %d limits of memory end in an error on all ranks",
        v->name, failed);
    moe_case_free(&c);
}

int main(void)
{
    static const int rank_counts[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++)
        for (int type = 0; type < 2; type++)
            every_routing(rank_counts[i], (enum dtype)type);
    orders_differ();
    extreme_slots();
    idle_experts_have_zero_gradients();
    for (int type = 0; type < 2; type++) {
        exact_input((enum dtype)type, "uniform");
        exact_input((enum dtype)type, "duplicates");
    }
    what_survives();
    slope_at_the_papers_shape();
    for (int v = 1; v < VARIANTS; v++)
        if (variants[v].impl != &moe_pipelined_llep) /* tests/test_moe_schedules.c */
            out_of_memory(&variants[v]);
    instruction_sets();
    return tap_done();
}
