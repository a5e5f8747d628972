/* Inputs of the dispatch problem, and one implementation run over ranks with its outputs brought to
 * the host. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/moe_routing.h"
#include "bench/harness/measure.h"
#include "bench/harness/result.h"
#include "device/comm.h"
#include "ops/moe.h"

enum moe_tensor { MOE_X = 1, MOE_DY, MOE_GATE, MOE_UP, MOE_DOWN, MOE_TENSORS };

/* The whole problem's inputs: seeded, with arrays made on demand. */
struct moe_inputs {
    struct moe_shape shape;
    uint64_t seed;
    bool integers;        /* small whole numbers, so that any order gives the same bits */
    int64_t total;        /* tokens of all ranks */
    int32_t *idx;         /* [total, k] */
    float *router_weight; /* [total, k]; NULL after moe_inputs_routed */
    const int32_t *rank_idx[MOE_RANKS_MAX];
    void *arrays[MOE_TENSORS]; /* by enum moe_tensor; NULL until moe_inputs_materialize */
};

/* The problem of one step. The shape's tokens must outlive the inputs. 0, or -1 when memory is
 * short. */
int moe_inputs_init(struct moe_inputs *inputs, const struct moe_shape *shape,
    const struct moe_routing *routing, uint64_t seed, int64_t step, bool integers);

/* The same for a simulated device, which reads the routing alone. */
int moe_inputs_routed(struct moe_inputs *inputs, const struct moe_shape *shape,
    const struct moe_routing *routing, uint64_t seed, int64_t step);
void moe_inputs_free(struct moe_inputs *inputs);

/* Elements of a tensor: X and dY [total, H], gate and up [E, F, H], down [E, H, F]. */
int64_t moe_inputs_count(const struct moe_inputs *inputs, enum moe_tensor tensor);

/* Elements first .. first+count-1 of a tensor, in the problem's type. */
void moe_inputs_fill(const struct moe_inputs *inputs, enum moe_tensor tensor, int64_t first,
    int64_t count, void *out);

/* Makes all tensors present as arrays. 0, or -1 when memory is short. */
int moe_inputs_materialize(struct moe_inputs *inputs);

/* First token of a rank among all ranks'. */
int64_t moe_first_token(const struct moe_shape *shape, int rank);

/* All ranks' outputs in global order; only y after a forward pass alone. */
struct moe_outputs {
    void *y, *dx;                                       /* [total, H] */
    float *router_gradient;                             /* [total, k] */
    float *gate_gradient, *up_gradient, *down_gradient; /* as the weights */
};
void moe_outputs_free(struct moe_outputs *outputs);

struct moe_run {
    /* in */
    const struct moe_impl *impl;
    const struct moe_options *options;
    const struct moe_inputs *inputs;
    bool backward;
    enum measure_timed timed;
    const struct timing_protocol *protocol;
    const struct ranks_config *ranks;
    bool collect;
    /* out */
    struct moe_outputs outputs;
    struct ranks_failure failure;
};

/* As vocab_run: once with memory and traffic noted, then as often as the protocol wants. */
int moe_run(struct moe_run *run, struct case_result *result);
