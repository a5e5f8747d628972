/* Training steps of the composed model on the ranks of a device, and what they leave. */
#pragma once
#include "bench/harness/result.h"
#include "bench/harness/train_routing.h"
#include "bench/harness/train_text.h"
#include "device/comm.h"
#include "ops/model.h"
#include "probe/digest.h"

struct train_run {
    const struct model_shape *shape;
    const struct model_options *options;
    const struct train_text *text;       /* NULL on a simulated device, */
    const struct train_routing *routing; /* which is given this */
    const struct ranks_config *ranks;
    bool alike; /* on a simulated device one rank stands for all: device/sim_alike.h */
    int64_t steps;
    const char *name; /* for messages about a rank that is not heard of: "composed" */
    /* The caller's [steps, layers, ranks, N, k] for every choice, or NULL; whole where rank 0 is.
     */
    int32_t *routes;
    /* Called on rank 0 after every step; may be NULL. */
    void (*progress)(void *context, int64_t step, double loss, double seconds);
    void *context;

    /* Filled; where ranks are processes (device/launch.h), in that of rank 0. */
    int64_t reached; /* steps that were done: fewer after an interrupt (bench/harness/interrupt.h),
                        where all ranks leave after the same one */
    double *loss;    /* [steps], of them what was reached; owned */
    double *seconds; /* [steps] likewise, of the slowest rank's step; owned */
    double flops;    /* of all kernels of all ranks in the last step, what is computed again too */
    float *master;   /* master weights of all tensors, whole and in the model's order; owned; NULL
                        on a simulated device */
    int64_t elements;
    int64_t *loads; /* [layers, experts] of the last step; owned */
    struct ranks_failure failure;
};

/* Fills also `result`, which is initialised for as many ranks: resident bytes are those of an open
 * model, the window is over all steps, traffic and the machines' times are of the last one. Where
 * one rank stands for all its entry is the only one. 0, or -1 with run->failure. */
int train_run(struct train_run *run, struct case_result *result);
void train_run_free(struct train_run *run);

/* Digests of losses and of master weights. */
void train_run_digests(
    const struct train_run *run, char losses[DIGEST_TEXT], char weights[DIGEST_TEXT]);

/* Names the tensor and element where two runs of one shape first differ ("layer 1 gate [37]"), or
 * gives false: they are equal bit for bit. */
bool train_run_difference(
    const struct train_run *a, const struct train_run *b, char *text, int size);

/* FLOP of one token, forward and backward, by definition: every product of the layers and the head
 * three times, attention over half the sequence, nothing for what is computed again. */
double train_flops_per_token(const struct model_shape *shape);
