/* Runs one implementation of the vocabulary problem over ranks and brings its outputs to the host.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/measure.h"
#include "bench/harness/result.h"
#include "device/comm.h"
#include "ops/vocab.h"
#include "reference/vocab.h"

/* The whole problem's inputs. Either seeded, where any row can be made at any time, or arrays. */
struct vocab_inputs {
    struct vocab_shape shape;
    uint64_t seed;
    double ignored;    /* seeded: share of tokens without a target */
    int64_t *targets;  /* [sum N]; NULL after vocab_inputs_counted */
    const void *x, *w; /* [sum N, H], [V, H]; NULL = seeded */
    void *owned_x, *owned_w;
};

/* Seeded inputs. X uniform in [-1, 1), W in [-1/sqrt(H), 1/sqrt(H)) times 4, so that logits spread
 * over a few units. 0, or -1 when memory is short. The shape's token list must outlive the inputs.
 */
int vocab_inputs_seeded(
    struct vocab_inputs *inputs, const struct vocab_shape *shape, uint64_t seed, double ignored);

/* Seeded inputs of a simulated device, which reads none of them: what is drawn is counted and not
 * kept. The shape's token list must outlive the inputs. */
struct vocab_inputs vocab_inputs_counted(
    const struct vocab_shape *shape, uint64_t seed, double ignored);

/* How many of the tokens first .. first+count-1 have a target. */
int64_t vocab_inputs_valid(const struct vocab_inputs *inputs, int64_t first, int64_t count);

/* Makes x and w present as arrays (for the reference). 0, or -1 when memory is short. */
int vocab_inputs_materialize(struct vocab_inputs *inputs);
void vocab_inputs_free(struct vocab_inputs *inputs);

/* Rows first .. first+count-1 of X or W, in the problem's type. */
void vocab_inputs_x(const struct vocab_inputs *inputs, int64_t first, int64_t count, void *out);
void vocab_inputs_w(const struct vocab_inputs *inputs, int64_t first, int64_t count, void *out);

/* All ranks' outputs in global order; dx and dw are NULL after a forward pass alone. */
struct vocab_outputs {
    float *max, *log_z, *loss; /* [sum N] */
    void *dx;                  /* [sum N, H] */
    float *dw;                 /* [V, H] */
    double mean;
    int64_t valid;
};
void vocab_outputs_free(struct vocab_outputs *outputs);

struct vocab_run {
    /* in */
    const struct vocab_impl *impl;
    const struct vocab_options *options;
    const struct vocab_inputs *inputs;
    bool backward;                       /* backward too, or forward alone */
    const struct vocab_order *run_order; /* NULL = the implementation's own */
    enum measure_timed timed;
    const struct timing_protocol *protocol; /* unless TIME_NOTHING */
    const struct ranks_config *ranks;
    bool collect; /* bring the outputs to the host */
    /* out */
    struct vocab_outputs outputs;
    struct ranks_failure failure;
};

/* Runs once with the memory window and the traffic noted, then as often as the protocol wants.
 * Fills ranks, traffic and time of `result` (case_result_init by the caller, for as many ranks). 0,
 * or -1 with run->failure; a block that the implementation left allocated is a failure. */
int vocab_run(struct vocab_run *run, struct case_result *result);
