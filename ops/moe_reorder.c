/* A given order of weight gradients: rows are gathered into it, and each expert's first segment
 * begins its gradient, while the others are added, launch by launch, since no launch may name a
 * matrix twice. */
#include "ops/moe_reorder.h"
#include <stdlib.h>
#include <string.h>

/* ---- the plan, on the host ------------------------------------------------------------------ */

struct plan {
    int32_t *index;
    struct expert_group *groups;
    int64_t *first;
    int64_t rows, group_count, launches;
};

static void free_plan(struct plan *plan)
{
    free(plan->index);
    free(plan->groups);
    free(plan->first);
}

static int compare_routes(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Where each of an expert's routes lies among its rows: ascending by number. */
static int place_routes(const int64_t *routes, int64_t count, int64_t first_row, int32_t *index)
{
    int64_t *sorted = malloc((size_t)count * sizeof *sorted + 1);
    if (!sorted)
        return -1;
    memcpy(sorted, routes, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_routes);
    for (int64_t i = 0; i < count; i++) {
        const int64_t *found =
            bsearch(&routes[i], sorted, (size_t)count, sizeof *sorted, compare_routes);
        index[i] = (int32_t)(first_row + (found - sorted));
    }
    free(sorted);
    return 0;
}

/* The most segments that an owned expert has. */
static int64_t most_segments(const struct moe_order *order, int64_t begin, int64_t end)
{
    int64_t most = 1;
    for (int64_t e = begin; e < end; e++) {
        int64_t segments = 0;
        for (int64_t i = order->expert_first[e]; i < order->expert_first[e + 1]; i++)
            segments += order->gradient_starts[i];
        most = segments > most ? segments : most;
    }
    return most;
}

/* The group of an expert's segment number `launch`; false when it has none. An expert without
 * routes has an empty first segment, which makes its gradient +0. */
static bool find_segment(const struct moe_order *order, int64_t expert, int64_t base,
    int64_t launch, struct expert_group *group)
{
    int64_t begin = order->expert_first[expert], end = order->expert_first[expert + 1];
    int64_t segment = -1, first = begin, last = begin;
    for (int64_t i = begin; i < end && segment <= launch; i++) {
        segment += order->gradient_starts[i];
        if (segment < launch)
            continue;
        if (segment == launch && order->gradient_starts[i])
            first = i;
        if (segment == launch)
            last = i + 1;
    }
    group->first = first - base;
    group->rows = last - first;
    group->init = launch ? GEMM_ADD : GEMM_FRESH;
    return launch == 0 || group->rows > 0;
}

static int make_plan(struct plan *plan, const struct moe *m)
{
    const struct moe_order *order = m->run_order;
    int64_t owned = moe_experts_per_rank(&m->shape), begin = m->rank * owned, end = begin + owned;
    int64_t base = order->expert_first[begin];
    *plan = (struct plan){
        .rows = order->expert_first[end] - base, .launches = most_segments(order, begin, end)};
    plan->index = malloc((size_t)plan->rows * sizeof *plan->index + 1);
    plan->groups = calloc((size_t)(owned * plan->launches), sizeof *plan->groups);
    plan->first = calloc((size_t)plan->launches + 1, sizeof *plan->first);
    if (!plan->index || !plan->groups || !plan->first)
        return -1;
    for (int64_t e = begin; e < end; e++) {
        int64_t first = order->expert_first[e] - base;
        if (place_routes(order->gradient_route + order->expert_first[e],
                order->expert_first[e + 1] - order->expert_first[e], first, plan->index + first))
            return -1;
    }
    for (int64_t launch = 0; launch < plan->launches; launch++) {
        plan->first[launch] = plan->group_count;
        for (int64_t e = begin; e < end; e++) {
            struct expert_group *group = &plan->groups[plan->group_count];
            group->weight = (int32_t)(e - begin);
            plan->group_count += find_segment(order, e, base, launch, group);
        }
    }
    plan->first[plan->launches] = plan->group_count;
    return 0;
}

/* ---- on the device --------------------------------------------------------------------------- */

static void *upload(struct device *dev, const void *from, int64_t bytes, const char *label)
{
    void *block = dev_alloc(dev, bytes, LIVE_WORKSPACE, label);
    dev_write(dev, block, from, bytes);
    return block;
}

void moe_reorder_open(struct moe_reorder *reorder, const struct moe *m)
{
    struct plan plan = {0};
    *reorder = (struct moe_reorder){.dev = m->dev};
    if (make_plan(&plan, m)) {
        dev_fail(m->dev, DEV_FAILED, "no host memory for an order of gradients");
        free_plan(&plan);
        return;
    }
    reorder->rows = plan.rows;
    reorder->launches = plan.launches;
    reorder->first = plan.first;
    plan.first = NULL;
    reorder->index = upload(
        m->dev, plan.index, plan.rows * (int64_t)sizeof *plan.index, "order of gradient rows");
    reorder->groups = upload(m->dev, plan.groups, plan.group_count * (int64_t)sizeof *plan.groups,
        "segments of gradients");
    free_plan(&plan);
}

void moe_reorder_close(struct moe_reorder *reorder)
{
    if (!reorder->dev)
        return;
    dev_free(reorder->dev, reorder->index);
    dev_free(reorder->dev, reorder->groups);
    free(reorder->first);
    *reorder = (struct moe_reorder){0};
}

static void *gather(
    const struct moe_reorder *reorder, struct stream *stream, const void *from, int64_t row_bytes)
{
    void *to = dev_alloc(reorder->dev, reorder->rows * row_bytes, LIVE_WORKSPACE, "reordered rows");
    gather_rows(stream, &(struct gather_rows_args){.to = to,
                            .from = from,
                            .index = reorder->index,
                            .count = reorder->rows,
                            .from_rows = reorder->rows,
                            .row_bytes = row_bytes});
    return to;
}

void moe_reorder_gradient(const struct moe_reorder *reorder, struct stream *stream,
    const struct expert_gradient_args *args)
{
    struct expert_gradient_args ordered = *args;
    int64_t type = dtype_bytes(args->type);
    void *a = gather(reorder, stream, args->a, args->m * type);
    void *b = gather(reorder, stream, args->b, args->n * type);
    ordered.a = a;
    ordered.b = b;
    ordered.rows = reorder->rows;
    for (int64_t launch = 0; launch < reorder->launches; launch++) {
        ordered.groups = reorder->groups + reorder->first[launch];
        ordered.group_count = reorder->first[launch + 1] - reorder->first[launch];
        expert_gradient(stream, &ordered);
    }
    dev_free(reorder->dev, a);
    dev_free(reorder->dev, b);
}
