/* The rate of a matrix product on the cpu device's kernels. */
#include "bench/harness/gemm_rate.h"
#include <stdint.h>
#include <stdlib.h>
#include "kernels/gemm.h"
#include "probe/timing.h"

enum { SIDE = 512, TIMES = 9 };

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

double gemm_rate_flops_per_s(struct dev_pool *pool)
{
    struct product product = {
        calloc(SIDE * SIDE, 2), calloc(SIDE * SIDE, 2), calloc(SIDE * SIDE, sizeof(float))};
    double best = 0;
    for (int i = 0; i < TIMES && product.a && product.b && product.c; i++) {
        double begin_s = timing_now_s();
        dev_pool_run(pool, dev_pool_threads(pool), multiply, &product);
        double rate = 2.0 * SIDE * SIDE * SIDE / (timing_now_s() - begin_s);
        best = rate > best ? rate : best;
    }
    free(product.a);
    free(product.b);
    free(product.c);
    return best;
}
