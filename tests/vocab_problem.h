/* Small vocabulary problems, room for their results, and the orders in which schedules sum: what
 * the tests of the reference share. Memory is not expected to run out: a test that finds none
 * aborts. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/check.h"
#include "probe/seed.h"
#include "reference/vocab.h"

#define PROBLEM_RANKS_MAX 8

struct problem {
    struct ref_vocab_problem reference; /* x, w and targets are owned here */
    int64_t rank_tokens[PROBLEM_RANKS_MAX];
    int64_t tokens; /* of all ranks */
};

static inline void *problem_room(int64_t count, size_t element_bytes)
{
    void *room = calloc((size_t)count + 1, element_bytes); /* never of size 0 */
    if (!room) {
        fprintf(stderr, "no memory for a test of %lld elements\n", (long long)count);
        abort();
    }
    return room;
}

/* A tensor of seeded values in [-scale, scale). */
static inline void *problem_tensor(enum dtype dtype, uint32_t tensor, int64_t count, float scale)
{
    void *values = problem_room(count, (size_t)dtype_bytes(dtype));
    if (dtype == DTYPE_BF16)
        seed_fill_bf16(values, 1, tensor, 0, count, scale);
    else
        seed_fill_f32(values, 1, tensor, 0, count, scale);
    return values;
}

/* Ranks hold rank_tokens[0 .. ranks). Inputs lie in [-1, 1), so that logits have a spread of about
 * sqrt(hidden) / 3; every target is valid. */
static inline struct problem *problem_create(
    enum dtype dtype, int ranks, const int64_t *rank_tokens, int64_t hidden, int64_t vocab)
{
    struct problem *p = problem_room(1, sizeof *p);
    for (int r = 0; r < ranks; r++) {
        p->rank_tokens[r] = rank_tokens[r];
        p->tokens += rank_tokens[r];
    }
    int64_t *targets = problem_room(p->tokens, sizeof *targets);
    for (int64_t n = 0; n < p->tokens; n++)
        targets[n] = seed_index(1, 2, n, vocab);
    p->reference = (struct ref_vocab_problem){.ranks = ranks,
        .tokens = p->rank_tokens,
        .hidden = hidden,
        .vocab = vocab,
        .dtype = dtype,
        .x = problem_tensor(dtype, 0, p->tokens * hidden, 1.0f),
        .w = problem_tensor(dtype, 1, vocab * hidden, 1.0f),
        .targets = targets};
    return p;
}

static inline void problem_free(struct problem *p)
{
    free((void *)p->reference.x);
    free((void *)p->reference.w);
    free((void *)p->reference.targets);
    free(p);
}

static inline int64_t *problem_targets(struct problem *p)
{
    return (int64_t *)p->reference.targets;
}

static inline float problem_value(const struct problem *p, const void *tensor, int64_t index)
{
    if (p->reference.dtype == DTYPE_BF16)
        return bf16_to_f32(((const uint16_t *)tensor)[index]);
    return ((const float *)tensor)[index];
}

/* Overwrites one input element, rounding it to the problem's type. */
static inline void problem_set(struct problem *p, const void *tensor, int64_t index, float value)
{
    if (p->reference.dtype == DTYPE_BF16)
        ((uint16_t *)tensor)[index] = f32_to_bf16(value);
    else
        ((float *)tensor)[index] = value;
}

static inline struct ref_vocab_result result_create(const struct problem *p)
{
    int64_t hidden = p->reference.hidden;
    return (struct ref_vocab_result){
        .max = problem_room(p->tokens, sizeof(float)),
        .log_z = problem_room(p->tokens, sizeof(float)),
        .loss = problem_room(p->tokens, sizeof(float)),
        .dx = problem_room(p->tokens * hidden, (size_t)dtype_bytes(p->reference.dtype)),
        .dw = problem_room(p->reference.vocab * hidden, sizeof(float)),
    };
}

static inline void result_free(struct ref_vocab_result *r)
{
    free(r->max);
    free(r->log_z);
    free(r->loss);
    free(r->dx);
    free(r->dw);
}

static inline struct ref_vocab_f64 f64_create(const struct problem *p)
{
    int64_t tokens = p->tokens, hidden = p->reference.hidden, vocab = p->reference.vocab;
    return (struct ref_vocab_f64){
        .loss = problem_room(tokens, sizeof(double)),
        .loss_bound = problem_room(tokens, sizeof(double)),
        .dx = problem_room(tokens * hidden, sizeof(double)),
        .dx_bound = problem_room(tokens * hidden, sizeof(double)),
        .dw = problem_room(vocab * hidden, sizeof(double)),
        .dw_bound = problem_room(vocab * hidden, sizeof(double)),
    };
}

static inline void f64_free(struct ref_vocab_f64 *r)
{
    free(r->loss);
    free(r->loss_bound);
    free(r->dx);
    free(r->dx_bound);
    free(r->dw);
    free(r->dw_bound);
}

/* The orders of the family: how each schedule meets its parts. */
enum problem_order {
    ORDER_DEFAULT,
    ORDER_WEIGHTS_MOVE, /* batch r meets shards r, r - 1, ...; shard s meets batches s, s + 1, ...
                         */
    ORDER_ACTIVATIONS_MOVE, /* batch r meets shards r, r + 1, ...; shard s meets batches s, s - 1,
                               ... */
    ORDER_VOCAB_PARALLEL,   /* dX: one segment per shard; dW: one chain */
    ORDER_KINDS
};

static const char *const problem_order_names[ORDER_KINDS] = {
    "default order", "weights move", "activations move", "vocabulary parallel"};

static inline struct vocab_order order_create(int ranks, enum problem_order kind)
{
    struct vocab_order order;
    if (vocab_order_init(&order, ranks)) {
        fprintf(stderr, "no memory for an order over %d ranks\n", ranks);
        abort();
    }
    for (int i = 0; i < ranks && kind != ORDER_DEFAULT; i++)
        for (int position = 0; position < ranks; position++) {
            int up = (i + position) % ranks, down = (i - position + ranks) % ranks;
            struct vocab_part *dx = &order.dx[i * ranks + position];
            struct vocab_part *dw = &order.dw[i * ranks + position];
            dx->starts = true;
            if (kind == ORDER_VOCAB_PARALLEL)
                continue;
            dw->starts = true;
            dx->part = kind == ORDER_WEIGHTS_MOVE ? down : up;
            dw->part = kind == ORDER_WEIGHTS_MOVE ? up : down;
        }
    return order;
}

/* The outputs of a result as tensors. */
struct output {
    const char *name;
    enum dtype type;
    void *values;
    int dims;
    int64_t shape[2];
};

enum { OUTPUT_MAX, OUTPUT_LOG_Z, OUTPUT_LOSS, OUTPUT_DX, OUTPUT_DW, OUTPUT_COUNT };

static inline void result_outputs(
    const struct problem *p, const struct ref_vocab_result *r, struct output outputs[OUTPUT_COUNT])
{
    int64_t hidden = p->reference.hidden;
    outputs[OUTPUT_MAX] = (struct output){"max", DTYPE_F32, r->max, 1, {p->tokens, 1}};
    outputs[OUTPUT_LOG_Z] = (struct output){"log_z", DTYPE_F32, r->log_z, 1, {p->tokens, 1}};
    outputs[OUTPUT_LOSS] = (struct output){"loss", DTYPE_F32, r->loss, 1, {p->tokens, 1}};
    outputs[OUTPUT_DX] = (struct output){"dx", p->reference.dtype, r->dx, 2, {p->tokens, hidden}};
    outputs[OUTPUT_DW] = (struct output){"dw", DTYPE_F32, r->dw, 2, {p->reference.vocab, hidden}};
}

/* Bit by bit; where they differ, `text` says where. */
static inline bool outputs_equal(
    const struct output *got, const struct output *want, char *text, int size)
{
    struct check_difference difference;
    bool equal = check_equal(
        got->type, got->values, want->values, got->shape[0] * got->shape[1], &difference);
    check_describe(got->name, got->dims, got->shape, &difference, text, size);
    return equal;
}

static inline bool results_equal(const struct problem *p, const struct ref_vocab_result *got,
    const struct ref_vocab_result *want, char *text, int size)
{
    struct output a[OUTPUT_COUNT], b[OUTPUT_COUNT];
    result_outputs(p, got, a);
    result_outputs(p, want, b);
    for (int i = 0; i < OUTPUT_COUNT; i++)
        if (!outputs_equal(&a[i], &b[i], text, size))
            return false;
    snprintf(text, (size_t)size, "mean %.17g and %.17g, valid %lld and %lld", got->mean, want->mean,
        (long long)got->valid, (long long)want->valid);
    bool both_nan = got->mean != got->mean && want->mean != want->mean;
    return (got->mean == want->mean || both_nan) && got->valid == want->valid;
}
