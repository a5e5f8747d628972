/* When what ran on the GPU: from CUPTI's records of kernels and copies where it is there, else from
 * a pair of events around each operation, which adds the time of an event to each. Exchanges are
 * always timed by events: a message library launches from threads of its own, and an exchange lasts
 * from when its stream comes to it until it goes on, as on every other device.
 *
 * Nothing is read before all streams are done, so that tracing makes no wait of its own. Times of
 * events are brought to the host's clock by a first event whose time is read there too; they are
 * some ten microseconds off as a whole, and exact among themselves. */
#include "device/cuda_device.h"
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_CUPTI
#include "device/cupti.h"
#endif

/* How long the records of what is complete may be on their way. */
#define RECORDS_LATE_S 1.0

struct cuda_span {
    struct cuda_span *next;
    uint64_t id; /* of CUPTI's records; 0: timed by events */
    const struct stream *stream;
    enum trace_kind kind;
    const char *name;
    cudaEvent_t begin, end;
    int64_t seen;   /* records of it so far */
    double end_s;   /* the last one's */
    bool is_memory; /* only a reading of the counters: */
    struct mem_probe memory;
};

struct cuda_trace {
    struct cuda_span *first, **end; /* since the last settling, in program order */
    bool records;                   /* CUPTI's are there */
    uint64_t first_id, next_id, memory_id;
    cudaEvent_t base;
    double base_s; /* on the host's clock */
};

/* Has the first event pass, on a main stream that is idle. */
static bool set_base(struct device *dev)
{
    struct cuda_trace *trace = cuda_of(dev)->trace;
    bool sound = CUDA_DO(dev, cudaEventRecord(trace->base, cuda_handle(dev->streams[0]))) &&
                 CUDA_DO(dev, cudaEventSynchronize(trace->base));
    trace->base_s = timing_now_s();
    return sound;
}

bool cuda_trace_open(struct device *dev)
{
    struct cuda_trace *trace = (struct cuda_trace *)calloc(1, sizeof *trace);
    if (!trace) {
        dev_fail(dev, DEV_FAILED, "no memory for the trace of rank %d", dev->config.rank);
        return false;
    }
    cuda_of(dev)->trace = trace;
    trace->end = &trace->first;
#ifdef HAVE_CUPTI
    trace->records = cupti_open();
#endif
    trace->memory_id = ((uint64_t)dev->config.rank + 1) << 40;
    trace->first_id = trace->next_id = trace->memory_id + 1;
    trace_set_memory_source(dev->config.trace,
        trace->records ? "live sets where the main stream changes them, and the pool as CUPTI's "
                         "records tell it, at the time of each call"
                       : "live sets alone: CUPTI is not to be had here, or another profiler holds "
                         "it");
    return CUDA_DO(dev, cudaEventCreate(&trace->base)) && set_base(dev);
}

static void free_span(struct device *dev, struct cuda_span *span)
{
    if (span->begin)
        CUDA_DO(dev, cudaEventDestroy(span->begin));
    if (span->end)
        CUDA_DO(dev, cudaEventDestroy(span->end));
    free(span);
}

static void free_spans(struct device *dev)
{
    struct cuda_trace *trace = cuda_of(dev)->trace;
    while (trace->first) {
        struct cuda_span *first = trace->first;
        trace->first = first->next;
        free_span(dev, first);
    }
    trace->end = &trace->first;
}

void cuda_trace_close(struct device *dev)
{
    struct cuda_trace *trace = cuda_of(dev)->trace;
    if (!trace)
        return;
    free_spans(dev);
    if (trace->base)
        CUDA_DO(dev, cudaEventDestroy(trace->base));
#ifdef HAVE_CUPTI
    if (trace->records)
        cupti_close();
#endif
    free(trace);
    cuda_of(dev)->trace = NULL;
}

/* ---- while operations are enqueued ------------------------------------------------------------
 */

/* What the pool holds now, where records will tell how it goes on. */
static void sample_pool(struct device *dev)
{
    const cudaMemPool_t pool = cuda_of(dev)->pool;
    uint64_t used_bytes = 0, pool_bytes = 0;
    if (cuda_of(dev)->trace->records &&
        CUDA_DO(dev, cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used_bytes)) &&
        CUDA_DO(dev, cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &pool_bytes)))
        trace_add_pool(dev->config.trace, dev->config.rank, timing_now_s(), (int64_t)used_bytes,
            (int64_t)(pool_bytes - used_bytes));
}

static struct cuda_span *add_span(struct stream *stream)
{
    struct cuda_trace *trace = cuda_of(stream->dev)->trace;
    if (!trace->first)
        sample_pool(stream->dev);
    struct cuda_span *span = (struct cuda_span *)calloc(1, sizeof *span);
    if (!span) {
        trace_add_lost(stream->dev->config.trace, 1);
        return NULL;
    }
    span->stream = stream;
    *trace->end = span;
    trace->end = &span->next;
    return span;
}

static bool mark_time(struct stream *stream, cudaEvent_t *event)
{
    return CUDA_DO(stream->dev, cudaEventCreate(event)) &&
           CUDA_DO(stream->dev, cudaEventRecord(*event, cuda_handle(stream)));
}

struct cuda_span *cuda_trace_begin(
    struct stream *stream, enum trace_kind kind, const char *name, bool has_records)
{
    struct cuda_trace *trace = cuda_of(stream->dev)->trace;
    struct cuda_span *span = trace ? add_span(stream) : NULL;
    if (!span)
        return NULL;
    span->kind = kind;
    span->name = name;
#ifdef HAVE_CUPTI
    if (trace->records && has_records) {
        span->id = trace->next_id++;
        cupti_push(span->id);
        return span;
    }
#endif
    (void)has_records;
    mark_time(stream, &span->begin);
    return span;
}

void cuda_trace_end(struct stream *stream, struct cuda_span *span)
{
    if (!span)
        return;
#ifdef HAVE_CUPTI
    if (span->id) {
        cupti_pop();
        return;
    }
#endif
    mark_time(stream, &span->end);
}

void cuda_trace_memory(struct stream *stream, const struct mem_probe *memory)
{
    struct cuda_span *span = cuda_of(stream->dev)->trace ? add_span(stream) : NULL;
    if (!span)
        return;
    span->is_memory = true;
    span->memory = *memory;
}

void cuda_trace_begin_memory(struct device *dev)
{
#ifdef HAVE_CUPTI
    const struct cuda_trace *trace = cuda_of(dev)->trace;
    if (trace && trace->records)
        cupti_push(trace->memory_id);
#else
    (void)dev;
#endif
}

void cuda_trace_end_memory(struct device *dev)
{
#ifdef HAVE_CUPTI
    const struct cuda_trace *trace = cuda_of(dev)->trace;
    if (trace && trace->records)
        cupti_pop();
#else
    (void)dev;
#endif
}

/* ---- when all is done -------------------------------------------------------------------------
 */

static void put_span(struct device *dev, struct cuda_span *span, double begin_s, double end_s)
{
    struct trace_span line = {
        dev->config.rank, span->kind, span->stream->name, span->name, begin_s, end_s};
    span->seen++;
    span->end_s = end_s > span->end_s ? end_s : span->end_s;
    trace_add_span(dev->config.trace, &line);
}

static bool time_of(struct device *dev, cudaEvent_t event, double *time_s)
{
    float milliseconds = 0;
    const struct cuda_trace *trace = cuda_of(dev)->trace;
    if (!event || !CUDA_DO(dev, cudaEventElapsedTime(&milliseconds, trace->base, event)))
        return false;
    *time_s = trace->base_s + 1e-3 * (double)milliseconds;
    return true;
}

#ifdef HAVE_CUPTI
struct settling {
    struct device *dev;
    struct cuda_span *at; /* where the last record's span was found: they come nearly in order */
};

static void take_record(void *context, uint64_t id, double begin_s, double end_s)
{
    struct settling *settling = (struct settling *)context;
    struct cuda_span *first = cuda_of(settling->dev)->trace->first;
    if (!settling->at || settling->at->id > id || !settling->at->id)
        settling->at = first;
    while (settling->at && settling->at->id != id)
        settling->at = settling->at->next;
    if (settling->at)
        put_span(settling->dev, settling->at, begin_s, end_s);
}

static int64_t count_unseen(const struct cuda_trace *trace)
{
    int64_t unseen = 0;
    for (const struct cuda_span *span = trace->first; span; span = span->next)
        unseen += span->id && !span->seen;
    return unseen;
}

static void take_pool(void *context, double time_s, int64_t used_bytes, int64_t pool_bytes)
{
    struct device *dev = (struct device *)context;
    const int64_t kept_bytes = pool_bytes > used_bytes ? pool_bytes - used_bytes : 0;
    trace_add_pool(dev->config.trace, dev->config.rank, time_s, used_bytes, kept_bytes);
}

/* Takes the records of what has run, and counts those that do not come. */
static void take_records(struct device *dev)
{
    struct cuda_trace *trace = cuda_of(dev)->trace;
    struct settling settling = {dev, NULL};
    double deadline_s = timing_now_s() + RECORDS_LATE_S;
    int64_t dropped = 0, unseen = count_unseen(trace);
    int turn = 0;
    while (unseen && !dropped && timing_now_s() < deadline_s) {
        dropped = cupti_take(trace->first_id, trace->next_id, take_record, &settling);
        unseen = count_unseen(trace);
        if (unseen)
            cuda_pause(&turn);
    }
    trace_add_lost(dev->config.trace, dropped > unseen ? dropped : unseen);
    trace->first_id = trace->next_id;
    cupti_take_memory(trace->memory_id, take_pool, dev);
}
#endif

static void take_events(struct device *dev)
{
    for (struct cuda_span *span = cuda_of(dev)->trace->first; span; span = span->next) {
        double begin_s, end_s;
        if (span->id || span->is_memory)
            continue;
        if (time_of(dev, span->begin, &begin_s) && time_of(dev, span->end, &end_s))
            put_span(dev, span, begin_s, end_s > begin_s ? end_s : begin_s);
        else
            trace_add_lost(dev->config.trace, 1);
    }
}

/* The counters change where the main stream is done with what stands before them. */
static void put_memory(struct device *dev)
{
    struct cuda_trace *trace = cuda_of(dev)->trace;
    double time_s = trace->base_s;
    for (struct cuda_span *span = trace->first; span; span = span->next) {
        if (span->is_memory)
            trace_add_memory(dev->config.trace, dev->config.rank, time_s, &span->memory);
        else if (span->stream->index == 0 && span->seen)
            time_s = span->end_s;
    }
}

void cuda_trace_settle(struct device *dev)
{
    struct cuda_trace *trace = cuda_of(dev)->trace;
    if (!trace || !trace->first || !cuda_use(dev))
        return;
#ifdef HAVE_CUPTI
    if (trace->records)
        take_records(dev);
#endif
    take_events(dev);
    put_memory(dev);
    free_spans(dev);
    set_base(dev);
}
