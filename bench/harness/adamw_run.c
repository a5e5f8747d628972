/* One implementation over all ranks: load weights, gradients and state, take the steps, bring the
 * state home. */
#include "bench/harness/adamw_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/job.h"
#include "bench/harness/measure.h"
#include "probe/seed.h"
#include "probe/trace.h"

/* Elements that are made in host memory and written at a time. */
#define PIECE (INT64_C(1) << 16)

int adamw_outputs_alloc(struct adamw_outputs *outputs, int64_t held)
{
    size_t count = (size_t)held + 1; /* never of size 0 */
    *outputs = (struct adamw_outputs){.p = malloc(count * sizeof *outputs->p),
        .m = malloc(count * sizeof *outputs->m),
        .v = malloc(count * sizeof *outputs->v),
        .w = malloc(count * sizeof *outputs->w)};
    return outputs->p && outputs->m && outputs->v && outputs->w ? 0 : -1;
}

void adamw_outputs_free(struct adamw_outputs *outputs)
{
    free(outputs->p);
    free(outputs->m);
    free(outputs->v);
    free(outputs->w);
    *outputs = (struct adamw_outputs){0};
}

void adamw_run_free(struct adamw_run *run)
{
    adamw_outputs_free(&run->outputs);
    free(run->reports);
    run->reports = NULL;
}

/* ---- one rank ------------------------------------------------------------------------------ */

struct on_rank {
    struct rank *rank;
    struct adamw_run *run;
    struct case_result *result;
    struct adamw a;
    void *gradients;
    float *piece;      /* [PIECE] */
    uint16_t *weights; /* [PIECE] */
    int64_t *order;    /* [buckets], of readiness; NULL = adamw_step */
    int64_t host_resident_bytes;
    int64_t host_resident_set_bytes[LIVE_SET_COUNT];
};

static bool gradients_on_device(const struct on_rank *r)
{
    return r->run->options->gradients == ADAMW_DEVICE_BF16;
}

/* The caller's arrays: weights and gradients. */
static void alloc_resident(struct on_rank *r)
{
    struct device *dev = r->rank->dev;
    int64_t params = r->a.shape.params;
    r->a.weights = dev_alloc(dev, params * 2, LIVE_WEIGHTS, "working weights");
    r->gradients = gradients_on_device(r)
                       ? dev_alloc(dev, params * 2, LIVE_GRADIENTS, "gradients")
                       : dev_host_alloc(dev, params * 4, LIVE_GRADIENTS, "gradients");
    r->a.gradients = r->gradients;
}

static void free_resident(struct on_rank *r)
{
    dev_free(r->rank->dev, r->a.weights);
    if (gradients_on_device(r))
        dev_free(r->rank->dev, r->gradients);
    else
        dev_host_free(r->rank->dev, r->gradients);
}

/* The working weights of the parameters in the piece. */
static void write_weights(struct on_rank *r, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        r->weights[i] = f32_to_bf16(r->piece[i]);
    dev_write(r->rank->dev, r->a.weights + first, r->weights, count * 2);
}

static void load_state(struct on_rank *r)
{
    if (dev_is_simulated(r->rank->dev))
        return;
    for (int64_t i = 0; i < r->a.shape.tensors; i++) {
        const struct adamw_part *part = &r->a.shape.part[i];
        for (int64_t done = 0; done < part->count; done += PIECE) {
            int64_t count = part->count - done < PIECE ? part->count - done : PIECE;
            for (int array = 0; array < ADAMW_ARRAYS; array++) {
                adamw_inputs_fill(r->run->inputs, (enum adamw_value)array, 0, i,
                    part->global_first + done, count, r->piece);
                adamw_write_state(
                    &r->a, (enum adamw_array)array, part->first + done, count, r->piece);
                if (array == ADAMW_P)
                    write_weights(r, part->first + done, count);
            }
        }
    }
}

static void load_gradients(struct on_rank *r, int64_t step)
{
    enum dtype type = adamw_gradient_dtype(r->run->options->gradients);
    if (dev_is_simulated(r->rank->dev))
        return;
    for (int64_t i = 0; i < r->a.shape.tensors; i++) {
        const struct adamw_part *part = &r->a.shape.part[i];
        for (int64_t done = 0; done < part->count; done += PIECE) {
            int64_t count = part->count - done < PIECE ? part->count - done : PIECE;
            int64_t first = part->global_first + done;
            if (type == DTYPE_BF16)
                adamw_inputs_fill_bf16(r->run->inputs, step, i, first, count, r->weights);
            else
                adamw_inputs_fill(r->run->inputs, ADAMW_VALUE_G, step, i, first, count, r->piece);
            dev_write(r->rank->dev, (char *)r->gradients + (part->first + done) * dtype_bytes(type),
                type == DTYPE_BF16 ? (void *)r->weights : (void *)r->piece,
                count * dtype_bytes(type));
        }
    }
}

/* An order of readiness: a shuffle from the number given. */
static int make_order(struct on_rank *r)
{
    if (!r->run->shuffle)
        return 0;
    r->order = malloc(((size_t)r->a.plan.buckets + 1) * sizeof *r->order);
    if (!r->order)
        return -1;
    for (int64_t i = 0; i < r->a.plan.buckets; i++) {
        int64_t j = seed_index(r->run->shuffle, 0, i, i + 1);
        r->order[i] = r->order[j];
        r->order[j] = i;
    }
    return 0;
}

static int step_once(void *context)
{
    struct on_rank *r = context;
    struct adamw *a = &r->a;
    if (!r->order)
        return adamw_step(a) == DEV_OK ? 0 : -1;
    adamw_begin(a);
    for (int64_t i = 0; i < a->plan.buckets; i++)
        adamw_bucket_ready(a, r->order[i], dev_record(dev_main_stream(a->dev)));
    return adamw_finish(a) == DEV_OK ? 0 : -1;
}

/* ---- memory -------------------------------------------------------------------------------- */

static void note_resident(struct on_rank *r)
{
    struct mem_probe *memory = dev_memory(r->rank->dev), *host = dev_host_memory(r->rank->dev);
    case_rank_resident(&r->result->ranks[r->rank->index], memory);
    r->host_resident_bytes = host->live_bytes;
    memcpy(r->host_resident_set_bytes, host->set_bytes, sizeof host->set_bytes);
    mem_window_reset(memory);
    mem_window_reset(host);
}

/* The pinned peak against its closed form. The ranks write in turn to rank 0's fields only when
 * theirs differ, so only rank 0 reports. */
static void compare_host(struct on_rank *r, const struct adamw_options *options)
{
    const struct mem_probe *host = dev_host_memory(r->rank->dev);
    struct adamw_run *run = r->run;
    for (int set = -1; set < LIVE_SET_COUNT; set++) {
        int64_t want = run->impl->expected_host_bytes(&r->a.shape, options, &r->a.plan, set);
        int64_t got = set < 0 ? host->window.peak_bytes - r->host_resident_bytes
                              : host->window.set_peak_bytes[set] - r->host_resident_set_bytes[set];
        if (got == want || r->rank->index != 0)
            continue;
        run->host_memory_differs = true;
        snprintf(run->host_memory_fault, sizeof run->host_memory_fault,
            "pinned host memory: %s %s has %lld bytes over resident, closed form %lld",
            set < 0 ? "all live sets" : "live set",
            set < 0 ? "together" : mem_live_set_name((enum live_set)set), (long long)got,
            (long long)want);
    }
}

static void note_memory(struct on_rank *r)
{
    const struct adamw_impl *impl = r->run->impl;
    const struct adamw_options *options = &r->a.options; /* resolved */
    const struct adamw_shape *shape = &r->a.shape;
    struct case_rank *seen = &r->result->ranks[r->rank->index];
    case_rank_window(seen, WINDOW_PASS, dev_memory(r->rank->dev));
    struct case_window *window = &seen->windows[WINDOW_PASS];
    window->expected_bytes = impl->expected_bytes(shape, options, &r->a.plan, -1);
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        window->expected_set_bytes[set] = impl->expected_bytes(shape, options, &r->a.plan, set);
    if (impl->bound_bytes)
        window->bound_bytes = impl->bound_bytes(shape, options);
    seen->host_pinned_peak_bytes = dev_host_memory(r->rank->dev)->window.peak_bytes;
    seen->driver_bytes = dev_driver_bytes(r->rank->dev);
    compare_host(r, options);
}

/* ---- the run ------------------------------------------------------------------------------- */

static int collect(struct on_rank *r)
{
    struct adamw_outputs *out = &r->run->outputs;
    float *const arrays[ADAMW_ARRAYS] = {out->p, out->m, out->v};
    for (int64_t i = 0; i < r->a.shape.tensors; i++) {
        const struct adamw_part *part = &r->a.shape.part[i];
        int64_t held = r->run->inputs->held_first[i] + part->global_first;
        for (int array = 0; array < ADAMW_ARRAYS; array++) {
            adamw_read_state(
                &r->a, (enum adamw_array)array, part->first, part->count, arrays[array] + held);
            if (job_collect_written(r->rank, arrays[array], held * 4, part->count * 4))
                return -1;
        }
        if (job_collect(r->rank, out->w, held * 2, r->a.weights + part->first, part->count * 2))
            return -1;
    }
    return 0;
}

/* A trace is of the last step alone. */
static int clear_trace(struct on_rank *r)
{
    if (comm_barrier(r->rank->comm))
        return -1;
    if (r->rank->index == 0)
        trace_clear(r->run->ranks->device.trace);
    return comm_barrier(r->rank->comm);
}

/* The steps that are checked. */
static int take_steps(struct on_rank *r)
{
    struct adamw_run *run = r->run;
    for (int64_t step = 0; step < run->steps; step++) {
        load_gradients(r, step);
        bool clear = r->run->ranks->device.trace && step == run->steps - 1;
        if (clear && clear_trace(r))
            return -1;
        if (step_once(r) || dev_sync(r->rank->dev) != DEV_OK)
            return -1;
        if (r->rank->index == 0)
            run->report = run->reports[step] = r->a.report;
    }
    return 0;
}

static int timed_steps(struct on_rank *r)
{
    struct measure_body body = {.body = step_once, .context = r, .machines = r->result};
    struct timing slowest;
    if (!r->run->timed)
        return 0;
    int status = measure_ranks(
        r->rank, r->run->protocol, &body, &slowest, &r->result->ranks[r->rank->index].time_s);
    if (status == 0 && r->rank->index == 0)
        r->result->time = slowest;
    else
        timing_free(&slowest);
    return status;
}

static int run_open(struct on_rank *r)
{
    note_resident(r);
    if (adamw_open(&r->a, r->run->impl) != DEV_OK || make_order(r))
        return -1;
    r->a.t = r->run->first_step - 1;
    if (r->rank->index == 0) {
        r->run->buckets = r->a.plan.buckets;
        r->run->largest = r->a.plan.largest;
    }
    load_state(r);
    if (take_steps(r))
        return -1;
    note_memory(r);
    if (r->run->collect && collect(r))
        return -1;
    return timed_steps(r) || job_gather_ranks(r->rank, r->result) ? -1 : 0;
}

static void demand_nothing_left(struct device *dev, const char *name)
{
    int64_t left = dev_memory(dev)->live_bytes + dev_host_memory(dev)->live_bytes;
    if (left)
        dev_fail(dev, DEV_FAILED, "%s left %lld bytes allocated", name, (long long)left);
}

static int on_rank(struct rank *rank, void *context)
{
    struct on_rank r = *(struct on_rank *)context;
    const struct adamw_inputs *inputs = r.run->inputs;
    r.rank = rank;
    r.a = (struct adamw){.options = *r.run->options, .dev = rank->dev, .comm = rank->comm};
    r.piece = malloc((size_t)PIECE * sizeof *r.piece);
    r.weights = malloc((size_t)PIECE * sizeof *r.weights);
    int status =
        adamw_shape_init(&r.a.shape, inputs->tensor, inputs->tensors, inputs->world, rank->index);
    if (status || !r.piece || !r.weights) {
        dev_fail(rank->dev, DEV_FAILED, "no host memory to load the parameters");
        status = -1;
    }
    if (status == 0) {
        alloc_resident(&r);
        status = run_open(&r);
        adamw_close(&r.a);
        free_resident(&r);
        if (dev_status(rank->dev) == DEV_OK)
            demand_nothing_left(rank->dev, r.run->impl->name);
    }
    adamw_shape_free(&r.a.shape);
    free(r.piece);
    free(r.weights);
    free(r.order);
    return status || dev_sync(rank->dev) != DEV_OK ? -1 : 0;
}

int adamw_run(struct adamw_run *run, struct case_result *result)
{
    struct on_rank shared = {.run = run, .result = result};
    run->outputs = (struct adamw_outputs){0};
    run->failure = (struct ranks_failure){0};
    run->host_memory_differs = false;
    run->reports = calloc((size_t)run->steps, sizeof *run->reports);
    if (!run->reports ||
        (run->collect && adamw_outputs_alloc(&run->outputs, adamw_inputs_held(run->inputs)))) {
        run->failure.status = DEV_FAILED;
        snprintf(run->failure.message, sizeof run->failure.message, "no host memory for outputs");
        return -1;
    }
    return ranks_run(run->ranks, on_rank, &shared, &run->failure);
}
