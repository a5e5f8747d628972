/* What the parts of the FSDP2 step share (fsdp_step.c, fsdp_layer.c). */
#pragma once
#include "bench/harness/fsdp_step.h"
#include "device/comm.h"
#include "kernels/gemm.h"

/* One step on the rank that stands for all. All blocks are one block: nothing is stored, and the
 * plan's closed form says what would be (bench/harness/plan_baseline.c). */
struct fsdp_step {
    const struct fsdp_launch *launch;
    bool device_state;
    struct device *dev;
    struct stream *main, *gather, *ring, *reduce;
    struct comm *tensor, *context, *experts;   /* groups of the rank */
    struct comm *dense_gather, *expert_gather; /* who share a tensor, for each direction */
    struct comm *dense_reduce, *expert_reduce;
    void *any, *received, *any_host;
    const int32_t *idx;
    const int64_t *tokens_of, *targets; /* [gpus], [N] */
    int64_t tokens, local;              /* of a tensor group, and of the rank */
    int64_t dense, owned;               /* parameters of a layer: shared by all, by its experts */
};

/* Every rank's `bytes` to every other, or a part of each from every other. */
void fsdp_all_to_all(struct fsdp_step *s, struct comm *comm, struct stream *stream, int64_t bytes);
/* FP32 gradients of the main stream to the rank's shard, and on. */
void fsdp_reduce(struct fsdp_step *s, struct comm *comm, int64_t params);

/* On the main stream. */
void fsdp_norm(struct fsdp_step *s);
void fsdp_norm_backward(struct fsdp_step *s);
void fsdp_layer_forward(struct fsdp_step *s);
void fsdp_layer_backward(struct fsdp_step *s); /* from its checkpoint, which is its input */
