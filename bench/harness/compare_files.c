/* Reads record files and puts the records of one case together. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "bench/harness/compare.h"
#include "probe/record.h"

/* Canonical JSON: sorted keys, no spaces. NULL when memory is short. */
static char *case_key(const json_t *record)
{
    json_t *parts = json_pack("[O?, O?, O?, O?]", json_object_get(record, "op"),
        json_object_get(record, "impl"), json_object_get(record, "device"),
        json_object_get(record, "config"));
    char *key = parts ? json_dumps(parts, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    json_decref(parts);
    return key;
}

/* What a comparison relies on. */
static bool is_usable(const json_t *record, const char **missing)
{
    static const char *const texts[] = {"op", "impl", "device", "status"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        *missing = texts[i];
        if (!json_is_string(json_object_get(record, texts[i])))
            return false;
    }
    *missing = "config";
    return json_is_object(json_object_get(record, "config"));
}

static struct record_group *new_group(struct record_set *set, char *key)
{
    if (set->count == set->capacity) {
        int capacity = set->capacity ? 2 * set->capacity : 16;
        struct record_group *grown = realloc(set->cases, (size_t)capacity * sizeof *set->cases);
        if (!grown)
            return NULL;
        set->cases = grown;
        set->capacity = capacity;
    }
    struct record_group *group = &set->cases[set->count++];
    memset(group, 0, sizeof *group);
    group->key = key;
    return group;
}

const struct record_group *record_set_find(const struct record_set *set, const char *key)
{
    for (int i = 0; i < set->count; i++) {
        if (!strcmp(set->cases[i].key, key))
            return &set->cases[i];
    }
    return NULL;
}

static int add_record(struct record_set *set, const json_t *record)
{
    char *key = case_key(record);
    if (!key)
        return -1;
    struct record_group *group = (struct record_group *)record_set_find(set, key);
    if (group)
        free(key);
    else if (!(group = new_group(set, key))) {
        free(key);
        return -1;
    }
    if (group->count == group->capacity) {
        int capacity = group->capacity ? 2 * group->capacity : 4;
        const json_t **grown = realloc(group->records, (size_t)capacity * sizeof *grown);
        if (!grown)
            return -1;
        group->records = grown;
        group->capacity = capacity;
    }
    group->records[group->count++] = record;
    return 0;
}

static int read_file(const char *path, struct record_set *set, char *error, int size)
{
    const char *missing;
    json_t *records = rec_read(path, error, size);
    if (!records)
        return -1;
    if (!json_array_size(records)) {
        snprintf(error, (size_t)size, "%s: has no records", path);
        json_decref(records);
        return -1;
    }
    for (size_t i = 0; i < json_array_size(records); i++) {
        json_t *record = json_array_get(records, i);
        if (!is_usable(record, &missing)) {
            snprintf(error, (size_t)size, "%s:%zu: the record has no '%s'", path, i + 1, missing);
            json_decref(records);
            return -1;
        }
        if (json_array_append(set->records, record) || add_record(set, record)) {
            snprintf(error, (size_t)size, "%s:%zu: memory is short", path, i + 1);
            json_decref(records);
            return -1;
        }
    }
    json_decref(records);
    return 0;
}

static int is_record_file(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 6 && !strcmp(entry->d_name + length - 6, ".jsonl");
}

static int read_folder(const char *path, struct record_set *set, char *error, int size)
{
    char file[4096];
    struct dirent **entries;
    int status = 0, count = scandir(path, &entries, is_record_file, alphasort);
    if (count < 0) {
        snprintf(error, (size_t)size, "%s: the folder cannot be read", path);
        return -1;
    }
    if (!count) {
        snprintf(error, (size_t)size, "%s: the folder has no *.jsonl file", path);
        status = -1;
    }
    for (int i = 0; i < count; i++) {
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (!status)
            status = read_file(file, set, error, size);
        free(entries[i]);
    }
    free(entries);
    return status;
}

int record_set_read(const char *path, struct record_set *set, char *error, int size)
{
    struct stat about;
    memset(set, 0, sizeof *set);
    snprintf(set->label, sizeof set->label, "%s", path);
    set->records = json_array();
    if (!set->records) {
        snprintf(error, (size_t)size, "%s: memory is short", path);
        return -1;
    }
    if (!stat(path, &about) && S_ISDIR(about.st_mode))
        return read_folder(path, set, error, size);
    return read_file(path, set, error, size);
}

void record_set_free(struct record_set *set)
{
    for (int i = 0; i < set->count; i++) {
        free(set->cases[i].key);
        free(set->cases[i].records);
    }
    free(set->cases);
    json_decref(set->records);
    memset(set, 0, sizeof *set);
}

int record_set_launches(const struct record_set *set)
{
    int launches = 0;
    json_t *seen = json_object();
    for (size_t i = 0; seen && i < json_array_size(set->records); i++) {
        const char *id = json_string_value(rec_get(json_array_get(set->records, i), "run.id"));
        if (id && !json_object_get(seen, id)) {
            json_object_set_new(seen, id, json_true());
            launches++;
        }
    }
    json_decref(seen);
    return launches;
}

/* Some case of the sets has another value, or none, for this key. */
static bool varies(
    const struct record_set *const *sets, int set_count, const char *key, const json_t *value)
{
    for (int i = 0; i < set_count; i++) {
        for (int j = 0; j < sets[i]->count; j++) {
            const json_t *config = json_object_get(sets[i]->cases[j].records[0], "config");
            const json_t *other = json_object_get(config, key);
            if (!other || !json_equal(other, value))
                return true;
        }
    }
    return false;
}

void record_set_print_case(
    FILE *out, const json_t *record, const struct record_set *const *sets, int set_count)
{
    const char *key;
    json_t *value;
    fprintf(out, "%s %s %s", json_string_value(json_object_get(record, "op")),
        json_string_value(json_object_get(record, "impl")),
        json_string_value(json_object_get(record, "device")));
    json_object_foreach(json_object_get(record, "config"), key, value)
    {
        char *text = varies(sets, set_count, key, value)
                         ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT)
                         : NULL;
        if (text)
            fprintf(out, " %s=%s", key, json_is_string(value) ? json_string_value(value) : text);
        free(text);
    }
}
