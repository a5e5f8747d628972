/* The matrix product of the CUDA kernels against the CPU's, byte by byte: both tile sizes, several
 * blocks with ragged edges, every layout, type and start, aligned and unaligned operands, every
 * kind of value, k from 0 over whole slabs and past them. */
#include "tests/cuda_case.cuh"
extern "C" {
#include "kernels/gemm.h"
}

struct shape {
    int64_t m, n, k;
};

/* What a case varies beside its shape. */
struct way {
    enum gemm_layout layout;
    enum gemm_init init;
    enum dtype a_type, b_type;
    int64_t padding; /* elements between rows of every matrix */
    int skew, every;
};

static int64_t product_faults(const struct shape &s, const struct way &w)
{
    struct gemm_args args;
    struct cuda_case c = begin_case(&kernel_gemm, &args, w.skew);
    const bool a_turned = w.layout == GEMM_TN, b_turned = w.layout == GEMM_NT;
    args.layout = w.layout;
    args.init = w.init;
    args.a_type = w.a_type;
    args.b_type = w.b_type;
    args.m = s.m;
    args.n = s.n;
    args.k = s.k;
    args.lda = (a_turned ? s.m : s.k) + w.padding;
    args.ldb = (b_turned ? s.k : s.n) + w.padding;
    args.ldc = s.n + w.padding;
    point(&c, &args.a, add_typed(&c, w.a_type, (a_turned ? s.k : s.m) * args.lda, 1, w.every));
    point(&c, &args.b, add_typed(&c, w.b_type, (b_turned ? s.n : s.k) * args.ldb, 2, w.every));
    point(&c, &args.c, add_typed(&c, DTYPE_F32, s.m * args.ldc, 3, w.every));
    return run_case(&c);
}

/* Way `number` of a walk through all combinations. */
static struct way numbered(int number)
{
    static const int64_t paddings[] = {0, 8, 1, 4};
    struct way w;
    w.layout = (enum gemm_layout)(number % 3);
    w.init = (enum gemm_init)(number / 3 % 3);
    w.a_type = (enum dtype)(number / 9 % 2);
    w.b_type = (enum dtype)(number / 18 % 2);
    w.padding = paddings[number / 5 % 4];
    w.skew = number % 7 == 3 ? 1 : 0;
    w.every = number % 4 == 2 ? 40 : 0;
    return w;
}

static void test_combinations(void)
{
    const struct shape small = {70, 130, 37};
    int64_t faults = 0;
    for (int number = 0; number < 36; number++)
        for (int turn = 0; turn < 3; turn++) {
            struct way w = numbered(number);
            w.padding = turn == 1 ? 0 : 8 - turn;
            w.skew = turn == 2;
            w.every = turn == 1 ? 60 : 0;
            faults += product_faults(small, w);
        }
    tap_ok(!faults, "every layout, start and type, aligned and not, ordinary and special values");
}

static void test_edges(void)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 7, 8, 31, 63, 64, 65, 129};
    static const int64_t depths[] = {0, 1, 7, 8, 9, 15, 16, 17, 33, 48};
    int64_t faults = 0;
    int number = 0;
    for (int i = 0; i < 12; i++)
        for (int j = 0; j < 12; j++, number++) {
            const struct shape s = {sizes[i], sizes[j], depths[number % 10]};
            faults += product_faults(s, numbered(number));
        }
    tap_ok(!faults, "every edge of a tile");
}

static void test_depths(void)
{
    int64_t faults = 0;
    for (int64_t k = 0; k <= 50; k++)
        for (int turn = 0; turn < 3; turn++) {
            const struct shape s = {5, 66, k};
            faults += product_faults(s, numbered((int)k * 3 + turn));
        }
    tap_ok(!faults, "every length of a chain");
}

/* 132 large tiles and more. */
static void test_large(void)
{
    static const struct shape shapes[] = {
        {1409, 1409, 19}, {130, 8450, 33}, {16897, 3, 16}, {1, 16900, 5}, {1500, 1500, 32}};
    int64_t faults = 0;
    for (int i = 0; i < 5; i++) {
        struct way w = numbered(i * 10 + i / 2);
        w.layout = (enum gemm_layout)(i % 3);
        faults += product_faults(shapes[i], w);
    }
    tap_ok(!faults, "large tiles");
}

/* A chain that is -0 to its end stays -0, whatever fills the last slab. */
static void test_minus_zero(void)
{
    int64_t faults = 0;
    for (int64_t k = 0; k < 20; k++)
        for (int layout = 0; layout < 3; layout++) {
            struct gemm_args args;
            struct cuda_case c = begin_case(&kernel_gemm, &args, 0);
            args.layout = (enum gemm_layout)layout;
            args.init = GEMM_CHAIN;
            args.m = args.n = 3;
            args.k = k;
            args.lda = layout == GEMM_TN ? 3 : k;
            args.ldb = layout == GEMM_NT ? k : 3;
            args.ldc = 3;
            const int a = add_typed(&c, DTYPE_F32, 3 * k, 1, 0);
            const int b = add_typed(&c, DTYPE_F32, 3 * k, 2, 0);
            const int sum = add_typed(&c, DTYPE_F32, 9, 3, 0);
            for (int64_t i = 0; i < 3 * k; i++) {
                ((float *)c.arrays[a].host)[i] = 0.0f;
                ((float *)c.arrays[b].host)[i] = -1.0f;
            }
            for (int i = 0; i < 9; i++)
                ((float *)c.arrays[sum].host)[i] = -0.0f;
            point(&c, &args.a, a);
            point(&c, &args.b, b);
            point(&c, &args.c, sum);
            faults += run_case(&c);
        }
    tap_ok(!faults, "a chain that is -0 stays -0");
}

/* Rows of a product with many rows are those of a product with few. */
static void test_batch(void)
{
    struct way w = numbered(0);
    w.layout = GEMM_NT;
    w.a_type = w.b_type = DTYPE_BF16;
    int64_t faults = 0;
    for (int64_t rows = 1; rows <= 200; rows += 66) {
        const struct shape s = {rows, 64, 100};
        faults += product_faults(s, w);
    }
    tap_ok(!faults, "the bits of a row do not depend on how many there are");
}

int main(void)
{
    if (!device_found())
        return 0;
    test_combinations();
    test_edges();
    test_depths();
    test_large();
    test_minus_zero();
    test_batch();
    return tap_done();
}
