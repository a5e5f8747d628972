/* Streams and events of a CUDA device. An event of device.h is a ticket; the ones that a program
 * takes get a CUDA event, kept until it has passed and then used again, so that an event costs its
 * owner nothing and may be waited for at any time.
 *
 * The host waits by looking again and again: an aborted group must end every wait, and a message
 * library's kernel that waits for a rank that is gone ends only when the host tells it to. */
#include "device/cuda_device.h"
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define PAUSES_AWAKE 4000 /* looks before the host sleeps in between: some milliseconds */
#define SLEEP_NS 50000

static struct cuda_stream *state_of(const struct stream *stream)
{
    return (struct cuda_stream *)stream->state;
}

bool cuda_stream_open(struct stream *stream)
{
    struct cuda_stream *state = (struct cuda_stream *)calloc(1, sizeof *state);
    if (!state)
        return false;
    if (!cuda_use(stream->dev) ||
        !CUDA_DO(stream->dev, cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking))) {
        free(state);
        return false;
    }
    stream->state = state;
    cuda_nvtx_name(stream);
    return true;
}

void cuda_stream_close(struct stream *stream)
{
    struct cuda_stream *state = state_of(stream);
    cuda_use(stream->dev);
    for (int i = 0; i < state->count; i++)
        CUDA_DO(stream->dev,
            cudaEventDestroy(state->marks[(state->first + i) % state->capacity].event));
    CUDA_DO(stream->dev, cudaStreamDestroy(state->stream));
    free(state->marks);
    free(state);
}

/* ---- marks ------------------------------------------------------------------------------------
 */

static struct cuda_mark *mark_at(const struct cuda_stream *state, int index)
{
    return &state->marks[(state->first + index) % state->capacity];
}

static bool take_event(struct device *dev, cudaEvent_t *event)
{
    struct cuda *cuda = cuda_of(dev);
    if (cuda->spare_count) {
        *event = cuda->spare_events[--cuda->spare_count];
        return true;
    }
    return CUDA_DO(dev, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
}

static void give_event(struct device *dev, cudaEvent_t event)
{
    struct cuda *cuda = cuda_of(dev);
    if (cuda->spare_count == cuda->spare_capacity) {
        int capacity = cuda->spare_capacity ? 2 * cuda->spare_capacity : 64;
        cudaEvent_t *events =
            (cudaEvent_t *)realloc(cuda->spare_events, (size_t)capacity * sizeof *events);
        if (!events) {
            CUDA_DO(dev, cudaEventDestroy(event));
            return;
        }
        cuda->spare_events = events;
        cuda->spare_capacity = capacity;
    }
    cuda->spare_events[cuda->spare_count++] = event;
}

/* The stream is known to be through with `ticket`. */
static void pass(struct stream *stream, int64_t ticket)
{
    struct cuda_stream *state = state_of(stream);
    if (state->reached < ticket)
        state->reached = ticket;
    while (state->count && mark_at(state, 0)->ticket <= state->reached) {
        give_event(stream->dev, mark_at(state, 0)->event);
        state->first = (state->first + 1) % state->capacity;
        state->count--;
    }
}

/* Notes which marks have passed. */
static void collect(struct stream *stream)
{
    struct cuda_stream *state = state_of(stream);
    while (state->count) {
        struct cuda_mark first = *mark_at(state, 0);
        cudaError_t error = cudaEventQuery(first.event);
        if (error == cudaErrorNotReady)
            return;
        if (!CUDA_DO(stream->dev, error))
            return;
        pass(stream, first.ticket);
    }
}

static bool make_room(struct cuda_stream *state)
{
    if (state->count < state->capacity)
        return true;
    int capacity = state->capacity ? 2 * state->capacity : 32;
    struct cuda_mark *marks = (struct cuda_mark *)malloc((size_t)capacity * sizeof *marks);
    if (!marks)
        return false;
    for (int i = 0; i < state->count; i++)
        marks[i] = *mark_at(state, i);
    free(state->marks);
    state->marks = marks;
    state->first = 0;
    state->capacity = capacity;
    return true;
}

void cuda_record(struct stream *stream)
{
    struct cuda_stream *state = state_of(stream);
    struct device *dev = stream->dev;
    int64_t ticket = stream->last_ticket;
    if (!dev_usable(dev) || !cuda_use(dev) || ticket <= state->reached ||
        (state->count && mark_at(state, state->count - 1)->ticket == ticket))
        return;
    collect(stream);
    struct cuda_mark mark = {ticket, NULL};
    if (!make_room(state)) {
        dev_fail(dev, DEV_FAILED, "no memory for an event of stream '%s'", stream->name);
        return;
    }
    if (!take_event(dev, &mark.event))
        return;
    state->marks[(state->first + state->count++) % state->capacity] = mark;
    CUDA_DO(dev, cudaEventRecord(mark.event, state->stream));
}

/* The first mark at or after the ticket, NULL: none. */
static const struct cuda_mark *find_mark(const struct cuda_stream *state, int64_t ticket)
{
    int low = 0, high = state->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (mark_at(state, middle)->ticket < ticket)
            low = middle + 1;
        else
            high = middle;
    }
    return low < state->count ? mark_at(state, low) : NULL;
}

void cuda_wait(struct stream *stream, struct event event)
{
    struct cuda_stream *other = state_of(event.stream);
    if (event.ticket <= other->reached)
        return;
    const struct cuda_mark *mark = find_mark(other, event.ticket);
    if (!mark) {
        dev_fail(stream->dev, DEV_FAILED,
            "stream '%s' waits for a point of '%s' that was not taken", stream->name,
            event.stream->name);
        return;
    }
    CUDA_DO(stream->dev, cudaStreamWaitEvent(state_of(stream)->stream, mark->event, 0));
}

/* ---- the host waits ---------------------------------------------------------------------------
 */

void cuda_pause(int *turn)
{
    const struct timespec sleep = {0, SLEEP_NS};
    if (++*turn < PAUSES_AWAKE)
        sched_yield();
    else
        nanosleep(&sleep, NULL);
}

bool cuda_poll(struct stream *stream, cudaEvent_t event)
{
    struct device *dev = stream->dev;
    struct cuda_stream *state = state_of(stream);
    int turn = 0;
    for (;;) {
        cudaError_t error = event ? cudaEventQuery(event) : cudaStreamQuery(state->stream);
        if (error != cudaErrorNotReady)
            return CUDA_DO(dev, error);
        for (struct cuda_watch *watch = cuda_of(dev)->watches; watch; watch = watch->next)
            watch->look(watch->context);
        cuda_pause(&turn);
    }
}

void cuda_settle(struct device *dev)
{
    for (struct cuda_watch *watch = cuda_of(dev)->watches; watch; watch = watch->next) {
        for (int turn = 0; dev_usable(dev) && watch->expects(watch->context); cuda_pause(&turn))
            watch->look(watch->context);
    }
    cuda_trace_settle(dev);
}

void cuda_reach(struct stream *stream, int64_t ticket)
{
    struct cuda_stream *state = state_of(stream);
    if (ticket <= state->reached || !cuda_use(stream->dev))
        return;
    const struct cuda_mark *found = ticket == stream->last_ticket ? NULL : find_mark(state, ticket);
    struct cuda_mark mark = found ? *found : (struct cuda_mark){stream->last_ticket, NULL};
    if (cuda_poll(stream, mark.event))
        pass(stream, mark.ticket);
}
