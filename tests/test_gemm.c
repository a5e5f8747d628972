/* The matrix product against three nested loops, bit by bit: every edge of every tile, every
 * layout, type, start and kind of value, every block of k, teams, parts of C, pieces of k, far
 * indices, and no memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kernels/isa.h"
#include "tests/gemm_case.h"
#include "tests/tap.h"

enum { MOST_THREADS = 3 };

/* Case number `count` of a sweep: the numbers walk through every combination. */
static void check_numbered(struct gemm_bench *b, struct shape s, int64_t count, int threads)
{
    for (int layout = 0; layout < 3; layout++) {
        const int64_t turn = count + layout;
        const struct gemm_args args = make_case(b, (enum gemm_layout)layout,
            (enum gemm_init)(turn % 3), (enum dtype)(turn / 3 % 2), (enum dtype)(turn / 6 % 2), s,
            (enum values)(turn % VALUES_COUNT), turn % 4);
        check_case(b, args, threads);
    }
}

/* Around every tile: 4x3, 6x16, 8x12, 8x48, 14x32, and 24, 12, 8, 6 columns by 16 to 64 lanes. */
static void test_edges(struct gemm_bench *b)
{
    static const int64_t rows[] = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 29, 33, 47, 65};
    static const int64_t columns[] = {
        0, 1, 2, 3, 4, 6, 7, 8, 11, 12, 13, 15, 16, 17, 24, 25, 31, 32, 33, 47, 48, 49, 65};
    static const int64_t depths[] = {1, 0, 2, 3, 5, 8, 15, 16, 17, 33};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++, count++)
            check_numbered(
                b, (struct shape){rows[i], columns[j], depths[(i * 7 + j) % 10]}, count, 1);
    report(b, "every edge of every tile");
}

/* Every layout, type, start and kind of value at shapes that have both whole tiles and edges. */
static void test_combinations(struct gemm_bench *b)
{
    static const struct shape shapes[] = {{9, 53, 19}, {31, 71, 37}, {130, 20, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int combination = 0; combination < 3 * 3 * 4 * VALUES_COUNT; combination++) {
            const int types = combination / 9 % 4;
            const struct gemm_args args = make_case(b, (enum gemm_layout)(combination % 3),
                (enum gemm_init)(combination / 3 % 3), (enum dtype)(types % 2),
                (enum dtype)(types / 2), shapes[i], (enum values)(combination / 36), 1);
            check_case(b, args, 1);
        }
    report(b, "every layout, type, start and kind of value");
}

/* Where blocks of k begin and end. */
static void test_depths(struct gemm_bench *b)
{
    static const int64_t depths[] = {
        31, 32, 63, 64, 127, 128, 129, 160, 161, 256, 257, 511, 512, 513, 1025, 2700};
    static const struct shape shapes[] = {{1, 3, 0}, {15, 34, 0}, {17, 26, 0}, {64, 7, 0}};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++, count++)
            check_numbered(b, (struct shape){shapes[j].m, shapes[j].n, depths[i]}, count, 1);
    report(b, "every block of k");
}

/* More rows and columns than one block holds, and teams. */
static void test_teams(struct gemm_bench *b)
{
    static const struct shape shapes[] = {
        {1, 700, 190}, {5, 130, 260}, {40, 37, 100}, {300, 3, 150}, {190, 41, 90}, {64, 64, 70}};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int threads = 1; threads <= MOST_THREADS; threads++, count++)
            check_numbered(b, shapes[i], count, threads);
    check_numbered(b, (struct shape){3, 1200, 40}, 0, 2);
    report(b, "teams of 1, 2 and 3 threads");
}

/* Any rows and columns made alone have the bits they have in the whole. */
static void test_sub_blocks(struct gemm_bench *b)
{
    for (int trial = 0; trial < 60; trial++) {
        const struct shape s = {1 + random_below(&b->random, 150),
            1 + random_below(&b->random, 120), 1 + random_below(&b->random, 90)};
        struct gemm_args args = make_case(b, (enum gemm_layout)(trial % 3),
            (enum gemm_init)(trial / 3 % 3), DTYPE_F32, DTYPE_F32, s, WIDE, trial % 3);
        isa_force((enum isa)(trial % ISA_COUNT));
        restore(b, &args);
        gemm_cpu(&args, NULL);
        memcpy(b->want, args.c - args.ldc, (size_t)b->c_floats * 4);
        restore(b, &args);
        const int64_t row = random_below(&b->random, s.m), column = random_below(&b->random, s.n);
        for (int quarter = 0; quarter < 4; quarter++) {
            const int64_t m = quarter / 2 ? row : 0, n = quarter % 2 ? column : 0;
            struct gemm_args part = args;
            part.m = quarter / 2 ? s.m - row : row;
            part.n = quarter % 2 ? s.n - column : column;
            part.a = (const float *)args.a + m * (args.layout == GEMM_TN ? 1 : args.lda);
            part.b = (const float *)args.b + n * (args.layout == GEMM_NT ? args.ldb : 1);
            part.c = args.c + m * args.ldc + n;
            gemm_cpu(&part, NULL);
        }
        compare(b, &args, "four parts");
    }
    report(b, "rows and columns made apart have the bits of the whole");
}

/* Consecutive GEMM_CHAIN calls over pieces of k continue one chain. */
static void test_split_depth(struct gemm_bench *b)
{
    for (int trial = 0; trial < 60; trial++) {
        const struct shape s = {1 + random_below(&b->random, 70), 1 + random_below(&b->random, 70),
            3 + random_below(&b->random, 300)};
        struct gemm_args args = make_case(
            b, (enum gemm_layout)(trial % 3), GEMM_CHAIN, DTYPE_F32, DTYPE_F32, s, WIDE, trial % 3);
        isa_force((enum isa)(trial % ISA_COUNT));
        naive(b, &args);
        restore(b, &args);
        for (int64_t k = 0, step; k < s.k; k += step) {
            struct gemm_args piece = args;
            step = 1 + random_below(&b->random, s.k - k);
            piece.k = step;
            piece.a = (const float *)args.a + k * (args.layout == GEMM_TN ? args.lda : 1);
            piece.b = (const float *)args.b + k * (args.layout == GEMM_NT ? 1 : args.ldb);
            gemm_cpu(&piece, NULL);
        }
        compare(b, &args, "pieces of k");
    }
    report(b, "k cut into consecutive chained calls");
}

/* ---- indices beyond 2^31 elements -------------------------------------------------------- */

/* Address space only: pages appear where they are touched. */
static void *sparse_create(int64_t bytes)
{
    void *pages = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

enum { FAR_ROWS = 5, FAR_COLUMNS = 21 };
#define FAR_LD ((int64_t)1 << 29 | 37) /* row 4 begins beyond 2^31 elements */

static void far_fill(struct gemm_bench *b, uint16_t *to)
{
    for (int64_t row = 0; row < FAR_ROWS; row++)
        fill_values(b, to + row * FAR_LD, DTYPE_BF16, FAR_COLUMNS, ORDINARY);
}

/* All three matrices have 5 rows or columns of 21, each row 2^29 elements from the next. */
static bool far_case(
    struct gemm_bench *b, enum gemm_layout layout, uint16_t *a, uint16_t *w, float *c)
{
    struct gemm_args args = {.layout = layout,
        .a_type = DTYPE_BF16,
        .b_type = DTYPE_BF16,
        .m = layout == GEMM_TN ? FAR_COLUMNS : FAR_ROWS,
        .n = layout == GEMM_NT ? FAR_ROWS : FAR_COLUMNS,
        .k = layout == GEMM_NT ? FAR_COLUMNS : FAR_ROWS,
        .a = a,
        .lda = FAR_LD,
        .b = w,
        .ldb = FAR_LD,
        .c = c,
        .ldc = FAR_LD};
    if (args.m > FAR_ROWS)
        args.m = FAR_ROWS; /* C has FAR_ROWS rows */
    for (int i = 0; i < ISA_COUNT; i++) {
        if (isa_force((enum isa)i))
            continue;
        run_threads(b, &args, 1);
        for (int64_t m = 0; m < args.m; m++)
            for (int64_t n = 0; n < args.n; n++)
                if (!same_value(c[m * FAR_LD + n], naive_element(&args, m, n, 0.0f)))
                    return false;
    }
    return true;
}

static void test_far_indices(struct gemm_bench *b)
{
    const int64_t elements = (FAR_ROWS - 1) * FAR_LD + FAR_COLUMNS;
    uint16_t *a = sparse_create(2 * elements), *w = sparse_create(2 * elements);
    float *c = sparse_create(4 * elements);
    if (a && w && c) {
        far_fill(b, a);
        far_fill(b, w);
        tap_ok(elements > INT32_MAX && far_case(b, GEMM_NN, a, w, c) &&
                   far_case(b, GEMM_NT, a, w, c) && far_case(b, GEMM_TN, a, w, c),
            "elements %lld apart", (long long)elements);
    } else {
        tap_skip("no 17 GB of address space", "elements %lld apart", (long long)elements);
    }
    if (a)
        munmap(a, (size_t)(2 * elements));
    if (w)
        munmap(w, (size_t)(2 * elements));
    if (c)
        munmap(c, (size_t)(4 * elements));
}

/* ---- without memory ---------------------------------------------------------------------- */

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* A child may grow by less than the scratch needs. It must come before any product of this process,
 * whose scratch the child would inherit. */
static void test_without_memory(struct gemm_bench *b)
{
#ifdef SANITIZED
    (void)b;
    tap_skip("a sanitizer needs memory of its own", "a product without scratch");
#else
    struct gemm_args args = make_case(
        b, GEMM_TN, GEMM_ADD, DTYPE_F32, DTYPE_BF16, (struct shape){60, 90, 700}, WIDE, 1);
    naive(b, &args);
    restore(b, &args);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_AS, &none);
        const bool starved = mmap(NULL, (size_t)gemm_scratch_bytes(), PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
        gemm_cpu(&args, NULL);
        compare(b, &args, "without memory");
        _exit(!starved || b->differ);
    }
    int status = -1;
    tap_ok(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
               WEXITSTATUS(status) == 0,
        "a product without memory for its scratch");
#endif
}

/* ---- what a launch says of itself -------------------------------------------------------- */

static void test_kernel(struct gemm_bench *b)
{
    struct gemm_args args = make_case(
        b, GEMM_NT, GEMM_ADD, DTYPE_BF16, DTYPE_F32, (struct shape){3, 5, 7}, ORDINARY, 2);
    struct kernel_cost cost;
    struct dev_access ranges[DEV_ACCESS_MAX];
    kernel_gemm.cost(&args, &cost);
    tap_ok(cost.flops == 2 * 3 * 5 * 7 + 3 * 5 && cost.m == 3 && cost.n == 5 && cost.k == 7 &&
               cost.bytes == 2 * 3 * 7 + 4 * 5 * 7 + 2 * 4 * 3 * 5,
        "the cost of a product");
    const int count = kernel_gemm.access(&args, ranges);
    tap_ok(count == 3 && ranges[0].from == args.a && ranges[1].from == args.b &&
               ranges[2].from == args.c && !ranges[0].write && !ranges[1].write &&
               ranges[2].write && ranges[0].bytes == 2 * (2 * args.lda + 7) &&
               ranges[1].bytes == 4 * (4 * args.ldb + 7) &&
               ranges[2].bytes == 4 * (2 * args.ldc + 5),
        "the ranges a product touches");
    args.k = 0;
    tap_ok(kernel_gemm.access(&args, ranges) == 1 && ranges[0].from == args.c,
        "without steps only C is touched");
    args.m = 0;
    tap_ok(kernel_gemm.access(&args, ranges) == 0, "without rows nothing is touched");
}

int main(void)
{
    struct gemm_bench b;
    gemm_bench_create(&b, 1 << 20, 20240601);
    test_without_memory(&b);
    gemm_bench_start_pool(&b, MOST_THREADS);
    test_kernel(&b);
    test_edges(&b);
    test_combinations(&b);
    test_depths(&b);
    test_teams(&b);
    test_sub_blocks(&b);
    test_split_depth(&b);
    test_far_indices(&b);
    gemm_bench_free(&b);
    return tap_done();
}
