/* A model so small that fifty steps take a moment, whose implementations are given options that
 * make their orders differ: several chunks, parts, hops, lent experts and shadows. */
#include "tests/composition_case.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/train_run.h"
#include "probe/seed.h"
#include "tests/tap.h"

struct vocab_choice {
    const char *name;
    const struct vocab_impl *impl;
    struct vocab_options options;
};

static const struct vocab_choice vocab_choices[] = {
    {"materialized", &vocab_materialized, {0}},
    {"vocab-parallel", &vocab_parallel, {0}},
    {"chunked-tokens", &vocab_chunked_tokens, {.chunk = 5}},
    {"ring-dtp (weights move)", &vocab_ring_dtp, {.move = VOCAB_MOVE_WEIGHTS, .tile = 5}},
    {"ring-dtp (activations move)", &vocab_ring_dtp, {.move = VOCAB_MOVE_ACTIVATIONS}},
};
enum { VOCAB_CHOICES = sizeof vocab_choices / sizeof *vocab_choices };

static struct model_case base_case(int ranks, int sequence, int experts, int vocab, int steps)
{
    int64_t length = steps > 10 ? 64 : 12;
    struct model_case c = {.shape = {.layout = {.ranks = ranks,
                                         .degree = {sequence, experts, vocab},
                                         .heads = 4,
                                         .experts = 8},
                               .layers = 2,
                               .hidden = steps > 10 ? 32 : 16,
                               .ffn = 8,
                               .vocab = 37,
                               .topk = 3,
                               .length = length,
                               .sequences = 1},
        .options = model_case_options(),
        .steps = steps};
    c.options.moe.chunk_budget = length * 2 / 5;
    c.options.moe.lambda = 1.05;
    c.options.moe.hop_rows = length / 3;
    c.options.moe.flops_per_byte = 1e-3; /* a row's trip is dear: shadows pay */
    c.options.moe.parts = 2;
    c.options.moe.credits = 2;
    c.options.stack.budget.bytes = 500;
    c.options.adamw.bucket = 300;
    return c;
}

/* ---- the list -------------------------------------------------------------------------------- */

static int count_of(const void *const *table)
{
    int count = 0;
    while (table[count])
        count++;
    return count;
}

int compositions_open(
    struct compositions *all, int ranks, int sequence, int experts, int vocab, int steps)
{
    *all = (struct compositions){.base = base_case(ranks, sequence, experts, vocab, steps),
        .dispatchers = count_of((const void *const *)moe_impls),
        .vocabs = VOCAB_CHOICES,
        .checkpoints = count_of((const void *const *)stack_impls),
        .optimizers = count_of((const void *const *)adamw_impls)};
    size_t orders = (size_t)all->dispatchers * VOCAB_CHOICES;
    all->in_order = calloc(orders, sizeof *all->in_order);
    all->ran = calloc(orders, sizeof *all->ran);
    if (!all->in_order || !all->ran)
        return -1;
    all->standard = model_case_run(&all->base);
    return 0;
}

void compositions_close(struct compositions *all)
{
    for (int i = 0; all->ran && i < all->dispatchers * all->vocabs; i++)
        if (all->ran[i])
            model_outcome_free(&all->in_order[i]);
    model_outcome_free(&all->standard);
    free(all->in_order);
    free(all->ran);
}

int64_t compositions_count(const struct compositions *all)
{
    return (int64_t)all->dispatchers * all->vocabs * all->checkpoints * all->optimizers;
}

struct composition compositions_at(const struct compositions *all, int64_t index)
{
    struct composition chosen;
    chosen.optimizer = (int)(index % all->optimizers);
    index /= all->optimizers;
    chosen.checkpoint = (int)(index % all->checkpoints);
    index /= all->checkpoints;
    chosen.vocab = (int)(index % all->vocabs);
    chosen.dispatch = (int)(index / all->vocabs);
    return chosen;
}

/* ---- running --------------------------------------------------------------------------------- */

static const struct model_outcome *standard_in_order(
    struct compositions *all, int dispatch, int vocab)
{
    int at = dispatch * all->vocabs + vocab;
    if (!all->ran[at]) {
        struct model_case c = all->base;
        c.options.dispatch_order = moe_impls[dispatch];
        c.options.vocab_order = vocab_choices[vocab].impl;
        c.options.vocab_options = vocab_choices[vocab].options;
        all->in_order[at] = model_case_run(&c);
        all->ran[at] = true;
    }
    return &all->in_order[at];
}

static struct model_outcome run(const struct compositions *all, struct composition chosen)
{
    struct model_case c = all->base;
    c.options.dispatch = moe_impls[chosen.dispatch];
    c.options.vocab = vocab_choices[chosen.vocab].impl;
    c.options.vocab_options = vocab_choices[chosen.vocab].options;
    c.options.checkpoint = stack_impls[chosen.checkpoint];
    c.options.optimizer = adamw_impls[chosen.optimizer];
    return model_case_run(&c);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* An outcome as the harness compares them. */
static struct train_run run_of(const struct compositions *all, const struct model_outcome *outcome)
{
    return (struct train_run){.shape = &all->base.shape,
        .steps = all->base.steps,
        .loss = (double *)(uintptr_t)outcome->loss,
        .master = outcome->master,
        .elements = outcome->elements};
}

/* Where they first differ; "" where nowhere. */
static void first_difference(const struct compositions *all, const struct model_outcome *a,
    const struct model_outcome *b, char *text, int size)
{
    const struct train_run first = run_of(all, a), second = run_of(all, b);
    text[0] = 0;
    train_run_difference(&first, &second, text, size);
}

void compositions_check(struct compositions *all, struct composition chosen)
{
    const struct model_outcome *want = standard_in_order(all, chosen.dispatch, chosen.vocab);
    struct model_outcome got = run(all, chosen);
    char text[256];
    first_difference(all, &got, want, text, sizeof text);
    tap_ok(!got.fault[0] && !want->fault[0] && !got.stale && !want->stale && !text[0],
        "P=%d: %s, %s, %s, %s: the standard step's bits in these orders",
        all->base.shape.layout.ranks, moe_impls[chosen.dispatch]->name,
        vocab_choices[chosen.vocab].name, stack_impls[chosen.checkpoint]->name,
        adamw_impls[chosen.optimizer]->name);
    if (got.fault[0] || want->fault[0] || text[0])
        tap_note("%s %s %s", got.fault, want->fault, text);
    model_outcome_free(&got);
}

/* The largest difference of a loss, relative. */
static double distance(
    const struct compositions *all, const struct model_outcome *a, const struct model_outcome *b)
{
    double most = 0;
    for (int step = 0; step < all->base.steps; step++)
        most = fmax(most, fabs(a->loss[step] / b->loss[step] - 1));
    return most;
}

/* Of two choices whose every sum has the standard step's order, whatever the routing. */
static bool standard_orders(int dispatch, int vocab)
{
    const struct moe_impl *impl = moe_impls[dispatch];
    return (impl == &moe_alltoall || impl == &moe_alltoall_ckpt) &&
           (vocab_choices[vocab].impl == &vocab_materialized ||
               vocab_choices[vocab].impl == &vocab_chunked_tokens);
}

void compositions_check_own(struct compositions *all, int dispatch, int vocab)
{
    const struct model_outcome *ordered = standard_in_order(all, dispatch, vocab);
    char text[256];
    first_difference(all, ordered, &all->standard, text, sizeof text);
    double most = distance(all, ordered, &all->standard);
    bool same = !text[0], may_differ = !standard_orders(dispatch, vocab);
    tap_ok(!ordered->fault[0] && !all->standard.fault[0] && (same || may_differ) && most < 1e-2,
        "P=%d: in the orders of %s, %s the standard step %s, and its losses stay within %.0e",
        all->base.shape.layout.ranks, moe_impls[dispatch]->name, vocab_choices[vocab].name,
        same ? "is the same" : "differs", most);
    if (!same)
        tap_note("first in %s", text);
}

void compositions_check_each(struct compositions *all, int mixed, uint64_t seed)
{
    int standard = 0;
    while (moe_impls[standard] != &moe_alltoall)
        standard++;
    for (int d = 0; d < all->dispatchers; d++) {
        compositions_check(all, (struct composition){.dispatch = d});
        compositions_check_own(all, d, 0);
    }
    for (int v = 1; v < all->vocabs; v++) {
        compositions_check(all, (struct composition){.dispatch = standard, .vocab = v});
        compositions_check_own(all, standard, v);
    }
    for (int c = 1; c < all->checkpoints; c++)
        compositions_check(all, (struct composition){.dispatch = standard, .checkpoint = c});
    for (int o = 1; o < all->optimizers; o++)
        compositions_check(all, (struct composition){.dispatch = standard, .optimizer = o});
    for (int i = 0; i < mixed; i++)
        compositions_check(
            all, compositions_at(all, seed_index(seed, 0, i, compositions_count(all))));
}
