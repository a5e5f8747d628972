/* The FSDP2 step as a program of one rank that stands for all: its groups and messages, what is
 * around the layers, and the run. */
#include "bench/harness/fsdp_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/step_time.h"
#include "device/sim_alike.h"
#include "kernels/rank_sum.h"
#include "kernels/moe.h"
#include "ops/adamw.h"
#include "ops/layout.h"
#include "ops/vocab.h"

#define RANKS_MOST LAYOUT_RANKS_MAX
#define ANY_BYTES (INT64_C(1) << 46)
#define DEVICE_BYTES (INT64_C(1) << 50)

/* ---- groups ---------------------------------------------------------------------------------- */

/* The ranks of this one's group: `size` of them, `stride` apart. */
static struct comm *group(struct comm *world, int stride, int size, const char *name)
{
    int ranks[RANKS_MOST], rank = comm_rank(world);
    for (int i = 0; i < size; i++)
        ranks[i] = rank - rank / stride % size * stride + i * stride;
    return comm_subset(world, ranks, size, name);
}

static void open_groups(struct fsdp_step *s, struct comm *world)
{
    const struct fsdp_launch *l = s->launch;
    s->tensor = group(world, 1, l->tensor, "tensor");
    s->context = group(world, l->tensor, l->context, "context");
    s->experts = group(world, 1, l->expert, "experts");
    s->dense_gather = comm_dup(world, "dense weights");
    s->dense_reduce = comm_dup(world, "dense gradients");
    s->expert_gather = group(world, l->expert, l->gpus / l->expert, "expert weights");
    s->expert_reduce = comm_dup(s->expert_gather, "expert gradients");
    s->main = dev_main_stream(s->dev);
    s->gather = dev_stream(s->dev, "gather");
    s->ring = dev_stream(s->dev, "ring");
    s->reduce = dev_stream(s->dev, "reduce");
}

/* ---- messages -------------------------------------------------------------------------------- */

void fsdp_all_to_all(struct fsdp_step *s, struct comm *comm, struct stream *stream, int64_t bytes)
{
    struct comm_part send[RANKS_MOST], receive[RANKS_MOST];
    int size = comm ? comm_size(comm) : 0;
    for (int p = 0; p < size; p++) {
        int64_t others = p == comm_rank(comm) ? 0 : bytes;
        send[p] = (struct comm_part){p, s->any, others};
        receive[p] = (struct comm_part){p, (char *)s->received + p * bytes, others};
    }
    if (size > 1)
        comm_exchange(comm, stream, "shards", send, size, receive, size);
}

/* BF16 of a tensor in equal shards. */
static void gather_weights(struct fsdp_step *s, struct comm *comm, int64_t params)
{
    fsdp_all_to_all(s, comm, s->gather, params / comm_size(comm) * 2);
}

static struct event gather_layer(struct fsdp_step *s)
{
    gather_weights(s, s->dense_gather, s->dense / s->launch->tensor);
    gather_weights(s, s->expert_gather, s->owned);
    return dev_record(s->gather);
}

void fsdp_reduce(struct fsdp_step *s, struct comm *comm, int64_t params)
{
    int64_t ranks = comm_size(comm), shard = params / ranks;
    dev_wait_stream(s->reduce, s->main);
    fsdp_all_to_all(s, comm, s->reduce, shard * 4);
    rank_sum(s->reduce,
        &(struct rank_sum_args){
            .parts = s->any, .count = shard, .stride = shard, .parts_count = ranks, .out = s->any});
    if (!s->device_state)
        dev_copy_d2h(s->reduce, s->any_host, s->any, shard * 4);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void embed(struct fsdp_step *s)
{
    gather_rows(s->main, &(struct gather_rows_args){.to = s->any,
                             .from = s->any,
                             .index = s->any,
                             .count = s->local,
                             .from_rows = s->launch->model.vocab,
                             .row_bytes = s->launch->model.hidden * 2});
}

static void head(struct fsdp_step *s)
{
    const struct plan_model *model = &s->launch->model;
    const struct vocab_impl *impl = s->launch->tensor > 1 ? &vocab_parallel : &vocab_materialized;
    struct vocab v = {
        .shape = {s->launch->tensor, s->tokens_of, model->hidden, model->vocab, DTYPE_BF16},
        .rank = comm_rank(s->tensor),
        .with_backward = true,
        .dev = s->dev,
        .comm = s->tensor,
        .x = s->any,
        .w = s->any,
        .targets = s->any,
        .host_targets = s->targets,
        .valid = s->local * s->launch->tensor};
    fsdp_norm(s);
    if (impl->forward(&v) == DEV_OK)
        impl->backward(&v);
    vocab_release(&v, impl);
    fsdp_norm_backward(s);
}

static void passes(struct fsdp_step *s)
{
    int64_t layers = s->launch->model.layers;
    int64_t table = s->launch->model.vocab * s->launch->model.hidden / s->launch->tensor;
    gather_weights(s, s->dense_gather, table);
    struct event ready = dev_record(s->gather), next = gather_layer(s);
    dev_wait(s->main, ready);
    embed(s);
    for (int64_t l = 0; l < 2 * layers; l++) {
        if (l == layers)
            head(s);
        ready = next;
        dev_wait_stream(s->gather, s->main); /* two layers' weights at a time */
        if (l + 1 == layers)
            gather_weights(s, s->dense_gather, table);
        if (l + 1 < 2 * layers)
            next = gather_layer(s);
        dev_wait(s->main, ready);
        if (l < layers)
            fsdp_layer_forward(s);
        else
            fsdp_layer_backward(s);
    }
    embed(s);
    fsdp_reduce(s, s->dense_reduce, 2 * table);
    dev_wait_stream(s->main, s->reduce);
    dev_wait_stream(s->main, s->gather);
}

/* AdamW of the rank's shard of all parameters. */
static void optimizer(struct fsdp_step *s)
{
    int64_t params = s->launch->model.params / s->launch->gpus;
    const struct adamw_tensor tensor = {"shard", params, ADAMW_DECAY};
    struct adamw a = {.options = {.gradients = s->device_state ? ADAMW_DEVICE_BF16 : ADAMW_HOST_F32,
                          .bucket = 100000000,
                          .scale = 1,
                          .hyper = {{1e-3, 0.9, 0.95, 1e-8, 0.1}, {1e-3, 0.9, 0.95, 1e-8, 0}}},
        .dev = s->dev,
        .weights = s->any,
        .gradients = s->device_state ? s->any : s->any_host};
    if (adamw_shape_init(&a.shape, &tensor, 1, 1, 0)) {
        dev_fail(s->dev, DEV_FAILED, "no host memory for the optimizer's shape");
        return;
    }
    if (adamw_open(&a, s->device_state ? &adamw_device : &adamw_cpu_offload) == DEV_OK)
        adamw_step(&a);
    adamw_close(&a);
    adamw_shape_free(&a.shape);
}

/* ---- a run ----------------------------------------------------------------------------------- */

struct run {
    struct fsdp_step step; /* as every rank begins it */
    void (*part)(struct fsdp_step *);
    int machines;
    double *seconds;
};

/* FP32 of a rank's shard, of all tensors and of the largest. A list may have fewer parameters than
 * its widths say. */
static int64_t shard_bytes(const struct fsdp_launch *l)
{
    const struct plan_model *m = &l->model;
    int64_t layer = m->hidden * (4 * m->hidden + m->experts * (1 + 3 * m->ffn));
    int64_t params = m->params > m->layers * layer ? m->params : m->layers * layer;
    return 4 * (params + 2 * m->vocab * m->hidden) / l->gpus;
}

static int run_rank(struct rank *rank, void *context)
{
    struct run *run = context;
    struct fsdp_step own = run->step, *s = &own;
    double begin_s[DEV_MACHINES_MAX];
    s->dev = rank->dev;
    s->any = dev_alloc(s->dev, ANY_BYTES, LIVE_WORKSPACE, "any block");
    s->received = dev_alloc(s->dev, ANY_BYTES, LIVE_WORKSPACE, "any received block");
    s->any_host = dev_host_alloc(s->dev, shard_bytes(s->launch), LIVE_WORKSPACE, "any shard");
    open_groups(s, rank->comm);
    if (dev_status(s->dev) != DEV_OK)
        return -1;
    for (int m = 0; m < run->machines; m++)
        begin_s[m] = dev_clock_on_s(s->dev, m);
    run->part(s);
    dev_sync(s->dev);
    for (int m = 0; m < run->machines && rank->index == 0; m++)
        run->seconds[m] = dev_clock_on_s(s->dev, m) - begin_s[m];
    dev_host_free(s->dev, s->any_host);
    dev_free(s->dev, s->received);
    dev_free(s->dev, s->any);
    return dev_status(s->dev) == DEV_OK ? 0 : -1;
}

static int run_part(void (*part)(struct fsdp_step *), const struct fsdp_launch *launch,
    bool device_state, const struct profile *machines, int count, double *seconds, char *error,
    int size)
{
    const struct plan_model *model = &launch->model;
    struct ranks_failure failure = {.message = "no memory for a simulated step of FSDP2"};
    int64_t tokens = launch->length / launch->context * launch->sequences, hidden = model->hidden;
    int64_t local = (tokens + launch->tensor - 1) / launch->tensor;
    int64_t *tokens_of = malloc((size_t)launch->gpus * sizeof *tokens_of);
    int64_t *targets = calloc((size_t)local + 1, sizeof *targets);
    int32_t *idx = step_even_routing(local, model->topk, model->experts);
    struct run run = {.step = {.launch = launch,
                          .device_state = device_state,
                          .idx = idx,
                          .tokens_of = tokens_of,
                          .targets = targets,
                          .tokens = tokens,
                          .local = local,
                          .dense = 4 * hidden * hidden + model->experts * hidden,
                          .owned = model->experts / launch->expert * 3 * hidden * model->ffn},
        .part = part,
        .machines = count,
        .seconds = seconds};
    struct ranks_config config = {.count = launch->gpus,
        .device = {.kind = DEV_SIM,
            .device_limit_bytes = DEVICE_BYTES,
            .host_limit_bytes = 6 * shard_bytes(launch),
            .profiles = machines,
            .machines = count}};
    int status = -1;
    for (int r = 0; tokens_of && r < launch->gpus; r++)
        tokens_of[r] = local;
    if (tokens_of && targets && idx)
        status = launch->every_rank ? ranks_run(&config, run_rank, &run, &failure)
                                    : sim_alike_run(&config, run_rank, &run, &failure);
    if (status)
        snprintf(error, (size_t)size, "%s", failure.message);
    free(tokens_of);
    free(targets);
    free(idx);
    return status;
}

bool fsdp_launch_is_even(const struct fsdp_launch *l, const struct profile *machine)
{
    int64_t node = machine->ranks_per_node;
    int degrees[] = {l->expert, l->tensor, l->context * l->tensor};
    for (int i = 0; i < 3; i++)
        if (degrees[i] < 1 || l->gpus % degrees[i] || (node % degrees[i] && degrees[i] % node))
            return false;
    return l->model.experts % l->expert == 0 && l->length % l->context == 0 &&
           l->model.heads % (l->context * l->tensor) == 0;
}

int fsdp_passes_time(const struct fsdp_launch *launch, bool device_state,
    const struct profile *machines, int count, double *seconds, char *error, int size)
{
    struct fsdp_launch small = *launch;
    double two[DEV_MACHINES_MAX];
    int64_t layers = launch->model.layers;
    small.model.layers = layers < 3 ? layers : 3;
    if (run_part(passes, &small, device_state, machines, count, seconds, error, size))
        return -1;
    if (layers <= 3)
        return 0;
    small.model.layers = 2;
    if (run_part(passes, &small, device_state, machines, count, two, error, size))
        return -1;
    for (int m = 0; m < count; m++)
        seconds[m] += (double)(layers - 3) * (seconds[m] - two[m]);
    return 0;
}

int fsdp_optimizer_time(const struct fsdp_launch *launch, bool device_state,
    const struct profile *machines, int count, double *seconds, char *error, int size)
{
    return run_part(optimizer, launch, device_state, machines, count, seconds, error, size);
}
