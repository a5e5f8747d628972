/* The reference against the same formulas written as directly as they can be (naive_vocab.h), bit
 * for bit, in every order that a schedule declares; against values worked out by hand; and against
 * its own FP64 version. */
#include "tests/naive_vocab.h"
#include "tests/tap.h"

static const char *dtype_name(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? "BF16" : "FP32";
}

/* One problem in every order, reference against naive. */
static void compare_with_naive(const struct problem *p, const char *name)
{
    struct ref_vocab_result got = result_create(p), want = result_create(p);
    float *y = naive_logits(p);
    char text[256] = "";
    naive_forward(p, y, &want);
    for (enum problem_order kind = 0; kind < ORDER_KINDS; kind++) {
        struct vocab_order order = order_create(p->reference.ranks, kind);
        naive_backward(p, y, &order, &want);
        memset(got.dw, 0xff, (size_t)(p->reference.vocab * p->reference.hidden) * sizeof *got.dw);
        int status = ref_vocab(
            &p->reference, kind == ORDER_DEFAULT ? NULL : &order, &got, text, sizeof text);
        bool equal = !status && results_equal(p, &got, &want, text, sizeof text);
        if (!tap_ok(equal, "%s, %s", name, problem_order_names[kind]))
            tap_note("%s", text);
        vocab_order_free(&order);
    }
    free(y);
    result_free(&got);
    result_free(&want);
}

struct shape_case {
    const char *name;
    int ranks;
    int64_t tokens[PROBLEM_RANKS_MAX], hidden, vocab;
};

static const struct shape_case shapes[] = {
    {"one token, one column, one row", 1, {1}, 1, 1},
    {"one rank", 1, {9}, 17, 50},
    {"two ranks", 2, {5, 8}, 33, 64},
    {"ragged tokens, V not divisible by P", 3, {5, 0, 7}, 40, 103},
    {"V smaller than P", 4, {3, 2, 1, 4}, 8, 3},
    {"eight ranks, most without tokens", 8, {0, 0, 4, 0, 1, 0, 0, 2}, 5, 21},
    {"no tokens at all", 2, {0, 0}, 4, 6},
    {"segments of a shard", 2, {3, 2}, 6, 4500},
    {"more tokens and rows than a block", 2, {700, 3}, 3, 2200},
    {"products longer than a block", 2, {6, 7}, 301, 65},
};

static void test_shapes(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            const struct shape_case *s = &shapes[i];
            struct problem *p = problem_create(dtype, s->ranks, s->tokens, s->hidden, s->vocab);
            char name[128];
            snprintf(name, sizeof name, "%s, %s", s->name, dtype_name(dtype));
            compare_with_naive(p, name);
            problem_free(p);
        }
}

/* ---- unusual inputs ---------------------------------------------------------------------- */

static void ignore_some(struct problem *p)
{
    for (int64_t n = 0; n < p->tokens; n += 3)
        problem_targets(p)[n] = REF_VOCAB_IGNORED;
}

static void ignore_a_rank(struct problem *p)
{
    for (int64_t n = 0; n < p->rank_tokens[0]; n++)
        problem_targets(p)[n] = REF_VOCAB_IGNORED;
}

static void ignore_all(struct problem *p)
{
    for (int64_t n = 0; n < p->tokens; n++)
        problem_targets(p)[n] = REF_VOCAB_IGNORED;
}

static void make_a_row_nan(struct problem *p)
{
    problem_set(p, p->reference.x, 2 * p->reference.hidden + 1, NAN);
}

static void make_logits_huge(struct problem *p)
{
    for (int64_t n = 0; n < p->tokens; n++)
        problem_set(p, p->reference.x, n * p->reference.hidden, n % 2 ? 1e4f : -1e4f);
}

/* Token 1's logits reach beyond FP32 where the weight's first column is positive: -inf. */
static void overflow_downwards(struct problem *p)
{
    const struct ref_vocab_problem *r = &p->reference;
    for (int64_t v = 0; v < r->vocab; v++) {
        float weight = v % 2 ? 1e10f : 0.0f;
        problem_set(p, r->w, v * r->hidden, weight);
    }
    for (int64_t n = 0; n < p->tokens; n++)
        problem_set(p, r->x, n * r->hidden, n == 1 ? -1e30f : 0.0f);
}

/* Every logit of token 1 is -inf. */
static void overflow_everywhere(struct problem *p)
{
    const struct ref_vocab_problem *r = &p->reference;
    overflow_downwards(p);
    for (int64_t v = 0; v < r->vocab; v++)
        problem_set(p, r->w, v * r->hidden, 1e10f);
}

static const struct {
    const char *name;
    void (*make)(struct problem *);
} unusual[] = {
    {"some tokens ignored", ignore_some},
    {"a rank of ignored tokens", ignore_a_rank},
    {"all tokens ignored", ignore_all},
    {"a NaN in a token's row", make_a_row_nan},
    {"logits of 1e4 and -1e4", make_logits_huge},
    {"logits of -inf by overflow", overflow_downwards},
    {"a token with only -inf", overflow_everywhere},
};

#define UNUSUAL_COUNT (sizeof unusual / sizeof *unusual)

static struct problem *unusual_problem(size_t i, enum dtype dtype)
{
    const int64_t rank_tokens[] = {5, 0, 7};
    struct problem *p = problem_create(dtype, 3, rank_tokens, 20, 67);
    unusual[i].make(p);
    return p;
}

static void test_unusual(void)
{
    for (size_t i = 0; i < UNUSUAL_COUNT; i++)
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            struct problem *p = unusual_problem(i, dtype);
            char name[128];
            snprintf(name, sizeof name, "%s, %s", unusual[i].name, dtype_name(dtype));
            compare_with_naive(p, name);
            problem_free(p);
        }
}

/* What a NaN row may touch: its own token's loss and dX, and every sum over tokens. */
static void test_nan_stays_in_its_token(void)
{
    struct problem *p = unusual_problem(3, DTYPE_F32);
    struct ref_vocab_result r = result_create(p);
    char error[128];
    tap_ok(!ref_vocab(&p->reference, NULL, &r, error, sizeof error), "a NaN row is no error");
    bool confined = true;
    for (int64_t n = 0; n < p->tokens; n++) {
        confined = confined && isnan(r.loss[n]) == (n == 2);
        for (int64_t h = 0; h < p->reference.hidden; h++)
            confined = confined && isnan(((float *)r.dx)[n * p->reference.hidden + h]) == (n == 2);
    }
    tap_ok(confined, "only the token's own loss and dX are NaN");
    result_free(&r);
    problem_free(p);
}

/* ---- by hand ----------------------------------------------------------------------------- */

static struct problem *problem_by_hand(int ranks, const int64_t *rank_tokens, int64_t hidden,
    int64_t vocab, const float *x, const float *w, int64_t target)
{
    struct problem *p = problem_create(DTYPE_F32, ranks, rank_tokens, hidden, vocab);
    for (int64_t i = 0; i < p->tokens * hidden; i++)
        problem_set(p, p->reference.x, i, x[i]);
    for (int64_t i = 0; i < vocab * hidden; i++)
        problem_set(p, p->reference.w, i, w[i]);
    for (int64_t n = 0; n < p->tokens; n++)
        problem_targets(p)[n] = target;
    return p;
}

/* Four equal logits: p = 1/4, loss = log 4, which rounds to 3fb17218. */
static void test_equal_logits(void)
{
    const float x[] = {2.0f, 0.5f}, w[] = {1.0f, 1.0f, 1.0f, 1.0f};
    struct problem *p = problem_by_hand(1, (const int64_t[]){2}, 1, 4, x, w, 3);
    struct ref_vocab_result r = result_create(p);
    char error[128];
    ref_vocab(&p->reference, NULL, &r, error, sizeof error);
    tap_ok(r.max[0] == 2.0f && r.max[1] == 0.5f, "equal logits: the maximum");
    tap_ok(f32_bits(r.loss[0]) == 0x3fb17218 && f32_bits(r.loss[1]) == 0x3fb17218,
        "equal logits: the loss is log 4");
    tap_ok(r.mean == (double)r.loss[0] && r.valid == 2, "equal logits: the mean");
    /* Residuals (1/4, 1/4, 1/4, -3/4) / 2 for both tokens. */
    tap_ok(f32_bits(((float *)r.dx)[0]) == 0 && f32_bits(((float *)r.dx)[1]) == 0,
        "equal logits: dX is +0");
    tap_ok(r.dw[0] == 0.3125f && r.dw[1] == 0.3125f && r.dw[2] == 0.3125f && r.dw[3] == -0.9375f,
        "equal logits: dW is exact");
    result_free(&r);
    problem_free(p);
}

/* Products 0, 2^24, 1, -2^24: one chain loses the 1, two segments keep it. */
static void test_order_by_hand(void)
{
    const float big = 0x1p26f;
    const float x_dx[] = {1.0f, 0.0f}, w_dx[] = {0, 0, 0, big, 0, 4.0f, 0, -big};
    const float x_dw[] = {0.0f, 2 * big, 8.0f, -2 * big}, w_dw[] = {1.0f, 1.0f};
    struct problem *for_dx = problem_by_hand(2, (const int64_t[]){1, 0}, 2, 4, x_dx, w_dx, 0);
    struct problem *for_dw = problem_by_hand(2, (const int64_t[]){2, 2}, 1, 2, x_dw, w_dw, 1);
    struct ref_vocab_result dx = result_create(for_dx), dw = result_create(for_dw);
    struct vocab_order segments = order_create(2, ORDER_ACTIVATIONS_MOVE);
    char error[128];
    ref_vocab(&for_dx->reference, NULL, &dx, error, sizeof error);
    tap_ok(((float *)dx.dx)[1] == 0.0f, "dX as one chain");
    ref_vocab(&for_dx->reference, &segments, &dx, error, sizeof error);
    tap_ok(((float *)dx.dx)[1] == 1.0f, "dX as one segment per shard");
    ref_vocab(&for_dw->reference, NULL, &dw, error, sizeof error);
    tap_ok(dw.dw[0] == 0.0f, "dW as one chain");
    ref_vocab(&for_dw->reference, &segments, &dw, error, sizeof error);
    tap_ok(dw.dw[0] == 1.0f, "dW as one segment per batch");
    vocab_order_free(&segments);
    result_free(&dx);
    result_free(&dw);
    problem_free(for_dx);
    problem_free(for_dw);
}

/* ---- samples ----------------------------------------------------------------------------- */

static bool sample_is_part_of(const struct problem *p, const struct ref_vocab_result *full,
    const struct vocab_order *order, const int64_t *tokens, int64_t tokens_count,
    const int64_t *rows, int64_t rows_count)
{
    struct ref_vocab_sample sample = {.tokens_count = tokens_count,
        .tokens = tokens,
        .rows_count = rows_count,
        .rows = rows,
        .all_max = full->max,
        .all_log_z = full->log_z};
    struct ref_vocab_result some = result_create(p);
    size_t dx_row = (size_t)(p->reference.hidden * dtype_bytes(p->reference.dtype));
    size_t dw_row = (size_t)p->reference.hidden * sizeof(float);
    char error[128] = "";
    bool equal = !ref_vocab_sampled(&p->reference, order, &sample, &some, error, sizeof error);
    for (int64_t i = 0; i < tokens_count; i++) {
        int64_t n = tokens[i];
        equal = equal && f32_bits(some.loss[i]) == f32_bits(full->loss[n]) &&
                f32_bits(some.max[i]) == f32_bits(full->max[n]) &&
                f32_bits(some.log_z[i]) == f32_bits(full->log_z[n]) &&
                !memcmp((char *)some.dx + (size_t)i * dx_row, (char *)full->dx + (size_t)n * dx_row,
                    dx_row);
    }
    for (int64_t i = 0; i < rows_count; i++)
        equal = equal && !memcmp(some.dw + i * p->reference.hidden,
                             full->dw + rows[i] * p->reference.hidden, dw_row);
    equal = equal && some.valid == full->valid && isnan(some.mean);
    result_free(&some);
    return equal;
}

static void test_samples(void)
{
    const int64_t rank_tokens[] = {520, 0, 9}, rows[] = {0, 5, 1099, 1100, 2201, 3299};
    const int64_t tokens[] = {0, 3, 511, 512, 520, 528};
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
        for (enum problem_order kind = 0; kind < ORDER_KINDS; kind++) {
            struct problem *p = problem_create(dtype, 3, rank_tokens, 4, 3300);
            struct ref_vocab_result full = result_create(p);
            struct vocab_order order = order_create(3, kind);
            char error[128];
            problem_targets(p)[3] = REF_VOCAB_IGNORED;
            bool equal = !ref_vocab(&p->reference, &order, &full, error, sizeof error) &&
                         sample_is_part_of(p, &full, &order, tokens, 6, rows, 6);
            tap_ok(equal, "a sample equals its part of the full result, %s, %s",
                problem_order_names[kind], dtype_name(dtype));
            if (kind == ORDER_DEFAULT)
                tap_ok(sample_is_part_of(p, &full, NULL, tokens, 0, rows, 6) &&
                           sample_is_part_of(p, &full, NULL, tokens, 6, rows, 0),
                    "samples of rows alone and of tokens alone, %s", dtype_name(dtype));
            vocab_order_free(&order);
            result_free(&full);
            problem_free(p);
        }
}

/* ---- refusals ---------------------------------------------------------------------------- */

static void test_refusals(void)
{
    const int64_t rank_tokens[] = {4, 3}, unordered[] = {3, 3}, outside[] = {2, 7};
    struct problem *p = problem_create(DTYPE_F32, 2, rank_tokens, 8, 10);
    struct ref_vocab_result r = result_create(p);
    struct vocab_order order = order_create(3, ORDER_DEFAULT);
    char error[256] = "";
    tap_ok(ref_vocab(&p->reference, &order, &r, error, sizeof error) == -1 &&
               !strcmp(error, "an order over 3 ranks for a problem of 2"),
        "an order for other ranks is refused: %s", error);
    struct ref_vocab_sample sample = {.tokens_count = 2, .tokens = unordered};
    tap_ok(ref_vocab_sampled(&p->reference, NULL, &sample, &r, error, sizeof error) == -1,
        "a sample that names a token twice is refused: %s", error);
    sample.tokens = outside;
    tap_ok(ref_vocab_sampled(&p->reference, NULL, &sample, &r, error, sizeof error) == -1,
        "a sample outside the batch is refused: %s", error);
    problem_targets(p)[5] = 10;
    tap_ok(ref_vocab(&p->reference, NULL, &r, error, sizeof error) == -1 &&
               !strcmp(error, "target of token 5 is 10, allowed 0..9 or -100 (ignored)"),
        "a target outside the vocabulary is refused: %s", error);
    problem_targets(p)[5] = -1;
    tap_ok(
        ref_vocab_check(&p->reference, error, sizeof error) == -1, "and one below it: %s", error);
    vocab_order_free(&order);
    result_free(&r);
    problem_free(p);
}

/* ---- FP64 -------------------------------------------------------------------------------- */

/* The largest error as a share of the bound, per output; false when one lies outside. */
static bool inside_bounds(const struct problem *p, const struct ref_vocab_result *r,
    const struct ref_vocab_f64 *f64, double worst[3])
{
    const struct ref_vocab_problem *ref = &p->reference;
    int64_t first, dx_count = p->tokens * ref->hidden, dw_count = ref->vocab * ref->hidden;
    double share[3];
    bool inside =
        check_bounded(DTYPE_F32, r->loss, f64->loss, f64->loss_bound, p->tokens, &first, &share[0]);
    inside &= check_bounded(ref->dtype, r->dx, f64->dx, f64->dx_bound, dx_count, &first, &share[1]);
    inside &= check_bounded(DTYPE_F32, r->dw, f64->dw, f64->dw_bound, dw_count, &first, &share[2]);
    for (int i = 0; i < 3; i++)
        worst[i] = share[i] > worst[i] ? share[i] : worst[i];
    return inside;
}

static bool bounded_in_every_order(const struct problem *p, double worst[3])
{
    struct ref_vocab_result r = result_create(p);
    struct ref_vocab_f64 f64 = f64_create(p);
    char error[128];
    bool inside = !ref_vocab_f64(&p->reference, &f64, error, sizeof error);
    for (enum problem_order kind = 0; inside && kind < ORDER_KINDS; kind++) {
        struct vocab_order order = order_create(p->reference.ranks, kind);
        inside = !ref_vocab(&p->reference, &order, &r, error, sizeof error) &&
                 inside_bounds(p, &r, &f64, worst);
        vocab_order_free(&order);
    }
    f64_free(&f64);
    result_free(&r);
    return inside;
}

static void test_bounds(void)
{
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        double worst[3] = {0.0};
        bool inside = true;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const struct shape_case *s = &shapes[i];
            struct problem *p = problem_create(dtype, s->ranks, s->tokens, s->hidden, s->vocab);
            inside = bounded_in_every_order(p, worst) && inside;
            problem_free(p);
        }
        tap_ok(inside, "every shape lies within the FP64 bounds, %s", dtype_name(dtype));
        tap_note("largest error / bound, %s: loss %.3f, dX %.3f, dW %.3f", dtype_name(dtype),
            worst[0], worst[1], worst[2]);
        for (size_t i = 0; i < UNUSUAL_COUNT; i++) {
            struct problem *p = unusual_problem(i, dtype);
            tap_ok(bounded_in_every_order(p, worst), "%s: within the FP64 bounds, %s",
                unusual[i].name, dtype_name(dtype));
            problem_free(p);
        }
    }
}

/* Where FP32 must give NaN or an infinity the FP64 version demands it, with a bound that is finite.
 */
static void test_bounds_of_nan(void)
{
    struct problem *nan_row = unusual_problem(3, DTYPE_F32), *inf = unusual_problem(5, DTYPE_F32);
    struct ref_vocab_f64 f64 = f64_create(nan_row);
    char error[128];
    problem_targets(inf)[1] = 1; /* a logit of -inf */
    ref_vocab_f64(&nan_row->reference, &f64, error, sizeof error);
    tap_ok(isnan(f64.loss[2]) && f64.loss_bound[2] == 0.0 && isnan(f64.dx[2 * 20]) &&
               isnan(f64.dw[0]) && isfinite(f64.loss[1]) && isfinite(f64.loss_bound[1]),
        "NaN is demanded of the NaN row's loss, its dX and of dW, and of nothing else");
    ref_vocab_f64(&inf->reference, &f64, error, sizeof error);
    tap_ok(f64.loss[1] == INFINITY && f64.loss_bound[1] == 0.0,
        "an infinite loss is demanded of a target at -inf");
    bool finite = true;
    for (int64_t i = 0; i < inf->reference.vocab * inf->reference.hidden; i++)
        finite = finite && isfinite(f64.dw_bound[i]);
    tap_ok(finite, "and dW stays bounded");
    /* Partial sums on both sides of FP32's range: the order of h decides. */
    for (int64_t n = 0; n < inf->tokens; n++)
        problem_set(inf, inf->reference.x, n * 20 + 1, n == 1 ? 1e30f : 0.0f);
    problem_set(inf, inf->reference.w, 1 * 20 + 1, 1e10f);
    ref_vocab_f64(&inf->reference, &f64, error, sizeof error);
    tap_ok(isinf(f64.loss_bound[1]) && isinf(f64.dx_bound[20]) && isfinite(f64.loss_bound[0]),
        "a logit that FP32 may or may not lose leaves its token unbounded");
    f64_free(&f64);
    problem_free(nan_row);
    problem_free(inf);
}

int main(void)
{
    test_shapes();
    test_unusual();
    test_nan_stays_in_its_token();
    test_equal_logits();
    test_order_by_hand();
    test_samples();
    test_refusals();
    test_bounds();
    test_bounds_of_nan();
    return tap_done();
}
