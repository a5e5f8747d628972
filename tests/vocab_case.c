#include "tests/vocab_case.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/check.h"
#include "device/device.h"

static bool result_alloc(struct ref_vocab_result *r, const struct vocab_shape *shape)
{
    size_t tokens = (size_t)vocab_total_tokens(shape), hidden = (size_t)shape->hidden;
    r->max = malloc(tokens * 4 + 1);
    r->log_z = malloc(tokens * 4 + 1);
    r->loss = malloc(tokens * 4 + 1);
    r->dx = malloc(tokens * hidden * 4 + 1);
    r->dw = malloc((size_t)shape->vocab * hidden * 4 + 1);
    return r->max && r->log_z && r->loss && r->dx && r->dw;
}

void vocab_cache_clear(struct vocab_cache *cache)
{
    for (int i = 0; i < cache->count; i++) {
        struct ref_vocab_result *r = &cache->entries[i].result;
        free(r->max);
        free(r->log_z);
        free(r->loss);
        free(r->dx);
        free(r->dw);
        vocab_order_free(&cache->entries[i].order);
    }
    cache->count = 0;
}

static struct ref_vocab_problem problem_of(const struct vocab_inputs *inputs)
{
    const struct vocab_shape *shape = &inputs->shape;
    return (struct ref_vocab_problem){.ranks = shape->ranks,
        .tokens = shape->tokens,
        .hidden = shape->hidden,
        .vocab = shape->vocab,
        .dtype = shape->dtype,
        .x = inputs->x,
        .w = inputs->w,
        .targets = inputs->targets};
}

/* The reference in the order that is given, else in the one a variant declares, computed once per
 * order. */
static const struct ref_vocab_result *expected(struct vocab_test *test,
    const struct vocab_variant *variant, const struct vocab_order *given, struct vocab_cache *cache,
    char *why, int size)
{
    const struct vocab_shape *shape = &test->inputs.shape;
    size_t list_bytes = (size_t)shape->ranks * (size_t)shape->ranks * sizeof *given->dx;
    struct vocab_order order;
    if (vocab_order_init(&order, shape->ranks))
        return NULL;
    if (given) {
        memcpy(order.dx, given->dx, list_bytes);
        memcpy(order.dw, given->dw, list_bytes);
    } else {
        variant->impl->order(shape, &variant->options, &order);
    }
    for (int i = 0; i < cache->count; i++)
        if (vocab_order_equal(&cache->entries[i].order, &order)) {
            vocab_order_free(&order);
            return &cache->entries[i].result;
        }
    struct vocab_expected *e = &cache->entries[cache->count];
    struct ref_vocab_problem problem = problem_of(&test->inputs);
    if (cache->count == 16 || !result_alloc(&e->result, shape) ||
        ref_vocab(&problem, &order, &e->result, why, size)) {
        vocab_order_free(&order);
        return NULL;
    }
    e->order = order;
    cache->count++;
    return &e->result;
}

static bool tensor_equal(const char *name, enum dtype type, const void *got, const void *want,
    int dims, int64_t rows, int64_t columns, char *why, int size)
{
    struct check_difference difference;
    int64_t shape[2] = {rows, columns};
    if (check_equal(type, got, want, rows * columns, &difference))
        return true;
    check_describe(name, dims, shape, &difference, why, size);
    return false;
}

static bool outputs_equal(
    const struct vocab_run *run, const struct ref_vocab_result *want, char *why, int size)
{
    const struct vocab_shape *shape = &run->inputs->shape;
    const struct vocab_outputs *got = &run->outputs;
    int64_t tokens = vocab_total_tokens(shape);
    if (got->valid != want->valid ||
        !check_equal(DTYPE_F32, &(float){(float)got->mean}, &(float){(float)want->mean}, 1,
            &(struct check_difference){0})) {
        snprintf(why, (size_t)size, "mean %.17g of %lld tokens, want %.17g of %lld", got->mean,
            (long long)got->valid, want->mean, (long long)want->valid);
        return false;
    }
    return tensor_equal("max", DTYPE_F32, got->max, want->max, 1, tokens, 1, why, size) &&
           tensor_equal("log_z", DTYPE_F32, got->log_z, want->log_z, 1, tokens, 1, why, size) &&
           tensor_equal("loss", DTYPE_F32, got->loss, want->loss, 1, tokens, 1, why, size) &&
           tensor_equal(
               "dX", shape->dtype, got->dx, want->dx, 2, tokens, shape->hidden, why, size) &&
           tensor_equal(
               "dW", DTYPE_F32, got->dw, want->dw, 2, shape->vocab, shape->hidden, why, size);
}

static bool run_in(struct vocab_test *test, const struct vocab_variant *variant, int threads,
    const struct vocab_order *run_order, struct vocab_cache *cache, char *why, int size)
{
    snprintf(why, (size_t)size, "no memory for the test");
    if (vocab_inputs_materialize(&test->inputs))
        return false;
    const struct ref_vocab_result *want = expected(test, variant, run_order, cache, why, size);
    struct dev_pool *pool = dev_pool_create(threads);
    if (!want || !pool) {
        dev_pool_free(pool);
        return false;
    }
    struct ranks_config ranks = {.count = test->inputs.shape.ranks,
        .device = {.kind = DEV_CPU, .check_order = true, .pool = pool},
        .timeout_s = 20};
    struct vocab_run run = {.impl = variant->impl,
        .options = &variant->options,
        .inputs = &test->inputs,
        .backward = true,
        .run_order = run_order,
        .ranks = &ranks,
        .collect = true};
    struct case_result result;
    bool good = case_result_init(&result, ranks.count) == 0 && vocab_run(&run, &result) == 0;
    if (!good)
        snprintf(why, (size_t)size, "rank %d: %s", run.failure.rank, run.failure.message);
    good = good && outputs_equal(&run, want, why, size) &&
           (run_order || !case_memory_fault(&result, why, size));
    vocab_outputs_free(&run.outputs);
    case_result_free(&result);
    dev_pool_free(pool);
    return good;
}

bool vocab_test_run(struct vocab_test *test, const struct vocab_variant *variant, int threads,
    struct vocab_cache *cache, char *why, int size)
{
    return run_in(test, variant, threads, NULL, cache, why, size);
}

bool vocab_test_run_in(struct vocab_test *test, const struct vocab_variant *variant,
    const struct vocab_order *run_order, struct vocab_cache *cache, char *why, int size)
{
    return run_in(test, variant, 2, run_order, cache, why, size);
}

static bool bounded(const char *tensor, enum dtype type, const void *got, const double *want,
    const double *bound, int64_t count, char *why, int size)
{
    int64_t first;
    double worst;
    if (check_bounded(type, got, want, bound, count, &first, &worst))
        return true;
    snprintf(
        why, (size_t)size, "%s[%lld] is %g times its bound away", tensor, (long long)first, worst);
    return false;
}

bool vocab_test_bounded(struct vocab_test *test, struct vocab_cache *cache, char *why, int size)
{
    const struct vocab_shape *shape = &test->inputs.shape;
    int64_t tokens = vocab_total_tokens(shape), dx = tokens * shape->hidden,
            dw = shape->vocab * shape->hidden;
    double *all = malloc((size_t)(2 * (tokens + dx + dw) + 1) * sizeof *all);
    struct ref_vocab_f64 f64 = {.loss = all,
        .loss_bound = all + tokens,
        .dx = all + 2 * tokens,
        .dx_bound = all + 2 * tokens + dx,
        .dw = all + 2 * (tokens + dx),
        .dw_bound = all + 2 * (tokens + dx) + dw};
    struct ref_vocab_problem problem = problem_of(&test->inputs);
    bool good = all && !ref_vocab_f64(&problem, &f64, why, size);
    for (int i = 0; good && i < cache->count; i++) {
        struct ref_vocab_result *r = &cache->entries[i].result;
        good = bounded("loss", DTYPE_F32, r->loss, f64.loss, f64.loss_bound, tokens, why, size) &&
               bounded("dX", shape->dtype, r->dx, f64.dx, f64.dx_bound, dx, why, size) &&
               bounded("dW", DTYPE_F32, r->dw, f64.dw, f64.dw_bound, dw, why, size);
    }
    free(all);
    return good;
}
