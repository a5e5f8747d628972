/* Collects spans and counters and writes them as a Chrome/Perfetto trace (JSON): one process per
 * rank, one thread per stream, live sets as counters. All calls may come from any thread; a NULL
 * trace makes every call a no-op. Times are seconds of timing_now_s (or of a simulated clock). */
#pragma once
#include <stdint.h>
#include "probe/memory.h"

struct trace;

enum trace_kind { TRACE_KERNEL, TRACE_COPY, TRACE_MESSAGE, TRACE_WAIT, TRACE_PHASE, TRACE_KINDS };

struct trace_span {
    int rank;
    enum trace_kind kind;
    const char *stream; /* kept by reference: a string that outlives the trace */
    const char *name;   /* likewise */
    double begin_s, end_s;
};

/* NULL when memory is short. */
struct trace *trace_create(void);
void trace_free(struct trace *t);

void trace_add_span(struct trace *t, const struct trace_span *span);
void trace_add_memory(struct trace *t, int rank, double time_s, const struct mem_probe *probe);

/* What a rank's pool had of the device's memory: bytes in use, and bytes that it kept beside them.
 */
void trace_add_pool(
    struct trace *t, int rank, double time_s, int64_t used_bytes, int64_t kept_bytes);

/* Where the curve of device memory comes from, for whoever reads the file: kept by reference. */
void trace_set_memory_source(struct trace *t, const char *source);

/* `count` spans that ran were not seen. The others are kept, and written; how long two kinds of
 * them overlapped is then not known. */
void trace_add_lost(struct trace *t, int64_t count);
int64_t trace_lost(const struct trace *t); /* since the last clear */

/* Forgets what was collected so far. */
void trace_clear(struct trace *t);

/* Writes the file, replacing it. 0, or -1 with errno: also ENOMEM or EINVAL when an event could not
 * be kept since the last clear, for want of memory or because it ends before it begins, has no name
 * or is at no finite time. */
int trace_write(const struct trace *t, const char *path);

/* Seconds during which rank's spans of kind `a` and of kind `b` ran at the same time: the measure
 * of (union of a) and (union of b) intersected. a == b gives the measure of the union. NaN
 * when memory is short or spans were lost. */
double trace_overlap_s(const struct trace *t, int rank, enum trace_kind a, enum trace_kind b);

/* The spans collected so far, for tests and summaries; valid until the next call that adds. */
const struct trace_span *trace_spans(const struct trace *t, int64_t *count);
