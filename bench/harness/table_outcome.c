/* What a printed figure and ours come to, in the words of docs/TABLES.md. A figure is reproduced
 * only by its own kind of evidence: bytes by exact accounting on any machine, a time on the paper's
 * hardware alone. */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/table.h"
#include "bench/harness/units.h"
#include "probe/record.h"

static bool is_number(const struct table_value *value)
{
    return value->state == TABLE_NUMBER;
}

/* ---- evaluating ----------------------------------------------------------------------------- */

struct evaluator {
    const struct table_part *part;
    const struct table_figure *figure;
    const json_t *records;
    char *error;
    int size;
};

static int fail(const struct evaluator *e, const char *what, const char *text)
{
    snprintf(e->error, (size_t)e->size, "line %d: %s '%s'", e->figure->line, what, text);
    return -1;
}

static int evaluate(const struct evaluator *e, const char *expression, struct table_view *view,
    struct table_value *value)
{
    char text[TABLE_TEXT];
    *value = (struct table_value){TABLE_ABSENT, 0};
    if (!expression || !table_evaluate(expression, view, value, text, sizeof text))
        return 0;
    return fail(e, "", text);
}

static struct table_view view_of(const struct evaluator *e, int row)
{
    return (struct table_view){.part = e->part, .row = row, .records = e->records};
}

/* Ours on the machine as it is, and on its variants. */
static int evaluate_ours(const struct evaluator *e, int row, struct table_outcome *o)
{
    struct table_view view = view_of(e, row);
    if (evaluate(e, e->figure->ours, &view, &o->ours))
        return -1;
    o->of_time = view.of_time;
    o->low = o->high = o->ours;
    int variants = view.has_variants ? view.variants : 0;
    for (view.variant = 1; view.variant <= variants; view.variant++) {
        struct table_value value;
        if (evaluate(e, e->figure->ours, &view, &value))
            return -1;
        if (is_number(&value) && value.value < o->low.value)
            o->low = value;
        if (is_number(&value) && value.value > o->high.value)
            o->high = value;
    }
    view = view_of(e, row);
    view.measured = true;
    int status = evaluate(e, e->figure->ours, &view, &o->measured);
    if (!view.of_records) /* arithmetic on the row alone measures nothing */
        o->measured.state = TABLE_ABSENT;
    return status;
}

/* Digits behind the point of a figure as it is printed; -1 for what is computed from several. */
static int printed_decimals(const char *paper, struct table_view *view)
{
    char text[TABLE_TEXT], error[TABLE_TEXT];
    if (!paper || paper[0] != '{' || paper[strcspn(paper, "}")] != '}' ||
        paper[strcspn(paper, "}") + 1] ||
        table_expand(paper, view, text, sizeof text, error, sizeof error))
        return -1;
    const char *point = strchr(text, '.');
    return point && !strchr(text, 'e') ? (int)strspn(point + 1, "0123456789") : 0;
}

static int evaluate_row(const struct evaluator *e, int row, struct table_outcome *o)
{
    struct table_view view = view_of(e, row);
    if (table_expand(e->part->name, &view, o->row, sizeof o->row, e->error, e->size) ||
        evaluate(e, e->figure->paper, &view, &o->paper) || evaluate_ours(e, row, o))
        return -1;
    o->decimals = printed_decimals(e->figure->paper, &view);
    return 0;
}

/* ---- verdicts ------------------------------------------------------------------------------- */

static void say(struct table_outcome *o, const char *verdict)
{
    snprintf(o->verdict, sizeof o->verdict, "%s", verdict);
}

/* There should have been a figure. It must not pass for one that was not run. */
static void no_record(struct table_outcome *o)
{
    say(o, "no record");
}

/* The same to the printed digits, or within what is allowed. */
static bool same_digits(
    const struct table_outcome *o, const struct table_value *value, double within)
{
    char paper[64], ours[64];
    if (value->state != o->paper.state || value->state != TABLE_NUMBER)
        return value->state == o->paper.state && value->state == TABLE_OOM;
    int decimals = o->decimals < 0 ? 3 : o->decimals;
    snprintf(paper, sizeof paper, "%.*f", decimals, o->paper.value);
    snprintf(ours, sizeof ours, "%.*f", decimals, value->value);
    return !strcmp(paper, ours) || fabs(value->value - o->paper.value) <= within;
}

static void differs(struct table_outcome *o, const char *word, const struct table_value *value)
{
    if (is_number(value) && is_number(&o->paper) && o->paper.value != 0) {
        double percent = 100 * (value->value / o->paper.value - 1);
        snprintf(o->verdict, sizeof o->verdict,
            fabs(percent) < 0.05 ? "%s: %+.2g %%" : "%s: %+.1f %%", word, percent);
    } else if (value->state == TABLE_OOM || o->paper.state == TABLE_OOM)
        snprintf(o->verdict, sizeof o->verdict, "%s: %s", word,
            value->state == TABLE_OOM ? "does not fit" : "fits");
    else
        say(o, word);
}

static int judge_bytes(
    const struct evaluator *e, struct table_outcome *o, const struct table_value *value)
{
    const char *tolerance = e->figure->argument;
    double within = 0;
    if (*tolerance && units_parse_real(tolerance, -1, &within) != UNITS_OK)
        return fail(e, "not a tolerance:", tolerance);
    if (o->paper.state == TABLE_ABSENT)
        say(o, "-");
    else if (value->state == TABLE_ABSENT)
        no_record(o);
    else if (same_digits(o, value, within))
        say(o, "reproduced");
    else if (e->figure->kind == TABLE_BETTER && is_number(value) && value->value < o->paper.value)
        say(o, "better");
    else
        differs(o, "differs", value);
    o->failed = e->figure->kind == TABLE_EXACT && o->paper.state != TABLE_ABSENT &&
                strcmp(o->verdict, "reproduced");
    return 0;
}

/* Whether some record of the table is of the kind of GPU that its paper measured on. */
static bool on_paper_hardware(const json_t *records, const char *gpu)
{
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *record = json_array_get(records, i);
        const char *device = json_string_value(json_object_get(record, "device"));
        if (device && !strncmp(device, "cuda", 4) && strstr(device, gpu))
            return true;
    }
    return false;
}

static int judge_time(const struct evaluator *e, struct table_outcome *o)
{
    double percent;
    if (units_parse_real(e->figure->argument, -1, &percent) != UNITS_OK)
        return fail(e, "not a number of percent:", e->figure->argument);
    bool measured =
        o->measured.state != TABLE_ABSENT && on_paper_hardware(e->records, e->part->gpu);
    const struct table_value *value = measured ? &o->measured : &o->ours;
    bool near = value->state == TABLE_OOM
                    ? o->paper.state == TABLE_OOM
                    : is_number(&o->paper) &&
                          fabs(value->value / o->paper.value - 1) <= percent / 100 + 1e-12;
    if (o->paper.state == TABLE_ABSENT)
        say(o, "-");
    else if (value->state == TABLE_ABSENT)
        no_record(o);
    else if (near)
        say(o, measured ? "reproduced" : "model agrees");
    else
        differs(o, measured ? "differs" : "model differs", value);
    return 0;
}

/* "<1.05", ">4", "0.9..1.25" */
static int within(const struct evaluator *e, const char *text, double low, double high, bool *holds)
{
    char *end, *dots = strstr(text, "..");
    double limit = strtod(text + (*text == '<' || *text == '>'), &end);
    if (*text == '<' && !*end)
        *holds = high < limit;
    else if (*text == '>' && !*end)
        *holds = low > limit;
    else if (dots && strtod(dots + 2, &end) >= limit && !*end)
        *holds = low >= limit && high <= strtod(dots + 2, NULL);
    else
        return fail(e, "not <X, >X or A..B:", text);
    return 0;
}

static int judge_relation(const struct evaluator *e, int row, struct table_outcome *o)
{
    bool measured = is_number(&o->measured), holds = false;
    double low = measured ? o->measured.value : o->low.value;
    double high = measured ? o->measured.value : o->high.value;
    if (e->figure->paper && o->paper.state == TABLE_ABSENT) {
        say(o, "-"); /* "same" as another row */
        return 0;
    }
    if (!measured && !is_number(&o->ours)) {
        if (o->ours.state == TABLE_OOM)
            say(o, "not run: does not fit");
        else
            no_record(o);
        return 0;
    }
    struct table_view view = view_of(e, row);
    char limit[64];
    if (table_expand(e->figure->argument, &view, limit, sizeof limit, e->error, e->size) ||
        within(e, limit, low, high, &holds))
        return -1;
    if (!o->of_time)
        say(o, holds ? "reproduced" : "differs");
    else if (measured)
        say(o, holds ? "holds on this machine" : "differs");
    else
        snprintf(o->verdict, sizeof o->verdict, "%s: %s over the range",
            holds ? "model agrees" : "model differs", limit);
    return 0;
}

/* A printed figure that set the profile proves nothing, but the profile must still meet it. */
static int judge_fitted(const struct evaluator *e, struct table_outcome *o)
{
    double percent;
    if (units_parse_real(e->figure->argument, -1, &percent) != UNITS_OK)
        return fail(e, "not a number of percent:", e->figure->argument);
    if (!is_number(&o->ours))
        no_record(o);
    else if (is_number(&o->paper) &&
             fabs(o->ours.value / o->paper.value - 1) <= percent / 100 + 1e-12)
        say(o, "fitted");
    else
        differs(o, "model differs", &o->ours);
    return 0;
}

static int judge(const struct evaluator *e, int row, struct table_outcome *o)
{
    bool measured = o->measured.state != TABLE_ABSENT;
    const struct table_value *value = measured ? &o->measured : &o->ours;
    switch (e->figure->kind) {
    case TABLE_TIME:
        return judge_time(e, o);
    case TABLE_RELATION:
        return judge_relation(e, row, o);
    case TABLE_FITTED:
        return judge_fitted(e, o);
    case TABLE_INCONSISTENT:
        if (o->ours.state == TABLE_ABSENT)
            no_record(o);
        else
            say(o, same_digits(o, &o->ours, 0) ? "consistent in the paper"
                                               : "inconsistent in the paper");
        return 0;
    case TABLE_NEEDS:
        snprintf(o->verdict, sizeof o->verdict, "not run: needs %s", e->figure->argument);
        return 0;
    case TABLE_SHOWN:
        say(o, value->state == TABLE_ABSENT ? "no record" : "-");
        return 0;
    default:
        return judge_bytes(e, o, value);
    }
}

/* ---- all rows together ---------------------------------------------------------------------- */

/* Our figure of every row on one variant of the machine. */
static int column_of(const struct evaluator *e, int variant, bool measured, double *ours,
    double *paper, int *variants)
{
    for (int row = 0; row < e->part->row_count; row++) {
        struct table_view view = view_of(e, row);
        struct table_value value;
        view.variant = variant;
        view.measured = measured;
        if (evaluate(e, e->figure->ours, &view, &value))
            return -1;
        ours[row] = is_number(&value) ? value.value : NAN;
        *variants = view.variants > *variants ? view.variants : *variants;
        view = view_of(e, row);
        if (paper && evaluate(e, e->figure->paper, &view, &value))
            return -1;
        if (paper)
            paper[row] = is_number(&value) ? value.value : NAN;
    }
    return 0;
}

/* Pairs of rows that are printed in an order, and of them those that we have in that order. */
static void count_pairs(int rows, const double *paper, const double *ours, int *pairs, int *same)
{
    *pairs = *same = 0;
    for (int a = 0; a < rows; a++)
        for (int b = a + 1; b < rows; b++) {
            double printed = paper[a] - paper[b], own = ours[a] - ours[b];
            if (isnan(printed) || isnan(own) || printed == 0)
                continue;
            ++*pairs;
            *same += printed * own > 0;
        }
}

static int outcome_order(const struct evaluator *e, struct table_outcome *o, double *ours)
{
    int rows = e->part->row_count, variants = 0, pairs, same, least;
    double *paper = ours + rows;
    bool measured = false;
    if (column_of(e, 0, true, ours, paper, &variants))
        return -1;
    count_pairs(rows, paper, ours, &pairs, &same);
    measured = pairs > 0;
    if (!measured && column_of(e, 0, false, ours, paper, &variants))
        return -1;
    count_pairs(rows, paper, ours, &pairs, &same);
    least = same;
    snprintf(o->text, sizeof o->text, "%d of %d pairs", same, pairs);
    for (int v = 1; !measured && v <= variants; v++) {
        int now;
        if (column_of(e, v, false, ours, NULL, &variants))
            return -1;
        count_pairs(rows, paper, ours, &pairs, &now);
        least = now < least ? now : least;
    }
    if (!pairs)
        no_record(o);
    else if (measured)
        say(o, same == pairs ? "holds on this machine" : "differs");
    else if (same < pairs)
        say(o, "model differs");
    else if (least < pairs)
        snprintf(
            o->verdict, sizeof o->verdict, "model differs: %d of %d over the range", least, pairs);
    else
        say(o, "model agrees");
    return 0;
}

/* "crossing 1 gbps": where our figure passes 1 along the cells of column gbps. */
static int outcome_crossing(const struct evaluator *e, struct table_outcome *o, double *ours)
{
    int rows = e->part->row_count, variants = 0;
    double level;
    char column[64], cell[80], *end;
    if (sscanf(e->figure->argument, "%lf %63s", &level, column) != 2)
        return fail(e, "not crossing X COLUMN:", e->figure->argument);
    snprintf(cell, sizeof cell, "{%s}", column);
    if (column_of(e, 0, false, ours, NULL, &variants))
        return -1;
    say(o, "-");
    for (int row = 0; row + 1 < rows; row++) {
        char text[2][64];
        struct table_view view = view_of(e, row);
        if (!((ours[row] < level) != (ours[row + 1] < level)) || isnan(ours[row] + ours[row + 1]))
            continue;
        for (int i = 0; i < 2; i++, view.row++)
            if (table_expand(cell, &view, text[i], sizeof text[i], e->error, e->size))
                return -1;
        double from = log(strtod(text[0], &end)), to = log(strtod(text[1], &end));
        double part = (level - ours[row]) / (ours[row + 1] - ours[row]);
        size_t used = strlen(o->text);
        snprintf(o->text + used, sizeof o->text - used, "%s%.4g", used ? ", " : "at ",
            exp(from + part * (to - from)));
    }
    if (!o->text[0])
        snprintf(o->text, sizeof o->text, "never");
    return 0;
}

static int outcome_of_rows(const struct evaluator *e, struct table_outcome *o)
{
    double *room = calloc(2 * (size_t)e->part->row_count + 1, sizeof *room);
    if (!room) {
        snprintf(e->error, (size_t)e->size, "memory is short");
        return -1;
    }
    snprintf(o->row, sizeof o->row, "all rows");
    int status =
        e->figure->kind == TABLE_ORDER ? outcome_order(e, o, room) : outcome_crossing(e, o, room);
    free(room);
    return status;
}

/* ---- one cell ------------------------------------------------------------------------------- */

/* The first reason that is meant for this row. */
static const struct table_reason *reason_of(const struct table_figure *figure, const char *row)
{
    for (int i = 0; i < figure->reason_count; i++) {
        const struct table_reason *reason = &figure->reasons[i];
        if (!reason->rows || !fnmatch(reason->rows, row, 0))
            return reason;
    }
    return NULL;
}

static bool asks_why(const char *verdict)
{
    static const char *const settled[] = {
        "reproduced", "model agrees", "holds on this machine", "not run", "consistent", "-"};
    for (size_t i = 0; i < sizeof settled / sizeof *settled; i++)
        if (!strncmp(verdict, settled[i], strlen(settled[i])))
            return false;
    return true;
}

int table_outcome_at(const struct table_part *part, const struct table_figure *figure, int row,
    const json_t *records, struct table_outcome *outcome, char *error, int size)
{
    const struct evaluator e = {part, figure, records, error, size};
    memset(outcome, 0, sizeof *outcome);
    if (row < 0 ? outcome_of_rows(&e, outcome)
                : evaluate_row(&e, row, outcome) || judge(&e, row, outcome))
        return -1;
    if (asks_why(outcome->verdict))
        outcome->why = reason_of(figure, outcome->row);
    return 0;
}
