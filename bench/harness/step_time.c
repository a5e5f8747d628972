/* One simulated step of the composed model, of one rank or of all. */
#include "bench/harness/step_time.h"
#include <stdio.h>
#include <stdlib.h>
#include "device/sim_alike.h"

#define NO_LIMIT_BYTES (INT64_C(1) << 50)
#define HOST_BYTES (INT64_C(1) << 42)

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
    const struct model_shape *shape;
    const struct model_options *options;
    const int32_t *idx;
    const int64_t *targets; /* [N]: any */
    int machines;
    struct step_time *of_rank; /* [ranks that run] */
};

static int step(struct rank *rank, void *context)
{
    const struct run *run = context;
    struct step_time *mine = &run->of_rank[rank->index];
    struct model model;
    double begin_s[DEV_MACHINES_MAX], loss;
    enum dev_status status = model_open(&model, run->shape, run->options, rank->dev, rank->comm);
    for (int64_t layer = 0; status == DEV_OK && layer < run->shape->layers; layer++)
        model_set_routing(&model, layer, run->idx);
    dev_sync(rank->dev);
    if (status == DEV_OK && comm_barrier(rank->comm) == 0) {
        for (int m = 0; m < run->machines; m++)
            begin_s[m] = dev_clock_on_s(rank->dev, m);
        comm_traffic_reset(rank->comm);
        status = model_step(&model, NULL, run->targets, &loss);
        dev_sync(rank->dev);
        for (int m = 0; m < run->machines; m++)
            mine->seconds[m] = dev_clock_on_s(rank->dev, m) - begin_s[m];
        mine->traffic = comm_traffic(rank->comm);
        mine->device_peak_bytes = dev_memory(rank->dev)->window.peak_bytes;
        mine->host_peak_bytes = dev_host_memory(rank->dev)->window.peak_bytes;
    }
    model_close(&model);
    return dev_status(rank->dev) == DEV_OK ? 0 : -1;
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

static int run_with(int (*run_ranks)(const struct ranks_config *, int (*)(struct rank *, void *),
                        void *, struct ranks_failure *),
    const struct model_shape *shape, const struct model_options *options,
    const struct profile *machines, int count, struct step_time *out, char *error, int size)
{
    struct ranks_failure failure = {.message = "no memory for a simulated step"};
    int ranks = shape->layout.ranks, status = -1;
    int64_t tokens = model_tokens(shape);
    int32_t *idx = step_even_routing(tokens, shape->topk, shape->layout.experts);
    int64_t *targets = calloc((size_t)tokens + 1, sizeof *targets);
    struct run run = {
        shape, options, idx, targets, count, calloc((size_t)ranks, sizeof *run.of_rank)};
    struct ranks_config config = {.count = ranks,
        .device = {.kind = DEV_SIM,
            .device_limit_bytes = NO_LIMIT_BYTES,
            .host_limit_bytes = HOST_BYTES,
            .profiles = machines,
            .machines = count}};
    *out = (struct step_time){0};
    if (idx && targets && run.of_rank)
        status = run_ranks(&config, step, &run, &failure);
    for (int r = 0; status == 0 && r < ranks; r++)
        join(out, &run.of_rank[r], count);
    if (status == 0)
        out->traffic = run.of_rank[0].traffic;
    else
        snprintf(error, (size_t)size, "%s", failure.message);
    free(run.of_rank);
    free(targets);
    free(idx);
    return status;
}

int step_time_run(const struct model_shape *shape, const struct model_options *options,
    const struct profile *machines, int count, struct step_time *out, char *error, int size)
{
    return run_with(sim_alike_run, shape, options, machines, count, out, error, size);
}

int step_time_run_all(const struct model_shape *shape, const struct model_options *options,
    const struct profile *machines, int count, struct step_time *out, char *error, int size)
{
    return run_with(ranks_run, shape, options, machines, count, out, error, size);
}
