/* Between the simulated device (sim.c) and its transport (sim_comm.c). */
#pragma once
#include "device/host_arena.h"
#include "device/sim_clock.h"

struct sim {
    struct arena device;      /* addresses that nothing stands behind */
    struct host_arena host;   /* memory that costs something where the host writes to it */
    int machines;             /* dev_config.machines, at least 1 */
    struct sim_clock *clocks; /* [machines], owned; the first is the one that the device shows */
};

/* Adds a span of the first machine to the trace. */
void sim_trace(
    const struct stream *stream, enum trace_kind kind, const char *name, struct calendar_span span);

/* The stream's clocks stand at end_ps[machine] after the operation that is being enqueued, which
 * was work from begin_ps on the first machine. Fails the device when memory is short. */
void sim_finish(struct stream *stream, const int64_t *end_ps);
