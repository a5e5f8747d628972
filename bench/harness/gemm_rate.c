/* The rate of a matrix product on the cpu device's kernels. */
#include "bench/harness/gemm_rate.h"
#include <stdint.h>
#include <stdlib.h>
#include "device/launch.h"
#include "kernels/gemm.h"
#include "probe/seed.h"
#include "probe/timing.h"

enum { SIDE = 512, TIMES = 8 };
#define ENOUGH_S 0.25 /* longer than what else starts up, and not a burst */
#define MOST_S 1      /* where a sanitizer makes products slow */

struct product {
    uint16_t *a, *b;
    float *c;
};

static void multiply(void *context, const struct dev_team *team)
{
    const struct product *product = context;
    gemm_cpu(&(struct gemm_args){.layout = GEMM_NN,
                 .a_type = DTYPE_BF16,
                 .b_type = DTYPE_BF16,
                 .m = SIDE,
                 .n = SIDE,
                 .k = SIDE,
                 .a = product->a,
                 .lda = SIDE,
                 .b = product->b,
                 .ldb = SIDE,
                 .c = product->c,
                 .ldc = SIDE},
        team);
}

static bool goes_on(int times, double seconds)
{
    return times < TIMES ? !times || seconds < MOST_S : seconds < ENOUGH_S;
}

/* In several processes the rate of all products so far, else the best one's. */
static double measure(struct dev_pool *pool, struct product *product)
{
    const double flops = 2.0 * SIDE * SIDE * SIDE;
    double rate = 0, begun_s = timing_now_s();
    for (int i = 0; goes_on(i, timing_now_s() - begun_s); i++) {
        double begin_s = timing_now_s();
        dev_pool_run(pool, dev_pool_threads(pool), multiply, product);
        double now_s = timing_now_s(), own = flops / (now_s - begin_s);
        if (launch_started())
            rate = (i + 1) * flops / (now_s - begun_s);
        else
            rate = own > rate ? own : rate;
    }
    return rate;
}

static bool open_product(struct product *product)
{
    product->a = calloc(SIDE * SIDE, sizeof *product->a);
    product->b = calloc(SIDE * SIDE, sizeof *product->b);
    product->c = calloc(SIDE * SIDE, sizeof *product->c);
    if (!product->a || !product->b || !product->c)
        return false;
    seed_fill_bf16(product->a, 1, 0, 0, SIDE * SIDE, 1);
    seed_fill_bf16(product->b, 1, 1, 0, SIDE * SIDE, 1);
    return true;
}

double gemm_rate_flops_per_s(struct dev_pool *pool)
{
    struct product product = {NULL, NULL, NULL};
    double mine, sum = 0, *all = calloc((size_t)launch_processes(), sizeof *all);
    if (launch_all(open_product(&product) && all)) {
        dev_pool_run(pool, dev_pool_threads(pool), multiply, &product);
        launch_all(true);
        mine = measure(pool, &product);
        launch_gather(&mine, all, sizeof mine);
        for (int i = 0; i < launch_processes(); i++)
            sum += all[i];
    }
    free(product.a);
    free(product.b);
    free(product.c);
    free(all);
    return sum;
}
