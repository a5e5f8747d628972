/* Reference results of the vocabulary problem.
 *
 * A result is kept in pieces: the forward part and the FP64 values depend on the inputs alone, dX
 * on the inputs and the order's dX lists, dW on its dW lists. Orders that share a list share the
 * piece (vocab-parallel sums dW in the default order). */
#include "bench/harness/vocab_reference.h"
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/reference_store.h"

enum kind { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, F64_FORWARD, F64_BOTH };

struct piece {
    struct reference_piece kept;
    struct ref_vocab_result result;
    struct ref_vocab_f64 f64;
};

struct vocab_reference {
    struct reference_store store;
};

struct vocab_reference *vocab_reference_create(int64_t limit_bytes)
{
    struct vocab_reference *cache = calloc(1, sizeof *cache);
    if (cache)
        cache->store.limit_bytes = limit_bytes;
    return cache;
}

void vocab_reference_free(struct vocab_reference *cache)
{
    if (cache)
        reference_store_free(&cache->store);
    free(cache);
}

int64_t vocab_reference_kept_bytes(const struct vocab_reference *cache)
{
    return cache->store.kept_bytes;
}

static int64_t total_tokens(const struct ref_vocab_problem *problem)
{
    int64_t tokens = 0;
    for (int r = 0; r < problem->ranks; r++)
        tokens += problem->tokens[r];
    return tokens;
}

/* ---- which inputs, which order ----------------------------------------------------------- */

/* 0, or -1 when memory is short. */
static int digest_inputs(const struct ref_vocab_problem *problem, struct reference_inputs *inputs)
{
    int64_t tokens = total_tokens(problem),
            row_bytes = problem->hidden * dtype_bytes(problem->dtype);
    int64_t sizes[] = {problem->ranks, problem->hidden, problem->vocab, problem->dtype};
    const struct reference_block blocks[] = {{sizes, sizeof sizes},
        {problem->tokens, problem->ranks * (int64_t)sizeof *problem->tokens},
        {problem->x, tokens * row_bytes}, {problem->w, problem->vocab * row_bytes},
        {problem->targets, tokens * (int64_t)sizeof *problem->targets}};
    return reference_digest(blocks, (int)(sizeof blocks / sizeof *blocks), inputs);
}

/* The list of the order that a piece of the key's kind depends on, two numbers for each part, since
 * a struct has bytes that say nothing. 0, or -1 when memory is short. */
static int key_order(const struct vocab_order *order, struct reference_key *key)
{
    const struct vocab_part *list = key->kind == INPUT_GRADIENT    ? order->dx
                                    : key->kind == WEIGHT_GRADIENT ? order->dw
                                                                   : NULL;
    if (!list)
        return 0;
    int64_t parts = (int64_t)order->ranks * order->ranks;
    int32_t(*numbers)[2] = malloc((size_t)parts * sizeof *numbers);
    if (!numbers)
        return -1;
    for (int64_t i = 0; i < parts; i++) {
        numbers[i][0] = list[i].part;
        numbers[i][1] = list[i].starts;
    }
    key->order = numbers;
    key->order_bytes = parts * (int64_t)sizeof *numbers;
    return 0;
}

/* ---- making ------------------------------------------------------------------------------ */

static bool take_f64(struct piece *p, const struct ref_vocab_problem *problem)
{
    int64_t tokens = total_tokens(problem);
    int64_t dx_count = tokens * problem->hidden, dw_count = problem->vocab * problem->hidden;
    p->f64.loss = reference_take(&p->kept, tokens, 8);
    p->f64.loss_bound = reference_take(&p->kept, tokens, 8);
    if (p->kept.key.kind == F64_FORWARD)
        return p->f64.loss && p->f64.loss_bound;
    p->f64.dx = reference_take(&p->kept, dx_count, 8);
    p->f64.dx_bound = reference_take(&p->kept, dx_count, 8);
    p->f64.dw = reference_take(&p->kept, dw_count, 8);
    p->f64.dw_bound = reference_take(&p->kept, dw_count, 8);
    return p->f64.loss && p->f64.loss_bound && p->f64.dx && p->f64.dx_bound && p->f64.dw &&
           p->f64.dw_bound;
}

static bool take_arrays(struct piece *p, const struct ref_vocab_problem *problem)
{
    int64_t tokens = total_tokens(problem);
    switch (p->kept.key.kind) {
    case FORWARD:
        p->result.max = reference_take(&p->kept, tokens, 4);
        p->result.log_z = reference_take(&p->kept, tokens, 4);
        p->result.loss = reference_take(&p->kept, tokens, 4);
        return p->result.max && p->result.log_z && p->result.loss;
    case INPUT_GRADIENT:
        p->result.dx =
            reference_take(&p->kept, tokens * problem->hidden, dtype_bytes(problem->dtype));
        return p->result.dx;
    case WEIGHT_GRADIENT:
        p->result.dw = reference_take(&p->kept, problem->vocab * problem->hidden, 4);
        return p->result.dw;
    default:
        return take_f64(p, problem);
    }
}

/* `forward` is what a gradient starts from. */
static int compute(struct piece *p, const struct ref_vocab_problem *problem,
    const struct vocab_order *order, const struct piece *forward, char *error, int size)
{
    if (p->kept.key.kind == F64_FORWARD || p->kept.key.kind == F64_BOTH)
        return ref_vocab_f64(problem, &p->f64, error, size);
    if (p->kept.key.kind == FORWARD)
        return ref_vocab_forward(problem, &p->result, error, size);
    struct ref_vocab_result gradients = {.max = forward->result.max,
        .log_z = forward->result.log_z,
        .dx = p->result.dx,
        .dw = p->result.dw};
    return ref_vocab_gradients(problem, order, &gradients, error, size);
}

/* The piece, kept or computed. NULL with `error`. */
static struct piece *get(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    struct reference_inputs inputs, enum kind kind, const struct vocab_order *order,
    const struct piece *forward, char *error, int size)
{
    struct reference_key key = {.inputs = inputs, .kind = kind};
    struct piece *p = NULL;
    bool missing = false;
    if (!key_order(order, &key))
        p = reference_find_or_create(&cache->store, &key, sizeof *p, &missing);
    if (p && missing && !take_arrays(p, problem)) {
        reference_piece_free(&p->kept);
        p = NULL;
    }
    if (!p)
        snprintf(error, (size_t)size, "no memory to keep a reference result");
    if (!p || !missing)
        return p;
    reference_make_room(&cache->store, p->kept.bytes);
    if (compute(p, problem, order, forward, error, size)) {
        reference_piece_free(&p->kept);
        return NULL;
    }
    reference_keep(&cache->store, &p->kept);
    return p;
}

/* ---- public ------------------------------------------------------------------------------ */

/* Begins a call: refuses what the reference refuses, and names the inputs. */
static int begin(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    struct reference_inputs *inputs, char *error, int size)
{
    if (ref_vocab_check(problem, error, size) < 0)
        return -1;
    if (digest_inputs(problem, inputs)) {
        snprintf(error, (size_t)size, "no memory for a digest of the inputs");
        return -1;
    }
    cache->store.use++;
    return 0;
}

static int get_in_order(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    const struct vocab_order *order, bool with_backward, struct ref_vocab_result *result,
    char *error, int size)
{
    struct reference_inputs inputs;
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
    struct reference_inputs inputs;
    if (begin(cache, problem, &inputs, error, size))
        return -1;
    struct piece *p = get(
        cache, problem, inputs, with_backward ? F64_BOTH : F64_FORWARD, NULL, NULL, error, size);
    if (!p)
        return -1;
    *result = p->f64;
    return 0;
}
