/* Record files. A line goes out in one write under a lock: programs that append to one file at the
 * same time do not mix their lines, and a disk that fills up in the middle of a line gets it back.
 */
#include "probe/record.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The record as a line, to be freed; NULL when memory is short. `*bytes` is its length, and it
 * begins after one spare byte. */
static char *line_of(const json_t *rec, size_t *bytes)
{
    char *text = json_dumps(rec, JSON_COMPACT);
    char *line = NULL;
    if (text) {
        *bytes = strlen(text) + 1;
        line = malloc(*bytes + 2);
    }
    if (line)
        snprintf(line, *bytes + 2, "\n%s\n", text);
    free(text);
    return line;
}

/* True when somebody left the last line without its end. */
static bool ends_inside_a_line(int descriptor, const struct stat *status)
{
    char last = '\n';
    return S_ISREG(status->st_mode) && status->st_size > 0 &&
           pread(descriptor, &last, 1, status->st_size - 1) == 1 && last != '\n';
}

/* One write, taken back when it was a part of the line only. */
static int write_line(int descriptor, const char *line, size_t bytes, int64_t length_before,
    const char *path, char *error, int size)
{
    ssize_t written;
    do
        written = write(descriptor, line, bytes);
    while (written < 0 && errno == EINTR);
    if (written == (ssize_t)bytes)
        return 0;
    if (written < 0) {
        snprintf(error, (size_t)size, "%s: %s; nothing was written", path, strerror(errno));
        return -1;
    }
    bool taken_back = ftruncate(descriptor, length_before) == 0;
    snprintf(error, (size_t)size, "%s: no room: %zd of %zu bytes could be written%s", path, written,
        bytes, taken_back ? " and were taken back" : "; the last line is cut");
    return -1;
}

static int append_open(
    int descriptor, const char *line, size_t bytes, const char *path, char *error, int size)
{
    struct stat status;
    /* A file system without locks is used without: the append itself is still one write. */
    while (flock(descriptor, LOCK_EX) && errno == EINTR)
        continue;
    if (fstat(descriptor, &status)) {
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
        return -1;
    }
    if (ends_inside_a_line(descriptor, &status))
        return write_line(descriptor, line, bytes + 1, status.st_size, path, error, size);
    return write_line(descriptor, line + 1, bytes, status.st_size, path, error, size);
}

int rec_append(const char *path, const json_t *rec, char *error, int size)
{
    size_t bytes = 0;
    if (!json_is_integer(json_object_get(rec, "schema"))) {
        snprintf(error, (size_t)size,
            "%s: the record is incomplete (memory was short while it was filled); not written",
            path);
        return -1;
    }
    char *line = line_of(rec, &bytes);
    if (!line) {
        snprintf(error, (size_t)size, "%s: no memory for the line", path);
        return -1;
    }
    int descriptor = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    int result = -1;
    if (descriptor < 0) {
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
    } else {
        result = append_open(descriptor, line, bytes, path, error, size);
        if (close(descriptor) && !result) {
            snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
            result = -1;
        }
    }
    free(line);
    return result;
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r\n", line[i]) || !line[i])
            return false;
    return true;
}

/* One line as a record, or NULL with what is wrong in `reason`. */
static json_t *parse_line(const char *line, size_t bytes, char *reason, int size)
{
    json_error_t error;
    json_t *rec = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!rec) {
        bool ended = bytes && line[bytes - 1] == '\n';
        if (!ended || json_error_code(&error) == json_error_premature_end_of_input)
            snprintf(reason, (size_t)size, "cut in the middle, after %zu bytes", bytes);
        else
            snprintf(reason, (size_t)size, "not JSON: %s (column %d)", error.text, error.column);
        return NULL;
    }
    json_t *schema = json_object_get(rec, "schema");
    json_int_t number = json_integer_value(schema);
    if (!json_is_object(rec))
        snprintf(reason, (size_t)size, "not a JSON object");
    else if (!schema)
        snprintf(reason, (size_t)size, "no \"schema\"; allowed is %d", REC_SCHEMA);
    else if (!json_is_integer(schema) || number < 1)
        snprintf(
            reason, (size_t)size, "\"schema\" is no number of a schema; allowed is %d", REC_SCHEMA);
    else if (number > REC_SCHEMA)
        snprintf(reason, (size_t)size, "schema %lld is newer than this program; allowed is %d",
            (long long)number, REC_SCHEMA);
    else
        return rec;
    json_decref(rec);
    return NULL;
}

static int read_lines(FILE *file, json_t *records, const char *path, char *error, int size)
{
    char *line = NULL, reason[300];
    size_t capacity = 0;
    ssize_t bytes;
    int64_t number = 0;
    int result = 0;
    errno = 0;
    while (!result && (bytes = getline(&line, &capacity, file)) >= 0) {
        number++;
        if (is_blank(line, (size_t)bytes))
            continue;
        json_t *rec = parse_line(line, (size_t)bytes, reason, sizeof reason);
        if (!rec) {
            snprintf(error, (size_t)size, "%s:%lld: %s", path, (long long)number, reason);
            result = -1;
        } else if (json_array_append_new(records, rec)) {
            snprintf(error, (size_t)size, "%s:%lld: no memory", path, (long long)number);
            result = -1;
        }
        errno = 0;
    }
    if (!result && !feof(file)) {
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
        result = -1;
    }
    free(line);
    return result;
}

json_t *rec_read(const char *path, char *error, int size)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
        return NULL;
    }
    json_t *records = json_array();
    if (!records) {
        snprintf(error, (size_t)size, "%s: no memory", path);
    } else if (read_lines(file, records, path, error, size)) {
        json_decref(records);
        records = NULL;
    }
    fclose(file); /* opened to read: nothing can be lost by a failure here */
    return records;
}
