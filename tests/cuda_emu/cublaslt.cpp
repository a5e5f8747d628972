/* cuBLASLt for the fast path. Products are right, and not in the order of the exact ones: the even
 * k and the odd k have a sum each. CUDA_EMU_CUBLASLT says whose rows depend on the batch, so that
 * what must refuse such a library can be tested: a product of fewer rows of C than N (columns, as
 * this library counts) is summed from the other end.
 *
 * Two algorithms are offered: the first splits k and must not be taken, the second is this one. */
#include "tests/cuda_emu/cublasLt.h"
#include "tests/cuda_emu/memory.h"
extern "C" {
#include "kernels/arith.h"
}

enum { SPLITS = 0, WHOLE = 1, OFFERED = 2 };

struct emulated_blas {
    bool open;
};

static struct emulated_blas the_library = {true};

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    if (permitted() != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = &the_library;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return handle == &the_library ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

/* ---- what a product is ----------------------------------------------------------------------- */

cublasStatus_t cublasLtMatmulDescInit(
    cublasLtMatmulDesc_t product, cublasComputeType_t compute, cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *product = {{CUBLAS_OP_N, CUBLAS_OP_N}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
    cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    if (bytes != sizeof product->turned[0])
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&product->turned[attribute == CUBLASLT_MATMUL_DESC_TRANSB], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(
    cublasLtMatrixLayout_t layout, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t ld)
{
    if (ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *layout = {type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference)
{
    *preference = {{256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes)
{
    const int operand = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return bytes == sizeof(uint64_t) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    if (bytes != sizeof(uint32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (operand >= 0 && operand < 4)
        memcpy(&preference->alignment[operand], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
    cublasLtMatmulHeuristicResult_t *results, int *found)
{
    if (handle != &the_library || a->type != CUDA_R_16BF || b->type != CUDA_R_16BF ||
        c->type != CUDA_R_32F || d->type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint32_t alignment : preference->alignment)
        if (alignment > 16) /* the caller's rows are multiples of 16 bytes and of nothing more */
            return CUBLAS_STATUS_NOT_SUPPORTED;
    *found = wanted < OFFERED ? wanted : OFFERED;
    for (int i = 0; i < *found; i++)
        results[i] = {{i}, 0, CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
    cublasLtMatmulAlgoConfigAttributes_t, void *value, size_t bytes, size_t *written)
{
    const int32_t parts = algorithm->number == SPLITS ? 4 : 1;
    if (bytes != sizeof parts)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &parts, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ----------------------------------------------------------------------------- */

struct operand {
    const uint16_t *from;
    bool turned;
    cublasLtMatrixLayoutOpaque_t layout;
};

/* Element (row, column) of what the operand stands for. */
static float value_at(const struct operand &operand, int64_t row, int64_t column)
{
    const int64_t ld = operand.layout.ld;
    return bf16_to_f32(operand.from[operand.turned ? row * ld + column : column * ld + row]);
}

static void check_matrix(
    const char *operand, const void *from, const cublasLtMatrixLayoutOpaque_t &layout)
{
    const size_t element_bytes = layout.type == CUDA_R_16BF ? 2 : 4;
    const size_t elements = (layout.columns - 1) * (size_t)layout.ld + layout.rows;
    struct allocation *found = find_allocation(from, elements * element_bytes);
    if (!found || found->pinned)
        fault("cublasLtMatmul: %s, %zu bytes at %p, is not in one block of device memory", operand,
            elements * element_bytes, from);
    if ((uintptr_t)from % 16 || (size_t)layout.ld * element_bytes % 16)
        fault("cublasLtMatmul: %s at %p does not have rows on 16 bytes", operand, from);
}

struct product {
    struct operand a, b;
    float alpha, beta;
    float *to;
    cublasLtMatrixLayoutOpaque_t layout;
    int64_t k;
    bool backwards;
};

static void multiply_now(const struct product &p)
{
    check_matrix("A", p.a.from, p.a.layout);
    check_matrix("B", p.b.from, p.b.layout);
    check_matrix("C", p.to, p.layout);
    for (int64_t column = 0; column < (int64_t)p.layout.columns; column++)
        for (int64_t row = 0; row < (int64_t)p.layout.rows; row++) {
            float sums[2] = {0.0f, 0.0f}, *to = &p.to[column * p.layout.ld + row];
            for (int64_t i = 0; i < p.k; i++) {
                const int64_t k = p.backwards ? p.k - 1 - i : i;
                sums[k % 2] += value_at(p.a, row, k) * value_at(p.b, k, column);
            }
            const float sum = p.alpha * (sums[0] + sums[1]);
            *to = p.beta == 0.0f ? sum : sum + p.beta * *to;
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
    const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
    cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
    cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
    const cublasLtMatmulAlgo_t *algorithm, void *, size_t, cudaStream_t stream)
{
    const bool a_turned = product->turned[0] == CUBLAS_OP_T;
    const bool b_turned = product->turned[1] == CUBLAS_OP_T;
    const uint64_t rows = a_turned ? a_layout->columns : a_layout->rows;
    const uint64_t k = a_turned ? a_layout->rows : a_layout->columns;
    const uint64_t columns = b_turned ? b_layout->rows : b_layout->columns;
    if (handle != &the_library || !algorithm || algorithm->number != WHOLE || c != d ||
        d_layout->rows != rows || d_layout->columns != columns || c_layout->ld != d_layout->ld ||
        (b_turned ? b_layout->columns : b_layout->rows) != k || !rows || !columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    const struct product p = {{(const uint16_t *)a, a_turned, *a_layout},
        {(const uint16_t *)b, b_turned, *b_layout}, *(const float *)alpha, *(const float *)beta,
        (float *)d, *d_layout, (int64_t)k,
        (int64_t)columns < emulator_settings()->cublaslt_varies_below};
    std::unique_lock<std::mutex> held(lock);
    const cudaError_t error =
        enqueue_work(stream, recorded(RECORDED_KERNEL, [p] { multiply_now(p); }));
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
