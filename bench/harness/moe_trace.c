/* Router traces. The arrays stay as they were read; every entry is looked at before one is used. */
#include "bench/harness/moe_trace.h"
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ops/moe.h"
#include "probe/seed.h"

#define COUNTS_PREFIX "counts:"

/* Under which a trace of counts deals its routes to tokens. */
#define DEAL_SEED 1
#define DEAL_STREAM 0x6465616cu

static int64_t entry(const struct npy_array *array, int64_t at)
{
    return array->type == NPY_I32 ? ((const int32_t *)array->data)[at]
                                  : ((const int64_t *)array->data)[at];
}

/* ---- what the axes are -------------------------------------------------------------------------
 * Of d dimensions the last d of a list. A single file of indices may leave out all but two, counts
 * and a rank's file their steps and layers. */

struct axes {
    int least, most; /* dimensions */
    const char *const *names;
    const char *allowed;
};

static const char *const names_of_all[] = {"step", "layer", "rank", "token", "slot"};
static const char *const names_of_rank[] = {"step", "layer", "token", "slot"};
static const char *const names_of_counts[] = {"step", "layer", "rank", "expert"};

static const struct axes axes_of_all = {
    2, 5, names_of_all, "[N, k], [P, N, k], [step, P, N, k] or [step, layer, P, N, k]"};
static const struct axes axes_of_rank = {
    2, 4, names_of_rank, "[N, k], [step, N, k] or [step, layer, N, k]"};
static const struct axes axes_of_counts = {
    2, 4, names_of_counts, "[P, E], [step, P, E] or [step, layer, P, E]"};

static const struct axes *axes_of(const struct moe_trace *trace)
{
    if (trace->kind == MOE_TRACE_COUNTS)
        return &axes_of_counts;
    return trace->folder ? &axes_of_rank : &axes_of_all;
}

/* The name of a file's axis: without a layer axis the one before the rank's is the step. */
static const char *axis_name(const struct axes *axes, int dims, int axis)
{
    int skipped = axes->most - dims;
    return axis == 0 && skipped == 1 ? axes->names[0] : axes->names[axis + skipped];
}

/* Extents of the leading step and layer axes. Without tokens they are not bounded by the file's
 * size. */
static int find_instances(
    struct moe_trace *trace, const struct npy_array *array, int dims_of_one, char *error, int size)
{
    int leading = array->dims - dims_of_one;
    trace->steps = leading > 0 ? array->shape[0] : 1;
    trace->layers = leading > 1 ? array->shape[1] : 1;
    if (trace->steps <= INT32_MAX && trace->layers <= INT32_MAX)
        return 0;
    snprintf(error, (size_t)size,
        "%s: got %" PRId64 " steps of %" PRId64 " layers, allowed at most %d each", trace->path[0],
        trace->steps, trace->layers, INT32_MAX);
    return -1;
}

/* ---- entries ----------------------------------------------------------------------------------
 */

/* "[step 2, rank 0, token 17, slot 3]" */
static void name_entry(
    const struct axes *axes, const struct npy_array *array, int64_t at, char *text, size_t size)
{
    int64_t coordinate[NPY_MAX_DIMS];
    for (int d = array->dims - 1; d >= 0; d--) {
        coordinate[d] = at % array->shape[d];
        at /= array->shape[d];
    }
    size_t used = 0;
    for (int d = 0; d < array->dims && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%s %" PRId64, d ? ", " : "[",
            axis_name(axes, array->dims, d), coordinate[d]);
    if (used < size)
        snprintf(text + used, size - used, "]");
}

static int check_file(
    const struct moe_trace *trace, int number, int64_t low, int64_t high, char *error, int size)
{
    const struct npy_array *array = &trace->file[number];
    char place[160];
    for (int64_t i = 0; i < array->count; i++) {
        int64_t value = entry(array, i);
        if (value >= low && value <= high)
            continue;
        name_entry(axes_of(trace), array, i, place, sizeof place);
        snprintf(error, (size_t)size, "%s: %s is %" PRId64 ", allowed 0..%" PRId64 "%s",
            trace->path[number], place, value, high, low < 0 ? " or -1 (empty)" : "");
        return -1;
    }
    return 0;
}

int moe_trace_check(const struct moe_trace *trace, int64_t experts, char *error, int size)
{
    if (trace->kind == MOE_TRACE_COUNTS && trace->experts != experts) {
        snprintf(error, (size_t)size, "%s: got counts of %" PRId64 " experts, allowed %" PRId64,
            trace->path[0], trace->experts, experts);
        return -1;
    }
    for (int i = 0; trace->kind == MOE_TRACE_INDICES && i < trace->files; i++)
        if (check_file(trace, i, MOE_EMPTY, experts - 1, error, size))
            return -1;
    return 0;
}

static int64_t instances_of(const struct moe_trace *trace)
{
    return trace->steps * trace->layers;
}

static int64_t count_at(const struct moe_trace *trace, int64_t instance, int rank, int64_t expert)
{
    return entry(trace->file, (instance * trace->ranks + rank) * trace->experts + expert);
}

/* Of the step that has most. */
static int64_t most_routes(const struct moe_trace *trace, int rank)
{
    int64_t most = 0;
    for (int64_t i = 0; i < instances_of(trace); i++) {
        int64_t routes = 0;
        for (int64_t e = 0; e < trace->experts; e++)
            routes += count_at(trace, i, rank, e);
        most = routes > most ? routes : most;
    }
    return most;
}

/* A rank's routes are numbered by int32 wherever they are moved. */
static int check_routes(const struct moe_trace *trace, char *error, int size)
{
    for (int rank = 0; rank < trace->ranks; rank++) {
        int64_t routes = most_routes(trace, rank);
        if (routes <= INT32_MAX)
            continue;
        snprintf(error, (size_t)size,
            "%s: rank %d has %" PRId64 " routes in one step, allowed at most %d", trace->path[0],
            rank, routes, INT32_MAX);
        return -1;
    }
    return 0;
}

/* ---- reading -----------------------------------------------------------------------------------
 */

static int refuse_shape(
    const char *path, const struct npy_array *array, const char *allowed, char *error, int size)
{
    char text[256] = "";
    int at = 0;
    for (int d = 0; d < array->dims; d++)
        at += snprintf(
            text + at, sizeof text - (size_t)at, "%s%" PRId64, d ? ", " : "", array->shape[d]);
    snprintf(error, (size_t)size, "%s: got shape [%s], allowed %s", path, text, allowed);
    return -1;
}

/* Whole numbers of a known number of dimensions, none empty but the tokens'. */
static int read_file(struct moe_trace *trace, int number, const char *path, char *error, int size)
{
    const struct axes *axes = axes_of(trace);
    struct npy_array *array = &trace->file[number];
    trace->path[number] = strdup(path);
    if (!trace->path[number]) {
        snprintf(error, (size_t)size, "%s: no memory", path);
        return -1;
    }
    if (npy_read(path, array, error, size))
        return -1;
    if (array->type != NPY_I32 && array->type != NPY_I64) {
        snprintf(error, (size_t)size, "%s: got %s, allowed int32 or int64", path,
            npy_type_name(array->type));
        return -1;
    }
    if (array->dims < axes->least || array->dims > axes->most)
        return refuse_shape(path, array, axes->allowed, error, size);
    for (int d = 0; d < array->dims; d++)
        if (array->shape[d] == 0 && strcmp(axis_name(axes, array->dims, d), "token") != 0)
            return refuse_shape(path, array, "no empty axis but the tokens'", error, size);
    return 0;
}

static int allocate_files(struct moe_trace *trace, int files, char *error, int size)
{
    trace->files = files;
    trace->file = calloc((size_t)files, sizeof *trace->file);
    trace->path = calloc((size_t)files, sizeof *trace->path);
    if (trace->file && trace->path)
        return 0;
    snprintf(error, (size_t)size, "no memory for a trace of %d files", files);
    return -1;
}

static int check_ranks(const char *path, int64_t ranks, char *error, int size)
{
    if (ranks <= MOE_RANKS_MAX)
        return 0;
    snprintf(error, (size_t)size, "%s: got %" PRId64 " ranks, allowed at most %d", path, ranks,
        MOE_RANKS_MAX);
    return -1;
}

static int check_topk(const char *path, int64_t topk, char *error, int size)
{
    if (topk <= INT_MAX)
        return 0;
    snprintf(error, (size_t)size, "%s: got %" PRId64 " slots a token, allowed at most %d", path,
        topk, INT_MAX);
    return -1;
}

static int read_counts(struct moe_trace *trace, const char *path, char *error, int size)
{
    trace->kind = MOE_TRACE_COUNTS;
    if (allocate_files(trace, 1, error, size) || read_file(trace, 0, path, error, size))
        return -1;
    const struct npy_array *array = trace->file;
    trace->experts = array->shape[array->dims - 1];
    if (find_instances(trace, array, 2, error, size) ||
        check_ranks(path, array->shape[array->dims - 2], error, size))
        return -1;
    trace->ranks = (int)array->shape[array->dims - 2];
    return check_file(trace, 0, 0, INT32_MAX, error, size) || check_routes(trace, error, size) ? -1
                                                                                               : 0;
}

static int read_indices(struct moe_trace *trace, const char *path, char *error, int size)
{
    if (allocate_files(trace, 1, error, size) || read_file(trace, 0, path, error, size))
        return -1;
    const struct npy_array *array = trace->file;
    trace->same = array->dims == 2;
    int64_t ranks = trace->same ? 0 : array->shape[array->dims - 3];
    int64_t topk = array->shape[array->dims - 1];
    if (find_instances(trace, array, 3, error, size) || check_ranks(path, ranks, error, size) ||
        check_topk(path, topk, error, size))
        return -1;
    trace->ranks = (int)ranks;
    trace->topk = (int)topk;
    return 0;
}

/* ---- a folder ----------------------------------------------------------------------------------
 */

static const char *const rank_patterns[] = {"rank_%d.npy", "%d.npy"};

static bool rank_path(const char *folder, const char *pattern, int rank, char *path, size_t size)
{
    char name[32];
    snprintf(name, sizeof name, pattern, rank);
    return snprintf(path, size, "%s/%s", folder, name) < (int)size && access(path, F_OK) == 0;
}

/* The highest rank among the folder's names of this pattern; -1 = none. */
static int highest_rank(const char *folder, const char *pattern)
{
    DIR *directory = opendir(folder);
    int highest = -1;
    const struct dirent *found;
    while (directory && (found = readdir(directory))) {
        int rank;
        char name[32];
        if (sscanf(found->d_name, pattern, &rank) != 1 || rank < 0)
            continue;
        snprintf(name, sizeof name, pattern, rank);
        if (!strcmp(name, found->d_name) && rank > highest)
            highest = rank;
    }
    if (directory)
        closedir(directory);
    return highest;
}

/* The pattern that the folder follows and how many ranks there are. */
static int find_ranks(const char *folder, const char **pattern, int *ranks, char *error, int size)
{
    char path[PATH_MAX];
    int which = rank_path(folder, rank_patterns[0], 0, path, sizeof path) ? 0 : 1;
    *pattern = rank_patterns[which];
    for (*ranks = 0; rank_path(folder, *pattern, *ranks, path, sizeof path); ++*ranks)
        continue;
    if (*ranks == 0) {
        snprintf(error, (size_t)size, "%s: got a folder without rank_0.npy or 0.npy", folder);
        return -1;
    }
    int highest = highest_rank(folder, *pattern);
    if (highest >= *ranks) {
        snprintf(error, (size_t)size, "%s: has rank %d's file but not rank %d's", folder, highest,
            *ranks);
        return -1;
    }
    return check_ranks(folder, *ranks, error, size);
}

/* Ranks may differ in their tokens and in nothing else. */
static int compare_to_first(const struct moe_trace *trace, int rank, char *error, int size)
{
    const struct npy_array *first = &trace->file[0], *array = &trace->file[rank];
    bool same = array->dims == first->dims;
    for (int d = 0; same && d < first->dims; d++)
        same = d == first->dims - 2 || array->shape[d] == first->shape[d];
    return same ? 0
                : refuse_shape(trace->path[rank], array,
                      "that of rank 0 but for the number of tokens", error, size);
}

static int read_folder(struct moe_trace *trace, const char *folder, char *error, int size)
{
    const char *pattern;
    char path[PATH_MAX];
    trace->folder = true;
    if (find_ranks(folder, &pattern, &trace->ranks, error, size) ||
        allocate_files(trace, trace->ranks, error, size))
        return -1;
    for (int rank = 0; rank < trace->ranks; rank++)
        if (!rank_path(folder, pattern, rank, path, sizeof path) ||
            read_file(trace, rank, path, error, size) || compare_to_first(trace, rank, error, size))
            return -1;
    const struct npy_array *array = trace->file;
    int64_t topk = array->shape[array->dims - 1];
    if (find_instances(trace, array, 2, error, size) ||
        check_topk(trace->path[0], topk, error, size))
        return -1;
    trace->topk = (int)topk;
    return 0;
}

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

bool moe_trace_named(const char *text)
{
    size_t length = strlen(text);
    return !strncmp(text, COUNTS_PREFIX, strlen(COUNTS_PREFIX)) ||
           (length > 4 && !strcmp(text + length - 4, ".npy")) || is_folder(text);
}

int moe_trace_read(struct moe_trace *trace, const char *path, char *error, int size)
{
    *trace = (struct moe_trace){0};
    if (!strncmp(path, COUNTS_PREFIX, strlen(COUNTS_PREFIX)))
        return read_counts(trace, path + strlen(COUNTS_PREFIX), error, size);
    if (is_folder(path))
        return read_folder(trace, path, error, size);
    return read_indices(trace, path, error, size);
}

void moe_trace_free(struct moe_trace *trace)
{
    for (int i = 0; i < trace->files; i++) {
        if (trace->file)
            npy_free(&trace->file[i]);
        if (trace->path)
            free(trace->path[i]);
    }
    free(trace->file);
    free(trace->path);
    *trace = (struct moe_trace){0};
}

/* ---- tokens ------------------------------------------------------------------------------------
 */

int moe_trace_tokens(
    const struct moe_trace *trace, int ranks, int topk, int64_t *tokens, char *error, int size)
{
    if (!trace->same && trace->ranks != ranks) {
        snprintf(error, (size_t)size, "%s: holds %d ranks, and --ranks is %d", trace->path[0],
            trace->ranks, ranks);
        return -1;
    }
    for (int r = 0; r < ranks; r++) {
        const struct npy_array *array = &trace->file[trace->folder ? r : 0];
        tokens[r] = trace->kind == MOE_TRACE_COUNTS ? (most_routes(trace, r) + topk - 1) / topk
                                                    : array->shape[array->dims - 2];
    }
    return 0;
}

/* ---- one rank's indices at one step ------------------------------------------------------------
 */

/* A random order of a rank's tokens, so that neighbours do not share an expert. */
static int32_t *shuffled(int64_t tokens, int64_t instance, int rank)
{
    int32_t *order = malloc((size_t)tokens * sizeof *order + 1);
    uint64_t seed = seed_bits(DEAL_SEED, DEAL_STREAM, instance * MOE_RANKS_MAX + rank);
    for (int64_t i = 0; order && i < tokens; i++) {
        int64_t other = seed_index(seed, DEAL_STREAM, i, i + 1);
        order[i] = order[other];
        order[other] = (int32_t)i;
    }
    return order;
}

/* The routes by expert, one to a token in turn: round after round is a slot. */
static int deal(const struct moe_trace *trace, int64_t instance, int rank, int64_t tokens, int topk,
    int32_t *idx)
{
    int32_t *order = shuffled(tokens, instance, rank);
    int64_t dealt = 0;
    if (!order)
        return -1;
    for (int64_t i = 0; i < tokens * topk; i++)
        idx[i] = MOE_EMPTY;
    for (int64_t e = 0; e < trace->experts; e++)
        for (int64_t i = count_at(trace, instance, rank, e); i > 0; i--, dealt++)
            idx[order[dealt % tokens] * (int64_t)topk + dealt / tokens] = (int32_t)e;
    free(order);
    return 0;
}

int moe_trace_fill(const struct moe_trace *trace, int64_t instance, int rank, int64_t tokens,
    int topk, int32_t *idx)
{
    if (trace->kind == MOE_TRACE_COUNTS)
        return deal(trace, instance, rank, tokens, topk, idx);
    const struct npy_array *array = &trace->file[trace->folder ? rank : 0];
    bool by_rank = !trace->folder && !trace->same;
    int64_t block = by_rank ? instance * trace->ranks + rank : instance;
    for (int64_t i = 0; i < tokens * topk; i++)
        idx[i] = (int32_t)entry(array, block * tokens * topk + i);
    return 0;
}
