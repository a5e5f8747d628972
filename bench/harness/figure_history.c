/* Peak and throughput over the commits of a history: of every family the streaming schedule, its
 * first two cases. */
#include <stdlib.h>
#include <string.h>
#include "bench/harness/csv.h"
#include "bench/harness/figures.h"
#include "probe/record.h"

static const char *const drawn_impls[] = {"pipelined-llep", "ring-dtp", "sco", "offload-stream"};
enum { IMPLS = sizeof drawn_impls / sizeof *drawn_impls, CASES_PER_IMPL = 2 };

/* A commit and when it was first measured. */
struct commit {
    char name[64];
    const char *time;
};

struct commits {
    struct commit *list; /* owned */
    int count;
};

static const char *time_of(const struct trend_point *point)
{
    const char *time = json_string_value(rec_get(point->first, "run.time"));
    return time ? time : "";
}

static int compare_commits(const void *a, const void *b)
{
    return strcmp(((const struct commit *)a)->time, ((const struct commit *)b)->time);
}

static void add_commit(struct commits *commits, const struct trend_point *point)
{
    struct commit *at = &commits->list[commits->count];
    trend_commit(point->first, at->name, sizeof at->name);
    at->time = time_of(point);
    for (int i = 0; i < commits->count; i++) {
        struct commit *known = &commits->list[i];
        if (strcmp(known->name, at->name))
            continue;
        if (strcmp(at->time, known->time) < 0)
            known->time = at->time;
        return;
    }
    commits->count++;
}

static int number_of(const struct commits *commits, const char *name)
{
    for (int i = 0; i < commits->count; i++) {
        if (!strcmp(commits->list[i].name, name))
            return i;
    }
    return -1;
}

/* Measured cases of the streaming schedules; returns how many. */
static int choose(const struct trends *trends, const struct trend *chosen[IMPLS * CASES_PER_IMPL])
{
    int count = 0;
    for (int impl = 0; impl < IMPLS; impl++) {
        int taken = 0;
        for (int i = 0; i < trends->count && taken < CASES_PER_IMPL; i++) {
            const json_t *record = trends->list[i].group->records[0];
            const char *name = json_string_value(json_object_get(record, "impl"));
            if (!name || strcmp(name, drawn_impls[impl]) || strcmp(figure_kind(record), "measured"))
                continue;
            chosen[count++] = &trends->list[i];
            taken++;
        }
    }
    return count;
}

static void write_line(FILE *out, int line, const char *series, const struct trend *trend,
    const struct commits *commits)
{
    for (int i = 0; i < trend->count; i++) {
        const struct trend_point *point = &trend->points[i];
        char commit[64];
        trend_commit(point->first, commit, sizeof commit);
        fprintf(out, "%d", line);
        csv_text(out, series);
        csv_text(out, figure_kind(point->first));
        csv_int(out, number_of(commits, commit));
        csv_text(out, commit);
        csv_text(out, time_of(point));
        csv_int(out, point->peak_bytes);
        csv_real(out, point->throughput);
        csv_text(out, time_verdict_name(point->time.verdict));
        fputc('\n', out);
    }
}

static int write_lines(const struct trend *const *chosen, int count, const struct commits *commits,
    const char *folder, char *error, int size)
{
    struct new_file file;
    const json_t *records[IMPLS * CASES_PER_IMPL];
    for (int i = 0; i < count; i++)
        records[i] = chosen[i]->group->records[0];
    if (figure_open(&file, folder, "history",
            "line,series,kind,number,commit,time,tracked_peak_bytes,throughput,verdict", error,
            size))
        return -1;
    for (int i = 0; i < count; i++) {
        const char *impl = json_string_value(json_object_get(records[i], "impl"));
        struct figure_selection same = {malloc(sizeof records), 0};
        char label[200] = "", series[300];
        for (int j = 0; same.records && j < count; j++) {
            if (!strcmp(json_string_value(json_object_get(records[j], "impl")), impl))
                same.records[same.count++] = records[j];
        }
        figure_label(&same, records[i], "", false, label, sizeof label);
        figure_selection_free(&same);
        snprintf(series, sizeof series, "%s%s%s", impl, *label ? " " : "", label);
        write_line(file.stream, i, series, chosen[i], commits);
    }
    return figure_close(&file, folder, "history", error, size);
}

int figures_write_history(const struct trends *trends, const char *folder, char *error, int size)
{
    const struct trend *chosen[IMPLS * CASES_PER_IMPL];
    int count = choose(trends, chosen), points = 0;
    if (!count)
        return 0;
    for (int i = 0; i < count; i++)
        points += chosen[i]->count;
    struct commits commits = {calloc((size_t)points, sizeof *commits.list), 0};
    if (!commits.list) {
        snprintf(error, (size_t)size, "history: memory is short");
        return -1;
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < chosen[i]->count; j++)
            add_commit(&commits, &chosen[i]->points[j]);
    }
    qsort(commits.list, (size_t)commits.count, sizeof *commits.list, compare_commits);
    int status = write_lines(chosen, count, &commits, folder, error, size);
    free(commits.list);
    return status;
}
