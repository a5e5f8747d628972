/* Expressions of a table's description: arithmetic over cells of a row and figures of records.
 *
 * They are read as they are evaluated; there is nothing between. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/table.h"
#include "bench/harness/evidence.h"
#include "bench/harness/units.h"
#include "probe/record.h"

#define TEMPLATE_BYTES 512
#define DEPTH_MAX 64 /* of parentheses and signs, and of cells that are made of cells */

struct reader {
    const char *at;
    struct table_view *view;
    char *error;
    int size;
    int depth;
};

static int fail(struct reader *r, const char *what, const char *text)
{
    snprintf(r->error, (size_t)r->size, "%s: '%.120s'", what, text);
    return -1;
}

static void skip_spaces(struct reader *r)
{
    r->at += strspn(r->at, " \t");
}

/* ---- cells ---------------------------------------------------------------------------------- */

static const char *cell_text(struct reader *r, const char *name, char *room, int size);

/* Another word for what a cell says: the `to` behind "from=" in the map's pairs. */
static const char *mapped(struct reader *r, const struct table_map *map, char *room, int size)
{
    if (++r->depth > DEPTH_MAX) {
        fail(r, "a cell that is made of itself", map->name);
        return NULL;
    }
    const char *text = cell_text(r, map->column, room, size);
    r->depth--;
    size_t length = text ? strlen(text) : 0;
    for (const char *at = map->pairs; text && at && *at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, text, length) && at[length] == '=') {
            snprintf(
                room, (size_t)size, "%.*s", (int)strcspn(at + length + 1, ","), at + length + 1);
            return room;
        }
    }
    return text;
}

/* The text of a cell, by its column, as the value of low() and high(), or from a `let`, which may
 * use the ones before it; NULL when there is none. */
static const char *cell_text(struct reader *r, const char *name, char *room, int size)
{
    struct table_view *view = r->view;
    const struct table_part *part = view->part;
    if (part->over && !strcmp(name, part->over))
        return view->over;
    for (int c = 0; c < part->column_count; c++)
        if (!strcmp(part->columns[c], name))
            return view->row < 0 ? NULL : part->cells[view->row * part->column_count + c];
    for (int i = 0; i < part->map_count; i++)
        if (!strcmp(part->maps[i].name, name))
            return mapped(r, &part->maps[i], room, size);
    for (int i = 0; i < part->let_count; i++) {
        if (strcmp(part->lets[i].name, name))
            continue;
        struct table_part before = *part;
        struct table_view inner = *view;
        struct table_value value;
        before.let_count = i;
        inner.part = &before;
        if (table_evaluate(part->lets[i].text, &inner, &value, r->error, r->size) ||
            value.state != TABLE_NUMBER)
            return NULL;
        snprintf(room, (size_t)size, "%.15g", value.value);
        return room;
    }
    return NULL;
}

/* "{name}" at r->at: the name, and what the cell holds. */
static const char *read_cell(struct reader *r, char *room, int size)
{
    char name[64];
    size_t length = strcspn(++r->at, "}");
    if (!r->at[length] || length >= sizeof name) {
        fail(r, "a cell without its '}'", r->at - 1);
        return NULL;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, r->at);
    r->at += length + 1;
    r->error[0] = 0;
    const char *text = cell_text(r, name, room, size);
    if (!text && !r->error[0])
        fail(r, "there is no such cell", name);
    return text;
}

static int cell_value(struct reader *r, struct table_value *value)
{
    char room[32];
    const char *text = read_cell(r, room, sizeof room);
    double number;
    if (!text)
        return -1;
    if (!strcmp(text, "oom"))
        value->state = TABLE_OOM;
    else if (units_parse_real(text, -1, &number) == UNITS_OK)
        *value = (struct table_value){TABLE_NUMBER, number};
    return 0;
}

int table_expand(const char *template, struct table_view *view, char *text, int size, char *error,
    int error_size)
{
    struct reader r = {.at = template, .view = view, .error = error, .size = error_size};
    int used = 0;
    text[0] = 0;
    while (*r.at) {
        char room[32];
        const char *piece = r.at;
        int length = (int)strcspn(r.at, "{");
        if (length)
            r.at += length;
        else {
            if (!(piece = read_cell(&r, room, sizeof room)))
                return -1;
            length = (int)strlen(piece);
        }
        if (used + length >= size)
            return fail(&r, "too long", template);
        memcpy(text + used, piece, (size_t)length);
        text[used += length] = 0;
    }
    return 0;
}

/* ---- records -------------------------------------------------------------------------------- */

static const char *device_of(const json_t *record)
{
    const char *device = json_string_value(json_object_get(record, "device"));
    return device ? device : "";
}

static bool is_arithmetic(const json_t *record)
{
    return !strcmp(device_of(record), "none");
}

/* An emulated GPU computes as one, but its times are of the emulator. */
static bool is_gpu(const char *device)
{
    return !strncmp(device, "cuda", 4) && !strstr(device, "emulator");
}

/* Records of a GPU stand on the measured side, all others on ours; arithmetic on both. */
static bool is_visible(const json_t *record, bool measured)
{
    return is_arithmetic(record) || measured == is_gpu(device_of(record));
}

static bool agrees(const json_t *value, const char *wanted)
{
    double number;
    int64_t count;
    if (json_is_number(value)) {
        if (units_parse_count(wanted, -1, &count) == UNITS_OK)
            return json_number_value(value) == (double)count;
        return units_parse_real(wanted, -1, &number) == UNITS_OK &&
               json_number_value(value) == number;
    }
    if (json_is_boolean(value))
        return !strcmp(wanted, json_is_true(value) ? "true" : "false");
    if (!value) /* a flag that was not given */
        return !strcmp(wanted, "false");
    return json_is_string(value) && !strcmp(wanted, json_string_value(value));
}

static const json_t *member(const json_t *record, const char *name)
{
    static const char *const outer[] = {"op", "impl", "device", "status"};
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++)
        if (!strcmp(name, outer[i]))
            return json_object_get(record, name);
    return json_object_get(json_object_get(record, "config"), name);
}

/* "pipelined-llep tokens=64K": what stands between spaces, all of it. */
static bool selected(const json_t *record, const char *selectors)
{
    char text[2 * TEMPLATE_BYTES], *rest = NULL;
    snprintf(text, sizeof text, "%s", selectors);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        if (equals)
            *equals = 0;
        if (!agrees(member(record, equals ? word : "impl"), equals ? equals + 1 : word))
            return false;
    }
    return true;
}

/* The one record; *record NULL without one. A later record of the same case takes the place of an
 * earlier one. */
static int find_record(struct reader *r, const char *selectors, const json_t **record)
{
    *record = NULL;
    for (size_t i = 0; i < json_array_size(r->view->records); i++) {
        const json_t *candidate = json_array_get(r->view->records, i);
        if (!is_visible(candidate, r->view->measured) || !selected(candidate, selectors))
            continue;
        if (*record &&
            !(json_equal(
                  json_object_get(*record, "config"), json_object_get(candidate, "config")) &&
                json_equal(json_object_get(*record, "impl"), json_object_get(candidate, "impl"))))
            return fail(r, "more than one record agrees", selectors);
        *record = candidate;
    }
    r->view->of_records |= *record && !is_arithmetic(*record);
    return 0;
}

/* The time in one of the machine's variants, where the record has them. */
static const json_t *varied(struct reader *r, const json_t *record, const json_t *value)
{
    struct table_view *view = r->view;
    const json_t *variants = rec_get(record, "time.machines_s");
    const char *name;
    json_t *time;
    int index = 0;
    if (!json_is_object(variants))
        return value;
    view->has_variants = true;
    view->variants = (int)json_object_size(variants);
    json_object_foreach((json_t *)variants, name, time)
    {
        if (++index == view->variant)
            return time;
    }
    return value;
}

static int figure_of(
    struct reader *r, const json_t *record, const char *path, struct table_value *value)
{
    const char *status = json_string_value(json_object_get(record, "status"));
    const json_t *found = rec_get(record, path);
    bool of_time = !strncmp(path, "time.", 5);
    r->view->of_time |= of_time;
    if (of_time && evidence_lacks(record))
        return 0; /* its bytes count, its times do not */
    if (of_time && found)
        found = varied(r, record, found);
    if (status && !strcmp(status, "oom"))
        value->state = TABLE_OOM;
    else if (json_is_number(found))
        *value = (struct table_value){TABLE_NUMBER, json_number_value(found)};
    return 0;
}

/* "[SELECTORS : PATH]" */
static int record_value(struct reader *r, struct table_value *value)
{
    char inside[TEMPLATE_BYTES], selectors[2 * TEMPLATE_BYTES], path[128];
    size_t length = strcspn(++r->at, "]");
    const char *colon = memchr(r->at, ':', length);
    const json_t *record;
    int used = 0;
    if (!colon || !r->at[length] || length >= sizeof inside)
        return fail(r, "not [SELECTORS : PATH]", r->at - 1);
    if (sscanf(colon + 1, " %127[^] \t]", path) != 1)
        return fail(r, "not [SELECTORS : PATH]", r->at - 1);
    snprintf(inside, sizeof inside, "%.*s", (int)(colon - r->at), r->at);
    if (table_expand(r->view->part->where, r->view, selectors, TEMPLATE_BYTES, r->error, r->size))
        return -1;
    used = (int)strlen(selectors);
    selectors[used++] = ' ';
    if (table_expand(
            inside, r->view, selectors + used, (int)sizeof selectors - used, r->error, r->size))
        return -1;
    r->at += length + 1;
    if (find_record(r, selectors, &record))
        return -1;
    return record ? figure_of(r, record, path, value) : 0;
}

/* ---- arithmetic ----------------------------------------------------------------------------- */

static int read_sum(struct reader *r, struct table_value *value);

static int closing(struct reader *r)
{
    skip_spaces(r);
    if (*r->at++ != ')')
        return fail(r, "a ')' is missing", r->at - 1);
    return 0;
}

/* low(...) or high(...): of the values that the part runs over. Where one is missing there is no
 * extreme. */
static int extreme(struct reader *r, bool high, struct table_value *value)
{
    const struct table_part *part = r->view->part;
    const char *begin = r->at, *outer = r->view->over;
    if (!part->value_count)
        return fail(r, "low() and high() need an 'over' line", begin);
    *value = (struct table_value){TABLE_NUMBER, high ? -INFINITY : INFINITY};
    for (int i = 0; i < part->value_count; i++) {
        struct table_value one;
        r->at = begin;
        r->view->over = part->values[i].text;
        if (read_sum(r, &one) || closing(r))
            return -1;
        if (value->state != TABLE_NUMBER)
            continue;
        if (one.state != TABLE_NUMBER ||
            (high ? one.value > value->value : one.value < value->value))
            *value = one;
    }
    r->view->over = outer;
    return 0;
}

static int read_factor(struct reader *r, struct table_value *value);

static int one_factor(struct reader *r, struct table_value *value)
{
    static const struct {
        const char *name;
        double value;
    } units[] = {{"GiB", 1073741824}, {"MiB", 1048576}, {"ms", 1e-3}};
    *value = (struct table_value){TABLE_ABSENT, 0};
    skip_spaces(r);
    if (*r->at == '{')
        return cell_value(r, value);
    if (*r->at == '[')
        return record_value(r, value);
    if (*r->at == '(') {
        r->at++;
        return read_sum(r, value) || closing(r) ? -1 : 0;
    }
    for (int high = 0; high < 2; high++) {
        const char *word = high ? "high(" : "low(";
        if (!strncmp(r->at, word, strlen(word))) {
            r->at += strlen(word);
            return extreme(r, high, value);
        }
    }
    if (*r->at == '-') {
        r->at++;
        int status = read_factor(r, value);
        value->value = -value->value;
        return status;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strncmp(r->at, units[i].name, strlen(units[i].name))) {
            r->at += strlen(units[i].name);
            *value = (struct table_value){TABLE_NUMBER, units[i].value};
            return 0;
        }
    if (!isdigit((unsigned char)*r->at))
        return fail(r, "not an expression", r->at);
    char *end;
    *value = (struct table_value){TABLE_NUMBER, strtod(r->at, &end)};
    r->at = end;
    return 0;
}

/* Takes the second into the first: what is absent makes all absent, out of memory likewise. */
static void apply(char sign, struct table_value *value, const struct table_value *second)
{
    if (value->state != TABLE_NUMBER || second->state != TABLE_NUMBER) {
        bool oom = value->state == TABLE_OOM || second->state == TABLE_OOM;
        bool absent = value->state == TABLE_ABSENT || second->state == TABLE_ABSENT;
        value->state = absent ? TABLE_ABSENT : oom ? TABLE_OOM : TABLE_NUMBER;
        return;
    }
    if (sign == '+')
        value->value += second->value;
    else if (sign == '-')
        value->value -= second->value;
    else if (sign == '*')
        value->value *= second->value;
    else
        value->value /= second->value;
    if (!isfinite(value->value))
        value->state = TABLE_ABSENT;
}

static int read_factor(struct reader *r, struct table_value *value)
{
    if (r->depth == DEPTH_MAX)
        return fail(r, "nested too deeply", r->at);
    r->depth++;
    int status = one_factor(r, value);
    r->depth--;
    return status;
}

static int read_product(struct reader *r, struct table_value *value)
{
    int status = read_factor(r, value);
    for (skip_spaces(r); !status && (*r->at == '*' || *r->at == '/'); skip_spaces(r)) {
        char sign = *r->at++;
        struct table_value second;
        status = read_factor(r, &second);
        apply(sign, value, &second);
    }
    return status;
}

static int read_sum(struct reader *r, struct table_value *value)
{
    int status = read_product(r, value);
    for (skip_spaces(r); !status && (*r->at == '+' || *r->at == '-'); skip_spaces(r)) {
        char sign = *r->at++;
        struct table_value second;
        status = read_product(r, &second);
        apply(sign, value, &second);
    }
    return status;
}

int table_evaluate(const char *expression, struct table_view *view, struct table_value *value,
    char *error, int size)
{
    struct reader r = {.at = expression, .view = view, .error = error, .size = size};
    if (read_sum(&r, value))
        return -1;
    return *r.at ? fail(&r, "text behind an expression", r.at) : 0;
}
