#include "tests/gemm_case.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "kernels/gemm_isa.h"
#include "kernels/isa.h"
#include "kernels/isa_variants.h"
#include "tests/tap.h"

ISA_DECLARE(struct gemm_variant, gemm_variant);
static const struct gemm_variant *const variants[ISA_COUNT] = ISA_TABLE(gemm_variant);

enum { PAGE = 4096 };
#define GUARD 0x5eedfaceu /* a value that no product makes */

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

int64_t random_below(uint64_t *state, int64_t bound)
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

/* ---- a case ------------------------------------------------------------------------------ */

static int64_t operand_elements(int64_t rows, int64_t columns, int64_t ld)
{
    return rows && columns ? (rows - 1) * ld + columns : 0;
}

void fill_values(struct gemm_bench *b, void *to, enum dtype type, int64_t count, enum values values)
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
struct gemm_args make_case(struct gemm_bench *b, enum gemm_layout layout, enum gemm_init init,
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
    fill_values(b, a, a_type, a_count, values);
    fill_values(b, bb, b_type, b_count, values);
    args.a = a;
    args.b = bb;
    b->c_floats = operand_elements(s.m + 2, args.ldc, args.ldc);
    fenced_end(&b->c, b->c_floats * 4);
    for (int64_t i = 0; i < b->c_floats; i++)
        b->start[i] = f32_from_bits(GUARD);
    for (int64_t m = 0; m < s.m; m++)
        fill_values(b, b->start + (m + 1) * args.ldc, DTYPE_F32, s.n, values);
    args.c = (float *)fenced_end(&b->c, b->c_floats * 4) + args.ldc;
    return args;
}

static float element(const void *data, enum dtype type, int64_t index)
{
    return type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)data)[index])
                              : ((const float *)data)[index];
}

float naive_element(const struct gemm_args *g, int64_t m, int64_t n, float c)
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

void naive(struct gemm_bench *b, const struct gemm_args *args)
{
    const float *start = b->start + args->ldc;
    float *want = b->want + args->ldc;
    memcpy(b->want, b->start, (size_t)b->c_floats * 4);
    for (int64_t m = 0; m < args->m; m++)
        for (int64_t n = 0; n < args->n; n++)
            want[m * args->ldc + n] = naive_element(args, m, n, start[m * args->ldc + n]);
}

bool same_value(float got, float want)
{
    return f32_bits(got) == f32_bits(want) || (got != got && want != want);
}

void restore(struct gemm_bench *b, const struct gemm_args *args)
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
void compare(struct gemm_bench *b, const struct gemm_args *args, const char *how)
{
    const float *got = args->c - args->ldc;
    b->compared++;
    for (int64_t i = 0; i < b->c_floats; i++)
        if (!same_value(got[i], b->want[i])) {
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

void run_threads(struct gemm_bench *b, struct gemm_args *args, int threads)
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
void check_case(struct gemm_bench *b, struct gemm_args args, int threads)
{
    char how[64];
    naive(b, &args);
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

void report(struct gemm_bench *b, const char *what)
{
    tap_ok(!b->differ && b->compared, "%s: %lld products, %lld differ", what,
        (long long)b->compared, (long long)b->differ);
    b->compared = b->differ = 0;
}

/* ---- the bench ------------------------------------------------------------------------------- */

static void *allocate(int64_t floats)
{
    void *block = malloc((size_t)floats * 4);
    if (!block) {
        perror("malloc");
        exit(1);
    }
    return block;
}

void gemm_bench_create(struct gemm_bench *b, int64_t floats, uint64_t seed)
{
    *b = (struct gemm_bench){.a = fenced_create(4 * floats),
        .b = fenced_create(4 * floats),
        .c = fenced_create(4 * floats),
        .start = allocate(floats),
        .want = allocate(floats),
        .random = seed};
}

void gemm_bench_start_pool(struct gemm_bench *b, int threads)
{
    b->pool = dev_pool_create(threads);
    if (!b->pool) {
        fprintf(stderr, "no pool of %d threads\n", threads);
        exit(1);
    }
}

void gemm_bench_free(struct gemm_bench *b)
{
    dev_pool_free(b->pool);
    free(b->start);
    free(b->want);
    fenced_free(&b->a);
    fenced_free(&b->b);
    fenced_free(&b->c);
}
