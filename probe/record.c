/* Records in memory: JSON objects filled by dotted paths. The setters return nothing, so that a
 * program that reports forty figures reads as forty lines; one that fails takes the schema number
 * out of the record, which needs no memory, and a record without it is never written. */
#include "probe/record.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "probe/text.h"

enum { NAME_BYTES = 128 }; /* of one object on a path */

static const char schema_key[] = "schema";

json_t *rec_create(void)
{
    json_t *rec = json_object();
    if (rec && json_object_set_new(rec, schema_key, json_integer(REC_SCHEMA))) {
        json_decref(rec);
        return NULL;
    }
    return rec;
}

static void spoil(json_t *rec)
{
    json_object_del(rec, schema_key);
}

/* The object that holds the last name of `path`, and that name in *name. With `make` the objects on
 * the way are made, in place of anything else that stands there. NULL when there is none. */
static json_t *holder(json_t *rec, const char *path, bool make, const char **name)
{
    const char *dot;
    for (*name = path; rec && (dot = strchr(*name, '.')); *name = dot + 1) {
        char part[NAME_BYTES];
        size_t length = (size_t)(dot - *name);
        if (length >= sizeof part)
            return NULL;
        memcpy(part, *name, length);
        part[length] = 0;
        json_t *next = json_object_get(rec, part);
        if (make && !json_is_object(next)) {
            next = json_object();
            if (json_object_set_new(rec, part, next))
                next = NULL;
        }
        rec = next;
    }
    return rec;
}

void rec_json(json_t *rec, const char *path, json_t *value)
{
    const char *name;
    json_t *object = holder(rec, path, true, &name);
    if (!object)
        json_decref(value);
    if (!object || json_object_set_new(object, name, value)) /* refuses a NULL value too */
        spoil(rec);
}

static void leave_absent(json_t *rec, const char *path)
{
    const char *name;
    json_t *object = holder(rec, path, false, &name);
    json_object_del(object, name);
}

void rec_int(json_t *rec, const char *path, int64_t value)
{
    rec_json(rec, path, json_integer(value));
}

void rec_real(json_t *rec, const char *path, double value)
{
    if (isfinite(value))
        rec_json(rec, path, json_real(value));
    else
        leave_absent(rec, path);
}

void rec_bool(json_t *rec, const char *path, bool value)
{
    rec_json(rec, path, json_boolean(value));
}

void rec_str(json_t *rec, const char *path, const char *value)
{
    rec_json(rec, path, text_json(value));
}

void rec_reals(json_t *rec, const char *path, const double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i])) {
            leave_absent(rec, path);
            return;
        }
    json_t *array = json_array();
    for (int64_t i = 0; array && i < count; i++)
        if (json_array_append_new(array, json_real(values[i]))) {
            json_decref(array);
            array = NULL;
        }
    rec_json(rec, path, array);
}

const json_t *rec_get(const json_t *rec, const char *path)
{
    const char *name;
    json_t *object = holder((json_t *)rec, path, false, &name);
    return json_object_get(object, name);
}
