/* Timelines: bytes by live set, and what each stream did, from trace files (probe/trace.h).
 *
 * A file is named FAMILY.IMPL.KIND.json, so that the implementations of a family stand in one
 * picture and measured is told from simulated. Of every trace the fullest rank is shown, from the
 * first to the last thing that a stream did; the clock starts there. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/csv.h"
#include "bench/harness/figures.h"

#define NAME_MAX_LENGTH 128

struct timeline {
    char family[NAME_MAX_LENGTH], impl[NAME_MAX_LENGTH], kind[NAME_MAX_LENGTH];
    json_t *root; /* owned */
    const json_t *events;
    json_t *streams;         /* owned: names of the fullest rank's threads, by number */
    json_int_t process;      /* of the fullest rank */
    double begin_us, end_us; /* of its spans */
};

/* ---- one trace ------------------------------------------------------------------------------- */

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static bool is_phase(const json_t *event, const char *phase)
{
    return !strcmp(text_of(event, "ph"), phase);
}

/* Of the live sets: a trace of a GPU has a counter of the pool beside it. */
static bool is_live_sets(const json_t *event)
{
    return is_phase(event, "C") && !strcmp(text_of(event, "name"), "memory");
}

static double total_bytes(const json_t *counter)
{
    const char *set;
    json_t *bytes;
    double total = 0;
    json_object_foreach(json_object_get(counter, "args"), set, bytes) total +=
        json_number_value(bytes);
    return total;
}

static double number_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static void thread_number(const json_t *event, char *text, size_t size)
{
    snprintf(text, size, "%lld", (long long)json_integer_value(json_object_get(event, "tid")));
}

/* Waiting is no work: a stream that waits for the first piece of it does not start the clock. */
static bool is_work(const json_t *event)
{
    return is_phase(event, "X") && strcmp(text_of(event, "cat"), "wait") &&
           strcmp(text_of(event, "cat"), "phase");
}

static void choose_rank(struct timeline *at)
{
    size_t i;
    json_t *event;
    double most = -1;
    json_array_foreach(at->events, i, event)
    {
        if (is_live_sets(event) && total_bytes(event) > most) {
            most = total_bytes(event);
            at->process = json_integer_value(json_object_get(event, "pid"));
        }
    }
    at->begin_us = INFINITY;
    at->end_us = 0;
    json_array_foreach(at->events, i, event)
    {
        if (!is_work(event) || json_integer_value(json_object_get(event, "pid")) != at->process)
            continue;
        at->begin_us = fmin(at->begin_us, number_of(event, "ts"));
        at->end_us = fmax(at->end_us, number_of(event, "ts") + number_of(event, "dur"));
    }
}

/* Once for all spans: a trace of many ranks has millions. */
static void name_streams(struct timeline *at)
{
    size_t i;
    json_t *event;
    char number[32];
    at->streams = json_object();
    json_array_foreach(at->events, i, event)
    {
        if (!is_phase(event, "M") || strcmp(text_of(event, "name"), "thread_name"))
            continue;
        thread_number(event, number, sizeof number);
        json_object_set(
            at->streams, number, json_object_get(json_object_get(event, "args"), "name"));
    }
}

static void timeline_free(struct timeline *at)
{
    json_decref(at->root);
    json_decref(at->streams);
    at->root = at->streams = NULL;
}

/* name: FAMILY.IMPL.KIND.json. 0, or -1 with `error` filled. */
static int timeline_read(
    struct timeline *at, const char *traces, const char *name, char *error, int size)
{
    char path[4096];
    json_error_t fault;
    memset(at, 0, sizeof *at);
    snprintf(path, sizeof path, "%s/%s", traces, name);
    if (sscanf(name, "%127[^.].%127[^.].%127[^.].json", at->family, at->impl, at->kind) != 3) {
        snprintf(error, (size_t)size, "%s: a trace is named FAMILY.IMPL.KIND.json", path);
        return -1;
    }
    at->root = json_load_file(path, 0, &fault);
    at->events = json_object_get(at->root, "traceEvents");
    if (!at->root) {
        snprintf(error, (size_t)size, "%s:%d: %s", path, fault.line, fault.text);
        return -1;
    }
    if (!json_is_array(at->events)) {
        snprintf(error, (size_t)size, "%s: has no 'traceEvents'", path);
        timeline_free(at);
        return -1;
    }
    choose_rank(at);
    name_streams(at);
    return 0;
}

/* ---- the CSV files --------------------------------------------------------------------------- */

static void write_identity(FILE *out, const struct timeline *at)
{
    csv_first(out, at->impl);
    csv_text(out, at->kind);
    csv_int(out, at->process - 1);
}

/* A sample of the rank's memory while it worked. */
static bool is_sample(const struct timeline *at, const json_t *event)
{
    return is_live_sets(event) && number_of(event, "ts") < at->end_us &&
           json_integer_value(json_object_get(event, "pid")) == at->process;
}

static void write_sample(FILE *out, const struct timeline *at, const json_t *sample, double ts_us)
{
    const char *set;
    json_t *bytes;
    json_object_foreach(json_object_get(sample, "args"), set, bytes)
    {
        write_identity(out, at);
        csv_real(out, fmax((ts_us - at->begin_us) / 1e6, 0));
        csv_text(out, set);
        csv_figure(out, json_number_value(bytes));
        fputc('\n', out);
    }
}

/* What was live when the clock starts stands at 0; the last of it stays until the work ends. */
static void write_live_sets(FILE *out, const struct timeline *at)
{
    size_t i;
    const json_t *event, *last = NULL;
    json_array_foreach(at->events, i, event)
    {
        if (!is_sample(at, event))
            continue;
        write_sample(out, at, event, number_of(event, "ts"));
        last = event;
    }
    if (last)
        write_sample(out, at, last, at->end_us);
}

static void write_streams(FILE *out, const struct timeline *at)
{
    size_t i;
    json_t *event;
    char number[32];
    json_array_foreach(at->events, i, event)
    {
        if (!is_work(event) || json_integer_value(json_object_get(event, "pid")) != at->process)
            continue;
        double begin_us = number_of(event, "ts") - at->begin_us;
        write_identity(out, at);
        thread_number(event, number, sizeof number);
        csv_text(out, text_of(at->streams, number));
        csv_text(out, text_of(event, "cat"));
        csv_text(out, text_of(event, "name"));
        csv_real(out, begin_us / 1e6);
        csv_real(out, (begin_us + number_of(event, "dur")) / 1e6);
        fputc('\n', out);
    }
}

static int write_file(const char *kind, const char *columns, const struct timeline *timelines,
    int count, void (*write)(FILE *, const struct timeline *), const char *folder, char *error,
    int size)
{
    struct new_file file;
    char name[2 * NAME_MAX_LENGTH];
    snprintf(name, sizeof name, "%s-%s", kind, timelines[0].family);
    if (figure_open(&file, folder, name, columns, error, size))
        return -1;
    for (int i = 0; i < count; i++)
        write(file.stream, &timelines[i]);
    return figure_close(&file, folder, name, error, size);
}

/* The traces of one family. */
static int write_family(
    const struct timeline *timelines, int count, const char *folder, char *error, int size)
{
    bool sampled = false;
    for (int t = 0; t < count; t++) {
        size_t i;
        json_t *event;
        json_array_foreach(timelines[t].events, i, event) sampled |=
            is_sample(&timelines[t], event);
    }
    if (sampled && write_file("live_sets", "impl,kind,rank,time_s,live_set,bytes", timelines, count,
                       write_live_sets, folder, error, size))
        return -1;
    return write_file("streams", "impl,kind,rank,stream,what,name,begin_s,end_s", timelines, count,
        write_streams, folder, error, size);
}

static int is_trace(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 5 && !strcmp(entry->d_name + length - 5, ".json");
}

static int read_all(struct timeline *timelines, struct dirent **entries, int count,
    const char *traces, char *error, int size)
{
    for (int i = 0; i < count; i++) {
        if (timeline_read(&timelines[i], traces, entries[i]->d_name, error, size))
            return -1;
    }
    return 0;
}

int figures_write_traces(const char *traces, const char *folder, char *error, int size)
{
    struct dirent **entries;
    int count = scandir(traces, &entries, is_trace, alphasort);
    if (count < 0) {
        snprintf(error, (size_t)size, "%s: %s", traces, strerror(errno));
        return -1;
    }
    struct timeline *timelines = calloc((size_t)count + 1, sizeof *timelines);
    int status = timelines ? read_all(timelines, entries, count, traces, error, size) : -1;
    if (!timelines)
        snprintf(error, (size_t)size, "%s: memory is short", traces);
    /* Sorted by name, so the traces of a family stand together. */
    for (int begin = 0, end; !status && begin < count; begin = end) {
        for (end = begin + 1;
             end < count && !strcmp(timelines[begin].family, timelines[end].family);)
            end++;
        status = write_family(&timelines[begin], end - begin, folder, error, size);
    }
    for (int i = 0; i < count; i++) {
        if (timelines)
            timeline_free(&timelines[i]);
        free(entries[i]);
    }
    free(timelines);
    free(entries);
    return status;
}
