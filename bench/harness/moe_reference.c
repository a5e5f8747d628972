/* A list of reference results.
 *
 * A result is kept in pieces: what tokens get (Y, dX, dw) depends on the inputs and the combine's
 * order, weight gradients on the inputs and their own. Orders that share one share the piece: a
 * dispatcher's chunk counts differ in their gradients alone. What a call lacks is computed in one
 * run of the reference. Inputs are known by a digest of their bytes, which costs less than reading
 * them once in the first product and asks nothing of the caller. */
#include "bench/harness/moe_reference.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum kind { FORWARD, TOKENS, GRADIENTS, F64_FORWARD, F64_BOTH };

/* What an order says about one kind of piece, as bytes; none = the default order. */
struct order_key {
    void *bytes;
    int64_t count;
};

struct piece {
    struct piece *next;
    XXH128_hash_t inputs;
    enum kind kind;
    struct order_key order;
    struct ref_moe_result result;
    struct ref_moe_f64 f64;
    int64_t bytes, last_use;
};

struct moe_reference {
    struct piece *pieces;
    int64_t limit_bytes, kept_bytes;
    int64_t use; /* counts calls; pieces of the call at hand are never dropped */
};

struct moe_reference *moe_reference_create(int64_t limit_bytes)
{
    struct moe_reference *cache = calloc(1, sizeof *cache);
    if (cache)
        cache->limit_bytes = limit_bytes;
    return cache;
}

static void piece_free(struct piece *p)
{
    if (!p)
        return;
    void *const arrays[] = {p->order.bytes, p->result.y, p->result.dx, p->result.router_gradient,
        p->result.gate_gradient, p->result.up_gradient, p->result.down_gradient, p->f64.y,
        p->f64.y_bound, p->f64.dx, p->f64.dx_bound, p->f64.router_gradient, p->f64.router_bound,
        p->f64.gate_gradient, p->f64.gate_bound, p->f64.up_gradient, p->f64.up_bound,
        p->f64.down_gradient, p->f64.down_bound};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    free(p);
}

void moe_reference_free(struct moe_reference *cache)
{
    while (cache && cache->pieces) {
        struct piece *next = cache->pieces->next;
        piece_free(cache->pieces);
        cache->pieces = next;
    }
    free(cache);
}

int64_t moe_reference_kept_bytes(const struct moe_reference *cache)
{
    return cache->kept_bytes;
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
static int digest_inputs(const struct ref_moe_problem *p, bool with_backward, XXH128_hash_t *digest)
{
    int64_t sizes[] = {p->tokens, p->hidden, p->ffn, p->experts, p->topk, p->dtype, !p->gate};
    size_t rows_bytes = (size_t)(p->tokens * p->hidden * dtype_bytes(p->dtype));
    size_t matrix_bytes = (size_t)(matrix_elements(p) * dtype_bytes(p->dtype));
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -1;
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, sizes, sizeof sizes);
    XXH3_128bits_update(state, p->x, rows_bytes);
    XXH3_128bits_update(state, p->idx, (size_t)slots_of(p) * sizeof *p->idx);
    XXH3_128bits_update(state, p->weight, (size_t)slots_of(p) * sizeof *p->weight);
    if (p->gate)
        XXH3_128bits_update(state, p->gate, matrix_bytes);
    XXH3_128bits_update(state, p->up, matrix_bytes);
    XXH3_128bits_update(state, p->down, matrix_bytes);
    if (with_backward)
        XXH3_128bits_update(state, p->dy, rows_bytes);
    *digest = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return 0;
}

/* Two lists one after the other. 0, or -1 when memory is short. */
static int join(
    struct order_key *key, const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    key->count = a_bytes + b_bytes;
    key->bytes = malloc((size_t)key->count + 1);
    if (!key->bytes)
        return -1;
    memcpy(key->bytes, a, (size_t)a_bytes);
    memcpy((char *)key->bytes + a_bytes, b, (size_t)b_bytes);
    return 0;
}

/* The part of a checked order that a piece of this kind depends on. 0, or -1 when memory is short.
 */
static int key_of(const struct ref_moe_problem *p, const struct moe_order *order, enum kind kind,
    struct order_key *key)
{
    *key = (struct order_key){0};
    if (!order || kind == F64_FORWARD || kind == F64_BOTH)
        return 0;
    if (kind != GRADIENTS) {
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

static bool keys_equal(const struct order_key *a, const struct order_key *b)
{
    return !a->bytes == !b->bytes && a->count == b->count &&
           (!a->bytes || !memcmp(a->bytes, b->bytes, (size_t)a->count));
}

/* ---- keeping and dropping ----------------------------------------------------------------- */

static struct piece *find(struct moe_reference *cache, XXH128_hash_t inputs, enum kind kind,
    const struct order_key *order)
{
    for (struct piece *p = cache->pieces; p; p = p->next)
        if (p->kind == kind && XXH128_isEqual(p->inputs, inputs) && keys_equal(&p->order, order)) {
            p->last_use = cache->use;
            return p;
        }
    return NULL;
}

/* Drops pieces, longest unused first, until `bytes` more fit or only the call's own are left. */
static void make_room(struct moe_reference *cache, int64_t bytes)
{
    while (cache->kept_bytes + bytes > cache->limit_bytes) {
        struct piece **oldest = NULL;
        for (struct piece **p = &cache->pieces; *p; p = &(*p)->next)
            if ((*p)->last_use < cache->use && (!oldest || (*p)->last_use < (*oldest)->last_use))
                oldest = p;
        if (!oldest)
            return;
        struct piece *dropped = *oldest;
        *oldest = dropped->next;
        cache->kept_bytes -= dropped->bytes;
        piece_free(dropped);
    }
}

static void keep(struct moe_reference *cache, struct piece *p)
{
    p->last_use = cache->use;
    p->next = cache->pieces;
    cache->pieces = p;
    cache->kept_bytes += p->bytes;
}

/* ---- making ------------------------------------------------------------------------------- */

/* Room for `count` elements, counted; NULL when memory is short. */
static void *take(struct piece *p, int64_t count, int64_t element_bytes)
{
    p->bytes += count * element_bytes;
    return malloc((size_t)(count > 0 ? count : 1) * (size_t)element_bytes);
}

/* A value array and its bounds. */
static bool take_pair(struct piece *p, int64_t count, double **value, double **bound)
{
    *value = take(p, count, 8);
    *bound = take(p, count, 8);
    return *value && *bound;
}

static bool take_f64(struct piece *p, const struct ref_moe_problem *problem)
{
    int64_t rows = problem->tokens * problem->hidden, each = matrix_elements(problem);
    bool all = take_pair(p, rows, &p->f64.y, &p->f64.y_bound);
    if (p->kind == F64_FORWARD)
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
    switch (p->kind) {
    case FORWARD:
        r->y = take(p, rows, element_bytes);
        return r->y;
    case TOKENS:
        r->y = take(p, rows, element_bytes);
        r->dx = take(p, rows, element_bytes);
        r->router_gradient = take(p, slots_of(problem), 4);
        return r->y && r->dx && r->router_gradient;
    case GRADIENTS:
        r->gate_gradient = problem->gate ? take(p, each, 4) : NULL;
        r->up_gradient = take(p, each, 4);
        r->down_gradient = take(p, each, 4);
        return (r->gate_gradient || !problem->gate) && r->up_gradient && r->down_gradient;
    default:
        return take_f64(p, problem);
    }
}

/* A piece with room for its arrays, not yet computed; it takes over the key. NULL when memory is
 * short. */
static struct piece *piece_create(const struct ref_moe_problem *problem, XXH128_hash_t inputs,
    enum kind kind, struct order_key *order)
{
    struct piece *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->inputs = inputs;
    p->kind = kind;
    p->order = *order;
    p->bytes = order->count;
    *order = (struct order_key){0};
    if (!take_arrays(p, problem)) {
        piece_free(p);
        return NULL;
    }
    return p;
}

/* The piece, from the list or with room alone and *missing set. NULL with `error`. */
static struct piece *find_or_create(struct moe_reference *cache,
    const struct ref_moe_problem *problem, XXH128_hash_t inputs, enum kind kind,
    const struct moe_order *order, bool *missing, char *error, int size)
{
    struct order_key key;
    struct piece *p = NULL;
    *missing = false;
    if (!key_of(problem, order, kind, &key)) {
        p = find(cache, inputs, kind, &key);
        if (!p) {
            *missing = true;
            p = piece_create(problem, inputs, kind, &key);
        }
    }
    free(key.bytes);
    if (!p) {
        *missing = false;
        snprintf(error, (size_t)size, "no memory to keep a reference result");
    }
    return p;
}

/* Begins a call: refuses what the reference refuses, and names the inputs. */
static int begin(struct moe_reference *cache, const struct ref_moe_problem *problem,
    const struct moe_order *order, bool with_backward, XXH128_hash_t *inputs, char *error, int size)
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
    cache->use++;
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
        bytes += missing[i] ? missing[i]->bytes : 0;
    }
    if (!missing[0] && !missing[1])
        return 0;
    make_room(cache, bytes);
    int status = ref_moe(problem, order, &wanted, error, size);
    for (int i = 0; i < 2; i++) {
        if (!status && missing[i])
            keep(cache, missing[i]);
        else
            piece_free(missing[i]);
    }
    return status;
}

int moe_reference_get(struct moe_reference *cache, const struct ref_moe_problem *problem,
    const struct moe_order *order, bool with_backward, struct ref_moe_result *result, char *error,
    int size)
{
    XXH128_hash_t inputs;
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
        piece_free(missing[0]);
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
    XXH128_hash_t inputs;
    bool lacking;
    if (begin(cache, problem, NULL, with_backward, &inputs, error, size))
        return -1;
    struct piece *p = find_or_create(cache, problem, inputs, with_backward ? F64_BOTH : F64_FORWARD,
        NULL, &lacking, error, size);
    if (!p)
        return -1;
    if (lacking) {
        make_room(cache, p->bytes);
        if (ref_moe_f64(problem, &p->f64, error, size)) {
            piece_free(p);
            return -1;
        }
        keep(cache, p);
    }
    *result = p->f64;
    return 0;
}
