/* The dispatch problem in FP64, and how far from it an FP32 result may lie.
 *
 * The bounds hold for every implementation under docs/ARITHMETIC.md, whatever order it declares,
 * and contain no tuned constant (Higham, Accuracy and Stability of Numerical Algorithms, chapter
 * 3). Each rounding multiplies by 1 + d, |d| <= u, or, where the result is denormal, adds at most
 * 2^-150. FP32 has u = 2^-24 and BF16, with its 8 significant bits, u_b = 2^-8 (2^-134 below its
 * normal range). gamma(n) = n u / (1 - n u) bounds what n roundings do to one term. A hat marks
 * what the implementation has: for every stored tensor t both the FP64 value t and a bound E_t >=
 * |t^ - t| are carried from step to step.
 *
 * Chain over n products of a carried tensor with an exact one (a weight). Each term is rounded at
 * most n times:
 *
 *     E = sum (E_a + gamma(n) (|a| + E_a)) |b| + n 2^-149.
 *
 * With two carried factors, as in dWdown = sum de a, the term's own error is
 * E_de (|a| + E_a) + |de| E_a, and gamma(n) meets (|de| + E_de) (|a| + E_a). A sum of n terms cut
 * into any segments rounds a term at most n times too: at most l times in its own segment of length
 * l, and once for each of the other segments, of which there are at most n - l. So it is with a
 * weight gradient over its n routes, and with a token's sum over at most k slots. The dot product
 * of dw rounds a term at most ceil(H / 32) times in its lane and 5 times as lanes are added.
 *
 * One operation on carried values: exact propagation, then u (|result| + E) + 2^-149. A store to
 * BF16 adds u_b (|t| + E) + 2^-134.
 *
 * Sigmoid. s = 1 / (1 + exp(-g)) has slope s (1 - s) <= 1/4 and log-slope 1 - s <= 1, so an error E
 * of g moves it by at most min(E / 4, s (exp(E) - 1)). The exponential, the sum and the quotient
 * add three roundings. Where exp(-g) overflows the result is 0 and the true value below 2^-127.
 *
 * ReLU. max moves by no more than its argument. The sign that du depends on is open where
 * |u| <= E_u: du is then dh or 0.
 *
 * FP32's range. The partial sums of a chain are at most sum (|a| + E_a) |b| (1 + gamma), which is
 * at most E (1 + gamma) / gamma: where E reaches gamma(n) FLT_MAX / 2, or a value its error
 * included reaches FLT_MAX / 2, overflow is not excluded and nothing is known: the bound is
 * infinite, and so is every bound it enters. An infinite input enters as 0 with an infinite bound.
 * NaN inputs make NaN whatever the order, and pass through every step but ReLU's backward (+0).
 *
 * FP64's other errors have the same form with 2^-53 for u. UNIT is u (1 + 2^-20): the excess,
 * 2^-44, pays for those, for what second-order terms of u the formulas above drop, and for the
 * rounding of the bounds themselves. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reference/moe.h"
#include "reference/product.h"

#define UNIT (0x1p-24 * (1.0 + 0x1p-20))
#define DENORMAL 0x1p-149
#define UNIT_BF16 0x1p-8
#define DENORMAL_BF16 0x1p-134
#define LARGEST ((double)FLT_MAX / 2.0)

#define ROUTE_BLOCK 128

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static double gamma_of(int64_t roundings)
{
    double nu = (double)roundings * UNIT;
    return nu < 1.0 ? nu / (1.0 - nu) : INFINITY;
}

/* ---- one carried value -------------------------------------------------------------------- */

struct carried {
    double value, error;
};

/* Nothing is known where the range may have been left; NaN is sure. */
static struct carried judged(struct carried c)
{
    if (isnan(c.value))
        return (struct carried){NAN, 0.0};
    if (!(fabs(c.value) + c.error < LARGEST))
        return (struct carried){0.0, INFINITY};
    return c;
}

/* After one rounding to FP32. */
static struct carried rounded(double value, double error)
{
    struct carried c = {value, error + UNIT * (fabs(value) + error) + DENORMAL};
    return judged(c);
}

static struct carried times(struct carried a, struct carried b)
{
    return rounded(
        a.value * b.value, fabs(a.value) * b.error + a.error * (fabs(b.value) + b.error));
}

/* fmaf(a, b, 1) */
static struct carried times_plus_one(struct carried a, struct carried b)
{
    return rounded(
        fma(a.value, b.value, 1.0), fabs(a.value) * b.error + a.error * (fabs(b.value) + b.error));
}

static struct carried one_minus(struct carried a)
{
    return rounded(1.0 - a.value, a.error);
}

static struct carried sigmoid(struct carried g)
{
    double s = 1.0 / (1.0 + exp(-g.value));
    double moved = fmin(g.error / 4.0, s * expm1(g.error));
    struct carried c = {s, moved + 3.0 * UNIT * (1.0 + 3.0 * UNIT) * (s + moved) + 0x1p-127};
    return judged(c);
}

static struct carried stored(enum dtype type, struct carried c)
{
    if (type == DTYPE_BF16)
        c.error += UNIT_BF16 * (fabs(c.value) + c.error) + DENORMAL_BF16;
    return judged(c);
}

/* ---- carried matrices --------------------------------------------------------------------- */

/* Values and their errors, row-major: what an implementation forms, and inputs, whose error is 0,
 * or infinite where they are. */
struct matrix {
    double *value, *error;
};

/* An expert's matrix: values and sizes (|value| + error), as stored and turned over. */
struct weights {
    double *value, *size, *turned, *turned_size;
};

static struct carried at(const struct matrix *m, int64_t i)
{
    return (struct carried){m->value[i], m->error[i]};
}

static void put(struct matrix *m, int64_t i, struct carried c)
{
    m->value[i] = c.value;
    m->error[i] = c.error;
}

/* A problem at work: one expert, and a block of its routes. */
struct work {
    const struct ref_moe_problem *problem;
    struct ref_moe_f64 *result;
    bool backward;
    struct weights gate, up, down;
    struct matrix x, dy, e, de, dx;    /* [block, H] */
    struct matrix g, u, a, dh, dg, du; /* [block, F] */
    double *factor, *turned, *size;    /* [block, max(H, F)] */
    float *loaded, *loaded_turned;     /* [max(block, F), H] and room for [H, F] */
    int64_t token[ROUTE_BLOCK];
};

static struct carried exact(float value)
{
    return isinf(value) ? (struct carried){0.0, INFINITY} : (struct carried){(double)value, 0.0};
}

static void sizes(const struct matrix *m, int64_t count, double *size)
{
    for (int64_t i = 0; i < count; i++)
        size[i] = fabs(m->value[i]) + m->error[i];
}

static void transpose_f64(const double *in, int64_t rows, int64_t columns, double *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[j * rows + i] = in[i * columns + j];
}

/* What a term of a sum may be off by, per unit of its other factor. */
static void term_errors(const struct matrix *a, int64_t count, double gamma, double *factor)
{
    for (int64_t i = 0; i < count; i++)
        factor[i] = a->error[i] + gamma * (fabs(a->value[i]) + a->error[i]);
}

static void clear(struct matrix *m, int64_t count)
{
    memset(m->value, 0, (size_t)count * sizeof *m->value);
    memset(m->error, 0, (size_t)count * sizeof *m->error);
}

/* out += a b, its terms' errors with it: a [rows, terms], b [terms, columns] and its sizes. */
static void add_chain(struct work *k, const struct matrix *a, const double *b, const double *b_size,
    int64_t rows, int64_t columns, int64_t terms, double gamma, struct matrix *out)
{
    ref_product_f64(a->value, b, out->value, rows, columns, terms);
    term_errors(a, rows * terms, gamma, k->factor);
    ref_product_f64(k->factor, b_size, out->error, rows, columns, terms);
}

/* Completes sums of `terms` products whose terms were rounded `roundings` times, each a tensor of
 * the given type. */
static void finish_sums(
    struct matrix *m, int64_t count, int64_t terms, int64_t roundings, enum dtype type)
{
    double largest = gamma_of(roundings) * LARGEST;
    for (int64_t i = 0; i < count; i++) {
        struct carried c = {m->value[i], m->error[i] + (double)terms * DENORMAL};
        if (!(c.error < largest))
            c.error = INFINITY;
        put(m, i, stored(type, judged(c)));
    }
}

/* ---- one block of an expert's routes ------------------------------------------------------ */

static void load_weights(struct work *k, const void *matrices, int64_t expert, int64_t rows,
    int64_t columns, struct weights *w)
{
    ref_load_rows(k->problem->dtype, matrices, NULL, expert * rows, rows, columns, k->loaded);
    ref_transpose(k->loaded, rows, columns, k->loaded_turned);
    for (int64_t i = 0; i < rows * columns; i++) {
        struct carried c = exact(k->loaded[i]), turned = exact(k->loaded_turned[i]);
        w->value[i] = c.value;
        w->size[i] = fabs(c.value) + c.error;
        w->turned[i] = turned.value;
        w->turned_size[i] = fabs(turned.value) + turned.error;
    }
}

static void load_tokens(struct work *k, const void *rows, int64_t count, struct matrix *to)
{
    int64_t hidden = k->problem->hidden;
    ref_load_rows(k->problem->dtype, rows, k->token, 0, count, hidden, k->loaded);
    for (int64_t i = 0; i < count * hidden; i++)
        put(to, i, exact(k->loaded[i]));
}

static struct carried relu(struct carried u)
{
    return (struct carried){u.value > 0.0 || isnan(u.value) ? u.value : 0.0, u.error};
}

static void forward_block(struct work *k, const int64_t *route, int64_t count)
{
    const struct ref_moe_problem *p = k->problem;
    int64_t hidden = p->hidden, ffn = p->ffn;
    double gamma_h = gamma_of(hidden), gamma_f = gamma_of(ffn);
    for (int64_t i = 0; i < count; i++)
        k->token[i] = route[i] / p->topk;
    load_tokens(k, p->x, count, &k->x);
    clear(&k->u, count * ffn);
    add_chain(k, &k->x, k->up.turned, k->up.turned_size, count, ffn, hidden, gamma_h, &k->u);
    finish_sums(&k->u, count * ffn, hidden, hidden, p->dtype);
    if (p->gate) {
        clear(&k->g, count * ffn);
        add_chain(
            k, &k->x, k->gate.turned, k->gate.turned_size, count, ffn, hidden, gamma_h, &k->g);
        finish_sums(&k->g, count * ffn, hidden, hidden, p->dtype);
    }
    for (int64_t i = 0; i < count * ffn; i++) {
        struct carried u = at(&k->u, i), a = relu(u);
        if (p->gate) {
            struct carried g = at(&k->g, i);
            a = times(times(g, sigmoid(g)), u);
        }
        put(&k->a, i, stored(p->dtype, a));
    }
    clear(&k->e, count * hidden);
    add_chain(k, &k->a, k->down.turned, k->down.turned_size, count, hidden, ffn, gamma_f, &k->e);
    finish_sums(&k->e, count * hidden, ffn, ffn, p->dtype);
}

static struct carried relu_backward(struct carried u, struct carried dh)
{
    const struct carried zero = {0.0, 0.0};
    if (isnan(u.value) || u.value < -u.error)
        return zero;
    if (u.value > u.error)
        return dh;
    if (isnan(dh.value))
        return (struct carried){0.0, INFINITY};
    return (struct carried){u.value > 0.0 ? dh.value : 0.0, fabs(dh.value) + dh.error};
}

/* du and dg at one element. */
static void activation_backward(struct work *k, int64_t i)
{
    enum dtype type = k->problem->dtype;
    struct carried u = at(&k->u, i), dh = at(&k->dh, i);
    if (k->problem->gate) {
        struct carried g = at(&k->g, i), s = sigmoid(g);
        struct carried slope = times(s, times_plus_one(g, one_minus(s)));
        put(&k->du, i, stored(type, times(dh, times(g, s))));
        put(&k->dg, i, stored(type, times(times(dh, u), slope)));
        return;
    }
    put(&k->du, i, relu_backward(u, dh));
}

static void backward_block(struct work *k, const int64_t *route, int64_t count)
{
    const struct ref_moe_problem *p = k->problem;
    int64_t hidden = p->hidden, ffn = p->ffn, terms = p->gate ? 2 * ffn : ffn;
    load_tokens(k, p->dy, count, &k->dy);
    for (int64_t i = 0; i < count * hidden; i++)
        put(&k->de, i, stored(p->dtype, times(exact(p->weight[route[i / hidden]]), at(&k->dy, i))));
    clear(&k->dh, count * ffn);
    add_chain(k, &k->de, k->down.value, k->down.size, count, ffn, hidden, gamma_of(hidden), &k->dh);
    finish_sums(&k->dh, count * ffn, hidden, hidden, p->dtype);
    for (int64_t i = 0; i < count * ffn; i++)
        activation_backward(k, i);
    clear(&k->dx, count * hidden);
    if (p->gate)
        add_chain(
            k, &k->dg, k->gate.value, k->gate.size, count, hidden, ffn, gamma_of(terms), &k->dx);
    add_chain(k, &k->du, k->up.value, k->up.size, count, hidden, ffn, gamma_of(terms), &k->dx);
    finish_sums(&k->dx, count * hidden, terms, terms, p->dtype);
}

/* ---- what a block adds to the results ----------------------------------------------------- */

/* A route's row, times a weight, to its token's sum. */
static void add_to_token(const struct matrix *rows, int64_t row, struct carried weight,
    int64_t hidden, double gamma, double *value, double *bound)
{
    double size = fabs(weight.value) + weight.error;
    for (int64_t h = 0; h < hidden; h++) {
        struct carried c = at(rows, row * hidden + h);
        value[h] += weight.value * c.value;
        bound[h] += size * (c.error + gamma * (fabs(c.value) + c.error));
    }
}

static void add_tokens(struct work *k, const int64_t *route, int64_t count)
{
    const struct ref_moe_problem *p = k->problem;
    const struct ref_moe_f64 *r = k->result;
    int64_t hidden = p->hidden;
    double gamma = gamma_of(p->topk);
    for (int64_t i = 0; i < count; i++) {
        int64_t to = k->token[i] * hidden;
        if (r->y)
            add_to_token(
                &k->e, i, exact(p->weight[route[i]]), hidden, gamma, r->y + to, r->y_bound + to);
        if (r->dx)
            add_to_token(&k->dx, i, exact(1.0f), hidden, gamma, r->dx + to, r->dx_bound + to);
    }
}

static int64_t dot_roundings(int64_t hidden)
{
    return (hidden + ARITH_LANES - 1) / ARITH_LANES + 5;
}

static void add_router(struct work *k, const int64_t *route, int64_t count)
{
    int64_t hidden = k->problem->hidden;
    double gamma = gamma_of(dot_roundings(hidden));
    for (int64_t i = 0; i < count; i++) {
        double value = 0.0, error = 0.0;
        for (int64_t h = i * hidden; h < (i + 1) * hidden; h++) {
            struct carried e = at(&k->e, h), dy = at(&k->dy, h);
            value += e.value * dy.value;
            error += (e.error + gamma * (fabs(e.value) + e.error)) * (fabs(dy.value) + dy.error);
        }
        k->result->router_gradient[route[i]] = value;
        k->result->router_bound[route[i]] = error;
    }
}

/* gradient += a^T b over the block: a [count, m], b [count, n]. */
static void add_outer(struct work *k, const struct matrix *a, const struct matrix *b, bool b_exact,
    int64_t count, int64_t m, int64_t n, double gamma, double *value, double *bound)
{
    if (!value)
        return;
    transpose_f64(a->value, count, m, k->turned);
    ref_product_f64(k->turned, b->value, value, m, n, count);
    term_errors(a, count * m, gamma, k->factor);
    transpose_f64(k->factor, count, m, k->turned);
    sizes(b, count * n, k->size);
    ref_product_f64(k->turned, k->size, bound, m, n, count);
    if (b_exact)
        return;
    for (int64_t i = 0; i < count * m; i++)
        k->factor[i] = fabs(a->value[i]);
    transpose_f64(k->factor, count, m, k->turned);
    ref_product_f64(k->turned, b->error, bound, m, n, count);
}

/* One expert's part of an array of gradients; NULL stays NULL. */
static double *part_of(double *gradients, int64_t expert, int64_t count)
{
    return gradients ? gradients + expert * count : NULL;
}

static void add_gradients(struct work *k, int64_t expert, int64_t count, double gamma)
{
    const struct ref_moe_f64 *r = k->result;
    int64_t h = k->problem->hidden, f = k->problem->ffn, each = h * f;
    if (k->problem->gate)
        add_outer(k, &k->dg, &k->x, true, count, f, h, gamma,
            part_of(r->gate_gradient, expert, each), part_of(r->gate_bound, expert, each));
    add_outer(k, &k->du, &k->x, true, count, f, h, gamma, part_of(r->up_gradient, expert, each),
        part_of(r->up_bound, expert, each));
    add_outer(k, &k->de, &k->a, false, count, h, f, gamma, part_of(r->down_gradient, expert, each),
        part_of(r->down_bound, expert, each));
}

static void finish_gradient(
    double *gradients, double *bounds, int64_t expert, int64_t each, int64_t routes)
{
    struct matrix m = {part_of(gradients, expert, each), part_of(bounds, expert, each)};
    if (m.value)
        finish_sums(&m, each, routes, routes, DTYPE_F32);
}

static void run_expert(struct work *k, int64_t expert, const int64_t *route, int64_t routes)
{
    const struct ref_moe_problem *p = k->problem;
    const struct ref_moe_f64 *r = k->result;
    int64_t each = p->hidden * p->ffn;
    if (p->gate)
        load_weights(k, p->gate, expert, p->ffn, p->hidden, &k->gate);
    load_weights(k, p->up, expert, p->ffn, p->hidden, &k->up);
    load_weights(k, p->down, expert, p->hidden, p->ffn, &k->down);
    for (int64_t first = 0; first < routes; first += ROUTE_BLOCK) {
        int64_t count = min_i64(ROUTE_BLOCK, routes - first);
        forward_block(k, route + first, count);
        if (k->backward) {
            backward_block(k, route + first, count);
            add_gradients(k, expert, count, gamma_of(routes));
        }
        add_tokens(k, route + first, count);
        if (r->router_gradient)
            add_router(k, route + first, count);
    }
    if (p->gate)
        finish_gradient(r->gate_gradient, r->gate_bound, expert, each, routes);
    finish_gradient(r->up_gradient, r->up_bound, expert, each, routes);
    finish_gradient(r->down_gradient, r->down_bound, expert, each, routes);
}

/* ---- beginning and end -------------------------------------------------------------------- */

static double *room(int64_t count)
{
    return malloc((size_t)count * sizeof(double));
}

static bool begin_matrix(struct matrix *m, int64_t count)
{
    m->value = room(count);
    m->error = room(count);
    return m->value && m->error;
}

static bool begin_weights(struct weights *w, int64_t count)
{
    w->value = room(count);
    w->size = room(count);
    w->turned = room(count);
    w->turned_size = room(count);
    return w->value && w->size && w->turned && w->turned_size;
}

/* 0, or -1 when memory is short; work_end either way. */
static int work_begin(struct work *k)
{
    int64_t h = k->problem->hidden, f = k->problem->ffn, wider = h > f ? h : f;
    struct matrix *const wide[] = {&k->x, &k->dy, &k->e, &k->de, &k->dx};
    struct matrix *const inner[] = {&k->g, &k->u, &k->a, &k->dh, &k->dg, &k->du};
    bool all = begin_weights(&k->gate, f * h);
    all = begin_weights(&k->up, f * h) && all;
    all = begin_weights(&k->down, f * h) && all;
    for (int i = 0; i < 5; i++)
        all = begin_matrix(wide[i], ROUTE_BLOCK * h) && all;
    for (int i = 0; i < 6; i++)
        all = begin_matrix(inner[i], ROUTE_BLOCK * f) && all;
    k->factor = room(ROUTE_BLOCK * wider);
    k->turned = room(ROUTE_BLOCK * wider);
    k->size = room(ROUTE_BLOCK * wider);
    k->loaded = malloc((size_t)(ROUTE_BLOCK * h + f * h) * sizeof *k->loaded);
    k->loaded_turned = malloc((size_t)(f * h) * sizeof *k->loaded_turned);
    all = all && k->factor && k->turned && k->size && k->loaded && k->loaded_turned;
    return all ? 0 : -1;
}

static void work_end(struct work *k)
{
    const struct matrix *const matrices[] = {
        &k->x, &k->dy, &k->e, &k->de, &k->dx, &k->g, &k->u, &k->a, &k->dh, &k->dg, &k->du};
    const struct weights *const weights[] = {&k->gate, &k->up, &k->down};
    for (int i = 0; i < 11; i++) {
        free(matrices[i]->value);
        free(matrices[i]->error);
    }
    for (int i = 0; i < 3; i++) {
        free(weights[i]->value);
        free(weights[i]->size);
        free(weights[i]->turned);
        free(weights[i]->turned_size);
    }
    free(k->factor);
    free(k->turned);
    free(k->size);
    free(k->loaded);
    free(k->loaded_turned);
}

static void begin_result(double *value, double *bound, int64_t count)
{
    if (!value)
        return;
    memset(value, 0, (size_t)count * sizeof *value);
    memset(bound, 0, (size_t)count * sizeof *bound);
}

static void begin_results(const struct ref_moe_problem *p, struct ref_moe_f64 *r)
{
    int64_t each = p->experts * p->hidden * p->ffn;
    begin_result(r->y, r->y_bound, p->tokens * p->hidden);
    begin_result(r->dx, r->dx_bound, p->tokens * p->hidden);
    begin_result(r->router_gradient, r->router_bound, p->tokens * p->topk);
    if (p->gate)
        begin_result(r->gate_gradient, r->gate_bound, each);
    begin_result(r->up_gradient, r->up_bound, each);
    begin_result(r->down_gradient, r->down_bound, each);
}

/* The sums over tokens, complete when all experts are done. An empty slot's dw is +0, exactly. */
static void finish_results(const struct ref_moe_problem *p, struct ref_moe_f64 *r)
{
    struct matrix y = {r->y, r->y_bound}, dx = {r->dx, r->dx_bound};
    if (r->y)
        finish_sums(&y, p->tokens * p->hidden, p->topk, p->topk, p->dtype);
    if (r->dx)
        finish_sums(&dx, p->tokens * p->hidden, p->topk, p->topk, p->dtype);
    for (int64_t i = 0; r->router_gradient && i < p->tokens * p->topk; i++) {
        struct matrix dw = {r->router_gradient + i, r->router_bound + i};
        if (p->idx[i] != MOE_EMPTY)
            finish_sums(&dw, 1, p->hidden, dot_roundings(p->hidden), DTYPE_F32);
    }
}

int ref_moe_f64(
    const struct ref_moe_problem *problem, struct ref_moe_f64 *result, char *error, int size)
{
    if (ref_moe_check(problem, error, size))
        return -1;
    struct work *k = calloc(1, sizeof *k);
    struct moe_order order = {0};
    if (!k ||
        moe_order_init(&order, problem->tokens, problem->topk, problem->experts, problem->idx)) {
        free(k);
        snprintf(error, (size_t)size, "no memory for the FP64 reference");
        return -1;
    }
    k->problem = problem;
    k->result = result;
    k->backward = result->dx || result->router_gradient || result->gate_gradient ||
                  result->up_gradient || result->down_gradient;
    int status = work_begin(k);
    if (status) {
        snprintf(error, (size_t)size, "no memory for the FP64 reference's blocks");
    } else if (k->backward && !problem->dy) {
        snprintf(error, (size_t)size, "gradients are wanted and dy is not given");
        status = -1;
    } else {
        begin_results(problem, result);
        for (int64_t e = 0; e < problem->experts; e++)
            if (order.expert_first[e + 1] > order.expert_first[e])
                run_expert(k, e, order.gradient_route + order.expert_first[e],
                    order.expert_first[e + 1] - order.expert_first[e]);
        finish_results(problem, result);
    }
    work_end(k);
    free(k);
    moe_order_free(&order);
    return status;
}
