/* Which records a plot shows, and what it calls them. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/figures.h"
#include "probe/record.h"

#define PATH_MAX_LENGTH 4096

const char *figure_kind(const json_t *record)
{
    const char *kind = json_string_value(rec_get(record, "time.kind"));
    const char *device = json_string_value(json_object_get(record, "device"));
    const char *status = json_string_value(json_object_get(record, "status"));
    if (kind)
        return kind;
    if (status && !strcmp(status, "skipped"))
        return "computed";
    return device && !strncmp(device, "sim", 3) ? "simulated" : "measured";
}

double figure_at(const json_t *record, const char *paths)
{
    while (*paths) {
        char path[128];
        size_t length = strcspn(paths, "|");
        snprintf(path, sizeof path, "%.*s", (int)length, paths);
        const json_t *value = rec_get(record, path);
        if (json_is_number(value))
            return json_number_value(value);
        paths += length + (paths[length] == '|');
    }
    return NAN;
}

static bool is_at(const json_t *record, const char *key, const char *wanted)
{
    const char *text = json_string_value(json_object_get(record, key));
    return text && !strcmp(text, wanted);
}

int figure_select(const struct record_set *set, const char *op, const char *impl, const char *kind,
    struct figure_selection *out)
{
    out->count = 0;
    out->records = calloc((size_t)set->count + 1, sizeof *out->records);
    if (!out->records)
        return -1;
    for (int i = 0; i < set->count; i++) {
        const json_t *record = set->cases[i].records[0];
        if (!is_at(record, "op", op) || (impl && !is_at(record, "impl", impl)))
            continue;
        if (!is_at(record, "status", "ok") && !is_at(record, "status", "skipped"))
            continue;
        if (!kind || !strcmp(figure_kind(record), kind))
            out->records[out->count++] = record;
    }
    return 0;
}

void figure_selection_free(struct figure_selection *selection)
{
    free(selection->records);
    selection->records = NULL;
    selection->count = 0;
}

struct spread {
    bool varies, lacking; /* some record has another value, or none */
};

static struct spread spread_of(
    const struct figure_selection *selection, const char *key, const json_t *value)
{
    struct spread spread = {false, false};
    for (int i = 0; i < selection->count; i++) {
        const json_t *config = json_object_get(selection->records[i], "config");
        const json_t *other = json_object_get(config, key);
        spread.lacking |= !other;
        spread.varies |= other && !json_equal(other, value);
    }
    return spread;
}

void figure_label(const struct figure_selection *selection, const json_t *record,
    const char *left_out, bool own, char *text, int size)
{
    const char *key;
    json_t *value;
    int length = 0;
    text[0] = '\0';
    json_object_foreach(json_object_get(record, "config"), key, value)
    {
        char word[64];
        snprintf(word, sizeof word, " %s ", key);
        struct spread spread = spread_of(selection, key, value);
        if (!spread.varies || spread.lacking != own || strstr(left_out, word))
            continue;
        char *written = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        if (written && length < size)
            length += snprintf(text + length, (size_t)(size - length), "%s%s=%s", length ? " " : "",
                key, json_is_string(value) ? json_string_value(value) : written);
        free(written);
    }
}

int figure_open(struct new_file *file, const char *folder, const char *name, const char *columns,
    char *error, int size)
{
    char path[PATH_MAX_LENGTH];
    snprintf(path, sizeof path, "%s/%s.csv", folder, name);
    if (new_file_open(file, path)) {
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
        return -1;
    }
    new_file_print(file, "%s\n", columns);
    return 0;
}

int figure_close(struct new_file *file, const char *folder, const char *name, char *error, int size)
{
    if (ferror(file->stream) && !file->error)
        file->error = EIO;
    if (!new_file_commit(file))
        return 0;
    snprintf(error, (size_t)size, "%s/%s.csv: %s", folder, name, strerror(errno));
    return -1;
}
