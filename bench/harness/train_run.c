/* One thread per rank opens the model, trains, and writes the slices that it owns to their place
 * among the whole tensors. */
#include "bench/harness/train_run.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/interrupt.h"
#include "bench/harness/job.h"
#include "device/launch.h"
#include "device/sim_alike.h"
#include "probe/timing.h"

double train_flops_per_token(const struct model_shape *s)
{
    double hidden = (double)s->hidden, layer = 4 * hidden * hidden; /* multiply-adds */
    layer += hidden * (double)s->length;                            /* two products of half */
    layer += hidden * (double)s->layout.experts;
    layer += (double)s->topk * 3 * hidden * (double)s->ffn;
    return 6 * ((double)s->layers * layer + hidden * (double)s->vocab);
}

struct job {
    struct train_run *run;
    struct case_result *result;
};

/* ---- one rank -------------------------------------------------------------------------------- */

struct on_rank {
    struct train_run *run;
    struct case_result *result;
    struct rank *rank;
    struct model model;
    int32_t *tokens;  /* [N] */
    int64_t *targets; /* [N] */
    int32_t *routing; /* of a simulated device */
    double *seconds;  /* [steps], its own */
    int64_t reached;  /* steps that were done */
    bool interrupted; /* on some rank, as all have heard */
};

/* The tokens of a step, or on a device that would not look at them the routing. 0, or -1 when
 * memory is short. */
static int load_step(struct on_rank *r, int64_t step)
{
    const struct model_shape *shape = &r->model.shape;
    if (dev_is_simulated(r->rank->dev))
        return train_routing_set(r->run->routing, &r->model, step, &r->routing);
    struct layout_group block = r->model.layout.block[LAYOUT_SEQUENCE];
    int64_t run = shape->length / block.size;
    struct train_window window = {.seed = r->run->options->seed,
        .step = step,
        .first_sequence = block.first / block.size * shape->sequences,
        .sequences = shape->sequences,
        .length = shape->length,
        .first = block.place * run,
        .run = run};
    train_text_batch(r->run->text, &window, r->tokens, r->targets);
    return 0;
}

/* This rank's place in [steps, layers, ranks, N, k]. */
static void keep_routes(struct on_rank *r, int64_t step)
{
    const struct model_shape *shape = &r->model.shape;
    int64_t routes = model_tokens(shape) * shape->topk;
    for (int64_t layer = 0; layer < shape->layers; layer++) {
        int64_t place = (step * shape->layers + layer) * r->rank->count + r->rank->index;
        memcpy(r->run->routes + place * routes, r->model.idx[layer],
            (size_t)routes * sizeof *r->run->routes);
    }
}

struct times {
    double step_s, flops;
    double machine_s[DEV_MACHINES_MAX]; /* of a simulated device */
    int64_t interrupted;                /* this rank's process has seen a signal */
};

/* The time, and the work, since what is in `times`. */
static void read_clocks(const struct rank *rank, struct times *times)
{
    int machines = dev_is_simulated(rank->dev) ? dev_config(rank->dev)->machines : 0;
    times->step_s = dev_clock_s(rank->dev) - times->step_s;
    times->flops = dev_flops(rank->dev) - times->flops;
    for (int m = 0; m < machines; m++)
        times->machine_s[m] = dev_clock_on_s(rank->dev, m) - times->machine_s[m];
}

/* The slowest rank's, into the run and the result; and whether to go on, which all ranks hear with
 * the same message and so decide alike. 0, or -1. */
static int note_times(struct on_rank *r, int64_t step, struct times *mine)
{
    struct times *all = calloc((size_t)r->rank->count, sizeof *all);
    mine->interrupted = interrupt_seen();
    int status = all ? comm_host_all_gather(r->rank->comm, mine, all, sizeof *all) : -1;
    for (int rank = 0; status == 0 && rank < r->rank->count; rank++)
        r->interrupted |= all[rank].interrupted != 0;
    if (status == 0 && r->rank->index == 0) {
        struct times most = all[0];
        for (int rank = 1; rank < r->rank->count; rank++) {
            most.step_s = fmax(most.step_s, all[rank].step_s);
            most.flops += all[rank].flops;
            for (int m = 0; m < DEV_MACHINES_MAX; m++)
                most.machine_s[m] = fmax(most.machine_s[m], all[rank].machine_s[m]);
        }
        r->run->seconds[step] = most.step_s;
        r->run->flops = most.flops;
        if (dev_is_simulated(r->rank->dev))
            r->result->machines = dev_config(r->rank->dev)->machines;
        memcpy(r->result->machine_s, most.machine_s, sizeof most.machine_s);
    }
    free(all);
    return status;
}

/* A trace is of the last step alone, and any may be the last. */
static int clear_trace(struct on_rank *r)
{
    struct trace *trace = r->run->ranks->device.trace;
    if (!trace)
        return 0;
    if (dev_sync(r->rank->dev) != DEV_OK || comm_barrier(r->rank->comm))
        return -1;
    if (r->rank->index == 0)
        trace_clear(trace);
    return 0; /* a barrier follows */
}

static int train(struct on_rank *r)
{
    struct device *dev = r->rank->dev;
    for (int64_t step = 0; step < r->run->steps && !r->interrupted; step++) {
        struct times times = {0};
        double loss;
        if (load_step(r, step)) {
            dev_fail(dev, DEV_FAILED, "no host memory for a routing");
            return -1;
        }
        if (r->rank->index % launch_ranks_per_process() == 0)
            launch_phase("%s, step %lld", r->run->name, (long long)step + 1);
        comm_traffic_reset(r->rank->comm);
        if (clear_trace(r) || comm_barrier(r->rank->comm))
            return -1;
        read_clocks(r->rank, &times);
        if (model_step(&r->model, r->tokens, r->targets, &loss) != DEV_OK)
            return -1;
        read_clocks(r->rank, &times);
        r->seconds[step] = times.step_s;
        struct comm_traffic traffic = comm_traffic(r->rank->comm);
        if (note_times(r, step, &times) || case_result_traffic(r->result, r->rank, &traffic))
            return -1;
        if (r->rank->index == 0) {
            r->run->loss[step] = loss;
            if (r->run->progress)
                r->run->progress(r->run->context, step, loss, r->run->seconds[step]);
        }
        if (r->run->routes)
            keep_routes(r, step);
        r->reached = step + 1;
    }
    if (r->rank->index == 0)
        r->run->reached = r->reached;
    return 0;
}

/* The slices of the master weights, and the choices, to the process of rank 0. */
static int collect(struct on_rank *r)
{
    struct model *m = &r->model;
    int64_t first = 0, item_bytes = sizeof *r->run->master;
    int64_t routes_bytes = model_tokens(&m->shape) * m->shape.topk * (int64_t)sizeof(int32_t);
    for (int64_t i = 0; r->run->master && i < m->parts; i++) {
        const struct model_part *part = &m->part[i];
        int64_t at = first + part->global_first + part->slice_first;
        adamw_read_state(&m->adamw, ADAMW_P, part->flat_first, part->slice, r->run->master + at);
        if (job_collect_written(r->rank, r->run->master, at * item_bytes, part->slice * item_bytes))
            return -1;
        first += model_whole_count(&m->shape, part);
    }
    for (int64_t i = 0; r->run->routes && i < r->reached * m->shape.layers; i++)
        if (job_collect_written(r->rank, r->run->routes,
                (i * r->rank->count + r->rank->index) * routes_bytes, routes_bytes))
            return -1;
    if (r->rank->index == 0)
        memcpy(r->run->loads, m->loads,
            (size_t)(m->shape.layers * m->shape.layout.experts) * sizeof *m->loads);
    return 0;
}

static void note_rank(struct on_rank *r)
{
    struct timing_summary own;
    struct case_rank *seen = &r->result->ranks[r->rank->index];
    case_rank_window(seen, WINDOW_PASS, dev_memory(r->rank->dev));
    seen->host_pinned_peak_bytes = dev_host_memory(r->rank->dev)->window.peak_bytes;
    seen->driver_bytes = dev_driver_bytes(r->rank->dev);
    timing_summarise(r->seconds, (int)r->reached, &own);
    seen->time_s = own.median_s;
}

static int run_rank(struct rank *rank, void *context)
{
    const struct job *job = context;
    struct train_run *run = job->run;
    struct on_rank r = {.run = run, .result = job->result, .rank = rank};
    int64_t count = model_tokens(run->shape);
    int status = -1;
    r.tokens = malloc((size_t)count * sizeof *r.tokens + 1);
    r.targets = calloc((size_t)count + 1, sizeof *r.targets);
    r.seconds = calloc((size_t)run->steps + 1, sizeof *r.seconds);
    if (!r.tokens || !r.targets || !r.seconds)
        dev_fail(rank->dev, DEV_FAILED, "no host memory for a batch");
    if (model_open(&r.model, run->shape, run->options, rank->dev, rank->comm) == DEV_OK) {
        case_rank_resident(&r.result->ranks[rank->index], dev_memory(rank->dev));
        mem_window_reset(dev_memory(rank->dev));
        status = train(&r);
    }
    if (status == 0) {
        note_rank(&r);
        status = collect(&r) ? -1 : job_gather_ranks(rank, r.result);
    }
    model_close(&r.model);
    free(r.tokens);
    free(r.targets);
    free(r.routing);
    free(r.seconds);
    return status;
}

/* ---- the run --------------------------------------------------------------------------------- */

int train_run(struct train_run *run, struct case_result *result)
{
    bool computes = run->ranks->device.kind != DEV_SIM;
    size_t loads = (size_t)(run->shape->layers * run->shape->layout.experts);
    struct job job = {run, result};
    run->elements = model_elements(run->shape);
    run->loss = calloc((size_t)run->steps + 1, sizeof *run->loss);
    run->seconds = calloc((size_t)run->steps + 1, sizeof *run->seconds);
    if (computes)
        run->master = calloc((size_t)run->elements, sizeof *run->master);
    run->loads = calloc(loads, sizeof *run->loads);
    if (!run->loss || !run->seconds || (computes && !run->master) || !run->loads) {
        run->failure = (struct ranks_failure){
            .status = DEV_FAILED, .message = "no host memory for the results of a run"};
        return -1;
    }
    if (!run->alike)
        return ranks_run(run->ranks, run_rank, &job, &run->failure);
    result->rank_count = 1;
    return sim_alike_run(run->ranks, run_rank, &job, &run->failure);
}

void train_run_free(struct train_run *run)
{
    free(run->loss);
    free(run->seconds);
    free(run->master);
    free(run->loads);
    run->loss = run->seconds = NULL;
    run->master = NULL;
    run->loads = NULL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

void train_run_digests(
    const struct train_run *run, char losses[DIGEST_TEXT], char weights[DIGEST_TEXT])
{
    snprintf(losses, DIGEST_TEXT, "-");
    snprintf(weights, DIGEST_TEXT, "-");
    struct digest *d = digest_create(), *w = digest_create();
    for (int64_t i = 0; d && i < run->reached; i++) {
        float words[2]; /* a loss's 64 bits */
        memcpy(words, &run->loss[i], sizeof words);
        digest_f32(d, words, 2);
    }
    if (w)
        digest_f32(w, run->master, run->elements);
    if (d)
        digest_finish(d, losses);
    if (w)
        digest_finish(w, weights);
}

/* The tensor that holds element `at` of the whole model. */
static void name_element(const struct model_shape *s, int64_t at, char *text, int size)
{
    int64_t square = s->hidden * s->hidden, expert = s->layout.experts * s->ffn * s->hidden;
    int64_t counts[MODEL_GAINS + 1] = {[MODEL_EMBEDDING] = s->vocab * s->hidden,
        [MODEL_Q] = square,
        [MODEL_K] = square,
        [MODEL_V] = square,
        [MODEL_O] = square,
        [MODEL_ROUTER] = s->layout.experts * s->hidden,
        [MODEL_GATE] = expert,
        [MODEL_UP] = expert,
        [MODEL_DOWN] = expert,
        [MODEL_HEAD] = s->vocab * s->hidden,
        [MODEL_GAINS] = (2 * s->layers + 1) * s->hidden};
    if (at < counts[MODEL_EMBEDDING]) {
        snprintf(text, (size_t)size, "embedding [%lld]", (long long)at);
        return;
    }
    at -= counts[MODEL_EMBEDDING];
    for (int64_t layer = 0; layer < s->layers; layer++)
        for (int tensor = MODEL_Q; tensor <= MODEL_DOWN; at -= counts[tensor++])
            if (at < counts[tensor]) {
                snprintf(text, (size_t)size, "layer %lld %s [%lld]", (long long)layer,
                    model_tensor_name((enum model_tensor)tensor), (long long)at);
                return;
            }
    bool gain = at < counts[MODEL_GAINS];
    snprintf(text, (size_t)size, "%s [%lld]", gain ? "gains" : "head",
        (long long)(gain ? at : at - counts[MODEL_GAINS]));
}

bool train_run_difference(
    const struct train_run *a, const struct train_run *b, char *text, int size)
{
    for (int64_t i = 0; i < a->reached; i++)
        if (memcmp(&a->loss[i], &b->loss[i], sizeof a->loss[i])) {
            snprintf(text, (size_t)size, "the loss of step %lld: %.17g and %.17g", (long long)i,
                a->loss[i], b->loss[i]);
            return true;
        }
    for (int64_t i = 0; i < a->elements; i++)
        if (memcmp(&a->master[i], &b->master[i], sizeof a->master[i])) {
            char name[64];
            name_element(a->shape, i, name, sizeof name);
            snprintf(text, (size_t)size, "%s: %.9g and %.9g", name, (double)a->master[i],
                (double)b->master[i]);
            return true;
        }
    return false;
}
