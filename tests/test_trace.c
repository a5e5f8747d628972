/* Traces: the file parsed back event by event, overlaps of intervals worked out by hand, and many
 * threads adding at once. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <jansson.h>
#include "probe/seed.h"
#include "probe/trace.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static struct scratch scratch;

static void add(struct trace *t, int rank, enum trace_kind kind, const char *stream,
    const char *name, double begin_s, double end_s)
{
    struct trace_span span = {rank, kind, stream, name, begin_s, end_s};
    trace_add_span(t, &span);
}

static json_t *write_and_parse(const struct trace *t)
{
    struct scratch_path path = scratch_path(&scratch, "trace.json");
    json_error_t error;
    if (trace_write(t, path.text))
        return NULL;
    json_t *root = json_load_file(path.text, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        tap_note("%s at line %d", error.text, error.line);
    return root;
}

/* The only event of this phase and name ("" = any), or NULL when there are none or several. */
static const json_t *event(const json_t *root, const char *phase, const char *name, int pid)
{
    const json_t *events = json_object_get(root, "traceEvents"), *found = NULL;
    size_t i;
    json_t *e;
    int matches = 0;
    json_array_foreach(
        events, i, e) if (!strcmp(json_string_value(json_object_get(e, "ph")), phase) &&
                          !strcmp(json_string_value(json_object_get(e, "name")), name) &&
                          (!pid || json_integer_value(json_object_get(e, "pid")) == pid))
    {
        found = e;
        matches++;
    }
    return matches == 1 ? found : NULL;
}

static double number(const json_t *e, const char *key)
{
    return json_number_value(json_object_get(e, key));
}

static const char *text(const json_t *e, const char *key)
{
    const char *value = json_string_value(json_object_get(e, key));
    return value ? value : "";
}

static void test_file(void)
{
    struct trace *t = trace_create();
    add(t, 1, TRACE_KERNEL, "compute", "gemm \"nt\"\n", 100.000002, 100.000005);
    add(t, 0, TRACE_COPY, "h2d", "rows", 100.000001, 100.0000015);
    add(t, 0, TRACE_KERNEL, "compute", "inner", 100.000001, 100.000002);
    add(t, 0, TRACE_PHASE, "compute", "forward", 100.000001, 100.000003);
    json_t *root = write_and_parse(t);
    tap_ok(root != NULL, "the file is JSON");
    tap_ok(json_array_size(json_object_get(root, "traceEvents")) == 11,
        "4 spans, 3 threads, twice 2 lines for a process");
    const json_t *gemm = event(root, "X", "gemm \"nt\"\n", 0), *rows = event(root, "X", "rows", 0);
    tap_ok(gemm && number(gemm, "ts") == 1 && number(gemm, "dur") == 3,
        "times are microseconds since the first event");
    tap_ok(rows && number(rows, "ts") == 0 && number(rows, "dur") == 0.5, "to the nanosecond");
    tap_ok(!strcmp(text(gemm, "cat"), "kernel") && !strcmp(text(rows, "cat"), "copy"),
        "the kind is the category");
    const json_t *rank_1 = event(root, "M", "process_name", (int)number(gemm, "pid"));
    tap_ok(!strcmp(text(json_object_get(rank_1, "args"), "name"), "rank 1"),
        "a rank is a process with its name");
    const json_t *thread = event(root, "M", "thread_name", (int)number(gemm, "pid"));
    tap_ok(number(thread, "tid") == number(gemm, "tid") &&
               !strcmp(text(json_object_get(thread, "args"), "name"), "compute"),
        "a stream is a thread with its name");
    const json_t *inner = event(root, "X", "inner", 0), *phase = event(root, "X", "forward", 0);
    tap_ok(number(inner, "tid") == number(phase, "tid") &&
               number(inner, "tid") != number(rows, "tid") &&
               number(inner, "tid") != number(gemm, "tid"),
        "one thread per rank and stream");
    int phase_at = -1, inner_at = -1;
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(root, "traceEvents"), i, e)
    {
        phase_at = e == phase ? (int)i : phase_at;
        inner_at = e == inner ? (int)i : inner_at;
    }
    tap_ok(phase_at < inner_at, "of two that begin together the longer comes first");
    json_decref(root);
    trace_free(t);
}

/* A rank with samples alone, before, between and after those with spans. */
static void test_ranks_in_order(void)
{
    struct trace *t = trace_create();
    struct mem_probe probe;
    mem_init(&probe, 0);
    mem_add(&probe, 1, LIVE_RING, "r");
    add(t, 3, TRACE_WAIT, "s", "n", 0, 1);
    add(t, 1, TRACE_MESSAGE, "s", "n", 0, 1);
    for (int rank = 4; rank >= 0; rank -= 2)
        trace_add_memory(t, rank, 0, &probe);
    json_t *root = write_and_parse(t), *e;
    size_t i;
    int ranks = 0, events = 0;
    double last_process = 0, first_thread = INFINITY;
    bool in_order = true;
    json_array_foreach(json_object_get(root, "traceEvents"), i, e)
    {
        char name[20];
        events++;
        last_process = fmax(last_process, number(e, "pid"));
        if (json_object_get(e, "tid"))
            first_thread = fmin(first_thread, number(e, "tid"));
        if (strcmp(text(e, "name"), "process_name"))
            continue;
        snprintf(name, sizeof name, "rank %d", ranks++);
        in_order &= !strcmp(text(json_object_get(e, "args"), "name"), name);
    }
    tap_ok(ranks == 5 && in_order && events == 5 * 2 + 2 * 2 + 3,
        "every rank is a process once, in order, whether it has spans or samples");
    tap_ok(last_process < first_thread && first_thread < INFINITY,
        "no thread has the number of a process");
    json_decref(root);
    trace_free(t);
}

static void test_counters(void)
{
    struct trace *t = trace_create();
    struct mem_probe probe;
    mem_init(&probe, 0);
    mem_add(&probe, 100, LIVE_WEIGHTS, "w");
    trace_add_memory(t, 3, 2.0, &probe);
    mem_add(&probe, 50, LIVE_LOGITS, "y");
    trace_add_memory(t, 3, 3.5, &probe);
    mem_init(&probe, 0);
    trace_add_memory(t, 5, 3.5, &probe);
    json_t *root = write_and_parse(t);
    const json_t *events = json_object_get(root, "traceEvents");
    tap_ok(json_array_size(events) == 6, "two samples, twice 2 lines for a process");
    const json_t *first = json_array_get(events, 2), *second = json_array_get(events, 3);
    tap_ok(!strcmp(text(first, "ph"), "C") && number(first, "ts") == 0 &&
               number(second, "ts") == 1500000,
        "samples are counter events in order of time");
    const json_t *then = json_object_get(first, "args"), *later = json_object_get(second, "args");
    tap_ok(json_object_size(then) == 2 && json_object_size(later) == 2,
        "every live set that ever held a byte is a series of every sample");
    tap_ok(number(then, "weights") == 100 && number(then, "logits") == 0 &&
               number(later, "weights") == 100 && number(later, "logits") == 50,
        "a series is a live set's bytes");
    json_decref(root);
    trace_free(t);
}

/* A pool's samples are a counter of their own, and change nothing of the live sets'. */
static void test_pool(void)
{
    struct trace *t = trace_create();
    struct mem_probe probe;
    mem_init(&probe, 0);
    mem_add(&probe, 100, LIVE_WEIGHTS, "w");
    trace_add_pool(t, 3, 2.0, 100, 28);
    trace_add_memory(t, 3, 2.5, &probe);
    trace_add_pool(t, 3, 3.0, 0, 128);
    trace_set_memory_source(t, "a pool");
    json_t *root = write_and_parse(t);
    const json_t *events = json_object_get(root, "traceEvents");
    const json_t *pool = json_array_get(events, 2), *sets = json_array_get(events, 3);
    const json_t *args = json_object_get(pool, "args");
    tap_ok(json_array_size(events) == 5 && !strcmp(text(pool, "name"), "device memory") &&
               number(args, "in use") == 100 && number(args, "kept") == 28 &&
               !strcmp(text(sets, "name"), "memory") &&
               json_object_size(json_object_get(sets, "args")) == 1,
        "a pool has a counter of its own, in order of time");
    tap_ok(!strcmp(text(json_object_get(root, "otherData"), "device memory"), "a pool"),
        "and the file says where it comes from");
    json_decref(root);
    trace_free(t);
}

static void test_nesting_survives_rounding(void)
{
    struct trace *t = trace_create();
    enum { SPANS = 2000 };
    for (int64_t i = 0; i < SPANS; i++) {
        /* A parent of a few nanoseconds and two children that share its ends. */
        double begin = 1e5 + (double)i * 1e-6;
        double middle = begin + 1e-9 + (double)seed_index(1, 0, i, 1000) * 5e-12;
        double end = middle + 1e-9 + (double)seed_index(1, 1, i, 1000) * 5e-12;
        add(t, 0, TRACE_KERNEL, "s", "first", begin, middle);
        add(t, 0, TRACE_KERNEL, "s", "second", middle, end);
        add(t, 0, TRACE_PHASE, "s", "parent", begin, end);
    }
    json_t *root = write_and_parse(t), *e;
    size_t i;
    bool nested = root != NULL;
    int64_t parent_end = 0, previous_end = 0;
    json_array_foreach(json_object_get(root, "traceEvents"), i, e)
    {
        if (strcmp(text(e, "ph"), "X"))
            continue;
        int64_t begin = llround(number(e, "ts") * 1000);
        int64_t end = begin + llround(number(e, "dur") * 1000);
        if (!strcmp(text(e, "name"), "parent"))
            parent_end = end;
        else
            nested &= end <= parent_end && begin >= previous_end;
        previous_end = !strcmp(text(e, "name"), "parent") ? begin : end;
    }
    tap_ok(nested, "after rounding children stay within their parent and do not overlap");
    json_decref(root);
    trace_free(t);
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-12;
}

static void test_overlap(void)
{
    struct trace *t = trace_create();
    tap_ok(trace_overlap_s(t, 0, TRACE_COPY, TRACE_KERNEL) == 0, "no spans, no overlap");
    add(t, 0, TRACE_KERNEL, "c", "k", 0, 4);
    add(t, 0, TRACE_KERNEL, "c", "k", 6, 8);
    add(t, 0, TRACE_KERNEL, "d", "k", 3, 5);  /* overlaps the first */
    add(t, 0, TRACE_KERNEL, "d", "k", 1, 2);  /* within the first */
    add(t, 0, TRACE_KERNEL, "d", "k", 8, 9);  /* touches the second */
    add(t, 0, TRACE_COPY, "h", "c", 4.5, 7);  /* overlaps two */
    add(t, 0, TRACE_COPY, "h", "c", 8.5, 12); /* reaches out */
    add(t, 0, TRACE_COPY, "g", "c", 8.75, 9); /* counted once */
    add(t, 1, TRACE_COPY, "h", "c", 0, 100);  /* another rank */
    add(t, 0, TRACE_MESSAGE, "m", "c", 5, 6); /* only touches kernels */
    add(t, 0, TRACE_WAIT, "m", "c", 3, 3);    /* of no length */
    tap_ok(near(trace_overlap_s(t, 0, TRACE_KERNEL, TRACE_KERNEL), 8), "the union of kernels");
    tap_ok(near(trace_overlap_s(t, 0, TRACE_COPY, TRACE_COPY), 6), "the union of copies");
    tap_ok(near(trace_overlap_s(t, 0, TRACE_KERNEL, TRACE_COPY), 2), "copies under kernels");
    tap_ok(near(trace_overlap_s(t, 0, TRACE_COPY, TRACE_KERNEL), 2), "the same the other way");
    tap_ok(trace_overlap_s(t, 0, TRACE_MESSAGE, TRACE_KERNEL) == 0, "touching is no overlap");
    tap_ok(trace_overlap_s(t, 0, TRACE_WAIT, TRACE_KERNEL) == 0, "no length, no overlap");
    tap_ok(trace_overlap_s(t, 1, TRACE_COPY, TRACE_KERNEL) == 0, "ranks do not mix");
    tap_ok(trace_overlap_s(t, 7, TRACE_COPY, TRACE_COPY) == 0, "an unknown rank has no spans");
    trace_add_lost(t, 2);
    trace_add_lost(t, 1);
    tap_ok(trace_lost(t) == 3 && isnan(trace_overlap_s(t, 0, TRACE_KERNEL, TRACE_COPY)),
        "no overlap is told of a trace that lost spans");
    trace_clear(t);
    tap_ok(!trace_lost(t) && trace_overlap_s(t, 0, TRACE_KERNEL, TRACE_COPY) == 0,
        "what was lost is forgotten with the rest");
    int64_t count;
    trace_spans(t, &count);
    tap_ok(count == 0 && trace_overlap_s(t, 0, TRACE_KERNEL, TRACE_KERNEL) == 0,
        "a cleared trace has forgotten");
    trace_free(t);
}

/* Against a count of unit cells: spans with whole ends on 64 cells. */
static void test_overlap_by_cells(void)
{
    bool equal = true;
    for (int64_t i = 0; i < 500; i++) {
        struct trace *t = trace_create();
        bool cells[2][64] = {{false}};
        for (int64_t s = 0; s < seed_index(3, 0, i, 20); s++) {
            int64_t kind = seed_index(3, 1, 20 * i + s, 2);
            int64_t begin = seed_index(3, 2, 20 * i + s, 60);
            int64_t length = seed_index(3, 3, 20 * i + s, 5);
            add(t, 0, kind ? TRACE_COPY : TRACE_KERNEL, "s", "n", (double)begin,
                (double)(begin + length));
            for (int64_t c = begin; c < begin + length; c++)
                cells[kind][c] = true;
        }
        int both = 0, kernels = 0;
        for (int c = 0; c < 64; c++) {
            both += cells[0][c] && cells[1][c];
            kernels += cells[0][c];
        }
        equal &= trace_overlap_s(t, 0, TRACE_KERNEL, TRACE_COPY) == both &&
                 trace_overlap_s(t, 0, TRACE_KERNEL, TRACE_KERNEL) == kernels;
        trace_free(t);
    }
    tap_ok(equal, "500 random sets of spans overlap as counted cell by cell");
}

static void test_refusals(void)
{
    struct scratch_path path = scratch_path(&scratch, "refused.json");
    static const struct trace_span bad[] = {
        {0, TRACE_COPY, "s", "n", 2, 1},
        {0, TRACE_COPY, "s", "n", NAN, 1},
        {0, TRACE_COPY, "s", "n", 0, INFINITY},
        {-1, TRACE_COPY, "s", "n", 0, 1},
        {0, TRACE_KINDS, "s", "n", 0, 1},
        {0, TRACE_COPY, NULL, "n", 0, 1},
        {0, TRACE_COPY, "s", NULL, 0, 1},
    };
    struct mem_probe probe;
    mem_init(&probe, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct trace *t = trace_create();
        int64_t count;
        trace_add_span(t, &bad[i]);
        trace_spans(t, &count);
        errno = 0;
        tap_ok(trace_write(t, path.text) == -1 && errno == EINVAL && !count,
            "unsound span %zu is not kept and fails the file", i);
        trace_clear(t);
        tap_ok(!trace_write(t, path.text), "a cleared trace can be written");
        unlink(path.text);
        trace_free(t);
    }
    struct trace *t = trace_create();
    trace_add_memory(t, 0, NAN, &probe);
    tap_ok(trace_write(t, path.text) == -1 && errno == EINVAL, "nor is a sample at no time");
    trace_clear(t);
    trace_add_memory(t, -1, 0, &probe);
    tap_ok(trace_write(t, path.text) == -1 && errno == EINVAL, "nor one of no rank");
    trace_free(t);
}

static void test_write_errors(void)
{
    struct trace *t = trace_create();
    add(t, 0, TRACE_COPY, "s", "n", 0, 1);
    tap_ok(trace_write(t, "/nonexistent/trace.json") == -1 && errno == ENOENT,
        "a missing folder is an error");
    tap_ok(trace_write(t, scratch.folder) == -1 && errno == EISDIR, "so is a folder");
    struct scratch_path path = scratch_path(&scratch, "replaced.json");
    char longer[2000];
    memset(longer, '.', sizeof longer);
    scratch_write(path.text, longer, sizeof longer);
    tap_ok(!trace_write(t, path.text), "a file that exists is replaced");
    json_t *root = json_load_file(path.text, 0, NULL);
    tap_ok(root != NULL, "as a whole");
    json_decref(root);
    trace_free(t);
}

/* Writes under a limit on the size of files, which stands for a full disk. The error, 0 = none. */
static int write_limited(const struct trace *t, const char *path, rlim_t bytes)
{
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &small);
    errno = 0;
    int reason = trace_write(t, path) ? errno : 0;
    setrlimit(RLIMIT_FSIZE, &before);
    return reason;
}

static void test_full_disk(void)
{
    struct scratch_path path = scratch_path(&scratch, "full.json");
    struct trace *t = trace_create();
    size_t count;
    scratch_text(path.text, "as it was");
    int entries = scratch_entries(&scratch);
    add(t, 0, TRACE_COPY, "s", "n", 0, 1);
    tap_ok(write_limited(t, path.text, 100) == EFBIG, "a disk that is full at the end");
    for (int i = 0; i < 1000; i++)
        add(t, 0, TRACE_COPY, "s", "n", i, i + 1);
    tap_ok(write_limited(t, path.text, 100) == EFBIG, "a disk that is full long before");
    char *kept = scratch_read(path.text, &count);
    tap_ok(kept && !strcmp(kept, "as it was") && scratch_entries(&scratch) == entries,
        "what stood there is as it was, and nothing is left beside it");
    free(kept);
    trace_free(t);
}

/* A pipe is written directly; it must still be one afterwards. */
static void test_pipe(void)
{
    struct scratch_path path = scratch_path(&scratch, "pipe.json");
    struct trace *t = trace_create();
    struct stat status;
    char bytes[4096];
    add(t, 0, TRACE_COPY, "s", "n", 0, 1);
    bool ready = mkfifo(path.text, 0600) == 0;
    int reader = open(path.text, O_RDONLY | O_NONBLOCK);
    if (tap_ok(ready && reader >= 0, "a pipe for the test")) {
        bool written = !trace_write(t, path.text);
        ssize_t got = read(reader, bytes, sizeof bytes);
        json_t *root = got > 0 ? json_loadb(bytes, (size_t)got, 0, NULL) : NULL;
        tap_ok(written && root && !stat(path.text, &status) && S_ISFIFO(status.st_mode),
            "a pipe gets the trace and stays a pipe");
        json_decref(root);
        close(reader);
    }
    unlink(path.text);
    trace_free(t);
}

static void test_odd_contents(void)
{
    struct trace *t = trace_create();
    add(t, 0, TRACE_COPY, "s\xff", "n", 0, 1);
    json_t *root = write_and_parse(t);
    tap_ok(root != NULL, "a name that is not UTF-8 still gives JSON");
    json_decref(root);
    trace_clear(t);
    root = write_and_parse(t);
    tap_ok(root && json_array_size(json_object_get(root, "traceEvents")) == 0,
        "an empty trace is an empty list");
    json_decref(root);
    trace_free(t);
}

static void test_null(void)
{
    int64_t count = 5;
    struct mem_probe probe;
    struct trace_span span = {0, TRACE_COPY, "s", "n", 0, 1};
    mem_init(&probe, 0);
    trace_add_span(NULL, &span);
    trace_add_memory(NULL, 0, 0, &probe);
    trace_add_pool(NULL, 0, 0, 1, 1);
    trace_set_memory_source(NULL, "none");
    trace_clear(NULL);
    trace_free(NULL);
    tap_ok(!trace_spans(NULL, &count) && count == 0 && !trace_write(NULL, "/nonexistent/x") &&
               trace_overlap_s(NULL, 0, TRACE_COPY, TRACE_COPY) == 0,
        "without a trace every call does nothing");
}

enum { THREADS = 4, SPANS_EACH = 3000 };

struct adder {
    struct trace *trace;
    int rank;
};

static void *add_many(void *argument)
{
    struct adder *adder = argument;
    struct mem_probe probe;
    mem_init(&probe, 0);
    for (int i = 0; i < SPANS_EACH; i++) {
        add(adder->trace, adder->rank, TRACE_KERNEL, "compute", "work", i, i + 0.5);
        if (i % 100 == 0) {
            mem_add(&probe, 1, LIVE_LOGITS, "byte");
            trace_add_memory(adder->trace, adder->rank, i, &probe);
            trace_overlap_s(adder->trace, adder->rank, TRACE_KERNEL, TRACE_KERNEL);
        }
    }
    return NULL;
}

static void test_threads(void)
{
    struct trace *t = trace_create();
    pthread_t threads[THREADS];
    struct adder adders[THREADS];
    for (int i = 0; i < THREADS; i++) {
        adders[i] = (struct adder){t, i};
        pthread_create(&threads[i], NULL, add_many, &adders[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    int64_t count;
    int each[THREADS] = {0};
    const struct trace_span *spans = trace_spans(t, &count);
    bool in_order = true;
    for (int64_t i = 0; i < count; i++)
        in_order &= spans[i].begin_s == each[spans[i].rank]++;
    tap_ok(count == THREADS * SPANS_EACH && in_order,
        "spans of %d threads are all there, each thread's in its order", THREADS);
    bool whole = true;
    for (int i = 0; i < THREADS; i++)
        whole &= trace_overlap_s(t, i, TRACE_KERNEL, TRACE_KERNEL) == SPANS_EACH * 0.5;
    tap_ok(whole, "and none was hurt");
    json_t *root = write_and_parse(t);
    size_t events = THREADS * (SPANS_EACH + SPANS_EACH / 100 + 3);
    tap_ok(json_array_size(json_object_get(root, "traceEvents")) == events,
        "the file has all of them");
    json_decref(root);
    trace_free(t);
}

int main(void)
{
    if (tap_ok(scratch_create(&scratch), "a folder for the test")) {
        test_file();
        test_ranks_in_order();
        test_counters();
        test_pool();
        test_nesting_survives_rounding();
        test_overlap();
        test_overlap_by_cells();
        test_refusals();
        test_write_errors();
        test_full_disk();
        test_pipe();
        test_odd_contents();
        test_null();
        test_threads();
        scratch_remove(&scratch);
    }
    return tap_done();
}
