/* What the probe does when the system fails it: every allocation of an operation fails in turn,
 * reads come short or are interrupted. Linked with --wrap for the calls named __wrap_ here (see the
 * Makefile); a sanitizer's leak check makes this the test that every path frees what it owns. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "probe/digest.h"
#include "probe/host_parts.h"
#include "probe/npy.h"
#include "probe/record.h"
#include "probe/text.h"
#include "probe/timing.h"
#include "probe/trace.h"
#include "tests/scratch.h"
#include "tests/tap.h"
#include <xxhash.h>

static struct scratch scratch;

/* The allocation that fails, counted from 0; -1 = none. */
static int failing = -1;
static int allocations;

static bool fails(void)
{
    if (failing < 0 || allocations++ != failing)
        return false;
    errno = ENOMEM; /* as POSIX has it */
    return true;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__real_reallocarray(void *block, size_t count, size_t bytes);
void *__wrap_reallocarray(void *block, size_t count, size_t bytes);
void *__wrap_reallocarray(void *block, size_t count, size_t bytes)
{
    return fails() ? NULL : __real_reallocarray(block, count, bytes);
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

XXH3_state_t *__real_XXH3_createState(void);
XXH3_state_t *__wrap_XXH3_createState(void);
XXH3_state_t *__wrap_XXH3_createState(void)
{
    return fails() ? NULL : __real_XXH3_createState();
}

static enum { READ_WHOLE, READ_INTERRUPTED, READ_BYTEWISE, READ_END, READ_ERROR } reading;
static int reads;

ssize_t __real_pread(int descriptor, void *to, size_t count, off_t offset);
ssize_t __wrap_pread(int descriptor, void *to, size_t count, off_t offset);
ssize_t __wrap_pread(int descriptor, void *to, size_t count, off_t offset)
{
    reads++;
    if (reading == READ_END)
        return 0;
    if (reading == READ_ERROR || (reading == READ_INTERRUPTED && reads % 2)) {
        errno = reading == READ_ERROR ? EIO : EINTR;
        return -1;
    }
    return __real_pread(descriptor, to, reading == READ_BYTEWISE ? 1 : count, offset);
}

/* Runs `operation` with its first, second, ... allocation failing until none does. An operation
 * says 1 when it did all it should, 0 when it failed as it should, and -1 when it did neither. */
static void try_all(const char *name, int (*operation)(void))
{
    int failed = 0, result = 0;
    for (int n = 0; n < 100 && result == 0; n++) {
        failing = n;
        allocations = 0;
        result = operation();
        failing = -1;
        failed += result == 0;
    }
    tap_ok(result == 1 && failed > 0, "%s: fails cleanly for each of %d allocations, then works",
        name, failed);
}

static int make_digest(void)
{
    char text[DIGEST_TEXT];
    struct digest *d = digest_create();
    if (!d)
        return 0;
    digest_finish(d, text);
    return strlen(text) == DIGEST_TEXT - 1 ? 1 : -1;
}

static int make_timing(void)
{
    struct timing t;
    struct timing_protocol protocol = timing_default();
    if (timing_init(&t, &protocol))
        return 0;
    timing_free(&t);
    return 1;
}

static int quote_text(void)
{
    char *text = text_quoted("caf\xe9");
    int result = !text ? 0 : !strcmp(text, "\"caf?\"") ? 1 : -1;
    free(text);
    return result;
}

static int read_array(void)
{
    struct scratch_path path = scratch_path(&scratch, "x.npy");
    struct npy_array array;
    char error[300] = "";
    if (npy_read(path.text, &array, error, sizeof error))
        return strstr(error, "no memory") && !array.data ? 0 : -1;
    int result = array.count == 3 ? 1 : -1;
    npy_free(&array);
    return result;
}

static int write_array(void)
{
    struct scratch_path path = scratch_path(&scratch, "x.npy");
    const int64_t shape[] = {3};
    const float data[] = {1, 2, 3};
    char error[300] = "";
    int entries = scratch_entries(&scratch);
    int status = npy_write(path.text, NPY_F32, 1, shape, data, error, sizeof error);
    if (status && strstr(error, strerror(ENOMEM)) && scratch_entries(&scratch) == entries)
        return 0;
    return status ? -1 : 1;
}

static int write_new_array(void)
{
    struct scratch_path path = scratch_path(&scratch, "x.npy");
    unlink(path.text);
    return write_array();
}

static int append_record(void)
{
    struct scratch_path path = scratch_path(&scratch, "r.jsonl");
    char error[300] = "";
    json_t *rec = rec_create();
    rec_str(rec, "text", "caf\xe9");
    int status = rec_append(path.text, rec, error, sizeof error);
    json_decref(rec);
    if (status)
        return strstr(error, "memory") ? 0 : -1;
    return 1;
}

static int trace_everything(void)
{
    struct scratch_path path = scratch_path(&scratch, "trace.json");
    struct mem_probe probe;
    struct trace *t = trace_create();
    if (!t)
        return 0;
    mem_init(&probe, 0);
    mem_add(&probe, 1, LIVE_LOGITS, "y");
    trace_add_memory(t, 0, 0, &probe);
    struct trace_span span = {1, TRACE_KERNEL, "compute", "caf\xe9", 0, 1};
    trace_add_span(t, &span);
    double overlap = trace_overlap_s(t, 1, TRACE_KERNEL, TRACE_KERNEL);
    errno = 0;
    int status = trace_write(t, path.text), reason = errno;
    int64_t count;
    trace_spans(t, &count);
    trace_free(t);
    if (status)
        return reason == ENOMEM ? 0 : -1;
    return isnan(overlap) ? 0 : overlap == 1 && count == 1 ? 1 : -1;
}

static int describe_host(void)
{
    char *argv[] = {"a", "b"};
    char *model = host_cpu_model("/nonexistent"), *command = host_command(2, argv);
    int result = model && command ? 1 : 0;
    free(model);
    free(command);
    return result;
}

static void test_reads(void)
{
    struct scratch_path path = scratch_path(&scratch, "x.npy");
    struct npy_array array;
    char error[300] = "";
    write_array();
    reads = 0;
    int whole = npy_read(path.text, &array, error, sizeof error);
    npy_free(&array);
    if (whole || !reads) {
        tap_skip("this build reads by another call", "reads that fail");
        return;
    }
    reading = READ_INTERRUPTED;
    tap_ok(!npy_read(path.text, &array, error, sizeof error) && array.count == 3,
        "interrupted reads are repeated");
    npy_free(&array);
    reading = READ_BYTEWISE;
    const float want[] = {1, 2, 3};
    tap_ok(
        !npy_read(path.text, &array, error, sizeof error) && !memcmp(array.data, want, sizeof want),
        "reads that come byte by byte are put together");
    npy_free(&array);
    reading = READ_END;
    tap_ok(npy_read(path.text, &array, error, sizeof error) && strstr(error, "became shorter"),
        "a file that ends early: %s", error);
    npy_free(&array);
    reading = READ_ERROR;
    tap_ok(npy_read(path.text, &array, error, sizeof error) && strstr(error, strerror(EIO)),
        "a disk that fails: %s", error);
    npy_free(&array);
    reading = READ_WHOLE;
}

int main(void)
{
    if (tap_ok(scratch_create(&scratch), "a folder for the test")) {
        try_all("digest", make_digest);
        try_all("timing", make_timing);
        try_all("text", quote_text);
        try_all("writing a new array", write_new_array);
        try_all("writing over an array", write_array);
        try_all("reading an array", read_array);
        try_all("appending a record", append_record);
        try_all("tracing", trace_everything);
        try_all("host", describe_host);
        test_reads();
        scratch_remove(&scratch);
    }
    return tap_done();
}
