/* One implementation over all ranks: load the resident tensors, run, bring the outputs home. */
#include "bench/harness/vocab_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/job.h"
#include "bench/harness/measure.h"
#include "kernels/strip.h"

/* Rows loaded at a time: inputs are made in host memory and written to the device in pieces. */
#define LOAD_ROWS 256

typedef void rows_source(
    const struct vocab_inputs *inputs, int64_t first, int64_t count, void *out);

static void *load_rows(struct device *dev, const struct vocab_inputs *inputs, rows_source *source,
    int64_t first, int64_t count, enum live_set set, const char *label)
{
    int64_t row_bytes = inputs->shape.hidden * dtype_bytes(inputs->shape.dtype);
    char *block = dev_alloc(dev, count * row_bytes, set, label);
    if (dev_is_simulated(dev))
        return block;
    char *piece = malloc((size_t)(LOAD_ROWS * row_bytes));
    if (!piece)
        dev_fail(dev, DEV_FAILED, "no host memory to load %s", label);
    for (int64_t at = 0; at < count && dev_status(dev) == DEV_OK; at += LOAD_ROWS) {
        int64_t rows = count - at < LOAD_ROWS ? count - at : LOAD_ROWS;
        source(inputs, first + at, rows, piece);
        dev_write(dev, block + at * row_bytes, piece, rows * row_bytes);
    }
    free(piece);
    return block;
}

static int64_t first_token(const struct vocab_shape *shape, int rank)
{
    int64_t first = 0;
    for (int r = 0; r < rank; r++)
        first += shape->tokens[r];
    return first;
}

/* Puts this rank's resident tensors on its device and fills the problem in. */
static void load(struct vocab *v, struct rank *rank, const struct vocab_run *run)
{
    const struct vocab_inputs *inputs = run->inputs;
    const struct vocab_shape *shape = &inputs->shape;
    int64_t tokens = shape->tokens[rank->index], token = first_token(shape, rank->index);
    int64_t rows = vocab_shard_rows(shape->vocab, shape->ranks, rank->index);
    int64_t row = vocab_shard_first(shape->vocab, shape->ranks, rank->index);
    bool full = run->impl->full_weight;
    *v = (struct vocab){.shape = *shape,
        .options = *run->options,
        .rank = rank->index,
        .with_backward = run->backward,
        .run_order = run->run_order,
        .dev = rank->dev,
        .comm = rank->comm,
        .host_targets = inputs->targets ? inputs->targets + token : NULL};
    v->x = load_rows(rank->dev, inputs, vocab_inputs_x, token, tokens, LIVE_INPUT, "activations");
    v->w = load_rows(rank->dev, inputs, vocab_inputs_w, full ? 0 : row, full ? shape->vocab : rows,
        LIVE_WEIGHTS, full ? "full projection weight" : "projection weight shard");
    int64_t *targets = dev_alloc(rank->dev, tokens * 8, LIVE_INPUT, "targets");
    if (v->host_targets)
        dev_write(rank->dev, targets, v->host_targets, tokens * 8);
    v->targets = targets;
    v->valid = vocab_sum_valid(rank->comm, vocab_inputs_valid(inputs, token, tokens));
}

static void unload(struct vocab *v)
{
    dev_free(v->dev, (void *)(uintptr_t)v->x);
    dev_free(v->dev, (void *)(uintptr_t)v->w);
    dev_free(v->dev, (void *)(uintptr_t)v->targets);
}

/* Each rank writes its own rows of the global arrays. */
static int collect(struct rank *rank, struct vocab *v, struct vocab_run *run)
{
    struct vocab_outputs *out = &run->outputs;
    const struct vocab_shape *shape = &v->shape;
    int64_t tokens = shape->tokens[v->rank], token = first_token(shape, v->rank);
    if (job_collect(rank, out->max, token * 4, v->max, tokens * 4) ||
        job_collect(rank, out->log_z, token * 4, v->log_z, tokens * 4) ||
        job_collect(rank, out->loss, token * 4, v->loss, tokens * 4))
        return -1;
    if (!run->backward)
        return 0;
    int64_t row_bytes = shape->hidden * dtype_bytes(shape->dtype);
    int64_t row = vocab_shard_first(shape->vocab, shape->ranks, v->rank);
    int64_t rows = vocab_shard_rows(shape->vocab, shape->ranks, v->rank);
    if (job_collect(rank, out->dx, token * row_bytes, v->dx, tokens * row_bytes))
        return -1;
    return job_collect(rank, out->dw, row * shape->hidden * 4, v->dw, rows * shape->hidden * 4);
}

/* What one rank's repetitions work on. */
struct repetition {
    struct vocab v;
    struct vocab_run *run;
    struct case_result *result;
    struct comm_traffic traffic;
};

static int forward_once(void *context)
{
    struct repetition *rep = context;
    dev_phase(rep->v.dev, "forward");
    return rep->run->impl->forward(&rep->v) == DEV_OK ? 0 : -1;
}

static int backward_once(void *context)
{
    struct repetition *rep = context;
    dev_phase(rep->v.dev, "backward");
    return rep->run->impl->backward(&rep->v) == DEV_OK ? 0 : -1;
}

static int both_once(void *context)
{
    return forward_once(context) || backward_once(context) ? -1 : 0;
}

static int release_once(void *context)
{
    struct repetition *rep = context;
    dev_phase(rep->v.dev, NULL);
    vocab_release(&rep->v, rep->run->impl);
    return dev_sync(rep->v.dev) == DEV_OK ? 0 : -1;
}

/* What the closed forms say of this rank's peak. */
static void note_expected(const struct vocab_run *run, int rank, struct case_window *window)
{
    const struct vocab_impl *impl = run->impl;
    const struct vocab_shape *shape = &run->inputs->shape;
    window->expected_bytes = impl->expected_bytes(shape, run->options, rank, -1, run->backward);
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        window->expected_set_bytes[set] =
            impl->expected_bytes(shape, run->options, rank, set, run->backward);
    if (impl->bound_bytes)
        window->bound_bytes = impl->bound_bytes(shape, run->options, rank, run->backward);
}

/* One repetition outside the clock: its memory window and traffic noted, its outputs collected. */
static int observed_once(struct rank *rank, struct repetition *rep)
{
    struct vocab_run *run = rep->run;
    struct mem_probe *memory = dev_memory(rank->dev);
    struct case_rank *seen = &rep->result->ranks[rank->index];
    case_rank_resident(seen, memory);
    mem_window_reset(memory);
    comm_traffic_reset(rank->comm);
    if ((run->backward ? both_once : forward_once)(rep) || dev_sync(rank->dev) != DEV_OK)
        return -1;
    case_rank_window(seen, WINDOW_PASS, memory);
    seen->driver_bytes = dev_driver_bytes(rank->dev);
    note_expected(run, rank->index, &seen->windows[WINDOW_PASS]);
    rep->traffic = comm_traffic(rank->comm);
    if (run->collect && collect(rank, &rep->v, run))
        return -1;
    return release_once(rep);
}

static int timed_repetitions(struct rank *rank, struct repetition *rep)
{
    const struct measure_passes passes = {
        .forward = forward_once, .backward = backward_once, .finish = release_once, .context = rep};
    return measure_passes(rank, rep->run->timed, rep->run->protocol, &passes, rep->result);
}

static int repetitions(struct rank *rank, struct repetition *rep)
{
    if (observed_once(rank, rep) || case_result_traffic(rep->result, rank, &rep->traffic) ||
        timed_repetitions(rank, rep) || job_gather_ranks(rank, rep->result))
        return -1;
    return 0;
}

static int on_rank(struct rank *rank, void *context)
{
    struct repetition rep = *(struct repetition *)context;
    load(&rep.v, rank, rep.run);
    if (dev_status(rank->dev) != DEV_OK || rep.v.valid < 0)
        return -1;
    if (rank->index == 0)
        rep.run->outputs.valid = rep.v.valid;
    if (repetitions(rank, &rep)) {
        /* What a schedule keeps on the host no device takes back; nothing enqueued reads it now. */
        dev_sync(rank->dev);
        vocab_release(&rep.v, rep.run->impl);
        return -1;
    }
    unload(&rep.v);
    if (dev_memory(rank->dev)->live_bytes)
        dev_fail(rank->dev, DEV_FAILED, "%s left %lld bytes allocated", rep.run->impl->name,
            (long long)dev_memory(rank->dev)->live_bytes);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static int allocate(struct vocab_run *run)
{
    const struct vocab_shape *shape = &run->inputs->shape;
    size_t tokens = (size_t)vocab_total_tokens(shape) + 1;
    size_t hidden = (size_t)shape->hidden;
    if (!run->collect)
        return 0;
    struct vocab_outputs *out = &run->outputs;
    out->max = malloc(tokens * 4);
    out->log_z = malloc(tokens * 4);
    out->loss = malloc(tokens * 4);
    if (!out->max || !out->log_z || !out->loss)
        return -1;
    if (!run->backward)
        return 0;
    out->dx = malloc(tokens * hidden * (size_t)dtype_bytes(shape->dtype));
    out->dw = malloc((size_t)shape->vocab * hidden * 4);
    return out->dx && out->dw ? 0 : -1;
}

/* One FP64 chain over the valid tokens in ascending global order. */
static void mean_loss(struct vocab_run *run)
{
    double sum = 0;
    int64_t total = vocab_total_tokens(&run->inputs->shape);
    for (int64_t i = 0; i < total; i++)
        if (run->inputs->targets[i] != VOCAB_IGNORED)
            sum += (double)run->outputs.loss[i];
    run->outputs.mean = run->outputs.valid ? sum / (double)run->outputs.valid : 0;
}

int vocab_run(struct vocab_run *run, struct case_result *result)
{
    struct repetition rep = {.run = run, .result = result};
    run->outputs = (struct vocab_outputs){0};
    run->failure = (struct ranks_failure){0};
    if (allocate(run)) {
        run->failure.status = DEV_FAILED;
        snprintf(run->failure.message, sizeof run->failure.message, "no host memory for outputs");
        return -1;
    }
    if (ranks_run(run->ranks, on_rank, &rep, &run->failure))
        return -1;
    if (run->collect)
        mean_loss(run);
    return 0;
}

void vocab_outputs_free(struct vocab_outputs *outputs)
{
    free(outputs->max);
    free(outputs->log_z);
    free(outputs->loss);
    free(outputs->dx);
    free(outputs->dw);
    *outputs = (struct vocab_outputs){0};
}
