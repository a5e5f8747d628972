/* The reference of expert dispatch: against the definition written out route by route, in the
 * default order and in random ones; what it refuses; the FP64 values and their bounds; inputs for
 * which every order gives the same bits. */
#include <stdio.h>
#include "bench/harness/check.h"
#include "bench/harness/moe_reference.h"
#include "tests/moe_problem.h"
#include "tests/tap.h"

/* Y, dX, dw and the weight gradients are equal to the bit. */
static bool results_equal(
    const struct ref_moe_problem *p, const struct ref_moe_result *a, const struct ref_moe_result *b)
{
    struct check_difference d;
    int64_t rows = p->tokens * p->hidden, each = p->experts * p->hidden * p->ffn;
    return check_equal(p->dtype, a->y, b->y, rows, &d) &&
           check_equal(p->dtype, a->dx, b->dx, rows, &d) &&
           check_equal(
               DTYPE_F32, a->router_gradient, b->router_gradient, p->tokens * p->topk, &d) &&
           check_equal(DTYPE_F32, a->gate_gradient, b->gate_gradient, each, &d) &&
           check_equal(DTYPE_F32, a->up_gradient, b->up_gradient, each, &d) &&
           check_equal(DTYPE_F32, a->down_gradient, b->down_gradient, each, &d);
}

/* The tensors that follow the combine order (the gradients' order) differ somewhere. Rounding to
 * BF16 hides most differences of a combine, and two terms have one order. */
static bool combine_differs(
    const struct ref_moe_problem *p, const struct ref_moe_result *a, const struct ref_moe_result *b)
{
    struct check_difference d;
    if (p->dtype == DTYPE_BF16 || p->topk < 3)
        return true;
    return !check_equal(p->dtype, a->y, b->y, p->tokens * p->hidden, &d) &&
           !check_equal(p->dtype, a->dx, b->dx, p->tokens * p->hidden, &d);
}

static bool gradient_differs(
    const struct ref_moe_problem *p, const struct ref_moe_result *a, const struct ref_moe_result *b)
{
    struct check_difference d;
    int64_t each = p->experts * p->hidden * p->ffn;
    return !check_equal(DTYPE_F32, a->up_gradient, b->up_gradient, each, &d) &&
           !check_equal(DTYPE_F32, a->down_gradient, b->down_gradient, each, &d);
}

/* ---- against the definition --------------------------------------------------------------- */

static void compare_with_naive(const struct moe_small *small, const char *name)
{
    char error[256] = "";
    struct ref_moe_problem p = moe_problem_of(small);
    struct ref_moe_result got = moe_result_of(&p), want = moe_result_of(&p);
    struct ref_moe_result in_order = moe_result_of(&p);
    struct moe_order plain, order = moe_random_order(&p);
    if (moe_order_init(&plain, p.tokens, p.topk, p.experts, p.idx) ||
        moe_order_list_combine(&plain, p.idx))
        abort();
    moe_naive(&p, &plain, &want);
    int status = ref_moe(&p, NULL, &got, error, sizeof error);
    tap_ok(!status && results_equal(&p, &got, &want), "%s: default order %s", name, error);
    moe_naive(&p, &order, &want);
    status = ref_moe(&p, &order, &in_order, error, sizeof error);
    tap_ok(!status && results_equal(&p, &in_order, &want), "%s: a random order %s", name, error);
    tap_ok(combine_differs(&p, &got, &in_order) && gradient_differs(&p, &got, &in_order),
        "%s: the two orders give different bits", name);
    status = ref_moe(&p, &plain, &in_order, error, sizeof error);
    tap_ok(!status && results_equal(&p, &got, &in_order), "%s: the default order listed", name);
    moe_order_free(&plain);
    moe_order_free(&order);
    moe_result_free(&got);
    moe_result_free(&want);
    moe_result_free(&in_order);
    moe_problem_free(&p);
}

static const struct moe_small small_f32 = {37, 45, 23, 7, 4, DTYPE_F32, false, false};
static const struct moe_small small_bf16 = {37, 45, 23, 7, 4, DTYPE_BF16, false, false};
static const struct moe_small small_relu = {29, 17, 40, 6, 3, DTYPE_F32, true, false};
static const struct moe_small relu_bf16 = {29, 17, 40, 6, 3, DTYPE_BF16, true, false};
static const struct moe_small long_lists = {330, 9, 6, 3, 2, DTYPE_F32, false, false};

static void test_definition(void)
{
    compare_with_naive(&small_f32, "SwiGLU FP32");
    compare_with_naive(&small_bf16, "SwiGLU BF16");
    compare_with_naive(&small_relu, "ReLU FP32");
    compare_with_naive(&relu_bf16, "ReLU BF16");
    compare_with_naive(&long_lists, "more routes than a block");
}

/* The expert without routes, the empty token and the empty slots hold +0 in buffers of garbage. */
static void test_zeros(void)
{
    char error[256];
    struct ref_moe_problem p = moe_problem_of(&small_f32);
    struct ref_moe_result r = moe_result_of(&p);
    bool zero = !ref_moe(&p, NULL, &r, error, sizeof error);
    int64_t each = p.hidden * p.ffn, last = (p.experts - 1) * each;
    for (int64_t i = last; i < last + each; i++)
        zero = zero && !f32_bits(r.gate_gradient[i]) && !f32_bits(r.up_gradient[i]) &&
               !f32_bits(r.down_gradient[i]);
    tap_ok(zero, "an expert without routes has gradient +0");
    zero = true;
    for (int64_t i = 0; i < p.tokens * p.topk; i++)
        zero = zero && (p.idx[i] != MOE_EMPTY || !f32_bits(r.router_gradient[i]));
    for (int64_t h = p.hidden; h < 2 * p.hidden; h++)
        zero = zero && !f32_bits(((float *)r.y)[h]) && !f32_bits(((float *)r.dx)[h]);
    tap_ok(zero, "empty slots have dw +0, a token without routes Y and dX of +0");
    moe_result_free(&r);
    moe_problem_free(&p);
}

/* A token's only product underflows to -0, which is its whole sum: nothing is added to it. */
static void test_negative_zero(void)
{
    char error[256];
    struct ref_moe_problem p = moe_problem_of(&small_f32);
    struct ref_moe_result got = moe_result_of(&p), want = moe_result_of(&p);
    struct moe_order order;
    int32_t *idx = (int32_t *)(uintptr_t)p.idx;
    for (int slot = 0; slot < p.topk; slot++)
        idx[4 * p.topk + slot] = slot ? MOE_EMPTY : 0;
    ((float *)(uintptr_t)p.weight)[4 * p.topk] = 1e-45f;
    if (moe_order_init(&order, p.tokens, p.topk, p.experts, idx) ||
        moe_order_list_combine(&order, idx))
        abort();
    for (int64_t i = 4 * p.hidden; i < 5 * p.hidden; i++)
        ((float *)(uintptr_t)p.x)[i] *= 0.01f; /* every |e| below 1/2 */
    bool ran = !ref_moe(&p, NULL, &got, error, sizeof error), negative = false;
    moe_naive(&p, &order, &want);
    for (int64_t h = 4 * p.hidden; h < 5 * p.hidden; h++)
        negative = negative || f32_bits(((float *)got.y)[h]) == 0x80000000u;
    tap_ok(ran && negative && results_equal(&p, &got, &want), "a sum of -0 alone stays -0");
    moe_order_free(&order);
    moe_result_free(&got);
    moe_result_free(&want);
    moe_problem_free(&p);
}

/* Outputs left out change nothing in the others. */
static void test_parts(void)
{
    char error[256];
    struct ref_moe_problem p = moe_problem_of(&small_bf16);
    struct ref_moe_result all = moe_result_of(&p), part = moe_result_of(&p), some = part;
    struct check_difference d;
    int64_t rows = p.tokens * p.hidden;
    int status = ref_moe(&p, NULL, &all, error, sizeof error);
    some = (struct ref_moe_result){.y = part.y};
    status |= ref_moe(&p, NULL, &some, error, sizeof error);
    some = (struct ref_moe_result){.down_gradient = part.down_gradient};
    status |= ref_moe(&p, NULL, &some, error, sizeof error);
    tap_ok(!status && check_equal(p.dtype, part.y, all.y, rows, &d) &&
               check_equal(DTYPE_F32, part.down_gradient, all.down_gradient,
                   p.experts * p.hidden * p.ffn, &d),
        "a single output is what it is among all");
    p.dy = (free((void *)(uintptr_t)p.dy), NULL);
    some = (struct ref_moe_result){.y = part.y};
    tap_ok(!ref_moe(&p, NULL, &some, error, sizeof error) &&
               ref_moe(&p, NULL, &part, error, sizeof error) == -1,
        "without dy forward runs and gradients are refused");
    moe_result_free(&all);
    moe_result_free(&part);
    moe_problem_free(&p);
}

static void test_sample(void)
{
    static const int64_t tokens[] = {0, 1, 5, 36}, experts[] = {2, 6};
    char error[256];
    struct ref_moe_problem p = moe_problem_of(&small_bf16);
    struct ref_moe_result all = moe_result_of(&p), some = moe_result_of(&p);
    struct moe_order order = moe_random_order(&p);
    struct ref_moe_sample sample = {4, tokens, 2, experts};
    bool equal = !ref_moe(&p, &order, &all, error, sizeof error) &&
                 !ref_moe_sampled(&p, &order, &sample, &some, error, sizeof error);
    int64_t h = p.hidden, each = h * p.ffn;
    struct check_difference d;
    for (int i = 0; equal && i < 4; i++)
        equal = check_equal(p.dtype, (uint16_t *)some.y + i * h, (uint16_t *)all.y + tokens[i] * h,
                    h, &d) &&
                check_equal(p.dtype, (uint16_t *)some.dx + i * h,
                    (uint16_t *)all.dx + tokens[i] * h, h, &d) &&
                check_equal(DTYPE_F32, some.router_gradient + i * p.topk,
                    all.router_gradient + tokens[i] * p.topk, p.topk, &d);
    for (int i = 0; equal && i < 2; i++)
        equal = check_equal(DTYPE_F32, some.gate_gradient + i * each,
                    all.gate_gradient + experts[i] * each, each, &d) &&
                check_equal(DTYPE_F32, some.down_gradient + i * each,
                    all.down_gradient + experts[i] * each, each, &d);
    tap_ok(equal, "sampled tokens and experts hold what the whole result holds");
    sample.experts_count = 0;
    struct ref_moe_result tokens_only = {.y = some.y};
    equal = !ref_moe_sampled(&p, &order, &sample, &tokens_only, error, sizeof error) &&
            check_equal(p.dtype, (uint16_t *)some.y + 3 * h, (uint16_t *)all.y + 36 * h, h, &d);
    tap_ok(equal, "a sample of tokens alone");
    sample.tokens = (const int64_t[]){3, 3, 4, 5};
    tap_ok(ref_moe_sampled(&p, &order, &sample, &some, error, sizeof error) == -1 &&
               strstr(error, "sampled token at position 1 is 3"),
        "a sample must ascend: %s", error);
    moe_order_free(&order);
    moe_result_free(&all);
    moe_result_free(&some);
    moe_problem_free(&p);
}

/* ---- orders ------------------------------------------------------------------------------- */

/* A position among the first expert's routes with another one after it. */
static void test_order_faults(void)
{
    char error[256];
    struct ref_moe_problem p = moe_problem_of(&small_f32);
    struct ref_moe_result r = moe_result_of(&p);
    struct moe_order o = moe_random_order(&p);
    int64_t *route = o.gradient_route;
    tap_ok(!moe_order_check(&o, p.idx, error, sizeof error), "a random order covers the problem");

    int64_t held = route[1];
    route[1] = route[0];
    tap_ok(ref_moe(&p, &o, &r, error, sizeof error) == -1 && strstr(error, "is met twice"),
        "a route met twice, another lost: %s", error);
    route[1] = held;

    held = route[0];
    route[0] = route[o.expert_first[1]];
    tap_ok(moe_order_check(&o, p.idx, error, sizeof error) && strstr(error, "is not routed to it"),
        "another expert's route: %s", error);
    route[0] = -1;
    tap_ok(moe_order_check(&o, p.idx, error, sizeof error) && strstr(error, "route -1"),
        "no route at all: %s", error);
    route[0] = held;

    o.gradient_starts[0] = false;
    tap_ok(moe_order_check(&o, p.idx, error, sizeof error) && strstr(error, "starts no segment"),
        "a first route that starts no segment: %s", error);
    o.gradient_starts[0] = true;

    o.expert_first[1]--;
    tap_ok(moe_order_check(&o, p.idx, error, sizeof error) && strstr(error, "routes listed"),
        "a list that is too short: %s", error);
    o.expert_first[1]++;

    int8_t slot = o.combine_slot[0];
    o.combine_slot[0] = o.combine_slot[1];
    tap_ok(moe_order_check(&o, p.idx, error, sizeof error) && strstr(error, "of token 0"),
        "a slot met twice: %s", error);
    o.combine_slot[0] = 4;
    tap_ok(moe_order_check(&o, p.idx, error, sizeof error) && strstr(error, "names slot 4"),
        "a slot out of range: %s", error);
    o.combine_slot[0] = slot;

    o.combine_starts[p.topk] = true; /* token 1 is empty */
    tap_ok(moe_order_check(&o, p.idx, error, sizeof error) && strstr(error, "is empty and starts"),
        "an empty slot that starts a group: %s", error);
    o.combine_starts[p.topk] = false;

    int32_t *idx = (int32_t *)(uintptr_t)p.idx;
    int32_t expert = idx[9];
    idx[9] = 7;
    tap_ok(ref_moe(&p, NULL, &r, error, sizeof error) == -1 &&
               strstr(error, "token 2 slot 1 names expert 7, allowed 0..6"),
        "an expert out of range: %s", error);
    idx[9] = expert;
    moe_order_free(&o);
    moe_result_free(&r);
    moe_problem_free(&p);
}

static void test_default_or_not(void)
{
    struct ref_moe_problem p = moe_problem_of(&small_f32);
    struct moe_order random = moe_random_order(&p), plain;
    if (moe_order_init(&plain, p.tokens, p.topk, p.experts, p.idx))
        abort();
    bool is_default =
        moe_order_default_combine(&plain, p.idx) && moe_order_default_gradient(&plain);
    if (moe_order_list_combine(&plain, p.idx))
        abort();
    is_default = is_default && moe_order_default_combine(&plain, p.idx);
    moe_swap_slots(&plain, p.topk, p.topk + 1); /* of the empty token */
    tap_ok(is_default && moe_order_default_combine(&plain, p.idx),
        "the default order is known as such, listed or not");
    tap_ok(!moe_order_default_combine(&random, p.idx) && !moe_order_default_gradient(&random),
        "another is not");
    plain.gradient_starts[plain.expert_first[1] + 1] = true;
    tap_ok(!moe_order_default_gradient(&plain), "a second segment is not the default");
    moe_order_free(&random);
    moe_order_free(&plain);
    moe_problem_free(&p);
}

/* ---- FP64 --------------------------------------------------------------------------------- */

static struct ref_moe_f64 f64_of(const struct ref_moe_problem *p)
{
    int64_t rows = p->tokens * p->hidden * 8, each = p->experts * p->hidden * p->ffn * 8;
    int64_t slots = p->tokens * p->topk * 8;
    return (struct ref_moe_f64){moe_room(rows), moe_room(rows), moe_room(rows), moe_room(rows),
        moe_room(slots), moe_room(slots), moe_room(each), moe_room(each), moe_room(each),
        moe_room(each), moe_room(each), moe_room(each)};
}

static void f64_free(struct ref_moe_f64 *f)
{
    double *const arrays[] = {f->y, f->y_bound, f->dx, f->dx_bound, f->router_gradient,
        f->router_bound, f->gate_gradient, f->gate_bound, f->up_gradient, f->up_bound,
        f->down_gradient, f->down_bound};
    for (int i = 0; i < 12; i++)
        free(arrays[i]);
}

enum { Y, DX, DW, GATE, UP, DOWN, TENSORS };

/* How many of the tensors lie within their bounds (bit per tensor), and the largest share of a
 * bound that is used. */
static unsigned within(const struct ref_moe_problem *p, const struct ref_moe_result *r,
    const struct ref_moe_f64 *f, double *share)
{
    int64_t rows = p->tokens * p->hidden, each = p->experts * p->hidden * p->ffn, first;
    double worst[TENSORS] = {0};
    unsigned held = 0;
    *share = 0;
    held |= (unsigned)check_bounded(p->dtype, r->y, f->y, f->y_bound, rows, &first, &worst[Y]) << Y;
    held |= (unsigned)check_bounded(p->dtype, r->dx, f->dx, f->dx_bound, rows, &first, &worst[DX])
            << DX;
    held |= (unsigned)check_bounded(DTYPE_F32, r->router_gradient, f->router_gradient,
                f->router_bound, p->tokens * p->topk, &first, &worst[DW])
            << DW;
    held |= (unsigned)(!p->gate || check_bounded(DTYPE_F32, r->gate_gradient, f->gate_gradient,
                                       f->gate_bound, each, &first, &worst[GATE]))
            << GATE;
    held |= (unsigned)check_bounded(
                DTYPE_F32, r->up_gradient, f->up_gradient, f->up_bound, each, &first, &worst[UP])
            << UP;
    held |= (unsigned)check_bounded(DTYPE_F32, r->down_gradient, f->down_gradient, f->down_bound,
                each, &first, &worst[DOWN])
            << DOWN;
    for (int i = 0; i < TENSORS; i++)
        *share = worst[i] > *share ? worst[i] : *share;
    return held;
}

#define ALL ((1u << TENSORS) - 1)

static void check_bounds(const struct moe_small *small, const char *name)
{
    char error[256] = "";
    struct ref_moe_problem p = moe_problem_of(small);
    struct ref_moe_result r = moe_result_of(&p);
    struct ref_moe_f64 f = f64_of(&p);
    struct moe_order order = moe_random_order(&p);
    double plain = 0, random = 0;
    bool ran =
        !ref_moe_f64(&p, &f, error, sizeof error) && !ref_moe(&p, NULL, &r, error, sizeof error);
    bool held = ran && within(&p, &r, &f, &plain) == ALL;
    held =
        held && !ref_moe(&p, &order, &r, error, sizeof error) && within(&p, &r, &f, &random) == ALL;
    tap_ok(held, "%s: results lie within the bounds in any order", name);
    tap_note("%s: at most %.3f and %.3f of a bound used", name, plain, random);

    /* Two tokens whose routes were swapped. */
    int32_t *idx = (int32_t *)(uintptr_t)p.idx;
    idx[2 * p.topk] = 0;
    idx[3 * p.topk] = 1;
    held = !ref_moe_f64(&p, &f, error, sizeof error);
    idx[2 * p.topk] = 1;
    idx[3 * p.topk] = 0;
    held = held && !ref_moe(&p, NULL, &r, error, sizeof error);
    tap_ok(held && within(&p, &r, &f, &plain) == (small->relu ? 1u << GATE : 0u),
        "%s: two swapped routes break every tensor's bound", name);
    moe_order_free(&order);
    f64_free(&f);
    moe_result_free(&r);
    moe_problem_free(&p);
}

static void test_bounds(void)
{
    check_bounds(&small_f32, "SwiGLU FP32");
    check_bounds(&small_bf16, "SwiGLU BF16");
    check_bounds(&small_relu, "ReLU FP32");
    check_bounds(&relu_bf16, "ReLU BF16");
    check_bounds(&long_lists, "more routes than a block");
}

/* NaN, infinities and numbers that overflow in the middle. */
static void test_specials(void)
{
    static const float specials[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e30f, -1e-40f, -200.0f};
    char error[256];
    bool held = true, nan_seen = false, known_seen = false;
    for (int s = 0; s < 7; s++)
        for (int relu = 0; relu < 2; relu++) {
            struct ref_moe_problem p = moe_problem_of(relu ? &small_relu : &small_f32);
            struct ref_moe_result r = moe_result_of(&p);
            struct ref_moe_f64 f = f64_of(&p);
            double share;
            ((float *)(uintptr_t)p.x)[3 * p.hidden + 1] = specials[s];
            ((float *)(uintptr_t)p.up)[2 * p.hidden * p.ffn + 5] = specials[(s + 1) % 7];
            ((float *)(uintptr_t)p.weight)[5 * p.topk] = specials[(s + 2) % 7];
            ((float *)(uintptr_t)p.dy)[8 * p.hidden + 2] = specials[(s + 3) % 7];
            held = held && !ref_moe_f64(&p, &f, error, sizeof error) &&
                   !ref_moe(&p, NULL, &r, error, sizeof error) && within(&p, &r, &f, &share) == ALL;
            for (int64_t i = 0; i < p.tokens * p.hidden; i++) {
                nan_seen = nan_seen || isnan(f.y[i]);
                known_seen = known_seen || (i / p.hidden == 3 && isfinite(f.y_bound[i]));
            }
            f64_free(&f);
            moe_result_free(&r);
            moe_problem_free(&p);
        }
    tap_ok(held, "NaN, infinities and overflow: the bounds never say what does not hold");
    tap_ok(nan_seen && known_seen, "NaN is told where it is sure, and large inputs keep bounds");
}

/* A chain that leaves FP32's range and whose true value is near 0. */
static void test_overflow(void)
{
    char error[256];
    struct ref_moe_problem p = moe_problem_of(&small_relu);
    struct ref_moe_result r = moe_result_of(&p);
    struct ref_moe_f64 f = f64_of(&p);
    int32_t *idx = (int32_t *)(uintptr_t)p.idx;
    double share;
    idx[3 * p.topk] = 0;
    for (int h = 0; h < 4; h++) {
        ((float *)(uintptr_t)p.x)[3 * p.hidden + h] = h < 2 ? 3e38f : -3e38f;
        ((float *)(uintptr_t)p.up)[5 * p.hidden + h] = 1.0f;
    }
    bool ran =
        !ref_moe_f64(&p, &f, error, sizeof error) && !ref_moe(&p, NULL, &r, error, sizeof error);
    tap_ok(ran && !isfinite(((float *)r.y)[3 * p.hidden]) && within(&p, &r, &f, &share) == ALL &&
               isinf(f.y_bound[3 * p.hidden]),
        "nothing is said of a chain that may overflow on its way");
    f64_free(&f);
    moe_result_free(&r);
    moe_problem_free(&p);
}

/* ---- exact inputs ------------------------------------------------------------------------- */

static void test_exact(void)
{
    static const struct moe_small exact[] = {
        {41, 8, 8, 5, 3, DTYPE_F32, true, true}, {41, 3, 3, 9, 2, DTYPE_BF16, true, true}};
    char error[256];
    for (int c = 0; c < 2; c++) {
        struct ref_moe_problem p = moe_problem_of(&exact[c]);
        struct ref_moe_result plain = moe_result_of(&p), other = moe_result_of(&p);
        bool equal = !ref_moe(&p, NULL, &plain, error, sizeof error), zero = true;
        for (int i = 0; equal && i < 10; i++) {
            struct moe_order order = moe_random_order(&p);
            equal = !ref_moe(&p, &order, &other, error, sizeof error) &&
                    results_equal(&p, &plain, &other);
            moe_order_free(&order);
        }
        for (int64_t i = 0; i < p.hidden * p.ffn; i++)
            zero = zero && plain.down_gradient[i] == 0.0f;
        tap_ok(equal && !zero, "integers through ReLU in %s: the same bits in any order",
            c ? "BF16" : "FP32");
        moe_result_free(&plain);
        moe_result_free(&other);
        moe_problem_free(&p);
    }
}

/* ---- results kept ------------------------------------------------------------------------- */

static void test_kept(void)
{
    char error[256] = "";
    struct ref_moe_problem p = moe_problem_of(&small_bf16);
    struct moe_order order = moe_random_order(&p), only_gradient = moe_random_order(&p);
    struct ref_moe_result want = moe_result_of(&p), first, second, third;
    struct ref_moe_f64 f, again;
    struct moe_reference *cache = moe_reference_create(INT64_C(1) << 30);
    if (!cache)
        abort();
    free(only_gradient.combine_slot);
    free(only_gradient.combine_starts);
    only_gradient.combine_slot = NULL;
    only_gradient.combine_starts = NULL;
    bool equal = !moe_reference_get(cache, &p, &order, true, &first, error, sizeof error) &&
                 !ref_moe(&p, &order, &want, error, sizeof error) &&
                 results_equal(&p, &first, &want);
    int64_t bytes = moe_reference_kept_bytes(cache);
    tap_ok(equal && !moe_reference_get(cache, &p, &order, true, &second, error, sizeof error) &&
               second.y == first.y && second.up_gradient == first.up_gradient &&
               moe_reference_kept_bytes(cache) == bytes,
        "a result is computed once and kept %s", error);
    equal = !moe_reference_get(cache, &p, NULL, true, &first, error, sizeof error) &&
            !moe_reference_get(cache, &p, &only_gradient, true, &second, error, sizeof error) &&
            !ref_moe(&p, &only_gradient, &want, error, sizeof error);
    tap_ok(equal && first.y == second.y && first.up_gradient != second.up_gradient &&
               results_equal(&p, &second, &want),
        "orders that share the combine share what tokens get %s", error);
    equal = !moe_reference_get(cache, &p, NULL, false, &third, error, sizeof error) && !third.dx &&
            !third.up_gradient && !ref_moe(&p, NULL, &want, error, sizeof error);
    struct check_difference d;
    tap_ok(equal && check_equal(p.dtype, third.y, want.y, p.tokens * p.hidden, &d),
        "forward alone %s", error);
    tap_ok(!moe_reference_get_f64(cache, &p, true, &f, error, sizeof error) &&
               !moe_reference_get_f64(cache, &p, true, &again, error, sizeof error) &&
               f.y == again.y && f.up_bound == again.up_bound,
        "the FP64 values are kept too %s", error);
    ((float *)(uintptr_t)p.weight)[0] += 1.0f;
    tap_ok(!moe_reference_get(cache, &p, NULL, false, &second, error, sizeof error) &&
               second.y != third.y,
        "other inputs are known by their content %s", error);
    order.gradient_route[0] = order.gradient_route[1];
    tap_ok(moe_reference_get(cache, &p, &order, true, &first, error, sizeof error) == -1 &&
               strstr(error, "is met twice"),
        "a bad order is refused: %s", error);
    moe_reference_free(cache);
    cache = moe_reference_create(1);
    equal = cache && !moe_reference_get(cache, &p, NULL, true, &first, error, sizeof error) &&
            moe_reference_kept_bytes(cache) > 1 &&
            !moe_reference_get(cache, &p, NULL, false, &second, error, sizeof error);
    tap_ok(equal && moe_reference_kept_bytes(cache) == p.tokens * p.hidden * 2,
        "over the limit only the latest call's result stays");
    moe_reference_free(cache);
    moe_order_free(&order);
    moe_order_free(&only_gradient);
    moe_result_free(&want);
    moe_problem_free(&p);
}

int main(void)
{
    test_definition();
    test_zeros();
    test_negative_zero();
    test_parts();
    test_sample();
    test_order_faults();
    test_default_or_not();
    test_bounds();
    test_specials();
    test_overflow();
    test_exact();
    test_kept();
    return tap_done();
}
