/* A printed table of a paper beside our figures of it.
 *
 * A description says which printed rows there are and which figure of which record stands against
 * each; records say the rest. Nothing is computed here but what a description spells out, so a cell
 * changes exactly when a record does. The language, one line a thing, '#' begins a comment:
 *
 *   title TEXT            heads the table
 *   note TEXT             a line below it; several may be given
 *   gpu NAME              on what its paper measured: part of a device's name; else H200
 *   rows FILE             opens a part: its rows are the lines of a CSV file with a heading
 *   rows -                the same; the lines follow, up to a line "end"
 *   keep COLUMN A,B,...   of them only those whose cell is one of these
 *   name TEMPLATE         what a row is called
 *   let NAME EXPRESSION   one more cell of every row, a number
 *   map NAME COLUMN A=B,...
 *                         one more cell: B where the column says A, else what it says
 *   over NAME A,B,...     the values that low() and high() run over
 *   where SELECTORS       what every record of the part must have
 *   figure NAME | UNIT | PAPER | OURS | KIND
 *                         one printed column: expressions for both sides; "-" = there is none
 *   why [ROW |] TEXT      why ours differs, of the figure before; ROW (a pattern: "65K *") limits
 * it
 *
 * A template holds cells as {column}. Selectors are NAME=VALUE, between spaces, and a word alone is
 * impl=WORD; a name is op, impl, device, status or a key of the record's config. An expression has
 * numbers, GiB, MiB, ms, {column}, + - * / and parentheses, low(...) and high(...), and
 * [SELECTORS : PATH], the number at that path of the one record that agrees with them. Kinds:
 *
 *   exact [T]       equal at the printed digits, or within T; else the table fails
 *   memory [T]      bytes of our schedule; other bytes are no failure
 *   better [T]      the same, of the same live sets on both sides: fewer bytes are better
 *   time P          a time, or a figure made of times, within P percent
 *   relation <X     our figure, also >X or A..B, over its whole range; X may be a {column}
 *   order           all rows together: ranked as printed
 *   crossing X COLUMN
 *                   all rows together: where, along that column, our figure passes X
 *   fitted P        the printed figure set the profile, which meets it within P percent
 *   inconsistent    ours is what the paper's other figures give
 *   needs WHAT      cannot be said without it
 *   shown           ours alone: nothing is printed to hold it against */
#pragma once
#include <stdbool.h>
#include <jansson.h>

#define TABLE_TEXT 200
#define TABLE_REASONS_MAX 16 /* of one figure */

/* Of an expression: a number, out of memory, or nothing. */
struct table_value {
    enum { TABLE_ABSENT, TABLE_OOM, TABLE_NUMBER } state;
    double value;
};

enum table_kind {
    TABLE_EXACT,
    TABLE_MEMORY,
    TABLE_BETTER,
    TABLE_TIME,
    TABLE_RELATION,
    TABLE_ORDER,
    TABLE_CROSSING,
    TABLE_FITTED,
    TABLE_INCONSISTENT,
    TABLE_NEEDS,
    TABLE_SHOWN
};

/* All texts point into the description, or into a part's rows. */
struct table_reason {
    const char *rows; /* a pattern; NULL = every row */
    const char *text;
};

struct table_figure {
    const char *name, *unit, *paper, *ours; /* expressions; NULL = none */
    enum table_kind kind;
    const char *argument; /* what stands behind the kind; "" = nothing */
    int line;
    struct table_reason *reasons;
    int reason_count;
};

struct table_cell {
    const char *name, *text;
};

struct table_map {
    const char *name, *column, *pairs;
};

struct table_part {
    char *text;           /* the rows' CSV, owned */
    const char **columns; /* owned, and so are the cells: rows x columns */
    const char **cells;
    int column_count, row_count;
    const char *name, *where, *over, *gpu;
    struct table_cell *values; /* of `over` */
    int value_count;
    struct table_cell *lets;
    int let_count;
    struct table_map *maps;
    int map_count;
    struct table_figure *figures;
    int figure_count;
};

struct table {
    char *text; /* the description, owned */
    const char *path, *title, *gpu;
    const char **notes;
    int note_count;
    struct table_part *parts;
    int part_count;
};

/* 0, or -1 with `error` naming file and line. table_free in either case. path "-" is stdin. */
int table_read(struct table *table, const char *path, char *error, int size);
void table_free(struct table *table);

/* ---- expressions (table_expression.c) ------------------------------------------------------- */

/* What an expression sees. */
struct table_view {
    const struct table_part *part;
    int row;
    const json_t *records; /* an array */
    bool measured;         /* the records of a GPU; else all others */
    int variant;           /* 0: the machine as it is; else one of its variants */
    const char *over;      /* in low() and high(): the value met */
    bool has_variants;     /* found: the figure follows the time of a simulated record */
    int variants;          /* found: how many there are */
    bool of_time;          /* found: the figure is made of times */
    bool of_records;       /* found: a record of a device was read */
};

/* 0, or -1 with `error`: what cannot be read, or several records where one is meant. */
int table_evaluate(const char *expression, struct table_view *view, struct table_value *value,
    char *error, int size);

/* A template with its cells filled in. */
int table_expand(const char *template, struct table_view *view, char *text, int size, char *error,
    int error_size);

/* ---- outcomes (table_outcome.c) -------------------------------------------------------------- */

struct table_outcome {
    char row[TABLE_TEXT];
    struct table_value paper, ours, low, high, measured;
    int decimals; /* behind the point of the printed figure; -1 = it is computed from others */
    bool of_time;
    char text[TABLE_TEXT];          /* in place of ours: of order and crossing */
    char verdict[TABLE_TEXT];       /* in the words of INTERFACE: reproduced, better, ... */
    const struct table_reason *why; /* of the figure's; NULL: nothing to explain */
    bool failed;                    /* an exact figure that is not the printed one */
};

/* What the figure comes to at that row (row -1: at all rows together). 0, or -1 with `error`. */
int table_outcome_at(const struct table_part *part, const struct table_figure *figure, int row,
    const json_t *records, struct table_outcome *outcome, char *error, int size);

/* Prints the table, aligned or as CSV, and adds up what failed. 0, or -1 with `error`. */
int table_print(
    const struct table *table, const json_t *records, bool csv, int *failed, char *error, int size);
