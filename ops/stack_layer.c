/* What the implementations do with a layer whatever its arithmetic is: its output is a boundary or
 * the stack's, its input gradient takes the place of its output gradient. */
#include "ops/stack_layer.h"

static const struct stack_steps *steps_of(const struct stack *s)
{
    return s->steps ? s->steps : &stack_swiglu;
}

void stack_layer_hidden(struct stack *s, int64_t layer, const void *x, enum stack_purpose purpose,
    struct stack_kept *kept)
{
    steps_of(s)->hidden(s, layer, x, purpose, kept);
}

void stack_layer_recompute(struct stack *s, int64_t layer, const void *x, struct stack_kept *kept)
{
    if (s->stayed) {
        *kept = s->stayed[layer];
        s->stayed[layer] = (struct stack_kept){0};
    }
    stack_layer_hidden(s, layer, x, STACK_FOR_BACKWARD, kept);
    s->recomputes[layer]++;
}

void stack_layer_leave(struct stack *s, int64_t layer, struct stack_kept *kept)
{
    uint32_t stays = steps_of(s)->stays ? steps_of(s)->stays(s, layer) : 0;
    for (int i = 0; i < STACK_KEPT_BLOCKS; i++)
        if (stays >> i & 1) {
            s->stayed[layer].block[i] = kept->block[i];
            kept->block[i] = NULL;
        }
    stack_kept_free(s, kept);
}

void *stack_layer_output(
    struct stack *s, int64_t layer, const void *x, const struct stack_kept *kept)
{
    bool last = layer + 1 == s->shape.layers;
    void *y = dev_alloc(s->dev, stack_row_bytes(&s->shape, s->rank),
        last ? LIVE_OUTPUT : LIVE_BOUNDARY, last ? "output" : "boundary");
    steps_of(s)->output(s, layer, x, kept, y);
    if (last)
        s->y = y;
    return y;
}

void stack_kept_free(struct stack *s, struct stack_kept *kept)
{
    if (kept->state)
        steps_of(s)->release(s, kept);
    for (int i = 0; i < STACK_KEPT_BLOCKS; i++)
        dev_free(s->dev, kept->block[i]);
    *kept = (struct stack_kept){0};
}

void stack_backward_begin(struct stack *s)
{
    s->dx = dev_alloc(s->dev, stack_row_bytes(&s->shape, s->rank), LIVE_OUTPUT, "input gradient");
}

void stack_layer_backward(struct stack *s, int64_t layer, const void *x, struct stack_kept *kept)
{
    const void *dy = layer + 1 == s->shape.layers ? s->dy : s->dx;
    steps_of(s)->backward(s, layer, x, dy, kept);
    stack_kept_free(s, kept);
}
