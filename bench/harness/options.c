/* Parses a command line by table and walks the product of its cases.
 *
 * Every value is parsed and checked once, when it is read, so that a mistake in the last option is
 * told before the first case has run. A case is a position of the odometer over all axes.
 * Implementations differ in the options they take: positions that differ only in an axis which the
 * implementation does not take are one case, the one where that axis stands at its first value. */
#include "bench/harness/options.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/units.h"
#include "probe/host.h"

#define CASES_MAX 1000000
#define PROBLEM_MAX 512

union value {
    bool flag;
    int64_t count;
    double real;
    int name;
    const char *text;
    struct option_counts counts;
    struct option_reals reals;
};

/* One option with what was given for it. */
struct entry {
    const struct option *option;
    void *fields;
    bool given, set;      /* set: given, or has a default */
    union value fallback; /* the default, or the unset value */
    union value *values;  /* [count] */
    int count;
    int position;  /* of the odometer, when an axis */
    char *storage; /* what texts point into */
    void *list;    /* what counts and reals point to */
};

struct options {
    const struct program *program;
    struct entry *entries;
    int count;
    int impl; /* the entry that chooses the implementation, -1 = none */
    const char **arguments;
    int argument_count;
    bool started;
};

/* ---- messages
 * ------------------------------------------------------------------------------------ */

static FILE *error_stream(const struct program *program)
{
    return program->err ? program->err : stderr;
}

static int __attribute__((format(printf, 2, 3)))
fail(const struct program *program, const char *format, ...)
{
    va_list args;
    FILE *err = error_stream(program);
    fprintf(err, "%s: ", program->name);
    va_start(args, format);
    vfprintf(err, format, args);
    va_end(args);
    fputc('\n', err);
    return EXIT_BAD_INPUT;
}

int options_refuse(const struct options *options, const char *name, const char *format, ...)
{
    va_list args;
    FILE *err = error_stream(options->program);
    fprintf(err, "%s: option --%s: ", options->program->name, name);
    va_start(args, format);
    vfprintf(err, format, args);
    va_end(args);
    fputc('\n', err);
    return EXIT_BAD_INPUT;
}

/* ---- one value
 * ----------------------------------------------------------------------------------- */

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
        snprintf(problem, PROBLEM_MAX, "got '%.80s', %s; allowed %s", text, count_problem(status),
            range);
        return false;
    }
    if (*value < option->low || (option->high && *value > option->high)) {
        snprintf(problem, PROBLEM_MAX, "got %.80s, allowed %s", text, range);
        return false;
    }
    return true;
}

static bool parse_real(const struct option *option, const char *text, double *value, char *problem)
{
    char range[64];
    options_range_text(option, range, sizeof range);
    if (units_parse_real(text, -1, value) != UNITS_OK) {
        snprintf(problem, PROBLEM_MAX, "got '%.80s', not a number; allowed %s", text, range);
        return false;
    }
    if (*value < option->real_low || (option->real_high > 0 && *value > option->real_high)) {
        snprintf(problem, PROBLEM_MAX, "got %.80s, allowed %s", text, range);
        return false;
    }
    return true;
}

static bool parse_name(const struct option *option, const char *text, int *value, char *problem)
{
    char range[PROBLEM_MAX - 128];
    for (int i = 0; option->names[i]; i++) {
        if (!strcmp(option->names[i], text)) {
            *value = i;
            return true;
        }
    }
    options_range_text(option, range, sizeof range);
    snprintf(problem, PROBLEM_MAX, "got '%.80s', allowed %s", text, range);
    return false;
}

static bool parse_value(
    const struct option *option, const char *text, union value *value, char *problem)
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
            snprintf(problem, PROBLEM_MAX, "got an empty value");
        value->text = text;
        return *text != '\0';
    }
}

static bool same_value(enum option_kind kind, const union value *a, const union value *b)
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

/* ---- lists
 * --------------------------------------------------------------------------------------- */

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
static bool parse_list(struct entry *entry, char **pieces, int count, char *problem)
{
    const struct option *option = entry->option;
    if (count > option->most) {
        snprintf(problem, PROBLEM_MAX, "got %d values, allowed at most %d", count, option->most);
        return false;
    }
    entry->list = malloc((size_t)count * sizeof(int64_t));
    entry->values = calloc(1, sizeof *entry->values);
    if (!entry->list || !entry->values) {
        snprintf(problem, PROBLEM_MAX, "memory is short for %d values", count);
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
    const union value *left = a, *right = b;
    return (left->name > right->name) - (left->name < right->name);
}

/* Every name of the set. */
static bool take_all_names(struct entry *entry, char *problem)
{
    int count = 0;
    while (entry->option->names[count])
        count++;
    entry->values = calloc((size_t)count, sizeof *entry->values);
    if (!entry->values) {
        snprintf(problem, PROBLEM_MAX, "memory is short for %d names", count);
        return false;
    }
    entry->count = count;
    for (int i = 0; i < count; i++)
        entry->values[i].name = i;
    return true;
}

/* An axis, or an option with a single value. */
static bool parse_axis(struct entry *entry, char **pieces, int count, char *problem)
{
    const struct option *option = entry->option;
    if (option->axis && option->kind == OPTION_NAME && count == 1 && !strcmp(pieces[0], "all"))
        return take_all_names(entry, problem);
    entry->values = calloc((size_t)count, sizeof *entry->values);
    if (!entry->values) {
        snprintf(problem, PROBLEM_MAX, "memory is short for %d values", count);
        return false;
    }
    entry->count = count;
    for (int i = 0; i < count; i++) {
        if (!parse_value(option, pieces[i], &entry->values[i], problem))
            return false;
        for (int j = 0; j < i; j++) {
            if (same_value(option->kind, &entry->values[i], &entry->values[j])) {
                snprintf(problem, PROBLEM_MAX, "got '%.80s' twice in one list", pieces[i]);
                return false;
            }
        }
    }
    if (option->kind == OPTION_NAME)
        qsort(entry->values, (size_t)count, sizeof *entry->values, compare_names);
    return true;
}

/* Parses what was given (or a default) into entry->values. */
static bool parse_text(struct entry *entry, const char *text, char *problem)
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
        snprintf(problem, PROBLEM_MAX, "memory is short");
        return false;
    }
    bool parsed = list ? parse_list(entry, pieces, count, problem)
                       : parse_axis(entry, pieces, count, problem);
    free(pieces);
    return parsed;
}

static void entry_clear(struct entry *entry)
{
    free(entry->values);
    free(entry->storage);
    free(entry->list);
    entry->values = NULL;
    entry->storage = NULL;
    entry->list = NULL;
    entry->count = 0;
}

/* ---- the command line
 * ---------------------------------------------------------------------------- */

static struct entry *find_entry(const struct options *options, const char *name, size_t length)
{
    for (int i = 0; i < options->count; i++) {
        const char *known = options->entries[i].option->name;
        if (strlen(known) == length && !memcmp(known, name, length))
            return &options->entries[i];
    }
    return NULL;
}

static int refuse_unknown(const struct program *program, const char *name, size_t length)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)(length < 60 ? length : 60), name);
    const char *near = options_nearest(program, text);
    if (near)
        return fail(program, "unknown option --%s; did you mean --%s?", text, near);
    return fail(program, "unknown option --%s; --help lists the options", text);
}

/* -1, or the exit status. */
static int parse_given(
    struct options *options, struct entry *entry, const char *value, bool has_value)
{
    const struct option *option = entry->option;
    char problem[PROBLEM_MAX], range[PROBLEM_MAX / 2];
    if (entry->given)
        return options_refuse(options, option->name,
            option->axis ? "given twice; a list is written with commas" : "given twice");
    entry->given = entry->set = true;
    if (option->kind == OPTION_FLAG) {
        if (has_value)
            return options_refuse(options, option->name, "got '%.80s', takes no value", value);
        entry->values = calloc(1, sizeof *entry->values);
        if (!entry->values)
            return options_refuse(options, option->name, "memory is short");
        entry->values->flag = true;
        entry->count = 1;
        return -1;
    }
    if (!value) {
        options_range_text(option, range, sizeof range);
        return options_refuse(options, option->name, "value missing, allowed %s", range);
    }
    if (!parse_text(entry, value, problem))
        return options_refuse(options, option->name, "%s", problem);
    return -1;
}

static bool asked_for(const struct program *program, const char *argument)
{
    FILE *out = program->out ? program->out : stdout;
    if (!strcmp(argument, "--help"))
        options_print_help(program);
    else if (!strcmp(argument, "--version"))
        fprintf(out, "%s %s\n", program->name, host_build());
    else if (!strcmp(argument, "--list") && program->impl_names)
        options_print_list(program);
    else
        return false;
    return true;
}

/* -1 to go on, or the exit status. */
static int parse_line(struct options *options, int argc, char *const *argv)
{
    const struct program *program = options->program;
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (argument[0] != '-' || !argument[1]) {
            if (options->argument_count >= program->most_arguments)
                return fail(
                    program, "argument '%.80s' is not expected; options start with --", argument);
            options->arguments[options->argument_count++] = argument;
            continue;
        }
        if (argument[1] != '-')
            return fail(program, "unknown option %.80s; options start with --", argument);
        if (asked_for(program, argument))
            return EXIT_OK;
        const char *name = argument + 2, *equals = strchr(name, '=');
        size_t length = equals ? (size_t)(equals - name) : strlen(name);
        struct entry *entry = find_entry(options, name, length);
        if (!entry)
            return refuse_unknown(program, name, length);
        const char *value = equals ? equals + 1 : NULL;
        bool wants = entry->option->kind != OPTION_FLAG;
        if (!equals && wants && i + 1 < argc && strncmp(argv[i + 1], "--", 2))
            value = argv[++i];
        int status = parse_given(options, entry, value, equals != NULL);
        if (status >= 0)
            return status;
    }
    if (options->argument_count < program->least_arguments)
        return fail(program, "got %d arguments, needs %s; --help explains", options->argument_count,
            program->arguments);
    return -1;
}

/* ---- defaults, and options without effect
 * -------------------------------------------------------- */

static union value unset_value(enum option_kind kind)
{
    union value value;
    memset(&value, 0, sizeof value);
    if (kind == OPTION_COUNT || kind == OPTION_BYTES)
        value.count = -1;
    else if (kind == OPTION_REAL)
        value.real = NAN;
    else if (kind == OPTION_NAME)
        value.name = -1;
    return value;
}

/* An option that was not given takes its default, which may be a list. One that was given still
 * needs the default for the implementations that do not take it. */
static int take_default(struct options *options, struct entry *entry)
{
    char problem[PROBLEM_MAX];
    const struct option *option = entry->option;
    bool replaced = option->replaced_by && options_given(options, option->replaced_by);
    entry->fallback = unset_value(option->kind);
    if (entry->given && replaced)
        return options_refuse(options, option->name, "has no effect with --%s; give one of them",
            option->replaced_by);
    if (entry->given && !option->fallback)
        return -1;
    if (entry->given) {
        if (!option->by_impl)
            return -1;
        struct entry scratch = {.option = option};
        bool parsed = parse_text(&scratch, option->fallback, problem);
        if (parsed && option->kind != OPTION_TEXT && !scratch.list)
            entry->fallback = scratch.values[0];
        else if (parsed && option->kind == OPTION_TEXT)
            entry->fallback.text = option->fallback;
        entry_clear(&scratch);
        return parsed ? -1 : options_refuse(options, option->name, "default: %s", problem);
    }
    if (option->fallback && !replaced) {
        if (!parse_text(entry, option->fallback, problem))
            return options_refuse(options, option->name, "default: %s", problem);
        entry->set = true;
        entry->fallback = entry->values[0];
        return -1;
    }
    entry->values = malloc(sizeof *entry->values);
    if (!entry->values)
        return options_refuse(options, option->name, "memory is short");
    entry->values[0] = entry->fallback;
    entry->count = 1;
    return -1;
}

static bool takes(const struct options *options, int impl, const struct option *option)
{
    const struct program *program = options->program;
    return !option->by_impl || !program->takes || program->takes(impl, option->name);
}

static int refuse_untaken(const struct options *options, const struct option *option)
{
    const struct option *impls = options->entries[options->impl].option;
    char takers[256] = "";
    size_t used = 0;
    for (int i = 0; impls->names[i]; i++) {
        if (takes(options, i, option) && used < sizeof takers - 64)
            used += (size_t)snprintf(
                takers + used, sizeof takers - used, "%s%.60s", used ? ", " : "", impls->names[i]);
    }
    if (!used)
        return options_refuse(options, option->name, "no implementation of this program takes it");
    return options_refuse(
        options, option->name, "no chosen implementation takes it; it is taken by %s", takers);
}

static int refuse_without_effect(const struct options *options)
{
    if (options->impl < 0)
        return -1;
    const struct entry *impls = &options->entries[options->impl];
    for (int i = 0; i < options->count; i++) {
        const struct entry *entry = &options->entries[i];
        if (!entry->given || !entry->option->by_impl)
            continue;
        bool taken = false;
        for (int j = 0; j < impls->count && !taken; j++)
            taken = takes(options, impls->values[j].name, entry->option);
        if (taken)
            continue;
        return refuse_untaken(options, entry->option);
    }
    return -1;
}

static int refuse_too_many(const struct options *options)
{
    int64_t cases = 1;
    for (int i = 0; i < options->count; i++) {
        cases *= options->entries[i].count;
        if (cases > CASES_MAX)
            return options_refuse(options, options->entries[i].option->name,
                "the lists make more than %d cases, allowed at most %d", CASES_MAX, CASES_MAX);
    }
    return -1;
}

static struct options *create(const struct program *program)
{
    struct options *options = calloc(1, sizeof *options);
    if (!options)
        return NULL;
    options->program = program;
    options->impl = -1;
    for (int g = 0; g < program->group_count; g++)
        options->count += program->groups[g].count;
    options->entries = calloc((size_t)options->count + 1, sizeof *options->entries);
    options->arguments = calloc((size_t)program->most_arguments + 1, sizeof *options->arguments);
    if (!options->entries || !options->arguments) {
        options_free(options);
        return NULL;
    }
    int next = 0;
    for (int g = 0; g < program->group_count; g++) {
        for (int i = 0; i < program->groups[g].count; i++) {
            struct entry *entry = &options->entries[next];
            entry->option = &program->groups[g].options[i];
            entry->fields = program->groups[g].fields;
            if (program->impl_names && !strcmp(entry->option->name, "impl"))
                options->impl = next;
            next++;
        }
    }
    return options;
}

int options_parse(struct options **out, const struct program *program, int argc, char *const *argv)
{
    *out = NULL;
    struct options *options = create(program);
    if (!options) {
        fail(program, "memory is short");
        return EXIT_ENVIRONMENT;
    }
    int status = parse_line(options, argc, argv);
    for (int i = 0; status < 0 && i < options->count; i++)
        status = take_default(options, &options->entries[i]);
    if (status < 0)
        status = refuse_without_effect(options);
    if (status < 0)
        status = refuse_too_many(options);
    if (status >= 0) {
        options_free(options);
        return status;
    }
    *out = options;
    return -1;
}

void options_free(struct options *options)
{
    if (!options)
        return;
    for (int i = 0; options->entries && i < options->count; i++)
        entry_clear(&options->entries[i]);
    free(options->entries);
    free(options->arguments);
    free(options);
}

/* ---- cases
 * --------------------------------------------------------------------------------------- */

static int chosen_impl(const struct options *options)
{
    if (options->impl < 0)
        return -1;
    const struct entry *entry = &options->entries[options->impl];
    return entry->values[entry->position].name;
}

/* The odometer stands at a case: every axis that the implementation does not take is at its first
 * value. */
static bool at_case(const struct options *options)
{
    int impl = chosen_impl(options);
    for (int i = 0; i < options->count; i++) {
        const struct entry *entry = &options->entries[i];
        if (entry->position && !takes(options, impl, entry->option))
            return false;
    }
    return true;
}

/* False when all positions have been met. */
static bool turn(struct options *options)
{
    for (int i = options->count - 1; i >= 0; i--) {
        struct entry *entry = &options->entries[i];
        if (++entry->position < entry->count)
            return true;
        entry->position = 0;
    }
    return false;
}

static void write_field(const struct entry *entry, const union value *value)
{
    char *field = (char *)entry->fields + entry->option->at;
    switch (entry->option->kind) {
    case OPTION_FLAG:
        *(bool *)field = value->flag;
        return;
    case OPTION_COUNT:
    case OPTION_BYTES:
        *(int64_t *)(void *)field = value->count;
        return;
    case OPTION_REAL:
        *(double *)(void *)field = value->real;
        return;
    case OPTION_NAME:
        *(int *)(void *)field = value->name;
        return;
    case OPTION_TEXT:
        *(const char **)(void *)field = value->text;
        return;
    case OPTION_COUNTS:
        *(struct option_counts *)(void *)field = value->counts;
        return;
    case OPTION_REALS:
        *(struct option_reals *)(void *)field = value->reals;
        return;
    }
}

bool options_next(struct options *options)
{
    if (!options->started)
        options->started = true;
    else if (!turn(options))
        return false;
    while (!at_case(options)) {
        if (!turn(options))
            return false;
    }
    for (int i = 0; i < options->count; i++) {
        const struct entry *entry = &options->entries[i];
        bool taken = takes(options, chosen_impl(options), entry->option);
        write_field(entry, taken ? &entry->values[entry->position] : &entry->fallback);
    }
    return true;
}

void options_rewind(struct options *options)
{
    options->started = false;
    for (int i = 0; i < options->count; i++)
        options->entries[i].position = 0;
}

int64_t options_cases(const struct options *options)
{
    int impls = options->impl < 0 ? 1 : options->entries[options->impl].count;
    int64_t cases = 0;
    for (int j = 0; j < impls; j++) {
        int impl = options->impl < 0 ? -1 : options->entries[options->impl].values[j].name;
        int64_t product = 1;
        for (int i = 0; i < options->count; i++) {
            const struct entry *entry = &options->entries[i];
            if (i != options->impl && takes(options, impl, entry->option))
                product *= entry->count;
        }
        cases += product;
    }
    return cases;
}

/* ---- for reports
 * --------------------------------------------------------------------------------- */

bool options_given(const struct options *options, const char *name)
{
    const struct entry *entry = find_entry(options, name, strlen(name));
    return entry && entry->given;
}

int options_argument_count(const struct options *options)
{
    return options->argument_count;
}

const char *options_argument(const struct options *options, int index)
{
    return index < options->argument_count ? options->arguments[index] : NULL;
}

int options_count(const struct options *options)
{
    return options->count;
}

const struct option *options_at(const struct options *options, int index)
{
    return options->entries[index].option;
}

bool options_present(const struct options *options, int index)
{
    const struct entry *entry = &options->entries[index];
    return entry->set && takes(options, chosen_impl(options), entry->option);
}

bool options_varies(const struct options *options, int index)
{
    return options->entries[index].count > 1;
}

static int list_text(const struct entry *entry, const union value *value, char *text, int size)
{
    int used = 0;
    bool whole = entry->option->kind == OPTION_COUNTS;
    int count = whole ? value->counts.count : value->reals.count;
    for (int i = 0; i < count && used < size; i++) {
        const char *comma = i ? "," : "";
        used += whole ? snprintf(text + used, (size_t)(size - used), "%s%lld", comma,
                            (long long)value->counts.values[i])
                      : snprintf(text + used, (size_t)(size - used), "%s%g", comma,
                            value->reals.values[i]);
    }
    return used;
}

void options_text(const struct options *options, int index, char *text, int size)
{
    const struct entry *entry = &options->entries[index];
    const union value *value = &entry->values[entry->position];
    if (!options_present(options, index)) {
        snprintf(text, (size_t)size, "-");
        return;
    }
    switch (entry->option->kind) {
    case OPTION_FLAG:
        snprintf(text, (size_t)size, "%s", value->flag ? "yes" : "no");
        return;
    case OPTION_COUNT:
    case OPTION_BYTES:
        snprintf(text, (size_t)size, "%lld", (long long)value->count);
        return;
    case OPTION_REAL:
        snprintf(text, (size_t)size, "%g", value->real);
        return;
    case OPTION_NAME:
        snprintf(text, (size_t)size, "%s", entry->option->names[value->name]);
        return;
    case OPTION_TEXT:
        snprintf(text, (size_t)size, "%s", value->text);
        return;
    case OPTION_COUNTS:
    case OPTION_REALS:
        list_text(entry, value, text, size);
        return;
    }
}

void options_position(const struct options *options, int *position)
{
    for (int i = 0; i < options->count; i++)
        position[i] = options->entries[i].position;
}

bool options_same_shape(const struct options *options, const int *baseline_position)
{
    int impl = chosen_impl(options);
    for (int i = 0; i < options->count; i++) {
        const struct entry *entry = &options->entries[i];
        if (i == options->impl || !takes(options, 0, entry->option))
            continue;
        int wanted = takes(options, impl, entry->option) ? entry->position : 0;
        if (baseline_position[i] != wanted)
            return false;
    }
    return true;
}

static json_t *value_json(const struct entry *entry, const union value *value)
{
    json_t *list;
    switch (entry->option->kind) {
    case OPTION_FLAG:
        return json_boolean(value->flag);
    case OPTION_REAL:
        return json_real(value->real);
    case OPTION_NAME:
        return json_string(entry->option->names[value->name]);
    case OPTION_TEXT:
        return json_string(value->text);
    case OPTION_COUNTS:
        list = json_array();
        for (int i = 0; i < value->counts.count; i++)
            json_array_append_new(list, json_integer(value->counts.values[i]));
        return list;
    case OPTION_REALS:
        list = json_array();
        for (int i = 0; i < value->reals.count; i++)
            json_array_append_new(list, json_real(value->reals.values[i]));
        return list;
    default:
        return json_integer(value->count);
    }
}

static json_t *subobject(json_t *parent, const char *key)
{
    json_t *object = json_object_get(parent, key);
    if (!object) {
        object = json_object();
        json_object_set_new(parent, key, object);
    }
    return object;
}

void options_record(const struct options *options, json_t *record)
{
    for (int i = 0; i < options->count; i++) {
        const struct entry *entry = &options->entries[i];
        const struct option *option = entry->option;
        if (option->role == OPTION_ELSEWHERE || !options_present(options, i))
            continue;
        char key[64];
        snprintf(key, sizeof key, "%s", option->key ? option->key : option->name);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        json_t *home = option->role == OPTION_CONFIG
                           ? subobject(record, "config")
                           : subobject(subobject(record, "run"), "options");
        json_object_set_new(home, key, value_json(entry, &entry->values[entry->position]));
    }
}
