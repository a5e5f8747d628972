/* JSON-lines records: one object per case and line. Paths name nested objects with dots:
 * rec_int(r, "memory.tracked_peak_bytes", n). Figures are numbers in SI base units; what does not
 * apply is absent. Writers never fail half-way: a line is written with one append, or not at all.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#define REC_SCHEMA 1

/* A record with its schema number and nothing else. NULL when memory is short. */
json_t *rec_create(void);

/* Each sets the value at `path`, making the objects on the way; the last call for a path wins.
 * rec_real and rec_reals leave the path absent when a value is not finite. rec_json takes over
 * `value`. When memory is short the record becomes incomplete and rec_append refuses it. */
void rec_int(json_t *rec, const char *path, int64_t value);
void rec_real(json_t *rec, const char *path, double value);
void rec_bool(json_t *rec, const char *path, bool value);
void rec_str(json_t *rec, const char *path, const char *value);
void rec_json(json_t *rec, const char *path, json_t *value);
void rec_reals(json_t *rec, const char *path, const double *values, int64_t count);

/* The value at `path`, or NULL. */
const json_t *rec_get(const json_t *rec, const char *path);

/* Appends one line, or nothing: what a full disk took of it is taken back. A last line that
 * somebody left without its end is ended first, so that only that one is lost. 0, or -1 with
 * `error` filled (path and reason). */
int rec_append(const char *path, const json_t *rec, char *error, int size);

/* Reads a record file into a JSON array. NULL with `error` naming file, line and what is wrong: not
 * JSON, cut in the middle, a schema newer than REC_SCHEMA, no schema. Empty lines are skipped. */
json_t *rec_read(const char *path, char *error, int size);
