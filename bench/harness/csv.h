/* Fields of a CSV line. Each but csv_first puts a comma before itself; a figure that does not apply
 * is an empty field. */
#pragma once
#include <stdint.h>
#include <stdio.h>

/* Quoted where it must be. */
void csv_first(FILE *out, const char *text);
void csv_text(FILE *out, const char *text);

void csv_int(FILE *out, int64_t value);   /* ABSENT (result.h) = empty */
void csv_real(FILE *out, double value);   /* 9 digits; not finite = empty */
void csv_figure(FILE *out, double value); /* with every digit of a byte count */

/* Cuts a line at its commas, in place, quotes taken off. Returns the number of fields; those beyond
 * `most` are counted and not stored. A line with an open quote is taken to its end. */
int csv_split(char *line, char **fields, int most);
