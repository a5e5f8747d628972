/* A table as lines for people, a block for each figure, or as CSV. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "bench/harness/table.h"

/* What a table is printed from, and what is found on the way. */
struct printer {
    const struct table *table;
    const json_t *records;
    bool csv;
    int *failed;
    char *error;
    int size;
};

static bool of_all_rows(const struct table_figure *figure)
{
    return figure->kind == TABLE_ORDER || figure->kind == TABLE_CROSSING;
}

static const char *value_text(
    const struct table_value *value, int decimals, char *text, size_t size)
{
    if (value->state == TABLE_NUMBER)
        snprintf(text, size, "%.*f", decimals, value->value);
    else
        snprintf(text, size, "%s", value->state == TABLE_OOM ? "oom" : "-");
    return text;
}

/* Digits behind the point that make four significant ones; none of a whole number. */
static int decimals_of(const struct table_value *value)
{
    double size = fabs(value->value);
    if (value->state != TABLE_NUMBER || value->value == floor(value->value))
        return 0;
    return size >= 100 ? 1 : size >= 10 ? 2 : 3;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* The printed figure as it is printed. */
static int paper_decimals(const struct table_outcome *o)
{
    return o->decimals < 0 ? decimals_of(&o->paper) : o->decimals;
}

/* Ours may be finer, never coarser. */
static int own_decimals(const struct table_outcome *o)
{
    int own = larger(decimals_of(&o->ours), decimals_of(&o->measured));
    return larger(larger(own, o->decimals), decimals_of(&o->low));
}

static bool has_range(const struct table_outcome *o)
{
    return o->ours.state == TABLE_NUMBER && o->low.value < o->high.value;
}

/* Our figure against the printed one, the measured one first. */
static void difference_text(const struct table_outcome *o, char *text, size_t size)
{
    const struct table_value *value = o->measured.state == TABLE_NUMBER ? &o->measured : &o->ours;
    if (value->state != TABLE_NUMBER || o->paper.state != TABLE_NUMBER || o->paper.value == 0)
        snprintf(text, size, "-");
    else
        snprintf(text, size, "%+.1f %%", 100 * (value->value / o->paper.value - 1));
}

/* ---- aligned -------------------------------------------------------------------------------- */

static void print_line(const struct table_outcome *o, int width)
{
    char paper[32], ours[32], range[64] = "", measured[32], difference[32];
    int decimals = own_decimals(o);
    value_text(&o->ours, decimals, ours, sizeof ours);
    if (has_range(o))
        snprintf(
            range, sizeof range, "%.*f..%.*f", decimals, o->low.value, decimals, o->high.value);
    difference_text(o, difference, sizeof difference);
    printf("    %-*s  %9s  %14s  %-17s  %9s  %10s  %s\n", width, o->row,
        value_text(&o->paper, paper_decimals(o), paper, sizeof paper), o->text[0] ? o->text : ours,
        range, value_text(&o->measured, decimals, measured, sizeof measured), difference,
        o->verdict);
}

static void print_heading(const struct table_figure *figure, int width)
{
    printf("\n  %s%s%s\n", figure->name, figure->unit[0] ? ", " : "", figure->unit);
    printf("    %-*s  %9s  %14s  %-17s  %9s  %10s  %s\n", width, "", "paper", "ours", "range",
        "measured", "difference", "verdict");
}

/* ---- CSV ------------------------------------------------------------------------------------ */

static void put_field(const char *text)
{
    bool quoted = text[strcspn(text, ",\"\n")] != 0;
    if (quoted)
        putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    if (quoted)
        putchar('"');
}

static void put_number(const struct table_value *value)
{
    if (value->state == TABLE_NUMBER)
        printf(",%.15g", value->value);
    else
        printf(",%s", value->state == TABLE_OOM ? "oom" : "");
}

static void print_csv_line(
    const struct table *table, const struct table_figure *figure, const struct table_outcome *o)
{
    put_field(table->title);
    putchar(',');
    put_field(o->row);
    putchar(',');
    put_field(figure->name);
    putchar(',');
    put_field(figure->unit);
    put_number(&o->paper);
    if (o->text[0]) {
        putchar(',');
        put_field(o->text);
    } else
        put_number(&o->ours);
    const struct table_value none = {TABLE_ABSENT, 0};
    put_number(has_range(o) ? &o->low : &none);
    put_number(has_range(o) ? &o->high : &none);
    put_number(&o->measured);
    putchar(',');
    put_field(o->verdict);
    putchar(',');
    put_field(o->why ? o->why->text : "");
    putchar('\n');
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int width_of(const struct table_part *part, char *error, int size)
{
    int width = (int)strlen("all rows");
    for (int row = 0; row < part->row_count; row++) {
        char text[TABLE_TEXT];
        struct table_view view = {.part = part, .row = row};
        if (table_expand(part->name, &view, text, sizeof text, error, size))
            return -1;
        width = (int)strlen(text) > width ? (int)strlen(text) : width;
    }
    return width;
}

/* The reasons that some row of the block gave. */
static void print_reasons(const struct table_figure *figure, const bool *given)
{
    for (int i = 0; i < figure->reason_count; i++) {
        const struct table_reason *reason = &figure->reasons[i];
        if (given[i])
            printf("    why%s%s: %s\n", reason->rows ? ", " : "", reason->rows ? reason->rows : "",
                reason->text);
    }
}

static int print_figure(const struct printer *to, const struct table_part *part,
    const struct table_figure *figure, int width)
{
    bool given[TABLE_REASONS_MAX] = {false};
    int row = of_all_rows(figure) ? -1 : 0, end = of_all_rows(figure) ? 0 : part->row_count;
    if (!to->csv)
        print_heading(figure, width);
    for (; row < end; row++) {
        struct table_outcome outcome;
        if (table_outcome_at(part, figure, row, to->records, &outcome, to->error, to->size))
            return -1;
        *to->failed += outcome.failed;
        if (to->csv)
            print_csv_line(to->table, figure, &outcome);
        else
            print_line(&outcome, width);
        if (outcome.why)
            given[outcome.why - figure->reasons] = true;
    }
    if (!to->csv)
        print_reasons(figure, given);
    return 0;
}

int table_print(
    const struct table *table, const json_t *records, bool csv, int *failed, char *error, int size)
{
    const struct printer to = {table, records, csv, failed, error, size};
    *failed = 0;
    if (csv)
        puts("table,row,figure,unit,paper,ours,low,high,measured,verdict,why");
    else
        puts(table->title);
    for (int p = 0; p < table->part_count; p++) {
        const struct table_part *part = &table->parts[p];
        int width = width_of(part, error, size);
        if (width < 0)
            return -1;
        for (int f = 0; f < part->figure_count; f++)
            if (print_figure(&to, part, &part->figures[f], width))
                return -1;
    }
    for (int n = 0; !csv && n < table->note_count; n++)
        printf("%s  %s\n", n ? "" : "\n", table->notes[n]);
    return 0;
}
