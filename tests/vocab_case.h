/* One run of one vocabulary implementation against the reference, for tests. */
#pragma once
#include <stdbool.h>
#include "bench/harness/vocab_run.h"

struct vocab_test {
    const char *name; /* of the inputs */
    struct vocab_inputs inputs;
};

/* The reference's result in one order, and what it was computed for. */
struct vocab_expected {
    struct ref_vocab_result result;
    struct vocab_order order;
};

struct vocab_variant {
    const struct vocab_impl *impl;
    struct vocab_options options;
};

/* Reference results already computed for one set of inputs, one per order. */
struct vocab_cache {
    struct vocab_expected entries[16];
    int count;
};

/* Runs a variant with `threads`, the order checker on, and demands: every output bitwise the
 * reference in the declared order, the loss bitwise the default one, tracked peaks equal to
 * expected_bytes by live set on every rank, within the bound, nothing leaked. Writes what failed
 * into `why`. */
bool vocab_test_run(struct vocab_test *test, const struct vocab_variant *variant, int threads,
    struct vocab_cache *cache, char *why, int size);

/* The same for one that takes a run_order, in that one; memory is not looked at. */
bool vocab_test_run_in(struct vocab_test *test, const struct vocab_variant *variant,
    const struct vocab_order *run_order, struct vocab_cache *cache, char *why, int size);

/* Demands that every reference result computed so far is within its FP64 bounds. */
bool vocab_test_bounded(struct vocab_test *test, struct vocab_cache *cache, char *why, int size);

void vocab_cache_clear(struct vocab_cache *cache);
