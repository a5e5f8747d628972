/* The router of a mixture of experts: which experts a token goes to and with what weight, and the
 * gradient of its scores.
 *
 * The k experts of a token are those of largest score + bias (docs/ARITHMETIC.md, rule 11: the
 * larger first, equal ones by lower id; a NaN is below every number). The bias balances the load
 * and takes part in the choice alone; weights are a softmax over the chosen scores, with every
 * operation rounded:
 *
 *     m = maximum of the chosen s,  e[slot] = exp(s[slot] - m)
 *     z = chain over slots ascending of e, from +0,  w[slot] = e[slot] / z
 *
 *     c = chain over slots ascending of fmaf(w, dw, .), from +0
 *     ds[idx[slot]] = w[slot] (dw[slot] - c),  +0 for every other expert */
#pragma once
#include <stdint.h>
#include "device/device.h"

#define ROUTER_TOPK_MAX 32

struct router_choose_args {
    int64_t tokens, experts;
    int topk;            /* 1 .. min(experts, ROUTER_TOPK_MAX) */
    const float *scores; /* [tokens, experts] */
    const float *bias;   /* [experts] */
    int32_t *idx;        /* [tokens, topk], in order of choice */
    float *weight;       /* [tokens, topk] */
};
extern const struct kernel kernel_router_choose;
void router_choose(struct stream *stream, const struct router_choose_args *args);

struct router_backward_args {
    int64_t tokens, experts;
    int topk;
    const int32_t *idx;   /* [tokens, topk], no expert twice in a token */
    const float *weight;  /* [tokens, topk] */
    const float *dweight; /* [tokens, topk] */
    float *dscores;       /* [tokens, experts] */
};
extern const struct kernel kernel_router_backward;
void router_backward(struct stream *stream, const struct router_backward_args *args);
