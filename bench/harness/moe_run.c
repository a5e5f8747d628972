/* One dispatcher over all ranks: load the resident tensors, run, bring the outputs home. */
#include "bench/harness/moe_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/job.h"
#include "bench/harness/measure.h"

/* Elements loaded at a time. */
#define LOAD_ELEMENTS (INT64_C(1) << 18)

/* ---- resident tensors ---------------------------------------------------------------------------
 */

static void *load(struct device *dev, const struct moe_inputs *inputs, enum moe_tensor tensor,
    int64_t first, int64_t count, enum live_set set, const char *label)
{
    int64_t type_bytes = dtype_bytes(inputs->shape.dtype);
    char *block = dev_alloc(dev, count * type_bytes, set, label);
    if (dev_is_simulated(dev))
        return block;
    char *piece = malloc((size_t)(LOAD_ELEMENTS * type_bytes));
    if (!piece)
        dev_fail(dev, DEV_FAILED, "no host memory to load %s", label);
    for (int64_t at = 0; at < count && dev_status(dev) == DEV_OK; at += LOAD_ELEMENTS) {
        int64_t part = count - at < LOAD_ELEMENTS ? count - at : LOAD_ELEMENTS;
        moe_inputs_fill(inputs, tensor, first + at, part, piece);
        dev_write(dev, block + at * type_bytes, piece, part * type_bytes);
    }
    free(piece);
    return block;
}

static void load_all(struct moe *m, struct rank *rank, const struct moe_run *run)
{
    const struct moe_inputs *inputs = run->inputs;
    const struct moe_shape *s = &inputs->shape;
    struct device *dev = rank->dev;
    int64_t token = moe_first_token(s, rank->index), tokens = s->tokens[rank->index];
    int64_t values = moe_experts_per_rank(s) * s->ffn * s->hidden, expert = rank->index * values;
    int64_t slots = tokens * s->topk;
    *m = (struct moe){.shape = *s,
        .options = *run->options,
        .rank = rank->index,
        .with_backward = run->backward,
        .dev = dev,
        .comm = rank->comm,
        .idx = inputs->rank_idx[rank->index]};
    m->x = load(dev, inputs, MOE_X, token * s->hidden, tokens * s->hidden, LIVE_INPUT, "tokens");
    if (run->backward)
        m->dy = load(dev, inputs, MOE_DY, token * s->hidden, tokens * s->hidden, LIVE_INPUT,
            "output gradient");
    if (s->activation == MOE_SWIGLU)
        m->gate = load(dev, inputs, MOE_GATE, expert, values, LIVE_WEIGHTS, "gate weights");
    m->up = load(dev, inputs, MOE_UP, expert, values, LIVE_WEIGHTS, "up weights");
    m->down = load(dev, inputs, MOE_DOWN, expert, values, LIVE_WEIGHTS, "down weights");
    float *weights = dev_alloc(dev, slots * 4, LIVE_INPUT, "router weights");
    if (inputs->router_weight)
        dev_write(dev, weights, inputs->router_weight + token * s->topk, slots * 4);
    m->router_weight = weights;
}

static void unload_all(struct moe *m)
{
    const void *blocks[] = {m->x, m->dy, m->router_weight, m->gate, m->up, m->down};
    for (int i = 0; i < 6; i++)
        dev_free(m->dev, (void *)(uintptr_t)blocks[i]);
}

static int collect(struct rank *rank, struct moe *m, struct moe_run *run)
{
    const struct moe_shape *s = &m->shape;
    struct moe_outputs *out = &run->outputs;
    int64_t token = moe_first_token(s, m->rank), tokens = s->tokens[m->rank];
    int64_t row_bytes = s->hidden * dtype_bytes(s->dtype), slots = tokens * s->topk;
    int64_t values = moe_experts_per_rank(s) * s->ffn * s->hidden, expert = m->rank * values;
    int status = job_collect(rank, out->y, token * row_bytes, m->y, tokens * row_bytes);
    if (status || !run->backward)
        return status;
    status = job_collect(rank, out->dx, token * row_bytes, m->dx, tokens * row_bytes) ||
             job_collect(
                 rank, out->router_gradient, token * s->topk * 4, m->router_gradient, slots * 4) ||
             (m->gate &&
                 job_collect(rank, out->gate_gradient, expert * 4, m->gate_gradient, values * 4)) ||
             job_collect(rank, out->up_gradient, expert * 4, m->up_gradient, values * 4) ||
             job_collect(rank, out->down_gradient, expert * 4, m->down_gradient, values * 4);
    return status ? -1 : 0;
}

/* ---- repetitions --------------------------------------------------------------------------------
 */

struct repetition {
    struct moe m;
    struct moe_run *run;
    struct case_result *result;
    struct comm_traffic traffic;
};

static int forward_once(void *context)
{
    struct repetition *rep = context;
    dev_phase(rep->m.dev, "forward");
    return rep->run->impl->forward(&rep->m) == DEV_OK ? 0 : -1;
}

static int backward_once(void *context)
{
    struct repetition *rep = context;
    dev_phase(rep->m.dev, "backward");
    return rep->run->impl->backward(&rep->m) == DEV_OK ? 0 : -1;
}

static int both_once(void *context)
{
    return forward_once(context) || backward_once(context) ? -1 : 0;
}

static int release_once(void *context)
{
    struct repetition *rep = context;
    dev_phase(rep->m.dev, NULL);
    moe_release(&rep->m, rep->run->impl);
    return dev_sync(rep->m.dev) == DEV_OK ? 0 : -1;
}

static int observed_once(struct rank *rank, struct repetition *rep)
{
    struct mem_probe *memory = dev_memory(rank->dev);
    struct case_rank *seen = &rep->result->ranks[rank->index];
    case_rank_resident(seen, memory);
    mem_window_reset(memory);
    mem_window_reset(dev_host_memory(rank->dev));
    comm_traffic_reset(rank->comm);
    if ((rep->run->backward ? both_once : forward_once)(rep) || dev_sync(rank->dev) != DEV_OK)
        return -1;
    case_rank_window(seen, WINDOW_PASS, memory);
    seen->host_pinned_peak_bytes = dev_host_memory(rank->dev)->window.peak_bytes;
    seen->driver_bytes = dev_driver_bytes(rank->dev);
    rep->traffic = comm_traffic(rank->comm);
    if (rep->run->collect && collect(rank, &rep->m, rep->run))
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
    load_all(&rep.m, rank, rep.run);
    if (dev_status(rank->dev) != DEV_OK)
        return -1;
    if (repetitions(rank, &rep)) {
        /* A plan is host memory, which no device takes back; nothing enqueued reads it any more. */
        dev_sync(rank->dev);
        moe_release(&rep.m, rep.run->impl);
        return -1;
    }
    unload_all(&rep.m);
    if (dev_memory(rank->dev)->live_bytes || dev_host_memory(rank->dev)->live_bytes)
        dev_fail(rank->dev, DEV_FAILED, "%s left %lld bytes allocated, %lld pinned",
            rep.run->impl->name, (long long)dev_memory(rank->dev)->live_bytes,
            (long long)dev_host_memory(rank->dev)->live_bytes);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

/* ---- the run ------------------------------------------------------------------------------------
 */

static int allocate(struct moe_run *run)
{
    const struct moe_inputs *inputs = run->inputs;
    const struct moe_shape *s = &inputs->shape;
    size_t row_bytes = (size_t)(inputs->total * s->hidden * dtype_bytes(s->dtype)) + 1;
    size_t weight_bytes = (size_t)moe_inputs_count(inputs, MOE_UP) * 4;
    struct moe_outputs *out = &run->outputs;
    if (!run->collect)
        return 0;
    out->y = malloc(row_bytes);
    if (!out->y || !run->backward)
        return out->y ? 0 : -1;
    out->dx = malloc(row_bytes);
    out->router_gradient = malloc((size_t)(inputs->total * s->topk) * 4 + 1);
    if (s->activation == MOE_SWIGLU)
        out->gate_gradient = malloc(weight_bytes);
    out->up_gradient = malloc(weight_bytes);
    out->down_gradient = malloc(weight_bytes);
    return out->dx && out->router_gradient && out->up_gradient && out->down_gradient &&
                   (s->activation == MOE_RELU || out->gate_gradient)
               ? 0
               : -1;
}

/* What the closed forms say of every rank's peak. */
static int note_expected(struct moe_run *run, struct case_result *result)
{
    const struct moe_impl *impl = run->impl;
    const struct moe_shape *shape = &run->inputs->shape;
    struct moe_peaks *peaks = calloc((size_t)shape->ranks, sizeof *peaks);
    int status = peaks ? impl->expected_bytes(
                             shape, run->options, run->inputs->rank_idx, run->backward, peaks)
                       : -1;
    for (int r = 0; status == 0 && r < shape->ranks; r++) {
        struct case_window *window = &result->ranks[r].windows[WINDOW_PASS];
        window->expected_bytes = peaks[r].all_bytes;
        memcpy(window->expected_set_bytes, peaks[r].set_bytes, sizeof peaks[r].set_bytes);
        int64_t bound =
            impl->bound_bytes ? impl->bound_bytes(shape, run->options, r, -1, run->backward) : -1;
        if (bound >= 0)
            window->bound_bytes = bound;
    }
    free(peaks);
    return status;
}

int moe_run(struct moe_run *run, struct case_result *result)
{
    struct repetition rep = {.run = run, .result = result};
    run->outputs = (struct moe_outputs){0};
    run->failure = (struct ranks_failure){0};
    if (allocate(run)) {
        run->failure.status = DEV_FAILED;
        snprintf(run->failure.message, sizeof run->failure.message, "no host memory for outputs");
        return -1;
    }
    if (ranks_run(run->ranks, on_rank, &rep, &run->failure))
        return -1;
    if (note_expected(run, result) == 0)
        return 0;
    run->failure.status = DEV_FAILED;
    snprintf(run->failure.message, sizeof run->failure.message, "no host memory for a layout");
    return -1;
}

void moe_outputs_free(struct moe_outputs *outputs)
{
    void *arrays[] = {outputs->y, outputs->dx, outputs->router_gradient, outputs->gate_gradient,
        outputs->up_gradient, outputs->down_gradient};
    for (int i = 0; i < 6; i++)
        free(arrays[i]);
    *outputs = (struct moe_outputs){0};
}
