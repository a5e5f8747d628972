/* One token's routing, for the CPU and CUDA alike: the formulas are in kernels/router.h. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "kernels/arith.h"

/* Whether (a, expert i) is chosen before (b, expert j), i > j given: strictly larger only. */
ARITH bool router_exceeds(float a, float b)
{
    return a > b || (b != b && a == a);
}

/* The k chosen, by insertion: k is small. order [k] is scratch for what they were chosen by. */
ARITH void router_choose_token(const float *scores, const float *bias, int64_t experts, int topk,
    float *order, int32_t *idx, float *weight)
{
    int chosen = 0;
    for (int64_t e = 0; e < experts; e++) {
        float key = scores[e] + bias[e];
        if (chosen == topk && !router_exceeds(key, order[topk - 1]))
            continue;
        int at = chosen < topk ? chosen++ : topk - 1;
        for (; at > 0 && router_exceeds(key, order[at - 1]); at--) {
            order[at] = order[at - 1];
            idx[at] = idx[at - 1];
        }
        order[at] = key;
        idx[at] = (int32_t)e;
    }
    float max = -INFINITY, sum = 0.0f;
    for (int slot = 0; slot < topk; slot++)
        max = arith_max(max, scores[idx[slot]]);
    for (int slot = 0; slot < topk; slot++) {
        weight[slot] = arith_exp(scores[idx[slot]] - max);
        sum = sum + weight[slot];
    }
    for (int slot = 0; slot < topk; slot++)
        weight[slot] = weight[slot] / sum;
}

ARITH void router_backward_token(const int32_t *idx, const float *weight, const float *dweight,
    int64_t experts, int topk, float *dscores)
{
    float sum = 0.0f;
    for (int slot = 0; slot < topk; slot++)
        sum = fmaf(weight[slot], dweight[slot], sum);
    for (int64_t e = 0; e < experts; e++)
        dscores[e] = 0.0f;
    for (int slot = 0; slot < topk; slot++)
        dscores[idx[slot]] = weight[slot] * (dweight[slot] - sum);
}
