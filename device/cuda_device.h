/* The inside of a CUDA device, for device/cuda*.cu and device/nccl.cu.
 *
 * Everything here is called by the rank's host thread unless said otherwise. */
#pragma once
#include <pthread.h>
#include <cuda_runtime.h>
extern "C" {
#include "device/backend.h"
#include "device/board.h"
#include "device/host_side.h"
#include "device/launch.h"
#include "device/pool.h"
#include "device/transport.h"
#include "probe/timing.h"
}

struct cuda_trace;

/* A point of a stream that CUDA can wait for. */
struct cuda_mark {
    int64_t ticket;
    cudaEvent_t event;
};

struct cuda_stream {
    cudaStream_t stream;
    struct cuda_mark *marks; /* a ring, tickets ascending: marks[first .. first + count - 1] */
    int first, count, capacity;
    int64_t reached; /* the latest ticket known to be complete */
};

/* A pinned block that is free, to be handed out again. */
struct cuda_pinned {
    struct cuda_pinned *next;
    void *block;
    int64_t bytes;
};

/* What is asked again and again while the host waits for this device: a communicator whose failure
 * no stream tells of. */
struct cuda_watch {
    struct cuda_watch *next;
    void *context;
    void (*look)(void *context);
    /* Whether there is something left to look for when all streams are done. */
    bool (*expects)(const void *context);
};

struct cuda {
    int ordinal; /* which GPU */
    cudaMemPool_t pool;
    int64_t free_at_open_bytes; /* of the GPU */
    struct cuda_pinned *pinned;
    cudaEvent_t *spare_events; /* owned, like the array */
    int spare_count, spare_capacity;
    void *bounce; /* DEV_FETCH_MAX pinned bytes */
    struct dev_team team;
    struct cuda_watch *watches;
    struct cuda_trace *trace; /* NULL: nothing is traced so far */
    bool in_phase;
    uint64_t counters[LIVE_SET_COUNT]; /* NVTX's, by live set; 0: not made so far */
    int64_t counted_bytes[LIVE_SET_COUNT];
};

static inline struct cuda *cuda_of(const struct device *dev)
{
    return (struct cuda *)dev->state;
}

static inline cudaStream_t cuda_handle(const struct stream *stream)
{
    return ((const struct cuda_stream *)stream->state)->stream;
}

/* ---- errors (cuda_error.cu) -------------------------------------------------------------------
 */

/* True when the call went well. Otherwise the device fails, with the call, the file and the line.
 * CUDA's errors are sticky: after one that broke the context every later call returns it, and the
 * device's first message is the one that counts. */
bool cuda_check(
    struct device *dev, cudaError_t error, const char *call, const char *file, int line);
#define CUDA_DO(dev, call) cuda_check(dev, call, #call, __FILE__, __LINE__)

/* "no CUDA-capable device is detected (cudaErrorNoDevice) from cudaGetDeviceCount(&count)". */
void cuda_describe(cudaError_t error, const char *call, char *text, int size);

/* How many GPUs there are. DEV_UNAVAILABLE, and `error` says why, when there is none. */
enum dev_status cuda_count(int *count, char *error, int size);

/* dev_facts and dev_place (cuda_facts.cu). */
enum dev_status cuda_facts(struct dev_facts *facts, char *error, int size);
enum dev_status cuda_place(int rank, struct dev_place *place, char *error, int size);

/* Makes the device's GPU the calling thread's. */
bool cuda_use(struct device *dev);

/* ---- memory (cuda_memory.cu) ------------------------------------------------------------------
 */

bool cuda_memory_open(struct device *dev);
void cuda_memory_close(struct device *dev); /* streams are closed */
void *cuda_take(struct device *dev, int64_t bytes);
void cuda_give(struct device *dev, void *block, int64_t bytes);
void *cuda_host_take(struct device *dev, int64_t bytes);
void cuda_host_give(struct device *dev, void *block, int64_t bytes);
int64_t cuda_driver_bytes(struct device *dev);

/* ---- streams and events (cuda_stream.cu) ------------------------------------------------------
 */

bool cuda_stream_open(struct stream *stream);
void cuda_stream_close(struct stream *stream);

/* Makes the last ticket a point that can be waited for. */
void cuda_record(struct stream *stream);
void cuda_reach(struct stream *stream, int64_t ticket);

/* What follows on `stream` waits for the event. */
void cuda_wait(struct stream *stream, struct event event);

/* Waits for an event on the host, looking at the watches meanwhile; ends when the device has
 * failed, too. False then. `event` NULL: for the whole stream. */
bool cuda_poll(struct stream *stream, cudaEvent_t event);

/* All streams are done: waits until the watches expect nothing more, then what ran goes to the
 * trace. */
void cuda_settle(struct device *dev);

/* A wait of the host that looks again and again: begin with *turn = 0. */
void cuda_pause(int *turn);

/* ---- traces (cuda_trace.cu) -------------------------------------------------------------------
 */

struct cuda_span;

bool cuda_trace_open(struct device *dev); /* once, before anything is enqueued */
void cuda_trace_close(struct device *dev);

/* Around the enqueueing of an operation; NULL when nothing is traced. `has_records`: CUPTI has one
 * of each kernel and copy that it enqueues, and at least one. */
struct cuda_span *cuda_trace_begin(
    struct stream *stream, enum trace_kind kind, const char *name, bool has_records);
void cuda_trace_end(struct stream *stream, struct cuda_span *span);

/* The memory counters at this point of the main stream. */
void cuda_trace_memory(struct stream *stream, const struct mem_probe *memory);

/* Around a call that takes memory from the pool or gives it back. */
void cuda_trace_begin_memory(struct device *dev);
void cuda_trace_end_memory(struct device *dev);

/* All streams are done: what ran goes to the trace. */
void cuda_trace_settle(struct device *dev);

/* ---- for profilers (cuda_nvtx.cu) -------------------------------------------------------------
 */

void cuda_nvtx_name(const struct stream *stream);
void cuda_nvtx_memory(struct device *dev); /* the counters as they are now */
void cuda_nvtx_phase(struct device *dev, const char *name);

/* ---- messages ---------------------------------------------------------------------------------
 */

extern "C" const struct comm_transport transport_cuda; /* chooses one of these (cuda_ranks.cu) */
extern const struct comm_transport transport_cuda_copies, transport_cuda_staged;

/* Enqueues the copies of what the rank sends itself. */
bool cuda_copy_own_parts(struct comm *comm, struct stream *stream, const struct exchange *exchange);

#ifdef HAVE_NCCL
extern const struct comm_transport transport_nccl;
#endif
