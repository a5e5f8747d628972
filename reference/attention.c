/* Attention in FP32, one sequence and head after the other, stored tensors rounded once. */
#include "reference/attention.h"
#include <stdbool.h>
#include <stdlib.h>
#include "reference/product.h"

/* One head of one sequence, widened: [T, D] each. */
struct head {
    const struct ref_attention_problem *problem;
    int64_t first, stride; /* element of its first token, elements between tokens */
    float *q, *k, *v, *d_o, *o;
    float *dq, *dk, *dv;
    float *s, *p; /* [T]: one query's scores and weights */
};

static void load(const struct head *head, const void *matrix, float *to)
{
    int64_t columns = head->problem->head_columns;
    for (int64_t t = 0; t < head->problem->tokens; t++)
        for (int64_t c = 0; c < columns; c++) {
            int64_t element = head->first + t * head->stride + c;
            to[t * columns + c] = head->problem->dtype == DTYPE_F32
                                      ? ((const float *)matrix)[element]
                                      : bf16_to_f32(((const uint16_t *)matrix)[element]);
        }
}

/* Rounds what is stored, and stores it. */
static void store(const struct head *head, float *from, void *matrix)
{
    int64_t columns = head->problem->head_columns;
    for (int64_t t = 0; t < head->problem->tokens; t++)
        for (int64_t c = 0; c < columns; c++) {
            int64_t element = head->first + t * head->stride + c;
            float *value = &from[t * columns + c];
            if (head->problem->dtype == DTYPE_F32) {
                ((float *)matrix)[element] = *value;
                continue;
            }
            ((uint16_t *)matrix)[element] = f32_to_bf16(*value);
            *value = bf16_to_f32(((uint16_t *)matrix)[element]);
        }
}

static float dot(const float *a, const float *b, int64_t count)
{
    float chain = 0.0f;
    for (int64_t c = 0; c < count; c++)
        chain = fmaf(a[c], b[c], chain);
    return chain;
}

static void add_scaled(float weight, const float *row, float *sum, int64_t count)
{
    for (int64_t c = 0; c < count; c++)
        sum[c] = fmaf(weight, row[c], sum[c]);
}

/* Query i's weights p over keys 0 .. i. */
static struct softmax_state weights_of(struct head *head, int64_t i)
{
    int64_t columns = head->problem->head_columns;
    struct softmax_state state = softmax_empty();
    for (int64_t j = 0; j <= i; j++)
        head->s[j] =
            dot(head->q + i * columns, head->k + j * columns, columns) * head->problem->scale;
    for (int64_t j = 0; j <= i; j += SOFTMAX_SEGMENT) {
        int64_t left = i + 1 - j;
        state = softmax_fold(
            state, softmax_segment(head->s + j, left < SOFTMAX_SEGMENT ? left : SOFTMAX_SEGMENT));
    }
    float log_z = arith_log(state.sum);
    for (int64_t j = 0; j <= i; j++)
        head->p[j] = arith_exp((head->s[j] - state.max) - log_z);
    return state;
}

static void forward(struct head *head)
{
    int64_t columns = head->problem->head_columns, tokens = head->problem->tokens;
    for (int64_t i = 0; i < tokens; i++) {
        for (int64_t c = 0; c < columns; c++)
            head->o[i * columns + c] = 0.0f;
        weights_of(head, i);
        for (int64_t j = 0; j <= i; j++)
            add_scaled(head->p[j], head->v + j * columns, head->o + i * columns, columns);
    }
}

/* After forward, with `o` as it was stored. Queries ascend, so every chain over queries does. */
static void backward(struct head *head)
{
    int64_t columns = head->problem->head_columns, tokens = head->problem->tokens;
    for (int64_t i = 0; i < tokens * columns; i++)
        head->dq[i] = head->dk[i] = head->dv[i] = 0.0f;
    for (int64_t i = 0; i < tokens; i++) {
        const float *gradient = head->d_o + i * columns;
        float lanes[ARITH_LANES] = {0.0f};
        for (int64_t c = 0; c < columns; c++)
            lanes[c % ARITH_LANES] =
                fmaf(gradient[c], head->o[i * columns + c], lanes[c % ARITH_LANES]);
        float delta = arith_add_lanes(lanes);
        weights_of(head, i);
        for (int64_t j = 0; j <= i; j++) {
            float dp = dot(gradient, head->v + j * columns, columns);
            float ds = (head->p[j] * (dp - delta)) * head->problem->scale;
            add_scaled(ds, head->k + j * columns, head->dq + i * columns, columns);
            add_scaled(ds, head->q + i * columns, head->dk + j * columns, columns);
            add_scaled(head->p[j], gradient, head->dv + j * columns, columns);
        }
    }
}

static void run_head(struct head *head, struct ref_attention_result *result, int64_t row, int64_t h)
{
    const struct ref_attention_problem *problem = head->problem;
    load(head, problem->q, head->q);
    load(head, problem->k, head->k);
    load(head, problem->v, head->v);
    forward(head);
    store(head, head->o, result->o);
    for (int64_t i = 0; i < problem->tokens; i++) {
        struct softmax_state state = weights_of(head, i);
        result->max[(row + i) * problem->heads + h] = state.max;
        result->log_z[(row + i) * problem->heads + h] = arith_log(state.sum);
    }
    if (!result->dq)
        return;
    load(head, problem->d_o, head->d_o);
    backward(head);
    store(head, head->dq, result->dq);
    store(head, head->dk, result->dk);
    store(head, head->dv, result->dv);
}

int ref_attention(const struct ref_attention_problem *problem, struct ref_attention_result *result)
{
    enum { MATRICES = 8 };
    int64_t matrix = problem->tokens * problem->head_columns;
    float *all = malloc((size_t)(MATRICES * matrix + 2 * problem->tokens + 1) * sizeof *all);
    if (!all)
        return -1;
    struct head head = {.problem = problem,
        .stride = problem->heads * problem->head_columns,
        .s = all + MATRICES * matrix,
        .p = all + MATRICES * matrix + problem->tokens};
    float **parts[MATRICES] = {
        &head.q, &head.k, &head.v, &head.d_o, &head.o, &head.dq, &head.dk, &head.dv};
    for (int i = 0; i < MATRICES; i++)
        *parts[i] = all + i * matrix;
    for (int64_t sequence = 0; sequence < problem->sequences; sequence++)
        for (int64_t h = 0; h < problem->heads; h++) {
            int64_t row = sequence * problem->tokens;
            head.first = row * head.stride + h * problem->head_columns;
            run_head(&head, result, row, h);
        }
    free(all);
    return 0;
}
