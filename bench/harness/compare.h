/* Two record files against each other: cases paired, exact figures compared exactly, times compared
 * over launches.
 *
 * A launch is a process (run.id): samples inside one are not independent, so the unit of a time
 * verdict is the launch, and a file may hold the same case from several launches. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <jansson.h>

/* ---- times (compare_time.c) ----------------------------------------------------------------- */

enum time_verdict { TIME_ABSENT, TIME_SAME, TIME_FASTER, TIME_SLOWER, TIME_UNSURE };

/* One launch of a case. */
struct time_launch {
    double median_s, q1_s, q3_s;
};

enum time_basis {
    TIME_BY_LAUNCHES,  /* 95 % interval of the ratio from the medians of all pairs of launches */
    TIME_BY_QUARTILES, /* too few launches for an interval: quartiles of the samples */
    TIME_BY_MODEL      /* simulated: exact */
};

struct time_comparison {
    enum time_verdict verdict;
    enum time_basis basis;
    int old_launches, new_launches;
    double old_s, new_s;          /* medians over launches */
    double ratio;                 /* new / old */
    double ratio_low, ratio_high; /* its interval; NaN without one */
};

/* SAME: the whole interval of new/old lies within 1 -+ min_effect. FASTER, SLOWER: the ratio
 * differs from 1 by at least min_effect and its interval leaves 1 out. Else UNSURE. By quartiles,
 * FASTER and SLOWER need a gap of five times min_effect between the nearer quartiles, since nothing
 * is known about the spread from launch to launch; SAME needs all quartiles within min_effect of
 * the other's median. Counts >= 1. */
void compare_times(const struct time_launch *old, int old_count, const struct time_launch *new,
    int new_count, double min_effect, bool simulated, struct time_comparison *out);

const char *time_verdict_name(enum time_verdict verdict); /* "SAME", ... */

/* ---- exact figures (compare_exact.c) -------------------------------------------------------- */

enum finding_level {
    FINDING_REGRESSION, /* worse: a byte, a bit, a status, a check, a time */
    FINDING_DIFFERENCE  /* other, and not known to be worse */
};

struct finding {
    enum finding_level level;
    char text[320];
};

struct findings {
    struct finding *list; /* owned */
    int count, capacity;
    bool short_of_memory; /* some were lost */
};

void findings_add(struct findings *findings, enum finding_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void findings_free(struct findings *findings);

/* What of `new` differs from `old`, apart from time. tolerance: share by which driver and resident
 * bytes may grow. */
void compare_exact(
    const json_t *old, const json_t *new, double tolerance, struct findings *findings);

/* ---- files (compare_files.c) ---------------------------------------------------------------- */

/* The launches of one case in one file. */
struct record_group {
    char *key; /* op, impl, device, config as canonical JSON; owned */
    const json_t **records;
    int count, capacity;
};

struct record_set {
    char label[256];
    json_t *records; /* owned array of all records */
    struct record_group *cases;
    int count, capacity;
};

/* Reads one file, or every *.jsonl of a folder. 0, or -1 with `error` naming file and line. */
int record_set_read(const char *path, struct record_set *set, char *error, int size);
void record_set_free(struct record_set *set);
const struct record_group *record_set_find(const struct record_set *set, const char *key);

/* Number of distinct launches in the set. */
int record_set_launches(const struct record_set *set);

/* "vocab ring-dtp cpu tokens=512 tile=64": the record's case, with what of its configuration tells
 * it from the other cases of the sets. */
void record_set_print_case(
    FILE *out, const json_t *record, const struct record_set *const *sets, int set_count);

/* ---- all of it (compare.c) ------------------------------------------------------------------ */

struct case_comparison {
    const struct record_group *old, *new; /* either may be NULL: unpaired */
    struct time_comparison time;
    struct findings findings;
};

struct comparison {
    struct record_set old, new;
    struct case_comparison *cases; /* owned */
    int count;
    int paired, vanished, added;
    int regressions, differences;
    int times[TIME_UNSURE + 1];
};

struct compare_settings {
    double min_effect, tolerance; /* shares */
};

/* 0, or -1 with `error` filled (a bad file, or memory). comparison_free in either case. */
int comparison_make(const char *old_path, const char *new_path,
    const struct compare_settings *settings, struct comparison *out, char *error, int size);
void comparison_free(struct comparison *comparison);
