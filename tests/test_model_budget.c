/* The budget of plan at the papers' sizes, on the simulated device: real schedules of whole steps,
 * whose tracked peaks are held against it.
 *
 *   a composed step never passes the budget; where routing is balanced its peaks are what plan
 *   says, to the byte, live set by live set
 *   the same of layouts drawn at random, many of them with every token on every expert (k = E)
 *   all routes on one rank: the dispatch fills its bound
 *   twice the context moves the live sets whose terms say so, and no others
 *   the standard step passes the budget in the live set that plan names, by what plan says */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/train_run.h"
#include "device/profile.h"
#include "ops/model_memory.h"
#include "ops/pipelined_memory.h"
#include "tests/draw.h"
#include "tests/model_case.h"
#include "tests/tap.h"

#define NO_LIMIT (INT64_C(1) << 44)

static struct model_options composed(int64_t chunk_budget)
{
    struct model_options options = model_case_options();
    options.dispatch = &moe_pipelined_llep;
    options.moe.chunk_budget = chunk_budget;
    options.moe.chunks = MOE_CHUNKS_CONTIGUOUS; /* of `balanced`, which cycles through experts */
    options.moe.min_gemm_tokens = 1024;
    options.vocab = &vocab_ring_dtp;
    options.checkpoint = &stack_sco;
    options.stack.budget.bytes = -1;
    options.optimizer = &adamw_offload_stream;
    options.adamw.bucket = 100000000;
    options.adamw.slots = 2;
    return options;
}

static struct model_shape shape_667b(int64_t length)
{
    return (struct model_shape){.layout = {64, {16, 64, 8}, 64, 384},
        .layers = 39,
        .hidden = 7168,
        .ffn = 2048,
        .vocab = 200000,
        .topk = 8,
        .length = length,
        .sequences = 1};
}

/* Small enough that all ranks run in a moment; widths such that every term is seen. */
static struct model_shape shape_of_8(int64_t length, int64_t layers, int64_t vocab)
{
    return (struct model_shape){.layout = {8, {2, 8, 4}, 16, 64},
        .layers = layers,
        .hidden = 1024,
        .ffn = 512,
        .vocab = vocab,
        .topk = 8,
        .length = length,
        .sequences = 1};
}

/* One step on the simulated device; case_result_free in any case. */
static bool simulate(const struct model_shape *shape, const struct model_options *options,
    const char *workload, struct case_result *result)
{
    char error[512] = "";
    struct profile machine;
    struct train_routing routing;
    bool good = profile_read("h200-64", &machine, error, sizeof error) == 0;
    struct ranks_config ranks = {.count = shape->layout.ranks,
        .device = {.kind = DEV_SIM,
            .device_limit_bytes = NO_LIMIT,
            .host_limit_bytes = NO_LIMIT / 8,
            .profiles = &machine,
            .machines = 1}};
    struct train_run run = {
        .shape = shape, .options = options, .routing = &routing, .ranks = &ranks, .steps = 1};
    good = train_routing_read(&routing, workload, shape, error, sizeof error) == 0 && good;
    run.alike = routing.even;
    good = case_result_init(result, shape->layout.ranks) == 0 && good;
    if (!good || train_run(&run, result)) {
        tap_note("%s%s", error, run.failure.message);
        good = false;
    }
    train_run_free(&run);
    train_routing_free(&routing);
    return good;
}

static const struct mem_window *window_of(const struct case_result *result, int rank)
{
    return &result->ranks[rank].windows[WINDOW_PASS].peak;
}

/* Whether the live sets of `sets` (bits) peak at what is said, and where `all` >= 0 all together.
 */
static bool peaks_at(
    const struct mem_window *got, const int64_t *set_bytes, int64_t all, uint32_t sets)
{
    bool good = all < 0 || got->peak_bytes == all;
    if (!good)
        tap_note("%lld bytes in all, said to be %lld", (long long)got->peak_bytes, (long long)all);
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        if ((sets >> set & 1) && got->set_peak_bytes[set] != set_bytes[set]) {
            tap_note("live set %s: %lld bytes, said to be %lld",
                mem_live_set_name((enum live_set)set), (long long)got->set_peak_bytes[set],
                (long long)set_bytes[set]);
            good = false;
        }
    return good;
}

#define ALL_SETS ((1u << LIVE_SET_COUNT) - 1)
#define OF_ROUTING (1u << LIVE_DISPATCH | 1u << LIVE_COMBINE | 1u << LIVE_EXPERT)

/* ---- what plan says -------------------------------------------------------------------------- */

static struct model_moments balanced_moments(
    const struct model_shape *shape, const struct model_options *options, int rank)
{
    int64_t tokens[64];
    for (int i = 0; i < shape->layout.ranks; i++)
        tokens[i] = model_tokens(shape);
    const struct moe_shape moe = {shape->layout.degree[LAYOUT_EXPERTS], tokens, shape->hidden,
        shape->ffn, shape->layout.experts, shape->topk, DTYPE_BF16, MOE_SWIGLU};
    struct moe_peaks peaks =
        pipelined_balanced_peaks(&moe, &options->moe, rank % shape->layout.degree[LAYOUT_EXPERTS]);
    const struct model_dispatch dispatch = {&peaks, false};
    struct model_moments moments;
    if (model_moments(&moments, shape, options, rank, &dispatch))
        memset(&moments, 0, sizeof moments);
    return moments;
}

/* ---- the papers' size ------------------------------------------------------------------------ */

/* What `even` gives a rank of a chunk is a little more or less than its share: all but what holds
 * received rows is to the byte. */
static void test_667b(int64_t length)
{
    struct model_shape shape = shape_667b(length);
    struct model_options options = composed(4096);
    struct case_result result;
    struct model_budget budget;
    bool good = simulate(&shape, &options, "even", &result) &&
                model_budget(&budget, &shape, &options, 0) == 0;
    struct model_moments moments = balanced_moments(&shape, &options, 0);
    const struct mem_window *got = window_of(&result, 0);
    tap_ok(good && got->peak_bytes == budget.balanced_bytes &&
               peaks_at(got, moments.step.set_bytes, budget.balanced_bytes, ALL_SETS & ~OF_ROUTING),
        "667B on 64 ranks, %lldK: %lld bytes, as plan says of balanced routing",
        (long long)length >> 10, good ? (long long)budget.balanced_bytes : -1);
    tap_ok(good && got->peak_bytes <= budget.device_bytes &&
               result.ranks[0].host_pinned_peak_bytes <= budget.host_bytes,
        "within what is guaranteed, and within the pinned bytes");
    case_result_free(&result);
}

/* ---- routing --------------------------------------------------------------------------------- */

/* 1024 tokens go round 64 experts a whole number of times. */
static void test_balanced(int64_t length)
{
    struct model_shape shape = shape_of_8(length, 3, 32000);
    struct model_options options = composed(1024);
    struct case_result result;
    bool good = simulate(&shape, &options, "balanced", &result);
    for (int rank = 0; good && rank < shape.layout.ranks; rank++) {
        struct model_moments moments = balanced_moments(&shape, &options, rank);
        good = peaks_at(
            window_of(&result, rank), moments.step.set_bytes, moments.step.all_bytes, ALL_SETS);
    }
    tap_ok(good, "balanced routing, T=%lld: every live set of every rank to the byte",
        (long long)length);
    case_result_free(&result);
}

/* ---- layouts at random ----------------------------------------------------------------------- */

/* A whole number of times round the experts in every chunk; odd widths, such that tensors do not
 * divide by the ranks. */
static struct model_shape draw_shape(uint64_t *state, int64_t *chunk_tokens)
{
    static const int ranks_of[] = {1, 2, 3, 4, 6, 8, 12};
    int ranks = ranks_of[draw(state, 7)];
    int degree[] = {
        draw_divisor(state, ranks), draw_divisor(state, ranks), draw_divisor(state, ranks)};
    int heads = degree[0] * (1 + draw(state, 2)), experts = degree[1] * (1 + draw(state, 3));
    int sequences = 1 + draw(state, 2), chunks = 1 + draw(state, 3);
    *chunk_tokens = (int64_t)experts * (1 + draw(state, 3)) * sequences;
    return (struct model_shape){
        .layout = {ranks, {degree[0], degree[1], degree[2]}, heads, experts},
        .layers = 1 + draw(state, 3),
        .hidden = heads * 2 * (1 + draw(state, 9)),
        .ffn = 1 + draw(state, 40),
        .vocab = ranks + draw(state, 300),
        .topk = draw(state, 2) ? experts : 1 + draw(state, experts),
        .length = *chunk_tokens / sequences * chunks * degree[0],
        .sequences = sequences};
}

static struct model_options draw_options(
    uint64_t *state, const struct model_shape *shape, int64_t chunk_tokens)
{
    struct model_options options = composed(chunk_tokens);
    int64_t row = model_tokens(shape) * shape->hidden * 2;
    options.stack.budget.bytes = draw(state, 2) ? -1 : row * draw(state, 4);
    options.keep_attention_bytes = draw(state, 2) ? 0 : row * draw(state, 20);
    options.adamw.bucket = 10 + draw(state, 10000);
    options.adamw.slots = 1 + draw(state, 4);
    return options;
}

/* Every rank at what the budget says of balanced routing, to the byte. */
static bool holds_the_budget(const struct model_shape *shape, const struct model_options *options)
{
    struct case_result result;
    struct model_budget budget;
    bool good = simulate(shape, options, "balanced", &result);
    for (int rank = 0; good && rank < shape->layout.ranks; rank++) {
        const struct mem_window *got = window_of(&result, rank);
        struct model_moments moments = balanced_moments(shape, options, rank);
        good = model_budget(&budget, shape, options, rank) == 0 &&
               got->peak_bytes <= budget.device_bytes &&
               peaks_at(got, moments.step.set_bytes, budget.balanced_bytes, ALL_SETS);
        if (!good)
            tap_note("rank %d of %d, D=%d, E_p=%d, P=%d, %d of %lld experts", rank,
                shape->layout.ranks, shape->layout.degree[0], shape->layout.degree[1],
                shape->layout.degree[2], shape->topk, (long long)shape->layout.experts);
    }
    case_result_free(&result);
    return good;
}

static void test_drawn(void)
{
    enum { LAYOUTS = 40 };
    uint64_t state = 11;
    int64_t chunk_tokens;
    int good = 0, everywhere = 0, whole = 0;
    for (int i = 0; i < LAYOUTS; i++) {
        struct model_shape shape = draw_shape(&state, &chunk_tokens);
        struct model_options options = draw_options(&state, &shape, chunk_tokens);
        everywhere += shape.topk == shape.layout.experts;
        whole += chunk_tokens == model_tokens(&shape);
        good += holds_the_budget(&shape, &options);
    }
    tap_ok(good == LAYOUTS && everywhere > 5 && whole > 5 && whole < LAYOUTS,
        "%d of %d layouts at random, k = E in %d of them, one chunk in %d: to the byte", good,
        (int)LAYOUTS, everywhere, whole);
}

/* With one expert rank and one chunk nothing is left to the router but which rows are whose. */
static void test_everywhere(void)
{
    struct model_shape shape = shape_of_8(4096, 1, 256);
    struct model_options options = composed(0);
    struct model_budget budget;
    shape.layout.degree[LAYOUT_EXPERTS] = 1;
    shape.layout.experts = shape.topk = 2;
    options.moe.max_chunks = 1;
    bool good = holds_the_budget(&shape, &options) &&
                model_budget(&budget, &shape, &options, 0) == 0 &&
                budget.device_bytes == budget.balanced_bytes;
    tap_ok(good, "every token on every expert of one rank: what is guaranteed is what is held");
}

/* ---- all on one rank ------------------------------------------------------------------------- */

static void test_hot(void)
{
    struct model_shape shape = shape_of_8(16384, 2, 32000);
    struct model_options options = composed(1024);
    options.moe.lambda = 1e6; /* experts stay with their owners: all rows on one rank */
    struct case_result result;
    struct model_budget budget;
    bool good = simulate(&shape, &options, "hot-rank", &result), filled = false;
    for (int rank = 0; good && rank < shape.layout.ranks; rank++) {
        const struct mem_window *got = window_of(&result, rank);
        good = model_budget(&budget, &shape, &options, rank) == 0 &&
               got->peak_bytes <= budget.device_bytes;
        if (good && rank == shape.layout.ranks / 2)
            filled = peaks_at(got, budget.set_bytes, -1, OF_ROUTING | 1u << LIVE_STAGING);
    }
    tap_ok(good, "all routes on one rank: every rank within the budget");
    tap_ok(filled, "and on that one the live sets of received rows fill their bound to the byte");
    case_result_free(&result);
}

/* ---- the context ----------------------------------------------------------------------------- */

/* Eq. 6 at fixed budgets: what a chunk, a tile, a bucket and a tensor hold stays; what holds tokens
 * grows. Weights travel the ring here, which is at its fullest in backward, without the tokens'
 * states. */
static void test_context(void)
{
    const uint32_t grows = 1u << LIVE_INPUT | 1u << LIVE_BOUNDARY | 1u << LIVE_OUTPUT |
                           1u << LIVE_ATTENTION | 1u << LIVE_WORKSPACE;
    struct model_options options = composed(1024);
    options.adamw.bucket = 1000000;
    struct case_result once, twice;
    struct model_shape shape = shape_of_8(32768, 2, 32000);
    bool good = simulate(&shape, &options, "balanced", &once);
    shape.length *= 2;
    good = simulate(&shape, &options, "balanced", &twice) && good;
    uint32_t moved = 0;
    for (int set = 0; good && set < LIVE_SET_COUNT; set++)
        if (window_of(&once, 0)->set_peak_bytes[set] != window_of(&twice, 0)->set_peak_bytes[set])
            moved |= 1u << set;
    for (int set = 0; good && set < LIVE_SET_COUNT; set++)
        if ((moved ^ grows) >> set & 1)
            tap_note("live set %s %s", mem_live_set_name((enum live_set)set),
                moved >> set & 1 ? "moved" : "did not move");
    tap_ok(good && moved == grows, "twice the context moves what holds tokens, and nothing else");
    case_result_free(&once);
    case_result_free(&twice);
}

/* ---- the standard step ----------------------------------------------------------------------- */

static struct model_options standard(void)
{
    struct model_options options = composed(0);
    options.dispatch = &moe_alltoall;
    options.vocab = &vocab_materialized;
    options.checkpoint = &stack_full_activations;
    options.optimizer = &adamw_device;
    return options;
}

/* The set that ends it depends on the model: many words, or many layers. */
static void test_standard(int64_t layers, int64_t vocab, enum live_set named)
{
    struct model_shape shape = shape_of_8(65536, layers, vocab);
    struct model_options options = composed(256), plain = standard();
    struct model_budget budget, unbounded;
    struct case_result result;
    bool good = model_budget(&budget, &shape, &options, 0) == 0 &&
                model_budget(&unbounded, &shape, &plain, 0) == 0;
    good = simulate(&shape, &plain, "balanced", &result) && good;
    const struct mem_window *got = window_of(&result, 0);
    enum live_set set = unbounded.unbounded_set;
    tap_ok(good && unbounded.unbounded && set == named &&
               got->set_peak_bytes[set] == unbounded.unbounded_bytes,
        "%lld layers, %lld words: plan says %s of the standard step, and how much of it",
        (long long)layers, (long long)vocab, mem_live_set_name(set));
    bool most = good;
    for (int other = 0; most && other < LIVE_SET_COUNT; other++)
        most = got->set_peak_bytes[other] <= got->set_peak_bytes[set];
    tap_ok(most && got->peak_bytes > budget.device_bytes &&
               got->set_peak_bytes[set] > budget.set_bytes[set],
        "it holds most there, and passes the composed step's budget, guaranteed for any routing");
    if (good)
        tap_note("%lld bytes, of them %lld; the budget has %lld and %lld",
            (long long)got->peak_bytes, (long long)got->set_peak_bytes[set],
            (long long)budget.device_bytes, (long long)budget.set_bytes[set]);
    case_result_free(&result);
}

int main(void)
{
    for (int64_t length = 131072; length <= 2097152; length *= 4)
        test_667b(length);
    test_balanced(4096);
    test_balanced(16384);
    test_drawn();
    test_everywhere();
    test_hot();
    test_context();
    test_standard(2, 128000, LIVE_LOGITS);
    test_standard(24, 4000, LIVE_COMBINE);
    return tap_done();
}
