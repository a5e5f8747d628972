/* The composed model: whatever implementation of each family is chosen, losses and weights are the
 * same bits where no order differs; every composition keeps the order of its memory accesses. */
#include <stdio.h>
#include <string.h>
#include "ops/model_memory.h"
#include "tests/model_case.h"
#include "tests/tap.h"

static struct model_case small_case(int ranks, int sequence, int experts, int vocab)
{
    return (struct model_case){.shape = {.layout = {.ranks = ranks,
                                             .degree = {sequence, experts, vocab},
                                             .heads = 4,
                                             .experts = 8},
                                   .layers = 2,
                                   .hidden = 32,
                                   .ffn = 24,
                                   .vocab = 61,
                                   .topk = 2,
                                   .length = 24,
                                   .sequences = 2},
        .options = model_case_options(),
        .steps = 4,
        .check_order = true};
}

static void expect_same(
    const struct model_outcome *got, const struct model_outcome *want, int steps, const char *name)
{
    bool same = !got->fault[0] && !want->fault[0] &&
                !memcmp(got->loss, want->loss, (size_t)steps * sizeof *got->loss) &&
                !memcmp(got->master, want->master, (size_t)got->elements * sizeof *got->master) &&
                !got->stale && !want->stale;
    tap_ok(same, "%s", name);
    if (!same)
        tap_note("%s%s; losses %.9g and %.9g", got->fault, want->fault, got->loss[steps - 1],
            want->loss[steps - 1]);
}

static void test_checkpoints(int ranks, int sequence, int experts, int vocab)
{
    struct model_case c = small_case(ranks, sequence, experts, vocab);
    struct model_outcome standard = model_case_run(&c);
    char name[160];
    snprintf(name, sizeof name, "W=%d, D=%d, E_p=%d, P=%d: the loss falls", ranks, sequence,
        experts, vocab);
    tap_ok(!standard.fault[0] && standard.loss[3] < standard.loss[0], "%s", name);
    tap_note("%s losses %.6f to %.6f, peak %lld", standard.fault, standard.loss[0],
        standard.loss[3], (long long)standard.peak_bytes[0]);
    for (int i = 1; stack_impls[i]; i++) {
        c.options.checkpoint = stack_impls[i];
        c.options.stack.budget.bytes = 9000;
        struct model_outcome got = model_case_run(&c);
        snprintf(name, sizeof name, "%s: the bits of full-activations", stack_impls[i]->name);
        expect_same(&got, &standard, c.steps, name);
        model_outcome_free(&got);
    }
    c = small_case(ranks, sequence, experts, vocab);
    for (int i = 1; adamw_impls[i]; i++) {
        c.options.optimizer = adamw_impls[i];
        c.options.adamw.bucket = 1000;
        struct model_outcome got = model_case_run(&c);
        snprintf(name, sizeof name, "%s: the bits of device", adamw_impls[i]->name);
        expect_same(&got, &standard, c.steps, name);
        model_outcome_free(&got);
    }
    model_outcome_free(&standard);
}

/* A dispatch whose backward stands alone is not run again for a recomputed block: the same bits as
 * with a forward before every backward. */
static void test_backward_alone(void)
{
    for (int i = 0; moe_impls[i]; i++) {
        struct model_case c = small_case(2, 1, 2, 1);
        char name[160];
        if (!moe_impls[i]->backward_alone)
            continue;
        c.options.dispatch = moe_impls[i];
        c.options.moe.chunk_budget = 5;
        struct model_outcome once = model_case_run(&c);
        c.options.checkpoint = &stack_resident;
        struct model_outcome again = model_case_run(&c);
        snprintf(name, sizeof name, "%s: recomputed without its forward, the same bits",
            moe_impls[i]->name);
        expect_same(&again, &once, c.steps, name);
        model_outcome_free(&once);
        model_outcome_free(&again);
    }
}

/* The composed step's implementations. */
static void compose(struct model_case *c)
{
    c->options.dispatch = &moe_pipelined_llep;
    c->options.moe.chunk_budget = 5;
    c->options.vocab = &vocab_ring_dtp;
    c->options.checkpoint = &stack_sco;
    c->options.stack.budget.bytes = -1;
    c->options.optimizer = &adamw_offload_stream;
    c->options.adamw.bucket = 1000;
}

static void test_composed(int ranks, int sequence, int experts, int vocab)
{
    struct model_case c = small_case(ranks, sequence, experts, vocab);
    char name[160];
    struct model_outcome standard = model_case_run(&c);
    compose(&c);
    struct model_outcome composed = model_case_run(&c);
    c = small_case(ranks, sequence, experts, vocab);
    c.options.moe.chunk_budget = 5;
    c.options.dispatch_order = &moe_pipelined_llep;
    c.options.vocab_order = &vocab_ring_dtp;
    struct model_outcome ordered = model_case_run(&c);
    snprintf(name, sizeof name,
        "W=%d, D=%d, E_p=%d, P=%d: the standard step in the composed one's orders has its bits",
        ranks, sequence, experts, vocab);
    expect_same(&ordered, &composed, c.steps, name);
    bool differs =
        memcmp(standard.master, composed.master, (size_t)standard.elements * sizeof(float));
    double off = standard.loss[c.steps - 1] / composed.loss[c.steps - 1] - 1;
    tap_ok(differs, "in its own orders it differs");
    tap_ok(off < 1e-2 && off > -1e-2, "and stays near: the last loss by %.1e", off);
    model_outcome_free(&standard);
    model_outcome_free(&composed);
    model_outcome_free(&ordered);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_budget(int ranks, int sequence, int experts, int vocab, int64_t length)
{
    struct model_case c = small_case(ranks, sequence, experts, vocab);
    compose(&c);
    c.shape.length = length;
    c.steps = 2;
    struct model_outcome composed = model_case_run(&c);
    bool within = !composed.fault[0];
    double share = 0;
    for (int rank = 0; rank < ranks; rank++) {
        struct model_budget budget = {0};
        within = within && model_budget(&budget, &c.shape, &c.options, rank) == 0 &&
                 !budget.unbounded && composed.peak_bytes[rank] <= budget.device_bytes;
        share = (double)composed.peak_bytes[rank] / (double)budget.device_bytes;
    }
    tap_ok(within, "W=%d, D=%d, E_p=%d, P=%d, T=%lld: peaks within the budget (%.0f %%)", ranks,
        sequence, experts, vocab, (long long)length, 100 * share);
    model_outcome_free(&composed);
}

/* Twice the context moves only the terms that say so, and the standard step has no bound. */
static void test_terms(void)
{
    struct model_case c = small_case(4, 2, 4, 2);
    struct model_budget once, twice, standard;
    bool made = model_budget(&standard, &c.shape, &c.options, 0) == 0;
    compose(&c);
    made = made && model_budget(&once, &c.shape, &c.options, 0) == 0;
    c.shape.length *= 2;
    made = made && model_budget(&twice, &c.shape, &c.options, 0) == 0;
    int moved = 0, wrong = 0;
    for (int i = 0; made && i < once.count; i++) {
        bool moves = once.term[i].bytes != twice.term[i].bytes;
        moved += moves;
        wrong += moves && !once.term[i].per_context;
    }
    tap_ok(
        made && moved > 3 && !wrong, "twice the context moves %d terms, those that say so", moved);
    tap_ok(made && standard.unbounded && !strcmp(standard.unbounded, "alltoall"),
        "the standard step is unbounded, and its dispatch is named");
}

int main(void)
{
    test_checkpoints(1, 1, 1, 1);
    test_checkpoints(4, 2, 4, 2);
    test_backward_alone();
    test_composed(1, 1, 1, 1);
    test_composed(2, 1, 2, 2);
    test_composed(4, 2, 4, 4);
    test_composed(4, 4, 2, 2);
    for (int64_t length = 8; length <= 128; length *= 4) {
        test_budget(1, 1, 1, 1, length);
        test_budget(2, 2, 1, 2, length);
        test_budget(4, 2, 4, 2, length);
        test_budget(4, 4, 2, 4, length);
    }
    test_terms();
    return tap_done();
}
