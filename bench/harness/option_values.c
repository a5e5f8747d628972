/* Parses the value of one option, or its list.
 *
 * Every value is parsed and checked once, when it is read, so that a mistake in the last option is
 * told before the first case has run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/option_store.h"
#include "bench/harness/units.h"

/* ---- one value ------------------------------------------------------------------------------ */

static const char *count_problem(enum units_status status)
{
    switch (status) {
    case UNITS_NOT_WHOLE:
        return "not a whole number";
    case UNITS_TOO_LARGE:
        return "too large";
    default:
        return "not a whole number (like 4096, 4K, 100e6; K M G are powers of 1024)";
    }
}

static bool parse_count(
    const struct option *option, const char *text, int64_t *value, char *problem)
{
    char range[64];
    enum units_status status = units_parse_count(text, -1, value);
    options_range_text(option, range, sizeof range);
    if (status != UNITS_OK) {
        snprintf(problem, OPTION_PROBLEM_MAX, "got '%.80s', %s; allowed %s", text,
            count_problem(status), range);
        return false;
    }
    if (*value < option->low || (option->high && *value > option->high)) {
        snprintf(problem, OPTION_PROBLEM_MAX, "got %.80s, allowed %s", text, range);
        return false;
    }
    return true;
}

static bool parse_real(const struct option *option, const char *text, double *value, char *problem)
{
    char range[64];
    options_range_text(option, range, sizeof range);
    if (units_parse_real(text, -1, value) != UNITS_OK) {
        snprintf(problem, OPTION_PROBLEM_MAX, "got '%.80s', not a number; allowed %s", text, range);
        return false;
    }
    if (*value < option->real_low || (option->real_high > 0 && *value > option->real_high)) {
        snprintf(problem, OPTION_PROBLEM_MAX, "got %.80s, allowed %s", text, range);
        return false;
    }
    return true;
}

static bool parse_name(const struct option *option, const char *text, int *value, char *problem)
{
    char range[OPTION_PROBLEM_MAX - 128];
    for (int i = 0; option->names[i]; i++) {
        if (!strcmp(option->names[i], text)) {
            *value = i;
            return true;
        }
    }
    options_range_text(option, range, sizeof range);
    snprintf(problem, OPTION_PROBLEM_MAX, "got '%.80s', allowed %s", text, range);
    return false;
}

static bool parse_value(
    const struct option *option, const char *text, union option_value *value, char *problem)
{
    switch (option->kind) {
    case OPTION_COUNT:
    case OPTION_BYTES:
        return parse_count(option, text, &value->count, problem);
    case OPTION_REAL:
        return parse_real(option, text, &value->real, problem);
    case OPTION_NAME:
        return parse_name(option, text, &value->name, problem);
    default:
        if (!*text)
            snprintf(problem, OPTION_PROBLEM_MAX, "got an empty value");
        value->text = text;
        return *text != '\0';
    }
}

static bool same_value(
    enum option_kind kind, const union option_value *a, const union option_value *b)
{
    switch (kind) {
    case OPTION_REAL:
        return a->real == b->real;
    case OPTION_NAME:
        return a->name == b->name;
    case OPTION_TEXT:
        return !strcmp(a->text, b->text);
    default:
        return a->count == b->count;
    }
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* Cuts entry->storage at its commas. Returns the pieces (the caller frees the array), or NULL when
 * memory is short. */
static char **split(char *text, int *count)
{
    *count = 1;
    for (const char *c = text; *c; c++)
        *count += *c == ',';
    char **pieces = malloc((size_t)*count * sizeof *pieces);
    for (int i = 0; pieces && i < *count; i++) {
        pieces[i] = text;
        text = strchr(text, ',');
        if (text)
            *text++ = '\0';
    }
    return pieces;
}

/* A list that is one value. */
static bool parse_list(struct option_entry *entry, char **pieces, int count, char *problem)
{
    const struct option *option = entry->option;
    if (count > option->most) {
        snprintf(
            problem, OPTION_PROBLEM_MAX, "got %d values, allowed at most %d", count, option->most);
        return false;
    }
    entry->list = malloc((size_t)count * sizeof(int64_t));
    entry->values = calloc(1, sizeof *entry->values);
    if (!entry->list || !entry->values) {
        snprintf(problem, OPTION_PROBLEM_MAX, "memory is short for %d values", count);
        return false;
    }
    entry->count = 1;
    for (int i = 0; i < count; i++) {
        bool parsed = option->kind == OPTION_COUNTS
                          ? parse_count(option, pieces[i], (int64_t *)entry->list + i, problem)
                          : parse_real(option, pieces[i], (double *)entry->list + i, problem);
        if (!parsed)
            return false;
    }
    if (option->kind == OPTION_COUNTS)
        entry->values->counts = (struct option_counts){count, entry->list};
    else
        entry->values->reals = (struct option_reals){count, entry->list};
    return true;
}

static int compare_names(const void *a, const void *b)
{
    const union option_value *left = a, *right = b;
    return (left->name > right->name) - (left->name < right->name);
}

/* Every name of the set. */
static bool take_all_names(struct option_entry *entry, char *problem)
{
    int count = 0;
    while (entry->option->names[count])
        count++;
    entry->values = calloc((size_t)count, sizeof *entry->values);
    if (!entry->values) {
        snprintf(problem, OPTION_PROBLEM_MAX, "memory is short for %d names", count);
        return false;
    }
    entry->count = count;
    for (int i = 0; i < count; i++)
        entry->values[i].name = i;
    return true;
}

/* An axis, or an option with a single value. */
static bool parse_axis(struct option_entry *entry, char **pieces, int count, char *problem)
{
    const struct option *option = entry->option;
    if (option->axis && option->kind == OPTION_NAME && count == 1 && !strcmp(pieces[0], "all"))
        return take_all_names(entry, problem);
    entry->values = calloc((size_t)count, sizeof *entry->values);
    if (!entry->values) {
        snprintf(problem, OPTION_PROBLEM_MAX, "memory is short for %d values", count);
        return false;
    }
    entry->count = count;
    for (int i = 0; i < count; i++) {
        if (!parse_value(option, pieces[i], &entry->values[i], problem))
            return false;
        for (int j = 0; j < i; j++) {
            if (same_value(option->kind, &entry->values[i], &entry->values[j])) {
                snprintf(problem, OPTION_PROBLEM_MAX, "got '%.80s' twice in one list", pieces[i]);
                return false;
            }
        }
    }
    if (option->kind == OPTION_NAME)
        qsort(entry->values, (size_t)count, sizeof *entry->values, compare_names);
    return true;
}

/* Parses what was given (or a default) into entry->values. */
bool option_entry_parse(struct option_entry *entry, const char *text, char *problem)
{
    const struct option *option = entry->option;
    bool list = option->kind == OPTION_COUNTS || option->kind == OPTION_REALS;
    int count = 1;
    entry->storage = strdup(text);
    char **pieces = NULL;
    if (entry->storage && (list || option->axis)) {
        pieces = split(entry->storage, &count);
    } else if (entry->storage) {
        pieces = malloc(sizeof *pieces);
        if (pieces)
            pieces[0] = entry->storage;
    }
    if (!pieces) {
        snprintf(problem, OPTION_PROBLEM_MAX, "memory is short");
        return false;
    }
    bool parsed = list ? parse_list(entry, pieces, count, problem)
                       : parse_axis(entry, pieces, count, problem);
    free(pieces);
    return parsed;
}

void option_entry_clear(struct option_entry *entry)
{
    free(entry->values);
    free(entry->storage);
    free(entry->list);
    entry->values = NULL;
    entry->storage = NULL;
    entry->list = NULL;
    entry->count = 0;
}
