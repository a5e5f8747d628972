/* AdamW by its definition, and the same in FP64 with a bound on what FP32 may make of it.
 *
 * The first half is the contract, operation by operation; it shares no code with the kernels. */
#include "reference/adamw.h"
#include <float.h>

static double gradient_at(const struct ref_adamw_problem *problem, const void *g, int64_t i)
{
    if (problem->g_type == DTYPE_BF16)
        return bf16_to_f32(((const uint16_t *)g)[i]);
    return ((const float *)g)[i];
}

/* ---- the norm ------------------------------------------------------------------------------ */

#define BLOCK 4096

/* The squares of elements first .. first + count - 1, 32 lanes, added pairwise. */
static double block_sum(
    const struct ref_adamw_problem *problem, const void *g, int64_t first, int64_t count)
{
    double lanes[ARITH_LANES] = {0.0};
    for (int64_t i = 0; i < count; i++) {
        double x = gradient_at(problem, g, first + i);
        lanes[i % ARITH_LANES] = lanes[i % ARITH_LANES] + x * x;
    }
    for (int distance = ARITH_LANES / 2; distance; distance /= 2)
        for (int lane = 0; lane < distance; lane++)
            lanes[lane] = lanes[lane] + lanes[lane + distance];
    return lanes[0];
}

/* One chain over the blocks of a rank's tensors. */
static double share_sum(
    const struct ref_adamw_problem *problem, const struct ref_adamw_share *share)
{
    double sum = 0.0;
    for (int64_t t = 0; t < share->tensors; t++) {
        const struct ref_adamw_tensor *tensor = &share->tensor[t];
        for (int64_t done = 0; done < tensor->count; done += BLOCK) {
            int64_t left = tensor->count - done;
            sum = sum +
                  block_sum(problem, share->g, tensor->first + done, left < BLOCK ? left : BLOCK);
        }
    }
    return sum;
}

static void count_nonfinite(const struct ref_adamw_problem *problem,
    const struct ref_adamw_share *share, int rank, struct ref_adamw_report *report)
{
    float scale = problem->clip > 0 ? 1.0f : (float)problem->scale;
    for (int64_t t = 0; t < share->tensors; t++)
        for (int64_t i = 0; i < share->tensor[t].count; i++) {
            float x = (float)gradient_at(problem, share->g, share->tensor[t].first + i) * scale;
            if (isfinite(x))
                continue;
            if (!report->nonfinite++) {
                report->first_rank = rank;
                report->first_tensor = t;
            }
        }
}

/* ---- the step ------------------------------------------------------------------------------ */

/* base^exponent in FP64 by squaring from the exponent's lowest bit up. */
static double power(double base, int64_t exponent)
{
    double result = 1.0;
    while (exponent > 0) {
        if (exponent % 2)
            result = result * base;
        base = base * base;
        exponent = exponent / 2;
    }
    return result;
}

static void update_tensor(const struct ref_adamw_problem *problem,
    const struct ref_adamw_share *share, const struct ref_adamw_tensor *tensor, double factor)
{
    const struct ref_adamw_hyper *hyper = &problem->hyper[tensor->group];
    float scale = (float)factor;
    float b1 = (float)hyper->b1, c1 = (float)(1.0 - hyper->b1);
    float b2 = (float)hyper->b2, c2 = (float)(1.0 - hyper->b2);
    float rs = (float)(1.0 / sqrt(1.0 - power(hyper->b2, problem->t)));
    float eps = (float)hyper->eps;
    float step = (float)(hyper->lr / (1.0 - power(hyper->b1, problem->t)));
    float decay = (float)(1.0 - hyper->lr * hyper->wd);

    for (int64_t i = tensor->first; i < tensor->first + tensor->count; i++) {
        float g = (float)gradient_at(problem, share->g, i) * scale;
        float scaled = c1 * g;
        float m = fmaf(b1, share->m[i], scaled);
        float square = g * g;
        float scaled_square = c2 * square;
        float v = fmaf(b2, share->v[i], scaled_square);
        float root = sqrtf(v);
        float denominator = fmaf(root, rs, eps);
        float ratio = m / denominator;
        float decayed = share->p[i] * decay;
        float p = fmaf(-step, ratio, decayed);
        share->m[i] = m;
        share->v[i] = v;
        share->p[i] = p;
        share->w[i] = f32_to_bf16(p);
    }
}

void ref_adamw_step(const struct ref_adamw_problem *problem, struct ref_adamw_report *report)
{
    *report = (struct ref_adamw_report){.factor = NAN, .first_rank = -1, .first_tensor = -1};
    double sum = 0.0;
    for (int r = 0; r < problem->ranks; r++) {
        sum = sum + share_sum(problem, &problem->share[r]);
        count_nonfinite(problem, &problem->share[r], r, report);
    }
    report->norm = problem->scale * sqrt(sum);
    report->skipped = report->nonfinite && !problem->propagate;
    if (report->skipped)
        return;
    report->factor = problem->scale;
    if (problem->clip > 0 && report->norm > problem->clip)
        report->factor = problem->scale * (problem->clip / report->norm);
    for (int r = 0; r < problem->ranks; r++)
        for (int64_t t = 0; t < problem->share[r].tensors; t++)
            update_tensor(
                problem, &problem->share[r], &problem->share[r].tensor[t], report->factor);
}

/* ---- FP64, and how far FP32 may be from it ----------------------------------------------------
 *
 * A running error analysis. x is the value in FP64, e(x) bounds |FP32's value - x|. An FP32
 * operation adds at most U times its result's size, or TINY where the result is denormal; a
 * constant rounded to FP32 adds the same. With hats for what FP32 has:
 *
 *   product  |a^ b^ - a b|  <=  |a| e(b) + |b| e(a) + e(a) e(b)
 *   root     |sqrt(v^) - sqrt(v)|  <=  e(v) / sqrt(v), and <= sqrt(e(v))
 *   ratio    |m^ / d^ - m / d|  <=  (e(m) + |m / d| e(d)) / (|d| - e(d)), if e(d) < |d|
 *
 * U is 2^-24 and a little more, for FP64's own roundings: the step has fewer than 20 of them, and
 * the powers of b1 and b2 are exact to 2^-53 / (1 - b) relative to what is subtracted from 1, which
 * is far below 2^-24 for every b up to 1 - 2^-20. Where a value can leave FP32's range its bound is
 * infinite. */

#define U (0x1p-24 * (1.0 + 0x1p-10))
#define TINY 0x1p-150

struct approximate {
    double value, error;
};

/* After one FP32 rounding. Nothing is known of a value that may have overflowed. */
static struct approximate rounded(double value, double error)
{
    double size = fabs(value) + error;
    struct approximate result = {value, error + U * size + TINY};
    if (!(size + result.error <= FLT_MAX))
        result.error = INFINITY;
    return result;
}

static double product_error(struct approximate a, struct approximate b)
{
    double error = fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error;
    return isnan(error) ? INFINITY : error; /* 0 times infinity */
}

static struct approximate multiply(struct approximate a, struct approximate b)
{
    return rounded(a.value * b.value, product_error(a, b));
}

/* a b + c, rounded once. */
static struct approximate multiply_add(
    struct approximate a, struct approximate b, struct approximate c)
{
    double value = a.value * b.value + c.value;
    struct approximate result = rounded(value, product_error(a, b) + c.error);
    /* A sum of large terms may cancel in FP64 as in FP32; its rounding there is in U's margin of
     * the terms, not of the result. */
    result.error += (U - 0x1p-24) * (fabs(a.value * b.value) + fabs(c.value));
    return result;
}

static struct approximate root(struct approximate v)
{
    double value = sqrt(v.value);
    double error = sqrt(v.error);
    if (value > 0 && v.error / value < error)
        error = v.error / value;
    return rounded(value, error);
}

static struct approximate divide(struct approximate m, struct approximate d)
{
    double value = m.value / d.value;
    if (!(d.error < fabs(d.value)) || !isfinite(m.error))
        return (struct approximate){value, INFINITY};
    return rounded(value, (m.error + fabs(value) * d.error) / (fabs(d.value) - d.error));
}

static struct approximate exactly(double value)
{
    return (struct approximate){value, 0.0};
}

void ref_adamw_f64(const struct ref_adamw_problem *problem, int rank, double factor,
    const struct ref_adamw_f64 *result)
{
    const struct ref_adamw_share *share = &problem->share[rank];
    struct approximate scale = rounded(factor, 0.0);
    for (int64_t t = 0; t < share->tensors; t++) {
        const struct ref_adamw_tensor *tensor = &share->tensor[t];
        const struct ref_adamw_hyper *hyper = &problem->hyper[tensor->group];
        struct approximate b1 = rounded(hyper->b1, 0.0), c1 = rounded(1.0 - hyper->b1, 0.0);
        struct approximate b2 = rounded(hyper->b2, 0.0), c2 = rounded(1.0 - hyper->b2, 0.0);
        struct approximate rs = rounded(1.0 / sqrt(1.0 - pow(hyper->b2, (double)problem->t)), 0.0);
        struct approximate eps = rounded(hyper->eps, 0.0);
        struct approximate step =
            rounded(-hyper->lr / (1.0 - pow(hyper->b1, (double)problem->t)), 0.0);
        struct approximate decay = rounded(1.0 - hyper->lr * hyper->wd, 0.0);
        for (int64_t i = tensor->first; i < tensor->first + tensor->count; i++) {
            struct approximate g = multiply(exactly(gradient_at(problem, share->g, i)), scale);
            struct approximate m = multiply_add(b1, exactly(share->m[i]), multiply(c1, g));
            struct approximate v =
                multiply_add(b2, exactly(share->v[i]), multiply(c2, multiply(g, g)));
            struct approximate ratio = divide(m, multiply_add(root(v), rs, eps));
            struct approximate p = multiply_add(step, ratio, multiply(exactly(share->p[i]), decay));
            result->m[i] = m.value;
            result->m_bound[i] = m.error;
            result->v[i] = v.value;
            result->v_bound[i] = v.error;
            result->p[i] = p.value;
            result->p_bound[i] = p.error;
        }
    }
}
