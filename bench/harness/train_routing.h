/* The routing of a simulated training step: a workload of the dispatch program for every block of
 * ranks that shares the experts, or the very choices of a run on another device. */
#pragma once
#include "bench/harness/moe_routing.h"
#include "ops/model.h"

struct train_routing {
    bool even;                   /* step_even_routing of bench/harness/step_time.h, or */
    struct moe_routing workload; /* owned */
    /* NULL, or in its place every choice: [steps, layers, ranks, N, k]; the caller's. */
    const int32_t *routes;
};

/* The text of --routing, for a shape that is checked: "even", or as of bin/dispatch. A trace is of
 * all ranks, its steps and layers follow each other, from the first again after the last; any other
 * workload is the same in all layers of a step. Workloads that give ranks uneven numbers of tokens
 * are refused. 0, or -1 with a message; train_routing_free in any case. */
int train_routing_read(struct train_routing *routing, const char *text,
    const struct model_shape *shape, char *error, int size);
void train_routing_free(struct train_routing *routing);

/* Gives a rank's model the routing of a step. *idx is the memory that it lies in: NULL before the
 * first step, the caller's to free after the last. 0, or -1 when memory is short. */
int train_routing_set(
    const struct train_routing *routing, struct model *m, int64_t step, int32_t **idx);
