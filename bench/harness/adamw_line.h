/* The optimizer program's own options. */
#pragma once
#include "bench/harness/options.h"
#include "ops/adamw.h"

struct adamw_line {
    int64_t params, world, bucket, slots, steps, first_step, nonfinite;
    const char *model;
    int gradients;
    double scale, clip;
    struct option_reals lr, beta1, beta2, eps, weight_decay;
    bool whole_tensors, skip_nonfinite, propagate, plan;
};

/* The problem's options and the step's, which write into *line. */
struct option_group adamw_problem_group(struct adamw_line *line);
struct option_group adamw_step_group(struct adamw_line *line);

/* What the line asks of the family; the lists of hyperparameters must not be empty. */
struct adamw_options adamw_line_options(const struct adamw_line *line);
