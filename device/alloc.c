/* Blocks of device and of pinned host memory: counted when the host asks for them, in program
 * order. */
#include <stdio.h>
#include "device/backend.h"
#include "device/order.h"

#define MESSAGE 256

/* The two arenas differ in where a block lives and in when it begins and ends. */
struct arena_side {
    struct mem_probe *probe;
    struct block_table *table;
    const char *name;
    void *(*take)(struct device *dev, int64_t bytes);
    void (*give)(struct device *dev, void *block, int64_t bytes);
};

static struct arena_side device_side(struct device *dev)
{
    return (struct arena_side){
        &dev->memory, &dev->blocks, "device memory", dev->backend->take, dev->backend->give};
}

static struct arena_side host_side(struct device *dev)
{
    return (struct arena_side){&dev->host_memory, &dev->host_blocks, "pinned host memory",
        dev->backend->host_take, dev->backend->host_give};
}

/* Puts the counters into the trace at the point of the main stream where they change. */
static void trace_memory(struct device *dev)
{
    if (!dev->config.trace)
        return;
    struct dev_operation operation = {.kind = OP_MEMORY, .memory = dev->memory};
    dev_submit(dev->streams[0], &operation);
}

static void fail_over_limit(struct device *dev, const struct arena_side *side)
{
    char arena[64], text[MESSAGE];
    snprintf(arena, sizeof arena, "%s of rank %d", side->name, dev->config.rank);
    mem_describe_failure(side->probe, arena, text, sizeof text);
    dev_fail(dev, DEV_OUT_OF_MEMORY, "%s", text);
}

static struct block *take_block(struct device *dev, const struct arena_side *side, int64_t bytes,
    enum live_set set, const char *label)
{
    if (bytes < 0) {
        dev_fail(
            dev, DEV_FAILED, "'%s' asks for %lld bytes of %s", label, (long long)bytes, side->name);
        return NULL;
    }
    if (!mem_add(side->probe, bytes, set, label)) {
        fail_over_limit(dev, side);
        return NULL;
    }
    void *address = side->take(dev, bytes);
    if (!address) {
        mem_sub(side->probe, bytes, set);
        dev_fail(dev, DEV_OUT_OF_MEMORY,
            "no room for '%s' (%s, %lld bytes) in the %s of rank %d, %lld bytes live", label,
            mem_live_set_name(set), (long long)bytes, side->name, dev->config.rank,
            (long long)side->probe->live_bytes);
        return NULL;
    }
    struct block *block = blocks_add(side->table, address, bytes, set, label);
    if (!block) {
        side->give(dev, address, bytes);
        mem_sub(side->probe, bytes, set);
        dev_fail(dev, DEV_FAILED, "no memory for the books of '%s'", label);
    }
    return block;
}

static void give_block(struct device *dev, const struct arena_side *side, struct block *block)
{
    mem_sub(side->probe, block->bytes, block->set);
    side->give(dev, block->address, block->bytes);
    blocks_remove(side->table, block);
}

/* The block that begins at `address`; NULL, and the device failed, when there is none. */
static struct block *block_to_free(
    struct device *dev, const struct arena_side *side, const void *address)
{
    struct block *block = blocks_find(side->table, address);
    if (block && block->address == address)
        return block;
    const char *gone = blocks_gone(side->table, address);
    if (block)
        dev_fail(dev, DEV_FAILED, "freeing an address inside block '%s'", block->label);
    else if (gone)
        dev_fail(dev, DEV_FAILED, "block '%s' is freed twice", gone);
    else
        dev_fail(dev, DEV_FAILED, "freeing %p, which is not a block of rank %d's %s", address,
            dev->config.rank, side->name);
    return NULL;
}

void *dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label)
{
    if (!dev_usable(dev))
        return NULL;
    struct arena_side side = device_side(dev);
    struct block *block = take_block(dev, &side, bytes, set, label);
    if (!block)
        return NULL;
    if (dev->order) {
        struct dev_operation operation = {
            .kind = OP_BLANK, .fill = {block->address, 0xff, block->bytes}};
        if (!order_begin(dev, block, dev->streams[0]->last_ticket + 1) ||
            !dev_submit(dev->streams[0], &operation))
            return NULL;
    }
    trace_memory(dev);
    return block->address;
}

void dev_free(struct device *dev, void *address)
{
    if (!dev_usable(dev) || !address)
        return;
    struct arena_side side = device_side(dev);
    struct block *block = block_to_free(dev, &side, address);
    if (!block || (dev->order && !order_end(dev, block)))
        return;
    give_block(dev, &side, block);
    trace_memory(dev);
}

void *dev_host_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label)
{
    if (!dev_usable(dev))
        return NULL;
    struct arena_side side = host_side(dev);
    struct block *block = take_block(dev, &side, bytes, set, label);
    return block ? block->address : NULL;
}

void dev_host_free(struct device *dev, void *address)
{
    if (!dev_usable(dev) || !address)
        return;
    struct arena_side side = host_side(dev);
    struct block *block = block_to_free(dev, &side, address);
    if (!block || (dev->order && !order_end_host(dev, block)))
        return;
    give_block(dev, &side, block);
}

struct mem_probe *dev_memory(struct device *dev)
{
    return &dev->memory;
}

struct mem_probe *dev_host_memory(struct device *dev)
{
    return &dev->host_memory;
}
