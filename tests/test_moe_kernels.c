/* The kernels of expert dispatch against scalar loops, bit by bit: every instruction set, teams of
 * one to three, FP32 and BF16, ragged sizes, empty groups and empty slots. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/isa.h"
#include "kernels/moe.h"
#include "tests/kernel_run.h"
#include "tests/tap.h"

enum { WIDTHS = 3, GUARD = 64 };

/* ---- arrays of either type ---------------------------------------------------------------- */

/* Values of many magnitudes, so that another order of a sum gives other bits. */
static float value_at(int64_t index)
{
    uint32_t bits = (uint32_t)index * 2654435761u;
    bits ^= bits >> 15;
    bits *= 2246822519u;
    bits ^= bits >> 13;
    return ldexpf((float)(int32_t)bits, -31 + (int)(bits % 13) - 6);
}

struct array {
    enum dtype type;
    int64_t count;
    void *values; /* with GUARD elements after them */
};

static void set(struct array *a, int64_t i, float value)
{
    if (a->type == DTYPE_BF16)
        ((uint16_t *)a->values)[i] = f32_to_bf16(value);
    else
        ((float *)a->values)[i] = value;
}

static float get(const struct array *a, int64_t i)
{
    return a->type == DTYPE_BF16 ? bf16_to_f32(((uint16_t *)a->values)[i])
                                 : ((float *)a->values)[i];
}

static struct array array_of(enum dtype type, int64_t count, int64_t seed)
{
    struct array a = {type, count, malloc((size_t)((count + GUARD) * dtype_bytes(type)))};
    if (!a.values)
        abort();
    for (int64_t i = 0; i < count + GUARD; i++)
        set(&a, i, value_at(seed * 1000003 + i));
    return a;
}

static struct array copy_of(const struct array *a)
{
    struct array copy = array_of(a->type, a->count, 0);
    memcpy(copy.values, a->values, (size_t)((a->count + GUARD) * dtype_bytes(a->type)));
    return copy;
}

static void release(struct array *arrays[], int count)
{
    for (int i = 0; i < count; i++)
        free(arrays[i]->values);
}

/* Elements whose bits differ, the guard included; every NaN is one NaN. */
static int64_t faults_of(const struct array *got, const struct array *want)
{
    int64_t faults = 0;
    for (int64_t i = 0; i < want->count + GUARD; i++) {
        float a = get(got, i), b = get(want, i);
        faults += f32_bits(a) != f32_bits(b) && !(isnan(a) && isnan(b));
    }
    return faults;
}

static uint32_t random_state = 1;

static int32_t random_below(int64_t end)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int32_t)((random_state >> 8) % (uint32_t)end);
}

/* The numbers below `count` in some order. */
static int32_t *permutation(int64_t count)
{
    int32_t *list = malloc((size_t)(count + 1) * sizeof *list);
    if (!list)
        abort();
    for (int64_t i = 0; i < count; i++)
        list[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        int32_t j = random_below(i + 1), held = list[i];
        list[i] = list[j];
        list[j] = held;
    }
    return list;
}

/* ---- every variant ------------------------------------------------------------------------ */

/* Runs the launch with each instruction set and width on a fresh copy of what it writes, and counts
 * elements that differ from what is wanted. */
struct launch {
    struct dev_pool *pool;
    const struct kernel *kernel;
    const void *args;
    struct array *out[2];        /* what args points to */
    const struct array *want[2]; /* NULL = none */
};

static int64_t run_everywhere(const struct launch *l)
{
    int64_t faults = 0;
    struct array before[2];
    for (int i = 0; i < 2 && l->out[i]; i++)
        before[i] = copy_of(l->out[i]);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int width = 1; isa_available((enum isa)isa) && width <= WIDTHS; width++) {
            isa_force((enum isa)isa);
            for (int i = 0; i < 2 && l->out[i]; i++)
                memcpy(l->out[i]->values, before[i].values,
                    (size_t)((before[i].count + GUARD) * dtype_bytes(before[i].type)));
            kernel_run(l->pool, width, l->kernel, l->args);
            for (int i = 0; i < 2 && l->out[i]; i++)
                faults += faults_of(l->out[i], l->want[i]);
        }
    for (int i = 0; i < 2 && l->out[i]; i++)
        free(before[i].values);
    return faults;
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Moves rows by a permutation of more rows than are named. */
static int64_t move_faults(struct dev_pool *pool, int64_t count, int64_t row_bytes, bool scatter)
{
    int64_t rows = count + 3, bytes = rows * row_bytes;
    char *from = malloc((size_t)bytes + 1), *to = malloc((size_t)bytes + 1);
    char *want = malloc((size_t)bytes + 1);
    int32_t *index = permutation(rows);
    int64_t faults = 0;
    if (!from || !to || !want)
        abort();
    for (int64_t i = 0; i < bytes; i++)
        from[i] = (char)(i * 131 + (i >> 9));
    memset(want, 0x5a, (size_t)bytes + 1);
    for (int64_t i = 0; i < count; i++)
        memcpy(want + (scatter ? index[i] : i) * row_bytes,
            from + (scatter ? i : index[i]) * row_bytes, (size_t)row_bytes);
    for (int width = 1; width <= WIDTHS; width++) {
        memset(to, 0x5a, (size_t)bytes + 1);
        struct gather_rows_args gather = {to, from, index, count, rows, row_bytes};
        struct scatter_rows_args put = {to, from, index, count, rows, row_bytes};
        if (scatter)
            kernel_run(pool, width, &kernel_scatter_rows, &put);
        else
            kernel_run(pool, width, &kernel_gather_rows, &gather);
        faults += memcmp(to, want, (size_t)bytes + 1) != 0;
    }
    free(from);
    free(to);
    free(want);
    free(index);
    return faults;
}

static void test_rows(struct dev_pool *pool)
{
    static const int64_t counts[] = {0, 1, 7, 300}, sizes[] = {1, 4, 6, 64, 200, 4096};
    int64_t gather = 0, scatter = 0;
    for (int c = 0; c < 4; c++)
        for (int s = 0; s < 6; s++) {
            gather += move_faults(pool, counts[c], sizes[s], false);
            scatter += move_faults(pool, counts[c], sizes[s], true);
        }
    tap_ok(!gather, "gathered rows");
    tap_ok(!scatter, "scattered rows; those not named stay");
    /* Long enough to be written past the caches; rows that begin and end within a line. */
    tap_ok(!move_faults(pool, 1100, 8190, false), "gathered rows, streamed");
    tap_ok(!move_faults(pool, 1100, 8190, true), "scattered rows, streamed");
}

/* ---- expert products ---------------------------------------------------------------------- */

enum { GROUPS = 8, OWNED = 5, MATRICES = 9 };

/* Ragged groups with a gap before some of them, matrices in any order, none twice. */
static int64_t make_groups(struct expert_group *groups, const int64_t *rows)
{
    int32_t *weight = permutation(MATRICES);
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
        sum = fmaf(get(a, row * args->k + k), get(w, matrix * args->n * args->k + at), sum);
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
    struct array out = array_of(c->out_type, rows * c->n, 5), want = copy_of(&out);
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
                set(&want, row * c->n + n, sum);
            }
    struct launch launch = {pool, &kernel_expert_matmul, &args, {&out}, {&want}};
    int64_t faults = run_everywhere(&launch);
    release((struct array *[]){&a, &a2, &w, &w2, &out, &want}, 6);
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
    struct array out = array_of(DTYPE_F32, MATRICES * elements, 3), want = copy_of(&out);
    /* One launch holds all three kinds; an empty group is fresh. */
    for (int g = 0; g < GROUPS; g++)
        groups[g].init = groups[g].rows ? (int32_t)((init + g) % 3) : GEMM_FRESH;
    for (int g = 0; g < GROUPS; g++)
        for (int64_t i = 0; i < elements; i++) {
            int64_t at = groups[g].weight * elements + i;
            float before = get(&out, at), sum = groups[g].init == GEMM_CHAIN ? before : 0.0f;
            for (int64_t row = groups[g].first; row < groups[g].first + groups[g].rows; row++)
                sum = fmaf(get(&a, row * m + i / n), get(&b, row * n + i % n), sum);
            set(&want, at, groups[g].init == GEMM_ADD ? before + sum : sum);
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
    int64_t faults = run_everywhere(&launch);
    release((struct array *[]){&a, &b, &out, &want}, 4);
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
        set(a, i, specials[shift ? i % 13 : i / 13 % 13]);
}

static void expect_forward(const struct array *g, const struct array *u, struct array *a)
{
    for (int64_t i = 0; i < u->count; i++)
        set(a, i,
            g ? (get(g, i) * arith_sigmoid(get(g, i))) * get(u, i) : arith_max(get(u, i), 0.0f));
}

static void expect_backward(const struct array *g, const struct array *u, const struct array *dh,
    struct array *dg, struct array *du)
{
    for (int64_t i = 0; i < u->count; i++) {
        float h = get(dh, i), up = get(u, i);
        if (!g) {
            set(du, i, up > 0.0f ? h : 0.0f);
            continue;
        }
        float gate = get(g, i), s = 1.0f / (1.0f + arith_exp(-gate));
        set(du, i, h * (gate * s));
        set(dg, i, (h * up) * (s * fmaf(gate, 1.0f - s, 1.0f)));
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
    struct array want = copy_of(out);
    struct expert_activation_args forward = {
        count, type, relu ? NULL : g.values, u.values, out->values};
    expect_forward(relu ? NULL : &g, &u, &want);
    struct launch launch = {pool, &kernel_expert_activation, &forward, {out}, {&want}};
    int64_t faults = run_everywhere(&launch);
    free(want.values);

    struct array *gate_out = way == 0 ? &dg : way == 1 ? &g : &dh;
    struct array *up_out = way == 0 ? &du : way == 1 ? &dh : &u;
    struct array want_gate = copy_of(gate_out), want_up = copy_of(up_out);
    struct expert_activation_backward_args backward = {
        count, type, relu ? NULL : g.values, u.values, dh.values, gate_out->values, up_out->values};
    expect_backward(relu ? NULL : &g, &u, &dh, &want_gate, &want_up);
    launch = (struct launch){pool, &kernel_expert_activation_backward, &backward,
        {gate_out, up_out}, {&want_gate, &want_up}};
    faults += run_everywhere(&launch);
    release((struct array *[]){&g, &u, &dh, &a, &dg, &du, &want_gate, &want_up}, 8);
    return faults;
}

static int64_t silu_faults(struct dev_pool *pool, enum dtype type, int64_t count, bool in_place)
{
    struct array g = array_of(type, count, 1), a = array_of(type, count, 4);
    add_specials(&g, 0);
    struct array *out = in_place ? &g : &a;
    struct array want = copy_of(out);
    struct expert_activation_args args = {count, type, g.values, NULL, out->values};
    for (int64_t i = 0; i < count; i++)
        set(&want, i, get(&g, i) * arith_sigmoid(get(&g, i)));
    struct launch launch = {pool, &kernel_expert_activation, &args, {out}, {&want}};
    int64_t faults = run_everywhere(&launch);
    release((struct array *[]){&g, &a, &want}, 3);
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

/* ---- combine ------------------------------------------------------------------------------ */

struct combine_case {
    enum dtype from_type, to_type;
    int64_t count, columns;
    int slots;
    bool weighted, listed, take_first, continued;
};

static int64_t combine_faults(struct dev_pool *pool, const struct combine_case *c)
{
    int64_t positions = c->count * c->slots, to_rows = c->listed ? c->count + 4 : c->count;
    struct array from = array_of(c->from_type, positions * c->columns, 1);
    struct array weight = array_of(DTYPE_F32, to_rows * c->slots, 2);
    struct array to = array_of(c->to_type, to_rows * c->columns, 3), want = copy_of(&to);
    int32_t *position = permutation(positions), *token = permutation(to_rows);
    for (int64_t i = 0; i < positions; i++) {
        if (random_below(4) == 0 || i / c->slots == 1)
            position[i] = -1;
        else if (position[i] % 5 == 0) /* rows of -0, which a chain from +0 turns into +0 */
            for (int64_t h = 0; h < c->columns; h++)
                set(&from, position[i] * c->columns + h, -0.0f);
    }
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t h = 0; h < c->columns; h++) {
            int64_t t = c->listed ? token[i] : i;
            float sum = c->continued ? get(&want, t * c->columns + h) : 0.0f;
            bool any = false;
            for (int slot = 0; slot < c->slots; slot++) {
                int32_t p = position[i * c->slots + slot];
                if (p < 0)
                    continue;
                float value = get(&from, p * c->columns + h);
                if (c->weighted)
                    sum = fmaf(get(&weight, t * c->slots + slot), value, sum);
                else
                    sum = c->take_first && !any ? value : sum + value;
                any = true;
            }
            set(&want, t * c->columns + h, sum);
        }
    struct combine_rows_args args = {.from = from.values,
        .from_rows = positions,
        .from_type = c->from_type,
        .position = position,
        .weight = c->weighted ? weight.values : NULL,
        .token = c->listed ? token : NULL,
        .count = c->count,
        .columns = c->columns,
        .to_rows = to_rows,
        .slots = c->slots,
        .take_first = c->take_first,
        .continued = c->continued,
        .to_type = c->to_type,
        .to = to.values};
    struct launch launch = {pool, &kernel_combine_rows, &args, {&to}, {&want}};
    int64_t faults = run_everywhere(&launch);
    release((struct array *[]){&from, &weight, &to, &want}, 4);
    free(position);
    free(token);
    return faults;
}

static void test_combine(struct dev_pool *pool)
{
    static const int64_t sizes[][3] = {
        {0, 5, 2}, {1, 1, 1}, {7, 31, 3}, {60, 700, 4}, {9, 513, 64}};
    int64_t weighted = 0, plain = 0, first = 0, continued = 0;
    for (int s = 0; s < 5; s++)
        for (int way = 0; way < 8; way++) {
            struct combine_case c = {way & 1, (way >> 1) & 1, sizes[s][0], sizes[s][1],
                (int)sizes[s][2], true, way >> 2, false, false};
            weighted += combine_faults(pool, &c);
            c.continued = true;
            continued += c.to_type == DTYPE_F32 ? combine_faults(pool, &c) : 0;
            c.continued = false;
            c.weighted = false;
            plain += combine_faults(pool, &c);
            c.take_first = true;
            first += combine_faults(pool, &c);
            c.take_first = false;
            c.continued = true;
            continued += c.to_type == DTYPE_F32 ? combine_faults(pool, &c) : 0;
        }
    tap_ok(!weighted, "combine: weighted rows, slots ascending, empty slots passed over");
    tap_ok(!plain, "rows added from +0");
    tap_ok(!first, "rows added from the first of them");
    tap_ok(!continued, "both kinds of sums continued from what was there");
}

/* ---- backward at a route ------------------------------------------------------------------ */

static float expect_dot(
    const struct array *a, int64_t a_at, const struct array *b, int64_t b_at, int64_t count)
{
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t i = 0; i < count; i++)
        lanes[i % ARITH_LANES] = fmaf(get(a, a_at + i), get(b, b_at + i), lanes[i % ARITH_LANES]);
    return arith_add_lanes(lanes);
}

/* Indexed: more tokens and routes than rows, in any order. In place: de is dy. */
static int64_t route_faults(
    struct dev_pool *pool, enum dtype type, int64_t count, int64_t columns, bool indexed)
{
    int64_t dy_rows = indexed ? count / 2 + 1 : count, routes = indexed ? count + 5 : count;
    struct array dy = array_of(type, dy_rows * columns, 1), e = array_of(type, count * columns, 2);
    struct array weight = array_of(DTYPE_F32, routes, 3), dw = array_of(DTYPE_F32, routes, 4);
    struct array apart = array_of(type, count * columns, 5);
    struct array *de = indexed ? &apart : &dy;
    struct array want_de = copy_of(de), want_dw = copy_of(&dw);
    int32_t *dy_row = permutation(count), *route = permutation(routes);
    for (int64_t i = 0; i < count; i++)
        dy_row[i] %= (int32_t)dy_rows;
    for (int64_t i = 0; i < count; i++) {
        int64_t t = indexed ? dy_row[i] : i, r = indexed ? route[i] : i;
        set(&want_dw, r, expect_dot(&e, i * columns, &dy, t * columns, columns));
        for (int64_t h = 0; h < columns; h++)
            set(&want_de, i * columns + h, get(&weight, r) * get(&dy, t * columns + h));
    }
    struct route_backward_args args = {.count = count,
        .columns = columns,
        .type = type,
        .dy = dy.values,
        .dy_rows = dy_rows,
        .dy_row = indexed ? dy_row : NULL,
        .route = indexed ? route : NULL,
        .routes = routes,
        .weight = weight.values,
        .e = e.values,
        .de = de->values,
        .dw = dw.values};
    struct launch launch = {pool, &kernel_route_backward, &args, {de, &dw}, {&want_de, &want_dw}};
    int64_t faults = run_everywhere(&launch);
    if (indexed) { /* either half alone; what the other would write stays */
        args.de = NULL;
        launch = (struct launch){pool, &kernel_route_backward, &args, {&dw}, {&want_dw}};
        faults += run_everywhere(&launch);
        args.dw = NULL;
        args.e = NULL;
        args.de = de->values;
        launch = (struct launch){pool, &kernel_route_backward, &args, {de}, {&want_de}};
        faults += run_everywhere(&launch);
    }
    release((struct array *[]){&dy, &e, &weight, &dw, &apart, &want_de, &want_dw}, 7);
    free(dy_row);
    free(route);
    return faults;
}

static void test_route(struct dev_pool *pool)
{
    static const int64_t sizes[][2] = {{0, 8}, {1, 1}, {9, 31}, {40, 1000}, {3, 64}};
    int64_t indexed = 0, in_place = 0;
    for (int s = 0; s < 5; s++)
        for (int type = 0; type < 2; type++) {
            indexed += route_faults(pool, type, sizes[s][0], sizes[s][1], true);
            in_place += route_faults(pool, type, sizes[s][0], sizes[s][1], false);
        }
    tap_ok(!indexed, "dw and de found by indices, together and alone");
    tap_ok(!in_place, "dw and de of received rows, de in place of dy");
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
    struct dev_pool *pool = dev_pool_create(WIDTHS);
    if (tap_ok(pool != NULL, "a pool of %d threads", WIDTHS)) {
        test_rows(pool);
        test_matmul(pool);
        test_gradient(pool);
        test_activation(pool);
        test_combine(pool);
        test_route(pool);
        test_descriptions();
    }
    dev_pool_free(pool);
    return tap_done();
}
