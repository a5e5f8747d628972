/* Reading the description of a table. Its text is cut in place; what is kept points into it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/table.h"

struct reader {
    struct table *table;
    char *rest; /* of the description */
    int line;
    char *error;
    int size;
};

static int fail(struct reader *r, const char *found, const char *allowed)
{
    snprintf(r->error, (size_t)r->size, "%s:%d: got '%.60s', allowed %s", r->table->path, r->line,
        found, allowed);
    return -1;
}

/* One more element of `size` bytes at the end of *list, all zero; NULL when memory is short. */
static void *add(void *list, int *count, size_t size)
{
    void **at = list;
    char *grown = realloc(*at, (size_t)(*count + 1) * size);
    if (!grown)
        return NULL;
    *at = grown;
    return memset(grown + (size_t)(*count)++ * size, 0, size);
}

static int no_memory(struct reader *r)
{
    snprintf(r->error, (size_t)r->size, "%s: memory is short", r->table->path);
    return -1;
}

static char *trimmed(char *text)
{
    text += strspn(text, " \t");
    for (size_t length = strlen(text); length && strchr(" \t\r", text[length - 1]); length--)
        text[length - 1] = 0;
    return text;
}

/* The text up to `mark`, cut off; *rest is what follows it, NULL at the end. */
static char *cut(char **rest, char mark)
{
    char *begin = *rest, *end = begin ? strchr(begin, mark) : NULL;
    if (end)
        *end = 0;
    *rest = end ? end + 1 : NULL;
    return begin ? trimmed(begin) : NULL;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static int add_cells(struct reader *r, struct table_part *part, char *line)
{
    int columns = 0, before = part->row_count * part->column_count, count = before;
    while (line) {
        const char **cell = part->column_count ? add(&part->cells, &count, sizeof *cell)
                                               : add(&part->columns, &columns, sizeof *cell);
        if (!cell)
            return no_memory(r);
        *cell = cut(&line, ',');
    }
    if (!part->column_count)
        part->column_count = columns;
    else if (count - before != part->column_count)
        return fail(r, part->cells[before], "as many cells as the heading has names");
    else
        part->row_count++;
    return 0;
}

static int read_csv(struct reader *r, struct table_part *part)
{
    int status = 0;
    for (char *rest = part->text; rest && !status;) {
        char *line = cut(&rest, '\n');
        if (*line && *line != '#')
            status = add_cells(r, part, line);
    }
    if (!status && !part->column_count)
        status = fail(r, "nothing", "rows with a heading");
    return status;
}

/* The whole of a file; NULL with errno. */
static char *read_whole(FILE *file)
{
    size_t used = 0, room = 1 << 14;
    char *text = malloc(room);
    while (text && (used += fread(text + used, 1, room - used - 1, file)) == room - 1) {
        char *grown = realloc(text, room *= 2);
        if (!grown)
            free(text);
        text = grown;
    }
    if (text && ferror(file)) {
        free(text);
        return NULL;
    }
    if (text)
        text[used] = 0;
    return text;
}

static char *read_path(const char *path)
{
    FILE *file = strcmp(path, "-") ? fopen(path, "r") : stdin;
    char *text = file ? read_whole(file) : NULL;
    if (file && file != stdin)
        fclose(file);
    return text;
}

/* The lines up to "end". */
static char *inline_rows(struct reader *r)
{
    char *begin = r->rest, *end = begin ? strstr(begin, "\nend\n") : NULL;
    if (!end)
        return NULL;
    for (char *at = begin; at <= end; at++)
        r->line += *at == '\n';
    r->line++;
    r->rest = end + strlen("\nend\n");
    return strndup(begin, (size_t)(end - begin));
}

static int open_part(struct reader *r, char *path)
{
    struct table_part *part = add(&r->table->parts, &r->table->part_count, sizeof *r->table->parts);
    if (!part)
        return no_memory(r);
    part->name = "";
    part->where = "";
    part->gpu = r->table->gpu;
    part->text = strcmp(path, "-") ? read_path(path) : inline_rows(r);
    if (!part->text)
        return fail(r, path, "a readable CSV file, or - with lines up to a line 'end'");
    return read_csv(r, part);
}

static int column_of(const struct table_part *part, const char *name)
{
    int c = 0;
    while (c < part->column_count && strcmp(part->columns[c], name))
        c++;
    return c < part->column_count ? c : -1;
}

static bool is_one_of(const char *text, const char *list)
{
    size_t length = strlen(text);
    for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL)
        if (strcspn(list, ",") == length && !memcmp(list, text, length))
            return true;
    return false;
}

static int keep_rows(struct reader *r, struct table_part *part, char *rest)
{
    char *name = cut(&rest, ' ');
    int kept = 0, column = column_of(part, name);
    if (column < 0 || !rest)
        return fail(r, name, "a column of the rows, and its values");
    for (int row = 0; row < part->row_count; row++) {
        const char **from = part->cells + row * part->column_count;
        if (is_one_of(from[column], trimmed(rest)))
            memmove(part->cells + kept++ * part->column_count, from,
                (size_t)part->column_count * sizeof *from);
    }
    part->row_count = kept;
    return kept ? 0 : fail(r, rest, "values that some row has");
}

/* ---- figures -------------------------------------------------------------------------------- */

static const char *const kinds[] = {[TABLE_EXACT] = "exact",
    [TABLE_MEMORY] = "memory",
    [TABLE_BETTER] = "better",
    [TABLE_TIME] = "time",
    [TABLE_RELATION] = "relation",
    [TABLE_ORDER] = "order",
    [TABLE_CROSSING] = "crossing",
    [TABLE_FITTED] = "fitted",
    [TABLE_INCONSISTENT] = "inconsistent",
    [TABLE_NEEDS] = "needs",
    [TABLE_SHOWN] = "shown",
    NULL};

/* "-" says that there is no such side. */
static const char *side(const char *text)
{
    return strcmp(text, "-") ? text : NULL;
}

static int add_figure(struct reader *r, struct table_part *part, char *rest)
{
    char *field[5];
    int fields = 0;
    while (rest && fields < 5)
        field[fields++] = cut(&rest, '|');
    if (fields < 5 || rest)
        return fail(r, field[0], "NAME | UNIT | PAPER | OURS | KIND");
    struct table_figure *figure = add(&part->figures, &part->figure_count, sizeof *part->figures);
    if (!figure)
        return no_memory(r);
    char *argument = field[4], *word = cut(&argument, ' ');
    int kind = 0;
    while (kinds[kind] && strcmp(kinds[kind], word))
        kind++;
    if (!kinds[kind])
        return fail(r, word,
            "exact, memory, better, time, relation, order, crossing, fitted, inconsistent, needs, "
            "shown");
    *figure = (struct table_figure){.name = field[0],
        .unit = field[1],
        .paper = side(field[2]),
        .ours = side(field[3]),
        .kind = (enum table_kind)kind,
        .argument = argument ? trimmed(argument) : "",
        .line = r->line};
    return 0;
}

static int add_reason(struct reader *r, struct table_part *part, char *rest)
{
    if (!part->figure_count)
        return fail(r, "why", "why behind a figure");
    struct table_figure *figure = &part->figures[part->figure_count - 1];
    if (figure->reason_count == TABLE_REASONS_MAX)
        return fail(r, "why", "at most 16 reasons of a figure");
    struct table_reason *reason =
        add(&figure->reasons, &figure->reason_count, sizeof *figure->reasons);
    if (!reason)
        return no_memory(r);
    char *first = cut(&rest, '|');
    reason->rows = rest ? first : NULL;
    reason->text = rest ? trimmed(rest) : first;
    return 0;
}

static int add_values(struct reader *r, struct table_part *part, char *rest)
{
    part->over = cut(&rest, ' ');
    while (rest) {
        struct table_cell *value = add(&part->values, &part->value_count, sizeof *part->values);
        if (!value)
            return no_memory(r);
        value->text = cut(&rest, ',');
    }
    return part->value_count ? 0 : fail(r, part->over, "over NAME A,B,...");
}

static int add_let(struct reader *r, struct table_part *part, char *rest)
{
    struct table_cell *let = add(&part->lets, &part->let_count, sizeof *part->lets);
    if (!let)
        return no_memory(r);
    let->name = cut(&rest, ' ');
    let->text = rest ? trimmed(rest) : NULL;
    return let->text ? 0 : fail(r, let->name, "let NAME EXPRESSION");
}

static int add_map(struct reader *r, struct table_part *part, char *rest)
{
    struct table_map *map = add(&part->maps, &part->map_count, sizeof *part->maps);
    if (!map)
        return no_memory(r);
    map->name = cut(&rest, ' ');
    map->column = cut(&rest, ' ');
    map->pairs = rest ? trimmed(rest) : NULL;
    return map->pairs ? 0 : fail(r, map->name, "map NAME COLUMN A=B,...");
}

/* ---- lines ---------------------------------------------------------------------------------- */

static int read_part_line(struct reader *r, const char *word, char *rest)
{
    struct table *table = r->table;
    if (!table->part_count)
        return fail(r, word, "title, note, gpu or rows first");
    struct table_part *part = &table->parts[table->part_count - 1];
    if (!strcmp(word, "keep"))
        return keep_rows(r, part, rest);
    if (!strcmp(word, "let"))
        return add_let(r, part, rest);
    if (!strcmp(word, "map"))
        return add_map(r, part, rest);
    if (!strcmp(word, "over"))
        return add_values(r, part, rest);
    if (!strcmp(word, "figure"))
        return add_figure(r, part, rest);
    if (!strcmp(word, "why"))
        return add_reason(r, part, rest);
    if (!strcmp(word, "name"))
        part->name = rest;
    else if (!strcmp(word, "where"))
        part->where = rest;
    else
        return fail(
            r, word, "title, note, gpu, rows, keep, name, let, map, over, where, figure or why");
    return 0;
}

static int read_line(struct reader *r, char *line)
{
    struct table *table = r->table;
    char *rest = line, *word = cut(&rest, ' ');
    if (!*word || *word == '#')
        return 0;
    rest = rest ? trimmed(rest) : word + strlen(word);
    if (!strcmp(word, "rows"))
        return open_part(r, rest);
    if (!strcmp(word, "title"))
        table->title = rest;
    else if (!strcmp(word, "gpu"))
        table->gpu = rest;
    else if (!strcmp(word, "note")) {
        const char **note = add(&table->notes, &table->note_count, sizeof *table->notes);
        if (!note)
            return no_memory(r);
        *note = rest;
    } else
        return read_part_line(r, word, rest);
    return 0;
}

int table_read(struct table *table, const char *path, char *error, int size)
{
    *table = (struct table){.path = path, .title = "", .gpu = "H200"};
    table->text = read_path(path);
    if (!table->text) {
        snprintf(error, (size_t)size, "%s: cannot be read: %s", path, strerror(errno));
        return -1;
    }
    struct reader reader = {.table = table, .rest = table->text, .error = error, .size = size};
    int status = 0;
    while (reader.rest && !status) {
        char *end = strchr(reader.rest, '\n'), *line = reader.rest;
        reader.line++;
        reader.rest = end ? end + 1 : NULL;
        if (end)
            *end = 0;
        status = read_line(&reader, line);
    }
    return status;
}

static void free_part(struct table_part *part)
{
    for (int f = 0; f < part->figure_count; f++)
        free(part->figures[f].reasons);
    free(part->figures);
    free(part->lets);
    free(part->maps);
    free(part->values);
    free(part->cells);
    free(part->columns);
    free(part->text);
}

void table_free(struct table *table)
{
    for (int p = 0; p < table->part_count; p++)
        free_part(&table->parts[p]);
    free(table->parts);
    free(table->notes);
    free(table->text);
    *table = (struct table){0};
}
