/* Walks the product of the cases, and says of the current one what a report needs.
 *
 * A case is a position of the odometer over all axes. Implementations differ in the options they
 * take: positions that differ only in an axis which the implementation does not take are one case,
 * the one where that axis stands at its first value. */
#include <stdio.h>
#include <string.h>
#include "bench/harness/option_store.h"

bool options_takes(const struct options *options, int impl, const struct option *option)
{
    const struct program *program = options->program;
    return !option->by_impl || !program->takes || program->takes(impl, option->name);
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int chosen_impl(const struct options *options)
{
    if (options->impl < 0)
        return -1;
    const struct option_entry *entry = &options->entries[options->impl];
    return entry->values[entry->position].name;
}

/* The odometer stands at a case: every axis that the implementation does not take is at its first
 * value. */
static bool at_case(const struct options *options)
{
    int impl = chosen_impl(options);
    for (int i = 0; i < options->count; i++) {
        const struct option_entry *entry = &options->entries[i];
        if (entry->position && !options_takes(options, impl, entry->option))
            return false;
    }
    return true;
}

/* False when all positions have been met. */
static bool turn(struct options *options)
{
    for (int i = options->count - 1; i >= 0; i--) {
        struct option_entry *entry = &options->entries[i];
        if (++entry->position < entry->count)
            return true;
        entry->position = 0;
    }
    return false;
}

static void write_field(const struct option_entry *entry, const union option_value *value)
{
    char *field = (char *)entry->fields + entry->option->at;
    switch (entry->option->kind) {
    case OPTION_FLAG:
        *(bool *)field = value->flag;
        return;
    case OPTION_COUNT:
    case OPTION_BYTES:
        *(int64_t *)(void *)field = value->count;
        return;
    case OPTION_REAL:
        *(double *)(void *)field = value->real;
        return;
    case OPTION_NAME:
        *(int *)(void *)field = value->name;
        return;
    case OPTION_TEXT:
        *(const char **)(void *)field = value->text;
        return;
    case OPTION_COUNTS:
        *(struct option_counts *)(void *)field = value->counts;
        return;
    case OPTION_REALS:
        *(struct option_reals *)(void *)field = value->reals;
        return;
    }
}

bool options_next(struct options *options)
{
    memset(options->absent, 0, (size_t)options->count * sizeof *options->absent);
    if (!options->started)
        options->started = true;
    else if (!turn(options))
        return false;
    while (!at_case(options)) {
        if (!turn(options))
            return false;
    }
    for (int i = 0; i < options->count; i++) {
        const struct option_entry *entry = &options->entries[i];
        bool taken = options_takes(options, chosen_impl(options), entry->option);
        write_field(entry, taken ? &entry->values[entry->position] : &entry->fallback);
    }
    return true;
}

void options_rewind(struct options *options)
{
    options->started = false;
    for (int i = 0; i < options->count; i++)
        options->entries[i].position = 0;
}

int64_t options_cases(const struct options *options)
{
    int impls = options->impl < 0 ? 1 : options->entries[options->impl].count;
    int64_t cases = 0;
    for (int j = 0; j < impls; j++) {
        int impl = options->impl < 0 ? -1 : options->entries[options->impl].values[j].name;
        int64_t product = 1;
        for (int i = 0; i < options->count; i++) {
            const struct option_entry *entry = &options->entries[i];
            if (i != options->impl && options_takes(options, impl, entry->option))
                product *= entry->count;
        }
        cases += product;
    }
    return cases;
}

/* ---- for reports ---------------------------------------------------------------------------- */

bool options_given(const struct options *options, const char *name)
{
    const struct option_entry *entry = options_find(options, name, strlen(name));
    return entry && entry->given;
}

void options_default_count(struct options *options, const char *name, int64_t value)
{
    struct option_entry *entry = options_find(options, name, strlen(name));
    if (entry && !entry->given)
        entry->values[0].count = entry->fallback.count = value;
}

void options_count_range(
    const struct options *options, const char *name, int64_t *low, int64_t *high)
{
    const struct option_entry *entry = options_find(options, name, strlen(name));
    *low = entry ? entry->option->low : 0;
    *high = entry ? entry->option->high : 0;
}

void options_default_name(struct options *options, const char *name, int value)
{
    struct option_entry *entry = options_find(options, name, strlen(name));
    if (entry && !entry->given)
        entry->values[0].name = entry->fallback.name = value;
}

static bool is_count_axis(const struct options *options, const struct option_entry *entry)
{
    return entry && entry->option->kind == OPTION_COUNT && entry->option->axis && entry->set &&
           entry->option->role == OPTION_CONFIG &&
           options_takes(options, chosen_impl(options), entry->option);
}

bool options_get_count(
    const struct options *options, const char *name, int64_t *value, int64_t *most)
{
    const struct option_entry *entry = options_find(options, name, strlen(name));
    if (!is_count_axis(options, entry))
        return false;
    *value = entry->values[entry->position].count;
    *most = entry->option->high ? entry->option->high : INT64_MAX;
    return true;
}

void options_set_count(struct options *options, const char *name, int64_t value)
{
    struct option_entry *entry = options_find(options, name, strlen(name));
    if (!is_count_axis(options, entry))
        return;
    entry->values[entry->position].count = value;
    write_field(entry, &entry->values[entry->position]);
}

void options_hide(struct options *options, const char *name)
{
    struct option_entry *entry = options_find(options, name, strlen(name));
    if (entry)
        entry->set = false;
}

int options_argument_count(const struct options *options)
{
    return options->argument_count;
}

const char *options_argument(const struct options *options, int index)
{
    return index < options->argument_count ? options->arguments[index] : NULL;
}

int options_count(const struct options *options)
{
    return options->count;
}

const struct option *options_at(const struct options *options, int index)
{
    return options->entries[index].option;
}

bool options_present(const struct options *options, int index)
{
    const struct option_entry *entry = &options->entries[index];
    return entry->set && !options->absent[index] &&
           options_takes(options, chosen_impl(options), entry->option);
}

void options_absent(struct options *options, const char *name)
{
    for (int i = 0; i < options->count; i++)
        if (!strcmp(options->entries[i].option->name, name))
            options->absent[i] = true;
}

bool options_varies(const struct options *options, int index)
{
    return options->entries[index].count > 1;
}

static int list_text(
    const struct option_entry *entry, const union option_value *value, char *text, int size)
{
    int used = 0;
    bool whole = entry->option->kind == OPTION_COUNTS;
    int count = whole ? value->counts.count : value->reals.count;
    for (int i = 0; i < count && used < size; i++) {
        const char *comma = i ? "," : "";
        used += whole ? snprintf(text + used, (size_t)(size - used), "%s%lld", comma,
                            (long long)value->counts.values[i])
                      : snprintf(text + used, (size_t)(size - used), "%s%g", comma,
                            value->reals.values[i]);
    }
    return used;
}

void options_text(const struct options *options, int index, char *text, int size)
{
    const struct option_entry *entry = &options->entries[index];
    const union option_value *value = &entry->values[entry->position];
    if (!options_present(options, index)) {
        snprintf(text, (size_t)size, "-");
        return;
    }
    switch (entry->option->kind) {
    case OPTION_FLAG:
        snprintf(text, (size_t)size, "%s", value->flag ? "yes" : "no");
        return;
    case OPTION_COUNT:
    case OPTION_BYTES:
        snprintf(text, (size_t)size, "%lld", (long long)value->count);
        return;
    case OPTION_REAL:
        snprintf(text, (size_t)size, "%g", value->real);
        return;
    case OPTION_NAME:
        snprintf(text, (size_t)size, "%s", entry->option->names[value->name]);
        return;
    case OPTION_TEXT:
        snprintf(text, (size_t)size, "%s", value->text);
        return;
    case OPTION_COUNTS:
    case OPTION_REALS:
        list_text(entry, value, text, size);
        return;
    }
}

void options_position(const struct options *options, int *position)
{
    for (int i = 0; i < options->count; i++)
        position[i] = options->entries[i].position;
}

bool options_same_shape(const struct options *options, const int *baseline_position)
{
    int impl = chosen_impl(options);
    for (int i = 0; i < options->count; i++) {
        const struct option_entry *entry = &options->entries[i];
        if (i == options->impl || !options_takes(options, 0, entry->option))
            continue;
        int wanted = options_takes(options, impl, entry->option) ? entry->position : 0;
        if (baseline_position[i] != wanted)
            return false;
    }
    return true;
}

static json_t *value_json(const struct option_entry *entry, const union option_value *value)
{
    json_t *list;
    switch (entry->option->kind) {
    case OPTION_FLAG:
        return json_boolean(value->flag);
    case OPTION_REAL:
        return json_real(value->real);
    case OPTION_NAME:
        return json_string(entry->option->names[value->name]);
    case OPTION_TEXT:
        return json_string(value->text);
    case OPTION_COUNTS:
        list = json_array();
        for (int i = 0; i < value->counts.count; i++)
            json_array_append_new(list, json_integer(value->counts.values[i]));
        return list;
    case OPTION_REALS:
        list = json_array();
        for (int i = 0; i < value->reals.count; i++)
            json_array_append_new(list, json_real(value->reals.values[i]));
        return list;
    default:
        return json_integer(value->count);
    }
}

static json_t *subobject(json_t *parent, const char *key)
{
    json_t *object = json_object_get(parent, key);
    if (!object) {
        object = json_object();
        json_object_set_new(parent, key, object);
    }
    return object;
}

void options_record(const struct options *options, json_t *record)
{
    for (int i = 0; i < options->count; i++) {
        const struct option_entry *entry = &options->entries[i];
        const struct option *option = entry->option;
        if (option->role == OPTION_ELSEWHERE || !options_present(options, i))
            continue;
        char key[64];
        snprintf(key, sizeof key, "%s", option->key ? option->key : option->name);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        json_t *home = option->role == OPTION_CONFIG
                           ? subobject(record, "config")
                           : subobject(subobject(record, "run"), "options");
        json_object_set_new(home, key, value_json(entry, &entry->values[entry->position]));
    }
}
