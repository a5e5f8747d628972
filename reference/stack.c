/* The stack, layer by layer, in FP32 with every stored tensor rounded. */
#include "reference/stack.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reference/product.h"

#define EPS 1e-5f

/* Everything in FP32 that holds values of the problem's type. */
struct work {
    const struct ref_stack_problem *problem;
    float *boundary;                /* [L + 1, N, H]: inputs of all layers, and the output */
    float *gain, *gate, *up, *down; /* of the layer at work */
    float *gate_turned, *up_turned; /* [F, H] */
    float *down_turned;             /* [H, F] */
    float *n, *r, *g, *u, *a;       /* [N, H], [N], [N, F] */
    float *dy, *dn, *da, *dg, *du, *turned; /* turned: [max(H, F), N] */
};

/* Rounds values to what the problem stores. */
static void round_stored(enum dtype type, float *values, int64_t count)
{
    if (type == DTYPE_BF16)
        for (int64_t i = 0; i < count; i++)
            values[i] = bf16_to_f32(f32_to_bf16(values[i]));
}

static void store(enum dtype type, const float *values, int64_t count, void *to)
{
    if (type == DTYPE_F32) {
        memcpy(to, values, (size_t)count * sizeof *values);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        ((uint16_t *)to)[i] = f32_to_bf16(values[i]);
}

/* ---- one layer --------------------------------------------------------------------------------
 */

static void load_layer(struct work *k, int64_t l)
{
    const struct ref_stack_problem *p = k->problem;
    ref_load_rows(p->dtype, p->gain, NULL, l, 1, p->hidden, k->gain);
    ref_load_rows(p->dtype, p->gate, NULL, l * p->hidden, p->hidden, p->ffn, k->gate);
    ref_load_rows(p->dtype, p->up, NULL, l * p->hidden, p->hidden, p->ffn, k->up);
    ref_load_rows(p->dtype, p->down, NULL, l * p->ffn, p->ffn, p->hidden, k->down);
    ref_transpose(k->gate, p->hidden, p->ffn, k->gate_turned);
    ref_transpose(k->up, p->hidden, p->ffn, k->up_turned);
    ref_transpose(k->down, p->ffn, p->hidden, k->down_turned);
}

/* Rows of n, and r. */
static void normalise(struct work *k, const float *x)
{
    const int64_t hidden = k->problem->hidden;
    for (int64_t t = 0; t < k->problem->tokens; t++) {
        const float *row = x + t * hidden;
        float lanes[ARITH_LANES] = {0.0f};
        for (int64_t h = 0; h < hidden; h++)
            lanes[h % ARITH_LANES] = lanes[h % ARITH_LANES] + row[h] * row[h];
        float mean = arith_add_lanes(lanes) / (float)hidden;
        k->r[t] = 1.0f / sqrtf(mean + EPS);
        for (int64_t h = 0; h < hidden; h++)
            k->n[t * hidden + h] = (row[h] * k->r[t]) * k->gain[h];
    }
    round_stored(k->problem->dtype, k->n, k->problem->tokens * hidden);
}

/* c [m, n] = a [m, s] b [s, n] from +0, stored. */
static void stored_product(
    const struct work *k, const float *a, const float *b, float *c, int64_t m, int64_t n, int64_t s)
{
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    ref_product(a, b, c, m, n, s);
    round_stored(k->problem->dtype, c, m * n);
}

/* n, r, g, u, a of the layer that is loaded. */
static void hidden_forward(struct work *k, const float *x)
{
    const struct ref_stack_problem *p = k->problem;
    normalise(k, x);
    stored_product(k, k->n, k->gate, k->g, p->tokens, p->ffn, p->hidden);
    stored_product(k, k->n, k->up, k->u, p->tokens, p->ffn, p->hidden);
    for (int64_t i = 0; i < p->tokens * p->ffn; i++)
        k->a[i] = arith_silu(k->g[i]) * k->u[i];
    round_stored(p->dtype, k->a, p->tokens * p->ffn);
}

static void layer_forward(struct work *k, int64_t l)
{
    const struct ref_stack_problem *p = k->problem;
    const int64_t count = p->tokens * p->hidden;
    const float *x = k->boundary + l * count;
    float *y = k->boundary + (l + 1) * count;
    load_layer(k, l);
    hidden_forward(k, x);
    stored_product(k, k->a, k->down, y, p->tokens, p->hidden, p->ffn);
    for (int64_t i = 0; i < count; i++)
        y[i] = y[i] + x[i];
    round_stored(p->dtype, y, count);
}

/* out [m, n] = chain over tokens of a [N, m], b [N, n]. */
static void weight_gradient(
    struct work *k, const float *a, const float *b, int64_t m, int64_t n, float *out)
{
    ref_transpose(a, k->problem->tokens, m, k->turned);
    memset(out, 0, (size_t)(m * n) * sizeof *out);
    ref_product(k->turned, b, out, m, n, k->problem->tokens);
}

/* dx over dy, and dgain. */
static void normalise_backward(struct work *k, const float *x, float *dgain)
{
    const int64_t hidden = k->problem->hidden;
    for (int64_t h = 0; h < hidden; h++)
        dgain[h] = 0.0f;
    for (int64_t t = 0; t < k->problem->tokens; t++) {
        const float *row = x + t * hidden, *dn = k->dn + t * hidden;
        const float r = k->r[t];
        float *dy = k->dy + t * hidden, lanes[ARITH_LANES] = {0.0f};
        for (int64_t h = 0; h < hidden; h++) {
            float q = dn[h] * k->gain[h];
            lanes[h % ARITH_LANES] = fmaf(q, row[h], lanes[h % ARITH_LANES]);
            dgain[h] = fmaf(dn[h], row[h] * r, dgain[h]);
        }
        float c = (r * r) * (arith_add_lanes(lanes) / (float)hidden);
        for (int64_t h = 0; h < hidden; h++)
            dy[h] = dy[h] + r * fmaf(-c, row[h], dn[h] * k->gain[h]);
    }
    round_stored(k->problem->dtype, k->dy, k->problem->tokens * hidden);
}

static void layer_backward(struct work *k, int64_t l, struct ref_stack_result *result)
{
    const struct ref_stack_problem *p = k->problem;
    const int64_t matrix = p->hidden * p->ffn;
    const float *x = k->boundary + l * p->tokens * p->hidden;
    load_layer(k, l);
    hidden_forward(k, x);
    weight_gradient(k, k->a, k->dy, p->ffn, p->hidden, result->ddown + l * matrix);
    stored_product(k, k->dy, k->down_turned, k->da, p->tokens, p->ffn, p->hidden);
    for (int64_t i = 0; i < p->tokens * p->ffn; i++) {
        float g = k->g[i], u = k->u[i], da = k->da[i], s = arith_sigmoid(g);
        k->du[i] = da * (g * s);
        k->dg[i] = (da * u) * (s * fmaf(g, 1.0f - s, 1.0f));
    }
    round_stored(p->dtype, k->du, p->tokens * p->ffn);
    round_stored(p->dtype, k->dg, p->tokens * p->ffn);
    weight_gradient(k, k->n, k->dg, p->hidden, p->ffn, result->dgate + l * matrix);
    weight_gradient(k, k->n, k->du, p->hidden, p->ffn, result->dup + l * matrix);
    memset(k->dn, 0, (size_t)(p->tokens * p->hidden) * sizeof *k->dn);
    ref_product(k->dg, k->gate_turned, k->dn, p->tokens, p->hidden, p->ffn);
    ref_product(k->du, k->up_turned, k->dn, p->tokens, p->hidden, p->ffn);
    round_stored(p->dtype, k->dn, p->tokens * p->hidden);
    normalise_backward(k, x, result->dgain + l * p->hidden);
}

/* ---- the whole --------------------------------------------------------------------------------
 */

static float *floats(int64_t count)
{
    return malloc(((size_t)count + 1) * sizeof(float));
}

static void work_free(struct work *k)
{
    float *const blocks[] = {k->boundary, k->gain, k->gate, k->up, k->down, k->gate_turned,
        k->up_turned, k->down_turned, k->n, k->r, k->g, k->u, k->a, k->dy, k->dn, k->da, k->dg,
        k->du, k->turned};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

static int work_alloc(struct work *k, const struct ref_stack_problem *p)
{
    const int64_t rows = p->tokens * p->hidden, wide = p->tokens * p->ffn;
    const int64_t matrix = p->hidden * p->ffn;
    *k = (struct work){.problem = p,
        .boundary = floats((p->layers + 1) * rows),
        .gain = floats(p->hidden),
        .gate = floats(matrix),
        .up = floats(matrix),
        .down = floats(matrix),
        .gate_turned = floats(matrix),
        .up_turned = floats(matrix),
        .down_turned = floats(matrix),
        .n = floats(rows),
        .r = floats(p->tokens),
        .g = floats(wide),
        .u = floats(wide),
        .a = floats(wide),
        .dy = floats(rows),
        .dn = floats(rows),
        .da = floats(wide),
        .dg = floats(wide),
        .du = floats(wide),
        .turned = floats(rows > wide ? rows : wide)};
    bool all = k->boundary && k->gain && k->gate && k->up && k->down && k->gate_turned &&
               k->up_turned && k->down_turned && k->n && k->r && k->g && k->u && k->a && k->dy &&
               k->dn && k->da && k->dg && k->du && k->turned;
    return all ? 0 : -1;
}

int ref_stack(
    const struct ref_stack_problem *problem, struct ref_stack_result *result, char *error, int size)
{
    const struct ref_stack_problem *p = problem;
    const int64_t rows = p->tokens * p->hidden;
    struct work k;
    if (p->tokens < 0 || p->layers < 1 || p->hidden < 1 || p->ffn < 1) {
        snprintf(error, (size_t)size,
            "got %lld tokens, %lld layers, widths %lld and %lld, allowed positive sizes",
            (long long)p->tokens, (long long)p->layers, (long long)p->hidden, (long long)p->ffn);
        return -1;
    }
    if (work_alloc(&k, p)) {
        work_free(&k);
        snprintf(error, (size_t)size, "no host memory for the reference");
        return -1;
    }
    ref_load_rows(p->dtype, p->x, NULL, 0, p->tokens, p->hidden, k.boundary);
    for (int64_t l = 0; l < p->layers; l++)
        layer_forward(&k, l);
    store(p->dtype, k.boundary + p->layers * rows, rows, result->y);
    if (result->dx) {
        ref_load_rows(p->dtype, p->dy, NULL, 0, p->tokens, p->hidden, k.dy);
        for (int64_t l = p->layers - 1; l >= 0; l--)
            layer_backward(&k, l, result);
        store(p->dtype, k.dy, rows, result->dx);
    }
    work_free(&k);
    return 0;
}
