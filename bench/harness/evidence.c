/* What a record's times may stand for. */
#include "bench/harness/evidence.h"
#include <string.h>
#include "probe/record.h"

const char *evidence_text(const json_t *record, const char *path)
{
    const char *text = json_string_value(rec_get(record, path));
    return text ? text : "";
}

bool evidence_is_gpu(const json_t *record)
{
    return !strncmp(evidence_text(record, "device"), "cuda", 4);
}

const char *evidence_lacks(const json_t *record)
{
    const char *device = evidence_text(record, "device");
    if (!evidence_is_gpu(record))
        return NULL;
    if (strstr(device, "emulator"))
        return "the GPU is emulated";
    if (strstr(device, "shared-gpu"))
        return "ranks share a GPU";
    bool has_products = strcmp(evidence_text(record, "op"), "optimizer") != 0;
    if (has_products && strcmp(evidence_text(record, "config.gemm"), "fast") != 0)
        return "products are exact";
    return NULL;
}

bool evidence_same_shape(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_t *other = json_object_get(b, "config");
    json_object_foreach(json_object_get(a, "config"), key, value)
    {
        json_t *match = json_object_get(other, key);
        if (match && !json_equal(value, match))
            return false;
    }
    return json_equal(json_object_get(a, "device"), json_object_get(b, "device"));
}
