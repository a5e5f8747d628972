/* What a step of the usual stack takes on a simulated machine: FSDP2 with expert, context and
 * tensor parallelism, every layer checkpointed. The program is written for the simulated device
 * alone: it launches the kernels and sends the messages that such a step must, with nothing to
 * compute on.
 *
 *     gather stream    weights of layer l + 1 from all ranks, while layer l runs; in backward again
 *     main stream      attention, dispatch (`alltoall`), vocabulary (`materialized`,
 *                      `vocab-parallel`)
 *     ring stream      keys and values of the other ranks of a sequence, while attention runs
 *     reduce stream    gradients, FP32, to their shards, and to the host where AdamW runs there
 *     then             AdamW of the shard: on the device, or on the host's cores
 *
 * With tensor parallelism norms, router and dispatch are on N / TP tokens (sequence parallel), rows
 * are gathered before the projections and summed after them; the sums themselves take no time. Not
 * modelled: fragmentation, libraries, imbalance of causal attention between ranks of a ring, the
 * host's own work. All of this is in the baseline's favour. */
#pragma once
#include "bench/harness/plan_baseline.h"
#include "device/profile.h"

struct fsdp_launch {
    struct plan_model model;
    int gpus, expert, context, tensor; /* degrees: EP, CP, TP */
    int64_t length, sequences; /* tokens of a sequence; of them in a step of a CP x TP group */
    bool every_rank; /* simulate all, a thread each; else one of them, which stands for all */
};

/* Whether there is such a launch, and one rank tells its time: degrees that divide the ranks, and
 * CP x TP the heads. */
bool fsdp_launch_is_even(const struct fsdp_launch *launch, const struct profile *machine);

/* Forward and backward with the gradients where AdamW wants them, and AdamW, by machine. Layers
 * beyond three take what the third adds. 0, or -1 with `error`. */
int fsdp_passes_time(const struct fsdp_launch *launch, bool device_state,
    const struct profile *machines, int count, double *seconds, char *error, int size);
int fsdp_optimizer_time(const struct fsdp_launch *launch, bool device_state,
    const struct profile *machines, int count, double *seconds, char *error, int size);
