/* Training steps of the composed model on the cpu device and on the simulated one, with the choices
 * that the router made on the first: the same bytes to the byte, live set by live set, on every
 * rank; the same pinned memory and the same messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/train_run.h"
#include "tests/model_case.h"
#include "tests/sim_case.h"
#include "tests/tap.h"

enum { STEPS = 2 };

static struct model_shape shape_of(int ranks, int sequence, int experts, int vocab)
{
    return (struct model_shape){
        .layout = {.ranks = ranks, .degree = {sequence, experts, vocab}, .heads = 4, .experts = 8},
        .layers = 2,
        .hidden = 32,
        .ffn = 24,
        .vocab = TRAIN_VOCAB,
        .topk = 2,
        .length = 24,
        .sequences = 2};
}

static struct model_options composed(void)
{
    struct model_options options = model_case_options();
    options.dispatch = &moe_pipelined_llep;
    options.moe.chunk_budget = 5;
    options.moe.flops_per_byte = 1840;
    options.vocab = &vocab_ring_dtp;
    options.checkpoint = &stack_sco;
    options.stack.budget.bytes = -1;
    options.optimizer = &adamw_offload_stream;
    options.adamw.bucket = 1000;
    options.adamw.slots = 2;
    return options;
}

/* ---- one composition on both ----------------------------------------------------------------- */

static bool run(
    struct train_run *train, const struct dev_config *device, struct case_result *result)
{
    struct ranks_config ranks = {
        .count = train->shape->layout.ranks, .device = *device, .timeout_s = 30};
    ranks.device.pool = dev_pool_create(1);
    train->ranks = &ranks;
    bool good = case_result_init(result, ranks.count) == 0 && train_run(train, result) == 0;
    if (!good)
        tap_note("rank %d: %s", train->failure.rank, train->failure.message);
    dev_pool_free(ranks.device.pool);
    train_run_free(train);
    return good;
}

static bool same_rank(const struct case_rank *cpu, const struct case_rank *sim)
{
    const struct mem_window *a = &cpu->windows[WINDOW_PASS].peak;
    const struct mem_window *b = &sim->windows[WINDOW_PASS].peak;
    return cpu->resident_bytes == sim->resident_bytes &&
           !memcmp(
               cpu->resident_set_bytes, sim->resident_set_bytes, sizeof cpu->resident_set_bytes) &&
           cpu->host_pinned_peak_bytes == sim->host_pinned_peak_bytes && a->peak_bytes > 0 &&
           !memcmp(a, b, sizeof *a);
}

static bool same_results(const struct case_result *cpu, const struct case_result *sim)
{
    bool same = cpu->has_traffic && !memcmp(&cpu->traffic, &sim->traffic, sizeof sim->traffic);
    if (!same)
        tap_note("the traffic differs");
    for (int r = 0; r < cpu->rank_count; r++)
        if (!same_rank(&cpu->ranks[r], &sim->ranks[r])) {
            tap_note("rank %d's memory differs: %lld and %lld bytes, pinned %lld and %lld", r,
                (long long)cpu->ranks[r].windows[WINDOW_PASS].peak.peak_bytes,
                (long long)sim->ranks[r].windows[WINDOW_PASS].peak.peak_bytes,
                (long long)cpu->ranks[r].host_pinned_peak_bytes,
                (long long)sim->ranks[r].host_pinned_peak_bytes);
            same = false;
        }
    return same;
}

/* `astray`: the simulated device is told that all tokens choose the first expert. */
static bool same_on_both(
    const struct model_shape *shape, const struct model_options *options, bool astray)
{
    static unsigned char bytes[] = "What one device counts, the other counts as well: to the byte.";
    const struct train_text text = {bytes, sizeof bytes};
    int64_t routes =
        STEPS * shape->layers * shape->layout.ranks * model_tokens(shape) * shape->topk;
    struct train_routing routing = {.even = false};
    struct profile machine = sim_case_profile();
    struct case_result cpu, sim;
    machine.ranks_per_node = shape->layout.ranks;
    struct dev_config on_cpu = {.kind = DEV_CPU, .check_order = true};
    struct dev_config on_sim = {
        .kind = DEV_SIM, .check_order = true, .profiles = &machine, .machines = 1};
    struct train_run first = {.shape = shape,
        .options = options,
        .text = &text,
        .steps = STEPS,
        .routes = calloc((size_t)routes, sizeof *first.routes)};
    struct train_run second = {
        .shape = shape, .options = options, .routing = &routing, .steps = STEPS};
    routing.routes = first.routes;
    bool good = first.routes && run(&first, &on_cpu, &cpu);
    if (astray && first.routes)
        memset(first.routes, 0, (size_t)routes * sizeof *first.routes);
    good = run(&second, &on_sim, &sim) && good;
    good = good && same_results(&cpu, &sim);
    case_result_free(&cpu);
    case_result_free(&sim);
    free(first.routes);
    return good;
}

/* ---- the compositions ------------------------------------------------------------------------ */

static void test(const struct model_shape *shape, const struct model_options *options,
    const char *where, const char *name)
{
    tap_ok(same_on_both(shape, options, false), "%s: %s counts the same", where, name);
}

/* The composed step with each implementation of each family in turn, and the standard step, in its
 * own orders and in the composed one's. */
static void test_layout(int ranks, int sequence, int experts, int vocab)
{
    struct model_shape shape = shape_of(ranks, sequence, experts, vocab);
    struct model_options options;
    char where[64];
    snprintf(where, sizeof where, "W=%d, D=%d, E_p=%d, P=%d", ranks, sequence, experts, vocab);
    for (int i = 0; moe_impls[i]; i++) {
        options = composed();
        options.dispatch = moe_impls[i];
        test(&shape, &options, where, moe_impls[i]->name);
    }
    for (int i = 0; vocab_impls[i]; i++) {
        options = composed();
        options.vocab = vocab_impls[i];
        test(&shape, &options, where, vocab_impls[i]->name);
    }
    for (int i = 0; stack_impls[i]; i++) {
        options = composed();
        options.checkpoint = stack_impls[i];
        options.stack.budget.bytes = 9000;
        test(&shape, &options, where, stack_impls[i]->name);
    }
    for (int i = 0; adamw_impls[i]; i++) {
        options = composed();
        options.optimizer = adamw_impls[i];
        test(&shape, &options, where, adamw_impls[i]->name);
    }
    options = model_case_options();
    test(&shape, &options, where, "the standard step");
    options.moe.chunk_budget = 5;
    options.dispatch_order = &moe_pipelined_llep;
    options.vocab_order = &vocab_ring_dtp;
    test(&shape, &options, where, "the standard step in the composed one's orders");
}

/* What the others show would not be shown if choices made no difference. */
static void test_astray(void)
{
    struct model_shape shape = shape_of(4, 2, 4, 2);
    struct model_options options = composed();
    tap_ok(!same_on_both(&shape, &options, true), "with other choices it counts something else");
}

int main(void)
{
    test_layout(1, 1, 1, 1);
    test_layout(4, 2, 4, 2);
    test_layout(4, 4, 2, 4);
    test_astray();
    return tap_done();
}
