/* What a trace holds; private to probe/trace*.c. */
#pragma once
#include <stdatomic.h>
#include "probe/trace.h"

struct trace_counter {
    int rank;
    double time_s;
    int64_t set_bytes[LIVE_SET_COUNT];
};

struct trace {
    atomic_flag busy;
    int fault; /* errno of the first event that could not be kept, 0 = none */
    int64_t lost;
    struct trace_span *spans;
    int64_t span_count, span_capacity;
    struct trace_counter *counters;
    int64_t counter_count, counter_capacity;
};

void trace_lock(const struct trace *t);
void trace_unlock(const struct trace *t);
