/* Points of a trend: records of one case put together by commit and machine. */
#include "bench/harness/trend.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "probe/record.h"

#define COMMIT_DIGITS 12

static const char *text_at(const json_t *record, const char *path)
{
    const char *text = json_string_value(rec_get(record, path));
    return text ? text : "";
}

void trend_commit(const json_t *record, char *text, int size)
{
    const char *commit = text_at(record, "run.git.commit");
    snprintf(text, (size_t)size, "%.*s%s", COMMIT_DIGITS, *commit ? commit : "none",
        json_is_true(rec_get(record, "run.git.dirty")) ? "+" : "");
}

/* Times can be compared: the same processor, as many cores. */
static bool same_machine(const json_t *a, const json_t *b)
{
    return !strcmp(text_at(a, "env.cpu"), text_at(b, "env.cpu")) &&
           json_integer_value(rec_get(a, "env.cores")) ==
               json_integer_value(rec_get(b, "env.cores"));
}

static bool same_point(const json_t *a, const json_t *b)
{
    char left[64], right[64];
    trend_commit(a, left, sizeof left);
    trend_commit(b, right, sizeof right);
    return !strcmp(left, right) && same_machine(a, b);
}

/* Times are written as 2026-01-31T10:00:00Z, whose order is that of their text. */
static int compare_record_times(const void *a, const void *b)
{
    return strcmp(text_at(*(const json_t *const *)a, "run.time"),
        text_at(*(const json_t *const *)b, "run.time"));
}

static int compare_point_times(const void *a, const void *b)
{
    return strcmp(text_at(((const struct trend_point *)a)->first, "run.time"),
        text_at(((const struct trend_point *)b)->first, "run.time"));
}

/* The launches of a point, to be freed; NULL when memory is short or there is none. */
static struct time_launch *launches_of(
    const struct record_group *group, const struct trend_point *point, int *count)
{
    struct time_launch *launches = malloc((size_t)group->count * sizeof *launches);
    *count = 0;
    for (int i = 0; launches && i < group->count; i++) {
        const json_t *time = json_object_get(group->records[i], "time");
        double median_s = json_number_value(json_object_get(time, "median_s"));
        if (!same_point(group->records[i], point->first) || !(median_s > 0))
            continue;
        launches[(*count)++] =
            (struct time_launch){median_s, json_number_value(json_object_get(time, "q1_s")),
                json_number_value(json_object_get(time, "q3_s"))};
    }
    if (!*count) {
        free(launches);
        launches = NULL;
    }
    return launches;
}

static void compare_with_earlier(
    struct trend *trend, int index, const struct time_launch *launches, double min_effect)
{
    struct trend_point *point = &trend->points[index];
    bool simulated = !strcmp(text_at(point->first, "time.kind"), "simulated");
    for (int i = index - 1; i >= 0; i--) {
        int count;
        if (!simulated && !same_machine(trend->points[i].first, point->first))
            continue;
        struct time_launch *earlier = launches_of(trend->group, &trend->points[i], &count);
        if (!earlier)
            continue;
        compare_times(
            earlier, count, launches, point->launches, min_effect, simulated, &point->time);
        free(earlier);
        return;
    }
    /* Nothing to compare with: with itself, for its median alone. */
    compare_times(
        launches, point->launches, launches, point->launches, min_effect, simulated, &point->time);
    point->time.verdict = TIME_ABSENT;
}

static void fill_point(struct trend *trend, int index, double min_effect)
{
    struct trend_point *point = &trend->points[index];
    point->peak_bytes = -1;
    for (int i = 0; i < trend->group->count; i++) {
        const json_t *record = trend->group->records[i];
        const json_t *peak = rec_get(record, "memory.tracked_peak_bytes");
        if (same_point(record, point->first) && json_integer_value(peak) > point->peak_bytes)
            point->peak_bytes = json_integer_value(peak);
    }
    if (index && point->peak_bytes >= 0 && trend->points[index - 1].peak_bytes >= 0)
        point->peak_change = point->peak_bytes - trend->points[index - 1].peak_bytes;
    point->throughput = NAN;
    struct time_launch *launches = launches_of(trend->group, point, &point->launches);
    if (!launches)
        return;
    compare_with_earlier(trend, index, launches, min_effect);
    const json_t *rate = rec_get(point->first, "throughput.value");
    const json_t *median = rec_get(point->first, "time.median_s");
    if (json_is_number(rate) && json_is_number(median))
        point->throughput = json_number_value(rate) * json_number_value(median) / point->time.new_s;
    free(launches);
}

/* 0, or -1 when memory is short. */
static int make_trend(struct trend *trend, const struct record_group *group, double min_effect)
{
    trend->group = group;
    trend->points = calloc((size_t)group->count, sizeof *trend->points);
    if (!trend->points)
        return -1;
    qsort(group->records, (size_t)group->count, sizeof *group->records, compare_record_times);
    for (int i = 0; i < group->count; i++) {
        bool known = false;
        for (int j = 0; j < trend->count && !known; j++)
            known = same_point(group->records[i], trend->points[j].first);
        if (!known)
            trend->points[trend->count++].first = group->records[i];
    }
    qsort(trend->points, (size_t)trend->count, sizeof *trend->points, compare_point_times);
    for (int i = 0; i < trend->count; i++)
        fill_point(trend, i, min_effect);
    return 0;
}

int trends_read(const char *path, double min_effect, struct trends *trends, char *error, int size)
{
    memset(trends, 0, sizeof *trends);
    if (record_set_read(path, &trends->records, error, size))
        return -1;
    trends->list = calloc((size_t)trends->records.count, sizeof *trends->list);
    for (int i = 0; trends->list && i < trends->records.count; i++) {
        if (make_trend(&trends->list[trends->count++], &trends->records.cases[i], min_effect))
            break;
    }
    if (trends->list && trends->count == trends->records.count &&
        trends->list[trends->count - 1].points)
        return 0;
    snprintf(error, (size_t)size, "%s: memory is short", path);
    return -1;
}

void trends_free(struct trends *trends)
{
    for (int i = 0; i < trends->count; i++)
        free(trends->list[i].points);
    free(trends->list);
    record_set_free(&trends->records);
    memset(trends, 0, sizeof *trends);
}
