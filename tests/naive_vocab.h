/* The vocabulary problem once more, as directly as its formulas can be written: whole matrices, one
 * element at a time. Shares nothing with reference/ but exp and log. For small problems. */
#pragma once
#include <math.h>
#include "tests/vocab_problem.h"

static inline int64_t naive_shard_first(const struct ref_vocab_problem *r, int shard)
{
    int64_t first = 0;
    for (int s = 0; s < shard; s++)
        first += r->vocab / r->ranks + (s < r->vocab % r->ranks);
    return first;
}

static inline int64_t naive_batch_first(const struct ref_vocab_problem *r, int batch)
{
    int64_t first = 0;
    for (int b = 0; b < batch; b++)
        first += r->tokens[b];
    return first;
}

/* y[n, v] */
static inline float *naive_logits(const struct problem *p)
{
    const struct ref_vocab_problem *r = &p->reference;
    float *y = problem_room(p->tokens * r->vocab, sizeof *y);
    for (int64_t n = 0; n < p->tokens; n++)
        for (int64_t v = 0; v < r->vocab; v++) {
            float chain = 0.0f;
            for (int64_t h = 0; h < r->hidden; h++)
                chain = fmaf(problem_value(p, r->x, n * r->hidden + h),
                    problem_value(p, r->w, v * r->hidden + h), chain);
            y[n * r->vocab + v] = chain;
        }
    return y;
}

struct naive_state {
    float max, sum;
};

static inline struct naive_state naive_segment(const float *y, int64_t count)
{
    float max = -INFINITY, lane[32] = {0.0f};
    for (int64_t i = 0; i < count; i++)
        max = isnan(max) || isnan(y[i]) ? NAN : y[i] > max ? y[i] : max;
    if (max == -INFINITY)
        return (struct naive_state){-INFINITY, 0.0f};
    for (int64_t first = 0; first < count; first += 32)
        for (int64_t l = 0; l < 32 && first + l < count; l++)
            lane[l] += arith_exp(y[first + l] - max);
    float by16[16], by8[8], by4[4], by2[2];
    for (int l = 0; l < 16; l++)
        by16[l] = lane[l] + lane[l + 16];
    for (int l = 0; l < 8; l++)
        by8[l] = by16[l] + by16[l + 8];
    for (int l = 0; l < 4; l++)
        by4[l] = by8[l] + by8[l + 4];
    for (int l = 0; l < 2; l++)
        by2[l] = by4[l] + by4[l + 2];
    return (struct naive_state){max, by2[0] + by2[1]};
}

static inline struct naive_state naive_fold(struct naive_state a, struct naive_state b)
{
    if (a.max == -INFINITY)
        return b;
    if (b.max == -INFINITY)
        return a;
    float max = isnan(a.max) || isnan(b.max) ? NAN : a.max > b.max ? a.max : b.max;
    return (struct naive_state){
        max, a.sum * arith_exp(a.max - max) + b.sum * arith_exp(b.max - max)};
}

static inline void naive_forward(
    const struct problem *p, const float *y, struct ref_vocab_result *to)
{
    const struct ref_vocab_problem *r = &p->reference;
    double sum = 0.0;
    to->valid = 0;
    for (int64_t n = 0; n < p->tokens; n++) {
        struct naive_state whole = {-INFINITY, 0.0f};
        for (int s = 0; s < r->ranks; s++) {
            struct naive_state shard = {-INFINITY, 0.0f};
            int64_t end = naive_shard_first(r, s + 1);
            for (int64_t v = naive_shard_first(r, s); v < end; v += 1024)
                shard = naive_fold(
                    shard, naive_segment(y + n * r->vocab + v, end - v < 1024 ? end - v : 1024));
            whole = naive_fold(whole, shard);
        }
        to->max[n] = whole.max + 0.0f;
        to->log_z[n] = arith_log(whole.sum);
        to->loss[n] = 0.0f;
        if (r->targets[n] == REF_VOCAB_IGNORED)
            continue;
        to->loss[n] = (to->max[n] - y[n * r->vocab + r->targets[n]]) + to->log_z[n];
        sum += (double)to->loss[n];
        to->valid++;
    }
    to->mean = to->valid ? sum / (double)to->valid : 0.0;
}

/* r[n, v] */
static inline float *naive_residual(
    const struct problem *p, const float *y, const struct ref_vocab_result *forward)
{
    const struct ref_vocab_problem *r = &p->reference;
    float *residual = problem_room(p->tokens * r->vocab, sizeof *residual);
    float scale = forward->valid ? (float)(1.0 / (double)forward->valid) : 0.0f;
    for (int64_t n = 0; n < p->tokens; n++)
        for (int64_t v = 0; v < r->vocab; v++) {
            int64_t at = n * r->vocab + v;
            float p_v = arith_exp((y[at] - forward->max[n]) - forward->log_z[n]);
            float value = (p_v - (v == r->targets[n] ? 1.0f : 0.0f)) * scale;
            if (r->targets[n] == REF_VOCAB_IGNORED)
                value = 0.0f;
            residual[at] = r->dtype == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
        }
    return residual;
}

/* One element of a gradient: for each part in the list's order, indices first[part] ..
 * first[part + 1) of the two factors, `strides` apart. */
static inline float naive_sum(const struct problem *p, const struct vocab_part *list,
    int64_t (*first)(const struct ref_vocab_problem *, int), const float *residual,
    int64_t residual_stride, const void *other, int64_t other_at)
{
    const struct ref_vocab_problem *r = &p->reference;
    float total = 0.0f, chain = 0.0f;
    int segments = 0;
    for (int i = 0; i < r->ranks; i++) {
        if (list[i].starts && i > 0) {
            total = segments++ ? total + chain : chain;
            chain = 0.0f;
        }
        for (int64_t k = first(r, list[i].part); k < first(r, list[i].part + 1); k++)
            chain = fmaf(residual[k * residual_stride],
                problem_value(p, other, k * r->hidden + other_at), chain);
    }
    return segments ? total + chain : chain;
}

static inline void naive_backward(const struct problem *p, const float *y,
    const struct vocab_order *order, struct ref_vocab_result *to)
{
    const struct ref_vocab_problem *r = &p->reference;
    float *residual = naive_residual(p, y, to);
    for (int batch = 0; batch < r->ranks; batch++)
        for (int64_t n = naive_batch_first(r, batch); n < naive_batch_first(r, batch + 1); n++)
            for (int64_t h = 0; h < r->hidden; h++) {
                float sum = naive_sum(p, order->dx + batch * r->ranks, naive_shard_first,
                    residual + n * r->vocab, 1, r->w, h);
                problem_set((struct problem *)p, to->dx, n * r->hidden + h, sum);
            }
    for (int shard = 0; shard < r->ranks; shard++)
        for (int64_t v = naive_shard_first(r, shard); v < naive_shard_first(r, shard + 1); v++)
            for (int64_t h = 0; h < r->hidden; h++)
                to->dw[v * r->hidden + h] = naive_sum(p, order->dw + shard * r->ranks,
                    naive_batch_first, residual + v, r->vocab, r->x, h);
    free(residual);
}
