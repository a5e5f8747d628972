/* One implementation over all ranks: load weights and gradients, take steps, bring the outputs
 * home. */
#include "bench/harness/stack_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/job.h"
#include "bench/harness/measure.h"
#include "probe/trace.h"

int stack_outputs_alloc(
    struct stack_outputs *outputs, const struct stack_shape *shape, bool backward)
{
    const int64_t rows = stack_first_token(shape, shape->ranks) * shape->hidden;
    const int64_t gains = shape->ranks * shape->layers * shape->hidden;
    const size_t row_bytes = (size_t)(rows * dtype_bytes(shape->dtype)) + 1;
    const size_t matrix_bytes = (size_t)(gains * shape->ffn) * sizeof(float);
    *outputs = (struct stack_outputs){.y = malloc(row_bytes)};
    if (!outputs->y || !backward)
        return outputs->y ? 0 : -1;
    outputs->dx = malloc(row_bytes);
    outputs->dgain = malloc((size_t)gains * sizeof(float));
    outputs->dgate = malloc(matrix_bytes);
    outputs->dup = malloc(matrix_bytes);
    outputs->ddown = malloc(matrix_bytes);
    return outputs->dx && outputs->dgain && outputs->dgate && outputs->dup && outputs->ddown ? 0
                                                                                             : -1;
}

void stack_outputs_free(struct stack_outputs *outputs)
{
    free(outputs->y);
    free(outputs->dx);
    free(outputs->dgain);
    free(outputs->dgate);
    free(outputs->dup);
    free(outputs->ddown);
    *outputs = (struct stack_outputs){0};
}

/* ---- one rank ---------------------------------------------------------------------------------
 */

struct on_rank {
    struct stack_run *run;
    struct case_result *result;
    struct rank *rank;
    struct stack s;
    struct stack_layer *layers;
    void *blocks[STACK_TENSORS]; /* of the weights, all layers in one; and dY */
    struct expert_group *group;
    float *gradients[4]; /* gain, gate, up, down */
};

/* Elements of all layers of a weight. */
static int64_t weight_count(const struct stack_shape *shape, enum stack_tensor tensor)
{
    return shape->layers * shape->hidden * (tensor == STACK_GAIN ? 1 : shape->ffn);
}

static void load_weight(struct on_rank *r, enum stack_tensor tensor)
{
    static const char *const labels[] = {"x", "output gradient", "gains", "gate", "up", "down"};
    struct device *dev = r->rank->dev;
    const struct stack_shape *shape = &r->s.shape;
    const int64_t count = weight_count(shape, tensor), bytes = count * dtype_bytes(shape->dtype);
    r->blocks[tensor] = dev_alloc(dev, bytes, LIVE_WEIGHTS, labels[tensor]);
    dev_write(dev, r->blocks[tensor], r->run->inputs->arrays[tensor], bytes);
    r->gradients[tensor - STACK_GAIN] =
        dev_alloc(dev, count * (int64_t)sizeof(float), LIVE_GRADIENTS, labels[tensor]);
}

/* NULL of no rows, as on a simulated device. */
static void *rows_at(const struct stack_shape *shape, int rank, void *rows)
{
    int64_t row_bytes = shape->hidden * dtype_bytes(shape->dtype);
    return rows ? (char *)rows + stack_first_token(shape, rank) * row_bytes : NULL;
}

static void point_layers(struct on_rank *r)
{
    const struct stack_shape *shape = &r->s.shape;
    const int64_t type = dtype_bytes(shape->dtype);
    for (int64_t l = 0; l < shape->layers; l++) {
        const int64_t row = l * shape->hidden, matrix = row * shape->ffn;
        r->layers[l] = (struct stack_layer){.gain = (char *)r->blocks[STACK_GAIN] + row * type,
            .gate = (char *)r->blocks[STACK_GATE] + matrix * type,
            .up = (char *)r->blocks[STACK_UP] + matrix * type,
            .down = (char *)r->blocks[STACK_DOWN] + matrix * type,
            .dgain = r->gradients[0] + row,
            .dgate = r->gradients[1] + matrix,
            .dup = r->gradients[2] + matrix,
            .ddown = r->gradients[3] + matrix};
    }
}

static int load(struct on_rank *r)
{
    struct device *dev = r->rank->dev;
    const struct stack_inputs *inputs = r->run->inputs;
    const int index = r->rank->index;
    r->s = (struct stack){
        .shape = inputs->shape, .options = *r->run->options, .rank = index, .dev = dev};
    r->layers = calloc((size_t)inputs->shape.layers, sizeof *r->layers);
    r->s.recomputes = calloc((size_t)inputs->shape.layers, sizeof *r->s.recomputes);
    if (!r->layers || !r->s.recomputes) {
        dev_fail(dev, DEV_FAILED, "no host memory for the layers");
        return -1;
    }
    for (int t = STACK_GAIN; t < STACK_TENSORS; t++)
        load_weight(r, (enum stack_tensor)t);
    const int64_t bytes = stack_row_bytes(&inputs->shape, index);
    r->blocks[STACK_DY] = dev_alloc(dev, bytes, LIVE_INPUT, "output gradient");
    dev_write(
        dev, r->blocks[STACK_DY], rows_at(&inputs->shape, index, inputs->arrays[STACK_DY]), bytes);
    const struct expert_group group = {.rows = inputs->shape.tokens[index]};
    r->group = dev_alloc(dev, (int64_t)sizeof group, LIVE_INPUT, "token group");
    dev_write(dev, r->group, &group, sizeof group);
    if (dev_status(dev) != DEV_OK)
        return -1;
    point_layers(r);
    r->s.layer = r->layers;
    r->s.group = r->group;
    r->s.dy = r->blocks[STACK_DY];
    return 0;
}

static void unload(struct on_rank *r)
{
    struct device *dev = r->rank->dev;
    for (int t = 0; t < STACK_TENSORS; t++)
        dev_free(dev, r->blocks[t]);
    for (int i = 0; i < 4; i++)
        dev_free(dev, r->gradients[i]);
    dev_free(dev, r->group);
    free(r->layers);
    free(r->s.recomputes);
}

/* ---- a step -----------------------------------------------------------------------------------
 */

/* The input that forward takes over. */
static int bring_input(void *context)
{
    struct on_rank *r = context;
    const struct stack_shape *shape = &r->s.shape;
    const int64_t bytes = stack_row_bytes(shape, r->s.rank);
    r->s.x = dev_alloc(r->s.dev, bytes, LIVE_BOUNDARY, "input");
    dev_write(r->s.dev, r->s.x, rows_at(shape, r->s.rank, r->run->inputs->arrays[STACK_X]), bytes);
    return dev_status(r->s.dev) == DEV_OK ? 0 : -1;
}

static int forward_once(void *context)
{
    struct on_rank *r = context;
    dev_phase(r->s.dev, "forward");
    return r->run->impl->forward(&r->s) == DEV_OK ? 0 : -1;
}

static int backward_once(void *context)
{
    struct on_rank *r = context;
    dev_phase(r->s.dev, "backward");
    return r->run->impl->backward(&r->s) == DEV_OK ? 0 : -1;
}

static int release_once(void *context)
{
    struct on_rank *r = context;
    dev_phase(r->s.dev, NULL);
    stack_release(&r->s, r->run->impl);
    return dev_status(r->s.dev) == DEV_OK ? 0 : -1;
}

static int collect(struct on_rank *r)
{
    struct stack_outputs *out = &r->run->outputs;
    const struct stack_shape *shape = &r->s.shape;
    const int64_t bytes = stack_row_bytes(shape, r->s.rank);
    float *const gradients[4] = {out->dgain, out->dgate, out->dup, out->ddown};
    const int64_t at =
        stack_first_token(shape, r->s.rank) * shape->hidden * dtype_bytes(shape->dtype);
    if (job_collect(r->rank, out->y, at, r->s.y, bytes))
        return -1;
    if (!r->run->backward)
        return 0;
    if (job_collect(r->rank, out->dx, at, r->s.dx, bytes))
        return -1;
    for (int i = 0; i < 4; i++) {
        int64_t own = weight_count(shape, (enum stack_tensor)(STACK_GAIN + i)) * 4;
        if (job_collect(r->rank, gradients[i], r->s.rank * own, r->gradients[i], own))
            return -1;
    }
    return 0;
}

/* Every layer as often as promised in the step that has ended. */
static void demand_recomputes(struct on_rank *r)
{
    const int64_t want = r->run->backward ? r->run->impl->recomputes : 0;
    for (int64_t l = 0; l < r->s.shape.layers; l++) {
        if (r->s.recomputes[l] != want)
            dev_fail(r->s.dev, DEV_FAILED, "layer %lld was recomputed %lld times, promised %lld",
                (long long)l, (long long)r->s.recomputes[l], (long long)want);
        r->s.recomputes[l] = 0;
    }
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Pinned memory has the closed form of the ledger too: a difference fails the run. */
static void demand_host(struct on_rank *r, const struct stack_ledger *ledger)
{
    const struct mem_probe *host = dev_host_memory(r->s.dev);
    if (host->window.peak_bytes != ledger->host.window.peak_bytes)
        dev_fail(r->s.dev, DEV_FAILED, "%s: %lld bytes of pinned host memory, closed form %lld",
            r->run->impl->name, (long long)host->window.peak_bytes,
            (long long)ledger->host.window.peak_bytes);
}

static void note_memory(struct on_rank *r)
{
    const struct stack_impl *impl = r->run->impl;
    const struct stack_shape *shape = &r->s.shape;
    struct case_rank *seen = &r->result->ranks[r->s.rank];
    struct case_window *window = &seen->windows[WINDOW_PASS];
    struct stack_ledger ledger = stack_ledger_open(shape, r->s.rank, r->run->backward);
    impl->replay(shape, r->run->options, &ledger);
    case_rank_window(seen, WINDOW_PASS, dev_memory(r->s.dev));
    window->expected_bytes = ledger.device.window.peak_bytes;
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        window->expected_set_bytes[set] = ledger.device.window.set_peak_bytes[set];
    if (impl->bound_bytes)
        window->bound_bytes =
            impl->bound_bytes(shape, r->run->options, r->s.rank, r->run->backward);
    seen->host_pinned_peak_bytes = dev_host_memory(r->s.dev)->window.peak_bytes;
    seen->driver_bytes = dev_driver_bytes(r->s.dev);
    demand_host(r, &ledger);
}

/* After a step nothing but the pool may be left, and that only where it is kept. */
static void demand_released(struct on_rank *r, int64_t resident_bytes)
{
    const int64_t device = dev_memory(r->s.dev)->live_bytes - resident_bytes;
    const int64_t host = r->run->options->keep_pool ? 0 : dev_host_memory(r->s.dev)->live_bytes;
    if (device || host)
        dev_fail(r->s.dev, DEV_FAILED, "%s left %lld bytes allocated after a step",
            r->run->impl->name, (long long)(device + host));
}

/* A trace is of the last step alone. */
static int clear_trace(struct on_rank *r)
{
    if (comm_barrier(r->rank->comm))
        return -1;
    if (r->s.rank == 0)
        trace_clear(r->run->ranks->device.trace);
    return comm_barrier(r->rank->comm);
}

/* The steps that are checked. */
static int take_steps(struct on_rank *r)
{
    struct stack_run *run = r->run;
    const int64_t resident = dev_memory(r->s.dev)->live_bytes;
    case_rank_resident(&r->result->ranks[r->s.rank], dev_memory(r->s.dev));
    for (int64_t step = 0; step < run->steps; step++) {
        bool clear = run->ranks->device.trace && step == run->steps - 1;
        if (clear && clear_trace(r))
            return -1;
        mem_window_reset(dev_memory(r->s.dev));
        mem_window_reset(dev_host_memory(r->s.dev));
        if (bring_input(r) || forward_once(r) || (run->backward && backward_once(r)) ||
            dev_sync(r->s.dev) != DEV_OK)
            return -1;
        note_memory(r);
        demand_recomputes(r);
        if (run->collect && step == run->steps - 1 && collect(r))
            return -1;
        if (release_once(r))
            return -1;
        demand_released(r, resident);
    }
    return dev_status(r->s.dev) == DEV_OK ? 0 : -1;
}

static int timed_repetitions(struct on_rank *r)
{
    const struct measure_passes passes = {.prepare = bring_input,
        .forward = forward_once,
        .backward = backward_once,
        .finish = release_once,
        .context = r};
    return measure_passes(r->rank, r->run->timed, r->run->protocol, &passes, r->result);
}

static int on_rank(struct rank *rank, void *context)
{
    struct on_rank r = *(struct on_rank *)context;
    r.rank = rank;
    int status = load(&r);
    if (status == 0)
        status =
            take_steps(&r) || timed_repetitions(&r) || job_gather_ranks(rank, r.result) ? -1 : 0;
    stack_release(&r.s, r.run->impl);
    stack_pool_free(&r.s);
    unload(&r);
    int64_t left = dev_memory(rank->dev)->live_bytes + dev_host_memory(rank->dev)->live_bytes;
    if (left && dev_status(rank->dev) == DEV_OK)
        dev_fail(rank->dev, DEV_FAILED, "%s left %lld bytes allocated", r.run->impl->name,
            (long long)left);
    return status || dev_sync(rank->dev) != DEV_OK ? -1 : 0;
}

int stack_run(struct stack_run *run, struct case_result *result)
{
    struct on_rank shared = {.run = run, .result = result};
    const struct stack_shape *shape = &run->inputs->shape;
    run->outputs = (struct stack_outputs){0};
    run->failure = (struct ranks_failure){0};
    run->choice = (struct sco_choice){0};
    if (run->collect && stack_outputs_alloc(&run->outputs, shape, run->backward)) {
        run->failure.status = DEV_FAILED;
        snprintf(run->failure.message, sizeof run->failure.message, "no host memory for outputs");
        return -1;
    }
    for (int r = 0; run->impl->takes_budget && r < shape->ranks; r++) {
        struct sco_choice choice = stack_choose(shape, run->options, r, NULL);
        if (r == 0 || choice.logical_bytes > run->choice.logical_bytes)
            run->choice = choice;
    }
    return ranks_run(run->ranks, on_rank, &shared, &run->failure);
}
