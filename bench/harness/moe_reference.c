/* Reference results of the dispatch problem.
 *
 * A result is kept in pieces: what tokens get (Y, dX, dw) depends on the inputs and the combine's
 * order, weight gradients on the inputs and their own. Orders that share one share the piece: a
 * dispatcher's chunk counts differ in their gradients alone. What a call lacks is computed in one
 * run of the reference. */
#include "bench/harness/moe_reference.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/reference_store.h"

enum kind { FORWARD, TOKENS, GRADIENTS, F64_FORWARD, F64_BOTH };

struct piece {
    struct reference_piece kept;
    struct ref_moe_result result;
    struct ref_moe_f64 f64;
};

struct moe_reference {
    struct reference_store store;
};

struct moe_reference *moe_reference_create(int64_t limit_bytes)
{
    struct moe_reference *cache = calloc(1, sizeof *cache);
    if (cache)
        cache->store.limit_bytes = limit_bytes;
    return cache;
}

void moe_reference_free(struct moe_reference *cache)
{
    if (cache)
        reference_store_free(&cache->store);
    free(cache);
}

int64_t moe_reference_kept_bytes(const struct moe_reference *cache)
{
    return cache->store.kept_bytes;
}

/* ---- which inputs, which order ------------------------------------------------------------ */

static int64_t slots_of(const struct ref_moe_problem *p)
{
    return p->tokens * p->topk;
}

/* Of one matrix kind, all experts'. */
static int64_t matrix_elements(const struct ref_moe_problem *p)
{
    return p->experts * p->ffn * p->hidden;
}

/* 0, or -1 when memory is short. dy is an input of a backward pass alone. */
static int digest_inputs(
    const struct ref_moe_problem *p, bool with_backward, struct reference_inputs *inputs)
{
    int64_t sizes[] = {p->tokens, p->hidden, p->ffn, p->experts, p->topk, p->dtype, !p->gate};
    int64_t rows_bytes = p->tokens * p->hidden * dtype_bytes(p->dtype);
    int64_t matrix_bytes = matrix_elements(p) * dtype_bytes(p->dtype);
    const struct reference_block blocks[] = {{sizes, sizeof sizes}, {p->x, rows_bytes},
        {p->idx, slots_of(p) * (int64_t)sizeof *p->idx},
        {p->weight, slots_of(p) * (int64_t)sizeof *p->weight},
        {p->gate, p->gate ? matrix_bytes : 0}, {p->up, matrix_bytes}, {p->down, matrix_bytes},
        {p->dy, with_backward ? rows_bytes : 0}};
    return reference_digest(blocks, (int)(sizeof blocks / sizeof *blocks), inputs);
}

/* Two lists one after the other. 0, or -1 when memory is short. */
static int join(
    struct reference_key *key, const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    key->order_bytes = a_bytes + b_bytes;
    key->order = malloc((size_t)key->order_bytes + 1);
    if (!key->order)
        return -1;
    memcpy(key->order, a, (size_t)a_bytes);
    memcpy((char *)key->order + a_bytes, b, (size_t)b_bytes);
    return 0;
}

/* The part of a checked order that a piece of the key's kind depends on. 0, or -1 when memory is
 * short. */
static int key_order(
    const struct ref_moe_problem *p, const struct moe_order *order, struct reference_key *key)
{
    if (!order || key->kind == F64_FORWARD || key->kind == F64_BOTH)
        return 0;
    if (key->kind != GRADIENTS) {
        if (moe_order_default_combine(order, p->idx))
            return 0;
        return join(key, order->combine_slot, slots_of(p) * (int64_t)sizeof *order->combine_slot,
            order->combine_starts, slots_of(p) * (int64_t)sizeof *order->combine_starts);
    }
    if (moe_order_default_gradient(order))
        return 0;
    int64_t routes = order->expert_first[p->experts];
    return join(key, order->gradient_route, routes * (int64_t)sizeof *order->gradient_route,
        order->gradient_starts, routes * (int64_t)sizeof *order->gradient_starts);
}

/* ---- making ------------------------------------------------------------------------------- */

/* A value array and its bounds. */
static bool take_pair(struct piece *p, int64_t count, double **value, double **bound)
{
    *value = reference_take(&p->kept, count, 8);
    *bound = reference_take(&p->kept, count, 8);
    return *value && *bound;
}

static bool take_f64(struct piece *p, const struct ref_moe_problem *problem)
{
    int64_t rows = problem->tokens * problem->hidden, each = matrix_elements(problem);
    bool all = take_pair(p, rows, &p->f64.y, &p->f64.y_bound);
    if (p->kept.key.kind == F64_FORWARD)
        return all;
    all = take_pair(p, rows, &p->f64.dx, &p->f64.dx_bound) && all;
    all = take_pair(p, slots_of(problem), &p->f64.router_gradient, &p->f64.router_bound) && all;
    if (problem->gate)
        all = take_pair(p, each, &p->f64.gate_gradient, &p->f64.gate_bound) && all;
    all = take_pair(p, each, &p->f64.up_gradient, &p->f64.up_bound) && all;
    return take_pair(p, each, &p->f64.down_gradient, &p->f64.down_bound) && all;
}

static bool take_arrays(struct piece *p, const struct ref_moe_problem *problem)
{
    int64_t rows = problem->tokens * problem->hidden, each = matrix_elements(problem);
    int64_t element_bytes = dtype_bytes(problem->dtype);
    struct ref_moe_result *r = &p->result;
    switch (p->kept.key.kind) {
    case FORWARD:
        r->y = reference_take(&p->kept, rows, element_bytes);
        return r->y;
    case TOKENS:
        r->y = reference_take(&p->kept, rows, element_bytes);
        r->dx = reference_take(&p->kept, rows, element_bytes);
        r->router_gradient = reference_take(&p->kept, slots_of(problem), 4);
        return r->y && r->dx && r->router_gradient;
    case GRADIENTS:
        r->gate_gradient = problem->gate ? reference_take(&p->kept, each, 4) : NULL;
        r->up_gradient = reference_take(&p->kept, each, 4);
        r->down_gradient = reference_take(&p->kept, each, 4);
        return (r->gate_gradient || !problem->gate) && r->up_gradient && r->down_gradient;
    default:
        return take_f64(p, problem);
    }
}

/* The piece, kept, or with room alone and *missing set. NULL with `error`. */
static struct piece *find_or_create(struct moe_reference *cache,
    const struct ref_moe_problem *problem, struct reference_inputs inputs, enum kind kind,
    const struct moe_order *order, bool *missing, char *error, int size)
{
    struct reference_key key = {.inputs = inputs, .kind = kind};
    struct piece *p = NULL;
    *missing = false;
    if (!key_order(problem, order, &key))
        p = reference_find_or_create(&cache->store, &key, sizeof *p, missing);
    if (p && *missing && !take_arrays(p, problem)) {
        reference_piece_free(&p->kept);
        p = NULL;
    }
    if (!p) {
        *missing = false;
        snprintf(error, (size_t)size, "no memory to keep a reference result");
    }
    return p;
}

/* Begins a call: refuses what the reference refuses, and names the inputs. */
static int begin(struct moe_reference *cache, const struct ref_moe_problem *problem,
    const struct moe_order *order, bool with_backward, struct reference_inputs *inputs, char *error,
    int size)
{
    if (ref_moe_check(problem, error, size))
        return -1;
    if (order && (order->tokens != problem->tokens || order->topk != problem->topk ||
                     order->experts != problem->experts)) {
        snprintf(error, (size_t)size,
            "an order over %" PRId64 " tokens of %d slots for a problem of %" PRId64 " and %d",
            order->tokens, order->topk, problem->tokens, problem->topk);
        return -1;
    }
    if (order && moe_order_check(order, problem->idx, error, size))
        return -1;
    if (with_backward && !problem->dy) {
        snprintf(error, (size_t)size, "gradients are wanted and dy is not given");
        return -1;
    }
    if (digest_inputs(problem, with_backward, inputs)) {
        snprintf(error, (size_t)size, "no memory for a digest of the inputs");
        return -1;
    }
    cache->store.use++;
    return 0;
}

/* ---- public ------------------------------------------------------------------------------- */

/* Runs the reference for the pieces that were missing; they are kept, or freed on failure. */
static int complete(struct moe_reference *cache, const struct ref_moe_problem *problem,
    const struct moe_order *order, struct piece *missing[2], char *error, int size)
{
    struct ref_moe_result wanted = {0};
    int64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        const struct ref_moe_result *r = missing[i] ? &missing[i]->result : &wanted;
        wanted.y = r->y ? r->y : wanted.y;
        wanted.dx = r->dx ? r->dx : wanted.dx;
        wanted.router_gradient = r->router_gradient ? r->router_gradient : wanted.router_gradient;
        wanted.gate_gradient = r->gate_gradient ? r->gate_gradient : wanted.gate_gradient;
        wanted.up_gradient = r->up_gradient ? r->up_gradient : wanted.up_gradient;
        wanted.down_gradient = r->down_gradient ? r->down_gradient : wanted.down_gradient;
        bytes += missing[i] ? missing[i]->kept.bytes : 0;
    }
    if (!missing[0] && !missing[1])
        return 0;
    reference_make_room(&cache->store, bytes);
    int status = ref_moe(problem, order, &wanted, error, size);
    for (int i = 0; i < 2; i++) {
        if (!missing[i])
            continue;
        if (!status)
            reference_keep(&cache->store, &missing[i]->kept);
        else
            reference_piece_free(&missing[i]->kept);
    }
    return status;
}

int moe_reference_get(struct moe_reference *cache, const struct ref_moe_problem *problem,
    const struct moe_order *order, bool with_backward, struct ref_moe_result *result, char *error,
    int size)
{
    struct reference_inputs inputs;
    if (begin(cache, problem, order, with_backward, &inputs, error, size))
        return -1;
    bool lacks_tokens = false, lacks_gradients = false;
    struct piece *gradients = NULL;
    struct piece *tokens = find_or_create(cache, problem, inputs, with_backward ? TOKENS : FORWARD,
        order, &lacks_tokens, error, size);
    if (tokens && with_backward)
        gradients =
            find_or_create(cache, problem, inputs, GRADIENTS, order, &lacks_gradients, error, size);
    struct piece *missing[2] = {lacks_tokens ? tokens : NULL, lacks_gradients ? gradients : NULL};
    if (!tokens || (with_backward && !gradients)) {
        if (missing[0])
            reference_piece_free(&missing[0]->kept);
        return -1;
    }
    if (complete(cache, problem, order, missing, error, size))
        return -1;
    *result = tokens->result;
    if (gradients) {
        result->gate_gradient = gradients->result.gate_gradient;
        result->up_gradient = gradients->result.up_gradient;
        result->down_gradient = gradients->result.down_gradient;
    }
    return 0;
}

int moe_reference_get_f64(struct moe_reference *cache, const struct ref_moe_problem *problem,
    bool with_backward, struct ref_moe_f64 *result, char *error, int size)
{
    struct reference_inputs inputs;
    bool lacking;
    if (begin(cache, problem, NULL, with_backward, &inputs, error, size))
        return -1;
    struct piece *p = find_or_create(cache, problem, inputs, with_backward ? F64_BOTH : F64_FORWARD,
        NULL, &lacking, error, size);
    if (!p)
        return -1;
    if (lacking) {
        reference_make_room(&cache->store, p->kept.bytes);
        if (ref_moe_f64(problem, &p->f64, error, size)) {
            reference_piece_free(&p->kept);
            return -1;
        }
        reference_keep(&cache->store, &p->kept);
    }
    *result = p->f64;
    return 0;
}
