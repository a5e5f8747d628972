/* Claims of the papers against records.
 *
 * A claim is a line of a tab-separated file (results/claims.tsv; the comment at its head explains
 * the columns). It selects records and says what figure of them stands against the printed one.
 * What can be said depends on the kind of evidence: a number is "reproduced" only by its own kind.
 */
#pragma once
#include <stdbool.h>
#include <jansson.h>
#include "bench/harness/compare.h"

enum claim_kind {
    CLAIM_BITWISE, /* every selected record was checked bit by bit and agreed */
    CLAIM_EXACT,   /* a figure that shapes alone decide */
    CLAIM_RELATION /* a ratio of two implementations, at every shape that both ran */
};

#define CLAIM_COLUMNS 11
#define CLAIM_TEXT 160

struct claim {
    char *line; /* owned; the columns point into it */
    const char *id, *item, *quantity, *unit, *printed, *tolerance, *where, *figure, *needs,
        *accepted;
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

/* records: an array of records. */
void claim_evaluate(
    const struct claim *claim, const json_t *records, struct claim_outcome *outcome);
