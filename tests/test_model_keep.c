/* Attention's intermediates kept from forward to backward: at every budget the bits of the step
 * that keeps nothing, exactly the bytes that the plan says, exactly the FLOP less that it says, and
 * every access in order. */
#include <stdio.h>
#include <string.h>
#include "ops/model_keep.h"
#include "ops/model_memory.h"
#include "tests/model_case.h"
#include "tests/tap.h"

enum { LAYERS = 3, RANKS_MAX = 16 };

static struct model_case small_case(int ranks, int sequence)
{
    struct model_case c = {.shape = {.layout = {.ranks = ranks,
                                         .degree = {sequence, ranks, ranks},
                                         .heads = 4,
                                         .experts = 8},
                               .layers = LAYERS,
                               .hidden = 32,
                               .ffn = 24,
                               .vocab = 61,
                               .topk = 2,
                               .length = 24,
                               .sequences = 2},
        .options = model_case_options(),
        .steps = 2,
        .check_order = true};
    c.options.dispatch = &moe_pipelined_llep;
    c.options.moe.chunk_budget = 5;
    c.options.vocab = &vocab_ring_dtp;
    c.options.optimizer = &adamw_offload_stream;
    c.options.adamw.bucket = 1000;
    c.options.stack.budget.bytes = 9000;
    return c;
}

/* ---- what is live between forward and backward ----------------------------------------------- */

static const struct stack_impl *watched; /* whose forward is watched */
static int64_t live_bytes[RANKS_MAX];    /* of each rank, behind it */

static enum dev_status watched_forward(struct stack *s)
{
    enum dev_status status = watched->forward(s);
    live_bytes[s->rank] = dev_memory(s->dev)->live_bytes;
    return status;
}

static struct model_outcome run_watched(
    struct model_case *c, const struct stack_impl *impl, int64_t budget, int64_t *live)
{
    struct stack_impl watching = *impl;
    watched = impl;
    watching.forward = watched_forward;
    c->options.checkpoint = &watching;
    c->options.keep_attention_bytes = budget;
    struct model_outcome outcome = model_case_run(c);
    c->options.checkpoint = impl;
    memcpy(live, live_bytes, sizeof live_bytes);
    return outcome;
}

/* ---- budgets --------------------------------------------------------------------------------- */

/* Where the plan changes: the option's bytes in 1 .. L layers, and one byte less. */
static int list_budgets(const struct model_shape *shape, int64_t *budgets)
{
    struct recompute_option options[MODEL_KEEP_OPTIONS];
    int count = 0;
    model_keep_options(shape, options);
    for (int i = 0; i < MODEL_KEEP_OPTIONS; i++)
        for (int64_t layers = 1; layers <= LAYERS; layers++) {
            budgets[count++] = layers * options[i].kept_bytes - 1;
            budgets[count++] = layers * options[i].kept_bytes;
        }
    return count;
}

static bool same_bits(
    const struct model_outcome *a, const struct model_outcome *b, const struct model_case *c)
{
    return !a->fault[0] && !b->fault[0] &&
           !memcmp(a->loss, b->loss, (size_t)c->steps * sizeof *a->loss) &&
           !memcmp(a->master, b->master, (size_t)a->elements * sizeof *a->master);
}

static void test_budgets(int ranks, int sequence, const struct stack_impl *impl)
{
    struct model_case c = small_case(ranks, sequence);
    int64_t budgets[2 * MODEL_KEEP_OPTIONS * LAYERS], without[RANKS_MAX], live[RANKS_MAX];
    int count = list_budgets(&c.shape, budgets), wrong_bits = 0, wrong_bytes = 0, wrong_flops = 0;
    double most = 0;
    struct model_outcome nothing = run_watched(&c, impl, 0, without);
    for (int i = 0; i < count; i++) {
        int32_t choice[LAYERS];
        struct recompute_plan plan;
        struct model_outcome kept = run_watched(&c, impl, budgets[i], live);
        bool planned = model_keep_choose(&c.shape, &c.options, choice, &plan) == 0 &&
                       plan.kept_bytes <= budgets[i];
        wrong_bits += !planned || !same_bits(&kept, &nothing, &c);
        for (int r = 0; r < ranks; r++) {
            double saved = nothing.flops[r] - kept.flops[r];
            wrong_bytes += live[r] - without[r] != plan.kept_bytes;
            wrong_flops += saved != (double)(c.steps * plan.saved_flops);
            most = saved > most ? saved : most;
        }
        if (kept.fault[0])
            tap_note("%s", kept.fault);
        model_outcome_free(&kept);
    }
    tap_ok(!wrong_bits, "W=%d, D=%d, %s: %d budgets, the bits of keeping nothing", ranks, sequence,
        impl->name, count);
    tap_ok(!wrong_bytes, "every rank keeps the bytes of the plan, within the budget");
    tap_ok(!wrong_flops && most > 0, "and computes the plan's FLOP less, at most %.0f", most);
    if (nothing.fault[0])
        tap_note("%s", nothing.fault);
    model_outcome_free(&nothing);
}

/* Without checkpointing everything stays already. */
static void test_nothing_to_keep(void)
{
    struct model_case c = small_case(2, 2);
    int64_t without[RANKS_MAX], live[RANKS_MAX];
    struct model_outcome nothing = run_watched(&c, &stack_full_activations, 0, without);
    struct model_outcome kept = run_watched(&c, &stack_full_activations, 1 << 30, live);
    tap_ok(same_bits(&kept, &nothing, &c) && live[0] == without[0] &&
               kept.peak_bytes[0] == nothing.peak_bytes[0] && kept.flops[0] == nothing.flops[0],
        "full-activations recomputes nothing, and is not changed");
    model_outcome_free(&nothing);
    model_outcome_free(&kept);
}

/* ---- the plan's numbers ---------------------------------------------------------------------- */

static void test_options(void)
{
    struct model_case c = small_case(4, 2);
    struct recompute_option options[MODEL_KEEP_OPTIONS];
    struct recompute_problem problem = {1, MODEL_KEEP_OPTIONS, options, 0};
    char error[200] = "";
    model_keep_options(&c.shape, options);
    tap_ok(recompute_check(&problem, error, sizeof error) == 0, "options are nested%s", error);
    int64_t rows = model_tokens(&c.shape), row_bytes = rows * 32 * 2, sums = rows * 4 * 4;
    tap_ok(options[MODEL_KEEP_OUTPUT].kept_bytes == row_bytes + 2 * sums &&
               options[MODEL_KEEP_PROJECTIONS].kept_bytes == 4 * row_bytes + 2 * sums &&
               options[MODEL_KEEP_NORMED].kept_bytes == 5 * row_bytes + 2 * sums + 4 * rows,
        "o and its normalisers; q, k, v; n and its scales");
    tap_ok(options[MODEL_KEEP_PROJECTIONS].saved_flops - options[MODEL_KEEP_OUTPUT].saved_flops ==
               3 * 2 * rows * 32 * 32 + 2 * 6 * rows * 32 / 2,
        "q, k, v save three products and two turns");
}

static void test_peaks(int ranks, int sequence)
{
    struct model_case c = small_case(ranks, sequence);
    bool within = true;
    c.options.checkpoint = &stack_sco;
    for (int64_t budget = 0; budget <= 1 << 16; budget = 4 * budget + 4096) {
        c.options.keep_attention_bytes = budget;
        struct model_outcome kept = model_case_run(&c);
        within = within && !kept.fault[0];
        for (int r = 0; r < ranks; r++) {
            struct model_budget plan;
            within = within && model_budget(&plan, &c.shape, &c.options, r) == 0 &&
                     kept.peak_bytes[r] <= plan.device_bytes;
        }
        model_outcome_free(&kept);
    }
    tap_ok(within, "W=%d, D=%d: peaks within the budget that has what is kept as a term", ranks,
        sequence);
}

int main(void)
{
    test_options();
    test_budgets(1, 1, &stack_sco);
    test_budgets(4, 2, &stack_sco);
    test_budgets(2, 1, &stack_resident);
    test_budgets(2, 2, &stack_offload_all);
    test_nothing_to_keep();
    test_peaks(1, 1);
    test_peaks(4, 2);
    return tap_done();
}
