/* The fast path of matrix products on a GPU: tensor cores, for BF16 operands.
 *
 * Its sums are FP32 in orders of their own, so its bits are not those of the contract: a result is
 * within a bound of the exact one and never equal to it by rule. What the path does keep is that a
 * row does not depend on which rows share the product: for each layout one algorithm of cuBLASLt is
 * chosen, once, without a split of k, and serves every shape; and the kernels of our own add k in
 * one order whatever the shape.
 *
 *     both BF16, rows multiples of 16 bytes     cuBLASLt
 *     both BF16, other rows                     our tensor-core kernel (kernels/tensor_tile.cuh)
 *     FP32 A whose values are BF16's, BF16 B    the same, A narrowed on its way into shared memory
 *     the experts' groups, BF16                 the same: only the device knows the groups
 *     everything else                           exact
 *
 * The path is the process's: a launch knows nothing but its arguments and its stream. It is changed
 * while no rank runs. */
#pragma once
#include <stdbool.h>
#include "kernels/gemm.h"

/* AUDITED: fast, and each product is held against FP64 on the spot (kernels/gemm_audit.h). */
enum gemm_path { GEMM_PATH_EXACT, GEMM_PATH_FAST, GEMM_PATH_AUDITED };

/* Chooses the algorithms on every GPU of the process and proves the path there: a product whole and
 * in pieces of its rows, bit by bit, and within its bound of the exact product. 0, or -1 with the
 * reason: the path may then not be taken. It is exact until gemm_fast_use says otherwise. */
int gemm_fast_open(char *error, int size);

/* Takes the path from here on and begins a tally. Of each product at most `tiles` tiles of 64 x 64
 * elements are audited, evenly spread; 0: all. */
void gemm_fast_use(enum gemm_path path, int64_t tiles);

/* What has run since gemm_fast_use. */
struct gemm_tally {
    int64_t library, own; /* products on tensor cores: cuBLASLt's; grouped or narrowed, by us */
    int64_t odd;          /* by us, because rows are no multiples of 16 bytes */
    int64_t exact;        /* products with a BF16 operand that stayed exact */
    int64_t elements;     /* audited */
    int64_t outside;      /* of which outside their bound */
    int64_t unaudited;    /* products for whose audit device memory was short */
    double worst;         /* the largest |error| / bound */
};

/* After the ranks have ended. 0, or -1 when a GPU does not answer. */
int gemm_fast_tally(struct gemm_tally *tally);

/* ---- for kernels/ ----------------------------------------------------------------------------
 */

enum gemm_way { GEMM_WAY_EXACT, GEMM_WAY_LIBRARY, GEMM_WAY_OWN, GEMM_WAY_ODD };

/* Which way gemm() makes this product now. */
enum gemm_way gemm_fast_way(const struct gemm_args *args);

/* Whether the experts' products go to tensor cores now; `type` is of their operands. */
bool gemm_fast_takes_experts(enum dtype type);

/* Counts a product that has been enqueued; `type` is that of an operand, BF16 if one is. */
void gemm_fast_count(enum gemm_way way, enum dtype type);

/* NULL unless products are audited now; else the current GPU's tally. `tiles` as above. */
struct audit_tally *gemm_fast_audit(int64_t *tiles);

/* Counts a product that could not be audited. */
void gemm_fast_unaudited(void);

/* Enqueues one by cuBLASLt; the current GPU's. 0, or a cudaError_t. */
int gemm_fast_cuda(const struct gemm_args *args, void *cuda_stream);

/* By our own tensor-core kernel, whatever the alignment; A as described above. */
int gemm_tensor_cuda(const struct gemm_args *args, void *cuda_stream);

/* The experts' products of BF16 operands on tensor cores: kernels of expert_matmul and
 * expert_gradient (kernels/moe.h) while the path is on, and for their tests. */
int expert_matmul_fast_cuda(const void *args, void *cuda_stream);
int expert_gradient_fast_cuda(const void *args, void *cuda_stream);
