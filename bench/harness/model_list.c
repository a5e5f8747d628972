/* Reading a model's parameter list. A block between "repeat N NAME" and "end" is read once and then
 * written N times, so that a file says what it means: so many layers, all alike. */
#include "bench/harness/model_list.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/profiles_folder.h"

#define LINE_MAX_BYTES 512
#define PATH_BYTES 1024
#define DIMS_MAX 8
#define REPEAT_MAX 100000

void model_list_free(struct model_list *list)
{
    for (int64_t i = 0; i < list->tensors; i++)
        free((void *)(uintptr_t)list->tensor[i].name);
    free(list->tensor);
    *list = (struct model_list){0};
}

static int add(struct model_list *list, const char *name, int64_t count, enum adamw_group group)
{
    struct adamw_tensor *grown = realloc(list->tensor, (size_t)(list->tensors + 1) * sizeof *grown);
    if (!grown)
        return -1;
    list->tensor = grown;
    grown[list->tensors] = (struct adamw_tensor){strdup(name), count, group};
    if (!grown[list->tensors].name)
        return -1;
    list->tensors++;
    list->params += count;
    return 0;
}

int model_list_single(struct model_list *list, int64_t params)
{
    *list = (struct model_list){0};
    return add(list, "parameters", params, ADAMW_DECAY);
}

/* ---- one file ------------------------------------------------------------------------------ */

struct reader {
    struct model_list *list;
    const char *path;
    int line;
    int64_t block_first; /* the first tensor of the open block; -1 = none is open */
    int64_t block_repeats;
    int64_t block_params; /* list->params where the block begins */
    char block_name[64];
    char *error;
    int size;
};

static int fail(struct reader *r, const char *found, const char *allowed)
{
    snprintf(
        r->error, (size_t)r->size, "%s:%d: got '%s', allowed %s", r->path, r->line, found, allowed);
    return -1;
}

static int no_memory(struct reader *r)
{
    snprintf(r->error, (size_t)r->size, "%s:%d: no host memory", r->path, r->line);
    return -1;
}

/* "32x2880x5760": the product, or -1. */
static int64_t parse_shape(const char *text)
{
    int64_t product = 1;
    for (int dim = 0; dim < DIMS_MAX; dim++) {
        char *end;
        errno = 0;
        long long extent = strtoll(text, &end, 10);
        if (errno || end == text || extent < 1 ||
            __builtin_mul_overflow(product, (int64_t)extent, &product))
            return -1;
        if (!*end)
            return product;
        if (*end != 'x')
            return -1;
        text = end + 1;
    }
    return -1;
}

static int read_tensor(struct reader *r, const char *name, const char *shape, const char *decay)
{
    int64_t count = parse_shape(shape), total;
    bool decays = !strcmp(decay, "decay");
    if (count < 0)
        return fail(r, shape, "a shape such as 4096x2880, at most 8 dimensions of at least 1");
    if (__builtin_add_overflow(r->list->params, count, &total))
        return fail(r, shape, "fewer than 2^63 parameters in all");
    if (!decays && strcmp(decay, "no-decay"))
        return fail(r, decay, "decay or no-decay");
    return add(r->list, name, count, decays ? ADAMW_DECAY : ADAMW_NO_DECAY) ? no_memory(r) : 0;
}

static const char *const width_names[MODEL_WIDTHS] = {
    "layers", "hidden", "heads", "ffn", "experts", "topk", "vocab"};

const char *model_width_name(enum model_width width)
{
    return width_names[width];
}

static int read_width(struct reader *r, const char *name, const char *number)
{
    int width = 0;
    char *end;
    errno = 0;
    long long value = strtoll(number, &end, 10);
    while (width < MODEL_WIDTHS && strcmp(width_names[width], name))
        width++;
    if (width == MODEL_WIDTHS)
        return fail(r, name, "layers, hidden, heads, ffn, experts, topk or vocab");
    if (errno || *end || end == number || value < 1 || value > INT32_MAX)
        return fail(r, number, "a whole number, 1..2147483647");
    if (r->list->width[width])
        return fail(r, name, "each width once");
    r->list->width[width] = value;
    return 0;
}

static int open_block(struct reader *r, const char *repeats, const char *name)
{
    char *end;
    errno = 0;
    long long count = strtoll(repeats, &end, 10);
    if (errno || *end || end == repeats || count < 1 || count > REPEAT_MAX)
        return fail(r, repeats, "repeat 1 to 100000 times");
    if (r->block_first >= 0)
        return fail(r, "repeat", "no block within a block");
    if (strlen(name) >= sizeof r->block_name)
        return fail(r, name, "a block name of at most 63 characters");
    r->block_first = r->list->tensors;
    r->block_params = r->list->params;
    r->block_repeats = count;
    strcpy(r->block_name, name);
    return 0;
}

/* Takes the block's tensors out of the list and puts all repetitions in. */
static int close_block(struct reader *r)
{
    struct model_list *list = r->list;
    int64_t first = r->block_first, in_block = list->tensors - first;
    struct adamw_tensor *block = malloc(((size_t)in_block + 1) * sizeof *block);
    int64_t each = list->params - r->block_params, all;
    int status = block ? 0 : no_memory(r);
    if (!block)
        return status;
    if (in_block)
        memcpy(block, list->tensor + first, (size_t)in_block * sizeof *block);
    list->tensors = first;
    list->params = r->block_params;
    if (__builtin_mul_overflow(each, r->block_repeats, &all) ||
        __builtin_add_overflow(list->params, all, &all))
        status = fail(r, "end", "fewer than 2^63 parameters in all");
    for (int64_t n = 0; n < r->block_repeats && status == 0; n++)
        for (int64_t i = 0; i < in_block && status == 0; i++) {
            char name[LINE_MAX_BYTES + 96];
            snprintf(name, sizeof name, "%s.%lld.%s", r->block_name, (long long)n, block[i].name);
            if (add(list, name, block[i].count, block[i].group))
                status = no_memory(r);
        }
    for (int64_t i = 0; i < in_block; i++)
        free((void *)(uintptr_t)block[i].name);
    free(block);
    r->block_first = -1;
    return status;
}

static int read_line(struct reader *r, char *line)
{
    const char *allowed = "NAME SHAPE decay|no-decay, width NAME NUMBER, repeat N NAME, or end";
    char *word[4] = {NULL};
    char *rest = NULL;
    int words = 0;
    line[strcspn(line, "#\r\n")] = 0;
    for (char *w = strtok_r(line, " \t", &rest); w; w = strtok_r(NULL, " \t", &rest)) {
        if (words == 3)
            return fail(r, w, allowed);
        word[words++] = w;
    }
    if (words == 0)
        return 0;
    if (words == 3 && !strcmp(word[0], "width"))
        return read_width(r, word[1], word[2]);
    if (words == 3 && !strcmp(word[0], "repeat"))
        return open_block(r, word[1], word[2]);
    if (words == 1 && !strcmp(word[0], "end"))
        return r->block_first >= 0 ? close_block(r) : fail(r, "end", "end after repeat");
    if (words == 3)
        return read_tensor(r, word[0], word[1], word[2]);
    return fail(r, word[0], allowed);
}

static int read_file(struct reader *r, FILE *file)
{
    char line[LINE_MAX_BYTES];
    int status = 0;
    while (status == 0 && fgets(line, sizeof line, file)) {
        r->line++;
        if (!strchr(line, '\n') && !feof(file)) {
            line[20] = 0;
            return fail(r, line, "lines of at most 510 characters");
        }
        status = read_line(r, line);
    }
    if (status)
        return status;
    if (ferror(file)) {
        snprintf(r->error, (size_t)r->size, "%s: cannot be read", r->path);
        return -1;
    }
    if (r->block_first >= 0)
        return fail(r, "end of file", "end after repeat");
    if (!r->list->tensors)
        return fail(r, "end of file", "at least one tensor");
    return 0;
}

/* ---- finding it ---------------------------------------------------------------------------- */

static FILE *find(char *path, int size, const char *name)
{
    char own[PATH_BYTES];
    snprintf(path, (size_t)size, "%s", name);
    FILE *file = fopen(path, "r");
    snprintf(own, sizeof own, "models/%s.txt", name);
    return file || strchr(name, '/') ? file : profiles_open(own, path, size);
}

int model_list_read(struct model_list *list, const char *name, char *error, int size)
{
    char path[PATH_BYTES];
    *list = (struct model_list){0};
    FILE *file = find(path, sizeof path, name);
    if (!file) {
        char names[512];
        profiles_names("models", ".txt", names, sizeof names);
        snprintf(
            error, (size_t)size, "got '%s', allowed a readable file or one of %s", name, names);
        return -1;
    }
    struct reader reader = {
        .list = list, .path = path, .block_first = -1, .error = error, .size = size};
    int status = read_file(&reader, file);
    fclose(file);
    if (status)
        model_list_free(list);
    return status;
}
