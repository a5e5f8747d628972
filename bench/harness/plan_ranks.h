/* Which ranks a budget must be counted of: where ranks do not divide a tensor they hold unequal
 * slices of it. */
#pragma once
#include "ops/model.h"

/* The ranks, ascending, that no other rank holds as much as of everything and more of something; of
 * ranks that hold the same the first. A budget grows with each slice, so one of them is the
 * fullest. Their number, at least 1. */
int plan_fullest_ranks(const struct model_shape *shape, int ranks[LAYOUT_RANKS_MAX]);
