/* Pairs the cases of two record sets and compares each pair. */
#include "bench/harness/compare.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "probe/record.h"

/* ---- time of one group ---------------------------------------------------------------------- */

/* Records of one run.id are one launch: the first with a time stands for it. */
static bool seen_before(const struct record_group *group, int index)
{
    const json_t *id = rec_get(group->records[index], "run.id");
    for (int i = 0; id && i < index; i++) {
        if (json_equal(rec_get(group->records[i], "run.id"), id))
            return true;
    }
    return false;
}

/* Returns how many launches have a time; *launches is the caller's, NULL when there is none. */
static int timed_launches(const struct record_group *group, struct time_launch **launches)
{
    int count = 0;
    *launches = malloc((size_t)group->count * sizeof **launches);
    for (int i = 0; *launches && i < group->count; i++) {
        const json_t *time = json_object_get(group->records[i], "time");
        struct time_launch launch = {json_number_value(json_object_get(time, "median_s")),
            json_number_value(json_object_get(time, "q1_s")),
            json_number_value(json_object_get(time, "q3_s"))};
        if (launch.median_s > 0 && !seen_before(group, i))
            (*launches)[count++] = launch;
    }
    return count;
}

static bool is_simulated(const struct record_group *group)
{
    const char *kind = json_string_value(rec_get(group->records[0], "time.kind"));
    return kind && !strcmp(kind, "simulated");
}

static void compare_group_times(struct case_comparison *at, double min_effect)
{
    struct time_launch *old, *new;
    int old_count = timed_launches(at->old, &old), new_count = timed_launches(at->new, &new);
    if (old_count && new_count)
        compare_times(old, old_count, new, new_count, min_effect, is_simulated(at->old), &at->time);
    else if (old_count)
        findings_add(&at->findings, FINDING_REGRESSION, "time: is not recorded any more");
    free(old);
    free(new);
    const struct time_comparison *time = &at->time;
    if (time->verdict == TIME_SLOWER || time->verdict == TIME_FASTER)
        findings_add(&at->findings,
            time->verdict == TIME_SLOWER ? FINDING_REGRESSION : FINDING_DIFFERENCE,
            "time: %.6g s, was %.6g s (%+.1f %%)", time->new_s, time->old_s,
            100 * (time->ratio - 1));
}

/* ---- exact figures of one group ------------------------------------------------------------- */

/* Adds what launch `index` of a side shows beyond what was found before. */
static void add_unseen(
    struct findings *all, const struct findings *more, const char *side, int index)
{
    for (int i = 0; i < more->count; i++) {
        bool known = false;
        for (int j = 0; j < all->count && !known; j++)
            known = strstr(all->list[j].text, more->list[i].text) != NULL;
        if (!known)
            findings_add(all, more->list[i].level, "%s launch %d: %.250s", side, index + 1,
                more->list[i].text);
    }
    all->short_of_memory |= more->short_of_memory;
}

/* Every launch must show what the first old one showed: exact figures do not vary. */
static void compare_group_exact(struct case_comparison *at, double tolerance)
{
    const json_t *first = at->old->records[0];
    compare_exact(first, at->new->records[0], tolerance, &at->findings);
    for (int i = 1; i < at->new->count; i++) {
        struct findings more = {0};
        compare_exact(first, at->new->records[i], tolerance, &more);
        add_unseen(&at->findings, &more, "new", i);
        findings_free(&more);
    }
    for (int i = 1; i < at->old->count; i++) {
        struct findings more = {0};
        compare_exact(first, at->old->records[i], tolerance, &more);
        for (int j = 0; j < more.count; j++)
            more.list[j].level = FINDING_DIFFERENCE;
        add_unseen(&at->findings, &more, "old", i);
        findings_free(&more);
    }
}

/* ---- all cases ------------------------------------------------------------------------------ */

static void compare_pair(
    struct comparison *out, struct case_comparison *at, const struct compare_settings *settings)
{
    out->paired++;
    compare_group_exact(at, settings->tolerance);
    compare_group_times(at, settings->min_effect);
    out->times[at->time.verdict]++;
}

static void pair_cases(struct comparison *out, const struct compare_settings *settings)
{
    for (int i = 0; i < out->old.count; i++) {
        struct case_comparison *at = &out->cases[out->count++];
        at->old = &out->old.cases[i];
        at->new = record_set_find(&out->new, at->old->key);
        if (at->new) {
            compare_pair(out, at, settings);
        } else {
            out->vanished++;
            findings_add(&at->findings, FINDING_REGRESSION, "the case vanished");
        }
    }
    for (int i = 0; i < out->new.count; i++) {
        if (record_set_find(&out->old, out->new.cases[i].key))
            continue;
        struct case_comparison *at = &out->cases[out->count++];
        at->new = &out->new.cases[i];
        out->added++;
        findings_add(&at->findings, FINDING_DIFFERENCE, "the case is new");
    }
}

int comparison_make(const char *old_path, const char *new_path,
    const struct compare_settings *settings, struct comparison *out, char *error, int size)
{
    bool short_of_memory = false;
    memset(out, 0, sizeof *out);
    if (record_set_read(old_path, &out->old, error, size) ||
        record_set_read(new_path, &out->new, error, size))
        return -1;
    out->cases = calloc((size_t)(out->old.count + out->new.count), sizeof *out->cases);
    if (!out->cases) {
        snprintf(
            error, (size_t)size, "memory is short for %d cases", out->old.count + out->new.count);
        return -1;
    }
    pair_cases(out, settings);
    for (int i = 0; i < out->count; i++) {
        const struct findings *findings = &out->cases[i].findings;
        short_of_memory |= findings->short_of_memory;
        for (int j = 0; j < findings->count; j++) {
            out->regressions += findings->list[j].level == FINDING_REGRESSION;
            out->differences += findings->list[j].level == FINDING_DIFFERENCE;
        }
    }
    if (short_of_memory)
        snprintf(error, (size_t)size, "memory is short for the findings");
    return short_of_memory ? -1 : 0;
}

void comparison_free(struct comparison *comparison)
{
    for (int i = 0; comparison->cases && i < comparison->count; i++)
        findings_free(&comparison->cases[i].findings);
    free(comparison->cases);
    record_set_free(&comparison->old);
    record_set_free(&comparison->new);
    memset(comparison, 0, sizeof *comparison);
}
