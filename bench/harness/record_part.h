/* What of a record is worth keeping apart from the rest: for the regression gate, what is the same
 * on every machine; for a history, what is plotted over commits. */
#pragma once
#include <jansson.h>

/* New records, to be decref'ed; NULL when memory is short. */

/* The case, its status, check, tracked memory, traffic, counts and plan: nothing that depends on
 * the machine or the moment. A simulated time is kept, a measured one is not. */
json_t *record_exact_part(const json_t *record);

/* The case, and of its run: commit, time, machine; its time, throughput and tracked peak. */
json_t *record_history_part(const json_t *record);
