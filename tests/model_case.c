/* Runs a case of the composed model. Tokens are a seeded function of their place in the global
 * batch, so that every layout of ranks trains on the same sequences. */
#include "tests/model_case.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "probe/seed.h"

struct model_options model_case_options(void)
{
    return (struct model_options){.dispatch = &moe_alltoall,
        .moe = {.alpha = 1, .lambda = 1.3, .min_gemm_tokens = 1},
        .vocab = &vocab_materialized,
        .checkpoint = &stack_full_activations,
        .optimizer = &adamw_device,
        .adamw = {.gradients = ADAMW_HOST_F32,
            .scale = 1,
            .clip = 1,
            .hyper = {{3e-3, 0.9, 0.95, 1e-8, 0.1}, {3e-3, 0.9, 0.95, 1e-8, 0}}},
        .bias_step = 0.01,
        .seed = 7};
}

struct job {
    const struct model_case *c;
    struct model_outcome *outcome;
};

/* Token `place` of a sequence: mostly what a rule says, so that there is something to learn. */
static int32_t token_at(const struct model_case *c, int step, int64_t sequence, int64_t place)
{
    int64_t index = (step * 1000 + sequence) * 100000 + place;
    int64_t rule = (place * place + sequence) % c->shape.vocab;
    return (int32_t)(seed_index(5, 0, index, 4) ? rule : seed_index(5, 1, index, c->shape.vocab));
}

static void make_batch(
    const struct model_case *c, int rank, int step, int32_t *tokens, int64_t *targets)
{
    struct layout_group block = layout_block(&c->shape.layout, LAYOUT_SEQUENCE, rank);
    int64_t run = c->shape.length / block.size;
    for (int64_t s = 0; s < c->shape.sequences; s++)
        for (int64_t i = 0; i < run; i++) {
            int64_t sequence = block.first / block.size * c->shape.sequences + s;
            int64_t place = block.place * run + i;
            tokens[s * run + i] = token_at(c, step, sequence, place);
            targets[s * run + i] = token_at(c, step, sequence, place + 1);
        }
}

/* The slice that this rank updates, and what it has resident of it. */
static void collect_part(
    struct model *m, const struct model_part *part, float *whole, struct model_outcome *outcome)
{
    uint16_t *resident = malloc((size_t)part->count * sizeof *resident + 1);
    float *slice = whole + part->global_first + part->slice_first;
    adamw_read_state(&m->adamw, ADAMW_P, part->flat_first, part->slice, slice);
    model_read_part(m, part, resident);
    for (int64_t i = 0; i < part->slice; i++)
        if (resident[part->slice_first + i] != f32_to_bf16(slice[i]))
            __atomic_fetch_add(&outcome->stale, 1, __ATOMIC_RELAXED);
    free(resident);
}

static void collect(struct model *m, struct model_outcome *outcome)
{
    int64_t first = 0;
    for (int64_t i = 0; i < m->parts; i++) {
        const struct model_part *part = &m->part[i];
        collect_part(m, part, outcome->master + first, outcome);
        first += model_whole_count(&m->shape, part);
    }
}

static int run_rank(struct rank *rank, void *context)
{
    const struct job *job = context;
    const struct model_case *c = job->c;
    struct model model;
    int64_t count = model_tokens(&c->shape);
    int32_t *tokens = malloc((size_t)count * sizeof *tokens);
    int64_t *targets = malloc((size_t)count * sizeof *targets);
    model_open(&model, &c->shape, &c->options, rank->dev, rank->comm);
    double opened = dev_flops(rank->dev);
    for (int step = 0; step < c->steps && dev_status(rank->dev) == DEV_OK; step++) {
        double loss;
        make_batch(c, rank->index, step, tokens, targets);
        model_step(&model, tokens, targets, &loss);
        if (rank->index == 0)
            job->outcome->loss[step] = loss;
    }
    job->outcome->flops[rank->index] = dev_flops(rank->dev) - opened;
    if (dev_status(rank->dev) == DEV_OK)
        collect(&model, job->outcome);
    job->outcome->peak_bytes[rank->index] = dev_memory(rank->dev)->window.peak_bytes;
    model_close(&model);
    free(tokens);
    free(targets);
    return dev_status(rank->dev) == DEV_OK ? 0 : -1;
}

struct model_outcome model_case_run(const struct model_case *c)
{
    struct model_outcome outcome = {.elements = model_elements(&c->shape)};
    struct job job = {c, &outcome};
    struct ranks_config config = {.count = c->shape.layout.ranks,
        .device = {.kind = DEV_CPU, .check_order = c->check_order, .pool = dev_pool_create(2)}};
    struct ranks_failure failure;
    outcome.master = calloc((size_t)outcome.elements, sizeof *outcome.master);
    if (ranks_run(&config, run_rank, &job, &failure))
        snprintf(outcome.fault, sizeof outcome.fault, "rank %d: %s", failure.rank, failure.message);
    dev_pool_free(config.device.pool);
    return outcome;
}

void model_outcome_free(struct model_outcome *outcome)
{
    free(outcome->master);
}
