/* Text from outside (arguments, variables, files) as JSON. */
#pragma once
#include <jansson.h>

/* A JSON string. JSON is UTF-8: in a text that is not, every byte beyond ASCII becomes '?'. NULL
 * when memory is short. */
json_t *text_json(const char *text);

/* The same as it stands in a JSON file, quoted and escaped; to be freed. NULL when memory is short.
 */
char *text_quoted(const char *text);
