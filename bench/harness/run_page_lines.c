/* Files of a run's folder: tab-separated lines, and lists of names. */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/run_page_parts.h"

int page_fail(struct run_page *page, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(page->error, (size_t)page->error_size, format, args);
    va_end(args);
    return -1;
}

/* ---- tab-separated --------------------------------------------------------------------------- */

/* Ends each field where its tab was; returns how many there are. */
static int cut(char *line)
{
    int count = 1;
    for (char *tab = strchr(line, '\t'); tab; tab = strchr(tab + 1, '\t')) {
        *tab = '\0';
        count++;
    }
    return count;
}

static int add_line(struct tsv *tsv, const char *text)
{
    char **grown = realloc(tsv->lines, ((size_t)tsv->count + 1) * sizeof *grown);
    if (!grown)
        return -1;
    tsv->lines = grown;
    tsv->lines[tsv->count] = strdup(text);
    return tsv->lines[tsv->count++] ? 0 : -1;
}

/* The heading says how many columns there are. */
static int read_lines(struct run_page *page, const char *path, FILE *file, struct tsv *out)
{
    char *text = NULL;
    size_t room = 0;
    int status = 0;
    for (int number = 1; !status && getline(&text, &room, file) >= 0; number++) {
        text[strcspn(text, "\r\n")] = '\0';
        if (number == 1) {
            out->columns = cut(text);
            continue;
        }
        if (add_line(out, text)) {
            status = page_fail(page, "%s: memory is short", path);
        } else if (cut(out->lines[out->count - 1]) != out->columns) {
            page->bad_input = true;
            status = page_fail(
                page, "%s:%d: not the %d columns of its heading", path, number, out->columns);
        }
    }
    free(text);
    return status;
}

int tsv_read(struct run_page *page, const char *name, struct tsv *out)
{
    char path[4096];
    memset(out, 0, sizeof *out);
    snprintf(path, sizeof path, "%s/%s", page->folder, name);
    FILE *file = fopen(path, "r");
    if (!file && errno == ENOENT)
        return 0;
    if (!file) {
        page->bad_input = true;
        return page_fail(page, "%s: %s", path, strerror(errno));
    }
    out->present = true;
    int status = read_lines(page, path, file, out);
    fclose(file);
    return status;
}

void tsv_free(struct tsv *tsv)
{
    for (int i = 0; i < tsv->count; i++)
        free(tsv->lines[i]);
    free(tsv->lines);
    memset(tsv, 0, sizeof *tsv);
}

const char *tsv_at(const struct tsv *tsv, int line, int column)
{
    const char *field = tsv->lines[line];
    for (int i = 0; i < column; i++)
        field += strlen(field) + 1;
    return field;
}

/* ---- lists ----------------------------------------------------------------------------------- */

int page_list(struct run_page *page, const char *sub, const char *ending, char ***names)
{
    char path[4096];
    struct dirent **entries;
    snprintf(path, sizeof path, "%s/%s", page->folder, sub);
    int found = scandir(path, &entries, NULL, alphasort), count = 0;
    *names = NULL;
    if (found < 0 && errno == ENOENT)
        return 0;
    if (found < 0) {
        page->bad_input = true;
        return page_fail(page, "%s: %s", path, strerror(errno));
    }
    *names = calloc((size_t)found + 1, sizeof **names);
    for (int i = 0; i < found; i++) {
        const char *name = entries[i]->d_name;
        size_t length = strlen(name), end = strlen(ending);
        if (*names && name[0] != '.' && length > end && !strcmp(name + length - end, ending) &&
            ((*names)[count] = strdup(name)))
            count++;
        free(entries[i]);
    }
    free(entries);
    return count;
}

void page_list_free(char **names, int count)
{
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}
