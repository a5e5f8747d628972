/* A rank's routes met by token, then slot, each with its place.
 *
 * A route's position among its expert's routes of all ranks decides its segment of the plan.
 * Positions ascend as the routes are met, so each expert's segment is found by walking on. */
#pragma once
#include <stdint.h>
#include "ops/moe_route.h"

struct moe_walk {
    const struct moe_layout *layout;
    int64_t *position; /* [experts]: of the next route */
    int64_t *segment;  /* [experts]: where the last one was */
};

/* Before the rank's first route. 0, or -1 when memory is short. */
int moe_walk_open(struct moe_walk *walk, const struct moe_layout *layout, int rank);
void moe_walk_close(struct moe_walk *walk);

/* The place of the expert's next route. */
int64_t moe_walk_place(struct moe_walk *walk, int64_t expert);

/* Cells of one rank's rows of the table. */
static inline int64_t moe_layout_cells(const struct moe_layout *layout)
{
    return layout->partition.chunks * layout->place_count;
}
