/* The clocks of one rank on one simulated machine (docs/SIMULATION.md): the host's, one for each
 * stream, and what each engine is booked for. The same program may run on several machines at once,
 * each with clocks of its own: nothing that a program does depends on them. */
#pragma once
#include "device/backend.h"
#include "device/calendar.h"
#include "device/profile.h"

/* What does one thing at a time. Where a profile says that a link is not duplex, its two directions
 * are one engine. */
enum sim_engine {
    SIM_ARITHMETIC,
    SIM_MEMORY, /* of the device */
    SIM_UP,     /* copies from the host */
    SIM_DOWN,   /* and to it */
    SIM_HOST_CORES,
    SIM_HOST_MEMORY,
    SIM_LINK_OUT,
    SIM_LINK_IN,
    SIM_NETWORK_OUT,
    SIM_NETWORK_IN,
    SIM_ENGINES
};

/* What an operation needs: after a delay that occupies nothing, some time of each engine, all of
 * which may run at once. */
struct sim_work {
    int64_t delay_ps;
    int64_t engine_ps[SIM_ENGINES];
};

/* A stream's clock, and what it was at each ticket that some wait could still ask for. */
struct sim_track {
    int64_t now_ps;
    int64_t first_ticket; /* of ends[0]; what is before has passed on the host */
    int64_t count, capacity;
    int64_t *ends_ps; /* owned */
};

struct sim_clock {
    struct profile profile;
    int64_t host_ps;
    struct sim_track tracks[DEV_STREAMS_MAX]; /* by stream */
    int stream_count;
    struct calendar engines[SIM_ENGINES];
};

void sim_clock_free(struct sim_clock *clock);

/* The longest time that there is, of clocks and of what is added to them: 11 days. */
#define SIM_LONGEST_PS INT64_C(1000000000000000000)

/* At most SIM_LONGEST_PS. */
int64_t sim_picoseconds(double seconds);

/* When the next operation of the stream can begin. */
int64_t sim_ready(const struct sim_clock *clock, int stream);

/* Books the work from ready_ps on. *out is from the beginning to the end; ends[] (may be NULL) says
 * for each engine when its part is done, 0 where it has none. False when memory is short. */
bool sim_book(struct sim_clock *clock, int64_t ready_ps, const struct sim_work *work,
    struct calendar_span *out, int64_t *ends);

/* The stream's operation `ticket` ends at end_ps. False when memory is short. */
bool sim_complete(struct sim_clock *clock, int stream, int64_t ticket, int64_t end_ps);

/* When a stream reached a ticket; 0 when the host has waited for it. */
int64_t sim_reached(const struct sim_clock *clock, int stream, int64_t ticket);

/* The host waits until `time_ps`. */
void sim_host_joins(struct sim_clock *clock, int64_t time_ps);

/* ---- what operations need (sim_cost.c) -------------------------------------------------------
 */
struct sim_work sim_kernel_work(
    const struct profile *profile, const struct kernel_cost *cost, bool on_host);
struct sim_work sim_copy_work(
    const struct profile *profile, enum dev_copy direction, int64_t bytes);
struct sim_work sim_fill_work(const struct profile *profile, int64_t bytes);

/* What a rank sends and receives in one exchange. */
struct sim_message_bytes {
    int64_t own;                     /* to itself */
    int64_t link_out, link_in;       /* ranks of its node */
    int64_t network_out, network_in; /* of others */
};
struct sim_work sim_message_work(
    const struct profile *profile, const struct sim_message_bytes *bytes);

/* An all-gather of the host's few bytes, or a barrier; far: not all ranks are on one node. */
int64_t sim_gather_ps(const struct profile *profile, int ranks, bool far, int64_t bytes);
