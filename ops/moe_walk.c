/* The walk over a rank's routes: a cursor per expert. */
#include "ops/moe_walk.h"
#include <stdlib.h>
#include <string.h>

void moe_walk_close(struct moe_walk *walk)
{
    free(walk->position);
    free(walk->segment);
}

int moe_walk_open(struct moe_walk *walk, const struct moe_layout *layout, int rank)
{
    size_t experts = (size_t)layout->experts;
    *walk = (struct moe_walk){.layout = layout,
        .position = calloc(experts, sizeof *walk->position),
        .segment = malloc(experts * sizeof *walk->segment)};
    if (!walk->position || !walk->segment) {
        moe_walk_close(walk);
        return -1;
    }
    for (int r = 0; r < rank; r++)
        for (int64_t e = 0; e < layout->experts; e++)
            walk->position[e] += layout->counts[r * layout->experts + e];
    memcpy(walk->segment, layout->plan.expert_first, experts * sizeof *walk->segment);
    return 0;
}

int64_t moe_walk_place(struct moe_walk *walk, int64_t expert)
{
    const struct llep_segment *segments = walk->layout->plan.segments;
    int64_t position = walk->position[expert]++;
    while (position >= segments[walk->segment[expert]].last)
        walk->segment[expert]++;
    return walk->layout->segment_place[walk->segment[expert]];
}
