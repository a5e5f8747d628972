/* The composed model's loss in FP64, sequence by sequence, from the formulas. */
#include "reference/model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One sequence at work. */
struct work {
    const struct ref_model *m;
    double *x, *n, *q, *k, *v, *o; /* [T, H] */
    double *score;                 /* [max(T, E, k, V)] */
    double *wide;                  /* [F] */
};

int64_t ref_model_parameters(const struct ref_model *m)
{
    int64_t layer = 4 * m->hidden * m->hidden + m->experts * m->hidden * (1 + 3 * m->ffn);
    return 2 * m->vocab * m->hidden + m->layers * layer + (2 * m->layers + 1) * m->hidden;
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static void norm(const struct work *w, const double *gain)
{
    int64_t hidden = w->m->hidden;
    for (int64_t t = 0; t < w->m->length; t++) {
        const double *x = w->x + t * hidden;
        double r = 1 / sqrt(dot(x, x, hidden) / (double)hidden + (double)1e-5f);
        for (int64_t h = 0; h < hidden; h++)
            w->n[t * hidden + h] = x[h] * r * gain[h];
    }
}

/* out [T, H] = (or += with `adds`) a [T, H] W, W input by output. */
static void project(
    const struct work *w, const double *a, const double *weights, int adds, double *out)
{
    int64_t hidden = w->m->hidden;
    for (int64_t t = 0; t < w->m->length; t++)
        for (int64_t to = 0; to < hidden; to++) {
            double sum = 0;
            for (int64_t from = 0; from < hidden; from++)
                sum += a[t * hidden + from] * weights[from * hidden + to];
            out[t * hidden + to] = sum + (adds ? out[t * hidden + to] : 0);
        }
}

/* Turns pairs of columns, half a head apart, by their token's place. */
static void turn(const struct work *w, double *rows)
{
    int64_t hidden = w->m->hidden, columns = hidden / w->m->heads, half = columns / 2;
    for (int64_t t = 0; t < w->m->length; t++)
        for (int64_t item = 0; item < w->m->heads * half; item++) {
            double *x = rows + t * hidden + item / half * columns + item % half;
            double angle = (double)t * pow(10000, -(double)(item % half) / (double)half);
            double a = x[0], b = x[half];
            x[0] = a * cos(angle) - b * sin(angle);
            x[half] = b * cos(angle) + a * sin(angle);
        }
}

/* exp of values less their maximum, divided by their sum. */
static void softmax(double *values, int64_t count)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, values[i]);
    for (int64_t i = 0; i < count; i++)
        sum += values[i] = exp(values[i] - largest);
    for (int64_t i = 0; i < count; i++)
        values[i] /= sum;
}

static void attend(const struct work *w)
{
    int64_t hidden = w->m->hidden, columns = hidden / w->m->heads;
    memset(w->o, 0, (size_t)(w->m->length * hidden) * sizeof *w->o);
    for (int64_t head = 0; head < w->m->heads; head++)
        for (int64_t i = 0; i < w->m->length; i++) {
            int64_t at = i * hidden + head * columns;
            for (int64_t j = 0; j <= i; j++)
                w->score[j] = dot(w->q + at, w->k + j * hidden + head * columns, columns) *
                              (double)(1.0f / sqrtf((float)columns));
            softmax(w->score, i + 1);
            for (int64_t j = 0; j <= i; j++)
                for (int64_t c = 0; c < columns; c++)
                    w->o[at + c] += w->score[j] * w->v[j * hidden + head * columns + c];
        }
}

/* Adds weight * expert(n) to x, for one token. */
static void add_expert(const struct work *w, const double *n, const double *gate, const double *up,
    const double *down, double weight, double *x)
{
    int64_t hidden = w->m->hidden, ffn = w->m->ffn;
    for (int64_t f = 0; f < ffn; f++) {
        double g = dot(n, gate + f * hidden, hidden);
        w->wide[f] = g / (1 + exp(-g)) * dot(n, up + f * hidden, hidden);
    }
    for (int64_t h = 0; h < hidden; h++)
        x[h] += weight * dot(w->wide, down + h * ffn, ffn);
}

static void experts(const struct work *w, const double *router, const int32_t *idx)
{
    int64_t hidden = w->m->hidden, matrix = w->m->ffn * hidden;
    const double *gate = router + w->m->experts * hidden, *up = gate + w->m->experts * matrix;
    const double *down = up + w->m->experts * matrix;
    for (int64_t t = 0; t < w->m->length; t++) {
        const double *n = w->n + t * hidden;
        for (int slot = 0; slot < w->m->topk; slot++)
            w->score[slot] = dot(n, router + idx[t * w->m->topk + slot] * hidden, hidden);
        softmax(w->score, w->m->topk);
        for (int slot = 0; slot < w->m->topk; slot++) {
            int64_t e = idx[t * w->m->topk + slot];
            add_expert(w, n, gate + e * matrix, up + e * matrix, down + e * matrix, w->score[slot],
                w->x + t * hidden);
        }
    }
}

static double loss_of(const struct work *w, const double *head, const int64_t *targets)
{
    int64_t hidden = w->m->hidden, vocab = w->m->vocab;
    double loss = 0;
    for (int64_t t = 0; t < w->m->length; t++) {
        for (int64_t v = 0; v < vocab; v++)
            w->score[v] = dot(w->n + t * hidden, head + v * hidden, hidden);
        softmax(w->score, vocab);
        loss -= log(w->score[targets[t]]);
    }
    return loss;
}

static double sequence_loss(const struct work *w, const double *parameters, int64_t sequence)
{
    const struct ref_model *m = w->m;
    int64_t hidden = m->hidden, square = hidden * hidden, first = sequence * m->length;
    int64_t layer_size = 4 * square + m->experts * hidden * (1 + 3 * m->ffn);
    const double *layer = parameters + m->vocab * hidden;
    const double *gains = layer + m->layers * layer_size;
    for (int64_t t = 0; t < m->length; t++)
        memcpy(w->x + t * hidden, parameters + m->tokens[first + t] * hidden,
            (size_t)hidden * sizeof *w->x);
    for (int64_t l = 0; l < m->layers; l++, layer += layer_size) {
        norm(w, gains + 2 * l * hidden);
        project(w, w->n, layer, 0, w->q);
        project(w, w->n, layer + square, 0, w->k);
        project(w, w->n, layer + 2 * square, 0, w->v);
        turn(w, w->q);
        turn(w, w->k);
        attend(w);
        project(w, w->o, layer + 3 * square, 1, w->x);
        norm(w, gains + (2 * l + 1) * hidden);
        experts(w, layer + 4 * square, m->idx + (l * m->sequences * m->length + first) * m->topk);
    }
    norm(w, gains + 2 * m->layers * hidden);
    return loss_of(w, gains + (2 * m->layers + 1) * hidden, m->targets + first);
}

double ref_model_loss_f64(const struct ref_model *m, const double *parameters)
{
    int64_t rows = m->length * m->hidden;
    int64_t widest = m->length + m->experts + m->topk + m->vocab;
    double *all = malloc((size_t)(6 * rows + widest + m->ffn) * sizeof *all);
    double loss = 0;
    if (!all)
        return NAN;
    struct work w = {m, all, all + rows, all + 2 * rows, all + 3 * rows, all + 4 * rows,
        all + 5 * rows, all + 6 * rows, all + 6 * rows + widest};
    for (int64_t sequence = 0; sequence < m->sequences; sequence++)
        loss += sequence_loss(&w, parameters, sequence);
    free(all);
    return loss / (double)(m->sequences * m->length);
}
