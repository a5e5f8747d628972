/* The records of a plan: a budget's terms, without a search. */
#pragma once
#include "bench/harness/plan_launch.h"

/* Append one to --json. `reach` is all zero where it was not asked for. -1, or the exit status after
 * one line on stderr. */
int plan_record_budget(
    const struct plan *p, const struct model_budget *budget, const struct plan_reach *reach);
int plan_record_baseline(const struct plan *p, const struct plan_baseline *baseline,
    const struct plan_baseline_reach *reach);
