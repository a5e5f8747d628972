/* The kept reference results: computed once per inputs and order, shared where orders agree,
 * dropped oldest first. That a result was not computed again is seen by its address. */
#include "bench/harness/vocab_reference.h"
#include "tests/tap.h"
#include "tests/vocab_problem.h"

#define GENEROUS (INT64_C(1) << 30)

static struct problem *kept_problem(void)
{
    const int64_t rank_tokens[] = {5, 0, 7};
    return problem_create(DTYPE_BF16, 3, rank_tokens, 16, 40);
}

static struct ref_vocab_result get(
    struct vocab_reference *cache, const struct problem *p, const struct vocab_order *order)
{
    struct ref_vocab_result r = {0};
    char error[256] = "";
    int status = vocab_reference_get(cache, &p->reference, order, true, &r, error, sizeof error);
    tap_ok(!status, "a result %s", error);
    return r;
}

static void test_equal_to_reference(void)
{
    struct vocab_reference *cache = vocab_reference_create(GENEROUS);
    struct problem *p = kept_problem();
    struct ref_vocab_result want = result_create(p);
    char text[256];
    for (enum problem_order kind = 0; kind < ORDER_KINDS; kind++) {
        struct vocab_order order = order_create(3, kind);
        struct ref_vocab_result got = get(cache, p, kind == ORDER_DEFAULT ? NULL : &order);
        ref_vocab(&p->reference, &order, &want, text, sizeof text);
        bool equal = results_equal(p, &got, &want, text, sizeof text);
        tap_ok(equal, "kept result equals the reference, %s", problem_order_names[kind]);
        vocab_order_free(&order);
    }
    result_free(&want);
    problem_free(p);
    vocab_reference_free(cache);
}

static void test_sharing(void)
{
    struct vocab_reference *cache = vocab_reference_create(GENEROUS);
    struct problem *p = kept_problem(), *same = kept_problem();
    struct vocab_order plain = order_create(3, ORDER_DEFAULT);
    struct vocab_order parallel = order_create(3, ORDER_VOCAB_PARALLEL);
    struct vocab_order moving = order_create(3, ORDER_WEIGHTS_MOVE);
    struct ref_vocab_result first = get(cache, p, NULL), again = get(cache, same, &plain);
    tap_ok(first.loss == again.loss && first.dx == again.dx && first.dw == again.dw,
        "equal inputs elsewhere in the default order written out: computed once");
    again = get(cache, p, &parallel);
    tap_ok(first.loss == again.loss && first.dx != again.dx && first.dw == again.dw,
        "vocab-parallel shares the loss and dW with the default order");
    again = get(cache, p, &moving);
    tap_ok(first.loss == again.loss && first.dx != again.dx && first.dw != again.dw,
        "a ring shares the loss");
    problem_targets(p)[3] = (problem_targets(p)[3] + 1) % p->reference.vocab;
    again = get(cache, p, NULL);
    tap_ok(first.loss != again.loss, "another target is another problem");
    problem_set(same, same->reference.w, 0, 9.0f);
    again = get(cache, same, NULL);
    tap_ok(first.loss != again.loss, "another weight is another problem");

    struct ref_vocab_result loss_only;
    char error[256];
    int64_t bytes = vocab_reference_kept_bytes(cache);
    tap_ok(
        !vocab_reference_get(cache, &p->reference, NULL, false, &loss_only, error, sizeof error) &&
            !loss_only.dx && !loss_only.dw && vocab_reference_kept_bytes(cache) == bytes,
        "a forward result has no gradients");
    vocab_order_free(&plain);
    vocab_order_free(&parallel);
    vocab_order_free(&moving);
    problem_free(p);
    problem_free(same);
    vocab_reference_free(cache);
}

static void test_f64(void)
{
    struct vocab_reference *cache = vocab_reference_create(GENEROUS);
    struct problem *p = kept_problem();
    struct ref_vocab_f64 a, b, want = f64_create(p);
    char error[256];
    bool done = !vocab_reference_get_f64(cache, &p->reference, true, &a, error, sizeof error) &&
                !vocab_reference_get_f64(cache, &p->reference, true, &b, error, sizeof error);
    tap_ok(done && a.dx == b.dx && a.loss_bound == b.loss_bound, "FP64 values are computed once");
    ref_vocab_f64(&p->reference, &want, error, sizeof error);
    tap_ok(done && !memcmp(a.dw, want.dw, 40 * 16 * sizeof(double)) &&
               !memcmp(a.dw_bound, want.dw_bound, 40 * 16 * sizeof(double)),
        "and are the FP64 reference's");
    done = !vocab_reference_get_f64(cache, &p->reference, false, &a, error, sizeof error);
    tap_ok(done && a.loss && !a.dx, "a forward result has no gradients");
    f64_free(&want);
    problem_free(p);
    vocab_reference_free(cache);
}

static void test_limit(void)
{
    struct problem *p = kept_problem();
    const int64_t lists = 9 * (int64_t)sizeof(struct vocab_part);
    const int64_t result = 3 * 12 * 4 + (12 * 16 * 2 + lists) + (40 * 16 * 4 + lists);
    struct vocab_reference *cache = vocab_reference_create(result);
    struct vocab_order moving = order_create(3, ORDER_WEIGHTS_MOVE);
    get(cache, p, NULL);
    tap_ok(vocab_reference_kept_bytes(cache) == result, "a result's bytes are counted: %lld",
        (long long)vocab_reference_kept_bytes(cache));
    struct ref_vocab_result got = get(cache, p, &moving), want = result_create(p);
    tap_ok(vocab_reference_kept_bytes(cache) == result, "the limit holds: older gradients go");
    char text[256];
    ref_vocab(&p->reference, &moving, &want, text, sizeof text);
    tap_ok(results_equal(p, &got, &want, text, sizeof text), "and the new ones are right");
    vocab_reference_free(cache);
    cache = vocab_reference_create(0);
    got = get(cache, p, &moving);
    tap_ok(results_equal(p, &got, &want, text, sizeof text) &&
               vocab_reference_kept_bytes(cache) == result,
        "what a call returns is kept whatever the limit");
    result_free(&want);
    vocab_order_free(&moving);
    problem_free(p);
    vocab_reference_free(cache);
}

static void test_refusals(void)
{
    struct vocab_reference *cache = vocab_reference_create(GENEROUS);
    struct problem *p = kept_problem();
    struct vocab_order order = order_create(3, ORDER_DEFAULT),
                       other = order_create(2, ORDER_DEFAULT);
    struct ref_vocab_result r;
    char error[256] = "";
    order.dw[4].part = 0;
    tap_ok(vocab_reference_get(cache, &p->reference, &order, true, &r, error, sizeof error) == -1,
        "refused: %s", error);
    tap_ok(vocab_reference_get(cache, &p->reference, &other, true, &r, error, sizeof error) == -1,
        "refused: %s", error);
    problem_targets(p)[0] = 40;
    tap_ok(vocab_reference_get(cache, &p->reference, NULL, true, &r, error, sizeof error) == -1,
        "refused: %s", error);
    tap_ok(vocab_reference_kept_bytes(cache) == 0, "and nothing is kept");
    vocab_order_free(&order);
    vocab_order_free(&other);
    problem_free(p);
    vocab_reference_free(cache);
}

int main(void)
{
    test_equal_to_reference();
    test_sharing();
    test_f64();
    test_limit();
    test_refusals();
    return tap_done();
}
