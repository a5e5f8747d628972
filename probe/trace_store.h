/* What a trace holds; private to probe/trace*.c. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include "probe/trace.h"

struct trace_counter {
    int rank;
    bool of_pool; /* else of the live sets */
    double time_s;
    union {
        int64_t set_bytes[LIVE_SET_COUNT];
        struct {
            int64_t used_bytes, kept_bytes;
        } pool;
    };
};

struct trace {
    atomic_flag busy;
    int fault; /* errno of the first event that could not be kept, 0 = none */
    int64_t lost;
    const char *memory_source; /* NULL: nothing to say */
    struct trace_span *spans;
    int64_t span_count, span_capacity;
    struct trace_counter *counters;
    int64_t counter_count, counter_capacity;
};

void trace_lock(const struct trace *t);
void trace_unlock(const struct trace *t);
