/* What every backend shares: the sticky failure, the life of a device, its streams and events. With
 * blocks.c, alloc.c, operations.c and order.c it is the common half of device.h: every call checks
 * its arguments, keeps the books and hands an operation to the backend. All of it runs on the
 * rank's host thread, in program order, so figures and faults depend on the program and never on
 * timing. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/backend.h"
#include "device/order.h"

#define MESSAGE 256

struct dev_fault {
    atomic_int status; /* set last: a reader that sees a failure sees its message */
    pthread_mutex_t lock;
    char message[MESSAGE];
    void (*notify)(void *context);
    void *notify_context;
};

/* ---- failure --------------------------------------------------------------------------------- */

enum dev_status dev_status(const struct device *dev)
{
    return (enum dev_status)atomic_load_explicit(&dev->fault->status, memory_order_acquire);
}

const char *dev_message(const struct device *dev)
{
    return dev_status(dev) == DEV_OK ? "" : dev->fault->message;
}

const struct dev_config *dev_config(const struct device *dev)
{
    return &dev->config;
}

void dev_fail(struct device *dev, enum dev_status status, const char *format, ...)
{
    struct dev_fault *fault = dev->fault;
    void (*notify)(void *context) = NULL;
    void *context = NULL;
    pthread_mutex_lock(&fault->lock);
    if (atomic_load_explicit(&fault->status, memory_order_relaxed) == DEV_OK) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(fault->message, sizeof fault->message, format, arguments);
        va_end(arguments);
        atomic_store_explicit(&fault->status, (int)status, memory_order_release);
        notify = fault->notify;
        context = fault->notify_context;
    }
    pthread_mutex_unlock(&fault->lock);
    if (notify)
        notify(context);
}

void dev_on_failure(struct device *dev, void (*notify)(void *context), void *context)
{
    struct dev_fault *fault = dev->fault;
    pthread_mutex_lock(&fault->lock);
    fault->notify = notify;
    fault->notify_context = context;
    bool late = atomic_load_explicit(&fault->status, memory_order_relaxed) != DEV_OK;
    pthread_mutex_unlock(&fault->lock);
    if (late && notify)
        notify(context);
}

bool dev_usable(const struct device *dev)
{
    return dev && dev_status(dev) == DEV_OK;
}

bool stream_usable(const struct stream *stream)
{
    return stream && dev_usable(stream->dev);
}

/* ---- open and close -------------------------------------------------------------------------- */

static const struct dev_backend *find_backend(enum dev_kind kind, char *error, int size)
{
    switch (kind) {
    case DEV_CPU:
        return &backend_cpu;
    case DEV_SIM:
        return &backend_sim;
    case DEV_CUDA:
        if (&backend_cuda)
            return &backend_cuda;
        snprintf(error, (size_t)size, "the cuda device is not part of this build (make CUDA=1)");
        return NULL;
    }
    snprintf(error, (size_t)size, "there is no device of kind %d", (int)kind);
    return NULL;
}

enum dev_status dev_facts(enum dev_kind kind, struct dev_facts *facts, char *error, int size)
{
    memset(facts, 0, sizeof *facts);
    const struct dev_backend *backend = find_backend(kind, error, size);
    if (!backend)
        return DEV_UNAVAILABLE;
    return backend->facts ? backend->facts(facts, error, size) : DEV_OK;
}

enum dev_status dev_place(
    enum dev_kind kind, int rank, struct dev_place *place, char *error, int size)
{
    memset(place, 0, sizeof *place);
    const struct dev_backend *backend = find_backend(kind, error, size);
    if (!backend)
        return DEV_UNAVAILABLE;
    return backend->place ? backend->place(rank, place, error, size) : DEV_OK;
}

static bool config_is_sound(const struct dev_config *config, char *error, int size)
{
    if (config->device_limit_bytes < 0 || config->host_limit_bytes < 0)
        snprintf(error, (size_t)size, "a memory limit of %lld bytes; allowed: 0 (none) and more",
            (long long)(config->device_limit_bytes < 0 ? config->device_limit_bytes
                                                       : config->host_limit_bytes));
    else if (!(config->h2d_bytes_per_s >= 0) || !(config->d2h_bytes_per_s >= 0))
        snprintf(error, (size_t)size, "a copy rate of %g bytes/s; allowed: 0 (unpaced) and more",
            config->h2d_bytes_per_s >= 0 ? config->d2h_bytes_per_s : config->h2d_bytes_per_s);
    else if (config->kernel_threads < 0)
        snprintf(error, (size_t)size, "%d threads for a kernel; allowed: 0 (all) and more",
            config->kernel_threads);
    else
        return true;
    return false;
}

static struct device *create_common(const struct dev_config *config)
{
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return NULL;
    dev->config = *config;
    if (!dev->config.kernel_threads)
        dev->config.kernel_threads = config->pool ? dev_pool_threads(config->pool) : 1;
    mem_init(&dev->memory, config->device_limit_bytes);
    mem_init(&dev->host_memory, config->host_limit_bytes);
    dev->fault = calloc(1, sizeof *dev->fault);
    dev->order = config->check_order ? order_create() : NULL;
    if (!dev->fault || (config->check_order && !dev->order)) {
        order_free(dev->order);
        free(dev->fault);
        free(dev);
        return NULL;
    }
    pthread_mutex_init(&dev->fault->lock, NULL);
    return dev;
}

static void destroy_common(struct device *dev)
{
    blocks_destroy(&dev->blocks);
    blocks_destroy(&dev->host_blocks);
    order_free(dev->order);
    pthread_mutex_destroy(&dev->fault->lock);
    free(dev->fault);
    free(dev);
}

static struct stream *open_stream(struct device *dev, const char *name)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->dev = dev;
    stream->name = name;
    stream->index = dev->stream_count;
    if (!dev->backend->stream_open(stream)) {
        free(stream);
        return NULL;
    }
    dev->streams[dev->stream_count++] = stream;
    return stream;
}

enum dev_status dev_open(
    const struct dev_config *config, struct device **out, char *error, int size)
{
    *out = NULL;
    const struct dev_backend *backend = find_backend(config->kind, error, size);
    if (!backend)
        return DEV_UNAVAILABLE;
    if (!config_is_sound(config, error, size))
        return DEV_FAILED;
    struct device *dev = create_common(config);
    if (!dev) {
        snprintf(error, (size_t)size, "no memory for the books of rank %d's device", config->rank);
        return DEV_FAILED;
    }
    dev->backend = backend;
    enum dev_status status = backend->open(dev, error, size);
    if (status != DEV_OK) {
        destroy_common(dev);
        return status;
    }
    if (!open_stream(dev, "main")) {
        if (dev_status(dev) != DEV_OK)
            snprintf(error, (size_t)size, "%s", dev_message(dev));
        else
            snprintf(error, (size_t)size, "no memory for rank %d's main stream", config->rank);
        backend->close(dev);
        destroy_common(dev);
        return DEV_FAILED;
    }
    *out = dev;
    return DEV_OK;
}

static void reach_all(struct device *dev)
{
    for (int i = 0; i < dev->stream_count; i++)
        dev->backend->reach(dev->streams[i], dev->streams[i]->last_ticket);
    if (dev->backend->settle)
        dev->backend->settle(dev);
    if (dev->order)
        order_host_wait_all(dev);
}

void dev_close(struct device *dev)
{
    if (!dev)
        return;
    reach_all(dev);
    for (int i = 0; i < dev->stream_count; i++) {
        dev->backend->stream_close(dev->streams[i]);
        free(dev->streams[i]);
    }
    dev->backend->close(dev);
    destroy_common(dev);
}

/* ---- handing over operations ----------------------------------------------------------------- */

bool dev_submit(struct stream *stream, struct dev_operation *operation)
{
    if (!stream_usable(stream))
        return false;
    operation->ticket = stream->last_ticket + 1;
    if (!stream->dev->backend->enqueue(stream, operation)) {
        dev_fail(stream->dev, DEV_FAILED, "no memory or threads for the queue of stream '%s'",
            stream->name);
        return false;
    }
    stream->last_ticket = operation->ticket;
    return true;
}

struct block *dev_find_range(struct device *dev, struct block_table *table, const void *from,
    int64_t bytes, const char *what)
{
    const char *memory = table == &dev->blocks ? "device" : "pinned host";
    struct block *block = blocks_find(table, from);
    if (!block) {
        const char *label = blocks_gone(table, from);
        if (label)
            dev_fail(dev, DEV_FAILED, "%s: %lld bytes in block '%s', which was freed", what,
                (long long)bytes, label);
        else
            dev_fail(dev, DEV_FAILED, "%s: %lld bytes at %p, which is not in a block of %s memory",
                what, (long long)bytes, from, memory);
        return NULL;
    }
    int64_t offset = (const char *)from - block->address;
    if (bytes > block->bytes - offset) {
        dev_fail(dev, DEV_FAILED, "%s: bytes %lld to %lld of block '%s', which has %lld", what,
            (long long)offset, (long long)(offset + bytes), block->label, (long long)block->bytes);
        return NULL;
    }
    return block;
}

/* ---- streams and events ---------------------------------------------------------------------- */

struct stream *dev_main_stream(struct device *dev)
{
    return dev ? dev->streams[0] : NULL;
}

struct stream *dev_stream(struct device *dev, const char *name)
{
    if (!dev_usable(dev))
        return NULL;
    if (dev->config.serial_streams)
        return dev->streams[0];
    for (int i = 0; i < dev->stream_count; i++) {
        if (!strcmp(dev->streams[i]->name, name))
            return dev->streams[i];
    }
    if (dev->stream_count == DEV_STREAMS_MAX) {
        dev_fail(dev, DEV_FAILED, "stream '%s' would be number %d; allowed: %d", name,
            dev->stream_count + 1, DEV_STREAMS_MAX);
        return NULL;
    }
    struct stream *stream = open_stream(dev, name);
    if (!stream)
        dev_fail(dev, DEV_FAILED, "no memory for stream '%s'", name);
    return stream;
}

struct device *stream_device(struct stream *stream)
{
    return stream ? stream->dev : NULL;
}

struct event dev_record(struct stream *stream)
{
    if (!stream)
        return (struct event){NULL, 0};
    if (stream->dev->backend->record)
        stream->dev->backend->record(stream);
    return (struct event){stream, stream->last_ticket};
}

void dev_wait(struct stream *stream, struct event event)
{
    if (!stream_usable(stream) || !event.stream || event.stream == stream)
        return;
    if (event.stream->dev != stream->dev) {
        dev_fail(stream->dev, DEV_FAILED, "stream '%s' of rank %d waits for rank %d's stream '%s'",
            stream->name, stream->dev->config.rank, event.stream->dev->config.rank,
            event.stream->name);
        return;
    }
    if (stream->dev->order)
        order_wait(stream->dev, stream, stream->last_ticket + 1, event);
    struct dev_operation operation = {.kind = OP_WAIT, .wait = event};
    dev_submit(stream, &operation);
}

void dev_wait_stream(struct stream *later, struct stream *earlier)
{
    dev_wait(later, dev_record(earlier));
}

void dev_sync_event(struct event event)
{
    if (!event.stream)
        return;
    struct device *dev = event.stream->dev;
    dev->backend->reach(event.stream, event.ticket);
    if (dev->order)
        order_host_wait(dev, event);
}

enum dev_status dev_sync(struct device *dev)
{
    reach_all(dev);
    return dev_status(dev);
}

void dev_phase(struct device *dev, const char *name)
{
    if (dev_usable(dev) && dev->backend->phase)
        dev->backend->phase(dev, name);
}

int64_t dev_driver_bytes(struct device *dev)
{
    return dev_usable(dev) && dev->backend->driver_bytes ? dev->backend->driver_bytes(dev) : -1;
}

double dev_clock_s(struct device *dev)
{
    reach_all(dev);
    return dev->backend->clock_s(dev);
}

double dev_clock_on_s(struct device *dev, int machine)
{
    if (!dev->backend->machine_clock_s)
        return dev_clock_s(dev);
    reach_all(dev);
    return dev->backend->machine_clock_s(dev, machine);
}

bool dev_is_simulated(const struct device *dev)
{
    return dev->config.kind == DEV_SIM;
}
