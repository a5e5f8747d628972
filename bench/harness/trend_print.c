/* A history as a table and as JSON. */
#include <math.h>
#include <string.h>
#include "bench/harness/trend.h"
#include "bench/harness/units.h"
#include "probe/record.h"

static bool has_moved(const struct trend_point *point)
{
    return point->peak_change || point->time.verdict == TIME_FASTER ||
           point->time.verdict == TIME_SLOWER;
}

static bool has_changed(const struct trend *trend)
{
    for (int i = 0; i < trend->count; i++) {
        if (has_moved(&trend->points[i]))
            return true;
    }
    return false;
}

/* "2026-01-31" */
static const char *day_of(const json_t *record, char text[16])
{
    const char *time = json_string_value(rec_get(record, "run.time"));
    snprintf(text, 16, "%.10s", time ? time : "-");
    return text;
}

static void print_point(const struct trend_point *point, FILE *out)
{
    char day[16], commit[64], peak[32] = "-", change[48] = "", time[32] = "-", rate[48] = "";
    trend_commit(point->first, commit, sizeof commit);
    if (point->peak_bytes >= 0)
        units_bytes(point->peak_bytes, peak, sizeof peak);
    if (point->peak_change)
        snprintf(change, sizeof change, "%+lld B", (long long)point->peak_change);
    if (point->launches)
        units_seconds(point->time.new_s, time, sizeof time);
    const char *unit = json_string_value(rec_get(point->first, "throughput.unit"));
    if (isfinite(point->throughput) && unit)
        units_rate(point->throughput, unit, rate, sizeof rate);
    fprintf(out, "    %s  %-13s  %10s %14s  %10s  %-15s  %d launch%-2s  %s\n",
        day_of(point->first, day), commit, peak, change, time, rate, point->launches,
        point->launches == 1 ? "" : "es", time_verdict_name(point->time.verdict));
}

int trends_print(const struct trends *trends, bool changed_only, FILE *out)
{
    const struct record_set *const sets[] = {&trends->records};
    int points = 0, higher = 0, lower = 0, times[TIME_UNSURE + 1] = {0};
    for (int i = 0; i < trends->count; i++) {
        const struct trend *trend = &trends->list[i];
        bool shown = !changed_only || has_changed(trend);
        if (shown) {
            record_set_print_case(out, trend->group->records[0], sets, 1);
            fputc('\n', out);
        }
        for (int j = 0; j < trend->count; j++) {
            const struct trend_point *point = &trend->points[j];
            if (shown)
                print_point(point, out);
            points++;
            higher += point->peak_change > 0;
            lower += point->peak_change < 0;
            times[point->time.verdict]++;
        }
    }
    fprintf(out,
        "%d cases, %d points; peaks: %d rose, %d fell; times against the point before on the same "
        "machine: %d same, %d faster, %d slower, %d unsure\n",
        trends->count, points, higher, lower, times[TIME_SAME], times[TIME_FASTER],
        times[TIME_SLOWER], times[TIME_UNSURE]);
    return ferror(out) ? -1 : 0;
}

static json_t *point_json(const struct trend_point *point)
{
    char commit[64];
    json_t *object = json_object();
    trend_commit(point->first, commit, sizeof commit);
    rec_str(object, "commit", commit);
    rec_int(object, "launches", point->launches);
    rec_int(object, "peak_change_bytes", point->peak_change);
    if (point->peak_bytes >= 0)
        rec_int(object, "tracked_peak_bytes", point->peak_bytes);
    if (point->launches) {
        rec_real(object, "median_s", point->time.new_s);
        rec_real(object, "throughput", point->throughput);
    }
    if (point->time.verdict != TIME_ABSENT) {
        rec_str(object, "verdict", time_verdict_name(point->time.verdict));
        rec_real(object, "ratio", point->time.ratio);
    }
    const json_t *time = rec_get(point->first, "run.time");
    if (time)
        rec_json(object, "time", json_deep_copy(time));
    return object;
}

int trends_print_json(const struct trends *trends, FILE *out)
{
    static const char *const keys[] = {"op", "impl", "device", "config"};
    json_t *cases = json_array();
    for (int i = 0; i < trends->count; i++) {
        const struct trend *trend = &trends->list[i];
        json_t *object = json_object(), *points = json_array();
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            json_object_set(object, keys[k], json_object_get(trend->group->records[0], keys[k]));
        for (int j = 0; j < trend->count; j++)
            json_array_append_new(points, point_json(&trend->points[j]));
        json_object_set_new(object, "points", points);
        json_array_append_new(cases, object);
    }
    int status = json_dumpf(cases, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    fputc('\n', out);
    json_decref(cases);
    return status;
}
