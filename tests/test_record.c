/* Records: paths, figures that are none, lines that are written whole or not at all, and a reader
 * that names what is wrong and where. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include "probe/record.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static struct scratch scratch;

static bool dumps_as(const json_t *rec, const char *want)
{
    char *text = json_dumps(rec, JSON_COMPACT);
    bool same = text && !strcmp(text, want);
    if (!same)
        tap_note("%s", text ? text : "(nothing)");
    free(text);
    return same;
}

static void test_paths(void)
{
    json_t *rec = rec_create();
    tap_ok(dumps_as(rec, "{\"schema\":1}"), "a new record is its schema number");
    rec_int(rec, "memory.tracked_peak_bytes", INT64_MAX);
    rec_int(rec, "memory.by_live_set.logits.peak_bytes", -1);
    rec_real(rec, "time.median_s", 0.5);
    rec_bool(rec, "ok", true);
    rec_str(rec, "op", "vocab \"x\"\n");
    rec_json(rec, "plan", json_pack("{s:i}", "k", 3));
    const double samples[] = {1, 0.25};
    rec_reals(rec, "time.samples_s", samples, 2);
    rec_reals(rec, "time.none", NULL, 0);
    tap_ok(dumps_as(rec,
               "{\"schema\":1,\"memory\":{\"tracked_peak_bytes\":9223372036854775807,"
               "\"by_live_set\":{\"logits\":{\"peak_bytes\":-1}}},\"time\":{\"median_s\":0.5,"
               "\"samples_s\":[1.0,0.25],\"none\":[]},\"ok\":true,\"op\":\"vocab \\\"x\\\"\\n\","
               "\"plan\":{\"k\":3}}"),
        "paths make the objects on the way");
    tap_ok(json_real_value(rec_get(rec, "time.median_s")) == 0.5 &&
               json_integer_value(rec_get(rec, "plan.k")) == 3 &&
               json_is_object(rec_get(rec, "time")),
        "what was set is found");
    tap_ok(!rec_get(rec, "time.q1_s") && !rec_get(rec, "nothing.here") &&
               !rec_get(rec, "ok.further") && !rec_get(rec, "time.") && !rec_get(NULL, "time"),
        "what was not is NULL");
    json_decref(rec);
}

static void test_last_wins(void)
{
    json_t *rec = rec_create();
    rec_int(rec, "a", 1);
    rec_int(rec, "a", 2);
    rec_int(rec, "b", 1);
    rec_int(rec, "b.c", 2);
    rec_int(rec, "d.e", 1);
    rec_int(rec, "d", 2);
    tap_ok(dumps_as(rec, "{\"schema\":1,\"a\":2,\"b\":{\"c\":2},\"d\":2}"),
        "the last call for a path wins, over objects too");
    json_decref(rec);
}

static void test_not_finite(void)
{
    json_t *rec = rec_create();
    const double samples[] = {1, NAN, 2};
    rec_real(rec, "a.b", NAN);
    rec_real(rec, "c", INFINITY);
    rec_reals(rec, "samples_s", samples, 3);
    tap_ok(dumps_as(rec, "{\"schema\":1}"), "what is not finite is absent");
    rec_real(rec, "a.b", 1);
    rec_real(rec, "a.b", -INFINITY);
    rec_reals(rec, "samples_s", samples, 1);
    rec_reals(rec, "samples_s", samples, 3);
    tap_ok(dumps_as(rec, "{\"schema\":1,\"a\":{}}"), "and takes an earlier value away");
    json_decref(rec);
}

static void test_text(void)
{
    json_t *rec = rec_create();
    rec_str(rec, "utf8", "\xc3\xa9");
    rec_str(rec, "latin1", "caf\xe9");
    tap_ok(dumps_as(rec, "{\"schema\":1,\"utf8\":\"\xc3\xa9\",\"latin1\":\"caf?\"}"),
        "a text that is not UTF-8 loses those bytes and not the record");
    json_decref(rec);
}

static void test_round_trip(void)
{
    struct scratch_path path = scratch_path(&scratch, "round.jsonl");
    char error[300] = "";
    static const double values[] = {0.1, 1e-9, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0};
    bool exact = true;
    for (int i = 0; i < 6; i++) {
        json_t *rec = rec_create();
        rec_real(rec, "x", values[i]);
        rec_int(rec, "i", INT64_MIN + i);
        exact &= !rec_append(path.text, rec, error, sizeof error);
        json_decref(rec);
    }
    json_t *all = rec_read(path.text, error, sizeof error);
    exact &= json_array_size(all) == 6;
    for (int i = 0; i < 6 && exact; i++) {
        const json_t *rec = json_array_get(all, (size_t)i);
        double got = json_real_value(rec_get(rec, "x"));
        exact &= !memcmp(&got, &values[i], sizeof got) &&
                 json_integer_value(rec_get(rec, "i")) == INT64_MIN + i;
    }
    tap_ok(exact, "figures come back to the last bit %s", error);
    json_decref(all);
}

static void test_read_errors(void)
{
    static const struct {
        const char *text, *reason;
    } wrong[] = {
        {"{\"schema\":1}\nhello\n", ":2: not JSON"},
        {"{\"schema\":1} {\"schema\":1}\n", ":1: not JSON"},
        {"{\"schema\":1}\n\n{\"schema\":1,\"x\":[1,2", ":3: cut in the middle, after 20 bytes"},
        {"{\"schema\":1,\"x\n{\"schema\":1}\n", ":1: not JSON"},
        {"{\"schema\":1,\"x\":\n{\"schema\":1}\n", ":1: cut in the middle"},
        {"{\"schema\":1,\"x\":tru", ":1: cut in the middle"},
        {"{\"op\":\"vocab\"}\n", ":1: no \"schema\"; allowed is 1"},
        {"{\"schema\":2}\n", ":1: schema 2 is newer than this program; allowed is 1"},
        {"{\"schema\":0}\n", ":1: \"schema\" is no number of a schema"},
        {"{\"schema\":\"1\"}\n", ":1: \"schema\" is no number of a schema"},
        {"[1]\n", ":1: not a JSON object"},
        {"{\"schema\":1,\"schema\":1}\n", ":1: not JSON: duplicate"},
        {"{\"schema\":1,\"x\":NaN}\n", ":1: not JSON"},
    };
    struct scratch_path path = scratch_path(&scratch, "wrong.jsonl");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char error[500] = "";
        scratch_text(path.text, wrong[i].text);
        json_t *all = rec_read(path.text, error, sizeof error);
        const char *name = strstr(error, "wrong.jsonl");
        tap_ok(!all && name && strstr(name, wrong[i].reason), "%s", name ? name : error);
        json_decref(all);
    }
    char error[500];
    const char zero[] = "{\"schema\":1}\n{\"schema\":1,\0}\n";
    scratch_write(path.text, zero, sizeof zero - 1);
    tap_ok(!rec_read(path.text, error, sizeof error) && strstr(error, ":2: cut in the middle"),
        "a zero byte: %s", strstr(error, "wrong"));
    tap_ok(!rec_read("/nonexistent/r.jsonl", error, sizeof error) && strstr(error, "No such file"),
        "%s", error);
    tap_ok(
        !rec_read(scratch.folder, error, sizeof error) && strstr(error, "directory"), "a folder");
}

static void test_read_accepts(void)
{
    struct scratch_path path = scratch_path(&scratch, "fine.jsonl");
    char error[300];
    scratch_text(path.text, "");
    json_t *all = rec_read(path.text, error, sizeof error);
    tap_ok(all && json_array_size(all) == 0, "an empty file has no records");
    json_decref(all);
    scratch_text(path.text, "{\"schema\":1}\n\n \t\r\n{ \"schema\" : 1 , \"x\" : 2 }");
    all = rec_read(path.text, error, sizeof error);
    tap_ok(all && json_array_size(all) == 2 &&
               json_integer_value(rec_get(json_array_get(all, 1), "x")) == 2,
        "empty lines, white space and a missing last newline are fine");
    json_decref(all);
}

static void test_append_errors(void)
{
    char error[300];
    json_t *rec = rec_create();
    tap_ok(rec_append("/nonexistent/r.jsonl", rec, error, sizeof error) == -1 &&
               strstr(error, "/nonexistent/r.jsonl: No such file"),
        "%s", error);
    tap_ok(rec_append("/dev/full", rec, error, sizeof error) == -1 &&
               strstr(error, "/dev/full: No space left"),
        "%s", error);
    tap_ok(rec_append(scratch.folder, rec, error, sizeof error) == -1 && strstr(error, "directory"),
        "a folder is refused");
    struct scratch_path path = scratch_path(&scratch, "none.jsonl");
    rec_json(rec, "plan", NULL);
    tap_ok(rec_append(path.text, rec, error, sizeof error) == -1 && strstr(error, "incomplete") &&
               access(path.text, F_OK),
        "a value that could not be made spoils the record, and no file is made");
    json_decref(rec);

    rec = rec_create();
    char name[300];
    memset(name, 'a', sizeof name);
    memcpy(name + sizeof name - 3, ".b", 3);
    rec_int(rec, name, 1);
    tap_ok(rec_append(path.text, rec, error, sizeof error) == -1 && strstr(error, "incomplete"),
        "so does an object's name that is too long");
    json_decref(rec);
}

/* A file size limit stands for a disk with room for a part of the line. */
static void test_full_disk(void)
{
    struct scratch_path path = scratch_path(&scratch, "full.jsonl");
    char error[500];
    struct rlimit before, small;
    json_t *rec = rec_create();
    rec_str(rec, "op", "a text that makes the line longer than a few bytes");
    rec_append(path.text, rec, error, sizeof error);
    size_t length, length_after;
    free(scratch_read(path.text, &length));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = length + 20;
    setrlimit(RLIMIT_FSIZE, &small);
    int part = rec_append(path.text, rec, error, sizeof error);
    char none_error[500];
    small.rlim_cur = length;
    setrlimit(RLIMIT_FSIZE, &small);
    int none = rec_append(path.text, rec, none_error, sizeof none_error);
    setrlimit(RLIMIT_FSIZE, &before);
    tap_ok(part == -1 && strstr(error, "20 of") && strstr(error, "taken back"), "%s", error);
    tap_ok(none == -1 && strstr(none_error, "nothing was written"), "%s", none_error);
    free(scratch_read(path.text, &length_after));
    json_t *all = rec_read(path.text, error, sizeof error);
    tap_ok(
        length_after == length && json_array_size(all) == 1, "no part of a line stays in the file");
    json_decref(all);
    tap_ok(!rec_append(path.text, rec, error, sizeof error), "and with room again it goes on");
    json_decref(rec);
}

static void test_cut_line_is_ended(void)
{
    struct scratch_path path = scratch_path(&scratch, "cut.jsonl");
    char error[300];
    size_t count;
    json_t *rec = rec_create();
    scratch_text(path.text, "{\"schema\":1}\n{\"schema\":1,\"x\":");
    rec_append(path.text, rec, error, sizeof error);
    rec_append(path.text, rec, error, sizeof error);
    char *text = scratch_read(path.text, &count);
    tap_ok(text && !strcmp(text,
                       "{\"schema\":1}\n{\"schema\":1,\"x\":\n{\"schema\":1}\n{\"schema\":1}\n"),
        "a line that somebody left cut is ended before the next");
    tap_ok(!rec_read(path.text, error, sizeof error) && strstr(error, ":2: cut in the middle"),
        "and the reader names it");
    free(text);
    json_decref(rec);
}

enum { THREADS = 4, LINES = 50 };

static void *append_many(void *argument)
{
    const char *path = argument;
    char error[300], filler[3000];
    memset(filler, 'x', sizeof filler);
    filler[sizeof filler - 1] = 0;
    intptr_t failures = 0;
    for (int i = 0; i < LINES; i++) {
        json_t *rec = rec_create();
        rec_int(rec, "line", i);
        rec_str(rec, "filler", filler);
        failures += rec_append(path, rec, error, sizeof error) != 0;
        json_decref(rec);
    }
    return (void *)failures;
}

static void test_concurrent(void)
{
    struct scratch_path path = scratch_path(&scratch, "many.jsonl");
    pthread_t threads[THREADS];
    char error[300] = "";
    intptr_t failures = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, append_many, path.text);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failures += (intptr_t)result;
    }
    json_t *all = rec_read(path.text, error, sizeof error);
    tap_ok(!failures && json_array_size(all) == THREADS * LINES,
        "lines of %d writers at once do not mix %s", THREADS, error);
    json_decref(all);
}

/* Memory that runs out after so many allocations of jansson. */
static int allocations_left;

static void *scarce(size_t bytes)
{
    return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

static void test_short_memory(void)
{
    struct scratch_path path = scratch_path(&scratch, "scarce.jsonl");
    const double samples[] = {1, 2, 3};
    int refused = 0, written = 0, no_record = 0, no_line = 0;
    bool whole = true;
    for (int limit = 0; limit < 200; limit++) {
        char error[300] = "";
        json_set_alloc_funcs(scarce, free);
        allocations_left = limit;
        json_t *rec = rec_create();
        if (rec) {
            rec_int(rec, "a.b.c", 1);
            rec_str(rec, "a.text", "latin\xe9");
            rec_reals(rec, "samples_s", samples, 3);
            rec_real(rec, "a.none", NAN);
            int result = rec_append(path.text, rec, error, sizeof error);
            written += !result;
            refused += result && strstr(error, "incomplete");
            no_line += result && strstr(error, "no memory");
            allocations_left = 1000;
            whole &=
                result || dumps_as(rec, "{\"schema\":1,\"a\":{\"b\":{\"c\":1},\"text\":\"latin?\"},"
                                        "\"samples_s\":[1.0,2.0,3.0]}");
            json_decref(rec);
        } else {
            no_record++;
        }
        json_set_alloc_funcs(malloc, free);
    }
    char error[300];
    json_t *all = rec_read(path.text, error, sizeof error);
    tap_ok(no_record && refused && written && no_line && whole &&
               no_record + refused + written + no_line == 200 &&
               json_array_size(all) == (size_t)written,
        "short memory: %d times no record, %d refused, %d no line, %d whole", no_record, refused,
        no_line, written);
    json_decref(all);
}

static void test_short_memory_reading(void)
{
    struct scratch_path path = scratch_path(&scratch, "scarce-read.jsonl");
    int failed = 0, read = 0;
    bool named = true;
    scratch_text(path.text, "{\"schema\":1,\"a\":[1,2,{\"b\":3}]}\n{\"schema\":1}\n");
    for (int limit = 0; limit < 100; limit++) {
        char error[300] = "";
        json_set_alloc_funcs(scarce, free);
        allocations_left = limit;
        json_t *all = rec_read(path.text, error, sizeof error);
        failed += !all;
        read += json_array_size(all) == 2;
        named &= all || strstr(error, "scarce-read.jsonl") != NULL;
        json_decref(all);
        json_set_alloc_funcs(malloc, free);
    }
    tap_ok(failed && read && failed + read == 100 && named,
        "short memory: read whole (%d times) or not at all (%d)", read, failed);
}

int main(void)
{
    if (tap_ok(scratch_create(&scratch), "a folder for the test")) {
        test_paths();
        test_last_wins();
        test_not_finite();
        test_text();
        test_round_trip();
        test_read_errors();
        test_read_accepts();
        test_append_errors();
        test_full_disk();
        test_cut_line_is_ended();
        test_concurrent();
        test_short_memory();
        test_short_memory_reading();
        scratch_remove(&scratch);
    }
    return tap_done();
}
