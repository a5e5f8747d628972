/* A device that computes nothing: it keeps the books and the clocks (docs/SIMULATION.md).
 *
 * Everything happens on the rank's host thread while an operation is enqueued: its begin and end on
 * every machine follow at once from what was enqueued before. No time depends on threads, so that a
 * run gives the same figures always and everywhere. Memory is counted by the common half, in the
 * same calls as on any device; behind a device address there is nothing, behind a pinned one a page
 * as soon as the host writes to it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "device/sim.h"
#include "device/transport.h"

/* Device addresses begin where no process has memory, so that one that is used by mistake faults.
 * Room for any number of bytes that a count can hold without overflow. */
#define ADDRESSES_BEGIN ((uintptr_t)1 << 62)
#define ADDRESSES_BYTES (INT64_C(1) << 61)

/* A pinned block that the host has written to and freed keeps its memory for the next one, unless
 * it is larger than this: then it is a mapping by itself, whose address space costs nothing, also
 * where a sanitizer marks what an arena has free. */
#define KEPT_BYTES (INT64_C(16) << 20)

/* ---- memory ---------------------------------------------------------------------------------- */

static void *sim_take(struct device *dev, int64_t bytes)
{
    struct sim *sim = dev->state;
    return (void *)arena_take(&sim->device, bytes);
}

static void sim_give(struct device *dev, void *block, int64_t bytes)
{
    struct sim *sim = dev->state;
    arena_give(&sim->device, (uintptr_t)block, bytes);
}

static void *map_large(int64_t bytes)
{
    void *block = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED)
        return NULL;
    madvise(block, (size_t)bytes, MADV_NOHUGEPAGE); /* not offered: fine */
    return block;
}

static void *sim_host_take(struct device *dev, int64_t bytes)
{
    struct sim *sim = dev->state;
    return bytes > KEPT_BYTES ? map_large(bytes) : host_arena_take(&sim->host, bytes);
}

static void sim_host_give(struct device *dev, void *block, int64_t bytes)
{
    struct sim *sim = dev->state;
    if (bytes > KEPT_BYTES)
        munmap(block, (size_t)bytes);
    else
        host_arena_give(&sim->host, block, bytes);
}

/* What was left allocated and is no part of the arena. */
static void unmap_large(const struct device *dev)
{
    for (int i = 0; i < dev->host_blocks.count; i++) {
        const struct block *block = dev->host_blocks.blocks[i];
        if (block->bytes > KEPT_BYTES)
            munmap(block->address, (size_t)block->bytes);
    }
}

/* ---- clocks ---------------------------------------------------------------------------------- */

void sim_trace(
    const struct stream *stream, enum trace_kind kind, const char *name, struct calendar_span span)
{
    const struct dev_config *config = &stream->dev->config;
    struct trace_span traced = {config->rank, kind, stream->name, name,
        (double)span.begin_ps * 1e-12, (double)span.end_ps * 1e-12};
    trace_add_span(config->trace, &traced);
}

static void fail_for_memory(struct stream *stream)
{
    dev_fail(stream->dev, DEV_FAILED, "no memory for the clock of stream '%s'", stream->name);
}

void sim_finish(struct stream *stream, const int64_t *end_ps)
{
    struct sim *sim = stream->dev->state;
    int64_t ticket = stream->last_ticket + 1;
    for (int m = 0; m < sim->machines; m++) {
        if (!sim_complete(&sim->clocks[m], stream->index, ticket, end_ps[m]))
            fail_for_memory(stream);
        if (end_ps[m] > SIM_LONGEST_PS)
            dev_fail(stream->dev, DEV_FAILED,
                "the simulated time of stream '%s' passes 10^6 s: the machine's rates are too low",
                stream->name);
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

/* cost: of a launch. */
static struct sim_work work_of(const struct profile *profile, const struct dev_operation *operation,
    const struct kernel_cost *cost)
{
    switch (operation->kind) {
    case OP_LAUNCH:
        return sim_kernel_work(profile, cost, operation->launch.on_host);
    case OP_COPY:
        return sim_copy_work(profile, operation->copy.direction, operation->copy.bytes);
    default:
        return sim_fill_work(profile, operation->fill.bytes);
    }
}

static void trace_work(
    const struct stream *stream, const struct dev_operation *operation, struct calendar_span span)
{
    static const char *const copy_names[] = {"h2d", "d2h", "d2d"};
    if (operation->kind == OP_LAUNCH)
        sim_trace(stream, TRACE_KERNEL, operation->launch.kernel->name, span);
    else if (operation->kind == OP_COPY)
        sim_trace(stream, TRACE_COPY, copy_names[operation->copy.direction], span);
    else
        sim_trace(stream, TRACE_KERNEL, "fill", span);
}

/* A kernel, a copy or a fill. */
static void work(struct stream *stream, const struct dev_operation *operation)
{
    struct sim *sim = stream->dev->state;
    int64_t end_ps[DEV_MACHINES_MAX];
    struct kernel_cost cost = {0};
    if (operation->kind == OP_LAUNCH && !operation->launch.kernel->cost) {
        dev_fail(stream->dev, DEV_FAILED, "kernel '%s' declares no cost to simulate",
            operation->launch.kernel->name);
        return;
    }
    if (operation->kind == OP_LAUNCH)
        operation->launch.kernel->cost(operation->launch.args, &cost);
    for (int m = 0; m < sim->machines; m++) {
        struct sim_clock *clock = &sim->clocks[m];
        struct sim_work needed = work_of(&clock->profile, operation, &cost);
        struct calendar_span span;
        if (!sim_book(clock, sim_ready(clock, stream->index), &needed, &span, NULL)) {
            fail_for_memory(stream);
            return;
        }
        end_ps[m] = span.end_ps;
        if (m == 0)
            trace_work(stream, operation, span);
    }
    sim_finish(stream, end_ps);
}

/* Lets the stream's clocks stand where they are, or where the waited stream's were at the event. */
static void pass(struct stream *stream, const struct event *waited)
{
    struct sim *sim = stream->dev->state;
    int64_t end_ps[DEV_MACHINES_MAX];
    for (int m = 0; m < sim->machines; m++) {
        const struct sim_clock *clock = &sim->clocks[m];
        int64_t ready_ps = sim_ready(clock, stream->index);
        int64_t reached_ps = waited ? sim_reached(clock, waited->stream->index, waited->ticket) : 0;
        end_ps[m] = reached_ps > ready_ps ? reached_ps : ready_ps;
        if (m == 0 && end_ps[m] > ready_ps)
            sim_trace(stream, TRACE_WAIT, waited->stream->name,
                (struct calendar_span){ready_ps, end_ps[m]});
    }
    sim_finish(stream, end_ps);
}

static void trace_memory(struct stream *stream, const struct mem_probe *memory)
{
    const struct dev_config *config = &stream->dev->config;
    const struct sim *sim = stream->dev->state;
    trace_add_memory(config->trace, config->rank,
        (double)sim_ready(&sim->clocks[0], stream->index) * 1e-12, memory);
}

static bool sim_enqueue(struct stream *stream, const struct dev_operation *operation)
{
    struct comm *comm;
    switch (operation->kind) {
    case OP_LAUNCH:
    case OP_COPY:
    case OP_FILL:
        work(stream, operation);
        break;
    case OP_WAIT:
        pass(stream, &operation->wait);
        break;
    case OP_EXCHANGE:
        comm = operation->exchange.comm;
        comm->transport->exchange(comm, stream, operation->exchange.exchange);
        break;
    case OP_MEMORY:
        trace_memory(stream, &operation->memory);
        pass(stream, NULL);
        break;
    case OP_BLANK:
        pass(stream, NULL);
        break;
    }
    return true;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static void sim_close(struct device *dev)
{
    struct sim *sim = dev->state;
    unmap_large(dev);
    for (int m = 0; m < sim->machines; m++)
        sim_clock_free(&sim->clocks[m]);
    free(sim->clocks);
    arena_destroy(&sim->device);
    host_arena_close(&sim->host);
    free(sim);
}

/* What no option limits is limited by the machine: the device's memory less what is reserved, and
 * the rank's share of the host's. */
static void take_limits(struct device *dev, const struct profile *profile)
{
    if (!dev->memory.limit_bytes)
        dev->memory.limit_bytes = profile_device_bytes(profile);
    if (!dev->host_memory.limit_bytes)
        dev->host_memory.limit_bytes = profile_host_bytes(profile);
}

static bool open_clocks(struct sim *sim, const struct profile *profiles, int machines)
{
    sim->clocks = calloc((size_t)machines, sizeof *sim->clocks);
    if (!sim->clocks)
        return false;
    sim->machines = machines;
    for (int m = 0; m < machines; m++) {
        sim->clocks[m].profile = profiles[m];
        for (int i = 0; i < DEV_STREAMS_MAX; i++)
            sim->clocks[m].tracks[i].first_ticket = 1;
    }
    return true;
}

static enum dev_status sim_open(struct device *dev, char *error, int size)
{
    const struct dev_config *config = &dev->config;
    int machines = config->machines ? config->machines : 1;
    if (!config->profiles || machines < 0 || machines > DEV_MACHINES_MAX) {
        snprintf(error, (size_t)size,
            "the simulated device runs on 1 to %d machines, and has the profiles of %d",
            DEV_MACHINES_MAX, config->profiles ? machines : 0);
        return DEV_FAILED;
    }
    if (config->h2d_bytes_per_s > 0 || config->d2h_bytes_per_s > 0) {
        snprintf(error, (size_t)size,
            "the simulated device takes its rates from its profile and cannot be paced");
        return DEV_FAILED;
    }
    struct sim *sim = dev->state = calloc(1, sizeof *sim);
    if (!sim || !open_clocks(sim, config->profiles, machines)) {
        free(sim);
        snprintf(error, (size_t)size, "no memory for rank %d's clocks", config->rank);
        return DEV_FAILED;
    }
    take_limits(dev, config->profiles);
    if (arena_init(&sim->device, ADDRESSES_BEGIN, ADDRESSES_BYTES, 0) &&
        host_arena_open(&sim->host, dev->host_memory.limit_bytes)) {
        host_arena_small_pages(&sim->host);
        return DEV_OK;
    }
    sim_close(dev);
    snprintf(error, (size_t)size, "no address space for the arenas of rank %d; use fewer ranks",
        config->rank);
    return DEV_OUT_OF_MEMORY;
}

static bool sim_stream_open(struct stream *stream)
{
    struct sim *sim = stream->dev->state;
    for (int m = 0; m < sim->machines; m++)
        sim->clocks[m].stream_count = stream->index + 1;
    return true;
}

static void sim_stream_close(struct stream *stream)
{
    (void)stream; /* its clock goes with the device */
}

static void sim_reach(struct stream *stream, int64_t ticket)
{
    struct sim *sim = stream->dev->state;
    for (int m = 0; m < sim->machines; m++)
        sim_host_joins(&sim->clocks[m], sim_reached(&sim->clocks[m], stream->index, ticket));
}

static double sim_machine_clock_s(struct device *dev, int machine)
{
    const struct sim *sim = dev->state;
    return (double)sim->clocks[machine < sim->machines ? machine : 0].host_ps * 1e-12;
}

static double sim_clock_s(struct device *dev)
{
    return sim_machine_clock_s(dev, 0);
}

static void sim_write(struct device *dev, void *to, const void *from, int64_t bytes)
{
    (void)dev;
    (void)to;
    (void)from;
    (void)bytes;
}

static void sim_read(struct device *dev, void *to, const void *from, int64_t bytes)
{
    (void)dev;
    (void)from;
    memset(to, 0, (size_t)bytes);
}

/* A small copy that the host waits for, unless the value is the host's already. */
static void sim_fetch(
    struct stream *stream, void *to, const void *from, int64_t bytes, const void *simulated)
{
    struct device *dev = stream->dev;
    struct sim *sim = dev->state;
    bool on_host = blocks_find(&dev->host_blocks, from) != NULL;
    for (int m = 0; m < sim->machines && !on_host; m++) {
        struct sim_clock *clock = &sim->clocks[m];
        struct sim_work needed = sim_copy_work(&clock->profile, DEV_D2H, bytes);
        struct calendar_span span;
        if (!sim_book(clock, sim_ready(clock, stream->index), &needed, &span, NULL)) {
            fail_for_memory(stream);
            return;
        }
        sim_host_joins(clock, span.end_ps);
    }
    memcpy(to, simulated, (size_t)bytes);
}

const struct dev_backend backend_sim = {
    .open = sim_open,
    .close = sim_close,
    .take = sim_take,
    .give = sim_give,
    .host_take = sim_host_take,
    .host_give = sim_host_give,
    .stream_open = sim_stream_open,
    .stream_close = sim_stream_close,
    .enqueue = sim_enqueue,
    .reach = sim_reach,
    .clock_s = sim_clock_s,
    .machine_clock_s = sim_machine_clock_s,
    .write = sim_write,
    .read = sim_read,
    .fetch = sim_fetch,
    .transport = &transport_sim,
};
