/* The gate itself: what the checks of the vocabulary family must catch, done on purpose. The faults
 * are made by the formulas written out (naive_vocab.h) or by giving the reference another problem;
 * each must fail the bit comparison, at the right coordinates, and the large ones must fail the
 * bounded check too. */
#include "tests/naive_vocab.h"
#include "tests/tap.h"

static struct problem *gate_problem(enum dtype dtype)
{
    const int64_t rank_tokens[] = {13, 11};
    return problem_create(dtype, 2, rank_tokens, 48, 150);
}

static const char *dtype_name(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? "BF16" : "FP32";
}

static struct ref_vocab_result reference_of(
    const struct problem *p, const struct vocab_order *order)
{
    struct ref_vocab_result r = result_create(p);
    char error[256];
    if (ref_vocab(&p->reference, order, &r, error, sizeof error))
        tap_ok(false, "the reference runs: %s", error);
    return r;
}

/* ---- a bit of a result ------------------------------------------------------------------- */

/* Flips each bit of some elements of each output; every flip must be found where it was made. */
static void test_flipped_output_bits(enum dtype dtype)
{
    struct problem *p = gate_problem(dtype);
    struct ref_vocab_result want = reference_of(p, NULL), got = reference_of(p, NULL);
    struct output outputs[OUTPUT_COUNT], wanted[OUTPUT_COUNT];
    char text[256];
    result_outputs(p, &got, outputs);
    result_outputs(p, &want, wanted);
    tap_ok(results_equal(p, &got, &want, text, sizeof text), "two runs are equal, %s",
        dtype_name(dtype));
    for (int i = 0; i < OUTPUT_COUNT; i++) {
        struct output *out = &outputs[i];
        int64_t width = dtype_bytes(out->type), count = out->shape[0] * out->shape[1];
        int64_t flips = 0, found = 0;
        for (int64_t element = 0; element < count; element += 1 + count / 50)
            for (int64_t bit = 0; bit < width * 8; bit++, flips++) {
                unsigned char *byte = (unsigned char *)out->values + element * width + bit / 8;
                char where[64];
                snprintf(where, sizeof where,
                    out->dims == 1 ? "%s[%lld]:" : "%s[%lld,%lld]:", out->name,
                    (long long)(element / out->shape[1]), (long long)(element % out->shape[1]));
                *byte ^= (unsigned char)(1u << bit % 8);
                found += !outputs_equal(out, &wanted[i], text, sizeof text) &&
                         !strncmp(text, where, strlen(where));
                *byte ^= (unsigned char)(1u << bit % 8);
            }
        tap_ok(found == flips, "%s, %s: %lld of %lld flipped bits found and named", out->name,
            dtype_name(dtype), (long long)found, (long long)flips);
    }
    result_free(&got);
    result_free(&want);
    problem_free(p);
}

/* ---- a bit of a logit -------------------------------------------------------------------- */

/* Logits of a problem, the right result, and room for one that a flipped bit spoilt. */
struct logits {
    struct problem *problem;
    float *y;
    struct ref_vocab_result want, got;
    struct vocab_order order;
};

static struct logits logits_create(enum dtype dtype)
{
    struct problem *p = gate_problem(dtype);
    return (struct logits){.problem = p,
        .y = naive_logits(p),
        .want = reference_of(p, NULL),
        .got = result_create(p),
        .order = order_create(2, ORDER_DEFAULT)};
}

static void logits_free(struct logits *l)
{
    free(l->y);
    result_free(&l->want);
    result_free(&l->got);
    vocab_order_free(&l->order);
    problem_free(l->problem);
}

/* Flips a bit of token n's logit v. True when loss, dX or dW shows it, loss and dX at token n only.
 */
static bool flip_is_found(struct logits *l, int64_t n, int64_t v, int bit)
{
    const struct ref_vocab_problem *r = &l->problem->reference;
    float *logit = &l->y[n * r->vocab + v];
    uint32_t bits = f32_bits(*logit);
    struct check_difference loss, dx, dw;
    *logit = f32_from_bits(bits ^ 1u << bit);
    naive_forward(l->problem, l->y, &l->got);
    naive_backward(l->problem, l->y, &l->order, &l->got);
    *logit = f32_from_bits(bits);
    bool equal = check_equal(DTYPE_F32, l->got.loss, l->want.loss, l->problem->tokens, &loss);
    equal &= check_equal(r->dtype, l->got.dx, l->want.dx, l->problem->tokens * r->hidden, &dx);
    equal &= check_equal(DTYPE_F32, l->got.dw, l->want.dw, r->vocab * r->hidden, &dw);
    bool loss_here = loss.first < 0 || (loss.first == n && loss.elements == 1);
    bool dx_here = dx.first < 0 || (dx.first / r->hidden == n && dx.elements <= r->hidden);
    return !equal && loss_here && dx_here;
}

static int64_t largest_logit(const float *row, int64_t vocab)
{
    int64_t largest = 0;
    for (int64_t v = 1; v < vocab; v++)
        if (row[v] > row[largest])
            largest = v;
    return largest;
}

/* The lowest bit of each token's largest logit. FP32 only: a residual in BF16 may well hide it. */
static void test_lowest_bit_of_largest_logit(void)
{
    struct logits l = logits_create(DTYPE_F32);
    int64_t found = 0, vocab = l.problem->reference.vocab;
    for (int64_t n = 0; n < l.problem->tokens; n++)
        found += flip_is_found(&l, n, largest_logit(l.y + n * vocab, vocab), 0);
    tap_ok(found == l.problem->tokens, "%lld of %lld flips of a largest logit's lowest bit found",
        (long long)found, (long long)l.problem->tokens);
    logits_free(&l);
}

/* The lowest bit of each target's logit that weighs two ulp of the loss's larger term, which the
 * loss must then show. */
static void test_bit_of_target_logit(enum dtype dtype)
{
    struct logits l = logits_create(dtype);
    const struct ref_vocab_problem *r = &l.problem->reference;
    int64_t found = 0;
    for (int64_t n = 0; n < l.problem->tokens; n++) {
        float y = l.y[n * r->vocab + r->targets[n]];
        float term = fmaxf(l.want.max[n] - y, l.want.loss[n]);
        int bit = 1 + ilogbf(term) - ilogbf(y);
        found += flip_is_found(&l, n, r->targets[n], bit > 0 ? bit : 0);
    }
    tap_ok(found == l.problem->tokens, "%lld of %lld flipped bits of a target's logit found, %s",
        (long long)found, (long long)l.problem->tokens, dtype_name(dtype));
    logits_free(&l);
}

/* ---- a shard folded twice ---------------------------------------------------------------- */

/* The same tokens against shards 0, 1 and once more 0: what an implementation has that folds shard
 * 0 twice. The vocabulary is even, so the shards have one size. */
static struct problem *with_shard_twice(const struct problem *p)
{
    const struct ref_vocab_problem *r = &p->reference;
    int64_t rank_tokens[] = {r->tokens[0], r->tokens[1], 0};
    struct problem *twice = problem_create(r->dtype, 3, rank_tokens, r->hidden, r->vocab / 2 * 3);
    int64_t shard_elements = r->vocab / 2 * r->hidden;
    for (int64_t i = 0; i < 3 * shard_elements; i++)
        problem_set(twice, twice->reference.w, i, problem_value(p, r->w, i % (2 * shard_elements)));
    memcpy(problem_targets(twice), r->targets, (size_t)p->tokens * sizeof *r->targets);
    return twice;
}

struct verdict {
    bool loss_equal, dx_equal;
    int64_t loss_outside, dx_outside; /* elements beyond their FP64 bound */
};

static int64_t count_outside(
    enum dtype type, const void *got, const double *want, const double *bound, int64_t count)
{
    int64_t outside = 0, first;
    double worst;
    for (int64_t i = 0; i < count; i++)
        outside += !check_bounded(type, (const char *)got + i * dtype_bytes(type), want + i,
            bound + i, 1, &first, &worst);
    return outside;
}

static struct verdict judge(const struct problem *p, const struct ref_vocab_result *got,
    const struct ref_vocab_result *want, const struct ref_vocab_f64 *f64)
{
    enum dtype dtype = p->reference.dtype;
    int64_t elements = p->tokens * p->reference.hidden;
    struct check_difference d;
    return (struct verdict){
        .loss_equal = check_equal(DTYPE_F32, got->loss, want->loss, p->tokens, &d),
        .dx_equal = check_equal(dtype, got->dx, want->dx, elements, &d),
        .loss_outside = count_outside(DTYPE_F32, got->loss, f64->loss, f64->loss_bound, p->tokens),
        .dx_outside = count_outside(dtype, got->dx, f64->dx, f64->dx_bound, elements),
    };
}

static void test_shard_twice(enum dtype dtype)
{
    struct problem *p = gate_problem(dtype), *twice = with_shard_twice(p);
    struct ref_vocab_result want = reference_of(p, NULL), got = reference_of(twice, NULL);
    struct ref_vocab_f64 f64 = f64_create(p);
    char error[256];
    ref_vocab_f64(&p->reference, &f64, error, sizeof error);
    struct verdict right = judge(p, &want, &want, &f64), wrong = judge(p, &got, &want, &f64);
    tap_ok(right.loss_equal && right.dx_equal && !right.loss_outside && !right.dx_outside,
        "the right result passes, %s", dtype_name(dtype));
    tap_ok(!wrong.loss_equal && !wrong.dx_equal, "a shard folded twice is not equal, %s",
        dtype_name(dtype));
    tap_ok(wrong.loss_outside == p->tokens && wrong.dx_outside > 0,
        "a shard folded twice is out of bounds: %lld of %lld losses, %lld elements of dX, %s",
        (long long)wrong.loss_outside, (long long)p->tokens, (long long)wrong.dx_outside,
        dtype_name(dtype));
    f64_free(&f64);
    result_free(&got);
    result_free(&want);
    problem_free(twice);
    problem_free(p);
}

/* ---- a target off by one ----------------------------------------------------------------- */

static bool only_row(const struct check_difference *d, int64_t columns, int64_t row)
{
    return d->first / columns == row && d->elements <= columns;
}

static void test_target_off_by_one(enum dtype dtype)
{
    struct problem *p = gate_problem(dtype);
    int64_t hidden = p->reference.hidden, elements = p->tokens * hidden, equal_found = 0;
    int64_t outside_found = 0;
    struct ref_vocab_result want = reference_of(p, NULL);
    struct ref_vocab_f64 f64 = f64_create(p);
    char error[256];
    ref_vocab_f64(&p->reference, &f64, error, sizeof error);
    for (int64_t n = 0; n < p->tokens; n++) {
        int64_t target = p->reference.targets[n];
        problem_targets(p)[n] = target + 1 < p->reference.vocab ? target + 1 : target - 1;
        struct ref_vocab_result got = reference_of(p, NULL);
        struct check_difference loss, dx, dw;
        check_equal(DTYPE_F32, got.loss, want.loss, p->tokens, &loss);
        check_equal(dtype, got.dx, want.dx, elements, &dx);
        check_equal(DTYPE_F32, got.dw, want.dw, p->reference.vocab * hidden, &dw);
        equal_found +=
            loss.first == n && loss.elements == 1 && only_row(&dx, hidden, n) && dw.first >= 0;
        struct verdict wrong = judge(p, &got, &want, &f64);
        int64_t dw_outside =
            count_outside(DTYPE_F32, got.dw, f64.dw, f64.dw_bound, p->reference.vocab * hidden);
        outside_found += wrong.loss_outside == 1 && wrong.dx_outside > 0 && dw_outside > 0;
        result_free(&got);
        problem_targets(p)[n] = target;
    }
    tap_ok(equal_found == p->tokens, "%lld of %lld targets off by one are found at their token, %s",
        (long long)equal_found, (long long)p->tokens, dtype_name(dtype));
    tap_ok(outside_found == p->tokens,
        "%lld of %lld targets off by one leave the bounds of loss, dX and dW, %s",
        (long long)outside_found, (long long)p->tokens, dtype_name(dtype));
    f64_free(&f64);
    result_free(&want);
    problem_free(p);
}

/* ---- orders ------------------------------------------------------------------------------ */

static void refused(const struct problem *p, const struct vocab_order *order, const char *why)
{
    struct ref_vocab_result r = result_create(p);
    char error[256] = "";
    int status = ref_vocab(&p->reference, order, &r, error, sizeof error);
    tap_ok(status == -1 && !strcmp(error, why), "refused: %s", error);
    status = ref_vocab_gradients(&p->reference, order, &r, error, sizeof error);
    tap_ok(status == -1 && !strcmp(error, why), "and by the gradients alone");
    struct ref_vocab_sample sample = {0};
    status = ref_vocab_sampled(&p->reference, order, &sample, &r, error, sizeof error);
    tap_ok(status == -1 && !strcmp(error, why), "and by a sample");
    result_free(&r);
}

static void test_orders(void)
{
    struct problem *p = gate_problem(DTYPE_F32);
    struct vocab_order order = order_create(2, ORDER_WEIGHTS_MOVE);
    order.dx[2].part = 0; /* batch 1 meets shards 0, 0 */
    refused(p, &order, "dX of 1: shard 0 is met twice (again at position 1)");
    order.dx[2].part = 1;
    order.dw[0].part = 1; /* shard 0 meets batches 1, 1 */
    refused(p, &order, "dW of 0: batch 1 is met twice (again at position 1)");
    order.dw[0].part = 2;
    refused(p, &order, "dW of 0: position 0 names batch 2, allowed 0..1");
    order.dw[0].part = 0;
    order.dw[2].starts = false;
    refused(p, &order, "dW of 1: the first part starts no segment");
    order.dw[2].starts = true;

    /* An order that covers the problem but is not the one that was run gives other bits. */
    struct ref_vocab_result in_order = reference_of(p, &order), plain = reference_of(p, NULL);
    struct check_difference d;
    tap_ok(!check_equal(DTYPE_F32, in_order.dx, plain.dx, p->tokens * p->reference.hidden, &d),
        "another order gives another dX");
    tap_ok(!check_equal(
               DTYPE_F32, in_order.dw, plain.dw, p->reference.vocab * p->reference.hidden, &d),
        "another order gives another dW");
    tap_ok(check_equal(DTYPE_F32, in_order.loss, plain.loss, p->tokens, &d),
        "the loss does not depend on it");
    result_free(&in_order);
    result_free(&plain);
    vocab_order_free(&order);
    problem_free(p);
}

/* ---- zeros and NaN ----------------------------------------------------------------------- */

static void test_zeros_and_nan(void)
{
    struct problem *p = gate_problem(DTYPE_F32);
    problem_targets(p)[4] = REF_VOCAB_IGNORED;
    problem_set(p, p->reference.x, 7 * p->reference.hidden, NAN);
    struct ref_vocab_result want = reference_of(p, NULL), got = reference_of(p, NULL);
    char text[256];
    got.loss[7] = f32_from_bits(0xffc12345u);
    tap_ok(results_equal(p, &got, &want, text, sizeof text), "another NaN is the same NaN");
    got.loss[4] = -0.0f;
    tap_ok(!results_equal(p, &got, &want, text, sizeof text) && !strncmp(text, "loss[4]:", 8),
        "-0 for an ignored token's +0 is found: %s", text);
    got.loss[4] = 0.0f;
    got.loss[7] = 1.0f;
    tap_ok(!results_equal(p, &got, &want, text, sizeof text) && !strncmp(text, "loss[7]:", 8),
        "a number for NaN is found: %s", text);
    got.loss[7] = NAN;
    got.loss[8] = NAN;
    tap_ok(!results_equal(p, &got, &want, text, sizeof text) && !strncmp(text, "loss[8]:", 8),
        "NaN for a number is found: %s", text);
    result_free(&got);
    result_free(&want);
    problem_free(p);
}

int main(void)
{
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        test_flipped_output_bits(dtype);
        test_bit_of_target_logit(dtype);
        test_shard_twice(dtype);
        test_target_off_by_one(dtype);
    }
    test_lowest_bit_of_largest_logit();
    test_orders();
    test_zeros_and_nan();
    return tap_done();
}
