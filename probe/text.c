/* A byte that is not UTF-8 must not cost a measurement its record, so it is replaced, not refused.
 */
#include "probe/text.h"
#include <stdlib.h>
#include <string.h>

json_t *text_json(const char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    char *plain = strdup(text);
    if (!plain)
        return NULL;
    for (char *c = plain; *c; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    value = json_string(plain);
    free(plain);
    return value;
}

char *text_quoted(const char *text)
{
    json_t *value = text_json(text);
    char *quoted = json_dumps(value, JSON_ENCODE_ANY);
    json_decref(value);
    return quoted;
}
