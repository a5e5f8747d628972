/* The fast path of products: our tensor-core product against the CPU's bits where whole numbers
 * leave no choice of them, which way a product goes, and the audit: it passes what the path makes,
 * finds an element that is wrong, and counts what it has seen. */
#include "tests/cuda_case.cuh"
extern "C" {
#include "kernels/gemm_audit.h"
#include "kernels/gemm_fast.h"
}

/* ---- products -------------------------------------------------------------------------------- */

struct product {
    enum gemm_layout layout;
    enum gemm_init init;
    enum dtype a_type;
    int64_t m, n, k, padding; /* elements between rows of every matrix */
    int skew;
};

static int add_product(struct cuda_case *c, struct gemm_args *args, const struct product &p)
{
    const bool a_turned = p.layout == GEMM_TN, b_turned = p.layout == GEMM_NT;
    args->layout = p.layout;
    args->init = p.init;
    args->a_type = p.a_type;
    args->b_type = DTYPE_BF16;
    args->a_rounded = p.a_type == DTYPE_F32;
    args->m = p.m;
    args->n = p.n;
    args->k = p.k;
    args->lda = (a_turned ? p.m : p.k) + p.padding;
    args->ldb = (b_turned ? p.k : p.n) + p.padding;
    args->ldc = p.n + p.padding;
    const int a = add_typed(c, p.a_type, (a_turned ? p.k : p.m) * args->lda, 1, 0);
    point(c, &args->a, a);
    point(c, &args->b, add_typed(c, DTYPE_BF16, (b_turned ? p.n : p.k) * args->ldb, 2, 0));
    const int result = add_typed(c, DTYPE_F32, p.m * args->ldc, 3, 0);
    point(c, &args->c, result);
    float *values = (float *)c->arrays[a].host;
    for (int64_t i = 0; p.a_type == DTYPE_F32 && i < c->arrays[a].bytes / 4; i++)
        values[i] = bf16_to_f32(f32_to_bf16(values[i]));
    return result;
}

static void make_whole(struct cuda_case *c)
{
    for (int i = 0; i < c->array_count; i++) {
        const struct case_array *array = &c->arrays[i];
        for (int64_t at = 0; at < array->bytes / element_bytes_of(array->content); at++) {
            const float value = (float)(mixed((uint32_t)(i * 1000003 + at)) % 7) - 3.0f;
            if (array->content == CONTENT_F32)
                ((float *)array->host)[at] = value;
            else
                ((uint16_t *)array->host)[at] = f32_to_bf16(value);
        }
    }
}

static int tensor_product(const void *args, void *stream)
{
    return gemm_tensor_cuda((const struct gemm_args *)args, stream);
}

static void test_tensor_product(void)
{
    static const int64_t sizes[][3] = {{5, 130, 33}, {140, 9, 70}, {64, 72, 32}, {1, 1, 1}};
    struct kernel tensor = kernel_gemm;
    int64_t faults = 0;
    tensor.cuda = tensor_product;
    for (int number = 0; number < 24; number++) {
        const int64_t *size = sizes[number % 4];
        const struct product p = {(enum gemm_layout)(number % 3), (enum gemm_init)(number / 3 % 3),
            (enum dtype)(number / 2 % 2), size[0], size[1], size[2], number % 5 == 1 ? 8 : 0,
            number % 4 == 3};
        struct gemm_args args;
        struct cuda_case c = begin_case(&tensor, &args, p.skew);
        add_product(&c, &args, p);
        make_whole(&c);
        faults += run_case(&c);
    }
    tap_ok(
        !faults, "our product on tensor cores, of whole numbers: layouts, starts, FP32 narrowed");
}

/* ---- ways ------------------------------------------------------------------------------------ */

static enum gemm_way way_of(enum dtype a_type, enum dtype b_type, bool rounded, int64_t width)
{
    struct gemm_args args = {};
    args.a_type = a_type;
    args.b_type = b_type;
    args.a_rounded = rounded;
    args.m = args.n = args.k = args.lda = args.ldb = args.ldc = width;
    return gemm_fast_way(&args);
}

static void test_ways(void)
{
    gemm_fast_use(GEMM_PATH_EXACT, 0);
    const bool exact = way_of(DTYPE_BF16, DTYPE_BF16, false, 64) == GEMM_WAY_EXACT &&
                       !gemm_fast_takes_experts(DTYPE_BF16);
    gemm_fast_use(GEMM_PATH_FAST, 0);
    tap_ok(exact && way_of(DTYPE_BF16, DTYPE_BF16, false, 64) == GEMM_WAY_LIBRARY &&
               way_of(DTYPE_BF16, DTYPE_BF16, false, 63) == GEMM_WAY_ODD &&
               way_of(DTYPE_F32, DTYPE_BF16, true, 64) == GEMM_WAY_OWN &&
               way_of(DTYPE_F32, DTYPE_BF16, false, 64) == GEMM_WAY_EXACT &&
               way_of(DTYPE_F32, DTYPE_F32, true, 64) == GEMM_WAY_EXACT &&
               gemm_fast_takes_experts(DTYPE_BF16) && !gemm_fast_takes_experts(DTYPE_F32),
        "each product goes the way that kernels/gemm_fast.h states");
}

/* ---- audits ---------------------------------------------------------------------------------- */

/* Uploads the case, makes it on the audited path, frees it. Gives how many elements of array
 * `result` differ from the exact ones. */
static int64_t run_audited(struct cuda_case *c, int result)
{
    upload(c);
    set_pointers(c, true);
    must((cudaError_t)c->kernel->cuda(c->args, NULL), c->kernel->name);
    must(cudaDeviceSynchronize(), c->kernel->name);
    set_pointers(c, false);
    c->kernel->cpu(c->args, NULL);
    const struct case_array *array = &c->arrays[result];
    char *got = (char *)malloc((size_t)array->bytes);
    int64_t differ = 0;
    must(got ? cudaMemcpy(got, array->device, (size_t)array->bytes, cudaMemcpyDeviceToHost)
             : cudaErrorMemoryAllocation,
        "the result");
    for (int64_t i = 0; i < array->bytes / element_bytes_of(array->content); i++)
        differ += canonical(array, got, i) != canonical(array, array->host, i);
    free(got);
    for (int i = 0; i < c->array_count; i++) {
        must(cudaFree(c->arrays[i].device), "cudaFree");
        free(c->arrays[i].host);
    }
    return differ;
}

static bool passes(const struct gemm_tally *tally, int64_t elements)
{
    const bool good = tally->elements == elements && !tally->outside && !tally->unaudited &&
                      tally->worst > 0 && tally->worst < 0.75;
    if (!good)
        tap_note("%lld elements, %lld outside, %lld unaudited, worst %g",
            (long long)tally->elements, (long long)tally->outside, (long long)tally->unaudited,
            tally->worst);
    return good;
}

static void test_audited_products(void)
{
    struct gemm_tally tally;
    int64_t elements = 0, differ = 0;
    gemm_fast_use(GEMM_PATH_AUDITED, 0);
    for (int number = 0; number < 18; number++) {
        const struct product p = {(enum gemm_layout)(number % 3), (enum gemm_init)(number / 3 % 3),
            (enum dtype)(number / 9), 72, 136, 56, number % 4 == 1 ? 3 : 8, 0};
        struct gemm_args args;
        struct cuda_case c = begin_case(&kernel_gemm, &args, p.skew);
        const int result = add_product(&c, &args, p);
        differ += run_audited(&c, result);
        elements += p.m * p.n;
    }
    tap_ok(!gemm_fast_tally(&tally) && passes(&tally, elements) && differ > 0,
        "audited products are within their bound, and not exact");
    tap_ok(tally.own == 9 && tally.library > 0 && tally.odd > 0 && !tally.exact &&
               tally.library + tally.odd == 9,
        "the tally counts each way");
}

static const struct expert_group groups[] = {
    {0, 70, 1, GEMM_FRESH}, {70, 0, 0, GEMM_FRESH}, {70, 33, 3, GEMM_CHAIN}, {103, 5, 2, GEMM_ADD}};
enum { GROUPS = 4, ROWS = 108, MATRICES = 4, OWNED = 3 };

static void point_matrices(
    struct cuda_case *c, struct expert_matrices *m, int64_t elements, uint32_t seed)
{
    const int array = add_typed(c, DTYPE_BF16, MATRICES * elements, seed, 0);
    point(c, &m->owned, array);
    point_at(c, &m->lent, array, OWNED * elements);
    m->owned_count = OWNED;
    m->lent_count = MATRICES - OWNED;
}

static int64_t matmul_differ(enum gemm_layout layout, enum dtype out_type, bool then)
{
    struct expert_matmul_args args;
    struct cuda_case c = begin_case(&kernel_expert_matmul, &args, 0);
    args.group_count = GROUPS;
    args.rows = ROWS;
    args.n = 72;
    args.k = 40;
    args.layout = layout;
    args.type = DTYPE_BF16;
    args.out_type = out_type;
    point(&c, &args.groups, add_bytes(&c, groups, (int64_t)sizeof groups));
    point(&c, &args.a, add_typed(&c, DTYPE_BF16, ROWS * args.k, 1, 0));
    point_matrices(&c, &args.weights, args.n * args.k, 2);
    if (then)
        point(&c, &args.a_then, add_typed(&c, DTYPE_BF16, ROWS * args.k, 3, 0));
    point_matrices(&c, &args.weights_then, args.n * args.k, 4);
    const int out = add_typed(&c, out_type, ROWS * args.n, 5, 0);
    point(&c, &args.out, out);
    return run_audited(&c, out);
}

static int64_t gradient_differ(void)
{
    struct expert_gradient_args args;
    struct cuda_case c = begin_case(&kernel_expert_gradient, &args, 0);
    args.group_count = GROUPS;
    args.rows = ROWS;
    args.m = 40;
    args.n = 72;
    args.type = DTYPE_BF16;
    args.owned_count = OWNED;
    args.lent_count = MATRICES - OWNED;
    point(&c, &args.groups, add_bytes(&c, groups, (int64_t)sizeof groups));
    point(&c, &args.a, add_typed(&c, DTYPE_BF16, ROWS * args.m, 1, 0));
    point(&c, &args.b, add_typed(&c, DTYPE_BF16, ROWS * args.n, 2, 0));
    const int gradients = add_typed(&c, DTYPE_F32, MATRICES * args.m * args.n, 3, 0);
    point(&c, &args.owned, gradients);
    point_at(&c, &args.lent, gradients, OWNED * args.m * args.n);
    return run_audited(&c, gradients);
}

static void test_audited_experts(void)
{
    struct gemm_tally tally;
    int64_t differ = 0;
    gemm_fast_use(GEMM_PATH_AUDITED, 0);
    for (int number = 0; number < 4; number++)
        differ += matmul_differ(number & 1 ? GEMM_NT : GEMM_NN, number & 2 ? DTYPE_F32 : DTYPE_BF16,
            number == 1 || number == 2);
    differ += gradient_differ();
    tap_ok(!gemm_fast_tally(&tally) && passes(&tally, 4 * ROWS * 72 + GROUPS * 40 * 72) &&
               differ > 0 && tally.own == 5,
        "audited expert products and gradients, too");
}

static void test_sample(void)
{
    struct gemm_tally tally;
    gemm_fast_use(GEMM_PATH_AUDITED, 2);
    const struct product p = {GEMM_NT, GEMM_FRESH, DTYPE_BF16, 200, 130, 24, 6, 0};
    struct gemm_args args;
    struct cuda_case c = begin_case(&kernel_gemm, &args, 0);
    run_audited(&c, add_product(&c, &args, p));
    tap_ok(!gemm_fast_tally(&tally) && passes(&tally, 64 * 64 + 64 * 64),
        "a sample of two tiles is two tiles");
}

/* ---- what an audit finds --------------------------------------------------------------------- */

enum { SMALL = 8 };

/* A product of ones, SMALL in each direction, whose element 5 of C holds `planted`. Every element
 * should be SMALL. Gives how many are outside, -1 when others than all were looked at. */
static int64_t outside(float planted, float a_value)
{
    uint16_t ones[SMALL * SMALL], *operands = NULL;
    float result[SMALL * SMALL], *c = NULL;
    struct audit_tally told = {}, *tally = NULL;
    for (int i = 0; i < SMALL * SMALL; i++) {
        ones[i] = f32_to_bf16(a_value);
        result[i] = (float)SMALL * bf16_to_f32(ones[i]) * bf16_to_f32(ones[i]);
    }
    result[5] = planted;
    must(cudaMalloc((void **)&operands, sizeof ones), "cudaMalloc");
    must(cudaMalloc((void **)&c, sizeof result), "cudaMalloc");
    must(cudaMalloc((void **)&tally, sizeof told), "cudaMalloc");
    must(cudaMemcpy(operands, ones, sizeof ones, cudaMemcpyHostToDevice), "ones");
    must(cudaMemcpy(c, result, sizeof result, cudaMemcpyHostToDevice), "the result");
    must(cudaMemset(tally, 0, sizeof told), "a tally");
    struct gemm_args args = {};
    args.layout = GEMM_NN;
    args.a_type = args.b_type = DTYPE_BF16;
    args.m = args.n = args.k = args.lda = args.ldb = args.ldc = SMALL;
    args.a = args.b = operands;
    args.c = c;
    must((cudaError_t)gemm_audit(&args, NULL, tally, 0, NULL), "the audit");
    must(cudaMemcpy(&told, tally, sizeof told, cudaMemcpyDeviceToHost), "the tally");
    must(cudaFree(operands), "cudaFree");
    must(cudaFree(c), "cudaFree");
    must(cudaFree(tally), "cudaFree");
    return a_value < 2 && told.elements != SMALL * SMALL ? -1 : (int64_t)told.outside;
}

/* A matrix product of one expert whose BF16 result should be `size`, and is `stored`. */
static int64_t outside_bf16(float size, uint16_t stored)
{
    const uint16_t values[2] = {f32_to_bf16(size), f32_to_bf16(1.0f)};
    const struct expert_group group = {0, 1, 0, 0};
    char *memory = NULL;
    struct audit_tally told = {};
    must(cudaMalloc((void **)&memory, 256), "cudaMalloc");
    must(cudaMemset(memory, 0, 256), "cudaMemset");
    must(cudaMemcpy(memory, &group, sizeof group, cudaMemcpyHostToDevice), "a group");
    must(cudaMemcpy(memory + 64, values, sizeof values, cudaMemcpyHostToDevice), "values");
    must(cudaMemcpy(memory + 96, &stored, sizeof stored, cudaMemcpyHostToDevice), "the result");
    struct expert_matmul_args args = {};
    args.groups = (const struct expert_group *)(void *)memory;
    args.group_count = args.rows = args.n = args.k = 1;
    args.type = args.out_type = DTYPE_BF16;
    args.a = memory + 64;
    args.weights.owned = memory + 66;
    args.weights.owned_count = 1;
    args.out = memory + 96;
    struct audit_tally *tally = (struct audit_tally *)(void *)(memory + 128);
    must((cudaError_t)expert_matmul_audit(&args, tally, 0, NULL), "the audit");
    must(cudaMemcpy(&told, tally, sizeof told, cudaMemcpyDeviceToHost), "the tally");
    must(cudaFree(memory), "cudaFree");
    return told.elements == 1 ? (int64_t)told.outside : -1;
}

static void test_findings(void)
{
    const float bound = (SMALL + 2) * 0x1.8p-23f * SMALL;
    tap_ok(outside(SMALL, 1) == 0 && outside(SMALL + 0.9f * bound, 1) == 0 &&
               outside(SMALL - 0.9f * bound, 1) == 0,
        "an element within the bound passes");
    tap_ok(outside(SMALL + 1.2f * bound, 1) == 1 && outside(SMALL - 1.2f * bound, 1) == 1 &&
               outside(0, 1) == 1 && outside(-SMALL, 1) == 1,
        "an element outside is found, and it alone");
    tap_ok(outside(NAN, 1) == 1 && outside(INFINITY, 1) == 1, "NaN and infinity are found");
    tap_ok(outside(0, 0x1p100f) == 0, "where sums pass the end of FP32 nothing is demanded");
    const uint16_t one = f32_to_bf16(1.0f);
    tap_ok(outside_bf16(1, one) == 0 && outside_bf16(1, (uint16_t)(one + 1)) == 1 &&
               outside_bf16(1, (uint16_t)(one - 1)) == 1 && outside_bf16(-1, one) == 1 &&
               outside_bf16(1, 0x7f80) == 1 && outside_bf16(0, 0) == 0 &&
               outside_bf16(0, 0x8000) == 0 && outside_bf16(0, 1) == 1,
        "a result stored in BF16 must be the nearest one");
}

int main(void)
{
    char error[256] = "";
    if (!device_found())
        return 0;
    test_tensor_product();
    test_findings();
    if (gemm_fast_open(error, sizeof error)) {
        tap_note("the fast path cannot be taken here: %s", error);
        tap_ok(strstr(error, "cuBLASLt") != NULL, "it is refused for want of cuBLASLt alone");
        return tap_done();
    }
    test_ways();
    test_audited_products();
    test_audited_experts();
    test_sample();
    return tap_done();
}
