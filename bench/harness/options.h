/* A command line described by a table: parsing, ranges, lists, the product of cases, --help.
 *
 * A program declares its options in groups; every group writes into one struct of the program. An
 * option that is an `axis` takes a comma list, and the cases are the product of all axes, met in
 * the order of the table with the last axis running fastest:
 *
 *     --tokens 1K,2K --impl a,b     ->  1K a, 1K b, 2K a, 2K b
 *
 * options_next() writes the values of the next case into the structs. The axis called "impl"
 * chooses the implementation. An option marked `by_impl` is asked for, implementation by
 * implementation, with program->takes: it multiplies only the implementations that take it, the
 * others see its default value; one that is given and taken by none of the chosen implementations
 * is refused. Names of a set are met in the order of the set however they are listed, so that the
 * first implementation, the family's baseline, comes first at every shape.
 *
 * Long options, `--name value` or `--name=value`. An error is one line on stderr that names the
 * option, the value and what is allowed; nothing else is done. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <jansson.h>

/* Exit status of every program. */
enum {
    EXIT_OK = 0,
    EXIT_FAILED_CHECK = 1, /* a check, bound or comparison failed */
    EXIT_BAD_INPUT = 2,    /* bad option or input */
    EXIT_ENVIRONMENT = 3,  /* out of memory, missing device or other environment */
    EXIT_INTERRUPTED = 130
};

/* What an option holds, and the type of the field it writes. "Unset" is what the field holds when
 * the option has no default and was not given. */
enum option_kind {
    OPTION_FLAG,   /* bool, false unless given; takes no value */
    OPTION_COUNT,  /* int64_t; unset -1 */
    OPTION_BYTES,  /* int64_t; unset -1 */
    OPTION_REAL,   /* double; unset NaN */
    OPTION_NAME,   /* int, index into names; unset -1 */
    OPTION_TEXT,   /* const char *; unset NULL */
    OPTION_COUNTS, /* struct option_counts: one list that is one value, such as one count per rank
                    */
    OPTION_REALS   /* struct option_reals, likewise */
};

struct option_counts {
    int count; /* 0 = unset */
    const int64_t *values;
};

struct option_reals {
    int count;
    const double *values;
};

/* Where a resolved option goes in the record. */
enum option_role {
    OPTION_CONFIG,   /* what is run: config.KEY; two records pair when these agree */
    OPTION_PROTOCOL, /* how it is run and checked: run.options.KEY */
    OPTION_ELSEWHERE /* recorded by its own field, or not at all (file names) */
};

struct option {
    const char *name; /* without the dashes */
    enum option_kind kind;
    size_t at; /* offsetof the field in the group's struct */
    enum option_role role;
    bool axis;            /* takes a comma list; not for flags, OPTION_COUNTS, OPTION_REALS */
    bool by_impl;         /* only some implementations take it */
    const char *key;      /* name in the record; NULL = name with '_' for '-' */
    const char *column;   /* heading in the printed table; NULL = a column only when it varies */
    const char *argument; /* placeholder in --help; NULL = by kind */
    const char *fallback; /* default, as it would be written; NULL = unset */
    const char *default_note; /* what --help says the default is when fallback is NULL */
    const char *unit;         /* NULL = none */
    int64_t low, high;        /* allowed range of counts and bytes; high 0 = no upper limit */
    double real_low;          /* allowed range of reals; real_high 0 = no upper limit */
    double real_high;
    int most;                 /* longest list of OPTION_COUNTS, OPTION_REALS */
    const char *const *names; /* OPTION_NAME: NULL-terminated set */
    const char *replaced_by;  /* has no effect, and may not be given, when that option is given */
    const char *help;         /* one line */
};

struct option_group {
    const char *title;
    const struct option *options;
    int count;
    void *fields; /* the struct that the options write into */
};

struct program {
    const char *name, *summary;
    const char *description; /* lines for --help, formulas included; may be NULL */
    const char *examples;    /* lines for --help */
    const char *exit_codes;  /* lines for --help; NULL = those of a benchmark program */
    const struct option_group *groups;
    int group_count;

    /* Arguments that are not options. */
    const char *arguments; /* as --help shows them, "OLD NEW"; NULL = none are taken */
    int least_arguments, most_arguments;

    /* NULL-terminated; the family's baseline comes first. NULL: a program without implementations.
     */
    const char *const *impl_names;
    const char *const *impl_summaries;
    /* The family's own figures, NULL-terminated and at most CASE_FIGURES_MAX: names in the record,
     * and, without their unit (_bytes, _s) and with spaces for '_', headings of the table. NULL =
     * none. */
    const char *const *figures;

    /* Does implementation impl_names[impl] take this by_impl option? NULL = every one does. */
    bool (*takes)(int impl, const char *option);

    FILE *out, *err; /* NULL = stdout, stderr */
};

struct options;

/* Parses the command line. Returns -1 to go on with *out (options_free); else the exit status to
 * end with, *out NULL: 0 after --help, --version or --list, 2 after an error. */
int options_parse(struct options **out, const struct program *program, int argc, char *const *argv);
void options_free(struct options *options);

/* The main function of a program of one case: parses, fills the struct of the first group, which
 * `run` is given, and ends with the status of `run` or of options_parse. */
int options_main(const struct program *program, int argc, char *const *argv,
    int (*run)(const void *fields, const struct options *options));

/* How many cases there are, at least 1. */
int64_t options_cases(const struct options *options);

/* Writes the next case into the groups' structs; false when there is none. options_rewind starts
 * again from the first, so that a program can look at every case before it runs one. Lists and
 * texts belong to `options`. */
bool options_next(struct options *options);
void options_rewind(struct options *options);

bool options_given(const struct options *options, const char *name);

/* For what another option decides: the default of a count or a name that was not given, and an
 * option that has no part in any case. */
void options_default_count(struct options *options, const char *name, int64_t value);
void options_default_name(struct options *options, const char *name, int value);
void options_hide(struct options *options, const char *name);

/* The counts that the option of that name allows; `high` 0 = no upper limit. */
void options_count_range(
    const struct options *options, const char *name, int64_t *low, int64_t *high);

/* A count that is an axis and that the current case takes: its value, and the largest allowed.
 * False for any other option. options_set_count puts another in its place, in this case and in
 * every other that has the same one of the list. */
bool options_get_count(
    const struct options *options, const char *name, int64_t *value, int64_t *most);
void options_set_count(struct options *options, const char *name, int64_t value);

int options_argument_count(const struct options *options);
const char *options_argument(const struct options *options, int index);

/* Prints "PROGRAM: option --NAME: MESSAGE" on stderr and returns EXIT_BAD_INPUT: for what a program
 * finds wrong itself, in the words of the parser ("got ..., allowed ..."). */
int options_refuse(const struct options *options, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- for reports
 *
 * The options of the table are numbered 0 .. options_count - 1 in table order. */
int options_count(const struct options *options);
const struct option *options_at(const struct options *options, int index);

/* In the current case: is option `index` set, and does the implementation take it? */
bool options_present(const struct options *options, int index);

/* In the current case this option has no part: something else (a trace) brings what it would say.
 */
void options_absent(struct options *options, const char *name);

/* Takes more than one value over the cases. */
bool options_varies(const struct options *options, int index);

/* Value of the current case, as printed: counts and bytes as plain integers; "-" when not present.
 */
void options_text(const struct options *options, int index, char *text, int size);

/* True when the current case, run with implementation 0, would be the case whose values of axes
 * were kept by options_position earlier: every axis that both implementations take agrees, and one
 * that only implementation 0 takes is at its first value. position has options_count entries. */
void options_position(const struct options *options, int *position);
bool options_same_shape(const struct options *options, const int *baseline_position);

/* Writes config.* and run.options.* of the current case. */
void options_record(const struct options *options, json_t *record);

/* ---- --help and errors (option_help.c) ----------------------------------------------------- */
void options_print_help(const struct program *program);
void options_print_list(const struct program *program);
void options_range_text(const struct option *option, char *text, int size);
/* The declared option nearest to a misspelt one, NULL when none is near. */
const char *options_nearest(const struct program *program, const char *name);
