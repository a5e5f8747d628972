/* Times a body on all ranks together.
 *
 * Every repetition: prepare (outside the clock), barrier, body, sync, finish (outside the clock).
 * The time of a repetition is the slowest rank's, from its own start after the barrier to its own
 * end. Ranks gather their times, so all of them see the same samples and decide alike to go on or
 * stop. */
#pragma once
#include "bench/harness/result.h"
#include "device/comm.h"
#include "probe/timing.h"

struct measure_body {
    /* Each returns 0, or -1 to give up; prepare and finish may be NULL. */
    int (*prepare)(void *context);
    int (*body)(void *context);
    int (*finish)(void *context);
    void *context;
    /* NULL, or where rank 0 puts the slowest rank's time on each machine of a simulated device. */
    struct case_result *machines;
};

/* Collective over the ranks of rank->comm. Fills *slowest (timing_free), which is the same on every
 * rank, and the median of this rank's own times. Returns 0, or -1 when a part of the body gave up,
 * the device failed, the group was aborted or memory was short (*slowest is empty then). After an
 * interrupt it stops with what it has, one sample at least; slowest->stop is TIMING_RUNNING then.
 */
int measure_ranks(const struct rank *rank, const struct timing_protocol *protocol,
    const struct measure_body *body, struct timing *slowest, double *own_median_s);

/* Which part of a forward and backward pass the clock runs for. */
enum measure_timed { TIME_NOTHING, TIME_FORWARD, TIME_BACKWARD, TIME_BOTH };

/* The passes of a family on one rank. Each returns 0, or -1 to give up. */
struct measure_passes {
    int (*prepare)(void *context); /* before each forward, outside the clock; may be NULL */
    int (*forward)(void *context);
    int (*backward)(void *context);
    int (*finish)(void *context); /* after each repetition, outside the clock */
    void *context;
};

/* Collective: repeats the passes as the protocol wants; forward runs outside the clock where
 * backward alone is timed. Sets the rank's time_s, and on rank 0 the result's time. As
 * measure_ranks. */
int measure_passes(const struct rank *rank, enum measure_timed timed,
    const struct timing_protocol *protocol, const struct measure_passes *passes,
    struct case_result *result);
