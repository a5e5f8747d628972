/* The steps of a layer, on the main stream, shared by all implementations: they differ in what they
 * do with the boundaries between them. */
#pragma once
#include "ops/stack.h"

/* x -> what the purpose needs. */
void stack_layer_hidden(struct stack *s, int64_t layer, const void *x, enum stack_purpose purpose,
    struct stack_kept *kept);

/* The same for the backward, beside what stayed; counted as a recomputation. */
void stack_layer_recompute(struct stack *s, int64_t layer, const void *x, struct stack_kept *kept);

/* x and what was kept -> y, in a new block: boundary layer + 1, or behind the last layer s->y.
 * Returns it. */
void *stack_layer_output(
    struct stack *s, int64_t layer, const void *x, const struct stack_kept *kept);

/* A checkpointed layer's forward is through: frees `kept` but for the blocks that stay. */
void stack_layer_leave(struct stack *s, int64_t layer, struct stack_kept *kept);

void stack_kept_free(struct stack *s, struct stack_kept *kept);

/* Allocates s->dx. */
void stack_backward_begin(struct stack *s);

/* From s->dy (last layer) or s->dx: the layer's weight gradients, and s->dx. `kept` is used up: its
 * blocks hold gradients afterwards, and are freed. */
void stack_layer_backward(struct stack *s, int64_t layer, const void *x, struct stack_kept *kept);
