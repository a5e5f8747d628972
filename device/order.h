/* Proves, from the program alone, that conflicting accesses of different streams are ordered by
 * events (check_order). A violation fails the device with a message that names both operations. */
#pragma once
#include <stdbool.h>
#include "device/backend.h"

struct order *order_create(void);
void order_free(struct order *order);

/* `stream` waits: what it enqueues from `ticket` (the wait's own) on comes after the event. */
void order_wait(struct device *dev, struct stream *stream, int64_t ticket, struct event event);

/* The host has waited for the event; for everything. */
void order_host_wait(struct device *dev, struct event event);
void order_host_wait_all(struct device *dev);

/* The operation `name` with this ticket touches the ranges, in blocks of `table`. False when the
 * device has failed over it. */
bool order_access(struct device *dev, struct block_table *table, struct stream *stream,
    int64_t ticket, const char *name, const struct dev_access *ranges, int count);

/* The block begins with the main stream's operation `ticket`. */
bool order_begin(struct device *dev, struct block *block, int64_t ticket);

/* The block ends: on the main stream now, or, pinned, on the host. False as above. */
bool order_end(struct device *dev, struct block *block);
bool order_end_host(struct device *dev, struct block *block);
