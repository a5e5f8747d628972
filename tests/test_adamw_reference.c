/* The reference of the optimizer against the formulas written out anew, and its FP64 bound against
 * what it must let pass and what it must not. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/check.h"
#include "ops/adamw.h"
#include "probe/seed.h"
#include "reference/adamw.h"
#include "tests/tap.h"

#define COUNT 10000

static float p[COUNT], m[COUNT], v[COUNT], g[COUNT];
static uint16_t w[COUNT];
static const struct ref_adamw_tensor tensors[] = {{0, 4097, 0}, {4097, 0, 1}, {4097, 5903, 1}};

static struct ref_adamw_share whole_share(void)
{
    return (struct ref_adamw_share){3, tensors, g, p, m, v, w};
}

static struct ref_adamw_problem problem_over(const struct ref_adamw_share *share)
{
    return (struct ref_adamw_problem){.ranks = 1,
        .share = share,
        .t = 3,
        .scale = 0.5,
        .hyper = {{1e-3, 0.9, 0.95, 1e-8, 0.1}, {2e-3, 0.8, 0.99, 1e-6, 0}}};
}

static void fill(void)
{
    seed_fill_f32(p, 1, 0, 0, COUNT, 0.1f);
    seed_fill_f32(m, 1, 1, 0, COUNT, 1e-3f);
    seed_fill_f32(v, 1, 2, 0, COUNT, 1e-6f);
    seed_fill_f32(g, 1, 3, 0, COUNT, 1e-2f);
    for (int i = 0; i < COUNT; i++)
        v[i] = fabsf(v[i]);
}

/* ---- the step ------------------------------------------------------------------------------ */

static void test_formulas(void)
{
    struct ref_adamw_share share = whole_share();
    struct ref_adamw_problem problem = problem_over(&share);
    struct ref_adamw_report report;
    int64_t differing = 0;
    static float p0[COUNT], m0[COUNT], v0[COUNT];
    fill();
    memcpy(p0, p, sizeof p);
    memcpy(m0, m, sizeof m);
    memcpy(v0, v, sizeof v);
    ref_adamw_step(&problem, &report);
    for (int i = 0; i < COUNT; i++) {
        bool decays = i < 4097;
        double lr = decays ? 1e-3 : 2e-3, b1 = decays ? 0.9 : 0.8, b2 = decays ? 0.95 : 0.99;
        float x = g[i] * 0.5f, c1 = (float)(1 - b1), c2 = (float)(1 - b2);
        float m1 = fmaf((float)b1, m0[i], c1 * x), v1 = fmaf((float)b2, v0[i], c2 * (x * x));
        /* t = 3: powers as products, the same roundings as squaring: b * (b * b) */
        float rs = (float)(1 / sqrt(1 - b2 * (b2 * b2))), step = (float)(lr / (1 - b1 * (b1 * b1)));
        float d = fmaf(sqrtf(v1), rs, (float)(decays ? 1e-8 : 1e-6));
        float p1 = fmaf(-step, m1 / d, p0[i] * (float)(1 - lr * (decays ? 0.1 : 0)));
        differing += f32_bits(p1) != f32_bits(p[i]) || f32_bits(m1) != f32_bits(m[i]) ||
                     f32_bits(v1) != f32_bits(v[i]) || f32_to_bf16(p1) != w[i];
    }
    tap_ok(!differing, "a step is the formulas: %lld of %d elements differ", (long long)differing,
        COUNT);
    tap_ok(
        report.factor == 0.5 && !report.skipped && report.nonfinite == 0 && report.first_rank < 0,
        "nothing was clipped or skipped");
}

/* Two rows of 32 lanes and a bit: small enough to add by hand. */
static void test_norm(void)
{
    float few[70];
    static const struct ref_adamw_tensor one[] = {{0, 70, 0}};
    struct ref_adamw_share share = {1, one, few, p, m, v, w};
    struct ref_adamw_problem problem = problem_over(&share);
    struct ref_adamw_report report;
    double lanes[32] = {0};
    fill();
    for (int i = 0; i < 70; i++) {
        few[i] = (float)(i - 35) * 1.1f;
        lanes[i % 32] += (double)few[i] * few[i];
    }
    for (int distance = 16; distance; distance /= 2)
        for (int lane = 0; lane < distance; lane++)
            lanes[lane] += lanes[lane + distance];
    ref_adamw_step(&problem, &report);
    tap_ok(report.norm == 0.5 * sqrt(lanes[0]), "the norm: %.17g", report.norm);
    problem.clip = 1;
    ref_adamw_step(&problem, &report);
    tap_ok(report.factor == 0.5 * (1 / report.norm),
        "a norm above the clip gives the factor clip / norm");
    problem.clip = 1e9;
    ref_adamw_step(&problem, &report);
    tap_ok(report.factor == 0.5, "a norm below the clip changes nothing");
}

/* The constants of a step against long double, where the power could go wrong. */
static void test_constants(void)
{
    static const int64_t steps[] = {
        1, 2, 3, 10, 1000, 1234567, (INT64_C(1) << 31) + 1, INT64_C(1) << 40};
    static const double betas[] = {0, 0.5, 0.9, 0.95, 0.999, 0.999999};
    double worst = 0;
    for (int s = 0; s < 8; s++)
        for (int b = 0; b < 6; b++) {
            struct adamw_hyper hyper = {.lr = 1, .b1 = betas[b], .b2 = betas[b]};
            struct adamw_constants k = adamw_constants_at(&hyper, steps[s], 1);
            long double power = powl(betas[b], (long double)steps[s]);
            double step = (double)(1 / (1 - power)), rs = (double)(1 / sqrtl(1 - power));
            double e1 = fabs((double)k.step / step - 1), e2 = fabs((double)k.rs / rs - 1);
            worst = e1 > worst ? e1 : worst;
            worst = e2 > worst ? e2 : worst;
        }
    tap_ok(worst <= 0x1p-24 * (1 + 0x1p-8),
        "step and rs are within a rounding up to t = 2^40: %g x 2^-24", worst * 0x1p24);
}

/* ---- the FP64 bound ------------------------------------------------------------------------ */

static double value[6][COUNT];

static bool within(const struct ref_adamw_problem *problem, double factor, const float *p1,
    const float *m1, const float *v1, double *worst)
{
    struct ref_adamw_f64 f64 = {value[0], value[1], value[2], value[3], value[4], value[5]};
    const float *got[] = {p1, m1, v1};
    bool all = true;
    *worst = 0;
    ref_adamw_f64(problem, 0, factor, &f64);
    for (int i = 0; i < 3; i++) {
        int64_t first;
        double own;
        all &=
            check_bounded(DTYPE_F32, got[i], value[2 * i], value[2 * i + 1], COUNT, &first, &own);
        *worst = own > *worst ? own : *worst;
    }
    return all;
}

/* A step of a problem that differs from the bound's in one thing must leave the bound. */
static void test_bound(void)
{
    static float p1[COUNT], m1[COUNT], v1[COUNT];
    struct ref_adamw_share share = whole_share(), after = {3, tensors, g, p1, m1, v1, w};
    struct ref_adamw_problem problem = problem_over(&share);
    static const char *const faults[] = {"nothing", "t one less", "lr 1 % more", "b1 a little more",
        "b2 a little more", "eps 10 times", "wd a little more", "scale a little more"};
    for (int fault = 0; fault < 8; fault++) {
        struct ref_adamw_problem wrong = problem_over(&after);
        struct ref_adamw_report report;
        double worst;
        fill();
        memcpy(p1, p, sizeof p);
        memcpy(m1, m, sizeof m);
        memcpy(v1, v, sizeof v);
        wrong.t -= fault == 1;
        wrong.hyper[0].lr *= fault == 2 ? 1.01 : 1;
        wrong.hyper[0].b1 += fault == 3 ? 1e-6 : 0;
        wrong.hyper[0].b2 += fault == 4 ? 1e-6 : 0;
        wrong.hyper[0].eps *= fault == 5 ? 10 : 1;
        wrong.hyper[0].wd += fault == 6 ? 1e-3 : 0;
        wrong.scale *= fault == 7 ? 1 + 1e-6 : 1;
        ref_adamw_step(&wrong, &report);
        bool inside = within(&problem, problem.scale, p1, m1, v1, &worst);
        tap_ok(inside == (fault == 0),
            "bound with %s changed: the worst element at %.3g of its bound", faults[fault], worst);
    }
}

/* How tight it is: the largest share that an honest step reaches over many values. */
static void test_bound_is_near(void)
{
    static float p1[COUNT], m1[COUNT], v1[COUNT];
    struct ref_adamw_share share = whole_share(), after = {3, tensors, g, p1, m1, v1, w};
    struct ref_adamw_problem problem = problem_over(&share);
    struct ref_adamw_report report;
    double worst, reached = 0;
    bool all = true;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fill();
        seed_fill_f32(g, seed, 3, 0, COUNT, (float)ldexp(1, (int)(seed * 13 % 60) - 40));
        memcpy(p1, p, sizeof p);
        memcpy(m1, m, sizeof m);
        memcpy(v1, v, sizeof v);
        struct ref_adamw_problem step = problem;
        step.share = &after;
        ref_adamw_step(&step, &report);
        all &= within(&problem, report.factor, p1, m1, v1, &worst);
        reached = worst > reached ? worst : reached;
    }
    tap_ok(all && reached > 0.1, "honest steps reach %.2f of the bound and never pass it", reached);
}

int main(void)
{
    test_formulas();
    test_norm();
    test_constants();
    test_bound();
    test_bound_is_near();
    return tap_done();
}
