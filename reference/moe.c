/* The dispatch problem by its definition (ops/moe.h, docs/ARITHMETIC.md rules 3, 5, 6, 8, 10, 12).
 *
 * Expert after expert meets its routes, in the order in which its weight gradient sums them, a
 * block at a time: forward, backward and the gradient's chain in one go. What a route gives its
 * token, its expert's output and its part of dX, is kept until all experts are done; then every
 * token sums its slots in the declared order.
 *
 * The full result and a sample of it are the same code over fewer routes: no row depends on which
 * others are formed. */
#include "reference/moe.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reference/product.h"

#define ROUTE_BLOCK 256

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A problem at work. Of a matrix "turned" is the transpose. */
struct work {
    const struct ref_moe_problem *problem;
    const struct moe_order *order;
    struct ref_moe_result *result;
    bool backward, gradients;

    /* Where a token's (an expert's) results go; -1 = not wanted. */
    int64_t *token_place, *expert_place;
    int64_t tokens_wanted, experts_wanted;

    /* the expert at hand: as stored, and turned */
    float *gate, *up, *down, *gate_turned, *up_turned, *down_turned;

    /* the block at hand */
    int64_t *token;                  /* [block] */
    float *x, *dy, *e, *de, *dx;     /* [block, H] */
    float *g, *u, *a, *dh, *dg, *du; /* [block, F] */
    float *turned;                   /* [max(H, F), block] */

    float *gate_segment, *up_segment, *down_segment; /* the chains of the segment at hand */

    char *e_rows, *dx_rows; /* [tokens wanted, k, H] in the problem's type, as stored */
};

/* ---- storage ------------------------------------------------------------------------------ */

/* Rounds as a store to the problem's type and a load do. */
static void round_stored(enum dtype type, float *values, int64_t count)
{
    if (type == DTYPE_BF16)
        for (int64_t i = 0; i < count; i++)
            values[i] = bf16_to_f32(f32_to_bf16(values[i]));
}

static void store_row(enum dtype type, const float *row, int64_t columns, void *to)
{
    if (type == DTYPE_F32) {
        memcpy(to, row, (size_t)columns * sizeof *row);
        return;
    }
    for (int64_t i = 0; i < columns; i++)
        ((uint16_t *)to)[i] = f32_to_bf16(row[i]);
}

static float stored_element(enum dtype type, const void *row, int64_t i)
{
    return type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

/* c = a b, [m, k] by [k, n], in one chain from +0, stored. */
static void stored_product(
    const struct work *k, const float *a, const float *b, float *c, int64_t m, int64_t n, int64_t s)
{
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    ref_product(a, b, c, m, n, s);
    round_stored(k->problem->dtype, c, m * n);
}

/* ---- one block of an expert's routes ------------------------------------------------------ */

static void load_matrix(const struct work *k, const void *matrices, int64_t expert, int64_t rows,
    int64_t columns, float *matrix, float *turned)
{
    ref_load_rows(k->problem->dtype, matrices, NULL, expert * rows, rows, columns, matrix);
    ref_transpose(matrix, rows, columns, turned);
}

static void load_expert(struct work *k, int64_t expert)
{
    const struct ref_moe_problem *p = k->problem;
    if (p->gate)
        load_matrix(k, p->gate, expert, p->ffn, p->hidden, k->gate, k->gate_turned);
    load_matrix(k, p->up, expert, p->ffn, p->hidden, k->up, k->up_turned);
    load_matrix(k, p->down, expert, p->hidden, p->ffn, k->down, k->down_turned);
}

/* x, g, u, a, e of `count` routes. */
static void forward_block(struct work *k, const int64_t *route, int64_t count)
{
    const struct ref_moe_problem *p = k->problem;
    int64_t hidden = p->hidden, ffn = p->ffn, elements = count * ffn;
    for (int64_t i = 0; i < count; i++)
        k->token[i] = route[i] / p->topk;
    ref_load_rows(p->dtype, p->x, k->token, 0, count, hidden, k->x);
    stored_product(k, k->x, k->up_turned, k->u, count, ffn, hidden);
    if (p->gate) {
        stored_product(k, k->x, k->gate_turned, k->g, count, ffn, hidden);
        for (int64_t i = 0; i < elements; i++)
            k->a[i] = arith_silu(k->g[i]) * k->u[i];
    } else {
        for (int64_t i = 0; i < elements; i++)
            k->a[i] = arith_max(k->u[i], 0.0f);
    }
    round_stored(p->dtype, k->a, elements);
    stored_product(k, k->a, k->down_turned, k->e, count, hidden, ffn);
}

/* Rule 6 with fmaf. */
static float row_dot(const float *a, const float *b, int64_t count)
{
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t i = 0; i < count; i++)
        lanes[i % ARITH_LANES] = fmaf(a[i], b[i], lanes[i % ARITH_LANES]);
    return arith_add_lanes(lanes);
}

/* dy, de, dh, dg, du, dx of the block that forward_block left. */
static void backward_block(struct work *k, const int64_t *route, int64_t count)
{
    const struct ref_moe_problem *p = k->problem;
    int64_t hidden = p->hidden, ffn = p->ffn, elements = count * ffn;
    ref_load_rows(p->dtype, p->dy, k->token, 0, count, hidden, k->dy);
    for (int64_t i = 0; i < count; i++)
        for (int64_t h = 0; h < hidden; h++)
            k->de[i * hidden + h] = p->weight[route[i]] * k->dy[i * hidden + h];
    round_stored(p->dtype, k->de, count * hidden);
    stored_product(k, k->de, k->down, k->dh, count, ffn, hidden);
    if (p->gate) {
        for (int64_t i = 0; i < elements; i++) {
            float g = k->g[i], s = arith_sigmoid(g);
            k->du[i] = k->dh[i] * (g * s);
            k->dg[i] = (k->dh[i] * k->u[i]) * (s * fmaf(g, 1.0f - s, 1.0f));
        }
        round_stored(p->dtype, k->dg, elements);
    } else {
        for (int64_t i = 0; i < elements; i++)
            k->du[i] = k->u[i] > 0.0f ? k->dh[i] : 0.0f;
    }
    round_stored(p->dtype, k->du, elements);
    memset(k->dx, 0, (size_t)(count * hidden) * sizeof *k->dx);
    if (p->gate)
        ref_product(k->dg, k->gate, k->dx, count, hidden, ffn);
    ref_product(k->du, k->up, k->dx, count, hidden, ffn);
    round_stored(p->dtype, k->dx, count * hidden);
}

/* Keeps what the block's routes give their tokens, of the tokens wanted. */
static void keep_rows(struct work *k, const int64_t *route, int64_t count)
{
    const struct ref_moe_problem *p = k->problem;
    int64_t hidden = p->hidden, row_bytes = hidden * dtype_bytes(p->dtype);
    for (int64_t i = 0; i < count; i++) {
        int64_t place = k->token_place[k->token[i]];
        if (place < 0)
            continue;
        int64_t at = place * p->topk + route[i] % p->topk;
        if (k->e_rows)
            store_row(p->dtype, k->e + i * hidden, hidden, k->e_rows + at * row_bytes);
        if (k->dx_rows)
            store_row(p->dtype, k->dx + i * hidden, hidden, k->dx_rows + at * row_bytes);
        if (k->result->router_gradient)
            k->result->router_gradient[at] = row_dot(k->e + i * hidden, k->dy + i * hidden, hidden);
    }
}

/* segment[m, n] continues its chain over the block's rows of a [count, m] times b [count, n]. */
static void add_outer(struct work *k, const float *a, const float *b, int64_t count, int64_t m,
    int64_t n, float *segment)
{
    ref_transpose(a, count, m, k->turned);
    ref_product(k->turned, b, segment, m, n, count);
}

static void add_gradients(struct work *k, int64_t count)
{
    int64_t hidden = k->problem->hidden, ffn = k->problem->ffn;
    if (k->gate_segment)
        add_outer(k, k->dg, k->x, count, ffn, hidden, k->gate_segment);
    if (k->up_segment)
        add_outer(k, k->du, k->x, count, ffn, hidden, k->up_segment);
    if (k->down_segment)
        add_outer(k, k->de, k->a, count, hidden, ffn, k->down_segment);
}

static void run_block(struct work *k, const int64_t *route, int64_t count)
{
    forward_block(k, route, count);
    if (k->backward)
        backward_block(k, route, count);
    keep_rows(k, route, count);
}

/* ---- one expert --------------------------------------------------------------------------- */

/* The gradient at `place` becomes the segment, or itself plus the segment; a new chain begins at
 * +0.
 */
static void close_segment(
    float *segment, float *gradients, int64_t place, bool first, int64_t count)
{
    if (!segment)
        return;
    float *sum = gradients + place * count;
    for (int64_t i = 0; i < count; i++)
        sum[i] = first ? segment[i] : sum[i] + segment[i];
    memset(segment, 0, (size_t)count * sizeof *segment);
}

static void close_segments(struct work *k, int64_t place, bool first)
{
    int64_t count = k->problem->ffn * k->problem->hidden;
    const struct ref_moe_result *r = k->result;
    close_segment(k->gate_segment, r->gate_gradient, place, first, count);
    close_segment(k->up_segment, r->up_gradient, place, first, count);
    close_segment(k->down_segment, r->down_gradient, place, first, count);
}

/* All routes of an expert whose gradient is wanted, segment by segment. */
static void run_whole_expert(struct work *k, int64_t expert, int64_t place)
{
    const struct moe_order *order = k->order;
    int64_t at = order->expert_first[expert], end = order->expert_first[expert + 1];
    bool first = true;
    while (at < end) {
        int64_t segment_end = at + 1;
        while (segment_end < end && !order->gradient_starts[segment_end])
            segment_end++;
        for (; at < segment_end; at += ROUTE_BLOCK) {
            int64_t count = min_i64(ROUTE_BLOCK, segment_end - at);
            run_block(k, order->gradient_route + at, count);
            add_gradients(k, count);
        }
        at = segment_end;
        close_segments(k, place, first);
        first = false;
    }
}

/* The routes of the wanted tokens alone. */
static void run_some_routes(struct work *k, int64_t expert)
{
    const struct moe_order *order = k->order;
    int64_t route[ROUTE_BLOCK], count = 0;
    for (int64_t i = order->expert_first[expert]; i < order->expert_first[expert + 1]; i++) {
        if (k->token_place[order->gradient_route[i] / order->topk] >= 0)
            route[count++] = order->gradient_route[i];
        if (count == ROUTE_BLOCK) {
            run_block(k, route, count);
            count = 0;
        }
    }
    if (count)
        run_block(k, route, count);
}

static bool any_route_wanted(const struct work *k, int64_t expert)
{
    const struct moe_order *order = k->order;
    for (int64_t i = order->expert_first[expert]; i < order->expert_first[expert + 1]; i++)
        if (k->expert_place[expert] >= 0 ||
            k->token_place[order->gradient_route[i] / order->topk] >= 0)
            return true;
    return false;
}

static void run_experts(struct work *k)
{
    int64_t count = k->problem->ffn * k->problem->hidden;
    const struct ref_moe_result *r = k->result;
    float *const gradients[] = {
        k->problem->gate ? r->gate_gradient : NULL, r->up_gradient, r->down_gradient};
    for (int i = 0; i < 3; i++)
        if (gradients[i])
            memset(gradients[i], 0, (size_t)(k->experts_wanted * count) * sizeof(float));
    if (r->router_gradient)
        memset(
            r->router_gradient, 0, (size_t)(k->tokens_wanted * k->problem->topk) * sizeof(float));
    for (int64_t expert = 0; expert < k->problem->experts; expert++) {
        if (!any_route_wanted(k, expert))
            continue;
        load_expert(k, expert);
        if (k->gradients && k->expert_place[expert] >= 0)
            run_whole_expert(k, expert, k->expert_place[expert]);
        else
            run_some_routes(k, expert);
    }
}

/* ---- sums over slots ---------------------------------------------------------------------- */

/* One token's sum of stored rows [k, H]: with weights Y, without them dX. `group` and `sum` have
 * room for H. */
static void sum_slots(const struct work *k, int64_t token, const char *rows, const float *weight,
    float *group, float *sum)
{
    const struct ref_moe_problem *p = k->problem;
    const struct moe_order *order = k->order;
    int64_t hidden = p->hidden, row_bytes = hidden * dtype_bytes(p->dtype);
    int groups = 0;
    memset(sum, 0, (size_t)hidden * sizeof *sum);
    for (int i = 0; i < p->topk; i++) {
        int64_t at = token * p->topk + i;
        int slot = order->combine_slot ? order->combine_slot[at] : i;
        if (p->idx[token * p->topk + slot] == MOE_EMPTY)
            continue;
        if (groups == 0 || (order->combine_slot && order->combine_starts[at])) {
            for (int64_t h = 0; groups && h < hidden; h++)
                sum[h] = groups == 1 ? group[h] : sum[h] + group[h];
            memset(group, 0, (size_t)hidden * sizeof *group);
            groups++;
        }
        const char *row = rows + slot * row_bytes;
        for (int64_t h = 0; h < hidden; h++) {
            float value = stored_element(p->dtype, row, h);
            group[h] = weight ? fmaf(weight[slot], value, group[h]) : group[h] + value;
        }
    }
    for (int64_t h = 0; groups && h < hidden; h++)
        sum[h] = groups == 1 ? group[h] : sum[h] + group[h];
}

/* The block's arrays have room for a row. */
static void sum_tokens(struct work *k)
{
    const struct ref_moe_problem *p = k->problem;
    int64_t row_bytes = p->hidden * dtype_bytes(p->dtype);
    for (int64_t token = 0; token < p->tokens; token++) {
        int64_t place = k->token_place[token];
        if (place < 0)
            continue;
        if (k->e_rows) {
            sum_slots(k, token, k->e_rows + place * p->topk * row_bytes,
                p->weight + token * p->topk, k->x, k->e);
            store_row(p->dtype, k->e, p->hidden, (char *)k->result->y + place * row_bytes);
        }
        if (k->dx_rows) {
            sum_slots(k, token, k->dx_rows + place * p->topk * row_bytes, NULL, k->x, k->e);
            store_row(p->dtype, k->e, p->hidden, (char *)k->result->dx + place * row_bytes);
        }
    }
}

/* ---- beginning and end -------------------------------------------------------------------- */

static float *room(int64_t rows, int64_t columns)
{
    size_t count = (size_t)rows * (size_t)columns;
    return malloc((count ? count : 1) * sizeof(float));
}

/* Where each of `count` things goes: all in their place, or the `listed` ones of a list. */
static int64_t *places(int64_t count, const int64_t *list, int64_t listed)
{
    int64_t *place = malloc((size_t)(count > 0 ? count : 1) * sizeof *place);
    for (int64_t i = 0; place && i < count; i++)
        place[i] = list ? -1 : i;
    for (int64_t i = 0; place && list && i < listed; i++)
        place[list[i]] = i;
    return place;
}

static void work_end(struct work *k)
{
    float *const arrays[] = {k->gate, k->up, k->down, k->gate_turned, k->up_turned, k->down_turned,
        k->x, k->dy, k->e, k->de, k->dx, k->g, k->u, k->a, k->dh, k->dg, k->du, k->turned,
        k->gate_segment, k->up_segment, k->down_segment};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    free(k->token_place);
    free(k->expert_place);
    free(k->token);
    free(k->e_rows);
    free(k->dx_rows);
}

/* The chains of the gradients wanted, at +0. */
static bool begin_segments(struct work *k)
{
    size_t count = (size_t)k->problem->ffn * (size_t)k->problem->hidden;
    const struct ref_moe_result *r = k->result;
    bool gate = r->gate_gradient && k->problem->gate;
    k->gate_segment = gate ? calloc(count, sizeof(float)) : NULL;
    k->up_segment = r->up_gradient ? calloc(count, sizeof(float)) : NULL;
    k->down_segment = r->down_gradient ? calloc(count, sizeof(float)) : NULL;
    return (!gate || k->gate_segment) && (!r->up_gradient || k->up_segment) &&
           (!r->down_gradient || k->down_segment);
}

/* 0, or -1 when memory is short; work_end either way. */
static int work_begin(struct work *k, const struct ref_moe_problem *p,
    const struct moe_order *order, const struct ref_moe_sample *sample,
    struct ref_moe_result *result)
{
    int64_t h = p->hidden, f = p->ffn;
    *k = (struct work){
        .problem = p,
        .order = order,
        .result = result,
        .gradients = result->gate_gradient || result->up_gradient || result->down_gradient,
        .tokens_wanted = sample ? sample->tokens_count : p->tokens,
        .experts_wanted = sample ? sample->experts_count : p->experts,
        .token_place =
            places(p->tokens, sample ? sample->tokens : NULL, sample ? sample->tokens_count : 0),
        .expert_place =
            places(p->experts, sample ? sample->experts : NULL, sample ? sample->experts_count : 0),
        .gate = room(f, h),
        .up = room(f, h),
        .down = room(f, h),
        .gate_turned = room(f, h),
        .up_turned = room(f, h),
        .down_turned = room(f, h),
        .token = malloc(ROUTE_BLOCK * sizeof(int64_t)),
        .x = room(ROUTE_BLOCK, h),
        .dy = room(ROUTE_BLOCK, h),
        .e = room(ROUTE_BLOCK, h),
        .de = room(ROUTE_BLOCK, h),
        .dx = room(ROUTE_BLOCK, h),
        .g = room(ROUTE_BLOCK, f),
        .u = room(ROUTE_BLOCK, f),
        .a = room(ROUTE_BLOCK, f),
        .dh = room(ROUTE_BLOCK, f),
        .dg = room(ROUTE_BLOCK, f),
        .du = room(ROUTE_BLOCK, f),
        .turned = room(ROUTE_BLOCK, max_i64(h, f)),
    };
    k->backward = k->gradients || result->dx || result->router_gradient;
    size_t rows_bytes = (size_t)(k->tokens_wanted * p->topk * h * dtype_bytes(p->dtype)) + 1;
    k->e_rows = result->y ? malloc(rows_bytes) : NULL;
    k->dx_rows = result->dx ? malloc(rows_bytes) : NULL;
    bool all = k->token_place && k->expert_place && k->gate && k->up && k->down && k->gate_turned &&
               k->up_turned && k->down_turned && k->token && k->x && k->dy && k->e && k->de &&
               k->dx && k->g && k->u && k->a && k->dh && k->dg && k->du && k->turned &&
               (!result->y || k->e_rows) && (!result->dx || k->dx_rows);
    return all && begin_segments(k) ? 0 : -1;
}

/* ---- public ------------------------------------------------------------------------------- */

int ref_moe_check(const struct ref_moe_problem *p, char *error, int size)
{
    if (p->tokens < 0 || p->hidden < 1 || p->ffn < 1 || p->experts < 1 || p->topk < 1 ||
        p->topk > MOE_TOPK_MAX) {
        snprintf(error, (size_t)size,
            "%" PRId64 " tokens, hidden %" PRId64 ", ffn %" PRId64 ", %" PRId64
            " experts, %d slots: allowed 0 tokens and more, sizes of at least 1, at most %d slots",
            p->tokens, p->hidden, p->ffn, p->experts, p->topk, MOE_TOPK_MAX);
        return -1;
    }
    for (int64_t i = 0; i < p->tokens * p->topk; i++)
        if (p->idx[i] != MOE_EMPTY && (p->idx[i] < 0 || p->idx[i] >= p->experts)) {
            snprintf(error, (size_t)size,
                "token %" PRId64 " slot %d names expert %d, allowed 0..%" PRId64 " or %d (empty)",
                i / p->topk, (int)(i % p->topk), (int)p->idx[i], p->experts - 1, MOE_EMPTY);
            return -1;
        }
    return 0;
}

/* The declared order once it is known to cover the problem, or the default one (made in
 * `room_for`). NULL with `error` otherwise. */
static const struct moe_order *take_order(const struct ref_moe_problem *p,
    const struct moe_order *declared, struct moe_order *room_for, char *error, int size)
{
    if (!declared) {
        if (!moe_order_init(room_for, p->tokens, p->topk, p->experts, p->idx))
            return room_for;
        snprintf(error, (size_t)size, "no memory for an order over %" PRId64 " tokens", p->tokens);
        return NULL;
    }
    if (declared->tokens != p->tokens || declared->topk != p->topk ||
        declared->experts != p->experts) {
        snprintf(error, (size_t)size,
            "an order over %" PRId64 " tokens of %d slots and %" PRId64
            " experts for a problem of %" PRId64 ", %d and %" PRId64,
            declared->tokens, declared->topk, declared->experts, p->tokens, p->topk, p->experts);
        return NULL;
    }
    return moe_order_check(declared, p->idx, error, size) ? NULL : declared;
}

/* Listed indices must ascend within [0, end). */
static int check_list(
    const char *what, const int64_t *list, int64_t count, int64_t end, char *error, int size)
{
    for (int64_t i = 0; i < count; i++)
        if (list[i] < 0 || list[i] >= end || (i && list[i] <= list[i - 1])) {
            snprintf(error, (size_t)size,
                "sampled %s at position %" PRId64 " is %" PRId64
                ", allowed ascending in 0..%" PRId64,
                what, i, list[i], end - 1);
            return -1;
        }
    return 0;
}

static int run(const struct ref_moe_problem *problem, const struct moe_order *order,
    const struct ref_moe_sample *sample, struct ref_moe_result *result, char *error, int size)
{
    if (ref_moe_check(problem, error, size))
        return -1;
    struct moe_order in_default_order = {0};
    const struct moe_order *taken = take_order(problem, order, &in_default_order, error, size);
    if (!taken)
        return -1;
    struct work k;
    int status = work_begin(&k, problem, taken, sample, result);
    if (status) {
        snprintf(error, (size_t)size, "no memory for the reference's rows");
    } else if (k.backward && !problem->dy) {
        snprintf(error, (size_t)size, "gradients are wanted and dy is not given");
        status = -1;
    } else {
        run_experts(&k);
        sum_tokens(&k);
    }
    work_end(&k);
    moe_order_free(&in_default_order);
    return status;
}

int ref_moe(const struct ref_moe_problem *problem, const struct moe_order *order,
    struct ref_moe_result *result, char *error, int size)
{
    return run(problem, order, NULL, result, error, size);
}

int ref_moe_sampled(const struct ref_moe_problem *problem, const struct moe_order *order,
    const struct ref_moe_sample *sample, struct ref_moe_result *result, char *error, int size)
{
    if (ref_moe_check(problem, error, size) ||
        check_list("token", sample->tokens, sample->tokens_count, problem->tokens, error, size) ||
        check_list("expert", sample->experts, sample->experts_count, problem->experts, error, size))
        return -1;
    static const int64_t none = 0;
    struct ref_moe_sample lists = *sample;
    lists.tokens = lists.tokens_count ? lists.tokens : &none; /* an empty list is a list */
    lists.experts = lists.experts_count ? lists.experts : &none;
    return run(problem, order, &lists, result, error, size);
}
