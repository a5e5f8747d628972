/* A few training steps of the composed model on thread ranks, for tests: losses, and the weights
 * put together whole. */
#pragma once
#include "ops/model.h"

#define MODEL_CASE_STEPS_MAX 64

struct model_case {
    struct model_shape shape;
    struct model_options options;
    int steps;
    bool check_order;
};

struct model_outcome {
    double loss[MODEL_CASE_STEPS_MAX];
    float *master; /* of all tensors whole, one after the other; owned */
    int64_t elements;
    int64_t stale;          /* resident weights that are not their master's rounding */
    int64_t peak_bytes[16]; /* of each rank */
    double flops[16];       /* of what each rank launched in all steps */
    char fault[288];        /* "" when all went well */
};

/* Options with the standard composition and the hyperparameters of a small model. */
struct model_options model_case_options(void);

struct model_outcome model_case_run(const struct model_case *c);
void model_outcome_free(struct model_outcome *outcome);
