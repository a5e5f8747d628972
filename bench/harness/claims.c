/* Evaluates claims against records and tables. */
#include "bench/harness/claims.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/evidence.h"
#include "bench/harness/units.h"
#include "probe/record.h"

/* ---- selecting records ---------------------------------------------------------------------- */

static bool value_is(const json_t *value, const char *want, int length)
{
    char text[64];
    if (json_is_integer(value))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else if (json_is_string(value))
        snprintf(text, sizeof text, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    else
        return false;
    return (int)strlen(text) == length && !memcmp(text, want, (size_t)length);
}

/* where: "op=vocab config.ranks=8": paths of the record with their values. */
static bool selected(const json_t *record, const char *where)
{
    while (*where) {
        char path[CLAIM_PATH];
        int length = (int)strcspn(where, " "), equals = (int)strcspn(where, "=");
        memcpy(path, where, (size_t)equals);
        path[equals] = '\0';
        if (!value_is(rec_get(record, path), where + equals + 1, length - equals - 1))
            return false;
        where += length + strspn(where + length, " ");
    }
    return true;
}

/* The first of the paths "a|b" that the record has as a number; NaN without one. */
static double figure_of(const json_t *record, const char *paths)
{
    while (*paths) {
        char path[128];
        size_t length = strcspn(paths, "|");
        snprintf(path, sizeof path, "%.*s", (int)length, paths);
        const json_t *value = rec_get(record, path);
        if (json_is_number(value))
            return json_number_value(value);
        paths += length + (paths[length] == '|');
    }
    return NAN;
}

/* Names of times end in _s. */
static bool is_of_time(const char *paths)
{
    for (const char *at = strstr(paths, "_s"); at; at = strstr(at + 2, "_s")) {
        if (!at[2] || strchr(" |", at[2]))
            return true;
    }
    return false;
}

/* Why the figure of this record is no evidence: NULL where it is. */
static const char *lacks(const json_t *record, const char *paths)
{
    return is_of_time(paths) ? evidence_lacks(record) : NULL;
}

static double unit_scale(const char *unit)
{
    if (!strcmp(unit, "MiB"))
        return 1024.0 * 1024;
    return !strcmp(unit, "GiB") ? 1024.0 * 1024 * 1024 : 1;
}

/* ---- verdicts ------------------------------------------------------------------------------- */

static void not_run(const struct claim *claim, struct claim_outcome *outcome)
{
    snprintf(outcome->ours, sizeof outcome->ours, "-");
    snprintf(outcome->verdict, sizeof outcome->verdict, "not run: needs %.200s", claim->needs);
}

/* Nothing was found: because nothing ran, or all that ran is `lacking` something; or though `met`
 * records ran, which have it under another name or not at all. That must not pass for the others.
 */
static void no_figure(
    const struct claim *claim, int met, const char *lacking, struct claim_outcome *outcome)
{
    not_run(claim, outcome);
    if (lacking)
        snprintf(outcome->verdict, sizeof outcome->verdict, "not run: %s", lacking);
    else if (met)
        snprintf(outcome->verdict, sizeof outcome->verdict,
            "differs: the figure is in none of %d records", met);
}

static void evaluate_bitwise(
    const struct claim *claim, const json_t *records, struct claim_outcome *outcome)
{
    int cases = 0, agreed = 0;
    const char *other = NULL;
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *record = json_array_get(records, i);
        if (!selected(record, claim->where))
            continue;
        const char *verdict = json_string_value(rec_get(record, "check.verdict"));
        /* What was not checked says nothing. */
        if (verdict && (!strcmp(verdict, "off") || !strcmp(verdict, "simulated")))
            continue;
        bool bitwise = verdict && !strcmp(verdict, "bitwise");
        cases++;
        agreed += bitwise;
        if (!bitwise && !other)
            other = verdict ? verdict : json_string_value(json_object_get(record, "status"));
    }
    if (!cases) {
        not_run(claim, outcome);
        return;
    }
    snprintf(outcome->ours, sizeof outcome->ours, "%d of %d", agreed, cases);
    if (agreed == cases)
        snprintf(outcome->verdict, sizeof outcome->verdict, "reproduced");
    else
        snprintf(outcome->verdict, sizeof outcome->verdict, "differs: %.60s", other ? other : "?");
}

static void evaluate_exact(
    const struct claim *claim, const json_t *records, struct claim_outcome *outcome)
{
    double printed = 0, tolerance = 0, ours = NAN;
    int met = 0;
    const char *lacking = NULL;
    units_parse_real(claim->printed, -1, &printed);
    units_parse_real(claim->tolerance, -1, &tolerance);
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *record = json_array_get(records, i);
        if (!selected(record, claim->where))
            continue;
        if (lacks(record, claim->figure)) {
            lacking = lacks(record, claim->figure);
            continue;
        }
        double figure = figure_of(record, claim->figure) / unit_scale(claim->unit);
        met++;
        /* Of several the one that is furthest off is held against the claim. */
        if (!isnan(figure) && !(fabs(figure - printed) <= fabs(ours - printed)))
            ours = figure;
    }
    if (isnan(ours)) {
        no_figure(claim, met, lacking, outcome);
        return;
    }
    snprintf(outcome->ours, sizeof outcome->ours, "%.6g", ours);
    if (fabs(ours - printed) <= tolerance)
        snprintf(outcome->verdict, sizeof outcome->verdict, "reproduced");
    else if (ours < printed)
        snprintf(outcome->verdict, sizeof outcome->verdict, "better");
    else
        snprintf(outcome->verdict, sizeof outcome->verdict, "differs: %.1f %% more",
            100 * (ours / printed - 1));
}

/* Ratios met so far, and what kind of evidence they are. */
struct ratios {
    double low, high; /* NaN = none met */
    bool measured;    /* some figure is of this machine */
    bool of_time;
    int met;             /* records, or pairs of them, that were looked at */
    const char *lacking; /* why some were no evidence; NULL: all were */
};

static const struct ratios no_ratios = {.low = NAN, .high = NAN};

/* Bytes and counts of a closed form or of a simulated device are those of the schedule itself. */
static bool is_measured(const json_t *record)
{
    const char *status = json_string_value(json_object_get(record, "status"));
    const char *device = json_string_value(json_object_get(record, "device"));
    return !(status && !strcmp(status, "skipped")) && !(device && !strncmp(device, "sim", 3));
}

static void add_ratio(
    struct ratios *ratios, double ratio, const char *paths, const json_t *a, const json_t *b)
{
    const char *lacking = lacks(a, paths) ? lacks(a, paths) : lacks(b, paths);
    if (lacking) {
        ratios->lacking = lacking;
        return;
    }
    ratios->met++;
    if (isnan(ratio))
        return;
    ratios->low = isnan(ratios->low) || ratio < ratios->low ? ratio : ratios->low;
    ratios->high = isnan(ratios->high) || ratio > ratios->high ? ratio : ratios->high;
    ratios->measured |= is_measured(a) || is_measured(b);
    ratios->of_time |= is_of_time(paths);
}

/* All ratios against the limit. A simulated time can at best agree; a byte count is everybody's;
 * what was measured here holds here. */
static void judge_ratios(
    const struct claim *claim, const struct ratios *ratios, struct claim_outcome *outcome)
{
    double limit = 0;
    units_parse_real(claim->tolerance + 1, -1, &limit);
    if (isnan(ratios->low)) {
        no_figure(claim, ratios->met, ratios->lacking, outcome);
        return;
    }
    if (ratios->low == ratios->high)
        snprintf(outcome->ours, sizeof outcome->ours, "%.3f", ratios->low);
    else
        snprintf(outcome->ours, sizeof outcome->ours, "%.3f..%.3f", ratios->low, ratios->high);
    bool simulated = ratios->of_time && !ratios->measured;
    if (ratios->high < limit)
        snprintf(outcome->verdict, sizeof outcome->verdict, "%s",
            ratios->measured ? "holds on this machine"
            : simulated      ? "model agrees"
                             : "reproduced");
    else
        snprintf(outcome->verdict, sizeof outcome->verdict, "%s: above %g",
            simulated ? "model differs" : "differs", limit);
}

static bool is_impl(const json_t *record, const char *name)
{
    const char *impl = json_string_value(json_object_get(record, "impl"));
    return impl && !strcmp(impl, name);
}

static void evaluate_relation(
    const struct claim *claim, const json_t *records, struct claim_outcome *outcome)
{
    char above[64], below[64];
    const char *paths = "";
    struct ratios ratios = no_ratios;
    if (!claim_split_relation(claim->figure, above, below, &paths)) {
        not_run(claim, outcome); /* claims_read lets none such through */
        return;
    }
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *a = json_array_get(records, i);
        if (!is_impl(a, above) || !selected(a, claim->where))
            continue;
        for (size_t j = 0; j < json_array_size(records); j++) {
            const json_t *b = json_array_get(records, j);
            if (is_impl(b, below) && selected(b, claim->where) && evidence_same_shape(a, b))
                add_ratio(&ratios, figure_of(a, paths) / figure_of(b, paths), paths, a, b);
        }
    }
    judge_ratios(claim, &ratios, outcome);
}

/* figure: "memory.increment_bytes / memory.bound_bytes", both of one record. */
static void evaluate_ratio(
    const struct claim *claim, const json_t *records, struct claim_outcome *outcome)
{
    char above[96] = "";
    struct ratios ratios = no_ratios;
    const char *slash = strstr(claim->figure, " / ");
    if (slash)
        snprintf(above, sizeof above, "%.*s", (int)(slash - claim->figure), claim->figure);
    for (size_t i = 0; slash && i < json_array_size(records); i++) {
        const json_t *record = json_array_get(records, i);
        if (!selected(record, claim->where))
            continue;
        double ratio = figure_of(record, above) / figure_of(record, slash + 3);
        add_ratio(&ratios, ratio, claim->figure, record, record);
    }
    judge_ratios(claim, &ratios, outcome);
}

static void evaluate_table(
    const struct claim *claim, const struct table_lines *lines, struct claim_outcome *outcome)
{
    const struct table_line *line =
        lines ? table_lines_find(lines, claim->where, claim->figure) : NULL;
    if (!line) {
        not_run(claim, outcome);
        /* A line that a printed table has no more was not just left out of this run. */
        if (lines && table_lines_has(lines, claim->where))
            snprintf(outcome->verdict, sizeof outcome->verdict, "differs: %.60s has no such line",
                claim->where);
        return;
    }
    /* What was measured elsewhere than on the paper's hardware does not judge the model. */
    bool of_model = !strncmp(line->verdict, "model", 5) || !strncmp(line->verdict, "fitted", 6);
    const char *ours = *line->measured && !of_model ? line->measured : line->ours;
    double value;
    if (units_parse_real(ours, -1, &value) == UNITS_OK)
        snprintf(outcome->ours, sizeof outcome->ours, "%.5g", value);
    else
        snprintf(outcome->ours, sizeof outcome->ours, "%.100s", *ours ? ours : "-");
    snprintf(outcome->verdict, sizeof outcome->verdict, "%.200s", line->verdict);
}

void claim_verdict_class(const char *verdict, char *text, int size)
{
    int length = (int)strcspn(verdict, ":");
    snprintf(text, (size_t)size, "%.*s", length, verdict);
}

void claim_evaluate(const struct claim *claim, const json_t *records,
    const struct table_lines *lines, struct claim_outcome *outcome)
{
    memset(outcome, 0, sizeof *outcome);
    switch (claim->kind) {
    case CLAIM_BITWISE:
        evaluate_bitwise(claim, records, outcome);
        break;
    case CLAIM_EXACT:
        evaluate_exact(claim, records, outcome);
        break;
    case CLAIM_RELATION:
        evaluate_relation(claim, records, outcome);
        break;
    case CLAIM_RATIO:
        evaluate_ratio(claim, records, outcome);
        break;
    case CLAIM_TABLE:
        evaluate_table(claim, lines, outcome);
        break;
    }
    /* "differs" is accepted with any figure behind it; what was not run cannot have changed. */
    char class[CLAIM_TEXT];
    claim_verdict_class(outcome->verdict, class, sizeof class);
    outcome->changed =
        strcmp(claim->accepted, "-") && strcmp(class, "not run") && strcmp(class, claim->accepted);
}
