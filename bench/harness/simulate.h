/* What --device sim:PROFILE makes of a case: which options lose their meaning, and on which
 * machines it runs. The first machine is the profile's; on the others some of its rates are a fifth
 * slower or faster, which gives every simulated time its range. */
#pragma once
#include "bench/harness/case.h"

/* How far the rates vary. */
#define SIMULATE_SHARE 0.2

/* Reads the profile, fills options->machines and takes what a machine defines (ranks, memory) as
 * defaults. Refuses what a simulation cannot honour. -1, or the exit status after one line on
 * stderr. */
int simulate_setup(struct case_options *options, struct options *parsed, const char *profile);

/* machines[0] is the profile; the others become what it varies to. How many there are. */
int simulate_machines(struct profile machines[DEV_MACHINES_MAX]);

/* "profile", "all slower", "all faster", "links slower", ... */
const char *simulate_machine_name(int machine, char *text, int size);

/* The shortest and the longest time over all machines. */
void simulate_range(const double *time_s, int machines, double *low_s, double *high_s);
