/* Runs one implementation of the optimizer problem over ranks and brings the state home.
 *
 * Values are numbered by tensor and element of the whole model. Of W shares, the first P are held
 * by the P ranks that run, so of each tensor a run from its start is held; arrays on the host
 * ("held order") have these runs one after the other in the model's order. With P = W that is the
 * model. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/result.h"
#include "device/comm.h"
#include "ops/adamw.h"
#include "reference/adamw.h"

enum adamw_value { ADAMW_VALUE_P, ADAMW_VALUE_M, ADAMW_VALUE_V, ADAMW_VALUE_G };

struct adamw_inputs {
    int64_t tensors;
    const struct adamw_tensor *tensor; /* the caller's */
    int world, ranks;
    int64_t *held_first; /* [tensors + 1] in held order; owned */
    uint64_t seed;
    bool extremes;     /* seeded: every few elements an extreme value (for tests) */
    int64_t nonfinite; /* seeded: so many gradients are infinities and NaN */
    /* Arrays in held order in place of seeded values; NULL = seeded. */
    const float *p, *m, *v, *g;
};

/* 0, or -1 when memory is short. world >= ranks. The tensors must outlive the inputs. */
int adamw_inputs_seeded(struct adamw_inputs *inputs, const struct adamw_tensor *tensor,
    int64_t tensors, int world, int ranks, uint64_t seed);
void adamw_inputs_free(struct adamw_inputs *inputs);

static inline int64_t adamw_inputs_held(const struct adamw_inputs *inputs)
{
    return inputs->held_first[inputs->tensors];
}

/* Elements first .. first+count-1 of a tensor as step `step` (0, 1, ...) meets them; only gradients
 * depend on it. */
void adamw_inputs_fill(const struct adamw_inputs *inputs, enum adamw_value value, int64_t step,
    int64_t tensor, int64_t first, int64_t count, float *out);
/* The same gradient in BF16. */
void adamw_inputs_fill_bf16(const struct adamw_inputs *inputs, int64_t step, int64_t tensor,
    int64_t first, int64_t count, uint16_t *out);

/* State in held order. */
struct adamw_outputs {
    float *p, *m, *v;
    uint16_t *w;
};
/* 0, or -1 when memory is short. */
int adamw_outputs_alloc(struct adamw_outputs *outputs, int64_t held);
void adamw_outputs_free(struct adamw_outputs *outputs);

struct adamw_run {
    /* in */
    const struct adamw_impl *impl;
    const struct adamw_options *options;
    const struct adamw_inputs *inputs;
    const struct ranks_config *ranks;
    int64_t steps;      /* steps to take before the state is collected, >= 1 */
    int64_t first_step; /* t of the first, >= 1 */
    uint64_t
        shuffle; /* 0 = adamw_step; else buckets become ready in an order made from this number */
    bool timed;  /* then as often as the protocol wants */
    const struct timing_protocol *protocol;
    bool collect;
    /* out */
    struct adamw_outputs outputs;
    struct adamw_report report;   /* rank 0's, of the last counted step */
    struct adamw_report *reports; /* [steps], rank 0's; owned */
    int64_t buckets, largest;     /* rank 0's plan */
    bool host_memory_differs;     /* pinned peak and closed form */
    char host_memory_fault[CASE_FAULT_MAX];
    struct ranks_failure failure;
};

/* Fills ranks and time of `result` (case_result_init by the caller, for as many ranks). 0, or -1
 * with run->failure; a block that the implementation left allocated is a failure. */
int adamw_run(struct adamw_run *run, struct case_result *result);
void adamw_run_free(struct adamw_run *run);
