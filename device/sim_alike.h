/* One rank that stands for all: where every rank of a simulated group does the same at the same
 * time, one of them tells what all take. The schedule is run as it is, by rank 0 alone, in one
 * thread; so a step of 64 ranks costs what one rank's does.
 *
 * What the others are taken to be: they come to an exchange when this rank does, their links are as
 * busy as its own, and a gather of the hosts finds this rank's bytes with all of them. That is
 * true, to the picosecond, where ranks hold equal tokens with equal routing and where each has as
 * many partners of an exchange on its own node as every other. What rank 0 receives must follow
 * from those gathers. */
#pragma once
#include "device/comm.h"

/* As ranks_run, of config->count ranks on the simulated device, of which body sees rank 0.
 * comm_split is refused, since nobody else says a color: use comm_subset. */
int sim_alike_run(const struct ranks_config *config, int (*body)(struct rank *rank, void *context),
    void *context, struct ranks_failure *failure);
