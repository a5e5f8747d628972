/* Spans and counters in two growing arrays, turned into JSON only when the file is written.
 *
 * Streams add a span after each piece of work, so adding must be cheap and safe from any thread.
 * The lock is held for the time of one store (or, every time an array doubles, of one copy); a flag
 * with a yield is enough for that and keeps this folder free of a threading library. What could not
 * be kept makes trace_write fail: a trace with holes would be believed. */
#include "probe/trace.h"
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "probe/trace_store.h"

/* Seconds beyond this (127 years) are a caller's mistake; below it, nanoseconds fit 63 bits. */
#define TIME_MAX_S 4e9
#define RANK_MAX (1 << 24)

struct trace *trace_create(void)
{
    struct trace *t = calloc(1, sizeof *t);
    if (t)
        atomic_flag_clear(&t->busy);
    return t;
}

void trace_free(struct trace *t)
{
    if (!t)
        return;
    free(t->spans);
    free(t->counters);
    free(t);
}

/* A trace comes from trace_create and is never a constant object; readers lock it too. */
void trace_lock(const struct trace *t)
{
    while (atomic_flag_test_and_set_explicit(&((struct trace *)t)->busy, memory_order_acquire))
        sched_yield();
}

void trace_unlock(const struct trace *t)
{
    atomic_flag_clear_explicit(&((struct trace *)t)->busy, memory_order_release);
}

/* Makes room for one more element. The array, or NULL when memory is short (the old one stays). */
static void *grown(void *array, int64_t count, int64_t *capacity, size_t element_bytes)
{
    if (count < *capacity)
        return array;
    int64_t larger = *capacity ? 2 * *capacity : 1024;
    void *moved = reallocarray(array, (size_t)larger, element_bytes);
    if (moved)
        *capacity = larger;
    return moved;
}

static void refuse(struct trace *t, int reason)
{
    if (!t->fault)
        t->fault = reason;
}

static bool is_time(double time_s)
{
    return fabs(time_s) <= TIME_MAX_S; /* false for a NaN */
}

static bool is_rank(int rank)
{
    return rank >= 0 && rank < RANK_MAX;
}

static bool is_span(const struct trace_span *span)
{
    return is_rank(span->rank) && span->kind >= 0 && span->kind < TRACE_KINDS && span->stream &&
           span->name && is_time(span->begin_s) && is_time(span->end_s) &&
           span->begin_s <= span->end_s;
}

static void keep_span(struct trace *t, const struct trace_span *span)
{
    struct trace_span *room = grown(t->spans, t->span_count, &t->span_capacity, sizeof *t->spans);
    if (!room) {
        refuse(t, ENOMEM);
        return;
    }
    t->spans = room;
    t->spans[t->span_count++] = *span;
}

static void keep_counter(struct trace *t, const struct trace_counter *counter)
{
    struct trace_counter *room =
        grown(t->counters, t->counter_count, &t->counter_capacity, sizeof *t->counters);
    if (!room) {
        refuse(t, ENOMEM);
        return;
    }
    t->counters = room;
    t->counters[t->counter_count++] = *counter;
}

void trace_add_span(struct trace *t, const struct trace_span *span)
{
    if (!t)
        return;
    trace_lock(t);
    if (is_span(span))
        keep_span(t, span);
    else
        refuse(t, EINVAL);
    trace_unlock(t);
}

static void add_counter(struct trace *t, const struct trace_counter *counter)
{
    trace_lock(t);
    if (is_rank(counter->rank) && is_time(counter->time_s))
        keep_counter(t, counter);
    else
        refuse(t, EINVAL);
    trace_unlock(t);
}

void trace_add_memory(struct trace *t, int rank, double time_s, const struct mem_probe *probe)
{
    if (!t)
        return;
    struct trace_counter counter = {.rank = rank, .time_s = time_s};
    memcpy(counter.set_bytes, probe->set_bytes, sizeof counter.set_bytes);
    add_counter(t, &counter);
}

void trace_add_pool(
    struct trace *t, int rank, double time_s, int64_t used_bytes, int64_t kept_bytes)
{
    struct trace_counter counter = {.rank = rank,
        .of_pool = true,
        .time_s = time_s,
        .pool = {.used_bytes = used_bytes, .kept_bytes = kept_bytes}};
    if (t)
        add_counter(t, &counter);
}

void trace_set_memory_source(struct trace *t, const char *source)
{
    if (!t)
        return;
    trace_lock(t);
    t->memory_source = source;
    trace_unlock(t);
}

void trace_add_lost(struct trace *t, int64_t count)
{
    if (!t)
        return;
    trace_lock(t);
    t->lost += count;
    trace_unlock(t);
}

int64_t trace_lost(const struct trace *t)
{
    if (!t)
        return 0;
    trace_lock(t);
    int64_t lost = t->lost;
    trace_unlock(t);
    return lost;
}

void trace_clear(struct trace *t)
{
    if (!t)
        return;
    trace_lock(t);
    t->span_count = 0;
    t->counter_count = 0;
    t->fault = 0;
    t->lost = 0;
    trace_unlock(t);
}

const struct trace_span *trace_spans(const struct trace *t, int64_t *count)
{
    *count = 0;
    if (!t)
        return NULL;
    trace_lock(t);
    const struct trace_span *spans = t->spans;
    *count = t->span_count;
    trace_unlock(t);
    return spans;
}
