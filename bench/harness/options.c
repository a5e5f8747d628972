/* Parses a command line by table: what was given, defaults, and options without effect. */
#include "bench/harness/options.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/option_store.h"
#include "probe/host.h"

#define CASES_MAX 1000000

/* ---- messages ------------------------------------------------------------------------------- */

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

/* ---- the command line ----------------------------------------------------------------------- */

struct option_entry *options_find(const struct options *options, const char *name, size_t length)
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
    struct options *options, struct option_entry *entry, const char *value, bool has_value)
{
    const struct option *option = entry->option;
    char problem[OPTION_PROBLEM_MAX], range[OPTION_PROBLEM_MAX / 2];
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
    if (!option_entry_parse(entry, value, problem))
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

/* The exit status after what was asked for: text that was lost is no success. */
static int finish_printed(const struct program *program)
{
    FILE *out = program->out ? program->out : stdout;
    if (!fflush(out) && !ferror(out))
        return EXIT_OK;
    fail(program, "the output could not be written: %s", strerror(errno));
    return EXIT_ENVIRONMENT;
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
            return finish_printed(program);
        const char *name = argument + 2, *equals = strchr(name, '=');
        size_t length = equals ? (size_t)(equals - name) : strlen(name);
        struct option_entry *entry = options_find(options, name, length);
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

/* ---- defaults, and options without effect --------------------------------------------------- */

static union option_value unset_value(enum option_kind kind)
{
    union option_value value;
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
static int take_default(struct options *options, struct option_entry *entry)
{
    char problem[OPTION_PROBLEM_MAX];
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
        struct option_entry scratch = {.option = option};
        bool parsed = option_entry_parse(&scratch, option->fallback, problem);
        if (parsed && option->kind != OPTION_TEXT && !scratch.list)
            entry->fallback = scratch.values[0];
        else if (parsed && option->kind == OPTION_TEXT)
            entry->fallback.text = option->fallback;
        option_entry_clear(&scratch);
        return parsed ? -1 : options_refuse(options, option->name, "default: %s", problem);
    }
    if (option->fallback && !replaced) {
        if (!option_entry_parse(entry, option->fallback, problem))
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

static int refuse_untaken(const struct options *options, const struct option *option)
{
    const struct option *impls = options->entries[options->impl].option;
    char takers[256] = "";
    size_t used = 0;
    for (int i = 0; impls->names[i]; i++) {
        if (options_takes(options, i, option) && used < sizeof takers - 64)
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
    const struct option_entry *impls = &options->entries[options->impl];
    for (int i = 0; i < options->count; i++) {
        const struct option_entry *entry = &options->entries[i];
        if (!entry->given || !entry->option->by_impl)
            continue;
        bool taken = false;
        for (int j = 0; j < impls->count && !taken; j++)
            taken = options_takes(options, impls->values[j].name, entry->option);
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
    options->absent = calloc((size_t)options->count + 1, sizeof *options->absent);
    if (!options->entries || !options->arguments || !options->absent) {
        options_free(options);
        return NULL;
    }
    int next = 0;
    for (int g = 0; g < program->group_count; g++) {
        for (int i = 0; i < program->groups[g].count; i++) {
            struct option_entry *entry = &options->entries[next];
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
        option_entry_clear(&options->entries[i]);
    free(options->entries);
    free(options->arguments);
    free(options->absent);
    free(options);
}

int options_main(const struct program *program, int argc, char *const *argv,
    int (*run)(const void *fields, const struct options *options))
{
    struct options *options;
    int status = options_parse(&options, program, argc, argv);
    if (status >= 0)
        return status;
    options_next(options);
    status = run(program->groups[0].fields, options);
    options_free(options);
    return status;
}
