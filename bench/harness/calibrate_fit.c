/* Fitting the rate of matrix products.
 *
 *     time = flops / rate * (1 + half_m / m) * (1 + half_n / n) * (1 + half_k / k)
 *
 * In logarithms the rate is the mean of what the sides leave over, so the search is one over three
 * half lengths: each in turn is moved by a factor while that helps, then the factor shrinks. */
#include <math.h>
#include "bench/harness/calibrate.h"
#include "probe/timing.h"

#define FIRST_FACTOR 4.0
#define LAST_FACTOR 1.002
#define LEAST_HALF 1e-3 /* as good as none */

/* log(1 / rate) that one product tells, given the half lengths. */
static double left_over(const struct calibrate_product *product, const double *half)
{
    double m = (double)product->m, n = (double)product->n, k = (double)product->k;
    return log(product->seconds / (2 * m * n * k)) - log1p(half[0] / m) - log1p(half[1] / n) -
           log1p(half[2] / k);
}

static double mean_left_over(
    const struct calibrate_product *products, int count, const double *half)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += left_over(&products[i], half);
    return sum / count;
}

static double squares(const struct calibrate_product *products, int count, const double *half)
{
    double mean = mean_left_over(products, count, half), sum = 0;
    for (int i = 0; i < count; i++)
        sum += pow(left_over(&products[i], half) - mean, 2);
    return sum;
}

/* Moves one half length by the factor, either way, if that brings the sum of squares down. */
static bool move(const struct calibrate_product *products, int count, double *half, int side,
    double factor, double *least)
{
    for (int way = 0; way < 2; way++) {
        double before = half[side];
        half[side] = way ? before / factor : before * factor;
        double sum = squares(products, count, half);
        if (sum < *least && half[side] > LEAST_HALF) {
            *least = sum;
            return true;
        }
        half[side] = before;
    }
    return false;
}

static struct calibrate_error error_of(const struct calibrate_product *products, int count,
    const double *half, double log_rate_inverse)
{
    double errors[CALIBRATE_PRODUCTS];
    struct timing_summary summary;
    for (int i = 0; i < count; i++)
        errors[i] = fabs(exp(log_rate_inverse - left_over(&products[i], half)) - 1);
    timing_summarise(errors, count, &summary);
    return (struct calibrate_error){summary.median_s, summary.max_s};
}

struct calibrate_error calibrate_fit(
    const struct calibrate_product *products, int count, struct profile_rate *out)
{
    double half[3] = {16, 16, 16}, best = 0;
    double least = squares(products, count, half);
    for (double factor = FIRST_FACTOR; factor > LAST_FACTOR; factor = sqrt(factor)) {
        bool moved = true;
        while (moved) {
            moved = false;
            for (int side = 0; side < 3; side++)
                moved |= move(products, count, half, side, factor, &least);
        }
    }
    double log_rate_inverse = mean_left_over(products, count, half);
    double rate = exp(-log_rate_inverse);
    for (int i = 0; i < count; i++) {
        const struct calibrate_product *p = &products[i];
        best = fmax(best, 2 * (double)p->m * (double)p->n * (double)p->k / p->seconds);
    }
    best = fmax(best, rate);
    *out = (struct profile_rate){best, rate / best, half[0], half[1], half[2]};
    return error_of(products, count, half, log_rate_inverse);
}
