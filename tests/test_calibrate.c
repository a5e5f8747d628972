/* The fit of the products' rate: exact times give back what they were made from, and one that is
 * off is told as off. */
#include <math.h>
#include "bench/harness/calibrate.h"
#include "tests/tap.h"

/* The sizes do not matter much as long as each side varies alone. */
static void make(const struct profile_rate *rate, struct calibrate_product *products)
{
    for (int i = 0; i < CALIBRATE_PRODUCTS; i++) {
        struct calibrate_product p = {GEMM_NN, 512, 512, 512, 0};
        int64_t *const sides[] = {&p.m, &p.n, &p.k};
        *sides[i % 3] = 8 << i / 3 % 4 * 2;
        double m = (double)p.m, n = (double)p.n, k = (double)p.k;
        p.seconds = 2 * m * n * k / (rate->peak_flops_per_s * rate->efficiency) *
                    (1 + rate->half_m / m) * (1 + rate->half_n / n) * (1 + rate->half_k / k);
        products[i] = p;
    }
}

static bool near(double got, double wanted, double share)
{
    return fabs(got - wanted) <= share * wanted;
}

static void check_exact(const struct profile_rate *rate, const char *name)
{
    struct calibrate_product products[CALIBRATE_PRODUCTS];
    struct profile_rate got;
    make(rate, products);
    struct calibrate_error error = calibrate_fit(products, CALIBRATE_PRODUCTS, &got);
    double endless = rate->peak_flops_per_s * rate->efficiency;
    tap_ok(near(got.peak_flops_per_s * got.efficiency, endless, 0.01), "%s: the rate, %.4g", name,
        got.peak_flops_per_s * got.efficiency);
    tap_ok(near(got.half_m, rate->half_m, 0.02) && near(got.half_n, rate->half_n, 0.02) &&
               near(got.half_k, rate->half_k, 0.02),
        "%s: the half lengths, %.4g %.4g %.4g", name, got.half_m, got.half_n, got.half_k);
    tap_ok(error.worst < 0.01 && error.median <= error.worst, "%s: off by %.2g at worst", name,
        error.worst);
    tap_ok(got.efficiency > 0 && got.efficiency <= 1, "%s: a share of the peak", name);
}

int main(void)
{
    const struct profile_rate near_alike = {1.2e11, 1, 12, 40, 15};
    const struct profile_rate far_apart = {5e13, 0.7, 0.5, 3, 300};
    struct calibrate_product products[CALIBRATE_PRODUCTS];
    struct profile_rate got;
    check_exact(&near_alike, "half lengths alike");
    check_exact(&far_apart, "half lengths far apart");

    make(&near_alike, products);
    products[4].seconds *= 1.5;
    struct calibrate_error error = calibrate_fit(products, CALIBRATE_PRODUCTS, &got);
    tap_ok(error.worst > 0.2 && error.median < 0.1,
        "one slow product: off by %.2f, in the median %.3f", error.worst, error.median);

    make(&near_alike, products);
    products[4].seconds /= 20;
    calibrate_fit(products, CALIBRATE_PRODUCTS, &got);
    const struct calibrate_product *p = &products[4];
    double fastest = 2 * (double)p->m * (double)p->n * (double)p->k / p->seconds;
    tap_ok(near(got.peak_flops_per_s, fastest, 1e-9) && got.efficiency < 1,
        "a product above the fit is the peak");
    return tap_done();
}
