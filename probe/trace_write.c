/* The trace as a Chrome/Perfetto JSON file, one event per line.
 *
 * A rank is a process, a stream a thread, its live sets the series of one counter. Viewers know a
 * thread by its number alone and an event without one is taken for its process's first thread, so
 * numbers are unique: processes take 1 + rank, threads what comes after the last process. Times are
 * microseconds since the first event, rounded to nanoseconds at both ends of a span, so that what
 * was nested stays nested. Events are sorted (rank, stream, begin, longest first), so that the file
 * does not depend on which thread came first. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "probe/new_file.h"
#include "probe/text.h"
#include "probe/trace_store.h"

/* The arrays of a trace in the order in which they are written. */
struct listing {
    const struct trace_span **spans;
    const struct trace_counter **counters;
    int64_t span_count, counter_count;
    double origin_s;
    int next_thread;
    int events; /* written so far: commas stand between them */
};

static const char *const kind_names[TRACE_KINDS] = {
    [TRACE_KERNEL] = "kernel",
    [TRACE_COPY] = "copy",
    [TRACE_MESSAGE] = "message",
    [TRACE_WAIT] = "wait",
    [TRACE_PHASE] = "phase",
};

static int compare_numbers(double a, double b)
{
    return (a > b) - (a < b);
}

/* A span is recorded when it ends, so of two that are equal the later one is the outer one. */
static int compare_spans(const void *left, const void *right)
{
    const struct trace_span *a = *(const struct trace_span *const *)left;
    const struct trace_span *b = *(const struct trace_span *const *)right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    int order = strcmp(a->stream, b->stream);
    if (!order)
        order = compare_numbers(a->begin_s, b->begin_s);
    if (!order)
        order = compare_numbers(b->end_s, a->end_s);
    return order ? order : (a < b) - (a > b);
}

/* Samples of one rank at one time keep the order in which they were taken: that of their addresses.
 */
static int compare_counters(const void *left, const void *right)
{
    const struct trace_counter *a = *(const struct trace_counter *const *)left;
    const struct trace_counter *b = *(const struct trace_counter *const *)right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    int order = compare_numbers(a->time_s, b->time_s);
    return order ? order : (a > b) - (a < b);
}

static void listing_free(struct listing *list)
{
    free(list->spans);
    free(list->counters);
}

/* 0, or -1 when memory is short. */
static int listing_make(struct listing *list, const struct trace *t)
{
    *list = (struct listing){.span_count = t->span_count, .counter_count = t->counter_count};
    list->spans = calloc((size_t)t->span_count + 1, sizeof *list->spans);
    list->counters = calloc((size_t)t->counter_count + 1, sizeof *list->counters);
    if (!list->spans || !list->counters) {
        listing_free(list);
        return -1;
    }
    int last_rank = 0;
    list->origin_s = INFINITY;
    for (int64_t i = 0; i < t->span_count; i++) {
        list->spans[i] = &t->spans[i];
        list->origin_s = fmin(list->origin_s, t->spans[i].begin_s);
        last_rank = t->spans[i].rank > last_rank ? t->spans[i].rank : last_rank;
    }
    for (int64_t i = 0; i < t->counter_count; i++) {
        list->counters[i] = &t->counters[i];
        list->origin_s = fmin(list->origin_s, t->counters[i].time_s);
        last_rank = t->counters[i].rank > last_rank ? t->counters[i].rank : last_rank;
    }
    qsort(list->spans, (size_t)t->span_count, sizeof *list->spans, compare_spans);
    qsort(list->counters, (size_t)t->counter_count, sizeof *list->counters, compare_counters);
    list->next_thread = last_rank + 2;
    return 0;
}

static int64_t nanoseconds(const struct listing *list, double time_s)
{
    return llround((time_s - list->origin_s) * 1e9);
}

/* Starts a new line, after a comma where one is due. */
static void begin_event(struct new_file *file, struct listing *list)
{
    new_file_print(file, list->events++ ? ",\n" : "\n");
}

static void print_quoted(struct new_file *file, const char *text)
{
    char *quoted = text_quoted(text);
    if (!quoted && !file->error)
        file->error = ENOMEM;
    if (quoted)
        new_file_print(file, "%s", quoted);
    free(quoted);
}

static void print_microseconds(struct new_file *file, const char *key, int64_t time_ns)
{
    new_file_print(file, ",\"%s\":%" PRId64 ".%03" PRId64, key, time_ns / 1000, time_ns % 1000);
}

static void print_process(struct new_file *file, struct listing *list, int rank)
{
    begin_event(file, list);
    new_file_print(file,
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
        rank + 1, rank);
    begin_event(file, list);
    new_file_print(file,
        "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
        rank + 1, rank);
}

static void print_thread(
    struct new_file *file, struct listing *list, int rank, int thread, const char *stream)
{
    begin_event(file, list);
    new_file_print(file,
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":",
        rank + 1, thread);
    print_quoted(file, stream);
    new_file_print(file, "}}");
}

static void print_span(
    struct new_file *file, struct listing *list, int thread, const struct trace_span *span)
{
    int64_t begin_ns = nanoseconds(list, span->begin_s), end_ns = nanoseconds(list, span->end_s);
    begin_event(file, list);
    new_file_print(file, "{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d",
        kind_names[span->kind], span->rank + 1, thread);
    print_microseconds(file, "ts", begin_ns);
    print_microseconds(file, "dur", end_ns - begin_ns);
    new_file_print(file, ",\"name\":");
    print_quoted(file, span->name);
    new_file_print(file, "}");
}

/* The spans of the rank at the front, from *at on. */
static void print_spans_of_rank(struct new_file *file, struct listing *list, int rank, int64_t *at)
{
    const char *stream = NULL;
    int thread = 0;
    for (; *at < list->span_count && list->spans[*at]->rank == rank; ++*at) {
        const struct trace_span *span = list->spans[*at];
        if (!stream || strcmp(stream, span->stream)) {
            stream = span->stream;
            thread = list->next_thread++;
            print_thread(file, list, rank, thread, stream);
        }
        print_span(file, list, thread, span);
    }
}

static void begin_counter(struct new_file *file, struct listing *list, const char *name,
    const struct trace_counter *counter)
{
    begin_event(file, list);
    new_file_print(file, "{\"ph\":\"C\",\"name\":\"%s\",\"pid\":%d", name, counter->rank + 1);
    print_microseconds(file, "ts", nanoseconds(list, counter->time_s));
    new_file_print(file, ",\"args\":{");
}

static void print_live_sets(struct new_file *file, struct listing *list,
    const bool used[LIVE_SET_COUNT], const struct trace_counter *counter)
{
    const char *comma = "";
    begin_counter(file, list, "memory", counter);
    for (int set = 0; set < LIVE_SET_COUNT; set++) {
        if (!used[set])
            continue;
        new_file_print(
            file, "%s\"%s\":%" PRId64, comma, mem_live_set_name(set), counter->set_bytes[set]);
        comma = ",";
    }
    new_file_print(file, "}}");
}

static void print_pool(
    struct new_file *file, struct listing *list, const struct trace_counter *counter)
{
    begin_counter(file, list, "device memory", counter);
    new_file_print(file, "\"in use\":%" PRId64 ",\"kept\":%" PRId64 "}}", counter->pool.used_bytes,
        counter->pool.kept_bytes);
}

/* The counters of the rank at the front, from *at on. A live set that never held a byte has no
 * series; the others are in every sample, since viewers stack them. */
static void print_counters_of_rank(
    struct new_file *file, struct listing *list, int rank, int64_t *at)
{
    bool used[LIVE_SET_COUNT] = {false};
    int64_t end = *at;
    for (; end < list->counter_count && list->counters[end]->rank == rank; end++)
        for (int set = 0; set < LIVE_SET_COUNT; set++)
            used[set] |= !list->counters[end]->of_pool && list->counters[end]->set_bytes[set] != 0;
    bool any = memchr(used, true, sizeof used) != NULL;
    for (; *at < end; ++*at) {
        const struct trace_counter *counter = list->counters[*at];
        if (counter->of_pool)
            print_pool(file, list, counter);
        else if (any)
            print_live_sets(file, list, used, counter);
    }
}

static void print_listing(struct new_file *file, struct listing *list, const char *memory_source)
{
    new_file_print(file, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    int64_t span = 0, counter = 0;
    while (span < list->span_count || counter < list->counter_count) {
        int rank =
            span < list->span_count ? list->spans[span]->rank : list->counters[counter]->rank;
        if (counter < list->counter_count && list->counters[counter]->rank < rank)
            rank = list->counters[counter]->rank;
        print_process(file, list, rank);
        print_spans_of_rank(file, list, rank, &span);
        print_counters_of_rank(file, list, rank, &counter);
    }
    new_file_print(file, "\n]");
    if (memory_source) {
        new_file_print(file, ",\"otherData\":{\"device memory\":");
        print_quoted(file, memory_source);
        new_file_print(file, "}");
    }
    new_file_print(file, "}\n");
}

static int write_locked(const struct trace *t, const char *path)
{
    if (t->fault) {
        errno = t->fault;
        return -1;
    }
    struct listing list;
    if (listing_make(&list, t)) {
        errno = ENOMEM;
        return -1;
    }
    struct new_file file;
    int result = new_file_open(&file, path);
    if (!result) {
        print_listing(&file, &list, t->memory_source);
        result = new_file_commit(&file);
    }
    int reason = errno;
    listing_free(&list);
    errno = reason;
    return result;
}

int trace_write(const struct trace *t, const char *path)
{
    if (!t)
        return 0;
    trace_lock(t);
    int result = write_locked(t, path);
    trace_unlock(t);
    return result;
}
