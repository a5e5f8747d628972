/* What bin/plan prints of one launch. */
#pragma once
#include "bench/harness/plan_launch.h"

void plan_print_head(const struct plan *p);
void plan_print_verdict(const char *name, int64_t bytes, int64_t limit);

/* The terms of the composed step and the verdicts, and the record where one is asked for. -1, or
 * the exit status after one line on stderr. */
int plan_print_composed(const struct plan *p);
/* The same of the baseline. */
int plan_print_baseline(const struct plan *p);
