/* Booking and waiting.
 *
 * Operations are met in the order in which the host enqueues them, and each takes of every engine
 * that it needs whatever is free from its ready time on: it may be interrupted by what was enqueued
 * before, and never moves it. So an operation that waits for a message holds up only what waits for
 * it, as on a GPU, and yet all times are known the moment an operation is enqueued. */
#include "device/sim_clock.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void sim_clock_free(struct sim_clock *clock)
{
    for (int i = 0; i < DEV_STREAMS_MAX; i++)
        free(clock->tracks[i].ends_ps);
    for (int i = 0; i < SIM_ENGINES; i++)
        calendar_free(&clock->engines[i]);
    *clock = (struct sim_clock){0};
}

int64_t sim_picoseconds(double seconds)
{
    double picoseconds = seconds * 1e12;
    return picoseconds < (double)SIM_LONGEST_PS ? (int64_t)llround(picoseconds) : SIM_LONGEST_PS;
}

int64_t sim_ready(const struct sim_clock *clock, int stream)
{
    int64_t now_ps = clock->tracks[stream].now_ps;
    return now_ps > clock->host_ps ? now_ps : clock->host_ps;
}

/* Nothing becomes ready before this any more. */
static int64_t past_ps(const struct sim_clock *clock)
{
    int64_t past = INT64_MAX;
    for (int i = 0; i < clock->stream_count; i++)
        past = clock->tracks[i].now_ps < past ? clock->tracks[i].now_ps : past;
    return past > clock->host_ps && clock->stream_count ? past : clock->host_ps;
}

static enum sim_engine engine_of(const struct profile *profile, int engine)
{
    bool back = engine == SIM_DOWN || engine == SIM_LINK_IN || engine == SIM_NETWORK_IN;
    bool duplex = engine == SIM_DOWN ? profile->host_link_duplex : profile->link_duplex;
    return (enum sim_engine)(back && !duplex ? engine - 1 : engine);
}

bool sim_book(struct sim_clock *clock, int64_t ready_ps, const struct sim_work *work,
    struct calendar_span *out, int64_t *ends)
{
    int64_t past = past_ps(clock);
    *out = (struct calendar_span){ready_ps, ready_ps + work->delay_ps};
    for (int e = 0; e < SIM_ENGINES; e++) {
        struct calendar_span span = {0, 0};
        if (work->engine_ps[e] > 0 &&
            !calendar_book(&clock->engines[engine_of(&clock->profile, e)],
                ready_ps + work->delay_ps, work->engine_ps[e], past, &span))
            return false;
        if (ends)
            ends[e] = span.end_ps;
        if (span.end_ps > out->end_ps)
            out->end_ps = span.end_ps;
    }
    return true;
}

bool sim_complete(struct sim_clock *clock, int stream, int64_t ticket, int64_t end_ps)
{
    struct sim_track *track = &clock->tracks[stream];
    int64_t at = ticket - track->first_ticket;
    if (at >= track->capacity) {
        int64_t capacity = 2 * at + 16;
        int64_t *ends = realloc(track->ends_ps, (size_t)capacity * sizeof *ends);
        if (!ends)
            return false;
        track->ends_ps = ends;
        track->capacity = capacity;
    }
    track->ends_ps[at] = end_ps;
    track->count = at + 1;
    track->now_ps = end_ps;
    return true;
}

int64_t sim_reached(const struct sim_clock *clock, int stream, int64_t ticket)
{
    const struct sim_track *track = &clock->tracks[stream];
    int64_t at = ticket - track->first_ticket;
    if (at < 0)
        return 0;
    return at < track->count ? track->ends_ps[at] : track->now_ps; /* dropped after a failure */
}

void sim_host_joins(struct sim_clock *clock, int64_t time_ps)
{
    if (clock->host_ps < time_ps)
        clock->host_ps = time_ps;
    for (int i = 0; i < clock->stream_count; i++) {
        struct sim_track *track = &clock->tracks[i];
        if (track->now_ps > clock->host_ps)
            continue;
        track->first_ticket += track->count; /* all of its tickets have passed */
        track->count = 0;
    }
}
