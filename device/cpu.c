/* The host as a device: streams are worker threads, kernels run on the pool, device memory and
 * pinned memory are ordinary memory.
 *
 * A freed block may be handed out at once: what still uses it was enqueued before, and whoever gets
 * it enqueues later (docs/DEVICE.md, memory). Only where free space is poisoned does a freed device
 * block stay out of use until the main stream has passed the free, since only then its bytes are
 * dead. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/backend.h"
#include "device/host_arena.h"
#include "device/pool.h"
#include "device/transport.h"
#include "device/worker.h"
#include "probe/timing.h"

/* A freed block that the main stream may still be using. */
struct retired {
    struct retired *next;
    void *block;
    int64_t bytes;
    int64_t ticket;
};

/* One direction of the link between host and device: one copy at a time. */
struct engine {
    pthread_mutex_t lock;
    double bytes_per_s; /* 0: unpaced */
    double free_s;      /* when what is booked is through */
};

struct cpu_stream {
    struct worker *worker;
    double done_s; /* when its last operation was done, by its pace; the worker's */
};

struct cpu {
    struct host_arena device, host;
    struct engine engines[2]; /* DEV_H2D, DEV_D2H */
    struct dev_team team;
    struct retired *retired;
};

/* ---- memory ---------------------------------------------------------------------------------- */

static struct worker *worker_of(const struct stream *stream)
{
    const struct cpu_stream *state = stream->state;
    return state->worker;
}

/* Gives back what the main stream is done with; with `wait`, all that was freed. */
static void collect_retired(struct device *dev, bool wait)
{
    struct cpu *cpu = dev->state;
    struct worker *main_worker = worker_of(dev->streams[0]);
    while (cpu->retired && (wait || worker_reached(main_worker, cpu->retired->ticket))) {
        struct retired *first = cpu->retired;
        worker_reach(main_worker, first->ticket);
        cpu->retired = first->next;
        host_arena_give(&cpu->device, first->block, first->bytes);
        free(first);
    }
}

static void retire(struct device *dev, void *block, int64_t bytes)
{
    struct cpu *cpu = dev->state;
    struct retired *retired = malloc(sizeof *retired);
    if (!retired)
        return;
    *retired = (struct retired){NULL, block, bytes, dev->streams[0]->last_ticket};
    struct retired **end = &cpu->retired;
    while (*end)
        end = &(*end)->next;
    *end = retired;
}

static void *cpu_take(struct device *dev, int64_t bytes)
{
    struct cpu *cpu = dev->state;
    collect_retired(dev, false);
    void *block = host_arena_take(&cpu->device, bytes);
    if (!block && cpu->retired) {
        collect_retired(dev, true);
        block = host_arena_take(&cpu->device, bytes);
    }
    return block;
}

static void cpu_give(struct device *dev, void *block, int64_t bytes)
{
    struct cpu *cpu = dev->state;
    if (host_arena_poisons())
        retire(dev, block, bytes);
    else
        host_arena_give(&cpu->device, block, bytes);
}

static void *cpu_host_take(struct device *dev, int64_t bytes)
{
    struct cpu *cpu = dev->state;
    void *block = host_arena_take(&cpu->host, bytes);
    if (block && dev->config.check_order)
        memset(block, 0xff, (size_t)bytes);
    return block;
}

static void cpu_host_give(struct device *dev, void *block, int64_t bytes)
{
    struct cpu *cpu = dev->state;
    host_arena_give(&cpu->host, block, bytes);
}

/* ---- operations, on a stream's worker -------------------------------------------------------- */

/* Books the direction for `bytes` that could begin at `ready_s`, and tells when they are through.
 */
static double book(struct engine *engine, int64_t bytes, double ready_s)
{
    pthread_mutex_lock(&engine->lock);
    double begin_s = engine->free_s > ready_s ? engine->free_s : ready_s;
    double end_s = begin_s + (double)bytes / engine->bytes_per_s;
    engine->free_s = end_s;
    pthread_mutex_unlock(&engine->lock);
    return end_s;
}

static bool is_paced(const struct cpu *cpu, const struct dev_operation *operation)
{
    return operation->kind == OP_COPY && operation->copy.direction != DEV_D2D &&
           cpu->engines[operation->copy.direction].bytes_per_s > 0;
}

/* A paced copy begins when it was enqueued and the stream was done with what came before, by its
 * pace: so the little that every sleep is late does not add up over a row of copies. */
static double run_copy(
    struct stream *stream, struct cpu *cpu, const struct dev_operation *operation)
{
    const struct cpu_stream *state = stream->state;
    int64_t bytes = operation->copy.bytes;
    double end_s = 0;
    if (is_paced(cpu, operation)) {
        double ready_s = operation->copy.enqueued_s;
        end_s = book(&cpu->engines[operation->copy.direction], bytes,
            ready_s > state->done_s ? ready_s : state->done_s);
    }
    pool_begin_work(cpu->team.pool);
    memcpy(operation->copy.to, operation->copy.from, (size_t)bytes);
    pool_end_work(cpu->team.pool);
    worker_sleep_until(stream, end_s);
    return end_s > 0 ? end_s : timing_now_s();
}

static void run_kernel(struct cpu *cpu, const struct dev_operation *operation)
{
    pool_begin_work(cpu->team.pool);
    operation->launch.kernel->cpu(operation->launch.args, &cpu->team);
    pool_end_work(cpu->team.pool);
}

static void run_fill(struct cpu *cpu, const struct dev_operation *operation)
{
    pool_begin_work(cpu->team.pool);
    memset(operation->fill.to, operation->fill.byte, (size_t)operation->fill.bytes);
    pool_end_work(cpu->team.pool);
}

static void add_span(
    const struct stream *stream, enum trace_kind kind, const char *name, double begin_s)
{
    struct trace_span span = {
        stream->dev->config.rank, kind, stream->name, name, begin_s, timing_now_s()};
    trace_add_span(stream->dev->config.trace, &span);
}

/* False when there was nothing to wait for. */
static bool wait_for(struct stream *stream, struct event event)
{
    struct worker *worker = worker_of(event.stream);
    if (worker_reached(worker, event.ticket))
        return false;
    double begin_s = timing_now_s();
    worker_reach(worker, event.ticket);
    add_span(stream, TRACE_WAIT, event.stream->name, begin_s);
    return true;
}

static void run_exchange(struct stream *stream, const struct dev_operation *operation)
{
    struct comm *comm = operation->exchange.comm;
    struct exchange *exchange = operation->exchange.exchange;
    const char *label = exchange->label;
    double begin_s = timing_now_s();
    comm->transport->exchange(comm, stream, exchange);
    add_span(stream, TRACE_MESSAGE, label, begin_s);
}

/* Carries out an operation and notes when it was done. */
static void run(struct stream *stream, const struct dev_operation *operation)
{
    static const char *const copy_names[] = {"h2d", "d2h", "d2d"};
    struct cpu *cpu = stream->dev->state;
    struct cpu_stream *state = stream->state;
    double begin_s = timing_now_s(), done_s = 0;
    switch (operation->kind) {
    case OP_LAUNCH:
        run_kernel(cpu, operation);
        add_span(stream, TRACE_KERNEL, operation->launch.kernel->name, begin_s);
        break;
    case OP_COPY:
        done_s = run_copy(stream, cpu, operation);
        add_span(stream, TRACE_COPY, copy_names[operation->copy.direction], begin_s);
        break;
    case OP_FILL:
        run_fill(cpu, operation);
        add_span(stream, TRACE_KERNEL, "fill", begin_s);
        break;
    case OP_BLANK:
        run_fill(cpu, operation);
        break;
    case OP_WAIT:
        if (!wait_for(stream, operation->wait))
            return;
        break;
    case OP_EXCHANGE:
        run_exchange(stream, operation);
        break;
    case OP_MEMORY:
        trace_add_memory(
            stream->dev->config.trace, stream->dev->config.rank, begin_s, &operation->memory);
        return;
    }
    state->done_s = done_s > 0 ? done_s : timing_now_s();
}

static void execute(struct stream *stream, struct dev_operation *operation)
{
    if (dev_status(stream->dev) == DEV_OK)
        run(stream, operation);
    else if (operation->kind == OP_EXCHANGE)
        exchange_free(operation->exchange.exchange);
}

/* ---- the backend ----------------------------------------------------------------------------- */

static void cpu_close(struct device *dev)
{
    struct cpu *cpu = dev->state;
    while (cpu->retired) {
        struct retired *first = cpu->retired;
        cpu->retired = first->next;
        free(first);
    }
    host_arena_close(&cpu->device);
    host_arena_close(&cpu->host);
    for (int i = 0; i < 2; i++)
        pthread_mutex_destroy(&cpu->engines[i].lock);
    free(cpu);
}

static enum dev_status cpu_open(struct device *dev, char *error, int size)
{
    const struct dev_config *config = &dev->config;
    if (!config->pool) {
        snprintf(error, (size_t)size, "the cpu device needs a pool of threads");
        return DEV_FAILED;
    }
    struct cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu) {
        snprintf(error, (size_t)size, "no memory for rank %d's device", config->rank);
        return DEV_FAILED;
    }
    dev->state = cpu;
    int width = config->kernel_threads;
    int threads = dev_pool_threads(config->pool);
    cpu->team = (struct dev_team){config->pool, width < threads ? width : threads};
    cpu->engines[DEV_H2D].bytes_per_s = config->h2d_bytes_per_s;
    cpu->engines[DEV_D2H].bytes_per_s = config->d2h_bytes_per_s;
    for (int i = 0; i < 2; i++)
        pthread_mutex_init(&cpu->engines[i].lock, NULL);
    if (host_arena_open(&cpu->device, config->device_limit_bytes) &&
        host_arena_open(&cpu->host, config->host_limit_bytes))
        return DEV_OK;
    cpu_close(dev);
    snprintf(error, (size_t)size, "no address space for the arenas of rank %d; use fewer ranks",
        config->rank);
    return DEV_OUT_OF_MEMORY;
}

static bool cpu_stream_open(struct stream *stream)
{
    struct cpu *cpu = stream->dev->state;
    struct cpu_stream *state = calloc(1, sizeof *state);
    if (!state)
        return false;
    state->worker = worker_create(stream, cpu->team.pool, execute);
    if (!state->worker) {
        free(state);
        return false;
    }
    stream->state = state;
    return true;
}

static void cpu_stream_close(struct stream *stream)
{
    worker_free(worker_of(stream));
    free(stream->state);
}

static bool cpu_enqueue(struct stream *stream, const struct dev_operation *operation)
{
    if (!is_paced(stream->dev->state, operation))
        return worker_enqueue(worker_of(stream), operation);
    struct dev_operation paced = *operation;
    paced.copy.enqueued_s = timing_now_s();
    return worker_enqueue(worker_of(stream), &paced);
}

static void cpu_reach(struct stream *stream, int64_t ticket)
{
    worker_reach(worker_of(stream), ticket);
}

static double cpu_clock_s(struct device *dev)
{
    (void)dev;
    return timing_now_s();
}

static void cpu_transfer(struct device *dev, void *to, const void *from, int64_t bytes)
{
    (void)dev;
    memcpy(to, from, (size_t)bytes);
}

static void cpu_fetch(
    struct stream *stream, void *to, const void *from, int64_t bytes, const void *simulated)
{
    (void)stream;
    (void)simulated;
    memcpy(to, from, (size_t)bytes);
}

const struct dev_backend backend_cpu = {
    .open = cpu_open,
    .close = cpu_close,
    .take = cpu_take,
    .give = cpu_give,
    .host_take = cpu_host_take,
    .host_give = cpu_host_give,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .enqueue = cpu_enqueue,
    .reach = cpu_reach,
    .clock_s = cpu_clock_s,
    .write = cpu_transfer,
    .read = cpu_transfer,
    .fetch = cpu_fetch,
    .transport = &transport_threads,
};
