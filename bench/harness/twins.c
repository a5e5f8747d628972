/* Cases at one shape, and the bits that they share on the fast path. */
#include "bench/harness/twins.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct twin {
    int *position; /* options_position; owned */
    const char *impl, *tensor;
    char digest[DIGEST_TEXT];
};

static const struct twin *find(
    const struct twins *twins, const struct options *options, const char *tensor)
{
    for (int i = 0; i < twins->count; i++)
        if (!strcmp(twins->list[i].tensor, tensor) &&
            options_same_shape(options, twins->list[i].position))
            return &twins->list[i];
    return NULL;
}

static int keep(struct twins *twins, const struct options *options, const char *impl,
    const struct case_tensor *tensor)
{
    if (twins->count == twins->capacity) {
        int capacity = twins->capacity ? 2 * twins->capacity : 16;
        struct twin *grown = realloc(twins->list, (size_t)capacity * sizeof *grown);
        if (!grown)
            return -1;
        twins->list = grown;
        twins->capacity = capacity;
    }
    struct twin *twin = &twins->list[twins->count];
    *twin = (struct twin){.impl = impl, .tensor = tensor->name};
    twin->position = malloc((size_t)options_count(options) * sizeof *twin->position);
    if (!twin->position)
        return -1;
    options_position(options, twin->position);
    memcpy(twin->digest, tensor->digest, sizeof twin->digest);
    twins->count++;
    return 0;
}

int twins_compare(struct twins *twins, const struct options *options, const char *impl,
    struct case_result *result)
{
    if (!result->products.present || result->products.odd)
        return 0;
    for (int i = 0; i < result->tensor_count; i++) {
        struct case_tensor *tensor = &result->tensors[i];
        if (!tensor->by_row || tensor->verdict != VERDICT_BOUNDED)
            continue;
        const struct twin *twin = find(twins, options, tensor->name);
        if (!twin && keep(twins, options, impl, tensor))
            return -1;
        if (!twin || !strcmp(twin->digest, tensor->digest))
            continue;
        tensor->verdict = VERDICT_MISMATCH;
        snprintf(tensor->fault, sizeof tensor->fault,
            "%s: bits on the fast path are not those of %s, which cuts the same rows otherwise",
            tensor->name, twin->impl);
    }
    return 0;
}

void twins_free(struct twins *twins)
{
    for (int i = 0; i < twins->count; i++)
        free(twins->list[i].position);
    free(twins->list);
    *twins = (struct twins){0};
}
