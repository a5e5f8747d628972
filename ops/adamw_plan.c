/* The flat order of a rank's parameters, and the two ways to cut it into buckets. */
#include "ops/adamw_plan.h"
#include <stdlib.h>

/* ---- the flat order ------------------------------------------------------------------------ */

int adamw_shape_init(struct adamw_shape *shape, const struct adamw_tensor *tensors, int64_t count,
    int world, int rank)
{
    *shape = (struct adamw_shape){.world = world, .rank = rank, .tensors = count};
    shape->part = calloc((size_t)count + 1, sizeof *shape->part); /* never of size 0 */
    if (!shape->part)
        return -1;
    for (int group = 0; group < ADAMW_GROUPS; group++) {
        shape->group_first[group] = shape->params;
        for (int64_t i = 0; i < count; i++) {
            if (tensors[i].group != (enum adamw_group)group)
                continue;
            int64_t each = tensors[i].count / world, leftover = tensors[i].count % world;
            shape->part[i] = (struct adamw_part){.name = tensors[i].name,
                .group = tensors[i].group,
                .global_first = each * rank + (rank < leftover ? rank : leftover),
                .first = shape->params,
                .count = each + (rank < leftover)};
            shape->params += shape->part[i].count;
        }
    }
    shape->group_first[ADAMW_GROUPS] = shape->params;
    return 0;
}

void adamw_shape_free(struct adamw_shape *shape)
{
    free(shape->part);
    *shape = (struct adamw_shape){0};
}

/* ---- buckets ------------------------------------------------------------------------------- */

static void add_bucket(
    struct adamw_plan *plan, int64_t first, int64_t count, enum adamw_group group)
{
    plan->bucket[plan->buckets++] = (struct adamw_bucket){first, count, group};
    if (count > plan->largest)
        plan->largest = count;
}

/* Room for `buckets` buckets. */
static int plan_init(struct adamw_plan *plan, int64_t buckets)
{
    *plan = (struct adamw_plan){.bucket = calloc((size_t)buckets + 1, sizeof *plan->bucket)};
    return plan->bucket ? 0 : -1;
}

static int64_t group_count(const struct adamw_shape *shape, int group)
{
    return shape->group_first[group + 1] - shape->group_first[group];
}

int adamw_plan_cut(struct adamw_plan *plan, const struct adamw_shape *shape, int64_t most)
{
    int64_t buckets = 0;
    for (int group = 0; group < ADAMW_GROUPS; group++)
        buckets += group_count(shape, group) / most + 1;
    if (plan_init(plan, buckets))
        return -1;
    for (int group = 0; group < ADAMW_GROUPS; group++) {
        int64_t count = group_count(shape, group);
        for (int64_t done = 0; done < count; done += plan->bucket[plan->buckets - 1].count)
            add_bucket(plan, shape->group_first[group] + done,
                count - done < most ? count - done : most, (enum adamw_group)group);
    }
    return 0;
}

int adamw_plan_whole_tensors(
    struct adamw_plan *plan, const struct adamw_shape *shape, int64_t least)
{
    if (plan_init(plan, shape->tensors))
        return -1;
    for (int group = 0; group < ADAMW_GROUPS; group++) {
        int64_t first = shape->group_first[group], held = 0;
        for (int64_t i = 0; i < shape->tensors; i++) {
            if (shape->part[i].group != (enum adamw_group)group)
                continue;
            held += shape->part[i].count;
            if (held < least)
                continue;
            add_bucket(plan, first, held, (enum adamw_group)group);
            first += held;
            held = 0;
        }
        if (held)
            add_bucket(plan, first, held, (enum adamw_group)group);
    }
    return 0;
}

void adamw_plan_free(struct adamw_plan *plan)
{
    free(plan->bucket);
    *plan = (struct adamw_plan){0};
}
