/* Runs one implementation of the checkpoint-boundary problem over ranks and brings its outputs to
 * the host. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/measure.h"
#include "bench/harness/result.h"
#include "device/comm.h"
#include "ops/stack.h"

enum stack_tensor {
    STACK_X,
    STACK_DY,
    STACK_GAIN,
    STACK_GATE,
    STACK_UP,
    STACK_DOWN,
    STACK_TENSORS
};

/* The whole problem's seeded inputs, in host memory. */
struct stack_inputs {
    struct stack_shape shape;
    int64_t total; /* tokens of all ranks */
    /* [total, H] of X and dY, ranks one after the other; [L, ...] of the weights */
    void *arrays[STACK_TENSORS];
};

/* 0, or -1 when memory is short. The shape's token list must outlive the inputs. */
int stack_inputs_seeded(
    struct stack_inputs *inputs, const struct stack_shape *shape, uint64_t seed);
/* Of a simulated device: no arrays. */
struct stack_inputs stack_inputs_none(const struct stack_shape *shape);
void stack_inputs_free(struct stack_inputs *inputs);
int64_t stack_inputs_count(const struct stack_inputs *inputs, enum stack_tensor tensor);
int64_t stack_first_token(const struct stack_shape *shape, int rank);

/* All ranks' outputs; dx and the gradients are NULL after a forward pass alone. A rank's gradients
 * are its own: [ranks, L, ...]. */
struct stack_outputs {
    void *y, *dx; /* [total, H] */
    float *dgain, *dgate, *dup, *ddown;
};
/* 0, or -1 when memory is short. */
int stack_outputs_alloc(
    struct stack_outputs *outputs, const struct stack_shape *shape, bool backward);
void stack_outputs_free(struct stack_outputs *outputs);

struct stack_run {
    /* in */
    const struct stack_impl *impl;
    const struct stack_options *options;
    const struct stack_inputs *inputs;
    bool backward; /* backward too, or forward alone */
    int64_t steps; /* to take before the outputs are collected, >= 1 */
    enum measure_timed timed;
    const struct timing_protocol *protocol; /* unless TIME_NOTHING */
    const struct ranks_config *ranks;
    bool collect;
    /* out */
    struct stack_outputs outputs;
    struct sco_choice choice; /* of the rank with most tokens; zeros where no budget is taken */
    struct ranks_failure failure;
};

/* Takes the steps with the memory window noted (of the last; every step must end with nothing more
 * than the pool, and a layer must have been recomputed as often as the implementation says), then
 * as often as the protocol wants. Fills ranks and time of `result` (case_result_init by the caller,
 * for as many ranks). 0, or -1 with run->failure. */
int stack_run(struct stack_run *run, struct case_result *result);
