/* Vector clocks over the streams of one device.
 *
 * Every stream knows, for every other stream, up to which ticket that stream's operations come
 * before its own next one. Waiting for an event joins in what the event's stream knew at that
 * ticket, so the knowledge is kept as it grew (a history of steps). The host's waits count for all
 * streams, since what it enqueues later starts later.
 *
 * Every block keeps the accesses that a later one could still conflict with. Two accesses conflict
 * when they overlap and one of them writes; they are ordered when the later one's stream knows the
 * earlier one's ticket. A record is dropped once a newer access stands for it: one that comes after
 * it, covers its range, and conflicts with all it conflicts with. All this follows from the calls
 * alone, never from when something ran. */
#include "device/order.h"
#include <stdlib.h>
#include <string.h>

/* What comes before: per stream, the last ticket that does. */
struct order_clock {
    int64_t seen[DEV_STREAMS_MAX];
};

/* From `ticket` on, a stream knows `clock`. */
struct order_step {
    int64_t ticket;
    struct order_clock clock;
};

struct order_history {
    struct order_step *steps; /* by ticket; owned */
    int64_t count, capacity;
};

struct order {
    struct order_clock known[DEV_STREAMS_MAX]; /* what each stream knows now */
    struct order_clock host;
    struct order_history history[DEV_STREAMS_MAX];
};

struct order_record {
    int64_t begin, end; /* offsets in the block */
    const char *name;   /* of the operation */
    int64_t ticket;
    int stream;
    bool write;
    bool begins_block;
};

struct order *order_create(void)
{
    return calloc(1, sizeof(struct order));
}

void order_free(struct order *order)
{
    if (!order)
        return;
    for (int i = 0; i < DEV_STREAMS_MAX; i++)
        free(order->history[i].steps);
    free(order);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static void join(struct order_clock *clock, const struct order_clock *other)
{
    for (int i = 0; i < DEV_STREAMS_MAX; i++) {
        if (clock->seen[i] < other->seen[i])
            clock->seen[i] = other->seen[i];
    }
}

/* What comes before the point after `event.ticket`. */
static struct order_clock clock_at(const struct order *order, struct event event)
{
    const struct order_history *history = &order->history[event.stream->index];
    struct order_clock clock = {{0}};
    int64_t low = 0, high = history->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (history->steps[middle].ticket <= event.ticket)
            low = middle + 1;
        else
            high = middle;
    }
    if (low > 0)
        clock = history->steps[low - 1].clock;
    join(&clock, &order->host);
    if (clock.seen[event.stream->index] < event.ticket)
        clock.seen[event.stream->index] = event.ticket;
    return clock;
}

static bool remember_step(struct order_history *history, struct order_step step)
{
    if (history->count == history->capacity) {
        int64_t capacity = history->capacity ? 2 * history->capacity : 32;
        struct order_step *steps = realloc(history->steps, (size_t)capacity * sizeof *steps);
        if (!steps)
            return false;
        history->steps = steps;
        history->capacity = capacity;
    }
    history->steps[history->count++] = step;
    return true;
}

void order_wait(struct device *dev, struct stream *stream, int64_t ticket, struct event event)
{
    struct order *order = dev->order;
    struct order_clock *known = &order->known[stream->index];
    struct order_clock earlier = clock_at(order, event);
    join(known, &earlier);
    if (!remember_step(&order->history[stream->index], (struct order_step){ticket, *known}))
        dev_fail(dev, DEV_FAILED, "no memory for the order check");
}

void order_host_wait(struct device *dev, struct event event)
{
    struct order_clock earlier = clock_at(dev->order, event);
    join(&dev->order->host, &earlier);
}

/* Everything so far comes before everything later: nothing older needs to be kept. */
void order_host_wait_all(struct device *dev)
{
    struct order *order = dev->order;
    for (int i = 0; i < dev->stream_count; i++) {
        order->host.seen[i] = dev->streams[i]->last_ticket;
        order->history[i].count = 0;
    }
    const struct block_table *tables[] = {&dev->blocks, &dev->host_blocks};
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < tables[t]->count; i++)
            tables[t]->blocks[i]->record_count = 0;
    }
}

/* ---- accesses -------------------------------------------------------------------------------- */

static bool is_before(
    const struct order_record *record, int stream, const struct order_clock *clock)
{
    return record->stream == stream || record->ticket <= clock->seen[record->stream];
}

static bool conflicts(const struct order_record *a, const struct order_record *b)
{
    return (a->write || b->write) && a->begin < b->end && b->begin < a->end;
}

/* Whether what conflicts with `old` and comes after `new` needs no look at `old`. */
static bool stands_for(const struct order_record *new, const struct order_record *old)
{
    return (new->write || !old->write) && new->begin <= old->begin && old->end <= new->end;
}

static void report(struct device *dev, const struct block *block, const struct order_record *old,
    const struct order_record *new)
{
    const char *stream = dev->streams[new->stream]->name;
    if (old->begins_block)
        dev_fail(dev, DEV_FAILED,
            "'%s' on stream '%s' touches block '%s', but the stream has not waited for the main "
            "stream since the allocation",
            new->name, stream, block->label);
    else
        dev_fail(dev, DEV_FAILED,
            "'%s' on stream '%s' %s bytes %lld to %lld of block '%s', '%s' on stream '%s' %s bytes "
            "%lld to %lld, and no event orders them",
            new->name, stream, new->write ? "writes" : "reads", (long long)new->begin,
            (long long)new->end, block->label, old->name, dev->streams[old->stream]->name,
            old->write ? "writes" : "reads", (long long)old->begin, (long long)old->end);
}

static bool remember(struct device *dev, struct block *block, const struct order_record *record)
{
    if (block->record_count == block->record_capacity) {
        int capacity = block->record_capacity ? 2 * block->record_capacity : 8;
        struct order_record *records = realloc(block->records, (size_t)capacity * sizeof *records);
        if (!records) {
            dev_fail(dev, DEV_FAILED, "no memory for the order check");
            return false;
        }
        block->records = records;
        block->record_capacity = capacity;
    }
    block->records[block->record_count++] = *record;
    return true;
}

/* Checks a new access against the block's records, drops those it stands for, and keeps it. */
static bool add_record(struct device *dev, struct block *block, const struct order_clock *clock,
    const struct order_record *new)
{
    int kept = 0;
    for (int i = 0; i < block->record_count; i++) {
        const struct order_record *old = &block->records[i];
        bool before = is_before(old, new->stream, clock);
        if (!before && conflicts(old, new)) {
            report(dev, block, old, new);
            return false;
        }
        if (!(before && stands_for(new, old)))
            block->records[kept++] = *old;
    }
    block->record_count = kept;
    return remember(dev, block, new);
}

bool order_access(struct device *dev, struct block_table *table, struct stream *stream,
    int64_t ticket, const char *name, const struct dev_access *ranges, int count)
{
    struct order_clock clock = dev->order->known[stream->index];
    join(&clock, &dev->order->host);
    for (int i = 0; i < count; i++) {
        if (ranges[i].bytes <= 0)
            continue;
        struct block *block = dev_find_range(dev, table, ranges[i].from, ranges[i].bytes, name);
        if (!block)
            return false;
        int64_t begin = (const char *)ranges[i].from - block->address;
        struct order_record record = {.begin = begin,
            .end = begin + ranges[i].bytes,
            .name = name,
            .ticket = ticket,
            .stream = stream->index,
            .write = ranges[i].write};
        if (!add_record(dev, block, &clock, &record))
            return false;
    }
    return true;
}

bool order_begin(struct device *dev, struct block *block, int64_t ticket)
{
    struct order_record record = {.end = block->bytes,
        .name = "alloc",
        .ticket = ticket,
        .write = true,
        .begins_block = true};
    return remember(dev, block, &record);
}

/* Whether everything that touched the block comes before `clock`; `stream` is where it ends, -1 for
 * the host. */
static bool check_end(
    struct device *dev, struct block *block, int stream, const struct order_clock *clock)
{
    for (int i = 0; i < block->record_count; i++) {
        const struct order_record *record = &block->records[i];
        if (is_before(record, stream, clock))
            continue;
        dev_fail(dev, DEV_FAILED,
            "block '%s' is freed, but %s has not waited for '%s' on stream '%s', which %s it",
            block->label, stream < 0 ? "the host" : "the main stream", record->name,
            dev->streams[record->stream]->name, record->write ? "writes" : "reads");
        return false;
    }
    return true;
}

bool order_end(struct device *dev, struct block *block)
{
    struct order_clock clock = dev->order->known[0];
    join(&clock, &dev->order->host);
    return check_end(dev, block, 0, &clock);
}

bool order_end_host(struct device *dev, struct block *block)
{
    return check_end(dev, block, -1, &dev->order->host);
}
