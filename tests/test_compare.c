/* Comparing record files: exact figures to the byte and to the bit, in both directions; times over
 * launches, on equal and on different data; and bad files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/harness/compare.h"
#include "probe/seed.h"
#include "tests/tap.h"

static char folder[] = "/tmp/flatpeak-compare-XXXXXX";

/* ---- records -------------------------------------------------------------------------------- */

static json_t *make_record(const char *impl, int launch, double median_s)
{
    char id[32];
    snprintf(id, sizeof id, "launch-%d", launch);
    return json_pack("{s:i, s:{s:s}, s:s, s:s, s:s, s:{s:i, s:s}, s:s,"
                     " s:{s:s, s:s, s:{s:{s:s, s:s}}},"
                     " s:{s:s, s:f, s:f, s:f},"
                     " s:{s:i, s:i, s:i, s:{s:{s:i, s:i}}, s:i}, s:{s:i}, s:[{s:f, s:i}]}",
        "schema", 1, "run", "id", id, "op", "vocab", "impl", impl, "device", "cpu", "config",
        "tokens", 512, "dtype", "f32", "status", "ok", "check", "verdict", "bitwise", "against",
        "reference", "outputs", "dx", "digest", "0123456789abcdef0123456789abcdef", "order",
        "default", "time", "kind", "measured", "median_s", median_s, "q1_s", median_s * 0.99,
        "q3_s", median_s * 1.01, "memory", "tracked_peak_bytes", 4096, "resident_bytes", 1024,
        "increment_bytes", 3072, "by_live_set", "logits", "peak_bytes", 2048, "at_peak_bytes", 2048,
        "rss_peak_bytes", 1000000, "counts", "gemm_calls", 3, "ranks", "time_s", median_s,
        "peak_bytes", 4096);
}

static void path_of(const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", folder, name);
}

/* Writes records, one a line, and drops them. */
static void write_records(const char *name, json_t *const *records, int count)
{
    char path[256];
    path_of(name, path);
    FILE *file = fopen(path, "w");
    for (int i = 0; file && i < count; i++) {
        char *line = json_dumps(records[i], JSON_COMPACT);
        fprintf(file, "%s\n", line);
        free(line);
    }
    if (file)
        fclose(file);
    for (int i = 0; i < count; i++)
        json_decref(records[i]);
}

static void write_text(const char *name, const char *text)
{
    char path[256];
    path_of(name, path);
    FILE *file = fopen(path, "w");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

static int compare_files(struct comparison *out, char *error, int size)
{
    char old[256], new[256];
    struct compare_settings settings = {0.05, 0.25};
    path_of("old.jsonl", old);
    path_of("new.jsonl", new);
    return comparison_make(old, new, &settings, out, error, size);
}

/* ---- one change ----------------------------------------------------------------------------- */

/* Compares a record with itself after `path` was set to `value` (NULL: removed), and the other way.
 */
static void change(const char *name, const char *object, const char *key, const char *value,
    enum finding_level level, enum finding_level back, const char *words)
{
    char error[256];
    for (int turned = 0; turned < 2; turned++) {
        json_t *plain = make_record("ring-dtp", 1, 0.010);
        json_t *changed = make_record("ring-dtp", 2, 0.010);
        json_t *at = changed;
        char steps[128], *rest = steps;
        snprintf(steps, sizeof steps, "%s", object);
        for (char *step = strtok_r(rest, ".", &rest); step; step = strtok_r(NULL, ".", &rest))
            at = json_object_get(at, step);
        if (value)
            json_object_set_new(at, key, json_loads(value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(at, key);
        write_records("old.jsonl", turned ? &changed : &plain, 1);
        write_records("new.jsonl", turned ? &plain : &changed, 1);
        struct comparison out;
        int status = compare_files(&out, error, sizeof error);
        enum finding_level wanted = turned ? back : level;
        int regressions = wanted == FINDING_REGRESSION;
        bool found = !status && out.paired == 1 && out.regressions + out.differences >= 1 &&
                     (out.regressions > 0) == regressions &&
                     strstr(out.cases[0].findings.list[0].text, words);
        tap_ok(found, "%s%s is a %s that says '%s'", name, turned ? ", backwards," : "",
            regressions ? "regression" : "difference", words);
        if (!found && !status && out.count && out.cases[0].findings.count)
            tap_note("%d and %d, first: %s", out.regressions, out.differences,
                out.cases[0].findings.list[0].text);
        comparison_free(&out);
    }
}

static void test_changes(void)
{
    const enum finding_level worse = FINDING_REGRESSION, other = FINDING_DIFFERENCE;
    change("one byte more at the peak", "memory", "tracked_peak_bytes", "4097", worse, other,
        "memory.tracked_peak_bytes: ");
    change("one byte more in a live set", "memory.by_live_set.logits", "peak_bytes", "2049", worse,
        other, "live set logits: peak_bytes: ");
    change("a live set that is new", "memory.by_live_set", "ring", "{\"peak_bytes\": 4}", other,
        worse, "ring");
    change("a digest", "check.outputs.dx", "digest", "\"1123456789abcdef0123456789abcdef\"", worse,
        worse, "tensor dx: digest");
    change("an order that must be declared", "check.outputs.dx", "order", "\"declared\"", worse,
        other, "tensor dx: order");
    change("a sample for the reference", "check", "against", "\"sample:64\"", worse, other,
        "checked more");
    change("no tensor checked", "check.outputs", "dx", NULL, worse, other, "tensor dx");
    change("a weaker verdict", "check", "verdict", "\"bounded\"", worse, other, "check verdict");
    change("a mismatch", "check", "verdict", "\"mismatch\"", worse, other, "check verdict");
    change("out of memory", "", "status", "\"oom\"", worse, other, "status: ");
    change("an error", "", "status", "\"error\"", worse, other, "status: ");
    change("a count", "counts", "gemm_calls", "4", other, other, "counts.gemm_calls");
    change("a figure that is gone", "memory", "increment_bytes", NULL, worse, other,
        "memory.increment_bytes");
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void test_cases(void)
{
    char error[256];
    struct comparison out;
    json_t *old[] = {make_record("materialized", 1, 0.01), make_record("ring-dtp", 1, 0.01)};
    json_t *new[] = {make_record("materialized", 2, 0.01), make_record("chunked-tokens", 2, 0.01)};
    write_records("old.jsonl", old, 2);
    write_records("new.jsonl", new, 2);
    tap_ok(!compare_files(&out, error, sizeof error) && out.paired == 1 && out.vanished == 1 &&
               out.added == 1,
        "a vanished and a new case are told apart from a paired one");
    tap_ok(out.regressions == 1 && out.differences == 1,
        "a vanished case is a regression, a new one a difference");
    comparison_free(&out);

    json_t *small[] = {make_record("ring-dtp", 1, 0.01)};
    json_t *large[] = {make_record("ring-dtp", 2, 0.01)};
    json_object_set_new(json_object_get(large[0], "config"), "tokens", json_integer(1024));
    write_records("old.jsonl", small, 1);
    write_records("new.jsonl", large, 1);
    tap_ok(!compare_files(&out, error, sizeof error) && !out.paired,
        "another configuration is another case");
    comparison_free(&out);

    json_t *rss[] = {make_record("ring-dtp", 1, 0.01)};
    json_t *more_rss[] = {make_record("ring-dtp", 2, 0.01)};
    json_object_set_new(
        json_object_get(more_rss[0], "memory"), "rss_peak_bytes", json_integer(1200000));
    write_records("old.jsonl", rss, 1);
    write_records("new.jsonl", more_rss, 1);
    tap_ok(!compare_files(&out, error, sizeof error) && !out.regressions && !out.differences,
        "resident bytes may grow within the tolerance");
    comparison_free(&out);

    json_t *low[] = {make_record("ring-dtp", 1, 0.01)};
    json_t *doubled[] = {make_record("ring-dtp", 2, 0.01)};
    json_object_set_new(
        json_object_get(doubled[0], "memory"), "rss_peak_bytes", json_integer(2000000));
    write_records("old.jsonl", low, 1);
    write_records("new.jsonl", doubled, 1);
    tap_ok(!compare_files(&out, error, sizeof error) && out.regressions == 1 &&
               strstr(out.cases[0].findings.list[0].text, "memory.rss_peak_bytes"),
        "and not beyond it");
    comparison_free(&out);

    json_t *steady[] = {make_record("ring-dtp", 1, 0.01)};
    json_t *varying[] = {make_record("ring-dtp", 2, 0.01), make_record("ring-dtp", 3, 0.01)};
    json_object_set_new(
        json_object_get(varying[1], "memory"), "tracked_peak_bytes", json_integer(4097));
    write_records("old.jsonl", steady, 1);
    write_records("new.jsonl", varying, 2);
    tap_ok(!compare_files(&out, error, sizeof error) && out.regressions == 1 &&
               strstr(out.cases[0].findings.list[0].text, "new launch 2"),
        "a launch that differs from the others is found");
    comparison_free(&out);
}

/* ---- times ---------------------------------------------------------------------------------- */

/* A standard normal deviate that depends on (seed, index) alone. */
static double normal(uint64_t seed, int64_t index)
{
    double u = ((double)(seed_bits(seed, 0, index) >> 11) + 0.5) / 9007199254740992.0;
    double v = (double)(seed_bits(seed, 1, index) >> 11) / 9007199254740992.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Launches as they come: 2 % of spread from launch to launch, one in twelve disturbed by up to 30
 * %, and samples that agree with each other better than launches do. */
static void draw_launches(
    struct time_launch *launches, int count, double mean_s, uint64_t seed, int64_t first)
{
    for (int i = 0; i < count; i++) {
        double median = mean_s * exp(0.02 * normal(seed, first + i));
        if (seed_index(seed, 2, first + i, 12) == 0)
            median *= 1 + 0.3 * (double)seed_index(seed, 3, first + i, 100) / 100;
        launches[i] = (struct time_launch){median, median * 0.996, median * 1.005};
    }
}

struct tally {
    int verdicts[TIME_UNSURE + 1];
};

static struct tally tally_pairs(int launches, double ratio, uint64_t seed)
{
    struct tally tally = {{0}};
    struct time_launch old[16], new[16];
    for (int pair = 0; pair < 200; pair++) {
        struct time_comparison out;
        draw_launches(old, launches, 0.010, seed, 2 * pair * 16);
        draw_launches(new, launches, 0.010 * ratio, seed, (2 * pair + 1) * 16);
        compare_times(old, launches, new, launches, 0.05, false, &out);
        tally.verdicts[out.verdict]++;
    }
    return tally;
}

static void test_times(void)
{
    static const int launches[] = {1, 3, 5, 10};
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        struct tally same = tally_pairs(launches[i], 1.0, 11);
        int wrong = same.verdicts[TIME_FASTER] + same.verdicts[TIME_SLOWER];
        tap_ok(wrong <= 10, "A/A, %d launches: %d of 200 pairs get a wrong verdict (%d unsure)",
            launches[i], wrong, same.verdicts[TIME_UNSURE]);
    }
    struct tally slower = tally_pairs(5, 1.2, 12), faster = tally_pairs(5, 1 / 1.2, 13);
    tap_ok(slower.verdicts[TIME_SLOWER] >= 150 && !slower.verdicts[TIME_FASTER] &&
               !slower.verdicts[TIME_SAME],
        "20 %% slower, 5 launches: found in %d of 200", slower.verdicts[TIME_SLOWER]);
    tap_ok(faster.verdicts[TIME_FASTER] >= 150 && !faster.verdicts[TIME_SLOWER] &&
               !faster.verdicts[TIME_SAME],
        "20 %% faster, 5 launches: found in %d of 200", faster.verdicts[TIME_FASTER]);
    struct tally small = tally_pairs(10, 1.02, 14);
    tap_ok(small.verdicts[TIME_SLOWER] <= 10 && !small.verdicts[TIME_FASTER],
        "2 %% is below the smallest effect of 5 %%: SLOWER in %d of 200",
        small.verdicts[TIME_SLOWER]);
    struct tally long_run = tally_pairs(10, 1.0, 15);
    tap_ok(long_run.verdicts[TIME_SAME] >= 150, "10 launches of the same: SAME in %d of 200",
        long_run.verdicts[TIME_SAME]);
}

static void test_few_launches(void)
{
    struct time_comparison out;
    struct time_launch old = {0.010, 0.0099, 0.0101}, near = {0.0108, 0.0107, 0.0109};
    struct time_launch far = {0.013, 0.0129, 0.0131};
    compare_times(&old, 1, &near, 1, 0.05, false, &out);
    tap_ok(out.verdict == TIME_UNSURE && out.basis == TIME_BY_QUARTILES && isnan(out.ratio_low),
        "one launch, 8 %% apart: UNSURE");
    compare_times(&old, 1, &far, 1, 0.05, false, &out);
    tap_ok(out.verdict == TIME_SLOWER, "one launch, 30 %% apart: SLOWER");
    compare_times(&far, 1, &old, 1, 0.05, false, &out);
    tap_ok(out.verdict == TIME_FASTER, "the other way: FASTER");
    compare_times(&old, 1, &old, 1, 0.05, false, &out);
    tap_ok(out.verdict == TIME_SAME, "the same figures: SAME");
    compare_times(&old, 1, &near, 1, 0.05, true, &out);
    tap_ok(out.verdict == TIME_SLOWER && out.basis == TIME_BY_MODEL,
        "a simulated time has no noise: 8 %% is SLOWER");
}

/* The interval of 5 and 5 launches is known: of 25 sorted ratios, the 3rd and the 23rd (the table
 * of the Mann-Whitney count says P(U <= 2) = 4/252, P(U <= 3) = 7/252). */
static void test_interval(void)
{
    struct time_comparison out;
    struct time_launch old[5], new[5];
    double ratios[25];
    for (int i = 0; i < 5; i++) {
        old[i].median_s = 1;
        new[i].median_s = 1 + 0.001 * i;
    }
    compare_times(old, 5, new, 5, 0.05, false, &out);
    tap_ok(out.basis == TIME_BY_LAUNCHES && out.ratio_low == 1 && out.ratio_high == 1.004,
        "with equal old launches the interval spans the new ones");
    for (int i = 0; i < 5; i++) {
        old[i].median_s = 1 / (1 + 0.1 * i);
        new[i].median_s = 1 + 0.013 * i;
    }
    for (int i = 0; i < 25; i++)
        ratios[i] = new[i % 5].median_s / old[i / 5].median_s;
    compare_times(old, 5, new, 5, 0.05, false, &out);
    int below = 0, above = 0;
    for (int i = 0; i < 25; i++) {
        below += ratios[i] < out.ratio_low;
        above += ratios[i] > out.ratio_high;
    }
    tap_ok(below == 2 && above == 2, "5 and 5 launches: 2 of 25 ratios lie outside on each side");
}

/* ---- bad files ------------------------------------------------------------------------------ */

static void refused(const char *text, const char *words)
{
    char error[512] = "";
    struct comparison out;
    json_t *good = make_record("ring-dtp", 1, 0.01);
    write_records("old.jsonl", &good, 1);
    write_text("new.jsonl", text);
    int status = compare_files(&out, error, sizeof error);
    bool right = tap_ok(
        status && strstr(error, "new.jsonl") && strstr(error, words), "refused, with '%s'", words);
    if (!right)
        tap_note("got: %s", error);
    comparison_free(&out);
}

static void test_bad_files(void)
{
    char error[256], path[256];
    struct comparison out;
    static const char good[] =
        "{\"schema\": 1, \"op\": \"vocab\", \"impl\": \"ring-dtp\", \"device\": \"cpu\","
        " \"config\": {}, \"status\": \"ok\"}\n";
    char two_lines[1024];
    refused("", "no records");
    snprintf(two_lines, sizeof two_lines, "%s%s", good, "{\"schema\": 1, \"op\": \"vo");
    refused(two_lines, ":2");
    snprintf(two_lines, sizeof two_lines, "%s%s", good, "{\"schema\": 1, \"op\": \"vocab\"}\n");
    refused(two_lines, ":2: the record has no 'impl'");
    refused("{\"schema\": 1000000, \"op\": \"vocab\"}\n", ":1");
    path_of("new.jsonl", path);
    unlink(path);
    tap_ok(compare_files(&out, error, sizeof error) && strstr(error, "new.jsonl"),
        "a file that is not there is named");
    comparison_free(&out);
}

int main(void)
{
    if (!mkdtemp(folder)) {
        tap_ok(false, "a folder for the files of this test");
        return tap_done();
    }
    test_changes();
    test_cases();
    test_times();
    test_few_launches();
    test_interval();
    test_bad_files();
    char path[256];
    path_of("old.jsonl", path);
    unlink(path);
    path_of("new.jsonl", path);
    unlink(path);
    rmdir(folder);
    return tap_done();
}
