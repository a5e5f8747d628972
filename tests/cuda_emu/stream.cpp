/* Streams and events. An operation waits in its stream's queue until something asks for it: the
 * thread that synchronises runs what it waits for, and what that waits for, and nothing else. So
 * what is not ordered by a stream, an event or the host comes as late as it can (CUDA_EMU_STREAMS
 * late), as early (early), or at any time in between (random:SEED), the same way in every run of a
 * program whose calls come from one thread. */
#include <time.h>
#include <deque>
#include <thread>
#include <vector>
#include "tests/cuda_emu/memory.h"

std::mutex lock;
std::condition_variable changed;

enum operation_kind { WORK, HOST_FUNCTION, WAIT, RENDEZVOUS };

struct operation {
    enum operation_kind kind;
    std::function<void()> work;                      /* WORK and HOST_FUNCTION */
    std::shared_ptr<struct emulated_stream> awaited; /* WAIT: until this stream */
    uint64_t ticket;                                 /* has completed so many operations */
    std::shared_ptr<struct rendezvous> rendezvous;
};

struct emulated_stream {
    int device;
    bool blocking; /* ordered with the default stream */
    std::deque<struct operation> queue;
    uint64_t enqueued, completed; /* operations */
    bool visited;                 /* something is trying to move it */
    std::thread host_function;    /* the one at the head, while it runs */
    bool host_function_ended;
};

struct emulated_event {
    std::shared_ptr<struct emulated_stream> stream; /* NULL until it is recorded */
    uint64_t ticket;
    std::shared_ptr<double> time_s;
    bool timing;
};

typedef std::shared_ptr<struct emulated_stream> stream_pointer;

static std::vector<stream_pointer> streams; /* the default streams too, but not destroyed ones */
static std::vector<stream_pointer> default_streams;

static stream_pointer new_stream(int device, bool blocking)
{
    stream_pointer stream = std::make_shared<struct emulated_stream>();
    stream->device = device;
    stream->blocking = blocking;
    streams.push_back(stream);
    return stream;
}

static stream_pointer default_stream(int device)
{
    if (default_streams.empty())
        default_streams.resize((size_t)emulator_settings()->devices);
    stream_pointer *stream = &default_streams[(size_t)device];
    if (!*stream)
        *stream = new_stream(device, true);
    return *stream;
}

/* NULL when there is no such stream. */
static stream_pointer find_stream(cudaStream_t handle)
{
    if (!handle)
        return default_stream(current_device());
    for (const stream_pointer &stream : streams)
        if (stream.get() == handle)
            return stream;
    return NULL;
}

int device_of(cudaStream_t handle)
{
    stream_pointer stream = find_stream(handle);
    return stream ? stream->device : -1;
}

/* ---- progress -------------------------------------------------------------------------------- */

static void run_host_function(stream_pointer stream, std::function<void()> function)
{
    set_in_host_function(true);
    function();
    std::unique_lock<std::mutex> held(lock);
    stream->host_function_ended = true;
    changed.notify_all();
}

/* Starts the host function in a thread of its own, as CUDA does; true when it has ended. */
static bool host_function_is_over(const stream_pointer &stream)
{
    if (!stream->host_function.joinable()) {
        stream->host_function_ended = false;
        stream->host_function = std::thread(run_host_function, stream, stream->queue.front().work);
    }
    if (!stream->host_function_ended)
        return false;
    stream->host_function.join();
    return true;
}

static bool advance(const stream_pointer &stream);

static stream_pointer find_by_address(const struct emulated_stream *address)
{
    for (const stream_pointer &stream : streams)
        if (stream.get() == address)
            return stream;
    return NULL;
}

/* Whether the operation at the head is over, after this try; if not, *moved says whether what it
 * waits for got on. */
static bool try_head(const stream_pointer &stream, bool *moved)
{
    struct operation *head = &stream->queue.front();
    switch (head->kind) {
    case WORK:
        expose_device_memory(true);
        head->work();
        expose_device_memory(false);
        return true;
    case HOST_FUNCTION:
        return host_function_is_over(stream);
    case WAIT:
        if (head->awaited->completed >= head->ticket)
            return true;
        *moved = advance(head->awaited);
        return false;
    case RENDEZVOUS: {
        expose_device_memory(true);
        bool complete = head->rendezvous->complete();
        expose_device_memory(false);
        stream_pointer awaited = complete ? NULL : find_by_address(head->rendezvous->awaited());
        *moved = awaited && advance(awaited);
        return complete;
    }
    }
    return false;
}

/* Tries to get the stream on by an operation, or what its next one waits for; false when nothing
 * can move now. */
static bool advance(const stream_pointer &stream)
{
    if (stream->queue.empty() || stream->visited)
        return false;
    bool moved = false;
    stream->visited = true;
    bool over = try_head(stream, &moved);
    stream->visited = false;
    if (over) {
        stream->queue.pop_front();
        stream->completed++;
        changed.notify_all();
    }
    return over || moved;
}

static uint64_t *random_state(void)
{
    static uint64_t state = emulator_settings()->progress_seed;
    return &state;
}

static bool advance_any(void)
{
    size_t first = (size_t)random_below(random_state(), streams.size());
    for (size_t i = 0; i < streams.size(); i++) {
        stream_pointer stream = streams[(first + i) % streams.size()];
        if (advance(stream))
            return true;
    }
    return false;
}

/* Gets on towards an operation of the stream. */
static bool advance_towards(const stream_pointer &stream)
{
    return emulator_settings()->progress == PROGRESS_RANDOM ? advance_any() : advance(stream);
}

static void drain(std::unique_lock<std::mutex> *held, const stream_pointer &stream, uint64_t ticket)
{
    while (stream->completed < ticket)
        if (!advance_towards(stream))
            changed.wait(*held);
}

bool advance_stream(cudaStream_t handle)
{
    stream_pointer stream = find_stream(handle);
    return stream && advance_towards(stream);
}

void drain_device(std::unique_lock<std::mutex> *held, int device)
{
    std::vector<stream_pointer> all = streams;
    for (const stream_pointer &stream : all)
        if (stream->device == device)
            drain(held, stream, stream->enqueued);
}

void drain_default(std::unique_lock<std::mutex> *held, int device)
{
    stream_pointer stream = default_stream(device);
    drain(held, stream, stream->enqueued);
}

/* ---- enqueueing ------------------------------------------------------------------------------ */

/* How often in a row the thread was told that something is not ready. A program that looks now and
 * then goes on with what it does; one that only asks again waits, and what it waits for must come.
 */
static thread_local int refusals;
#define PATIENCE 4

static void push(const stream_pointer &stream, struct operation operation)
{
    stream->queue.push_back(std::move(operation));
    stream->enqueued++;
}

static void push_wait(const stream_pointer &stream, const stream_pointer &awaited, uint64_t ticket)
{
    push(stream, {WAIT, NULL, awaited, ticket, NULL});
}

/* The default stream's operations and those of blocking streams exclude one another. */
static void order_with_default(const stream_pointer &stream)
{
    stream_pointer standard = default_stream(stream->device);
    if (!stream->blocking)
        return;
    if (stream != standard) {
        push_wait(stream, standard, standard->enqueued);
        return;
    }
    for (const stream_pointer &other : streams)
        if (other->blocking && other != standard && other->device == stream->device)
            push_wait(stream, other, other->enqueued);
}

static cudaError_t enqueue(cudaStream_t handle, struct operation operation)
{
    stream_pointer stream = find_stream(handle);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    refusals = 0;
    order_with_default(stream);
    push(stream, std::move(operation));
    changed.notify_all();
    if (emulator_settings()->progress == PROGRESS_EARLY)
        while (advance(stream))
            continue;
    if (emulator_settings()->progress == PROGRESS_RANDOM)
        while (random_below(random_state(), 2) && advance_any())
            continue;
    return cudaSuccess;
}

cudaError_t enqueue_work(cudaStream_t stream, std::function<void()> work)
{
    return enqueue(stream, {WORK, std::move(work), NULL, 0, NULL});
}

cudaError_t enqueue_rendezvous(cudaStream_t stream, std::shared_ptr<struct rendezvous> meeting)
{
    return enqueue(stream, {RENDEZVOUS, NULL, NULL, 0, std::move(meeting)});
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (flags & ~cudaStreamNonBlocking)
        return remember(cudaErrorInvalidValue);
    *stream = new_stream(current_device(), !(flags & cudaStreamNonBlocking)).get();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return permitted();
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    std::unique_lock<std::mutex> held(lock);
    stream_pointer stream = find_stream(handle);
    if (!handle || !stream)
        return remember(cudaErrorInvalidResourceHandle);
    drain(&held, stream, stream->enqueued);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream)
            streams.erase(streams.begin() + (long)i);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    stream_pointer stream = find_stream(handle);
    if (!stream)
        return remember(cudaErrorInvalidResourceHandle);
    order_with_default(stream);
    drain(&held, stream, stream->enqueued);
    return cudaSuccess;
}

/* Whether the stream has completed so many operations; gets on towards them when the thread has
 * nothing to do but ask. */
static cudaError_t ask(const stream_pointer &stream, uint64_t ticket)
{
    if (refusals >= PATIENCE)
        while (stream->completed < ticket && advance_towards(stream))
            continue;
    if (stream->completed >= ticket)
        return cudaSuccess;
    refusals++;
    return cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    stream_pointer stream = find_stream(handle);
    if (!stream)
        return remember(cudaErrorInvalidResourceHandle);
    return ask(stream, stream->enqueued);
}

cudaError_t cudaDeviceSynchronize(void)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    drain_device(&held, current_device());
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    return remember(
        enqueue(stream, {HOST_FUNCTION, [function, data] { function(data); }, NULL, 0, NULL}));
}

/* ---- events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming))
        return remember(cudaErrorInvalidValue);
    *event = new emulated_event{NULL, 0, NULL, !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    std::unique_lock<std::mutex> held(lock);
    if (!event)
        return remember(cudaErrorInvalidResourceHandle);
    delete event;
    return cudaSuccess;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    stream_pointer stream = find_stream(handle);
    if (!stream || !event)
        return remember(cudaErrorInvalidResourceHandle);
    std::shared_ptr<double> time_s = std::make_shared<double>(0.0);
    cudaError_t error = enqueue_work(handle, [time_s] { *time_s = now_s(); });
    event->stream = stream;
    event->ticket = stream->enqueued;
    event->time_s = time_s;
    return remember(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (!event)
        return remember(cudaErrorInvalidResourceHandle);
    if (flags)
        return remember(cudaErrorInvalidValue);
    if (!event->stream)
        return cudaSuccess;
    return remember(enqueue(stream, {WAIT, NULL, event->stream, event->ticket, NULL}));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (!event)
        return remember(cudaErrorInvalidResourceHandle);
    stream_pointer stream = event->stream;
    if (stream)
        drain(&held, stream, event->ticket);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (!event)
        return remember(cudaErrorInvalidResourceHandle);
    return event->stream ? ask(event->stream, event->ticket) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    std::unique_lock<std::mutex> held(lock);
    if (!from || !to || !from->stream || !to->stream || !from->timing || !to->timing)
        return remember(cudaErrorInvalidResourceHandle);
    if (from->stream->completed < from->ticket || to->stream->completed < to->ticket)
        return cudaErrorNotReady;
    *milliseconds = (float)((*to->time_s - *from->time_s) * 1e3);
    return cudaSuccess;
}
