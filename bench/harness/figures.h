/* CSV files behind the plots, one topic each, from records, traces and a history.
 *
 * Lines are long form: one figure of one thing a line, with a column `kind` that says measured,
 * simulated or computed. A file that would have no lines is not written. */
#pragma once
#include <stdbool.h>
#include "bench/harness/compare.h"
#include "bench/harness/trend.h"
#include "probe/new_file.h"

/* ---- what the plots of records share (figure_case.c) ---------------------------------------- */

/* "measured", "simulated", or "computed" of closed forms that nothing ran. */
const char *figure_kind(const json_t *record);

/* A number at one of the paths "a|b", the first that is there; NaN without one. */
double figure_at(const json_t *record, const char *paths);

/* Records with one implementation each of the cases of `op`; ok or computed only. */
struct figure_selection {
    const json_t **records; /* owned */
    int count;
};

/* impl NULL = all; kind NULL = all. 0, or -1 when memory is short. */
int figure_select(const struct record_set *set, const char *op, const char *impl, const char *kind,
    struct figure_selection *out);
void figure_selection_free(struct figure_selection *selection);

/* "ranks=4 pass=forward": the record's values of the options that vary over the selection.
 * `left_out` lists keys that are not told, " a b "; `own`: keys that some record of the selection
 * lacks are told (true) or all the others (false). */
void figure_label(const struct figure_selection *selection, const json_t *record,
    const char *left_out, bool own, char *text, int size);

/* Opens FOLDER/NAME.csv with this first line. 0, or -1 with `error` filled. */
int figure_open(struct new_file *file, const char *folder, const char *name, const char *columns,
    char *error, int size);
/* 0, or -1 with `error` filled. */
int figure_close(
    struct new_file *file, const char *folder, const char *name, char *error, int size);

/* ---- the files; each returns 0, or -1 with `error` filled --------------------------------------
 */

/* operators-OP-KIND.csv: the implementations of the family's first launch side by side
 * (figure_operators.c). */
int figures_write_operators(
    const struct record_set *set, const char *folder, char *error, int size);

/* chunks-KIND.csv, sco-KIND.csv, optimizer-KIND.csv: memory and time over one launch setting; KIND
 * measured, simulated or computed (figure_sweeps.c). */
int figures_write_sweeps(const struct record_set *set, const char *folder, char *error, int size);

/* history.csv: peak and throughput over commits (figure_history.c). */
int figures_write_history(const struct trends *trends, const char *folder, char *error, int size);

/* live_sets-FAMILY.csv and streams-FAMILY.csv from FAMILY.IMPL.KIND.json of a folder of traces
 * (figure_traces.c). */
int figures_write_traces(const char *traces, const char *folder, char *error, int size);
