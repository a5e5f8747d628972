/* The fast path of matrix products on a GPU: tensor cores, by cuBLASLt, for BF16 operands.
 *
 * Its sums are FP32 in an order of the library's, so its bits are not those of the contract: a
 * result is within a bound of the exact one and never equal to it by rule. What the path does keep
 * is that a row does not depend on which rows share the product: for each layout one algorithm is
 * chosen, once, without a split of k, and serves every shape.
 *
 * Where the path is off, or the operands are not BF16 on 16-byte rows, gemm() is exact. */
#pragma once
#include <stdbool.h>
#include "kernels/gemm.h"

/* Which way gemm() of BF16 operands goes on a GPU. */
enum gemm_path { GEMM_PATH_EXACT, GEMM_PATH_FAST };

/* Chooses the algorithms on every GPU of the process and proves them there: a product whole and in
 * pieces of its rows, bit by bit, and within its bound of the exact product. From then on the path
 * is on. Before any rank starts. 0, or -1 with the reason, and the path stays off. */
int gemm_fast_open(char *error, int size);

/* Whether it is on. */
bool gemm_fast_is_on(void);

/* Whether gemm() makes this product on the fast path. */
bool gemm_fast_takes(const struct gemm_args *args);

/* Enqueues it; the current GPU's. 0, or a cudaError_t. */
int gemm_fast_cuda(const struct gemm_args *args, void *cuda_stream);

/* The experts' products of BF16 operands on tensor cores, by kernels of our own, since only the
 * device knows the groups: kernels of expert_matmul and expert_gradient (kernels/moe.h) while the
 * path is on, and for their tests. */
int expert_matmul_fast_cuda(const void *args, void *cuda_stream);
int expert_gradient_fast_cuda(const void *args, void *cuda_stream);
