/* How parameters are laid out on a rank and cut into buckets: arithmetic on counts, nothing else.
 *
 * The flat order of a rank's parameters is what master, moments, gradients and working weights
 * share: first the tensors with weight decay, then those without, each in the model's order, each
 * cut to the rank's share. A bucket is a run of the flat order within one group, so that one set of
 * hyperparameters serves it and each array moves in one copy. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum adamw_group { ADAMW_DECAY, ADAMW_NO_DECAY, ADAMW_GROUPS };

/* A tensor of the whole model. */
struct adamw_tensor {
    const char *name; /* the model's */
    int64_t count;
    enum adamw_group group;
};

/* The same on one rank. */
struct adamw_part {
    const char *name;
    enum adamw_group group;
    int64_t global_first; /* of its elements, within the whole tensor */
    int64_t first, count; /* in the flat order */
};

struct adamw_shape {
    int world, rank;
    int64_t tensors;
    struct adamw_part *part; /* [tensors], in the model's order; owned */
    int64_t params;          /* of this rank */
    int64_t group_first[ADAMW_GROUPS + 1];
};

/* The share of rank `rank` of `world`: count / world elements of each tensor, one more on the first
 * count mod world ranks, in rank order. Names are kept by reference. 0, or -1 when memory is short.
 */
int adamw_shape_init(struct adamw_shape *shape, const struct adamw_tensor *tensors, int64_t count,
    int world, int rank);
void adamw_shape_free(struct adamw_shape *shape);

struct adamw_bucket {
    int64_t first, count; /* in the flat order */
    enum adamw_group group;
};

struct adamw_plan {
    int64_t buckets;
    struct adamw_bucket *bucket; /* owned */
    int64_t largest;             /* parameters of the largest bucket */
};

/* Cuts each group into buckets of `most` parameters, the last of a group smaller where it does not
 * divide: `most` is a real bound. 0, or -1 when memory is short. */
int adamw_plan_cut(struct adamw_plan *plan, const struct adamw_shape *shape, int64_t most);

/* Whole tensors, in order: a bucket is closed as soon as it holds at least `least` parameters. The
 * published rule; the largest bucket is bounded only by least - 1 + the largest tensor. */
int adamw_plan_whole_tensors(
    struct adamw_plan *plan, const struct adamw_shape *shape, int64_t least);

void adamw_plan_free(struct adamw_plan *plan);
