/* What a parsed command line is made of: private to option_values.c, options.c and option_cases.c.
 */
#pragma once
#include "bench/harness/options.h"

#define OPTION_PROBLEM_MAX 512

union option_value {
    bool flag;
    int64_t count;
    double real;
    int name;
    const char *text;
    struct option_counts counts;
    struct option_reals reals;
};

/* One option with what was given for it. */
struct option_entry {
    const struct option *option;
    void *fields;
    bool given, set;             /* set: given, or has a default */
    union option_value fallback; /* the default, or the unset value */
    union option_value *values;  /* [count] */
    int count;
    int position;  /* of the odometer, when an axis */
    char *storage; /* what texts point into */
    void *list;    /* what counts and reals point to */
};

struct options {
    const struct program *program;
    struct option_entry *entries;
    int count;
    int impl; /* the entry that chooses the implementation, -1 = none */
    const char **arguments;
    int argument_count;
    bool started;
    bool *absent; /* [count]: options_absent in the current case */
};

/* Parses what was given, or a default, into entry->values. False with `problem`, of
 * OPTION_PROBLEM_MAX characters, filled. */
bool option_entry_parse(struct option_entry *entry, const char *text, char *problem);
void option_entry_clear(struct option_entry *entry);

/* The entry of that name; NULL when there is none. */
struct option_entry *options_find(const struct options *options, const char *name, size_t length);

/* Does implementation `impl` take the option? */
bool options_takes(const struct options *options, int impl, const struct option *option);
