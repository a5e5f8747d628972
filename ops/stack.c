/* The implementations' list, the pinned pool, and the end of a step. */
#include "ops/stack.h"
#include <stdlib.h>
#include "ops/stack_layer.h"

const struct stack_impl *const stack_impls[] = {
    &stack_full_activations, &stack_resident, &stack_offload_all, &stack_sco, NULL};

struct sco_choice stack_choose(
    const struct stack_shape *shape, const struct stack_options *options, int rank, bool *chosen)
{
    int64_t bytes[STACK_LAYERS_MAX];
    for (int64_t i = 0; i < shape->layers; i++)
        bytes[i] = stack_row_bytes(shape, rank);
    return sco_choose(bytes, shape->layers, &options->budget, chosen);
}

void stack_release(struct stack *s, const struct stack_impl *impl)
{
    if (impl->release)
        impl->release(s);
    for (int64_t l = 0; s->stayed && l < s->shape.layers; l++)
        stack_kept_free(s, &s->stayed[l]); /* only after a failure is there any */
    dev_free(s->dev, s->y);
    dev_free(s->dev, s->dx);
    s->x = s->y = s->dx = NULL;
    if (!s->options.keep_pool)
        stack_pool_free(s);
}

/* ---- the pool -------------------------------------------------------------------------------- */

static bool pool_open(struct stack *s)
{
    struct stack_pool *pool = &s->pool;
    size_t boundaries = (size_t)s->shape.layers;
    if (pool->block)
        return true;
    pool->block = calloc(boundaries, sizeof *pool->block);
    pool->bytes = calloc(boundaries, sizeof *pool->bytes);
    pool->boundaries = s->shape.layers;
    if (pool->block && pool->bytes)
        return true;
    free(pool->block);
    free(pool->bytes);
    *pool = (struct stack_pool){0};
    dev_fail(s->dev, DEV_FAILED, "no host memory for the pool of boundaries");
    return false;
}

void *stack_pool_block(struct stack *s, int64_t boundary, int64_t bytes)
{
    int64_t wanted = sco_pinned_bytes(bytes, s->options.budget.rounding);
    struct stack_pool *pool = &s->pool;
    if (!pool_open(s))
        return NULL;
    if (pool->block[boundary] && pool->bytes[boundary] < wanted) { /* more tokens than before */
        dev_sync(s->dev);
        dev_host_free(s->dev, pool->block[boundary]);
        pool->block[boundary] = NULL;
    }
    if (!pool->block[boundary]) {
        pool->block[boundary] = dev_host_alloc(s->dev, wanted, LIVE_BOUNDARY, "offloaded boundary");
        pool->bytes[boundary] = wanted;
    }
    return pool->block[boundary];
}

void stack_pool_free(struct stack *s)
{
    struct stack_pool *pool = &s->pool;
    if (!pool->block)
        return;
    dev_sync(s->dev);
    for (int64_t i = 0; i < pool->boundaries; i++)
        dev_host_free(s->dev, pool->block[i]);
    free(pool->block);
    free(pool->bytes);
    *pool = (struct stack_pool){0};
}
