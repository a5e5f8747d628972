/* The router against a plain sort and plain sums: choices, ties, NaN, weights, and the gradient of
 * the scores against finite differences in FP64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/router.h"
#include "probe/seed.h"
#include "tests/kernel_run.h"
#include "tests/tap.h"
#include "kernels/arith.h"

enum { TOKENS = 300, MOST_EXPERTS = 40 };

struct arrays {
    float scores[TOKENS * MOST_EXPERTS], bias[MOST_EXPERTS], dscores[TOKENS * MOST_EXPERTS];
    int32_t idx[TOKENS * ROUTER_TOPK_MAX];
    float weight[TOKENS * ROUTER_TOPK_MAX], dweight[TOKENS * ROUTER_TOPK_MAX];
};

/* Few values, so that many tie; some NaN. */
static void fill(struct arrays *a, int64_t experts, bool with_nan)
{
    for (int64_t i = 0; i < TOKENS * experts; i++) {
        a->scores[i] = (float)seed_index(3, 0, i, 9) / 4 - 1;
        if (with_nan && seed_index(3, 1, i, 11) == 0)
            a->scores[i] = NAN;
    }
    for (int64_t e = 0; e < experts; e++)
        a->bias[e] = (float)seed_index(3, 2, e, 5) / 8;
    for (int64_t i = 0; i < TOKENS * ROUTER_TOPK_MAX; i++)
        a->dweight[i] = seed_f32(3, 3, i, 1);
}

/* Before: larger, then lower id; a NaN below every number. */
static bool before(float a, int64_t i, float b, int64_t j)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? i < j : isnan(b);
    return a > b || (a == b && i < j);
}

/* Slots whose expert is not the one that so many others come before. */
static int64_t choice_faults(const struct arrays *a, int64_t experts, int topk)
{
    int64_t faults = 0;
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t e = 0; e < experts; e++) {
            const float *scores = a->scores + t * experts;
            int64_t ahead = 0;
            for (int64_t o = 0; o < experts; o++)
                ahead += o != e && before(scores[o] + a->bias[o], o, scores[e] + a->bias[e], e);
            if (ahead < topk)
                faults += a->idx[t * topk + ahead] != e;
        }
    return faults;
}

static int64_t weight_faults(const struct arrays *a, int64_t experts, int topk)
{
    int64_t faults = 0;
    for (int64_t t = 0; t < TOKENS; t++) {
        float max = -INFINITY, sum = 0, e[ROUTER_TOPK_MAX];
        for (int slot = 0; slot < topk; slot++)
            max = arith_max(max, a->scores[t * experts + a->idx[t * topk + slot]]);
        for (int slot = 0; slot < topk; slot++)
            sum += e[slot] = arith_exp(a->scores[t * experts + a->idx[t * topk + slot]] - max);
        for (int slot = 0; slot < topk; slot++) {
            float want = e[slot] / sum, got = a->weight[t * topk + slot];
            faults += f32_bits(want) != f32_bits(got) && !(isnan(want) && isnan(got));
        }
    }
    return faults;
}

static void choose(struct dev_pool *pool, struct arrays *a, int64_t experts, int topk, int width)
{
    struct router_choose_args args = {TOKENS, experts, topk, a->scores, a->bias, a->idx, a->weight};
    memset(a->idx, 0xff, sizeof a->idx);
    kernel_run(pool, width, &kernel_router_choose, &args);
}

static void test_choice(struct dev_pool *pool, struct arrays *a)
{
    static const int sizes[][2] = {{1, 1}, {2, 2}, {8, 1}, {8, 3}, {33, 8}, {40, 32}, {32, 32}};
    int64_t choices = 0, weights = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 4; way++) {
            fill(a, sizes[i][0], way & 1);
            choose(pool, a, sizes[i][0], sizes[i][1], 1 + way / 2);
            choices += choice_faults(a, sizes[i][0], sizes[i][1]);
            weights += weight_faults(a, sizes[i][0], sizes[i][1]);
        }
    tap_ok(!choices, "the larger score and bias first, ties by lower id, NaN last");
    tap_ok(!weights, "weights are the softmax of the chosen scores without the bias");
}

/* Sum over slots of weight * dweight, in FP64, with one score moved. */
static double objective(
    const struct arrays *a, int64_t experts, int topk, int64_t t, int64_t moved, double by)
{
    double e[ROUTER_TOPK_MAX], sum = 0, value = 0;
    for (int slot = 0; slot < topk; slot++) {
        int64_t expert = a->idx[t * topk + slot];
        e[slot] = exp((double)a->scores[t * experts + expert] + (expert == moved ? by : 0));
        sum += e[slot];
    }
    for (int slot = 0; slot < topk; slot++)
        value += e[slot] / sum * (double)a->dweight[t * topk + slot];
    return value;
}

static void test_gradient(struct dev_pool *pool, struct arrays *a)
{
    enum { EXPERTS = 12, TOPK = 4 };
    double worst = 0, step = 1e-4;
    int64_t zeros = 0;
    fill(a, EXPERTS, false);
    choose(pool, a, EXPERTS, TOPK, 2);
    struct router_backward_args args = {
        TOKENS, EXPERTS, TOPK, a->idx, a->weight, a->dweight, a->dscores};
    memset(a->dscores, 0xff, sizeof a->dscores);
    kernel_run(pool, 2, &kernel_router_backward, &args);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t e = 0; e < EXPERTS; e++) {
            double slope = (objective(a, EXPERTS, TOPK, t, e, step) -
                               objective(a, EXPERTS, TOPK, t, e, -step)) /
                           (2 * step);
            double off = fabs(slope - (double)a->dscores[t * EXPERTS + e]);
            worst = off <= worst ? worst : off;
            zeros += f32_bits(a->dscores[t * EXPERTS + e]) == 0;
        }
    tap_ok(worst < 1e-6, "the gradient of the scores is that of finite differences (%.1e)", worst);
    tap_ok(zeros >= TOKENS * (EXPERTS - TOPK), "an expert that was not chosen has +0");
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(2);
    struct arrays *a = malloc(sizeof *a);
    if (!pool || !a)
        return 1;
    test_choice(pool, a);
    test_gradient(pool, a);
    free(a);
    dev_pool_free(pool);
    return tap_done();
}
