/* A stream that is a thread of the host: operations are carried out one after the other, in the
 * order in which they were enqueued, by a function of the backend. Kernels are carried out while
 * the thread holds a token of the pool. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/backend.h"

struct worker;

/* NULL when memory is short. The thread starts with the first operation. */
struct worker *worker_create(struct stream *stream, struct dev_pool *pool,
    void (*execute)(struct stream *stream, struct dev_operation *operation));

/* Finishes what is enqueued, then ends the thread. */
void worker_free(struct worker *worker);

/* False when memory or threads are short. */
bool worker_enqueue(struct worker *worker, const struct dev_operation *operation);

bool worker_reached(const struct worker *worker, int64_t ticket);

/* Blocks the calling thread (the host's or another worker's) until the ticket is reached. */
void worker_reach(struct worker *worker, int64_t ticket);

/* On a stream's thread: sleeps until timing_now_s() is `time_s`, to some ten microseconds, or until
 * the stream's device has failed. */
void worker_sleep_until(const struct stream *stream, double time_s);
