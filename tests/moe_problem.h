/* Small dispatch problems for tests of the reference: seeded inputs with empty slots, experts named
 * twice by a token and an expert that nobody names; random orders; and the definition written out
 * once more, route by route. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "reference/moe.h"

static uint32_t moe_random_state = 12345;

static int64_t moe_random_below(int64_t end)
{
    moe_random_state = moe_random_state * 1664525u + 1013904223u;
    return (int64_t)(moe_random_state >> 8) % end;
}

static float moe_random_value(void)
{
    return (float)(moe_random_below(1 << 20) - (1 << 19)) * 0x1p-19f;
}

static void *moe_room(int64_t bytes)
{
    void *room = malloc((size_t)(bytes > 0 ? bytes : 1));
    if (!room)
        abort();
    return room;
}

struct moe_small {
    int64_t tokens, hidden, ffn, experts;
    int topk;
    enum dtype dtype;
    bool relu, integers;
};

static void *moe_values(const struct moe_small *s, int64_t count, float scale)
{
    void *values = moe_room(count * dtype_bytes(s->dtype));
    for (int64_t i = 0; i < count; i++) {
        float value = s->integers ? (float)(moe_random_below(3) - 1) : moe_random_value() * scale;
        if (s->dtype == DTYPE_BF16)
            ((uint16_t *)values)[i] = f32_to_bf16(value);
        else
            ((float *)values)[i] = value;
    }
    return values;
}

/* The last expert gets no route; about one slot in six is empty, and so is token 1. */
static struct ref_moe_problem moe_problem_of(const struct moe_small *s)
{
    int64_t slots = s->tokens * s->topk, each = s->hidden * s->ffn;
    int32_t *idx = moe_room(slots * (int64_t)sizeof *idx);
    float *weight = moe_room(slots * (int64_t)sizeof *weight);
    for (int64_t i = 0; i < slots; i++) {
        bool empty = moe_random_below(6) == 0 || i / s->topk == 1;
        idx[i] = empty ? MOE_EMPTY : (int32_t)moe_random_below(s->experts - 1);
        weight[i] = s->integers ? (float)(1 + moe_random_below(2)) : moe_random_value();
    }
    return (struct ref_moe_problem){.tokens = s->tokens,
        .hidden = s->hidden,
        .ffn = s->ffn,
        .experts = s->experts,
        .topk = s->topk,
        .dtype = s->dtype,
        .x = moe_values(s, s->tokens * s->hidden, 2.0f),
        .idx = idx,
        .weight = weight,
        .gate = s->relu ? NULL : moe_values(s, s->experts * each, 1.0f),
        .up = moe_values(s, s->experts * each, 1.0f),
        .down = moe_values(s, s->experts * each, 1.0f),
        .dy = moe_values(s, s->tokens * s->hidden, 1.0f)};
}

static void moe_problem_free(struct ref_moe_problem *p)
{
    const void *const arrays[] = {p->x, p->idx, p->weight, p->gate, p->up, p->down, p->dy};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free((void *)(uintptr_t)arrays[i]);
}

/* Results full of garbage. */
static struct ref_moe_result moe_result_of(const struct ref_moe_problem *p)
{
    int64_t rows = p->tokens * p->hidden * 4, each = p->experts * p->hidden * p->ffn * 4;
    struct ref_moe_result r = {.y = moe_room(rows),
        .dx = moe_room(rows),
        .router_gradient = moe_room(p->tokens * p->topk * 4),
        .gate_gradient = moe_room(each),
        .up_gradient = moe_room(each),
        .down_gradient = moe_room(each)};
    memset(r.y, 0xa5, (size_t)rows);
    memset(r.dx, 0xa5, (size_t)rows);
    memset(r.router_gradient, 0xa5, (size_t)(p->tokens * p->topk * 4));
    memset(r.gate_gradient, 0xa5, (size_t)each);
    memset(r.up_gradient, 0xa5, (size_t)each);
    memset(r.down_gradient, 0xa5, (size_t)each);
    return r;
}

static void moe_result_free(struct ref_moe_result *r)
{
    free(r->y);
    free(r->dx);
    free(r->router_gradient);
    free(r->gate_gradient);
    free(r->up_gradient);
    free(r->down_gradient);
}

/* ---- orders ------------------------------------------------------------------------------- */

static void moe_swap_slots(struct moe_order *o, int64_t a, int64_t b)
{
    int8_t held = o->combine_slot[a];
    o->combine_slot[a] = o->combine_slot[b];
    o->combine_slot[b] = held;
}

/* Every sum in some order, cut into some segments. */
static struct moe_order moe_random_order(const struct ref_moe_problem *p)
{
    struct moe_order o;
    if (moe_order_init(&o, p->tokens, p->topk, p->experts, p->idx) ||
        moe_order_list_combine(&o, p->idx))
        abort();
    for (int64_t n = 0; n < p->tokens; n++) {
        int64_t first = n * p->topk;
        for (int i = p->topk - 1; i > 0; i--)
            moe_swap_slots(&o, first + i, first + moe_random_below(i + 1));
        bool any = false;
        for (int64_t at = first; at < first + p->topk; at++) {
            bool route = p->idx[first + o.combine_slot[at]] != MOE_EMPTY;
            o.combine_starts[at] = route && (!any || moe_random_below(3) == 0);
            any = any || route;
        }
    }
    for (int64_t e = 0; e < p->experts; e++)
        for (int64_t first = o.expert_first[e], i = o.expert_first[e + 1] - 1; i >= first; i--) {
            int64_t j = first + moe_random_below(i - first + 1), held = o.gradient_route[i];
            o.gradient_route[i] = o.gradient_route[j];
            o.gradient_route[j] = held;
            o.gradient_starts[i] = i == first || moe_random_below(4) == 0;
        }
    return o;
}

/* ---- the definition, once more ------------------------------------------------------------ */

static float moe_element(const struct ref_moe_problem *p, const void *values, int64_t i)
{
    return p->dtype == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)values)[i])
                                  : ((const float *)values)[i];
}

static float moe_stored(const struct ref_moe_problem *p, float value)
{
    return p->dtype == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

static void moe_put(const struct ref_moe_problem *p, void *values, int64_t i, float value)
{
    if (p->dtype == DTYPE_BF16)
        ((uint16_t *)values)[i] = f32_to_bf16(value);
    else
        ((float *)values)[i] = value;
}

/* All that one route forms. */
struct moe_route {
    float *g, *u, *a, *dh, *dg, *du; /* [F] */
    float *e, *de, *dx;              /* [H] */
    float dw;
};

static void moe_naive_forward(
    const struct ref_moe_problem *p, int64_t token, int64_t expert, struct moe_route *r)
{
    int64_t each = p->hidden * p->ffn;
    for (int64_t f = 0; f < p->ffn; f++) {
        float g = 0.0f, u = 0.0f;
        for (int64_t h = 0; h < p->hidden; h++) {
            float x = moe_element(p, p->x, token * p->hidden + h);
            int64_t at = expert * each + f * p->hidden + h;
            g = p->gate ? fmaf(x, moe_element(p, p->gate, at), g) : 0.0f;
            u = fmaf(x, moe_element(p, p->up, at), u);
        }
        r->g[f] = moe_stored(p, g);
        r->u[f] = moe_stored(p, u);
        float s = 1.0f / (1.0f + arith_exp(-r->g[f]));
        r->a[f] = moe_stored(p, p->gate ? (r->g[f] * s) * r->u[f] : arith_max(r->u[f], 0.0f));
    }
    for (int64_t h = 0; h < p->hidden; h++) {
        float e = 0.0f;
        for (int64_t f = 0; f < p->ffn; f++)
            e = fmaf(r->a[f], moe_element(p, p->down, expert * each + h * p->ffn + f), e);
        r->e[h] = moe_stored(p, e);
    }
}

static void moe_naive_backward(const struct ref_moe_problem *p, int64_t token, float weight,
    int64_t expert, struct moe_route *r)
{
    int64_t each = p->hidden * p->ffn;
    float lanes[32] = {0.0f};
    for (int64_t h = 0; h < p->hidden; h++) {
        float dy = moe_element(p, p->dy, token * p->hidden + h);
        r->de[h] = moe_stored(p, weight * dy);
        lanes[h % 32] = fmaf(r->e[h], dy, lanes[h % 32]);
    }
    for (int distance = 16; distance; distance /= 2)
        for (int lane = 0; lane < distance; lane++)
            lanes[lane] += lanes[lane + distance];
    r->dw = lanes[0];
    for (int64_t f = 0; f < p->ffn; f++) {
        float dh = 0.0f, g = r->g[f], s = arith_sigmoid(g);
        for (int64_t h = 0; h < p->hidden; h++)
            dh = fmaf(r->de[h], moe_element(p, p->down, expert * each + h * p->ffn + f), dh);
        r->dh[f] = dh = moe_stored(p, dh);
        r->du[f] = p->gate ? moe_stored(p, dh * (g * s)) : r->u[f] > 0.0f ? dh : 0.0f;
        r->dg[f] = moe_stored(p, (dh * r->u[f]) * (s * fmaf(g, 1.0f - s, 1.0f)));
    }
    for (int64_t h = 0; h < p->hidden; h++) {
        float dx = 0.0f;
        for (int64_t f = 0; p->gate && f < p->ffn; f++)
            dx = fmaf(r->dg[f], moe_element(p, p->gate, expert * each + f * p->hidden + h), dx);
        for (int64_t f = 0; f < p->ffn; f++)
            dx = fmaf(r->du[f], moe_element(p, p->up, expert * each + f * p->hidden + h), dx);
        r->dx[h] = moe_stored(p, dx);
    }
}

/* A sum in segments, one term after the other. */
struct moe_sum {
    float segment, before;
    int segments;
};

static void moe_begin_segment(struct moe_sum *s)
{
    if (s->segments == 1)
        s->before = s->segment;
    else if (s->segments > 1)
        s->before = s->before + s->segment;
    s->segment = 0.0f;
    s->segments++;
}

static float moe_end_sum(struct moe_sum *s)
{
    if (s->segments == 0)
        return 0.0f;
    return s->segments == 1 ? s->segment : s->before + s->segment;
}

static void moe_naive_token(const struct ref_moe_problem *p, const struct moe_order *o,
    const struct moe_route *routes, int64_t token, int64_t h, struct ref_moe_result *result)
{
    struct moe_sum y = {0}, dx = {0};
    for (int64_t at = token * p->topk; at < (token + 1) * p->topk; at++) {
        int64_t route = token * p->topk + o->combine_slot[at];
        if (p->idx[route] == MOE_EMPTY)
            continue;
        if (o->combine_starts[at]) {
            moe_begin_segment(&y);
            moe_begin_segment(&dx);
        }
        y.segment = fmaf(p->weight[route], routes[route].e[h], y.segment);
        dx.segment = dx.segment + routes[route].dx[h];
    }
    moe_put(p, result->y, token * p->hidden + h, moe_end_sum(&y));
    moe_put(p, result->dx, token * p->hidden + h, moe_end_sum(&dx));
}

static void moe_naive_gradient(const struct ref_moe_problem *p, const struct moe_order *o,
    const struct moe_route *routes, int64_t expert, int64_t f, int64_t h,
    struct ref_moe_result *result)
{
    struct moe_sum gate = {0}, up = {0}, down = {0};
    for (int64_t i = o->expert_first[expert]; i < o->expert_first[expert + 1]; i++) {
        const struct moe_route *r = &routes[o->gradient_route[i]];
        float x = moe_element(p, p->x, o->gradient_route[i] / p->topk * p->hidden + h);
        if (o->gradient_starts[i]) {
            moe_begin_segment(&gate);
            moe_begin_segment(&up);
            moe_begin_segment(&down);
        }
        gate.segment = fmaf(r->dg[f], x, gate.segment);
        up.segment = fmaf(r->du[f], x, up.segment);
        down.segment = fmaf(r->de[h], r->a[f], down.segment);
    }
    int64_t each = p->hidden * p->ffn, at = expert * each + f * p->hidden + h;
    if (p->gate)
        result->gate_gradient[at] = moe_end_sum(&gate);
    result->up_gradient[at] = moe_end_sum(&up);
    result->down_gradient[expert * each + h * p->ffn + f] = moe_end_sum(&down);
}

/* The order must list the combine. */
static void moe_naive(
    const struct ref_moe_problem *p, const struct moe_order *o, struct ref_moe_result *result)
{
    int64_t slots = p->tokens * p->topk, floats = 6 * p->ffn + 3 * p->hidden;
    struct moe_route *routes = moe_room(slots * (int64_t)sizeof *routes);
    float *values = moe_room(slots * floats * 4);
    for (int64_t i = 0; i < slots; i++) {
        float *v = values + i * floats, *w = v + 6 * p->ffn;
        int64_t f = p->ffn, token = i / p->topk;
        routes[i] = (struct moe_route){v, v + f, v + 2 * f, v + 3 * f, v + 4 * f, v + 5 * f, w,
            w + p->hidden, w + 2 * p->hidden, 0.0f};
        if (p->idx[i] != MOE_EMPTY) {
            moe_naive_forward(p, token, p->idx[i], &routes[i]);
            moe_naive_backward(p, token, p->weight[i], p->idx[i], &routes[i]);
        }
        result->router_gradient[i] = routes[i].dw;
    }
    for (int64_t i = 0; i < p->tokens * p->hidden; i++)
        moe_naive_token(p, o, routes, i / p->hidden, i % p->hidden, result);
    for (int64_t e = 0; e < p->experts; e++)
        for (int64_t i = 0; i < p->hidden * p->ffn; i++)
            moe_naive_gradient(p, o, routes, e, i / p->hidden, i % p->hidden, result);
    free(values);
    free(routes);
}
