/* What bin/plan --search prints and records. */
#pragma once
#include "bench/harness/plan_search.h"

/* Searches, prints the front, the winner and what lost, and appends the record where one is asked
 * for. -1, or the exit status after one line on stderr. *rate: the winner's tokens/s of a rank; 0
 * where nothing fits. */
int plan_search_report(const struct plan *p, double *rate);
