/* What a person reads about a command line: --help, --list, allowed ranges, the nearest option. */
#include <stdlib.h>
#include <string.h>
#include "bench/harness/options.h"

/* Column at which the explanations of --help begin. */
#define HELP_COLUMN 30

static const char program_exit_codes[] =
    "  0    every case ran and every check held\n"
    "  1    a check, bound or comparison failed\n"
    "  2    bad option or input; nothing was run\n"
    "  3    out of memory (unless --oom record), or something is missing here\n"
    "  130  interrupted; the cases that were finished are kept\n";

static const char *placeholder(const struct option *option)
{
    if (option->argument)
        return option->argument;
    switch (option->kind) {
    case OPTION_FLAG:
        return "";
    case OPTION_BYTES:
        return "SIZE";
    case OPTION_REAL:
        return "X";
    case OPTION_NAME:
        return "NAME";
    case OPTION_TEXT:
        return "TEXT";
    case OPTION_COUNTS:
        return "N,N...";
    case OPTION_REALS:
        return "X,X...";
    default:
        return "N";
    }
}

static void names_text(const struct option *option, char *text, int size)
{
    int used = 0;
    text[0] = '\0';
    for (int i = 0; option->names[i] && used < size; i++)
        used +=
            snprintf(text + used, (size_t)(size - used), "%s%s", i ? ", " : "", option->names[i]);
    if (option->axis && used < size)
        snprintf(text + used, (size_t)(size - used), ", or all");
}

void options_range_text(const struct option *option, char *text, int size)
{
    switch (option->kind) {
    case OPTION_NAME:
        names_text(option, text, size);
        return;
    case OPTION_REAL:
    case OPTION_REALS:
        if (option->real_high > 0)
            snprintf(text, (size_t)size, "%g..%g", option->real_low, option->real_high);
        else
            snprintf(text, (size_t)size, "at least %g", option->real_low);
        return;
    case OPTION_COUNT:
    case OPTION_BYTES:
    case OPTION_COUNTS:
        if (option->high)
            snprintf(
                text, (size_t)size, "%lld..%lld", (long long)option->low, (long long)option->high);
        else
            snprintf(text, (size_t)size, "at least %lld", (long long)option->low);
        return;
    default:
        snprintf(text, (size_t)size, "%s", placeholder(option));
        return;
    }
}

static void print_option(FILE *out, const struct option *option)
{
    char range[256];
    const char *argument = placeholder(option);
    int written = fprintf(out, "  --%s%s%s%s", option->name, *argument ? " " : "", argument,
        option->axis ? "[,...]" : "");
    if (written >= HELP_COLUMN)
        written = fprintf(out, "\n") - 1;
    fprintf(out, "%*s%s\n", HELP_COLUMN - written, "", option->help);
    if (option->kind == OPTION_FLAG)
        return;
    fprintf(out, "%*s", HELP_COLUMN, "");
    if (option->fallback)
        fprintf(out, "default %s", option->fallback);
    else
        fprintf(out, "default: %s", option->default_note ? option->default_note : "not set");
    if (option->unit)
        fprintf(out, "; unit %s", option->unit);
    if (option->kind != OPTION_TEXT) {
        options_range_text(option, range, sizeof range);
        fprintf(out, "; allowed %s", range);
    }
    fputc('\n', out);
}

static void print_builtin(FILE *out, const char *name, const char *help)
{
    fprintf(out, "  %-*s%s\n", HELP_COLUMN - 2, name, help);
}

void options_print_help(const struct program *program)
{
    FILE *out = program->out ? program->out : stdout;
    fprintf(out, "Usage: %s [OPTION]...%s%s\n%s\n", program->name, program->arguments ? " " : "",
        program->arguments ? program->arguments : "", program->summary);
    if (program->description)
        fprintf(out, "\n%s", program->description);
    for (int g = 0; g < program->group_count; g++) {
        fprintf(out, "\n%s:\n", program->groups[g].title);
        for (int i = 0; i < program->groups[g].count; i++)
            print_option(out, &program->groups[g].options[i]);
    }
    fprintf(out, "\nAbout:\n");
    print_builtin(out, "--help", "this page");
    print_builtin(out, "--version", "version, git commit, compiler and flags");
    if (program->impl_names) {
        print_builtin(out, "--list", "the implementations, one line each");
        fprintf(out,
            "\nValues are given as --option VALUE or --option=VALUE. Counts and sizes take K, M, "
            "G\n"
            "(powers of 1024) and decimal exponents (100e6). Where [,...] is shown a list may be\n"
            "given; the cases are the product of the lists, the last one running fastest.\n");
        fprintf(out, "\nImplementations:\n");
        options_print_list(program);
    }
    if (program->examples)
        fprintf(out, "\nExamples:\n%s", program->examples);
    fprintf(
        out, "\nExit status:\n%s", program->exit_codes ? program->exit_codes : program_exit_codes);
}

void options_print_list(const struct program *program)
{
    FILE *out = program->out ? program->out : stdout;
    int width = 0;
    for (int i = 0; program->impl_names[i]; i++) {
        int length = (int)strlen(program->impl_names[i]);
        width = length > width ? length : width;
    }
    for (int i = 0; program->impl_names[i]; i++)
        fprintf(out, "  %-*s  %s\n", width, program->impl_names[i], program->impl_summaries[i]);
}

/* ---- the nearest option --------------------------------------------------------------------- */

#define NAME_MAX_LENGTH 60

static int least(int a, int b, int c)
{
    int low = a < b ? a : b;
    return low < c ? low : c;
}

/* Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
 */
static int edit_distance(const char *a, const char *b)
{
    int rows[3][NAME_MAX_LENGTH + 1];
    int length_a = (int)strlen(a), length_b = (int)strlen(b);
    if (length_a > NAME_MAX_LENGTH || length_b > NAME_MAX_LENGTH)
        return NAME_MAX_LENGTH;
    for (int j = 0; j <= length_b; j++)
        rows[0][j] = j;
    for (int i = 1; i <= length_a; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= length_b; j++) {
            bool same = a[i - 1] == b[j - 1];
            row[j] = least(above[j] + 1, row[j - 1] + 1, above[j - 1] + !same);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two_above[j - 2] + 1 < row[j])
                row[j] = two_above[j - 2] + 1;
        }
    }
    return rows[length_a % 3][length_b];
}

static void consider(const char *known, const char *name, const char **best, int *best_distance)
{
    int distance = edit_distance(name, known);
    /* A word cut short is as near as one slip. */
    if (distance > 1 && strlen(name) >= 3 && !strncmp(known, name, strlen(name)))
        distance = 1;
    if (distance < *best_distance) {
        *best = known;
        *best_distance = distance;
    }
}

const char *options_nearest(const struct program *program, const char *name)
{
    static const char *const builtin[] = {"help", "version", "list"};
    const char *best = NULL;
    int allowed = (int)strlen(name) / 3;
    int best_distance = (allowed < 2 ? 2 : allowed) + 1;
    for (int g = 0; g < program->group_count; g++) {
        for (int i = 0; i < program->groups[g].count; i++)
            consider(program->groups[g].options[i].name, name, &best, &best_distance);
    }
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++) {
        if (i < 2 || program->impl_names)
            consider(builtin[i], name, &best, &best_distance);
    }
    return best;
}
