/* The matrix product against three nested loops, bit by bit.
 *
 * Each case is made once by naive() and then by every variant this CPU can run, alone and by teams.
 * Operands end at an unreadable page, so that a read past an operand's last element faults; C lies
 * in a sea of guard elements that no variant may change. */
#include "device/device.h"
#include "kernels/gemm.h"
#include "kernels/gemm_isa.h"
#include "kernels/isa.h"
#include "kernels/isa_variants.h"
#include "tests/tap.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

ISA_DECLARE(struct gemm_variant, gemm_variant);
static const struct gemm_variant *const variants[ISA_COUNT] = ISA_TABLE(gemm_variant);

enum { MOST_THREADS = 3, PAGE = 4096 };
#define GUARD 0x5eedfaceu

enum values { ORDINARY, WIDE, DENORMAL, ZEROS, SPECIAL, VALUES_COUNT };

/* ---- operands ----------------------------------------------------------------------------------
 */

/* Memory whose last byte lies before an unreadable page. */
struct fenced {
    char *pages;
    int64_t bytes; /* whole pages, without the fence */
};

static struct fenced fenced_create(int64_t bytes)
{
    struct fenced f = {.bytes = (bytes + PAGE - 1) / PAGE * PAGE};
    f.pages = mmap(
        NULL, (size_t)f.bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f.pages == MAP_FAILED || mprotect(f.pages + f.bytes, PAGE, PROT_NONE)) {
        perror("mmap");
        exit(1);
    }
    return f;
}

static void fenced_free(struct fenced *f)
{
    munmap(f->pages, (size_t)f->bytes + PAGE);
}

/* The last `bytes` bytes before the fence. */
static void *fenced_end(const struct fenced *f, int64_t bytes)
{
    if (bytes > f->bytes) {
        fprintf(stderr, "test_gemm: a case needs %lld bytes, the bench has %lld\n",
            (long long)bytes, (long long)f->bytes);
        exit(1);
    }
    return f->pages + f->bytes - bytes;
}

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t random_below(uint64_t *state, int64_t bound)
{
    return (int64_t)(random_bits(state) % (uint64_t)bound);
}

static float random_value(uint64_t *state, enum values values)
{
    static const uint32_t special[] = {
        0x7f800000, 0xff800000, 0x7fc00000, 0x7f7f0000, 0x00010000, 0x80000000};
    const uint64_t bits = random_bits(state);
    const float unit = (float)((double)(bits >> 40) * 0x1p-23 - 1.0);
    switch (values) {
    case WIDE:
        return ldexpf(unit, (int)(bits % 120) - 60);
    case DENORMAL:
        return ldexpf(unit, (int)(bits % 16) - 76);
    case ZEROS:
        return bits % 3 ? (bits % 2 ? 0.0f : -0.0f) : unit;
    case SPECIAL:
        return bits % 97 ? unit : f32_from_bits(special[bits / 97 % 6]);
    default:
        return unit;
    }
}

/* ---- a case ------------------------------------------------------------------------------------
 */

struct bench {
    struct fenced a, b, c;
    float *start;     /* C before the product */
    float *want;      /* C after it, by naive() */
    int64_t c_floats; /* capacity of C, start and want */
    struct dev_pool *pool;
    uint64_t random;
    int64_t compared, differ;
};

struct shape {
    int64_t m, n, k;
};

static int64_t operand_elements(int64_t rows, int64_t columns, int64_t ld)
{
    return rows && columns ? (rows - 1) * ld + columns : 0;
}

static void fill(struct bench *b, void *to, enum dtype type, int64_t count, enum values values)
{
    for (int64_t i = 0; i < count; i++) {
        const float value = random_value(&b->random, values);
        if (type == DTYPE_BF16)
            ((uint16_t *)to)[i] = f32_to_bf16(value);
        else
            ((float *)to)[i] = value;
    }
}

/* Fills operands of that shape and sets the arguments; C begins at the bench's second row. */
static struct gemm_args make_case(struct bench *b, enum gemm_layout layout, enum gemm_init init,
    enum dtype a_type, enum dtype b_type, struct shape s, enum values values, int64_t pad)
{
    const int64_t a_rows = layout == GEMM_TN ? s.k : s.m, a_columns = layout == GEMM_TN ? s.m : s.k;
    const int64_t b_rows = layout == GEMM_NT ? s.n : s.k, b_columns = layout == GEMM_NT ? s.k : s.n;
    struct gemm_args args = {.layout = layout,
        .init = init,
        .a_type = a_type,
        .b_type = b_type,
        .m = s.m,
        .n = s.n,
        .k = s.k,
        .lda = a_columns + pad,
        .ldb = b_columns + (pad * 3) % 5,
        .ldc = s.n + pad + 1};
    const int64_t a_count = operand_elements(a_rows, a_columns, args.lda);
    const int64_t b_count = operand_elements(b_rows, b_columns, args.ldb);
    void *a = fenced_end(&b->a, a_count * dtype_bytes(a_type));
    void *bb = fenced_end(&b->b, b_count * dtype_bytes(b_type));
    fill(b, a, a_type, a_count, values);
    fill(b, bb, b_type, b_count, values);
    args.a = a;
    args.b = bb;
    b->c_floats = operand_elements(s.m + 2, args.ldc, args.ldc);
    fenced_end(&b->c, b->c_floats * 4);
    for (int64_t i = 0; i < b->c_floats; i++)
        b->start[i] = f32_from_bits(GUARD);
    for (int64_t m = 0; m < s.m; m++)
        fill(b, b->start + (m + 1) * args.ldc, DTYPE_F32, s.n, values);
    args.c = (float *)fenced_end(&b->c, b->c_floats * 4) + args.ldc;
    return args;
}

static float element(const void *data, enum dtype type, int64_t index)
{
    return type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)data)[index])
                              : ((const float *)data)[index];
}

static float naive_element(const struct gemm_args *g, int64_t m, int64_t n, float c)
{
    const bool a_turned = g->layout == GEMM_TN, b_turned = g->layout == GEMM_NT;
    float chain = g->init == GEMM_CHAIN ? c : 0.0f;
    for (int64_t k = 0; k < g->k; k++) {
        float a = element(g->a, g->a_type, a_turned ? k * g->lda + m : m * g->lda + k);
        float b = element(g->b, g->b_type, b_turned ? n * g->ldb + k : k * g->ldb + n);
        chain = fmaf(a, b, chain);
    }
    return g->init == GEMM_ADD ? c + chain : chain;
}

static void naive(const struct gemm_args *g, const float *start, float *want)
{
    for (int64_t m = 0; m < g->m; m++)
        for (int64_t n = 0; n < g->n; n++)
            want[m * g->ldc + n] = naive_element(g, m, n, start[m * g->ldc + n]);
}

static bool same(float got, float want)
{
    return f32_bits(got) == f32_bits(want) || (got != got && want != want);
}

static void restore(struct bench *b, const struct gemm_args *args)
{
    memcpy(args->c - args->ldc, b->start, (size_t)b->c_floats * 4);
}

static void describe(const struct gemm_args *g, const char *how)
{
    static const char *const layouts[] = {"NN", "NT", "TN"}, *const inits[] = {
                                                                 "fresh", "chain", "add"};
    tap_note("%s: %s %s a=%s b=%s m=%lld n=%lld k=%lld lda=%lld ldb=%lld ldc=%lld", how,
        layouts[g->layout], inits[g->init], g->a_type ? "bf16" : "f32", g->b_type ? "bf16" : "f32",
        (long long)g->m, (long long)g->n, (long long)g->k, (long long)g->lda, (long long)g->ldb,
        (long long)g->ldc);
}

/* C and every guard around it. */
static void compare(struct bench *b, const struct gemm_args *args, const char *how)
{
    const float *got = args->c - args->ldc;
    b->compared++;
    for (int64_t i = 0; i < b->c_floats; i++)
        if (!same(got[i], b->want[i])) {
            if (b->differ++ < 5) {
                describe(args, how);
                tap_note("row %lld column %lld: got %08x want %08x", (long long)(i / args->ldc - 1),
                    (long long)(i % args->ldc), f32_bits(got[i]), f32_bits(b->want[i]));
            }
            return;
        }
}

static void run_with_team(void *args, const struct dev_team *team)
{
    gemm_cpu(args, team);
}

static void run_threads(struct bench *b, struct gemm_args *args, int threads)
{
    if (threads == 1)
        gemm_cpu(args, NULL);
    else
        dev_pool_run(b->pool, threads, run_with_team, args);
}

/* The same product through a scratch so small that every blocking loop turns many times. */
static void run_in_least_scratch(const struct gemm_args *args)
{
    _Alignas(64) float a[GEMM_LEAST_A], packed[GEMM_LEAST_B], sum[GEMM_LEAST_SUM];
    const struct gemm_scratch scratch = {
        a, packed, sum, GEMM_LEAST_A, GEMM_LEAST_B, GEMM_LEAST_SUM};
    const struct gemm_share all = {0, args->m, 0, args->n};
    if (args->m && args->n && args->k)
        variants[isa_selected()]->run(args, &all, &scratch);
    else
        gemm_cpu(args, NULL);
}

/* One case by every variant: alone, by a team, and in the least scratch. */
static void check_case(struct bench *b, struct gemm_args args, int threads)
{
    char how[64];
    memcpy(b->want, b->start, (size_t)b->c_floats * 4);
    naive(&args, b->start + args.ldc, b->want + args.ldc);
    for (int i = 0; i < ISA_COUNT; i++) {
        if (isa_force((enum isa)i))
            continue;
        restore(b, &args);
        run_threads(b, &args, threads);
        snprintf(how, sizeof how, "%s, %d threads", isa_name((enum isa)i), threads);
        compare(b, &args, how);
        restore(b, &args);
        run_in_least_scratch(&args);
        snprintf(how, sizeof how, "%s, least scratch", isa_name((enum isa)i));
        compare(b, &args, how);
    }
}

/* Case number `count` of a sweep: the numbers walk through every combination. */
static void check_numbered(struct bench *b, struct shape s, int64_t count, int threads)
{
    for (int layout = 0; layout < 3; layout++) {
        const int64_t turn = count + layout;
        const struct gemm_args args = make_case(b, (enum gemm_layout)layout,
            (enum gemm_init)(turn % 3), (enum dtype)(turn / 3 % 2), (enum dtype)(turn / 6 % 2), s,
            (enum values)(turn % VALUES_COUNT), turn % 4);
        check_case(b, args, threads);
    }
}

static void finish(struct bench *b, const char *what)
{
    tap_ok(!b->differ && b->compared, "%s: %lld products, %lld differ", what,
        (long long)b->compared, (long long)b->differ);
    b->compared = b->differ = 0;
}

/* ---- the tests ---------------------------------------------------------------------------------
 */

/* Around every tile: 4x3, 6x16, 8x12, 8x48, 14x32, and 24, 12, 8, 6 columns by 16 to 64 lanes. */
static void test_edges(struct bench *b)
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
    finish(b, "every edge of every tile");
}

/* Every layout, type, start and kind of value at shapes that have both whole tiles and edges. */
static void test_combinations(struct bench *b)
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
    finish(b, "every layout, type, start and kind of value");
}

/* Where blocks of k begin and end. */
static void test_depths(struct bench *b)
{
    static const int64_t depths[] = {
        31, 32, 63, 64, 127, 128, 129, 160, 161, 256, 257, 511, 512, 513, 1025, 2700};
    static const struct shape shapes[] = {{1, 3, 0}, {15, 34, 0}, {17, 26, 0}, {64, 7, 0}};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++, count++)
            check_numbered(b, (struct shape){shapes[j].m, shapes[j].n, depths[i]}, count, 1);
    finish(b, "every block of k");
}

/* More rows and columns than one block holds, and teams. */
static void test_teams(struct bench *b)
{
    static const struct shape shapes[] = {
        {1, 700, 190}, {5, 130, 260}, {40, 37, 100}, {300, 3, 150}, {190, 41, 90}, {64, 64, 70}};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int threads = 1; threads <= MOST_THREADS; threads++, count++)
            check_numbered(b, shapes[i], count, threads);
    check_numbered(b, (struct shape){3, 1200, 40}, 0, 2);
    finish(b, "teams of 1, 2 and 3 threads");
}

/* Any rows and columns made alone have the bits they have in the whole. */
static void test_sub_blocks(struct bench *b)
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
    finish(b, "rows and columns made apart have the bits of the whole");
}

/* Consecutive GEMM_CHAIN calls over pieces of k continue one chain. */
static void test_split_depth(struct bench *b)
{
    for (int trial = 0; trial < 60; trial++) {
        const struct shape s = {1 + random_below(&b->random, 70), 1 + random_below(&b->random, 70),
            3 + random_below(&b->random, 300)};
        struct gemm_args args = make_case(
            b, (enum gemm_layout)(trial % 3), GEMM_CHAIN, DTYPE_F32, DTYPE_F32, s, WIDE, trial % 3);
        isa_force((enum isa)(trial % ISA_COUNT));
        memcpy(b->want, b->start, (size_t)b->c_floats * 4);
        naive(&args, b->start + args.ldc, b->want + args.ldc);
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
    finish(b, "k cut into consecutive chained calls");
}

/* ---- indices beyond 2^31 elements ---------------------------------------------------------------
 */

/* Address space only: pages appear where they are touched. */
static void *sparse_create(int64_t bytes)
{
    void *pages = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

enum { FAR_ROWS = 5, FAR_COLUMNS = 21 };
#define FAR_LD ((int64_t)1 << 29 | 37) /* row 4 begins beyond 2^31 elements */

static void far_fill(struct bench *b, uint16_t *to)
{
    for (int64_t row = 0; row < FAR_ROWS; row++)
        fill(b, to + row * FAR_LD, DTYPE_BF16, FAR_COLUMNS, ORDINARY);
}

/* All three matrices have 5 rows or columns of 21, each row 2^29 elements from the next. */
static bool far_case(struct bench *b, enum gemm_layout layout, uint16_t *a, uint16_t *w, float *c)
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
                if (!same(c[m * FAR_LD + n], naive_element(&args, m, n, 0.0f)))
                    return false;
    }
    return true;
}

static void test_far_indices(struct bench *b)
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

/* ---- without memory -----------------------------------------------------------------------------
 */

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* A child may grow by less than the scratch needs. It must come before any product of this process,
 * whose scratch the child would inherit. */
static void test_without_memory(struct bench *b)
{
#ifdef SANITIZED
    (void)b;
    tap_skip("a sanitizer needs memory of its own", "a product without scratch");
#else
    struct gemm_args args = make_case(
        b, GEMM_TN, GEMM_ADD, DTYPE_F32, DTYPE_BF16, (struct shape){60, 90, 700}, WIDE, 1);
    memcpy(b->want, b->start, (size_t)b->c_floats * 4);
    naive(&args, b->start + args.ldc, b->want + args.ldc);
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

/* ---- what a launch says of itself ---------------------------------------------------------------
 */

static void test_kernel(struct bench *b)
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
    struct bench b = {.random = 20240601};
    const int64_t floats = 1 << 20;
    b.a = fenced_create(4 * floats);
    b.b = fenced_create(4 * floats);
    b.c = fenced_create(4 * floats);
    b.start = malloc(4 * (size_t)floats);
    b.want = malloc(4 * (size_t)floats);
    if (!b.start || !b.want)
        return 1;
    test_without_memory(&b);
    b.pool = dev_pool_create(MOST_THREADS);
    if (!b.pool)
        return 1;
    test_kernel(&b);
    test_edges(&b);
    test_combinations(&b);
    test_depths(&b);
    test_teams(&b);
    test_sub_blocks(&b);
    test_split_depth(&b);
    test_far_indices(&b);
    dev_pool_free(b.pool);
    free(b.start);
    free(b.want);
    fenced_free(&b.a);
    fenced_free(&b.b);
    fenced_free(&b.c);
    return tap_done();
}
