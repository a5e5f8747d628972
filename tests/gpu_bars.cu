/* gpu_bars - how fast this GPU can be, and how near our kernels come to it
 *
 * Measures the ceilings (copies over the link in each direction and both, copies in device memory,
 * the FP32 and BF16 matrix rates of cuBLASLt at 4096 cubes), then our kernels beside them, and
 * holds them to their bars: the exact matrix product at 80 % of cuBLASLt's FP32 rate, a kernel that
 * only moves memory at 85 % of the copy in device memory. Each figure is the median of nine, after
 * one that is thrown away. bench/gpu_check.sh builds and runs it.
 *
 * Usage: gpu_bars [FILE]    FILE: the ceilings as JSON, for build/bin/bars
 *
 * Exit status: 0 every bar is met, 1 one is not, 3 no device or an error of the device. */
#include "kernels/launch.cuh"
#include <algorithm>
#include <errno.h>
#ifdef HAVE_CUBLASLT
#include <cublasLt.h>
#endif
extern "C" {
#include "kernels/adamw.h"
#include "kernels/gemm.h"
#include "kernels/rank_sum.h"
}

enum { EXIT_ENVIRONMENT = 3, SAMPLES = 9, CUBE = 4096 };
static const int64_t BUFFER_BYTES = (int64_t)1 << 30;
static const double GEMM_BAR = 0.80, MEMORY_BAR = 0.85;

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "gpu_bars: %s: %s\n", what, cudaGetErrorString(error));
    exit(EXIT_ENVIRONMENT);
}

struct bench {
    cudaStream_t stream, other;
    cudaEvent_t begin, end, side;
    char *a, *b, *c; /* device memory of BUFFER_BYTES each */
    char *pinned, *pinned_other;
    int missed;
    FILE *ceilings; /* JSON, or NULL */
    int written;
};

/* One repetition, enqueued on bench->stream. */
typedef void (*repetition)(struct bench *bench, void *context);

static double median_s(struct bench *bench, repetition run, void *context)
{
    double samples[SAMPLES];
    for (int i = -1; i < SAMPLES; i++) {
        float milliseconds = 0;
        must(cudaEventRecord(bench->begin, bench->stream), "cudaEventRecord");
        run(bench, context);
        must(cudaEventRecord(bench->end, bench->stream), "cudaEventRecord");
        must(cudaEventSynchronize(bench->end), "a repetition");
        must(cudaEventElapsedTime(&milliseconds, bench->begin, bench->end), "its time");
        if (i >= 0)
            samples[i] = 1e-3 * (double)milliseconds;
    }
    std::sort(samples, samples + SAMPLES);
    return samples[SAMPLES / 2];
}

static void print_rate(const char *name, double rate, const char *unit)
{
    printf("%-44s %10.1f %s\n", name, rate, unit);
}

/* Into the file of ceilings, as bytes or operations a second. */
static void keep_rate(struct bench *bench, const char *key, double rate)
{
    if (bench->ceilings)
        fprintf(bench->ceilings, "%s\n  \"%s\": %.6g", bench->written++ ? "," : "{", key, rate);
}

/* The line of a bar; counts a miss. */
static void print_bar(struct bench *bench, const char *name, double rate, const char *unit,
    double ceiling, double bar)
{
    bool met = rate >= bar * ceiling;
    printf("%-44s %10.1f %s  %5.1f %% of the ceiling, bar %.0f %%: %s\n", name, rate, unit,
        100 * rate / ceiling, 100 * bar, met ? "met" : "MISSED");
    bench->missed += !met;
}

/* ---- copies -----------------------------------------------------------------------------------
 */

static void copy_up(struct bench *bench, void *)
{
    must(cudaMemcpyAsync(
             bench->a, bench->pinned, BUFFER_BYTES, cudaMemcpyHostToDevice, bench->stream),
        "a copy up");
}

static void copy_down(struct bench *bench, void *)
{
    must(cudaMemcpyAsync(
             bench->pinned, bench->a, BUFFER_BYTES, cudaMemcpyDeviceToHost, bench->stream),
        "a copy down");
}

static void copy_both(struct bench *bench, void *)
{
    must(cudaStreamWaitEvent(bench->other, bench->begin, 0), "cudaStreamWaitEvent");
    copy_up(bench, NULL);
    must(cudaMemcpyAsync(
             bench->pinned_other, bench->b, BUFFER_BYTES, cudaMemcpyDeviceToHost, bench->other),
        "a copy down");
    must(cudaEventRecord(bench->side, bench->other), "cudaEventRecord");
    must(cudaStreamWaitEvent(bench->stream, bench->side, 0), "cudaStreamWaitEvent");
}

static void copy_within(struct bench *bench, void *)
{
    must(cudaMemcpyAsync(bench->b, bench->a, BUFFER_BYTES, cudaMemcpyDeviceToDevice, bench->stream),
        "a copy in device memory");
}

/* Bytes a second, read and written, of a copy in device memory. */
static double measure_copies(struct bench *bench)
{
    double bytes = (double)BUFFER_BYTES;
    const struct {
        const char *name, *key;
        repetition run;
    } copies[] = {{"copy host to device", "h2d_bytes_per_s", copy_up},
        {"copy device to host", "d2h_bytes_per_s", copy_down},
        {"both at once, each direction", "both_bytes_per_s", copy_both}};
    for (const auto &copy : copies) {
        double rate = bytes / median_s(bench, copy.run, NULL);
        print_rate(copy.name, 1e-9 * rate, "GB/s");
        keep_rate(bench, copy.key, rate);
    }
    double within = 2 * bytes / median_s(bench, copy_within, NULL);
    print_rate("copy in device memory, read and written", 1e-9 * within, "GB/s");
    keep_rate(bench, "within_bytes_per_s", within);
    return within;
}

/* ---- matrix products --------------------------------------------------------------------------
 */

static const double CUBE_FLOPS = 2.0 * CUBE * CUBE * CUBE;

static void exact_product(struct bench *bench, void *)
{
    struct gemm_args args = {};
    args.layout = GEMM_NN;
    args.init = GEMM_FRESH;
    args.a_type = args.b_type = DTYPE_F32;
    args.m = args.n = args.k = args.lda = args.ldb = args.ldc = CUBE;
    args.a = bench->a;
    args.b = bench->b;
    args.c = (float *)bench->c;
    must((cudaError_t)kernel_gemm.cuda(&args, bench->stream), "the exact product");
}

#ifdef HAVE_CUBLASLT
struct library {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t in, out;
    cublasLtMatmulHeuristicResult_t chosen;
    char *workspace;
};
#define WORKSPACE_BYTES ((size_t)64 << 20)

static void must_blas(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    fprintf(stderr, "gpu_bars: %s: cuBLASLt status %d\n", what, (int)status);
    exit(EXIT_ENVIRONMENT);
}

static void library_product(struct bench *bench, void *context)
{
    const struct library *l = (const struct library *)context;
    const float one = 1, zero = 0;
    must_blas(cublasLtMatmul(l->handle, l->operation, &one, bench->a, l->in, bench->b, l->in, &zero,
                  bench->c, l->out, bench->c, l->out, &l->chosen.algo, l->workspace,
                  WORKSPACE_BYTES, bench->stream),
        "cublasLtMatmul");
}

/* Operations a second of cuBLASLt's product of matrices of the type, with FP32 sums. */
static double measure_library(struct bench *bench, cudaDataType_t type)
{
    struct library l = {};
    cublasLtMatmulPreference_t preference;
    size_t workspace_bytes = WORKSPACE_BYTES;
    int found = 0;
    must(cudaMalloc((void **)&l.workspace, WORKSPACE_BYTES), "a workspace");
    must_blas(cublasLtCreate(&l.handle), "cublasLtCreate");
    must_blas(cublasLtMatmulDescCreate(&l.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
    must_blas(cublasLtMatrixLayoutCreate(&l.in, type, CUBE, CUBE, CUBE), "a layout");
    must_blas(cublasLtMatrixLayoutCreate(&l.out, CUDA_R_32F, CUBE, CUBE, CUBE), "a layout");
    must_blas(cublasLtMatmulPreferenceCreate(&preference), "a preference");
    must_blas(
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            &workspace_bytes, sizeof workspace_bytes),
        "a preference");
    must_blas(cublasLtMatmulAlgoGetHeuristic(l.handle, l.operation, l.in, l.in, l.out, l.out,
                  preference, 1, &l.chosen, &found),
        "an algorithm");
    double rate = found ? CUBE_FLOPS / median_s(bench, library_product, &l) : 0;
    must_blas(cublasLtMatmulPreferenceDestroy(preference), "a preference");
    must_blas(cublasLtMatrixLayoutDestroy(l.in), "a layout");
    must_blas(cublasLtMatrixLayoutDestroy(l.out), "a layout");
    must_blas(cublasLtMatmulDescDestroy(l.operation), "a product");
    must_blas(cublasLtDestroy(l.handle), "cublasLtDestroy");
    must(cudaFree(l.workspace), "cudaFree");
    return rate;
}
#endif

static void measure_products(struct bench *bench)
{
    double exact = CUBE_FLOPS / median_s(bench, exact_product, NULL);
#ifdef HAVE_CUBLASLT
    double f32 = measure_library(bench, CUDA_R_32F), bf16 = measure_library(bench, CUDA_R_16BF);
    print_rate("cuBLASLt FP32, 4096 cubes", 1e-12 * f32, "TFLOP/s");
    print_rate("cuBLASLt BF16, 4096 cubes", 1e-12 * bf16, "TFLOP/s");
    keep_rate(bench, "f32_flops_per_s", f32);
    keep_rate(bench, "bf16_flops_per_s", bf16);
    print_bar(
        bench, "exact FP32 product, 4096 cubes", 1e-12 * exact, "TFLOP/s", 1e-12 * f32, GEMM_BAR);
#else
    print_rate("exact FP32 product, 4096 cubes", 1e-12 * exact, "TFLOP/s");
#endif
}

/* ---- kernels that move memory -----------------------------------------------------------------
 */

static void add(struct bench *bench, void *)
{
    struct add_args args = {(float *)bench->a, (const float *)bench->b, BUFFER_BYTES / 4};
    must((cudaError_t)kernel_add.cuda(&args, bench->stream), "add");
}

static void round_down(struct bench *bench, void *)
{
    struct round_bf16_args args = {(uint16_t *)bench->a, (const float *)bench->b, BUFFER_BYTES / 4};
    must((cudaError_t)kernel_round_bf16.cuda(&args, bench->stream), "round");
}

/* p, m, v and g in quarters of one buffer, the working weights in another. */
static void update(struct bench *bench, void *)
{
    const int64_t count = BUFFER_BYTES / 16;
    float *values = (float *)bench->a;
    struct adamw_args args = {};
    args.count = count;
    args.p = values;
    args.m = values + count;
    args.v = values + 2 * count;
    args.g = values + 3 * count;
    args.g_type = DTYPE_F32;
    args.w = (uint16_t *)bench->b;
    args.constants.scale = args.constants.rs = args.constants.decay = 1;
    args.constants.eps = 1e-8f;
    must((cudaError_t)kernel_adamw.cuda(&args, bench->stream), "adamw");
}

static void measure_movers(struct bench *bench, double ceiling)
{
    const double elements = (double)(BUFFER_BYTES / 4);
    const struct {
        const char *name;
        repetition run;
        double bytes;
    } movers[] = {{"add, 12 B an element", add, 12 * elements},
        {"round to BF16, 6 B an element", round_down, 6 * elements},
        {"adamw, 30 B a parameter", update, 30 * elements / 4}};
    for (const auto &mover : movers)
        print_bar(bench, mover.name, 1e-9 * mover.bytes / median_s(bench, mover.run, NULL), "GB/s",
            1e-9 * ceiling, MEMORY_BAR);
}

int main(int argc, char **argv)
{
    struct bench bench = {};
    struct dev_facts facts;
    char error[256];
    if (dev_facts(DEV_CUDA, &facts, error, sizeof error) != DEV_OK) {
        fprintf(stderr, "gpu_bars: %s\n", error);
        return EXIT_ENVIRONMENT;
    }
    if (argc > 1 && !(bench.ceilings = fopen(argv[1], "w"))) {
        fprintf(stderr, "gpu_bars: %s: %s\n", argv[1], strerror(errno));
        return EXIT_ENVIRONMENT;
    }
    printf("%s, driver %s, CUDA %s\n", facts.name, facts.driver, facts.runtime);
    must(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking), "a stream");
    must(cudaStreamCreateWithFlags(&bench.other, cudaStreamNonBlocking), "a stream");
    must(cudaEventCreate(&bench.begin), "an event");
    must(cudaEventCreate(&bench.end), "an event");
    must(cudaEventCreate(&bench.side), "an event");
    for (char **block : {&bench.a, &bench.b, &bench.c}) {
        must(cudaMalloc((void **)block, BUFFER_BYTES), "device memory");
        must(cudaMemset(*block, 0x3c, BUFFER_BYTES), "cudaMemset");
    }
    must(
        cudaHostAlloc((void **)&bench.pinned, BUFFER_BYTES, cudaHostAllocDefault), "pinned memory");
    must(cudaHostAlloc((void **)&bench.pinned_other, BUFFER_BYTES, cudaHostAllocDefault),
        "pinned memory");
    double ceiling = measure_copies(&bench);
    measure_products(&bench);
    measure_movers(&bench, ceiling);
    must(cudaFreeHost(bench.pinned), "cudaFreeHost");
    must(cudaFreeHost(bench.pinned_other), "cudaFreeHost");
    for (char *block : {bench.a, bench.b, bench.c})
        must(cudaFree(block), "cudaFree");
    if (bench.ceilings && (fputs("\n}\n", bench.ceilings) < 0 || fclose(bench.ceilings))) {
        fprintf(stderr, "gpu_bars: %s: %s\n", argv[1], strerror(errno));
        return EXIT_ENVIRONMENT;
    }
    return bench.missed != 0;
}
