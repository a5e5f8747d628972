/* A case over the commits of a history: how its peak and its time moved.
 *
 * A history is a folder of record files (results/history), one a run. Launches of one commit on one
 * machine are one point; points stand in the order of time. A time is compared with the time before
 * it on the same machine, a peak with the peak before it on any. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include "bench/harness/compare.h"

struct trend_point {
    const json_t *first; /* the earliest record: its commit, machine and figures stand for all */
    int launches;        /* with a time */
    int64_t peak_bytes;  /* highest over the launches; -1 without one */
    int64_t peak_change; /* against the point before; 0 for the first */
    double throughput;   /* at the median time; NaN without one */
    struct time_comparison time; /* against the last point of that machine; new_s is this point's.
                                    verdict TIME_ABSENT for its first */
};

struct trend {
    const struct record_group *group;
    struct trend_point *points; /* owned, in the order of time */
    int count;
};

struct trends {
    struct record_set records;
    struct trend *list; /* owned, in the order in which cases are first met */
    int count;
};

/* Reads a folder of histories or one file. 0, or -1 with `error` filled. trends_free either way. */
int trends_read(const char *path, double min_effect, struct trends *trends, char *error, int size);
void trends_free(struct trends *trends);

/* "c4f16a3bb177", with '+' behind it when files were not committed; "none" outside a repository. */
void trend_commit(const json_t *record, char *text, int size);

/* ---- printing (trend_print.c) --------------------------------------------------------------- */

/* One line a point. changed_only: leaves out cases whose peak never moved and whose times never
 * gave FASTER or SLOWER. */
int trends_print(const struct trends *trends, bool changed_only, FILE *out);

/* An array of cases with their points. Each returns 0, or -1 when it could not be written. */
int trends_print_json(const struct trends *trends, FILE *out);
