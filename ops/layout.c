/* Blocks and strides of the MoP layout: who splits what with whom. Everything but layout_open is
 * arithmetic, so that a plan can be made for ranks that do not exist. */
#include "ops/layout.h"
#include <stdio.h>

int64_t layout_slice_first(int64_t count, int64_t holders, int64_t place)
{
    return count * place / holders;
}

const char *layout_degree_name(enum layout_degree degree)
{
    static const char *const names[LAYOUT_DEGREES] = {"sequence", "experts", "vocabulary"};
    return names[degree];
}

static int check_divides(
    char *error, int size, enum layout_degree degree, int d, const char *what, int64_t whole)
{
    if (whole % d == 0)
        return 0;
    snprintf(error, (size_t)size, "the %s degree %d does not divide the %lld %s",
        layout_degree_name(degree), d, (long long)whole, what);
    return -1;
}

int layout_check(const struct layout_shape *shape, char *error, int size)
{
    if (shape->ranks < 1 || shape->ranks > LAYOUT_RANKS_MAX) {
        snprintf(error, (size_t)size, "%d ranks; allowed: 1 to %d", shape->ranks, LAYOUT_RANKS_MAX);
        return -1;
    }
    for (int i = 0; i < LAYOUT_DEGREES; i++) {
        if (shape->degree[i] >= 1 && shape->degree[i] <= shape->ranks)
            continue;
        snprintf(error, (size_t)size, "the %s degree is %d; allowed: 1 to the %d ranks",
            layout_degree_name(i), shape->degree[i], shape->ranks);
        return -1;
    }
    for (int i = 0; i < LAYOUT_DEGREES; i++) {
        if (check_divides(error, size, i, shape->degree[i], "ranks", shape->ranks))
            return -1;
    }
    if (check_divides(error, size, LAYOUT_SEQUENCE, shape->degree[LAYOUT_SEQUENCE],
            "attention heads", shape->heads))
        return -1;
    return check_divides(
        error, size, LAYOUT_EXPERTS, shape->degree[LAYOUT_EXPERTS], "experts", shape->experts);
}

struct layout_group layout_block(
    const struct layout_shape *shape, enum layout_degree degree, int rank)
{
    int d = shape->degree[degree];
    return (struct layout_group){
        .first = rank - rank % d, .stride = 1, .size = d, .place = rank % d};
}

struct layout_group layout_replicas(
    const struct layout_shape *shape, enum layout_degree degree, int rank)
{
    int d = shape->degree[degree];
    return (struct layout_group){
        .first = rank % d, .stride = d, .size = shape->ranks / d, .place = rank / d};
}

static struct comm *comm_of(struct comm *world, const struct layout_group *group, const char *name)
{
    int ranks[LAYOUT_RANKS_MAX];
    for (int i = 0; i < group->size; i++)
        ranks[i] = group->first + i * group->stride;
    return comm_subset(world, ranks, group->size, name);
}

enum dev_status layout_open(
    struct layout *layout, const struct layout_shape *shape, struct device *dev, struct comm *world)
{
    static const char *const block_names[LAYOUT_DEGREES] = {
        "sequence block", "expert block", "vocabulary block"};
    static const char *const replica_names[LAYOUT_DEGREES] = {
        "sequence replicas", "expert replicas", "vocabulary replicas"};
    char error[128];
    *layout = (struct layout){.shape = *shape};
    if (!world)
        return dev_status(dev);
    if (layout_check(shape, error, sizeof error)) {
        dev_fail(dev, DEV_FAILED, "%s", error);
        return dev_status(dev);
    }
    if (comm_size(world) != shape->ranks) {
        dev_fail(dev, DEV_FAILED, "a layout of %d ranks over a communicator of %d", shape->ranks,
            comm_size(world));
        return dev_status(dev);
    }
    layout->rank = comm_rank(world);
    for (int i = 0; i < LAYOUT_DEGREES; i++) {
        struct layout_group block = layout_block(shape, i, layout->rank);
        struct layout_group replicas = layout_replicas(shape, i, layout->rank);
        layout->block[i] = block;
        layout->replicas[i] = replicas;
        layout->block_comm[i] = comm_of(world, &block, block_names[i]);
        layout->replicas_comm[i] = comm_of(world, &replicas, replica_names[i]);
    }
    return dev_status(dev);
}
