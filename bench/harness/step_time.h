/* What a composed step takes on a simulated machine: ops/model_step.c as it is, on the simulated
 * device, with routing that is even in every chunk. All ranks do alike then, so that one of them
 * tells the time of all (device/sim_alike.h). */
#pragma once
#include "device/profile.h"
#include "ops/model.h"

struct step_time {
    double seconds[DEV_MACHINES_MAX]; /* by machine */
    double attention_s; /* of it, on the first: attention's kernels and the exchange of heads */
    int64_t device_peak_bytes, host_peak_bytes;
    struct comm_traffic traffic; /* of a rank */
};

enum step_part {
    STEP_WHOLE,
    STEP_OPTIMIZER /* AdamW over the rank's slices and the weights to all who hold them */
};

/* Even routing: [N, k], k different experts of a token, all experts alike, also among the tokens of
 * a chunk, whether it is a run of them or every K-th. NULL when memory is short; the caller's. */
int32_t *step_even_routing(int64_t tokens, int topk, int64_t experts);

/* One step, however much memory it takes. 0, or -1 with `error`. */
int step_time_run(enum step_part part, const struct model_shape *shape,
    const struct model_options *options, const struct profile *machines, int count,
    struct step_time *out, char *error, int size);

/* The same with all ranks, a thread each: what the other must agree with. The slowest rank's time,
 * the fullest rank's memory, rank 0's traffic and attention. */
int step_time_run_all(const struct model_shape *shape, const struct model_options *options,
    const struct profile *machines, int count, struct step_time *out, char *error, int size);
