/* The kernels of experts, products and activations, against scalar loops, bit by bit: every
 * instruction set, teams of one to three, FP32 and BF16, ragged sizes, and empty groups. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels/moe.h"
#include "tests/moe_kernels_case.h"
#include "tests/tap.h"

/* ---- expert products ---------------------------------------------------------------------- */

enum { GROUPS = 8, OWNED = 5, MATRICES = 9 };

/* Ragged groups with a gap before some of them, matrices in any order, none twice. */
static int64_t make_groups(struct expert_group *groups, const int64_t *rows)
{
    int32_t *weight = array_permutation(MATRICES);
    int64_t at = 0;
    for (int i = 0; i < GROUPS; i++) {
        at += i % 3 == 1 ? 2 : 0;
        groups[i] = (struct expert_group){at, rows[i], weight[i], GEMM_FRESH};
        at += rows[i];
    }
    free(weight);
    return at + 1;
}

static float chain(float sum, const struct array *a, int64_t row, const struct array *w,
    int64_t matrix, int64_t column, const struct expert_matmul_args *args)
{
    for (int64_t k = 0; k < args->k; k++) {
        int64_t at = args->layout == GEMM_NT ? column * args->k + k : k * args->n + column;
        sum = fmaf(
            array_get(a, row * args->k + k), array_get(w, matrix * args->n * args->k + at), sum);
    }
    return sum;
}

struct matmul_case {
    enum gemm_layout layout;
    enum dtype type, out_type;
    int64_t n, k;
    bool then;
};

static int64_t matmul_faults(
    struct dev_pool *pool, const struct matmul_case *c, const int64_t *group_rows)
{
    struct expert_group groups[GROUPS];
    int64_t rows = make_groups(groups, group_rows), element_bytes = dtype_bytes(c->type);
    struct array a = array_of(c->type, rows * c->k, 1), a2 = array_of(c->type, rows * c->k, 2);
    struct array w = array_of(c->type, MATRICES * c->n * c->k, 3);
    struct array w2 = array_of(c->type, MATRICES * c->n * c->k, 4);
    struct array out = array_of(c->out_type, rows * c->n, 5), want = array_copy(&out);
    int64_t lent = OWNED * c->n * c->k * element_bytes;
    struct expert_matmul_args args = {.groups = groups,
        .group_count = GROUPS,
        .rows = rows,
        .n = c->n,
        .k = c->k,
        .layout = c->layout,
        .type = c->type,
        .out_type = c->out_type,
        .a = a.values,
        .weights = {w.values, (char *)w.values + lent, OWNED, MATRICES - OWNED},
        .a_then = c->then ? a2.values : NULL,
        .weights_then = {w2.values, (char *)w2.values + lent, OWNED, MATRICES - OWNED},
        .out = out.values};
    for (int g = 0; g < GROUPS; g++)
        for (int64_t row = groups[g].first; row < groups[g].first + groups[g].rows; row++)
            for (int64_t n = 0; n < c->n; n++) {
                float sum = chain(0.0f, &a, row, &w, groups[g].weight, n, &args);
                if (c->then)
                    sum = chain(sum, &a2, row, &w2, groups[g].weight, n, &args);
                array_set(&want, row * c->n + n, sum);
            }
    struct launch launch = {pool, &kernel_expert_matmul, &args, {&out}, {&want}};
    int64_t faults = launch_faults(&launch);
    array_release((struct array *[]){&a, &a2, &w, &w2, &out, &want}, 6);
    return faults;
}

static const int64_t few_rows[GROUPS] = {0, 1, 5, 0, 61, 17, 2, 0};
static const int64_t many_rows[GROUPS] = {3, 0, 530, 0, 1, 15, 0, 127};
static const int64_t no_rows[GROUPS] = {0};

static void test_matmul(struct dev_pool *pool)
{
    static const int64_t sizes[][2] = {{1, 7}, {33, 70}, {200, 1}, {130, 64}};
    int64_t faults[2] = {0, 0};
    for (int s = 0; s < 4; s++)
        for (int way = 0; way < 16; way++) {
            struct matmul_case c = {way & 1 ? GEMM_NT : GEMM_NN, (way >> 1) & 1, (way >> 2) & 1,
                sizes[s][0], sizes[s][1], way >> 3};
            faults[c.then] += matmul_faults(pool, &c, few_rows);
        }
    tap_ok(!faults[0], "expert products, few rows, all types and layouts");
    tap_ok(!faults[1], "expert products whose chain continues over a second pair");
    struct matmul_case wide = {GEMM_NT, DTYPE_F32, DTYPE_F32, 1040, 20, false};
    int64_t large = matmul_faults(pool, &wide, many_rows);
    wide.type = wide.out_type = DTYPE_BF16;
    wide.then = true;
    large += matmul_faults(pool, &wide, many_rows);
    tap_ok(!large, "groups cut into several blocks");
    tap_ok(!matmul_faults(pool, &wide, no_rows), "no rows at all");
}

static int64_t gradient_faults(struct dev_pool *pool, enum dtype type, int64_t m, int64_t n,
    const int64_t *group_rows, enum gemm_init init)
{
    struct expert_group groups[GROUPS];
    int64_t rows = make_groups(groups, group_rows), elements = m * n;
    struct array a = array_of(type, rows * m, 1), b = array_of(type, rows * n, 2);
    struct array out = array_of(DTYPE_F32, MATRICES * elements, 3), want = array_copy(&out);
    /* One launch holds all three kinds; an empty group is fresh. */
    for (int g = 0; g < GROUPS; g++)
        groups[g].init = groups[g].rows ? (int32_t)((init + g) % 3) : GEMM_FRESH;
    for (int g = 0; g < GROUPS; g++)
        for (int64_t i = 0; i < elements; i++) {
            int64_t at = groups[g].weight * elements + i;
            float before = array_get(&out, at), sum = groups[g].init == GEMM_CHAIN ? before : 0.0f;
            for (int64_t row = groups[g].first; row < groups[g].first + groups[g].rows; row++)
                sum = fmaf(array_get(&a, row * m + i / n), array_get(&b, row * n + i % n), sum);
            array_set(&want, at, groups[g].init == GEMM_ADD ? before + sum : sum);
        }
    struct expert_gradient_args args = {.groups = groups,
        .group_count = GROUPS,
        .rows = rows,
        .m = m,
        .n = n,
        .type = type,
        .a = a.values,
        .b = b.values,
        .owned = out.values,
        .lent = (float *)out.values + OWNED * elements,
        .owned_count = OWNED,
        .lent_count = MATRICES - OWNED};
    struct launch launch = {pool, &kernel_expert_gradient, &args, {&out}, {&want}};
    int64_t faults = launch_faults(&launch);
    array_release((struct array *[]){&a, &b, &out, &want}, 4);
    return faults;
}

static void test_gradient(struct dev_pool *pool)
{
    int64_t faults = 0;
    for (int type = 0; type < 2; type++)
        for (int init = 0; init < 3; init++) {
            faults += gradient_faults(pool, type, 33, 50, few_rows, init);
            faults += gradient_faults(pool, type, 1, 9, few_rows, init);
        }
    tap_ok(!faults, "weight gradients: fresh, chained and added, whatever the buffer held");
    faults = gradient_faults(pool, DTYPE_F32, 530, 40, few_rows, GEMM_FRESH);
    tap_ok(!faults, "weight gradients cut into several blocks");
    faults = gradient_faults(pool, DTYPE_BF16, 20, 30, no_rows, GEMM_FRESH);
    tap_ok(!faults, "an expert without rows has gradient +0, whatever the buffer held");
}

/* ---- activation --------------------------------------------------------------------------- */

/* Numbers where exponentials and signs are special, among ordinary ones. */
static void add_specials(struct array *a, int shift)
{
    static const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 100.0f,
        -100.0f, 88.7f, -88.8f, 104.0f, 3e38f};
    for (int64_t i = 0; i < a->count && i < 13 * 13; i++)
        array_set(a, i, specials[shift ? i % 13 : i / 13 % 13]);
}

static void expect_forward(const struct array *g, const struct array *u, struct array *a)
{
    for (int64_t i = 0; i < u->count; i++)
        array_set(a, i,
            g ? (array_get(g, i) * arith_sigmoid(array_get(g, i))) * array_get(u, i)
              : arith_max(array_get(u, i), 0.0f));
}

static void expect_backward(const struct array *g, const struct array *u, const struct array *dh,
    struct array *dg, struct array *du)
{
    for (int64_t i = 0; i < u->count; i++) {
        float h = array_get(dh, i), up = array_get(u, i);
        if (!g) {
            array_set(du, i, up > 0.0f ? h : 0.0f);
            continue;
        }
        float gate = array_get(g, i), s = 1.0f / (1.0f + arith_exp(-gate));
        array_set(du, i, h * (gate * s));
        array_set(dg, i, (h * up) * (s * fmaf(gate, 1.0f - s, 1.0f)));
    }
}

/* way: which array of the inputs an output shares; 0 = none. */
static int64_t activation_faults(
    struct dev_pool *pool, enum dtype type, int64_t count, bool relu, int way)
{
    struct array g = array_of(type, count, 1), u = array_of(type, count, 2);
    struct array dh = array_of(type, count, 3), a = array_of(type, count, 4);
    struct array dg = array_of(type, count, 5), du = array_of(type, count, 6);
    add_specials(&g, 0);
    add_specials(&u, 1);
    struct array *out = way == 0 ? &a : way == 1 ? &u : &g;
    struct array want = array_copy(out);
    struct expert_activation_args forward = {
        count, type, relu ? NULL : g.values, u.values, out->values};
    expect_forward(relu ? NULL : &g, &u, &want);
    struct launch launch = {pool, &kernel_expert_activation, &forward, {out}, {&want}};
    int64_t faults = launch_faults(&launch);
    free(want.values);

    struct array *gate_out = way == 0 ? &dg : way == 1 ? &g : &dh;
    struct array *up_out = way == 0 ? &du : way == 1 ? &dh : &u;
    struct array want_gate = array_copy(gate_out), want_up = array_copy(up_out);
    struct expert_activation_backward_args backward = {
        count, type, relu ? NULL : g.values, u.values, dh.values, gate_out->values, up_out->values};
    expect_backward(relu ? NULL : &g, &u, &dh, &want_gate, &want_up);
    launch = (struct launch){pool, &kernel_expert_activation_backward, &backward,
        {gate_out, up_out}, {&want_gate, &want_up}};
    faults += launch_faults(&launch);
    array_release((struct array *[]){&g, &u, &dh, &a, &dg, &du, &want_gate, &want_up}, 8);
    return faults;
}

static int64_t silu_faults(struct dev_pool *pool, enum dtype type, int64_t count, bool in_place)
{
    struct array g = array_of(type, count, 1), a = array_of(type, count, 4);
    add_specials(&g, 0);
    struct array *out = in_place ? &g : &a;
    struct array want = array_copy(out);
    struct expert_activation_args args = {count, type, g.values, NULL, out->values};
    for (int64_t i = 0; i < count; i++)
        array_set(&want, i, array_get(&g, i) * arith_sigmoid(array_get(&g, i)));
    struct launch launch = {pool, &kernel_expert_activation, &args, {out}, {&want}};
    int64_t faults = launch_faults(&launch);
    array_release((struct array *[]){&g, &a, &want}, 3);
    return faults;
}

static void test_activation(struct dev_pool *pool)
{
    static const int64_t counts[] = {0, 1, 511, 1025, 40001};
    int64_t swiglu = 0, relu = 0, silu = 0;
    for (int c = 0; c < 5; c++)
        for (int type = 0; type < 2; type++) {
            for (int way = 0; way < 3; way++) {
                swiglu += activation_faults(pool, type, counts[c], false, way);
                if (way < 2)
                    relu += activation_faults(pool, type, counts[c], true, way);
            }
            for (int in_place = 0; in_place < 2; in_place++)
                silu += silu_faults(pool, type, counts[c], in_place);
        }
    tap_ok(!swiglu, "SwiGLU and its backward, apart and in place");
    tap_ok(!relu, "ReLU and its backward, apart and in place; the gate is not touched");
    tap_ok(!silu, "silu alone, apart and in place");
}

/* ---- descriptions ------------------------------------------------------------------------- */

static bool is_range(const struct dev_access *range, const void *from, int64_t bytes, bool write)
{
    return range->from == from && range->bytes == bytes && range->write == write;
}

static void test_descriptions(void)
{
    static struct expert_group groups[3];
    static char a[64], w[64], lent[64], a2[64], w2[64], out[64];
    struct expert_matmul_args args = {.groups = groups,
        .group_count = 3,
        .rows = 10,
        .n = 4,
        .k = 6,
        .layout = GEMM_NN,
        .type = DTYPE_BF16,
        .out_type = DTYPE_BF16,
        .a = a,
        .weights = {w, lent, 2, 1},
        .a_then = a2,
        .weights_then = {w2, NULL, 3, 0},
        .out = out};
    struct dev_access r[DEV_ACCESS_MAX];
    int count = kernel_expert_matmul.access(&args, r);
    tap_ok(count == 7 && is_range(&r[0], groups, 3 * (int64_t)sizeof groups[0], false) &&
               is_range(&r[1], a, 120, false) && is_range(&r[2], w, 96, false) &&
               is_range(&r[3], lent, 48, false) && is_range(&r[4], a2, 120, false) &&
               is_range(&r[5], w2, 144, false) && is_range(&r[6], out, 80, true),
        "an expert product reads its groups, rows, owned and lent matrices");
    struct kernel_cost cost;
    kernel_expert_matmul.cost(&args, &cost);
    tap_ok(cost.flops == 2.0 * 2 * 10 * 4 * 6 && cost.rate == DEV_RATE_BF16 &&
               cost.bytes == 2 * 120 + 2 * 144 + 80 + 3 * (double)sizeof groups[0],
        "its cost counts both halves and a matrix for each group");
    struct combine_rows_args combine = {.from = a,
        .from_rows = 3,
        .position = (const int32_t *)(const void *)w,
        .count = 2,
        .columns = 4,
        .slots = 2,
        .to = out};
    count = kernel_combine_rows.access(&combine, r);
    kernel_combine_rows.cost(&combine, &cost);
    tap_ok(count == 3 && is_range(&r[0], a, 48, false) && is_range(&r[1], w, 16, false) &&
               is_range(&r[2], out, 32, true) && cost.flops == 12 && cost.bytes == 48 + 32 + 16,
        "a sum over slots reads its rows and positions");
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(MOE_KERNEL_WIDTHS);
    if (tap_ok(pool != NULL, "a pool of %d threads", MOE_KERNEL_WIDTHS)) {
        test_matmul(pool);
        test_gradient(pool);
        test_activation(pool);
        test_descriptions();
    }
    dev_pool_free(pool);
    return tap_done();
}
