/* A list of reference results.
 *
 * A result is kept in pieces: the forward part and the FP64 values depend on the inputs alone, dX
 * on the inputs and the order's dX lists, dW on its dW lists. Orders that share a list share the
 * piece (vocab-parallel sums dW in the default order). Inputs are known by a digest of their bytes,
 * which costs less than reading them once in the first product and asks nothing of the caller. */
#include "bench/harness/vocab_reference.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum kind { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, F64_FORWARD, F64_BOTH };

struct piece {
    struct piece *next;
    XXH128_hash_t inputs;
    enum kind kind;
    int ranks;
    struct vocab_part *list; /* [ranks * ranks], of a gradient */
    struct ref_vocab_result result;
    struct ref_vocab_f64 f64;
    int64_t bytes, last_use;
};

struct vocab_reference {
    struct piece *pieces;
    int64_t limit_bytes, kept_bytes;
    int64_t use; /* counts calls; pieces of the call at hand are never dropped */
};

struct vocab_reference *vocab_reference_create(int64_t limit_bytes)
{
    struct vocab_reference *cache = calloc(1, sizeof *cache);
    if (cache)
        cache->limit_bytes = limit_bytes;
    return cache;
}

static void piece_free(struct piece *p)
{
    if (!p)
        return;
    free(p->list);
    free(p->result.max);
    free(p->result.log_z);
    free(p->result.loss);
    free(p->result.dx);
    free(p->result.dw);
    free(p->f64.loss);
    free(p->f64.loss_bound);
    free(p->f64.dx);
    free(p->f64.dx_bound);
    free(p->f64.dw);
    free(p->f64.dw_bound);
    free(p);
}

void vocab_reference_free(struct vocab_reference *cache)
{
    while (cache && cache->pieces) {
        struct piece *next = cache->pieces->next;
        piece_free(cache->pieces);
        cache->pieces = next;
    }
    free(cache);
}

int64_t vocab_reference_kept_bytes(const struct vocab_reference *cache)
{
    return cache->kept_bytes;
}

static int64_t total_tokens(const struct ref_vocab_problem *problem)
{
    int64_t tokens = 0;
    for (int r = 0; r < problem->ranks; r++)
        tokens += problem->tokens[r];
    return tokens;
}

/* ---- which inputs ------------------------------------------------------------------------ */

/* 0, or -1 when memory is short. */
static int digest_inputs(const struct ref_vocab_problem *problem, XXH128_hash_t *digest)
{
    int64_t tokens = total_tokens(problem),
            row_bytes = problem->hidden * dtype_bytes(problem->dtype);
    int64_t sizes[] = {problem->ranks, problem->hidden, problem->vocab, problem->dtype};
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -1;
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, sizes, sizeof sizes);
    XXH3_128bits_update(state, problem->tokens, (size_t)problem->ranks * sizeof(int64_t));
    XXH3_128bits_update(state, problem->x, (size_t)(tokens * row_bytes));
    XXH3_128bits_update(state, problem->w, (size_t)(problem->vocab * row_bytes));
    XXH3_128bits_update(state, problem->targets, (size_t)tokens * sizeof(int64_t));
    *digest = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return 0;
}

static bool lists_equal(const struct vocab_part *a, const struct vocab_part *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (a[i].part != b[i].part || a[i].starts != b[i].starts)
            return false;
    return true;
}

/* The list that a piece of this kind depends on; NULL where it depends on none. */
static const struct vocab_part *list_of(const struct vocab_order *order, enum kind kind)
{
    if (kind == INPUT_GRADIENT)
        return order->dx;
    return kind == WEIGHT_GRADIENT ? order->dw : NULL;
}

static struct piece *find(struct vocab_reference *cache, XXH128_hash_t inputs, enum kind kind,
    const struct vocab_order *order)
{
    for (struct piece *p = cache->pieces; p; p = p->next) {
        if (p->kind != kind || !XXH128_isEqual(p->inputs, inputs))
            continue;
        const struct vocab_part *list = list_of(order, kind);
        if (list &&
            (p->ranks != order->ranks || !lists_equal(p->list, list, (int64_t)p->ranks * p->ranks)))
            continue;
        p->last_use = cache->use;
        return p;
    }
    return NULL;
}

/* ---- keeping and dropping ---------------------------------------------------------------- */

/* Drops pieces, longest unused first, until `bytes` more fit or only the call's own are left. */
static void make_room(struct vocab_reference *cache, int64_t bytes)
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

static void keep(struct vocab_reference *cache, struct piece *p)
{
    p->last_use = cache->use;
    p->next = cache->pieces;
    cache->pieces = p;
    cache->kept_bytes += p->bytes;
}

/* Room for `count` elements, counted; NULL when memory is short. */
static void *take(struct piece *p, int64_t count, int64_t element_bytes)
{
    p->bytes += count * element_bytes;
    return malloc((size_t)(count > 0 ? count : 1) * (size_t)element_bytes);
}

static bool take_f64(struct piece *p, const struct ref_vocab_problem *problem)
{
    int64_t tokens = total_tokens(problem);
    int64_t dx_count = tokens * problem->hidden, dw_count = problem->vocab * problem->hidden;
    p->f64.loss = take(p, tokens, 8);
    p->f64.loss_bound = take(p, tokens, 8);
    if (p->kind == F64_FORWARD)
        return p->f64.loss && p->f64.loss_bound;
    p->f64.dx = take(p, dx_count, 8);
    p->f64.dx_bound = take(p, dx_count, 8);
    p->f64.dw = take(p, dw_count, 8);
    p->f64.dw_bound = take(p, dw_count, 8);
    return p->f64.loss && p->f64.loss_bound && p->f64.dx && p->f64.dx_bound && p->f64.dw &&
           p->f64.dw_bound;
}

static bool take_arrays(struct piece *p, const struct ref_vocab_problem *problem)
{
    int64_t tokens = total_tokens(problem);
    switch (p->kind) {
    case FORWARD:
        p->result.max = take(p, tokens, 4);
        p->result.log_z = take(p, tokens, 4);
        p->result.loss = take(p, tokens, 4);
        return p->result.max && p->result.log_z && p->result.loss;
    case INPUT_GRADIENT:
        p->result.dx = take(p, tokens * problem->hidden, dtype_bytes(problem->dtype));
        return p->result.dx;
    case WEIGHT_GRADIENT:
        p->result.dw = take(p, problem->vocab * problem->hidden, 4);
        return p->result.dw;
    default:
        return take_f64(p, problem);
    }
}

/* A piece with room for its arrays, not yet computed; NULL when memory is short. */
static struct piece *piece_create(const struct ref_vocab_problem *problem, XXH128_hash_t inputs,
    enum kind kind, const struct vocab_part *list)
{
    struct piece *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->inputs = inputs;
    p->kind = kind;
    p->ranks = problem->ranks;
    int64_t parts = (int64_t)p->ranks * p->ranks;
    if (list)
        p->list = take(p, parts, (int64_t)sizeof *list);
    if (!take_arrays(p, problem) || (list && !p->list)) {
        piece_free(p);
        return NULL;
    }
    if (list)
        memcpy(p->list, list, (size_t)parts * sizeof *list);
    return p;
}

/* ---- computing --------------------------------------------------------------------------- */

/* `forward` is what a gradient starts from. */
static int compute(struct piece *p, const struct ref_vocab_problem *problem,
    const struct vocab_order *order, const struct piece *forward, char *error, int size)
{
    if (p->kind == F64_FORWARD || p->kind == F64_BOTH)
        return ref_vocab_f64(problem, &p->f64, error, size);
    if (p->kind == FORWARD)
        return ref_vocab_forward(problem, &p->result, error, size);
    struct ref_vocab_result gradients = {.max = forward->result.max,
        .log_z = forward->result.log_z,
        .dx = p->result.dx,
        .dw = p->result.dw};
    return ref_vocab_gradients(problem, order, &gradients, error, size);
}

/* The piece, from the list or computed and kept. NULL with `error`. */
static struct piece *get(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    XXH128_hash_t inputs, enum kind kind, const struct vocab_order *order,
    const struct piece *forward, char *error, int size)
{
    struct piece *p = find(cache, inputs, kind, order);
    if (p)
        return p;
    p = piece_create(problem, inputs, kind, list_of(order, kind));
    if (!p) {
        snprintf(error, (size_t)size, "no memory to keep a reference result");
        return NULL;
    }
    make_room(cache, p->bytes);
    if (compute(p, problem, order, forward, error, size)) {
        piece_free(p);
        return NULL;
    }
    keep(cache, p);
    return p;
}

/* ---- public ------------------------------------------------------------------------------ */

/* Begins a call: refuses what the reference refuses, and names the inputs. */
static int begin(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    XXH128_hash_t *inputs, char *error, int size)
{
    if (ref_vocab_check(problem, error, size) < 0)
        return -1;
    if (digest_inputs(problem, inputs)) {
        snprintf(error, (size_t)size, "no memory for a digest of the inputs");
        return -1;
    }
    cache->use++;
    return 0;
}

static int get_in_order(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    const struct vocab_order *order, bool with_backward, struct ref_vocab_result *result,
    char *error, int size)
{
    XXH128_hash_t inputs;
    if (order->ranks != problem->ranks) {
        snprintf(error, (size_t)size, "an order over %d ranks for a problem of %d", order->ranks,
            problem->ranks);
        return -1;
    }
    if (vocab_order_check(order, error, size) || begin(cache, problem, &inputs, error, size))
        return -1;
    struct piece *forward = get(cache, problem, inputs, FORWARD, order, NULL, error, size);
    if (!forward)
        return -1;
    *result = forward->result;
    if (!with_backward)
        return 0;
    struct piece *dx = get(cache, problem, inputs, INPUT_GRADIENT, order, forward, error, size);
    struct piece *dw =
        dx ? get(cache, problem, inputs, WEIGHT_GRADIENT, order, forward, error, size) : NULL;
    if (!dw)
        return -1;
    result->dx = dx->result.dx;
    result->dw = dw->result.dw;
    return 0;
}

int vocab_reference_get(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    const struct vocab_order *order, bool with_backward, struct ref_vocab_result *result,
    char *error, int size)
{
    if (order)
        return get_in_order(cache, problem, order, with_backward, result, error, size);
    if (ref_vocab_check(problem, error, size) < 0)
        return -1;
    struct vocab_order in_default_order;
    if (vocab_order_init(&in_default_order, problem->ranks)) {
        snprintf(error, (size_t)size, "no memory for an order over %d ranks", problem->ranks);
        return -1;
    }
    int status =
        get_in_order(cache, problem, &in_default_order, with_backward, result, error, size);
    vocab_order_free(&in_default_order);
    return status;
}

int vocab_reference_get_f64(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    bool with_backward, struct ref_vocab_f64 *result, char *error, int size)
{
    XXH128_hash_t inputs;
    if (begin(cache, problem, &inputs, error, size))
        return -1;
    struct piece *p = get(
        cache, problem, inputs, with_backward ? F64_BOTH : F64_FORWARD, NULL, NULL, error, size);
    if (!p)
        return -1;
    *result = p->f64;
    return 0;
}
