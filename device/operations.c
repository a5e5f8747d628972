/* Copies, fills and launches: each names the ranges it touches, is checked, and becomes one
 * operation. */
#include <stdio.h>
#include <string.h>
#include "device/backend.h"
#include "device/order.h"

static bool sound_bytes(struct device *dev, const char *what, int64_t bytes)
{
    if (bytes < 0)
        dev_fail(dev, DEV_FAILED, "%s of %lld bytes", what, (long long)bytes);
    return bytes > 0;
}

/* Checks one side of a copy: a live block, and under check_order an ordered access. */
static bool touch(
    struct stream *stream, struct block_table *table, const char *what, struct dev_access range)
{
    struct device *dev = stream->dev;
    if (!dev_find_range(dev, table, range.from, range.bytes, what))
        return false;
    return !dev->order ||
           order_access(dev, table, stream, stream->last_ticket + 1, what, &range, 1);
}

static void copy(
    struct stream *stream, enum dev_copy direction, void *to, const void *from, int64_t bytes)
{
    static const char *const names[] = {"h2d", "d2h", "d2d"};
    const char *name = names[direction];
    if (!stream_usable(stream) || !sound_bytes(stream->dev, name, bytes))
        return;
    struct device *dev = stream->dev;
    struct block_table *from_table = direction == DEV_H2D ? &dev->host_blocks : &dev->blocks;
    struct block_table *to_table = direction == DEV_D2H ? &dev->host_blocks : &dev->blocks;
    uintptr_t distance = (uintptr_t)to > (uintptr_t)from ? (uintptr_t)to - (uintptr_t)from
                                                         : (uintptr_t)from - (uintptr_t)to;
    if (distance < (uintptr_t)bytes) {
        dev_fail(dev, DEV_FAILED, "%s of %lld bytes between ranges that overlap", name,
            (long long)bytes);
        return;
    }
    if (!touch(stream, from_table, name, (struct dev_access){from, bytes, false}) ||
        !touch(stream, to_table, name, (struct dev_access){to, bytes, true}))
        return;
    struct dev_operation operation = {.kind = OP_COPY, .copy = {direction, to, from, bytes, 0}};
    dev_submit(stream, &operation);
}

void dev_copy_h2d(struct stream *stream, void *device_to, const void *host_from, int64_t bytes)
{
    copy(stream, DEV_H2D, device_to, host_from, bytes);
}

void dev_copy_d2h(struct stream *stream, void *host_to, const void *device_from, int64_t bytes)
{
    copy(stream, DEV_D2H, host_to, device_from, bytes);
}

void dev_copy_d2d(struct stream *stream, void *to, const void *from, int64_t bytes)
{
    copy(stream, DEV_D2D, to, from, bytes);
}

void dev_fill(struct stream *stream, void *to, int byte, int64_t bytes)
{
    if (!stream_usable(stream) || !sound_bytes(stream->dev, "fill", bytes) ||
        !touch(stream, &stream->dev->blocks, "fill", (struct dev_access){to, bytes, true}))
        return;
    struct dev_operation operation = {.kind = OP_FILL, .fill = {to, byte, bytes}};
    dev_submit(stream, &operation);
}

/* The arena that `address` lies in; the device's when in none. */
static struct block_table *table_of(struct device *dev, const void *address)
{
    return blocks_find(&dev->host_blocks, address) ? &dev->host_blocks : &dev->blocks;
}

void dev_write(struct device *dev, void *block_to, const void *host_from, int64_t bytes)
{
    if (!dev_usable(dev) || !sound_bytes(dev, "dev_write", bytes) ||
        !dev_find_range(dev, table_of(dev, block_to), block_to, bytes, "dev_write"))
        return;
    if (dev_sync(dev) == DEV_OK)
        dev->backend->write(dev, block_to, host_from, bytes);
}

void dev_read(struct device *dev, void *host_to, const void *block_from, int64_t bytes)
{
    if (!dev_usable(dev) || !sound_bytes(dev, "dev_read", bytes) ||
        !dev_find_range(dev, table_of(dev, block_from), block_from, bytes, "dev_read"))
        return;
    if (dev_sync(dev) == DEV_OK)
        dev->backend->read(dev, host_to, block_from, bytes);
}

void dev_fetch(struct stream *stream, void *host_to, const void *block_from, int64_t bytes,
    const void *simulated)
{
    if (!stream_usable(stream) || !sound_bytes(stream->dev, "dev_fetch", bytes))
        return;
    struct device *dev = stream->dev;
    if (bytes > DEV_FETCH_MAX) {
        dev_fail(dev, DEV_FAILED, "dev_fetch of %lld bytes; allowed: %d", (long long)bytes,
            DEV_FETCH_MAX);
        return;
    }
    struct block_table *table = table_of(dev, block_from);
    struct dev_access range = {block_from, bytes, false};
    if (!dev_find_range(dev, table, block_from, bytes, "fetch"))
        return;
    /* It enqueues nothing: it reads as the last operation of the stream does. */
    if (dev->order && !order_access(dev, table, stream, stream->last_ticket, "fetch", &range, 1))
        return;
    dev_sync_event(dev_record(stream));
    if (dev_usable(dev))
        dev->backend->fetch(stream, host_to, block_from, bytes, simulated);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Whether the launch's declared accesses are sound. */
static bool check_launch(
    struct stream *stream, struct block_table *table, const struct kernel *kernel, const void *args)
{
    struct device *dev = stream->dev;
    struct dev_access ranges[DEV_ACCESS_MAX];
    if (!kernel->access) {
        dev_fail(dev, DEV_FAILED, "kernel '%s' declares no accesses to check", kernel->name);
        return false;
    }
    int count = kernel->access(args, ranges);
    return order_access(dev, table, stream, stream->last_ticket + 1, kernel->name, ranges, count);
}

static void launch(struct stream *stream, const struct kernel *kernel, const void *args,
    size_t args_bytes, bool on_host)
{
    if (!stream_usable(stream))
        return;
    struct device *dev = stream->dev;
    if (args_bytes > DEV_ARGS_MAX) {
        dev_fail(dev, DEV_FAILED, "kernel '%s' has %zu bytes of arguments; allowed: %d",
            kernel->name, args_bytes, DEV_ARGS_MAX);
        return;
    }
    struct block_table *table = on_host ? &dev->host_blocks : &dev->blocks;
    if (dev->order && !check_launch(stream, table, kernel, args))
        return;
    struct dev_operation operation;
    operation.kind = OP_LAUNCH;
    operation.launch.kernel = kernel;
    operation.launch.on_host = on_host;
    memcpy(operation.launch.args, args, args_bytes);
    struct kernel_cost cost = {0};
    if (kernel->cost)
        kernel->cost(args, &cost);
    dev->flops += cost.flops;
    dev_submit(stream, &operation);
}

double dev_flops(const struct device *dev)
{
    return dev->flops;
}

void dev_launch(
    struct stream *stream, const struct kernel *kernel, const void *args, size_t args_bytes)
{
    launch(stream, kernel, args, args_bytes, false);
}

void dev_launch_host(
    struct stream *stream, const struct kernel *kernel, const void *args, size_t args_bytes)
{
    launch(stream, kernel, args, args_bytes, true);
}
