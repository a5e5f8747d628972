/* One simulated step of the composed model, of one rank or of all. */
#include "bench/harness/step_time.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/sim_alike.h"
#include "ops/model_memory.h"
#include "ops/model_parts.h"
#include "probe/trace.h"

#define NO_LIMIT_BYTES (INT64_C(1) << 50)
/* Address space of pinned blocks is reserved: as much as a step plans, and some. */
#define HOST_LEAST_BYTES (INT64_C(1) << 30)

/* Multiples of 2^32 over the golden ratio, cut to 32 bits, fill the circle evenly whatever stride
 * they are taken at; the k experts of a token stand E/k apart on it. */
int32_t *step_even_routing(int64_t tokens, int topk, int64_t experts)
{
    int32_t *idx = malloc((size_t)(tokens * topk) * sizeof *idx + 1);
    for (int64_t i = 0; idx && i < tokens; i++) {
        uint64_t place = (uint32_t)((uint64_t)i * UINT64_C(2654435769));
        int64_t first = (int64_t)((place * (uint64_t)experts) >> 32);
        for (int j = 0; j < topk; j++)
            idx[i * topk + j] = (int32_t)((first + j * experts / topk) % experts);
    }
    return idx;
}

struct run {
    enum step_part part;
    const struct model_shape *shape;
    const struct model_options *options;
    const int32_t *idx;
    const int64_t *targets; /* [N]: any */
    int machines;
    struct step_time *of_rank; /* [ranks that run] */
};

static enum dev_status take_step(const struct run *run, struct model *model)
{
    double loss;
    if (run->part == STEP_WHOLE)
        return model_step(model, NULL, run->targets, &loss);
    adamw_step(&model->adamw);
    model_refresh(model);
    return dev_status(model->dev);
}

static void time_step(const struct run *run, struct rank *rank, struct model *model)
{
    struct step_time *mine = &run->of_rank[rank->index];
    double begin_s[DEV_MACHINES_MAX];
    for (int m = 0; m < run->machines; m++)
        begin_s[m] = dev_clock_on_s(rank->dev, m);
    comm_traffic_reset(rank->comm);
    take_step(run, model);
    dev_sync(rank->dev);
    for (int m = 0; m < run->machines; m++)
        mine->seconds[m] = dev_clock_on_s(rank->dev, m) - begin_s[m];
    mine->traffic = comm_traffic(rank->comm);
    mine->device_peak_bytes = dev_memory(rank->dev)->window.peak_bytes;
    mine->host_peak_bytes = dev_host_memory(rank->dev)->window.peak_bytes;
}

static int run_rank(struct rank *rank, void *context)
{
    const struct run *run = context;
    struct model model;
    enum dev_status status = model_open(&model, run->shape, run->options, rank->dev, rank->comm);
    for (int64_t layer = 0; status == DEV_OK && layer < run->shape->layers; layer++)
        model_set_routing(&model, layer, run->idx);
    dev_sync(rank->dev);
    if (status == DEV_OK && comm_barrier(rank->comm) == 0)
        time_step(run, rank, &model);
    model_close(&model);
    return dev_status(rank->dev) == DEV_OK ? 0 : -1;
}

/* Nothing else runs while attention does: it is all on the main stream. */
static double attention_of(const struct trace *trace)
{
    static const char *const names[] = {
        "attention", "attention_queries", "attention_keys", "tokens to heads", "heads to tokens"};
    double seconds = 0;
    int64_t count;
    const struct trace_span *span = trace_spans(trace, &count);
    for (int64_t i = 0; i < count; i++)
        for (size_t n = 0; n < sizeof names / sizeof *names; n++)
            if (span[i].rank == 0 && !strcmp(span[i].name, names[n]))
                seconds += span[i].end_s - span[i].begin_s;
    return seconds;
}

static void join(struct step_time *out, const struct step_time *rank, int machines)
{
    for (int m = 0; m < machines; m++)
        if (rank->seconds[m] > out->seconds[m])
            out->seconds[m] = rank->seconds[m];
    if (rank->device_peak_bytes > out->device_peak_bytes)
        out->device_peak_bytes = rank->device_peak_bytes;
    if (rank->host_peak_bytes > out->host_peak_bytes)
        out->host_peak_bytes = rank->host_peak_bytes;
}

typedef int ranks_runner(
    const struct ranks_config *, int (*)(struct rank *, void *), void *, struct ranks_failure *);

static int run_with(ranks_runner *run_ranks, struct run *run, const struct profile *machines,
    struct step_time *out, char *error, int size)
{
    struct ranks_failure failure = {.message = "no memory for a simulated step"};
    int64_t tokens = model_tokens(run->shape);
    int ranks = run->shape->layout.ranks, status = -1;
    int32_t *idx = step_even_routing(tokens, run->shape->topk, run->shape->layout.experts);
    int64_t *targets = calloc((size_t)tokens + 1, sizeof *targets);
    struct trace *trace = trace_create();
    struct model_budget budget;
    bool planned = model_budget(&budget, run->shape, run->options, 0) == 0;
    struct ranks_config config = {.count = ranks,
        .device = {.kind = DEV_SIM,
            .device_limit_bytes = NO_LIMIT_BYTES,
            .host_limit_bytes = 2 * budget.host_bytes + HOST_LEAST_BYTES,
            .trace = trace,
            .profiles = machines,
            .machines = run->machines}};
    *out = (struct step_time){0};
    run->idx = idx;
    run->targets = targets;
    run->of_rank = calloc((size_t)ranks, sizeof *run->of_rank);
    if (planned && idx && targets && trace && run->of_rank)
        status = run_ranks(&config, run_rank, run, &failure);
    for (int r = 0; status == 0 && r < ranks; r++)
        join(out, &run->of_rank[r], run->machines);
    if (status == 0) {
        out->traffic = run->of_rank[0].traffic;
        out->attention_s = attention_of(trace);
    } else {
        snprintf(error, (size_t)size, "%s", failure.message);
    }
    trace_free(trace);
    free(run->of_rank);
    free(targets);
    free(idx);
    return status;
}

int step_time_run(enum step_part part, const struct model_shape *shape,
    const struct model_options *options, const struct profile *machines, int count,
    struct step_time *out, char *error, int size)
{
    struct run run = {.part = part, .shape = shape, .options = options, .machines = count};
    return run_with(sim_alike_run, &run, machines, out, error, size);
}

int step_time_run_all(const struct model_shape *shape, const struct model_options *options,
    const struct profile *machines, int count, struct step_time *out, char *error, int size)
{
    struct run run = {.part = STEP_WHOLE, .shape = shape, .options = options, .machines = count};
    return run_with(ranks_run, &run, machines, out, error, size);
}
