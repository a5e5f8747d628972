/* Claims of the papers against records, and against the tables that set the papers' figures beside
 * ours.
 *
 * A claim is a line of a tab-separated file (results/claims.tsv; the comment at its head explains
 * the columns). It selects records and says what figure of them stands against the printed one, or
 * it names a line of a table (tabulate --csv), which carries its own verdict. What can be said
 * depends on the kind of evidence: a number is "reproduced" only by its own kind. */
#pragma once
#include <stdbool.h>
#include <jansson.h>
#include "bench/harness/compare.h"

enum claim_kind {
    CLAIM_BITWISE,  /* every selected record was checked bit by bit and agreed */
    CLAIM_EXACT,    /* a figure that shapes alone decide */
    CLAIM_RELATION, /* a ratio of two implementations, at every shape that both ran */
    CLAIM_RATIO,    /* two figures of one record, at every shape that ran */
    CLAIM_TABLE     /* a line of a table: its row and its figure */
};

#define CLAIM_COLUMNS 12
#define CLAIM_TEXT 240
#define CLAIM_PATH 64 /* room for a record's member in a selector */

struct claim {
    char *line; /* owned; the columns point into it */
    const char *id, *item, *quantity, *unit, *printed, *tolerance, *where, *figure, *command,
        *needs, *accepted;
    enum claim_kind kind;
};

struct claims {
    struct claim *list;
    int count, capacity;
};

struct claim_outcome {
    char ours[CLAIM_TEXT];
    char verdict[CLAIM_TEXT];
    bool changed; /* not the verdict that is accepted today */
};

/* 0, or -1 with `error` naming file and line. claims_free in either case. */
int claims_read(const char *path, struct claims *claims, char *error, int size);
void claims_free(struct claims *claims);

const char *claim_kind_name(enum claim_kind kind); /* "bitwise", ... */

/* The figure of a relation, "ring-dtp / materialized : memory.increment_bytes", in its parts; paths
 * points into it. False when it is none. */
bool claim_split_relation(const char *figure, char above[64], char below[64], const char **paths);

/* ---- lines of tables (claim_tables.c) -------------------------------------------------------- */

struct table_line {
    char *text; /* owned; the fields point into it */
    const char *table, *row, *figure, *unit, *paper, *ours, *measured, *verdict, *why;
    char script[64]; /* "table_06": its file without the ending */
};

struct table_lines {
    struct table_line *list; /* owned */
    int count, capacity;
};

/* Adds the lines of every *.csv of the folder that is a table; other CSV files are left alone. 0,
 * or -1 with `error` naming the file. table_lines_free in either case. */
int table_lines_read(const char *folder, struct table_lines *lines, char *error, int size);
void table_lines_free(struct table_lines *lines);

/* The line of "Table 6" ("table" up to a colon of its title), row and figure as "ROW | FIGURE";
 * NULL when there is none. */
const struct table_line *table_lines_find(
    const struct table_lines *lines, const char *table, const char *row_and_figure);
/* Whether any line of that table is there. */
bool table_lines_has(const struct table_lines *lines, const char *table);

/* ---- outcomes -------------------------------------------------------------------------------- */

/* records: an array of records; lines may be NULL. */
void claim_evaluate(const struct claim *claim, const json_t *records,
    const struct table_lines *lines, struct claim_outcome *outcome);

/* The verdict without its reason: "differs", "not run". */
void claim_verdict_class(const char *verdict, char *text, int size);
