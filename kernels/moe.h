/* The kernels of expert dispatch: rows moved by an index, the experts' matrix products over groups
 * of rows, the activation, and the sums over a token's slots (docs/ARITHMETIC.md, rules 3, 5, 6,
 * 8).
 *
 * All matrices are row-major without gaps, FP32 or BF16 as `type` says; arithmetic is FP32 and what
 * a launch stores is rounded once. Indices, positions and groups are device memory: the host makes
 * them and uploads them. Row indices are int32 and are not checked. Unless a kernel says otherwise,
 * outputs overlap no input.
 *
 * A route's row depends on nothing but that row's own inputs: not on the order of the rows, on
 * which rows share a launch, or on threads. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"
#include "kernels/arith.h"
#include "kernels/gemm.h"

/* ---- moving rows ------------------------------------------------------------------------------
 * Rows of any type: row_bytes each. */

/* to[i] = from[index[i]] for i in [0, count). */
struct gather_rows_args {
    void *to;             /* [count] rows */
    const void *from;     /* [from_rows] rows */
    const int32_t *index; /* [count], in [0, from_rows) */
    int64_t count, from_rows, row_bytes;
};
extern const struct kernel kernel_gather_rows;
void gather_rows(struct stream *stream, const struct gather_rows_args *args);

/* to[index[i]] = from[i] for i in [0, count); no index twice; other rows of `to` stay. */
struct scatter_rows_args {
    void *to;             /* [to_rows] rows */
    const void *from;     /* [count] rows */
    const int32_t *index; /* [count], in [0, to_rows) */
    int64_t count, to_rows, row_bytes;
};
extern const struct kernel kernel_scatter_rows;
void scatter_rows(struct stream *stream, const struct scatter_rows_args *args);

/* ---- expert matrix products --------------------------------------------------------------------
 * The rows of a launch are cut into groups, each multiplied with its own matrix. */

/* Rows [first, first + rows) meet matrix `weight`. Groups without rows are ordinary; rows that no
 * group names are neither read nor written. */
struct expert_group {
    int64_t first, rows;
    int32_t weight;
    int32_t init; /* enum gemm_init, of a gradient; ignored by expert_matmul */
};

/* Equal matrices in two blocks: numbers [0, owned_count) lie in `owned` one after the other,
 * numbers owned_count and up (the lent ones of LLEP) in `lent`. */
struct expert_matrices {
    const void *owned, *lent;
    int64_t owned_count, lent_count;
};

/* out[row] = chain over k of a[row, k] * W, W [k, n] (GEMM_NN) or stored [n, k] (GEMM_NT), the
 * matrix of the row's group. With `a_then` the chain is continued over k of a_then[row, k] with the
 * group's matrix of weights_then (same layout and sizes) before it is stored. */
struct expert_matmul_args {
    const struct expert_group *groups; /* [group_count]; no row in two groups */
    int64_t group_count;
    int64_t rows; /* of a and out; the groups lie in [0, rows) */
    int64_t n, k;
    enum gemm_layout layout; /* GEMM_NN or GEMM_NT */
    enum dtype type;         /* of a, a_then and the weights */
    enum dtype out_type;
    const void *a; /* [rows, k] */
    struct expert_matrices weights;
    const void *a_then; /* [rows, k], or NULL */
    struct expert_matrices weights_then;
    void *out; /* [rows, n] */
};
extern const struct kernel kernel_expert_matmul;
void expert_matmul(struct stream *stream, const struct expert_matmul_args *args);

/* Per group: G[m, n] = init, chain over the group's rows ascending of a[row, m] * b[row, n], with G
 * the gradient numbered group.weight, FP32. A group without rows under GEMM_FRESH makes G +0; under
 * GEMM_CHAIN and GEMM_ADD it should be left out (GEMM_ADD would add +0). */
struct expert_gradient_args {
    const struct expert_group *groups; /* [group_count]; no matrix in two groups */
    int64_t group_count;
    int64_t rows; /* of a and b; the groups lie in [0, rows) */
    int64_t m, n;
    enum dtype type;
    const void *a;       /* [rows, m] */
    const void *b;       /* [rows, n] */
    float *owned, *lent; /* [owned_count, m, n], [lent_count, m, n] */
    int64_t owned_count, lent_count;
};
extern const struct kernel kernel_expert_gradient;
void expert_gradient(struct stream *stream, const struct expert_gradient_args *args);

/* Bytes of private scratch that one thread keeps for expert_matmul, at most, beside the GEMM's. */
int64_t expert_matmul_scratch_bytes(void);

/* ---- activation -------------------------------------------------------------------------------
 * Elementwise over `count` elements. An output may be the very array of an input. */

/* a = (g * sigmoid(g)) * u; where u is NULL, a = g * sigmoid(g); where g is NULL, ReLU:
 * a = arith_max(u, 0). */
struct expert_activation_args {
    int64_t count;
    enum dtype type;
    const void *g, *u;
    void *a;
};
extern const struct kernel kernel_expert_activation;
void expert_activation(struct stream *stream, const struct expert_activation_args *args);

/* s = sigmoid(g); du = dh * (g * s); dg = (dh * u) * (s * fmaf(g, 1 - s, 1)).
 * Where g is NULL, ReLU: du = u > 0 ? dh : +0, and dg is not touched. */
struct expert_activation_backward_args {
    int64_t count;
    enum dtype type;
    const void *g, *u, *dh;
    void *dg, *du;
};
extern const struct kernel kernel_expert_activation_backward;
void expert_activation_backward(
    struct stream *stream, const struct expert_activation_backward_args *args);

/* ---- sums over a token's slots ----------------------------------------------------------------
 * With t = token ? token[i] : i, for i in [0, count):
 *
 *     acc = +0 (with `continued`, to[t])
 *     for slot ascending where p = position[i * slots + slot] is not -1:
 *         acc = fmaf(weight[t * slots + slot], from[p], acc)     or acc + from[p] without weights
 *     to[t] = acc, rounded once to to_type; +0 for a token without rows
 *
 * `token` lets a chunk of tokens be summed: positions are the chunk's, weights and sums the whole
 * batch's. from_type FP32 with to_type FP32 sums partial sums, from_type BF16 with to_type FP32
 * makes them. `take_first` (without weights) begins with the first row itself instead of +0 plus
 * that row, as groups of a declared order are added: they differ where the row holds -0. With
 * `continued` (to_type FP32, without take_first) every chain goes on from what an earlier launch
 * left in `to`, as when a token's experts are met one part after the other. */
struct combine_rows_args {
    const void *from; /* [from_rows, columns] */
    int64_t from_rows;
    enum dtype from_type;
    const int32_t *position; /* [count, slots]; -1 = nothing */
    const float *weight;     /* [to_rows, slots], or NULL */
    const int32_t *token;    /* [count], in [0, to_rows), none twice; or NULL */
    int64_t count, columns, to_rows;
    int slots;
    bool take_first, continued;
    enum dtype to_type;
    void *to; /* [to_rows, columns] */
};
extern const struct kernel kernel_combine_rows;
void combine_rows(struct stream *stream, const struct combine_rows_args *args);

/* ---- backward of the combine, per route --------------------------------------------------------
 * With t = dy_row ? dy_row[i] : i and r = route ? route[i] : i, for i in [0, count):
 *
 *     dw[r] = rule 6 with fmaf over e[i] * dy[t]        where dw is given
 *     de[i] = weight[r] * dy[t], rounded                where de is given
 *
 * Both where the expert's rows are (dy, weight and dw per received row: no indices) and where the
 * tokens are (dy [N, H], weight and dw [N, k]). `de` may be `dy` itself when there is no dy_row. */
struct route_backward_args {
    int64_t count, columns;
    enum dtype type; /* of dy, e and de */
    const void *dy;  /* [dy_rows, columns] */
    int64_t dy_rows;
    const int32_t *dy_row; /* [count], in [0, dy_rows); or NULL */
    const int32_t *route;  /* [count], in [0, routes), none twice; or NULL */
    int64_t routes;        /* length of weight and dw */
    const float *weight;   /* [routes]; NULL where de is not wanted */
    const void *e;         /* [count, columns]; NULL where dw is not wanted */
    void *de;              /* [count, columns], or NULL */
    float *dw;             /* [routes], or NULL */
};
extern const struct kernel kernel_route_backward;
void route_backward(struct stream *stream, const struct route_backward_args *args);
