/* What every implementation of expert dispatch shares: owners, the release of outputs, and the
 * table of implementations. */
#include "ops/moe.h"
#include <stddef.h>

const struct moe_impl *const moe_impls[] = {
    &moe_llep,
    &moe_alltoall,
    &moe_alltoall_ckpt,
    &moe_alltoall_dedup,
    &moe_chunked,
    &moe_pipelined_llep,
    NULL,
};

int64_t moe_experts_per_rank(const struct moe_shape *shape)
{
    return shape->experts / shape->ranks;
}

int moe_owner(const struct moe_shape *shape, int64_t expert)
{
    return (int)(expert / moe_experts_per_rank(shape));
}

void moe_release(struct moe *m, const struct moe_impl *impl)
{
    if (impl->release)
        impl->release(m);
    void *outputs[] = {
        m->y, m->dx, m->router_gradient, m->gate_gradient, m->up_gradient, m->down_gradient};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        dev_free(m->dev, outputs[i]);
    m->y = m->dx = NULL;
    m->router_gradient = m->gate_gradient = m->up_gradient = m->down_gradient = NULL;
}
