/* The matrix product against OpenBLAS: squares, few rows, and the shapes of a vocabulary
 * projection.
 *
 * OpenBLAS may round in any order; ours keeps one written order and must not pay for it. The bars
 * of the few-rows products are above 1 because OpenBLAS packs B where reading it in place is
 * cheaper. Before anything is timed, both results are checked: ours against the written order, bit
 * by bit, OpenBLAS's within the bound of any order. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/peers.h"
#include "kernels/gemm.h"
#include "probe/seed.h"

/* ---- OpenBLAS ---------------------------------------------------------------------------- */

enum { CBLAS_ROW_MAJOR = 101, CBLAS_AS_STORED = 111, CBLAS_TRANSPOSED = 112 };

struct openblas {
    void (*sgemm)(int order, int a_turned, int b_turned, int m, int n, int k, float alpha,
        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*set_num_threads)(int threads);
    char *(*get_corename)(void);
};

static int openblas_load(struct openblas *out)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "peers: OpenBLAS cannot be loaded: %s (Debian: libopenblas0)\n", dlerror());
        return -1;
    }
    *(void **)&out->sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&out->set_num_threads = dlsym(library, "openblas_set_num_threads");
    *(void **)&out->get_corename = dlsym(library, "openblas_get_corename");
    if (out->sgemm && out->set_num_threads && out->get_corename) {
        printf("OpenBLAS kernel: %s\n", out->get_corename());
        return 0;
    }
    fprintf(stderr, "peers: libopenblas.so.0 lacks cblas_sgemm, openblas_set_num_threads or "
                    "openblas_get_corename\n");
    return -1;
}

/* ---- operands ---------------------------------------------------------------------------- */

struct shape {
    const char *name;
    enum gemm_layout layout;
    enum gemm_init init; /* GEMM_FRESH or GEMM_CHAIN (beta = 1) */
    int64_t m, n, k;
};

/* One set for all shapes: A, B and C of the largest, once as FP32 and once as BF16. */
struct operands {
    float *a, *b, *c;
    uint16_t *a_bf16, *b_bf16;
};

enum { MOST_A = 2048 * 2048, MOST_B = 1024 * 8192, MOST_C = 1024 * 8192 };

static void operands_free(struct operands *o)
{
    free(o->a);
    free(o->b);
    free(o->c);
    free(o->a_bf16);
    free(o->b_bf16);
}

static int operands_create(struct operands *o)
{
    *o = (struct operands){.a = aligned_alloc(4096, (size_t)MOST_A * 4),
        .b = aligned_alloc(4096, (size_t)MOST_B * 4),
        .c = aligned_alloc(4096, (size_t)MOST_C * 4),
        .a_bf16 = aligned_alloc(4096, (size_t)MOST_A * 2),
        .b_bf16 = aligned_alloc(4096, (size_t)MOST_B * 2)};
    if (!o->a || !o->b || !o->c || !o->a_bf16 || !o->b_bf16) {
        fprintf(stderr, "peers: no memory for the operands\n");
        operands_free(o);
        return -1;
    }
    seed_fill_f32(o->a, 1, 0, 0, MOST_A, 1.0f);
    seed_fill_f32(o->b, 1, 1, 0, MOST_B, 1.0f);
    seed_fill_bf16(o->a_bf16, 1, 0, 0, MOST_A, 1.0f);
    seed_fill_bf16(o->b_bf16, 1, 1, 0, MOST_B, 1.0f);
    memset(o->c, 0, (size_t)MOST_C * 4);
    return 0;
}

static struct gemm_args args_of(const struct shape *s, const struct operands *o, enum dtype dtype)
{
    return (struct gemm_args){.layout = s->layout,
        .init = s->init,
        .a_type = dtype,
        .b_type = dtype,
        .m = s->m,
        .n = s->n,
        .k = s->k,
        .a = dtype == DTYPE_BF16 ? (const void *)o->a_bf16 : o->a,
        .lda = s->layout == GEMM_TN ? s->m : s->k,
        .b = dtype == DTYPE_BF16 ? (const void *)o->b_bf16 : o->b,
        .ldb = s->layout == GEMM_NT ? s->k : s->n,
        .c = o->c,
        .ldc = s->n};
}

/* ---- contestants ------------------------------------------------------------------------- */

struct side {
    struct gemm_args args;
    int threads;
    struct dev_pool *pool;
    const struct openblas *openblas;
};

static void run_team(void *args, const struct dev_team *team)
{
    gemm_cpu(args, team);
}

static void run_ours(void *context)
{
    struct side *side = context;
    if (side->threads == 1)
        gemm_cpu(&side->args, NULL);
    else
        dev_pool_run(side->pool, side->threads, run_team, &side->args);
}

static void run_openblas(void *context)
{
    const struct side *side = context;
    const struct gemm_args *g = &side->args;
    side->openblas->set_num_threads(side->threads);
    side->openblas->sgemm(CBLAS_ROW_MAJOR,
        g->layout == GEMM_TN ? CBLAS_TRANSPOSED : CBLAS_AS_STORED,
        g->layout == GEMM_NT ? CBLAS_TRANSPOSED : CBLAS_AS_STORED, (int)g->m, (int)g->n, (int)g->k,
        1.0f, g->a, (int)g->lda, g->b, (int)g->ldb, g->init == GEMM_CHAIN ? 1.0f : 0.0f, g->c,
        (int)g->ldc);
}

/* ---- checking ---------------------------------------------------------------------------- */

enum { CHECKED = 200 };

static float element(const void *data, enum dtype type, int64_t index)
{
    return type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)data)[index])
                              : ((const float *)data)[index];
}

/* Elements drawn from all of C. Exact: equal to the written chain. Else within gamma of any order.
 */
static bool check(struct side *side, void (*run)(void *), bool exact)
{
    const struct gemm_args *g = &side->args;
    const bool a_turned = g->layout == GEMM_TN, b_turned = g->layout == GEMM_NT;
    memset(g->c, 0, (size_t)(g->m * g->n) * sizeof *g->c);
    run(side);
    for (int64_t i = 0; i < CHECKED; i++) {
        const int64_t m = seed_index(2, 0, i, g->m), n = seed_index(2, 1, i, g->n);
        float chain = 0.0f;
        double sum = 0.0, magnitude = 0.0;
        for (int64_t k = 0; k < g->k; k++) {
            const float a = element(g->a, g->a_type, a_turned ? k * g->lda + m : m * g->lda + k);
            const float b = element(g->b, g->b_type, b_turned ? n * g->ldb + k : k * g->ldb + n);
            chain = fmaf(a, b, chain);
            sum += (double)a * b;
            magnitude += fabs((double)a * b);
        }
        const float got = g->c[m * g->ldc + n];
        const double gamma = (double)(g->k + 1) * 0x1p-24 * 1.01;
        if (exact ? f32_bits(got) != f32_bits(chain) : !(fabs(got - sum) <= gamma * magnitude))
            return false;
    }
    return true;
}

/* ---- bars -------------------------------------------------------------------------------- */

struct bar {
    struct shape shape;
    double least;      /* against OpenBLAS */
    double least_bf16; /* BF16 inputs against our own FP32; 0 = no bar */
    double least_two;  /* two threads against one; 0 = no bar */
};

struct bench {
    struct peers *peers;
    struct operands operands;
    struct openblas openblas;
};

static struct side side_of(
    struct bench *bench, const struct shape *shape, enum dtype dtype, int threads)
{
    return (struct side){
        args_of(shape, &bench->operands, dtype), threads, bench->peers->pool, &bench->openblas};
}

/* Both results right, then both times. */
static void measure(struct bench *bench, const char *name, struct side *ours, struct side *other,
    const char *other_name, void (*run_other)(void *), double least)
{
    struct peers *peers = bench->peers;
    if (!peers_wants(peers, name))
        return;
    if (ours->threads > peers->cpu_count) {
        peers_skip(peers, name, "one CPU");
        return;
    }
    if (!check(ours, run_ours, true)) {
        peers_fault(peers, name, "the product is not the written chain");
        return;
    }
    if (!check(other, run_other, run_other == run_ours)) {
        peers_fault(peers, name, "the peer's product is outside its bound");
        return;
    }
    const struct gemm_args *g = &ours->args;
    peers_bar(peers, name,
        &(struct peers_contestant){
            .name = "ours", .run = run_ours, .context = ours, .threads = ours->threads},
        &(struct peers_contestant){
            .name = other_name, .run = run_other, .context = other, .threads = other->threads},
        2.0 * (double)g->m * (double)g->n * (double)g->k, "GF", least);
}

static void measure_shape(struct bench *bench, const struct bar *bar)
{
    const struct shape *shape = &bar->shape;
    char name[80];
    for (int threads = 1; threads <= 2; threads++) {
        struct side ours = side_of(bench, shape, DTYPE_F32, threads);
        struct side other = ours;
        snprintf(
            name, sizeof name, "%s: %d thread%s", shape->name, threads, threads > 1 ? "s" : "");
        measure(bench, name, &ours, &other, "OpenBLAS", run_openblas, bar->least);
    }
    for (int threads = 1; threads <= 2 && bar->least_bf16 > 0; threads++) {
        struct side ours = side_of(bench, shape, DTYPE_BF16, threads);
        struct side other = side_of(bench, shape, DTYPE_F32, threads);
        snprintf(name, sizeof name, "%s BF16: %d thread%s", shape->name, threads,
            threads > 1 ? "s" : "");
        measure(bench, name, &ours, &other, "ours, FP32", run_ours, bar->least_bf16);
    }
    if (bar->least_two > 0) {
        struct side ours = side_of(bench, shape, DTYPE_F32, 2);
        struct side other = side_of(bench, shape, DTYPE_F32, 1);
        snprintf(name, sizeof name, "%s: 2 threads over 1", shape->name);
        measure(bench, name, &ours, &other, "ours, 1 thread", run_ours, bar->least_two);
    }
}

static int measure_all(struct peers *peers, const struct bar *bars, int count)
{
    struct bench bench = {.peers = peers};
    if (openblas_load(&bench.openblas) || operands_create(&bench.operands))
        return -1;
    for (int i = 0; i < count; i++)
        measure_shape(&bench, &bars[i]);
    operands_free(&bench.operands);
    return 0;
}

int peers_gemm_avx512(struct peers *peers)
{
    static const struct bar bars[] = {
        {{"square 512 NN", GEMM_NN, GEMM_FRESH, 512, 512, 512}, 0.90, 0.95, 1.8},
        {{"square 512 NT", GEMM_NT, GEMM_FRESH, 512, 512, 512}, 0.90, 0.95, 1.8},
        {{"square 512 TN", GEMM_TN, GEMM_FRESH, 512, 512, 512}, 0.90, 0.95, 1.8},
        {{"square 1024 NN", GEMM_NN, GEMM_FRESH, 1024, 1024, 1024}, 0.90, 0.95, 1.8},
        {{"square 1024 NT", GEMM_NT, GEMM_FRESH, 1024, 1024, 1024}, 0.90, 0.95, 1.8},
        {{"square 1024 TN", GEMM_TN, GEMM_FRESH, 1024, 1024, 1024}, 0.90, 0.95, 1.8},
        {{"square 2048 NN", GEMM_NN, GEMM_FRESH, 2048, 2048, 2048}, 0.90, 0.95, 1.8},
        {{"square 2048 NT", GEMM_NT, GEMM_FRESH, 2048, 2048, 2048}, 0.90, 0.95, 1.8},
        {{"square 2048 TN", GEMM_TN, GEMM_FRESH, 2048, 2048, 2048}, 0.90, 0.95, 1.8},
        {{"rows 8x2816x1024 NN", GEMM_NN, GEMM_FRESH, 8, 2816, 1024}, 1.20, 0.95, 0},
        {{"rows 16x2816x1024 NN", GEMM_NN, GEMM_FRESH, 16, 2816, 1024}, 1.20, 0.95, 0},
        {{"rows 32x2816x1024 NN", GEMM_NN, GEMM_FRESH, 32, 2816, 1024}, 1.20, 0.95, 0},
        {{"rows 8x2816x1024 NT", GEMM_NT, GEMM_FRESH, 8, 2816, 1024}, 1.15, 0.95, 0},
        {{"rows 16x2816x1024 NT", GEMM_NT, GEMM_FRESH, 16, 2816, 1024}, 1.15, 0.95, 0},
        {{"rows 32x2816x1024 NT", GEMM_NT, GEMM_FRESH, 32, 2816, 1024}, 1.15, 0.95, 0},
        {{"vocabulary 512x8192x1024 NN", GEMM_NN, GEMM_FRESH, 512, 8192, 1024}, 0.92, 0.95, 1.8},
        {{"vocabulary 512x8192x1024 NT", GEMM_NT, GEMM_FRESH, 512, 8192, 1024}, 0.92, 0.95, 1.8},
        {{"vocabulary 1024x8192x512 TN add", GEMM_TN, GEMM_CHAIN, 1024, 8192, 512}, 0.87, 0.95,
            1.8},
        {{"add 1024x2816x256 TN", GEMM_TN, GEMM_CHAIN, 1024, 2816, 256}, 0.88, 0.95, 0},
        {{"add 1024x2816x128 TN", GEMM_TN, GEMM_CHAIN, 1024, 2816, 128}, 0.88, 0.95, 0},
        {{"add 1024x2816x32 TN", GEMM_TN, GEMM_CHAIN, 1024, 2816, 32}, 0.82, 0.95, 0},
        {{"add 1024x2816x8 TN", GEMM_TN, GEMM_CHAIN, 1024, 2816, 8}, 0.65, 0.95, 0},
    };
    return measure_all(peers, bars, sizeof bars / sizeof *bars);
}

int peers_gemm_avx2(struct peers *peers)
{
    static const struct bar bars[] = {
        {{"square 512 NN", GEMM_NN, GEMM_FRESH, 512, 512, 512}, 0.90, 0, 0},
        {{"square 512 NT", GEMM_NT, GEMM_FRESH, 512, 512, 512}, 0.90, 0, 0},
        {{"square 512 TN", GEMM_TN, GEMM_FRESH, 512, 512, 512}, 0.90, 0, 0},
        {{"square 1024 NN", GEMM_NN, GEMM_FRESH, 1024, 1024, 1024}, 0.90, 0, 0},
        {{"square 1024 NT", GEMM_NT, GEMM_FRESH, 1024, 1024, 1024}, 0.90, 0, 0},
        {{"square 1024 TN", GEMM_TN, GEMM_FRESH, 1024, 1024, 1024}, 0.90, 0, 0},
        {{"square 2048 NN", GEMM_NN, GEMM_FRESH, 2048, 2048, 2048}, 0.90, 0, 0},
        {{"square 2048 NT", GEMM_NT, GEMM_FRESH, 2048, 2048, 2048}, 0.90, 0, 0},
        {{"square 2048 TN", GEMM_TN, GEMM_FRESH, 2048, 2048, 2048}, 0.90, 0, 0},
        {{"rows 8x2816x1024 NN", GEMM_NN, GEMM_FRESH, 8, 2816, 1024}, 0.90, 0, 0},
        {{"rows 16x2816x1024 NN", GEMM_NN, GEMM_FRESH, 16, 2816, 1024}, 0.90, 0, 0},
        {{"rows 32x2816x1024 NN", GEMM_NN, GEMM_FRESH, 32, 2816, 1024}, 0.90, 0, 0},
        {{"rows 8x2816x1024 NT", GEMM_NT, GEMM_FRESH, 8, 2816, 1024}, 0.87, 0, 0},
        {{"rows 16x2816x1024 NT", GEMM_NT, GEMM_FRESH, 16, 2816, 1024}, 0.87, 0, 0},
        {{"rows 32x2816x1024 NT", GEMM_NT, GEMM_FRESH, 32, 2816, 1024}, 0.87, 0, 0},
        {{"vocabulary 512x8192x1024 NN", GEMM_NN, GEMM_FRESH, 512, 8192, 1024}, 0.90, 0, 0},
        {{"vocabulary 512x8192x1024 NT", GEMM_NT, GEMM_FRESH, 512, 8192, 1024}, 0.90, 0, 0},
        {{"vocabulary 1024x8192x512 TN add", GEMM_TN, GEMM_CHAIN, 1024, 8192, 512}, 0.90, 0, 0},
    };
    return measure_all(peers, bars, sizeof bars / sizeof *bars);
}
