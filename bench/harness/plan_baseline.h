/* What the usual stack needs on a rank: FSDP2 with expert, context and tensor parallelism,
 * optimizer state on the host, every layer checkpointed. A model of its memory, not a run of it:
 * each term is what the published algorithm must hold, and nothing for fragmentation or libraries.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define PLAN_BASELINE_TERMS 7

struct plan_model {
    int64_t layers, hidden, heads, ffn, experts, vocab, params;
    int topk;
};

struct plan_term {
    const char *name, *formula;
    int64_t bytes;
};

struct plan_baseline {
    int expert, context, tensor; /* degrees */
    int64_t tokens;              /* of a rank before tensor parallelism */
    struct plan_term term[PLAN_BASELINE_TERMS];
    int64_t device_bytes;
    int largest; /* the largest term */
};

/* One choice of degrees, at a balanced load. `device_state`: masters and moments on the device. */
struct plan_baseline plan_baseline_at(const struct plan_model *model, int gpus, int64_t context,
    int expert, int context_group, int tensor, bool device_state);

/* The choice that needs least of all that divide: tensor up to 8, heads and experts divided. */
struct plan_baseline plan_baseline_best(
    const struct plan_model *model, int gpus, int64_t context, bool device_state);

/* How far its best choices reach. */
struct plan_baseline_reach {
    int64_t context; /* the longest that fits, a power of two times 1024; 0 = none */
    int64_t batch;   /* tokens of all ranks, whole sequences of the context asked about */
    struct plan_baseline beyond; /* what needs least at twice that context */
};
struct plan_baseline_reach plan_baseline_reach(const struct plan_model *model, int gpus,
    int64_t context, int64_t limit_bytes, bool device_state);
