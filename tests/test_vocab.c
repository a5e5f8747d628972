/* The vocabulary family: every implementation, bit for bit, at every rank count, tile, schedule,
 * type and instruction set, on ordinary and on hostile inputs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/check.h"
#include "kernels/isa.h"
#include "kernels/strip.h"
#include "tests/tap.h"
#include "tests/vocab_case.h"

static const struct vocab_variant variants[] = {
    {&vocab_materialized, {0}},
    {&vocab_parallel, {0}},
    {&vocab_chunked_tokens, {0}},
    {&vocab_chunked_tokens, {.chunk = 3}},
    {&vocab_ring_dtp, {.move = VOCAB_MOVE_WEIGHTS}},
    {&vocab_ring_dtp, {.move = VOCAB_MOVE_WEIGHTS, .tile = 4}},
    {&vocab_ring_dtp, {.move = VOCAB_MOVE_ACTIVATIONS}},
    {&vocab_ring_dtp, {.move = VOCAB_MOVE_ACTIVATIONS, .tile = 1 << 20}},
    {&vocab_ring_dtp, {.move = VOCAB_MOVE_AUTO}},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* All variants on one set of inputs; one line of TAP. */
static void all_variants(struct vocab_test *test, int threads)
{
    struct vocab_cache cache = {.count = 0};
    char why[512] = "";
    int good = 0;
    for (int i = 0; i < VARIANTS; i++) {
        if (vocab_test_run(test, &variants[i], threads, &cache, why, sizeof why))
            good++;
        else
            tap_note("%s (variant %d): %s", variants[i].impl->name, i, why);
    }
    const struct vocab_shape *s = &test->inputs.shape;
    tap_ok(good == VARIANTS, "%s: P=%d H=%lld V=%lld %s, %s, %d threads: all bitwise", test->name,
        s->ranks, (long long)s->hidden, (long long)s->vocab,
        s->dtype == DTYPE_BF16 ? "bf16" : "f32", isa_name(isa_selected()), threads);
    bool bounded = vocab_test_bounded(test, &cache, why, sizeof why);
    if (!bounded)
        tap_note("%s", why);
    tap_ok(bounded, "%s: within the FP64 bounds in every order", test->name);
    vocab_cache_clear(&cache);
}

/* Same loss bits whatever the order: the default reference's. */
static void seeded(const char *name, int ranks, const int64_t *tokens, int64_t hidden,
    int64_t vocab, enum dtype type, int threads)
{
    struct vocab_shape shape = {ranks, tokens, hidden, vocab, type};
    struct vocab_test test = {.name = name};
    if (vocab_inputs_seeded(&test.inputs, &shape, 7, 0.15)) {
        tap_ok(false, "%s: memory", name);
        return;
    }
    all_variants(&test, threads);
    vocab_inputs_free(&test.inputs);
}

static const int rank_counts[] = {1, 2, 3, 4, 8};
static const int64_t even[8] = {6, 6, 6, 6, 6, 6, 6, 6};
static const int64_t ragged[8] = {5, 0, 7, 1, 0, 9, 2, 3};

static void matrix(int threads)
{
    for (int i = 0; i < 5; i++)
        for (int type = 0; type < 2; type++) {
            seeded("even", rank_counts[i], even, 20, 4500, (enum dtype)type, threads);
            seeded("ragged", rank_counts[i], ragged, 33, 1003, (enum dtype)type, threads);
            seeded("V < P", rank_counts[i], ragged, 8, 5, (enum dtype)type, threads);
        }
}

/* ---- hostile inputs -----------------------------------------------------------------------------
 */

/* FP32 inputs on three ranks that `change` edits before they run. */
static void edited(
    const char *name, void (*change)(struct vocab_inputs *inputs, float *x, float *w))
{
    static const int64_t tokens[3] = {5, 0, 7};
    struct vocab_shape shape = {3, tokens, 16, 2500, DTYPE_F32};
    struct vocab_test test = {.name = name};
    if (vocab_inputs_seeded(&test.inputs, &shape, 11, 0.2) ||
        vocab_inputs_materialize(&test.inputs)) {
        tap_ok(false, "%s: memory", name);
        return;
    }
    change(&test.inputs, test.inputs.owned_x, test.inputs.owned_w);
    all_variants(&test, 2);
    vocab_inputs_free(&test.inputs);
}

static void ignore_a_rank(struct vocab_inputs *inputs, float *x, float *w)
{
    (void)x;
    (void)w;
    for (int i = 0; i < 5; i++)
        inputs->targets[i] = VOCAB_IGNORED;
}

static void ignore_all(struct vocab_inputs *inputs, float *x, float *w)
{
    (void)x;
    (void)w;
    for (int i = 0; i < 12; i++)
        inputs->targets[i] = VOCAB_IGNORED;
}

static void huge_logits(struct vocab_inputs *inputs, float *x, float *w)
{
    (void)inputs;
    (void)w;
    for (int i = 0; i < 12 * 16; i++)
        x[i] *= 4000.0f;
}

static void overflow_to_minus_infinity(struct vocab_inputs *inputs, float *x, float *w)
{
    (void)inputs;
    for (int h = 0; h < 16; h++)
        x[3 * 16 + h] = 1e30f;
    for (int v = 0; v < 2500; v += 2)
        for (int h = 0; h < 16; h++)
            w[v * 16 + h] = -1e30f;
}

static void whole_shard_minus_infinity(struct vocab_inputs *inputs, float *x, float *w)
{
    (void)inputs;
    for (int h = 0; h < 16; h++)
        x[3 * 16 + h] = 1e30f;
    for (int v = 0; v < 1200; v++)
        for (int h = 0; h < 16; h++)
            w[v * 16 + h] = -1e30f;
}

static void nan_token(struct vocab_inputs *inputs, float *x, float *w)
{
    (void)inputs;
    (void)w;
    x[6 * 16 + 2] = NAN;
}

/* Demands that a NaN in token 6 reaches no other token: losses and rows of dX keep their bits. */
static void nan_stays_in_its_row(void)
{
    static const int64_t tokens[3] = {5, 0, 7};
    struct vocab_shape shape = {3, tokens, 16, 2500, DTYPE_F32};
    struct vocab_options options = {.move = VOCAB_MOVE_ACTIVATIONS};
    struct vocab_inputs inputs;
    struct dev_pool *pool = dev_pool_create(1);
    struct ranks_config ranks = {
        .count = 3, .device = {.kind = DEV_CPU, .pool = pool}, .timeout_s = 20};
    struct vocab_run clean = {.impl = &vocab_ring_dtp,
        .options = &options,
        .inputs = &inputs,
        .backward = true,
        .ranks = &ranks,
        .collect = true};
    struct vocab_run dirty = clean;
    struct case_result result = {.ranks = NULL};
    bool good = pool && !vocab_inputs_seeded(&inputs, &shape, 11, 0.0) &&
                !vocab_inputs_materialize(&inputs) && !case_result_init(&result, 3) &&
                !vocab_run(&clean, &result);
    if (good)
        ((float *)inputs.owned_x)[6 * 16 + 2] = NAN;
    good = good && !vocab_run(&dirty, &result);
    for (int n = 0; good && n < 12; n++) {
        const float *a = clean.outputs.dx, *b = dirty.outputs.dx;
        bool same = !memcmp(&clean.outputs.loss[n], &dirty.outputs.loss[n], 4) &&
                    !memcmp(a + n * 16, b + n * 16, 64);
        good = n == 6 ? isnan(dirty.outputs.loss[n]) && isnan(b[n * 16]) : same;
    }
    tap_ok(good, "a NaN token turns only its own loss and dX into NaN");
    vocab_outputs_free(&clean.outputs);
    vocab_outputs_free(&dirty.outputs);
    case_result_free(&result);
    vocab_inputs_free(&inputs);
    dev_pool_free(pool);
}

/* The loss of a rank count has the same bits in every implementation; this is the default
 * reference's by all_variants. Across rank counts it only stays bounded, and usually differs. */
static void several_segments(void)
{
    static const int64_t tokens[2] = {9, 14};
    seeded("many segments", 2, tokens, 12, 9000, DTYPE_F32, 2);
    seeded("many segments", 2, tokens, 12, 9000, DTYPE_BF16, 2);
}

int main(void)
{
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (isa_force((enum isa)isa)) {
            tap_skip("not on this machine", "%s", isa_name((enum isa)isa));
            continue;
        }
        matrix(1 + isa % 2);
    }
    several_segments();
    edited("a rank of ignored tokens", ignore_a_rank);
    edited("only ignored tokens", ignore_all);
    edited("logits of 1e4", huge_logits);
    edited("minus infinity by overflow", overflow_to_minus_infinity);
    edited("a shard of minus infinity", whole_shard_minus_infinity);
    edited("a NaN token", nan_token);
    nan_stays_in_its_row();
    return tap_done();
}
