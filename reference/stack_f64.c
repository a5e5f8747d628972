/* The stack in FP64 with nothing rounded to a stored type: written from the formulas of calculus,
 * not from the FP32 reference, so that a mistake in one is not mirrored by the other. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reference/product.h"
#include "reference/stack.h"

#define EPS 1e-5f

struct work {
    const struct ref_stack_problem *problem;
    double *boundary;                        /* [L + 1, N, H] */
    double *gain, *gate, *up, *down;         /* of the layer at work */
    double *n, *g, *u, *a;                   /* [N, H], [N, F] */
    double *dy, *dn, *da, *dg, *du, *turned; /* turned: the largest of all matrices turned over */
};

static void widen(enum dtype type, const void *from, int64_t first, int64_t count, double *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = type == DTYPE_BF16 ? (double)bf16_to_f32(((const uint16_t *)from)[first + i])
                                   : (double)((const float *)from)[first + i];
}

static void load_layer(struct work *k, int64_t l)
{
    const struct ref_stack_problem *p = k->problem;
    const int64_t matrix = p->hidden * p->ffn;
    widen(p->dtype, p->gain, l * p->hidden, p->hidden, k->gain);
    widen(p->dtype, p->gate, l * matrix, matrix, k->gate);
    widen(p->dtype, p->up, l * matrix, matrix, k->up);
    widen(p->dtype, p->down, l * matrix, matrix, k->down);
}

/* c [m, n] = a [m, s] b [s, n]. */
static void product(const double *a, const double *b, double *c, int64_t m, int64_t n, int64_t s)
{
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    ref_product_f64(a, b, c, m, n, s);
}

/* turned = in [rows, columns] turned over. */
static const double *turn(struct work *k, const double *in, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            k->turned[j * rows + i] = in[i * columns + j];
    return k->turned;
}

/* 1 / rms of a row. */
static double row_scale(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / (double)count + (double)EPS);
}

static void hidden_forward(struct work *k, const double *x)
{
    const struct ref_stack_problem *p = k->problem;
    for (int64_t t = 0; t < p->tokens; t++) {
        double r = row_scale(x + t * p->hidden, p->hidden);
        for (int64_t h = 0; h < p->hidden; h++)
            k->n[t * p->hidden + h] = x[t * p->hidden + h] * r * k->gain[h];
    }
    product(k->n, k->gate, k->g, p->tokens, p->ffn, p->hidden);
    product(k->n, k->up, k->u, p->tokens, p->ffn, p->hidden);
    for (int64_t i = 0; i < p->tokens * p->ffn; i++)
        k->a[i] = k->g[i] / (1 + exp(-k->g[i])) * k->u[i];
}

/* dy and dn to dx over dy, through n = gain x / rms(x). */
static void normalise_backward(struct work *k, const double *x, double *dgain)
{
    const int64_t hidden = k->problem->hidden;
    memset(dgain, 0, (size_t)hidden * sizeof *dgain);
    for (int64_t t = 0; t < k->problem->tokens; t++) {
        const double *row = x + t * hidden, *dn = k->dn + t * hidden;
        double r = row_scale(row, hidden), along = 0;
        for (int64_t h = 0; h < hidden; h++) {
            dgain[h] += dn[h] * row[h] * r;
            along += dn[h] * k->gain[h] * row[h];
        }
        for (int64_t h = 0; h < hidden; h++)
            k->dy[t * hidden + h] +=
                r * dn[h] * k->gain[h] - r * r * r * along / (double)hidden * row[h];
    }
}

static void layer_backward(struct work *k, int64_t l, struct ref_stack_f64 *out)
{
    const struct ref_stack_problem *p = k->problem;
    const int64_t n = p->tokens, hidden = p->hidden, ffn = p->ffn, matrix = hidden * ffn;
    const double *x = k->boundary + l * n * hidden;
    load_layer(k, l);
    hidden_forward(k, x);
    product(turn(k, k->a, n, ffn), k->dy, out->ddown + l * matrix, ffn, hidden, n);
    product(k->dy, turn(k, k->down, ffn, hidden), k->da, n, ffn, hidden);
    for (int64_t i = 0; i < n * ffn; i++) {
        double s = 1 / (1 + exp(-k->g[i]));
        k->du[i] = k->da[i] * k->g[i] * s;
        k->dg[i] = k->da[i] * k->u[i] * (s + k->g[i] * s * (1 - s));
    }
    product(turn(k, k->n, n, hidden), k->dg, out->dgate + l * matrix, hidden, ffn, n);
    product(turn(k, k->n, n, hidden), k->du, out->dup + l * matrix, hidden, ffn, n);
    product(k->dg, turn(k, k->gate, hidden, ffn), k->dn, n, hidden, ffn);
    ref_product_f64(k->du, turn(k, k->up, hidden, ffn), k->dn, n, hidden, ffn);
    normalise_backward(k, x, out->dgain + l * hidden);
}

static double *doubles(int64_t count)
{
    return malloc(((size_t)count + 1) * sizeof(double));
}

static void work_free(struct work *k)
{
    double *const blocks[] = {k->boundary, k->gain, k->gate, k->up, k->down, k->n, k->g, k->u, k->a,
        k->dy, k->dn, k->da, k->dg, k->du, k->turned};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

static bool work_alloc(struct work *k, const struct ref_stack_problem *p)
{
    const int64_t rows = p->tokens * p->hidden, wide = p->tokens * p->ffn;
    const int64_t matrix = p->hidden * p->ffn, widest = rows > wide ? rows : wide;
    *k = (struct work){.problem = p,
        .boundary = doubles((p->layers + 1) * rows),
        .gain = doubles(p->hidden),
        .gate = doubles(matrix),
        .up = doubles(matrix),
        .down = doubles(matrix),
        .n = doubles(rows),
        .g = doubles(wide),
        .u = doubles(wide),
        .a = doubles(wide),
        .dy = doubles(rows),
        .dn = doubles(rows),
        .da = doubles(wide),
        .dg = doubles(wide),
        .du = doubles(wide),
        .turned = doubles(widest > matrix ? widest : matrix)};
    return k->boundary && k->gain && k->gate && k->up && k->down && k->n && k->g && k->u && k->a &&
           k->dy && k->dn && k->da && k->dg && k->du && k->turned;
}

int ref_stack_f64(
    const struct ref_stack_problem *problem, struct ref_stack_f64 *result, char *error, int size)
{
    const struct ref_stack_problem *p = problem;
    const int64_t rows = p->tokens * p->hidden;
    struct work k;
    if (!work_alloc(&k, p)) {
        work_free(&k);
        snprintf(error, (size_t)size, "no host memory for the FP64 reference");
        return -1;
    }
    widen(p->dtype, p->x, 0, rows, k.boundary);
    for (int64_t l = 0; l < p->layers; l++) {
        const double *x = k.boundary + l * rows;
        double *y = k.boundary + (l + 1) * rows;
        load_layer(&k, l);
        hidden_forward(&k, x);
        memcpy(y, x, (size_t)rows * sizeof *y);
        ref_product_f64(k.a, k.down, y, p->tokens, p->hidden, p->ffn);
    }
    memcpy(result->y, k.boundary + p->layers * rows, (size_t)rows * sizeof *result->y);
    if (result->dx) {
        widen(p->dtype, p->dy, 0, rows, k.dy);
        for (int64_t l = p->layers - 1; l >= 0; l--)
            layer_backward(&k, l, result);
        memcpy(result->dx, k.dy, (size_t)rows * sizeof *result->dx);
    }
    work_free(&k);
    return 0;
}
