/* Attention in FP64 from the formulas of calculus: softmax over the past, nothing rounded to a
 * stored type, and no delta but the sum that it stands for. */
#include "reference/attention.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double value(const struct ref_attention_problem *problem, const void *matrix, int64_t at)
{
    return problem->dtype == DTYPE_F32 ? (double)((const float *)matrix)[at]
                                       : (double)bf16_to_f32(((const uint16_t *)matrix)[at]);
}

struct head {
    const struct ref_attention_problem *problem;
    int64_t first, stride;
    double *p, *dp; /* [T] */
};

static int64_t at(const struct head *head, int64_t token, int64_t column)
{
    return head->first + token * head->stride + column;
}

static double dot(const struct head *head, const void *a, int64_t i, const void *b, int64_t j)
{
    double sum = 0;
    for (int64_t c = 0; c < head->problem->head_columns; c++)
        sum += value(head->problem, a, at(head, i, c)) * value(head->problem, b, at(head, j, c));
    return sum;
}

static void weights_of(struct head *head, int64_t i)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; j++) {
        head->p[j] =
            dot(head, head->problem->q, i, head->problem->k, j) * (double)head->problem->scale;
        largest = fmax(largest, head->p[j]);
    }
    for (int64_t j = 0; j <= i; j++)
        sum += head->p[j] = exp(head->p[j] - largest);
    for (int64_t j = 0; j <= i; j++)
        head->p[j] /= sum;
}

static void backward_query(struct head *head, struct ref_attention_f64 *result, int64_t i)
{
    const struct ref_attention_problem *problem = head->problem;
    double mean = 0;
    for (int64_t j = 0; j <= i; j++) {
        head->dp[j] = dot(head, problem->d_o, i, problem->v, j);
        mean += head->p[j] * head->dp[j];
    }
    for (int64_t j = 0; j <= i; j++) {
        double ds = head->p[j] * (head->dp[j] - mean) * (double)problem->scale;
        for (int64_t c = 0; c < problem->head_columns; c++) {
            int64_t query = at(head, i, c), key = at(head, j, c);
            result->dq[query] += ds * value(problem, problem->k, key);
            result->dk[key] += ds * value(problem, problem->q, query);
            result->dv[key] += head->p[j] * value(problem, problem->d_o, query);
        }
    }
}

static void run_head(struct head *head, struct ref_attention_f64 *result)
{
    for (int64_t i = 0; i < head->problem->tokens; i++) {
        weights_of(head, i);
        for (int64_t j = 0; j <= i; j++)
            for (int64_t c = 0; c < head->problem->head_columns; c++)
                result->o[at(head, i, c)] +=
                    head->p[j] * value(head->problem, head->problem->v, at(head, j, c));
        if (result->dq)
            backward_query(head, result, i);
    }
}

int ref_attention_f64(const struct ref_attention_problem *problem, struct ref_attention_f64 *result)
{
    struct head head = {.problem = problem, .stride = problem->heads * problem->head_columns};
    size_t bytes = (size_t)(problem->sequences * problem->tokens * head.stride) * sizeof *result->o;
    double *scratch = malloc((size_t)(2 * problem->tokens + 1) * sizeof *scratch);
    if (!scratch)
        return -1;
    head.p = scratch;
    head.dp = scratch + problem->tokens;
    double *sums[] = {result->o, result->dq, result->dk, result->dv};
    for (int i = 0; i < (result->dq ? 4 : 1); i++)
        memset(sums[i], 0, bytes);
    for (int64_t sequence = 0; sequence < problem->sequences; sequence++)
        for (int64_t h = 0; h < problem->heads; h++) {
            head.first = sequence * problem->tokens * head.stride + h * problem->head_columns;
            run_head(&head, result);
        }
    free(scratch);
    return 0;
}
