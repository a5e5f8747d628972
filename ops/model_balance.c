/* Routers' biases: after every step an expert with less than the mean load becomes likelier, one
 * with more less likely. Counts of all ranks are integers, so every rank computes the same biases.
 */
#include <stdlib.h>
#include <string.h>
#include "ops/model_blocks.h"

/* Into m->loads, this rank's alone. */
static void count_loads(struct model *m)
{
    int64_t experts = m->shape.layout.experts, routes = model_tokens(&m->shape) * m->shape.topk;
    memset(m->loads, 0, (size_t)(m->shape.layers * experts) * sizeof *m->loads);
    for (int64_t layer = 0; layer < m->shape.layers; layer++) {
        int64_t *loads = m->loads + layer * experts;
        const int32_t *idx = m->idx[layer];
        if (layer && idx == m->idx[layer - 1])
            memcpy(loads, loads - experts, (size_t)experts * sizeof *loads);
        else
            for (int64_t i = 0; i < routes; i++)
                if (idx[i] >= 0)
                    loads[idx[i]]++;
    }
}

/* Some of m->loads at a time become those of all ranks. False after a failure. */
static bool add_loads(struct model *m, int64_t first, int64_t count)
{
    int64_t ranks = m->shape.layout.ranks, *loads = m->loads + first;
    int64_t *of_ranks = malloc((size_t)(count * ranks) * sizeof *of_ranks);
    if (!of_ranks)
        dev_fail(m->dev, DEV_FAILED, "no host memory for the loads");
    bool gathered = of_ranks && comm_host_all_gather(
                                    m->world, loads, of_ranks, count * (int64_t)sizeof *loads) == 0;
    for (int64_t i = 0; gathered && i < count; i++) {
        loads[i] = 0;
        for (int64_t rank = 0; rank < ranks; rank++)
            loads[i] += of_ranks[rank * count + i];
    }
    free(of_ranks);
    return gathered;
}

void model_balance(struct model *m)
{
    enum { AT_A_TIME = 4096 };
    int64_t experts = m->shape.layout.experts, all = m->shape.layers * experts;
    int64_t total = m->shape.layout.ranks * model_tokens(&m->shape) * m->shape.topk;
    count_loads(m);
    for (int64_t first = 0; first < all; first += AT_A_TIME)
        if (!add_loads(m, first, all - first < AT_A_TIME ? all - first : AT_A_TIME))
            return;
    float step = (float)m->options.bias_step;
    for (int64_t i = 0; i < all; i++) {
        int64_t load = m->loads[i] * experts;
        m->host_bias[i] += load < total ? step : load > total ? -step : 0.0f;
    }
    dev_write(m->dev, m->bias, m->host_bias, all * 4);
}
