/* What every implementation of expert dispatch shares: owners, all ranks' routing, the release of
 * outputs, and the table of implementations. */
#include "ops/moe.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const struct moe_impl *const moe_impls[] = {
    &moe_llep,
    &moe_alltoall,
    &moe_alltoall_ckpt,
    &moe_alltoall_dedup,
    &moe_chunked,
    &moe_fastermoe,
    &moe_tutel,
    &moe_janus,
    &moe_pipelined_llep,
    &moe_relay_expert,
    &moe_relay_token,
    &moe_relay,
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

int32_t *moe_gather_routing(const struct moe *m, const int32_t **out)
{
    const struct moe_shape *shape = &m->shape;
    int64_t most = 0;
    for (int r = 0; r < shape->ranks; r++)
        most = shape->tokens[r] > most ? shape->tokens[r] : most;
    int64_t slots = most * shape->topk;
    int32_t *own = calloc((size_t)slots + 1, sizeof *own);
    int32_t *all = malloc(((size_t)(shape->ranks * slots) + 1) * sizeof *all);
    bool room = own && all;
    if (!room)
        dev_fail(m->dev, DEV_FAILED, "no host memory for all ranks' routing");
    else
        memcpy(own, m->idx, (size_t)(shape->tokens[m->rank] * shape->topk) * sizeof *own);
    if (!room || comm_host_all_gather(m->comm, own, all, slots * (int64_t)sizeof *own)) {
        free(all);
        all = NULL;
    }
    free(own);
    for (int r = 0; all && r < shape->ranks; r++)
        out[r] = all + r * slots;
    return all;
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
