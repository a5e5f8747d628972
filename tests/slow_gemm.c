/* The matrix product over random shapes large enough for every block to turn at its full size: more
 * than 1024 columns, more rows than a block of A, sums of GEMM_ADD beyond their 1024 x 1024. */
#include "kernels/isa.h"
#include "tests/gemm_case.h"
#include "tests/tap.h"

static struct gemm_args random_case(struct gemm_bench *b, struct shape s)
{
    uint64_t *state = &b->random;
    const enum gemm_layout layout = (enum gemm_layout)random_below(state, 3);
    const enum gemm_init init = (enum gemm_init)random_below(state, 3);
    const enum dtype a_type = (enum dtype)random_below(state, 2);
    const enum dtype b_type = (enum dtype)random_below(state, 2);
    const enum values values = (enum values)random_below(state, VALUES_COUNT);
    return make_case(b, layout, init, a_type, b_type, s, values, random_below(state, 40));
}

static void test_random_shapes(struct gemm_bench *b, int trials, struct shape most)
{
    for (int trial = 0; trial < trials; trial++) {
        const struct shape s = {1 + random_below(&b->random, most.m),
            1 + random_below(&b->random, most.n), 1 + random_below(&b->random, most.k)};
        check_case(b, random_case(b, s), 1 + trial % 4);
    }
    report(b, "random shapes");
}

/* Both sides of every block at once; each layout as a whole sum that is cut in both directions. */
static void test_large_sums(struct gemm_bench *b)
{
    for (int layout = 0; layout < 3; layout++)
        check_case(b,
            make_case(b, (enum gemm_layout)layout, GEMM_ADD, DTYPE_F32, DTYPE_BF16,
                (struct shape){1031, 1061, 523}, WIDE, 3),
            2);
    report(b, "sums cut in both directions");
}

int main(void)
{
    struct gemm_bench b;
    gemm_bench_create(&b, 1 << 22, 77);
    gemm_bench_start_pool(&b, 4);
    test_random_shapes(&b, 3000, (struct shape){70, 150, 200});
    test_random_shapes(&b, 300, (struct shape){400, 300, 700});
    test_random_shapes(&b, 60, (struct shape){20, 3000, 1200});
    test_random_shapes(&b, 60, (struct shape){1300, 40, 1200});
    test_large_sums(&b);
    gemm_bench_free(&b);
    return tap_done();
}
