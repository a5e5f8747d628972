/* The records of a plan, and what all of them have in common. */
#pragma once
#include <jansson.h>
#include "bench/harness/plan_launch.h"

/* A record of the current case with status "ok", of the plan's simulated machine or of no device;
 * with a machine also config.free, what was searched. NULL when memory is short. */
json_t *plan_record_begin(const struct plan *p, const char *impl, bool simulated);
/* The times on all machines, and what follows from them for so many tokens of a rank. */
void plan_record_time(
    json_t *record, const double *seconds, int machines, double tokens, double flops_per_token);
/* Takes over the record (NULL: memory was short) and appends it to --json. -1, or the exit status
 * after one line on stderr. */
int plan_record_append(const struct plan *p, json_t *record);

/* Append one to --json. `reach` is all zero where it was not asked for. -1, or the exit status
 * after one line on stderr. */
int plan_record_budget(
    const struct plan *p, const struct model_budget *budget, const struct plan_reach *reach);
int plan_record_baseline(const struct plan *p, const struct plan_baseline *baseline,
    const struct plan_baseline_reach *reach);
