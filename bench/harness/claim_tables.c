/* Lines of the tables that bench/tables/ prints as CSV: table, row, figure, and what was said of
 * it. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/claims.h"
#include "bench/harness/csv.h"

/* The first line of such a file (tabulate --csv). */
static const char heading[] = "table,row,figure,unit,paper,ours,low,high,measured,verdict,why";
enum { TABLE, ROW, FIGURE, UNIT, PAPER, OURS, LOW, HIGH, MEASURED, VERDICT, WHY, COLUMNS };

static struct table_line *new_line(struct table_lines *lines)
{
    if (lines->count == lines->capacity) {
        int capacity = lines->capacity ? 2 * lines->capacity : 64;
        struct table_line *grown = realloc(lines->list, (size_t)capacity * sizeof *lines->list);
        if (!grown)
            return NULL;
        lines->list = grown;
        lines->capacity = capacity;
    }
    struct table_line *line = &lines->list[lines->count++];
    memset(line, 0, sizeof *line);
    return line;
}

/* NULL, or what is wrong. */
static const char *add_line(struct table_lines *lines, const char *text, const char *script)
{
    char *fields[COLUMNS];
    struct table_line *line = new_line(lines);
    if (line)
        line->text = strdup(text);
    if (!line || !line->text)
        return "memory is short";
    if (csv_split(line->text, fields, COLUMNS) != COLUMNS)
        return "not as many fields as the heading has";
    line->table = fields[TABLE];
    line->row = fields[ROW];
    line->figure = fields[FIGURE];
    line->unit = fields[UNIT];
    line->paper = fields[PAPER];
    line->ours = fields[OURS];
    line->measured = fields[MEASURED];
    line->verdict = fields[VERDICT];
    line->why = fields[WHY];
    snprintf(line->script, sizeof line->script, "%.*s", (int)strcspn(script, "."), script);
    return NULL;
}

static int read_file(
    const char *path, const char *name, struct table_lines *lines, char *error, int size)
{
    char *text = NULL;
    size_t room = 0;
    int number = 0;
    const char *problem = NULL;
    FILE *file = fopen(path, "r");
    if (!file) {
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
        return -1;
    }
    while (!problem && getline(&text, &room, file) >= 0) {
        text[strcspn(text, "\r\n")] = '\0';
        if (++number == 1 && strcmp(text, heading))
            break;
        if (number > 1 && text[0])
            problem = add_line(lines, text, name);
    }
    if (!problem && ferror(file))
        problem = "cannot be read";
    if (problem)
        snprintf(error, (size_t)size, "%s:%d: %s", path, number, problem);
    free(text);
    fclose(file);
    return problem ? -1 : 0;
}

static int is_csv(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 4 && !strcmp(entry->d_name + length - 4, ".csv");
}

int table_lines_read(const char *folder, struct table_lines *lines, char *error, int size)
{
    char path[4096];
    struct dirent **entries;
    int status = 0, count = scandir(folder, &entries, is_csv, alphasort);
    memset(lines, 0, sizeof *lines);
    if (count < 0) {
        snprintf(error, (size_t)size, "%s: %s", folder, strerror(errno));
        return -1;
    }
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (!status)
            status = read_file(path, entries[i]->d_name, lines, error, size);
        free(entries[i]);
    }
    free(entries);
    return status;
}

void table_lines_free(struct table_lines *lines)
{
    for (int i = 0; i < lines->count; i++)
        free(lines->list[i].text);
    free(lines->list);
    memset(lines, 0, sizeof *lines);
}

/* "Table 6: routing skew" is called "Table 6". */
static bool is_called(const char *title, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(title, name, length) && (title[length] == ':' || !title[length]);
}

const struct table_line *table_lines_find(
    const struct table_lines *lines, const char *table, const char *row_and_figure)
{
    const char *bar = strstr(row_and_figure, " | ");
    size_t length = bar ? (size_t)(bar - row_and_figure) : 0;
    for (int i = 0; bar && i < lines->count; i++) {
        const struct table_line *line = &lines->list[i];
        if (is_called(line->table, table) && !strcmp(line->figure, bar + 3) &&
            strlen(line->row) == length && !memcmp(line->row, row_and_figure, length))
            return line;
    }
    return NULL;
}

bool table_lines_has(const struct table_lines *lines, const char *table)
{
    for (int i = 0; i < lines->count; i++)
        if (is_called(lines->list[i].table, table))
            return true;
    return false;
}
