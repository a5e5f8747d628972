/* Histories: launches of a commit on a machine are one point, points stand in the order of time,
 * peaks and times are compared with the right ones; and what of a record is kept. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/harness/record_part.h"
#include "bench/harness/trend.h"
#include "probe/record.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static struct scratch scratch;

struct launch {
    const char *impl, *commit, *cpu, *time;
    int64_t peak_bytes;
    double median_s;
};

static json_t *make_record(const struct launch *launch)
{
    json_t *record = rec_create();
    rec_str(record, "op", "vocab");
    rec_str(record, "impl", launch->impl);
    rec_str(record, "device", "cpu");
    rec_int(record, "config.tokens", 512);
    rec_str(record, "status", "ok");
    rec_str(record, "run.id", launch->time);
    rec_str(record, "run.time", launch->time);
    rec_str(record, "run.git.commit", launch->commit);
    rec_bool(record, "run.git.dirty", false);
    rec_str(record, "env.cpu", launch->cpu);
    rec_int(record, "env.cores", 2);
    rec_str(record, "check.verdict", "bitwise");
    rec_str(record, "time.kind", "measured");
    rec_real(record, "time.median_s", launch->median_s);
    rec_real(record, "time.q1_s", launch->median_s);
    rec_real(record, "time.q3_s", launch->median_s);
    rec_real(record, "throughput.value", 1 / launch->median_s);
    rec_str(record, "throughput.unit", "FLOP/s");
    rec_int(record, "memory.tracked_peak_bytes", launch->peak_bytes);
    rec_int(record, "memory.rss_peak_bytes", 123456);
    json_t *rank = json_pack("{s:f, s:i}", "time_s", launch->median_s, "peak_bytes", 4096);
    rec_json(record, "ranks", json_pack("[o]", rank));
    return record;
}

/* A file of the history with the history part of these launches. */
static void write_history(const char *name, const struct launch *launches, int count)
{
    char error[256] = "";
    struct scratch_path path = scratch_path(&scratch, name);
    for (int i = 0; i < count; i++) {
        json_t *record = make_record(&launches[i]), *part = record_history_part(record);
        if (rec_append(path.text, part, error, sizeof error))
            tap_ok(false, "writing %s: %s", name, error);
        json_decref(record);
        json_decref(part);
    }
}

static const struct trend *find(const struct trends *trends, const char *impl)
{
    for (int i = 0; i < trends->count; i++) {
        const json_t *name = json_object_get(trends->list[i].group->records[0], "impl");
        if (!strcmp(json_string_value(name), impl))
            return &trends->list[i];
    }
    return NULL;
}

static void test_points(void)
{
    /* The later file holds the earlier commit: files are read by name, points stand by time. */
    const struct launch first[] = {
        {"ring-dtp", "bbbb", "X", "2026-02-01T00:00:00Z", 4100, 0.020},
        {"ring-dtp", "bbbb", "X", "2026-02-01T00:01:00Z", 4100, 0.022},
        {"materialized", "bbbb", "X", "2026-02-01T00:00:00Z", 9000, 0.010},
        {"ring-dtp", "cccc", "Y", "2026-03-01T00:00:00Z", 4100, 0.001},
        {"ring-dtp", "dddd", "X", "2026-04-01T00:00:00Z", 4000, 0.010},
    };
    const struct launch second[] = {
        {"ring-dtp", "aaaa", "X", "2026-01-01T00:00:00Z", 4096, 0.010},
    };
    char error[256] = "";
    struct trends trends;
    mkdir(scratch_path(&scratch, "history").text, 0777);
    write_history("history/1.jsonl", first, 5);
    write_history("history/2.jsonl", second, 1);
    int status =
        trends_read(scratch_path(&scratch, "history").text, 0.05, &trends, error, sizeof error);
    const struct trend *ring = status ? NULL : find(&trends, "ring-dtp");
    const struct trend *plain = status ? NULL : find(&trends, "materialized");
    tap_ok(ring && plain && trends.count == 2, "two cases: %s", error);
    if (ring && plain) {
        const struct trend_point *p = ring->points;
        char commit[64] = "";
        bool four = tap_ok(ring->count == 4, "one point for each commit and machine");
        trend_commit(p[0].first, commit, sizeof commit);
        tap_ok(!strcmp(commit, "aaaa"), "the earliest commit stands first, whatever its file");
        if (four) {
            tap_ok(p[1].launches == 2 && fabs(p[1].time.new_s - 0.021) < 1e-12,
                "a point's launches are joined");
            tap_ok(p[1].peak_change == 4 && p[2].peak_change == 0 && p[3].peak_change == -100,
                "peaks are compared across machines");
            tap_ok(p[0].time.verdict == TIME_ABSENT && p[0].time.new_s == 0.010,
                "the first time has nothing to be compared with");
            tap_ok(p[1].time.verdict == TIME_SLOWER, "twice the time is SLOWER");
            tap_ok(p[2].time.verdict == TIME_ABSENT, "another machine's time is not compared");
            tap_ok(p[3].time.verdict == TIME_FASTER && fabs(p[3].time.old_s - 0.021) < 1e-12,
                "the next time of the first machine is compared with its last");
            tap_ok(fabs(p[1].throughput - 1 / 0.021) < 1e-9, "throughput is at the median time");
        }
        tap_ok(plain->count == 1 && plain->points[0].peak_bytes == 9000, "a case met once");
    }
    trends_free(&trends);
    tap_ok(trends_read(
               scratch_path(&scratch, "nothing").text, 0.05, &trends, error, sizeof error) == -1 &&
               strstr(error, "nothing"),
        "a history that is not there is named");
    trends_free(&trends);
}

static void test_parts(void)
{
    const struct launch launch = {"ring-dtp", "aaaa", "X", "2026-01-01T00:00:00Z", 4096, 0.010};
    json_t *record = make_record(&launch);
    json_t *exact = record_exact_part(record);
    tap_ok(json_integer_value(rec_get(exact, "memory.tracked_peak_bytes")) == 4096 &&
               rec_get(exact, "check.verdict") && rec_get(exact, "config.tokens"),
        "the exact part has the case, its check and its peak");
    tap_ok(!rec_get(exact, "run") && !rec_get(exact, "env") && !rec_get(exact, "time") &&
               !rec_get(exact, "memory.rss_peak_bytes") && !rec_get(exact, "throughput") &&
               !json_object_get(json_array_get(rec_get(exact, "ranks"), 0), "time_s"),
        "and nothing that another machine or run would change");
    tap_ok(json_object_get(json_array_get(rec_get(exact, "ranks"), 0), "peak_bytes") != NULL,
        "a rank's peak stays");
    tap_ok(rec_get(record, "memory.rss_peak_bytes") != NULL, "the record itself is as it was");
    json_decref(exact);
    rec_str(record, "time.kind", "simulated");
    exact = record_exact_part(record);
    tap_ok(rec_get(exact, "time.median_s") != NULL, "a simulated time is exact too");
    json_decref(exact);
    json_decref(record);
}

int main(void)
{
    if (!scratch_create(&scratch)) {
        tap_ok(false, "a folder for the files of this test");
        return tap_done();
    }
    test_points();
    test_parts();
    scratch_remove(&scratch);
    return tap_done();
}
