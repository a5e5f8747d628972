/* A launch that bin/plan looks at: model, machine, and the current case of its options. */
#pragma once
#include "bench/harness/model_list.h"
#include "bench/harness/plan_baseline.h"
#include "bench/harness/plan_line.h"
#include "device/profile.h"
#include "ops/model_memory.h"

struct plan {
    struct plan_line line;
    struct options *options;
    struct model_list list;
    struct profile machine;
};

/* Reads model and profile and looks at every case. -1, or the exit status after one line on stderr.
 */
int plan_check(struct plan *p);

struct model_shape plan_shape(const struct plan *p, const struct plan_line *line);
struct model_options plan_options(const struct plan_line *line);
struct plan_model plan_baseline_model(const struct plan *p);

/* Whether every rank of a block of `degree` neighbours has as many of its block on its own node: a
 * time that is told by one rank asks for that. */
bool plan_degree_is_even(const struct plan *p, int64_t degree);

/* Of a rank's device, and its share of the host. */
int64_t plan_limit_bytes(const struct plan *p);
int64_t plan_host_limit_bytes(const struct plan *p);

/* The budget of the fullest rank: its terms, and totals that hold for every rank. -1 when the
 * launch is not one. */
int plan_budget(const struct plan *p, const struct plan_line *line, struct model_budget *budget);
bool plan_fits(const struct plan *p, const struct plan_line *line, bool balanced);

/* With everything else as it is: the longest context, a power of two times 1024, and the tokens of
 * all ranks with the most sequences at the given context. By enum plan_verdict; 0 = none. */
struct plan_reach {
    int64_t context[2], batch[2];
};
struct plan_reach plan_reach(const struct plan *p);
