/* The fast path of matrix products: one cuBLASLt algorithm for each layout, the proof of the path,
 * who goes which way, and the tally. */
#include "kernels/elements.cuh"
#include <atomic>
extern "C" {
#include "kernels/gemm_audit.h"
#include "kernels/gemm_fast.h"
#include "kernels/moe.h"
}

enum { WAYS = GEMM_WAY_ODD + 1 };

/* Of the process. Written while no rank runs, but for the counts. */
static struct {
    enum gemm_path path;
    int64_t tiles;
    std::atomic<int64_t> counts[WAYS], unaudited;
} taken;

extern "C" bool gemm_fast_takes_experts(enum dtype type)
{
    return taken.path != GEMM_PATH_EXACT && type == DTYPE_BF16;
}

extern "C" void gemm_fast_count(enum gemm_way way, enum dtype type)
{
    if (taken.path != GEMM_PATH_EXACT && type == DTYPE_BF16)
        taken.counts[way]++;
}

extern "C" void gemm_fast_unaudited(void)
{
    taken.unaudited++;
}

#ifdef HAVE_CUBLASLT
#include <cublasLt.h>

enum { GPUS_MOST = 64, LAYOUTS = 3, CANDIDATES = 8 };

/* Of one GPU. */
struct fast_path {
    cublasLtHandle_t handle;
    cublasLtMatmulAlgo_t algorithms[LAYOUTS]; /* by enum gemm_layout */
    struct audit_tally *tally;                /* in the GPU's memory */
};

/* Written by gemm_fast_open alone, before any rank runs, and read by all of them. */
static struct fast_path paths[GPUS_MOST];
static int path_count;

extern "C" enum gemm_way gemm_fast_way(const struct gemm_args *args)
{
    const int64_t rows_bytes = (args->lda | args->ldb) * 2 | args->ldc * 4;
    if (taken.path == GEMM_PATH_EXACT || args->b_type != DTYPE_BF16 || args->k <= 0)
        return GEMM_WAY_EXACT;
    if (args->a_type == DTYPE_F32)
        return args->a_rounded ? GEMM_WAY_OWN : GEMM_WAY_EXACT;
    return rows_bytes % PACK_ALIGNMENT == 0 && pack_aligned(args->a) && pack_aligned(args->b) &&
                   pack_aligned(args->c)
               ? GEMM_WAY_LIBRARY
               : GEMM_WAY_ODD;
}

/* ---- the tally ------------------------------------------------------------------------------- */

/* Calls `visit` with each GPU that the path was proved on as the current one. */
template <class Visit> static int each_path(Visit visit)
{
    int before = 0;
    cudaError_t error = cudaGetDevice(&before);
    for (int gpu = 0; gpu < path_count && error == cudaSuccess; gpu++) {
        error = cudaSetDevice(gpu);
        if (error == cudaSuccess)
            error = visit(&paths[gpu]);
    }
    cudaSetDevice(before);
    return error == cudaSuccess ? 0 : -1;
}

extern "C" void gemm_fast_use(enum gemm_path path, int64_t tiles)
{
    taken.path = path;
    taken.tiles = tiles;
    for (auto &count : taken.counts)
        count = 0;
    taken.unaudited = 0;
    if (path != GEMM_PATH_AUDITED)
        return;
    if (each_path([](struct fast_path *p) { return cudaMemset(p->tally, 0, sizeof *p->tally); }))
        taken.unaudited = INT64_MAX; /* a GPU that does not answer is told by the ranks */
}

extern "C" struct audit_tally *gemm_fast_audit(int64_t *tiles)
{
    int gpu = 0;
    *tiles = taken.tiles;
    if (taken.path != GEMM_PATH_AUDITED || cudaGetDevice(&gpu) != cudaSuccess)
        return NULL;
    return paths[gpu].tally;
}

extern "C" int gemm_fast_tally(struct gemm_tally *tally)
{
    *tally = {taken.counts[GEMM_WAY_LIBRARY], taken.counts[GEMM_WAY_OWN],
        taken.counts[GEMM_WAY_ODD], taken.counts[GEMM_WAY_EXACT], 0, 0, taken.unaudited, 0};
    return each_path([&](struct fast_path *p) {
        struct audit_tally own;
        const cudaError_t error = cudaMemcpy(&own, p->tally, sizeof own, cudaMemcpyDeviceToHost);
        if (error != cudaSuccess)
            return error;
        tally->elements += (int64_t)own.elements;
        tally->outside += (int64_t)own.outside;
        tally->worst = fmax(tally->worst, (double)f32_from_bits(own.worst_bits));
        return error;
    });
}

/* ---- one product ----------------------------------------------------------------------------
 * cuBLASLt's matrices are column-major: it is given C^T = B^T A^T. */

struct described {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t first, second, result;
};

static cublasStatus_t describe_operand(
    cublasLtMatrixLayoutOpaque_t *layout, bool turned, int64_t rows, int64_t columns, int64_t ld)
{
    return cublasLtMatrixLayoutInit(layout, CUDA_R_16BF, (uint64_t)(turned ? columns : rows),
        (uint64_t)(turned ? rows : columns), ld);
}

static cublasStatus_t describe(const struct gemm_args *args, struct described *d)
{
    const bool b_turned = args->layout == GEMM_NT, a_turned = args->layout == GEMM_TN;
    const cublasOperation_t first = b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t status = cublasLtMatmulDescInit(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(
            &d->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(
            &d->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_operand(&d->first, b_turned, args->n, args->k, args->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_operand(&d->second, a_turned, args->k, args->m, args->lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(
            &d->result, CUDA_R_32F, (uint64_t)args->n, (uint64_t)args->m, args->ldc);
    return status;
}

static cublasStatus_t multiply(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t *algorithm,
    const struct gemm_args *args, cudaStream_t stream)
{
    struct described d;
    const float one = 1.0f, kept = args->init == GEMM_FRESH ? 0.0f : 1.0f;
    cublasStatus_t status = describe(args, &d);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return cublasLtMatmul(handle, &d.product, &one, args->b, &d.first, args->a, &d.second, &kept,
        args->c, &d.result, args->c, &d.result, algorithm, NULL, 0, stream);
}

extern "C" int gemm_fast_cuda(const struct gemm_args *args, void *cuda_stream)
{
    int gpu = 0;
    const cudaError_t error = cudaGetDevice(&gpu);
    if (error != cudaSuccess)
        return error;
    const struct fast_path *path = &paths[gpu];
    const cublasStatus_t status =
        multiply(path->handle, &path->algorithms[args->layout], args, (cudaStream_t)cuda_stream);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

/* ---- the proof ------------------------------------------------------------------------------ */

/* No multiples of a tile; pieces of rows begin on multiples of eight, for the sake of GEMM_TN. */
enum { PIECES = 6 };
#ifdef CUDA_EMULATOR
enum { PROOF_M = 136, PROOF_N = 72, PROOF_K = 56 };
static const int64_t ends[PIECES] = {8, 16, 48, 80, 112, PROOF_M};
#else
enum { PROOF_M = 1032, PROOF_N = 1064, PROOF_K = 1544 };
static const int64_t ends[PIECES] = {8, 16, 80, 208, 720, PROOF_M};
#endif

/* Device memory of one proof. */
struct proof {
    uint16_t *a, *b;           /* operands */
    uint16_t *a_size, *b_size; /* their absolute values */
    float *whole, *pieces, *exact, *size;
    struct expert_group *groups; /* the pieces', then one of all rows and one of all k */
    float *host[4];              /* of the last four; owned, like all */
};

static struct gemm_args proof_args(enum gemm_layout layout, const uint16_t *a, const uint16_t *b)
{
    struct gemm_args args = {};
    args.layout = layout;
    args.init = GEMM_FRESH;
    args.a_type = args.b_type = DTYPE_BF16;
    args.m = PROOF_M;
    args.n = PROOF_N;
    args.k = PROOF_K;
    args.a = a;
    args.b = b;
    args.lda = layout == GEMM_TN ? PROOF_M : PROOF_K;
    args.ldb = layout == GEMM_NT ? PROOF_K : PROOF_N;
    args.ldc = PROOF_N;
    return args;
}

static void proof_free(struct proof *p)
{
    void *const blocks[] = {
        p->a, p->b, p->a_size, p->b_size, p->whole, p->pieces, p->exact, p->size, p->groups};
    for (void *block : blocks)
        cudaFree(block);
    for (float *values : p->host)
        free(values);
}

static bool upload_values(uint16_t *values, uint16_t *sizes, int64_t count, uint32_t seed)
{
    uint16_t *host = (uint16_t *)malloc((size_t)count * sizeof *host);
    uint32_t state = seed;
    bool good = host != NULL;
    for (int64_t i = 0; good && i < count; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = f32_to_bf16((float)(int32_t)state * 0x1p-31f);
    }
    const size_t bytes = (size_t)count * sizeof *host;
    good = good && cudaMemcpy(values, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
    for (int64_t i = 0; good && i < count; i++)
        host[i] &= 0x7fff;
    good = good && cudaMemcpy(sizes, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
    free(host);
    return good;
}

static bool proof_open(struct proof *p)
{
    const size_t a_bytes = PROOF_M * PROOF_K * sizeof *p->a;
    const size_t b_bytes = PROOF_K * PROOF_N * sizeof *p->b;
    const size_t c_bytes = PROOF_M * PROOF_N * sizeof *p->whole;
    bool good = cudaMalloc((void **)&p->a, a_bytes) == cudaSuccess &&
                cudaMalloc((void **)&p->a_size, a_bytes) == cudaSuccess &&
                cudaMalloc((void **)&p->b, b_bytes) == cudaSuccess &&
                cudaMalloc((void **)&p->b_size, b_bytes) == cudaSuccess;
    float **const results[] = {&p->whole, &p->pieces, &p->exact, &p->size};
    for (int i = 0; i < 4; i++) {
        p->host[i] = (float *)malloc(c_bytes);
        good = good && p->host[i] && cudaMalloc((void **)results[i], c_bytes) == cudaSuccess;
    }
    return good && upload_values(p->a, p->a_size, PROOF_M * PROOF_K, 1) &&
           upload_values(p->b, p->b_size, PROOF_K * PROOF_N, 2);
}

static cublasStatus_t multiply_pieces(
    const struct fast_path *path, const struct gemm_args *whole, float *to)
{
    const bool turned = whole->layout == GEMM_TN;
    int64_t begin = 0;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < PIECES && status == CUBLAS_STATUS_SUCCESS; begin = ends[i++]) {
        struct gemm_args piece = *whole;
        piece.m = ends[i] - begin;
        piece.a = (const uint16_t *)whole->a + begin * (turned ? 1 : whole->lda);
        piece.c = to + begin * whole->ldc;
        status = multiply(path->handle, &path->algorithms[whole->layout], &piece, NULL);
    }
    return status;
}

static bool upload_groups(struct proof *p)
{
    struct expert_group groups[PIECES + 2] = {};
    for (int i = 0; i < PIECES; i++) {
        groups[i].first = i ? ends[i - 1] : 0;
        groups[i].rows = ends[i] - groups[i].first;
    }
    groups[PIECES].rows = PROOF_M;
    groups[PIECES + 1].rows = PROOF_K;
    return cudaMalloc((void **)&p->groups, sizeof groups) == cudaSuccess &&
           cudaMemcpy(p->groups, groups, sizeof groups, cudaMemcpyHostToDevice) == cudaSuccess;
}

/* Both sums add the same products: the exact one errs by at most k 2^-24 of their sizes' sum, the
 * library's, whose additions may cut off instead of rounding, by k 2^-23; together below k 2^-22.
 */
static const char *judge(const struct proof *p)
{
    const float *whole = p->host[0], *pieces = p->host[1], *exact = p->host[2], *size = p->host[3];
    for (int64_t i = 0; i < PROOF_M * PROOF_N; i++) {
        if (f32_bits(whole[i]) != f32_bits(pieces[i]))
            return "a row's bits depend on the other rows of the product";
        if (!(fabsf(whole[i] - exact[i]) <= PROOF_K * 0x1p-22f * size[i]))
            return "a product is outside its bound of the exact one";
    }
    return NULL;
}

/* NULL, or what is wrong with the algorithm that stands for the layout. */
static const char *prove(
    const struct fast_path *path, enum gemm_layout layout, const struct proof *p)
{
    float *const results[] = {p->whole, p->pieces, p->exact, p->size};
    struct gemm_args args = proof_args(layout, p->a, p->b);
    args.c = p->whole;
    if (multiply(path->handle, &path->algorithms[layout], &args, NULL) != CUBLAS_STATUS_SUCCESS ||
        multiply_pieces(path, &args, p->pieces) != CUBLAS_STATUS_SUCCESS)
        return "cuBLASLt does not take a shape";
    args.c = p->exact;
    if (kernel_gemm.cuda(&args, NULL) != cudaSuccess)
        return "the exact product failed";
    args.c = p->size;
    args.a = p->a_size;
    args.b = p->b_size;
    if (kernel_gemm.cuda(&args, NULL) != cudaSuccess)
        return "the exact product failed";
    for (int i = 0; i < 4; i++)
        if (cudaMemcpy(p->host[i], results[i], PROOF_M * PROOF_N * sizeof(float),
                cudaMemcpyDeviceToHost) != cudaSuccess)
            return "the results cannot be read";
    return judge(p);
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* What the library would choose for a large product without workspace or reduction of parts of k.
 */
static int candidates(
    cublasLtHandle_t handle, enum gemm_layout layout, cublasLtMatmulHeuristicResult_t *results)
{
    struct gemm_args args = proof_args(layout, NULL, NULL);
    args.m = args.n = args.k = args.lda = args.ldb = args.ldc = 4096;
    struct described d;
    cublasLtMatmulPreferenceOpaque_t preference;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    const uint64_t workspace_bytes = 0;
    const uint32_t alignment = PACK_ALIGNMENT;
    int found = 0;
    bool good = describe(&args, &d) == CUBLAS_STATUS_SUCCESS &&
                cublasLtMatmulPreferenceInit(&preference) == CUBLAS_STATUS_SUCCESS;
    for (int operand = 0; operand < 4; operand++)
        good =
            good &&
            cublasLtMatmulPreferenceSetAttribute(&preference,
                (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES +
                                                       operand),
                &alignment, sizeof alignment) == CUBLAS_STATUS_SUCCESS;
    if (!good ||
        cublasLtMatmulPreferenceSetAttribute(&preference,
            CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
            sizeof reductions) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            &workspace_bytes, sizeof workspace_bytes) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoGetHeuristic(handle, &d.product, &d.first, &d.second, &d.result,
            &d.result, &preference, CANDIDATES, results, &found) != CUBLAS_STATUS_SUCCESS)
        return 0;
    return found;
}

static bool splits_k(const cublasLtMatmulAlgo_t *algorithm)
{
    int32_t parts = 0;
    size_t written = 0;
    return cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
               sizeof parts, &written) != CUBLAS_STATUS_SUCCESS ||
           parts > 1;
}

/* The experts' product of the layout in these groups. */
static int multiply_groups(enum gemm_layout layout, const struct proof *p,
    const struct expert_group *groups, int64_t count, float *to)
{
    if (layout == GEMM_TN) {
        struct expert_gradient_args args = {};
        args.groups = groups;
        args.group_count = count;
        args.rows = PROOF_K;
        args.m = PROOF_M;
        args.n = PROOF_N;
        args.type = DTYPE_BF16;
        args.a = p->a;
        args.b = p->b;
        args.owned = to;
        args.owned_count = 1;
        return expert_gradient_fast_cuda(&args, NULL);
    }
    struct expert_matmul_args args = {};
    args.groups = groups;
    args.group_count = count;
    args.rows = PROOF_M;
    args.n = PROOF_N;
    args.k = PROOF_K;
    args.layout = layout;
    args.type = DTYPE_BF16;
    args.out_type = DTYPE_F32;
    args.a = p->a;
    args.weights.owned = p->b;
    args.weights.owned_count = 1;
    args.out = to;
    return expert_matmul_fast_cuda(&args, NULL);
}

/* The experts' kernels likewise, after prove(); a gradient's rows are its k, which is not cut. */
static const char *prove_experts(enum gemm_layout layout, const struct proof *p)
{
    const bool turned = layout == GEMM_TN;
    const struct expert_group *whole = p->groups + PIECES + (turned ? 1 : 0);
    const size_t bytes = PROOF_M * PROOF_N * sizeof(float);
    if (multiply_groups(layout, p, whole, 1, p->whole) ||
        multiply_groups(layout, p, turned ? whole : p->groups, turned ? 1 : PIECES, p->pieces))
        return "an expert product failed";
    if (cudaMemcpy(p->host[0], p->whole, bytes, cudaMemcpyDeviceToHost) != cudaSuccess ||
        cudaMemcpy(p->host[1], p->pieces, bytes, cudaMemcpyDeviceToHost) != cudaSuccess)
        return "the results cannot be read";
    return judge(p);
}

/* The first candidate that passes; NULL, or why none does. */
static const char *choose(struct fast_path *path, enum gemm_layout layout, const struct proof *p)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    const int found = candidates(path->handle, layout, results);
    const char *reason = "cuBLASLt has no algorithm that leaves k whole";
    for (int i = 0; i < found; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS || splits_k(&results[i].algo))
            continue;
        path->algorithms[layout] = results[i].algo;
        reason = prove(path, layout, p);
        if (!reason)
            return NULL;
    }
    return reason;
}

/* On the current GPU. */
static const char *open_path(struct fast_path *path)
{
    struct proof p = {};
    const char *reason = NULL;
    if (!path->handle && cublasLtCreate(&path->handle) != CUBLAS_STATUS_SUCCESS)
        return "cuBLASLt does not start";
    if (!path->tally && cudaMalloc((void **)&path->tally, sizeof *path->tally) != cudaSuccess)
        return "no memory for a tally";
    if (!proof_open(&p) || !upload_groups(&p))
        reason = "no memory for the proof";
    for (int layout = 0; layout < LAYOUTS && !reason; layout++) {
        reason = choose(path, (enum gemm_layout)layout, &p);
        if (!reason)
            reason = prove_experts((enum gemm_layout)layout, &p);
    }
    proof_free(&p);
    return reason;
}

extern "C" int gemm_fast_open(char *error, int size)
{
    int gpus = 0;
    taken.path = GEMM_PATH_EXACT; /* which the proof needs */
    path_count = 0;
    const char *reason = cudaGetDeviceCount(&gpus) == cudaSuccess ? NULL : "no GPU";
    if (gpus > GPUS_MOST)
        reason = "more GPUs than it was written for";
    for (int gpu = 0; gpu < gpus && !reason; gpu++)
        reason = cudaSetDevice(gpu) == cudaSuccess ? open_path(&paths[gpu]) : "a GPU is refused";
    path_count = reason ? 0 : gpus;
    if (reason)
        snprintf(error, (size_t)size, "%s", reason);
    return reason ? -1 : 0;
}

#else

extern "C" int gemm_fast_open(char *error, int size)
{
    snprintf(error, (size_t)size, "this build has no cuBLASLt");
    return -1;
}

extern "C" void gemm_fast_use(enum gemm_path, int64_t)
{
}

extern "C" int gemm_fast_tally(struct gemm_tally *tally)
{
    *tally = {};
    return 0;
}

extern "C" enum gemm_way gemm_fast_way(const struct gemm_args *)
{
    return GEMM_WAY_EXACT;
}

extern "C" struct audit_tally *gemm_fast_audit(int64_t *tiles)
{
    *tiles = 0;
    return NULL;
}

extern "C" int gemm_fast_cuda(const struct gemm_args *, void *)
{
    return cudaErrorNotSupported;
}

#endif
