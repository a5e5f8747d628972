/* --load and --dump of the optimizer program. */
#include "bench/harness/adamw_files.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/harness/dump.h"

#define PATH_SIZE 4096

static int join(char path[PATH_SIZE], const char *dir, const char *name, char *error, int size)
{
    if (snprintf(path, PATH_SIZE, "%s/%s", dir, name) < PATH_SIZE)
        return 0;
    snprintf(error, (size_t)size, "%s/%s: path too long", dir, name);
    return -1;
}

/* One array of `count` values; count 0 takes what the file has. */
static int load_one(
    const char *dir, const char *name, int64_t count, struct npy_array *out, char *error, int size)
{
    char path[PATH_SIZE];
    if (join(path, dir, name, error, size) || npy_read(path, out, error, size))
        return -1;
    if (out->type != NPY_F32 || out->dims != 1) {
        snprintf(error, (size_t)size, "%s: got %s of %d dimensions, allowed float32 of one", path,
            npy_type_name(out->type), out->dims);
        return -1;
    }
    if (count && out->count != count) {
        snprintf(error, (size_t)size, "%s: got %lld values, allowed %lld as in p.npy", path,
            (long long)out->count, (long long)count);
        return -1;
    }
    return 0;
}

/* The file's array, or zeros when there is no file. */
static int load_moment(
    const char *dir, const char *name, int64_t count, struct npy_array *out, char *error, int size)
{
    char path[PATH_SIZE];
    if (join(path, dir, name, error, size))
        return -1;
    if (access(path, F_OK) == 0)
        return load_one(dir, name, count, out, error, size);
    *out = (struct npy_array){.type = NPY_F32,
        .dims = 1,
        .shape = {count},
        .count = count,
        .data = calloc((size_t)count, sizeof(float))};
    if (out->data)
        return 0;
    snprintf(error, (size_t)size, "no host memory for %lld moments", (long long)count);
    return -1;
}

int adamw_files_load(const char *dir, struct adamw_files *files, char *error, int size)
{
    *files = (struct adamw_files){0};
    int status = load_one(dir, "p.npy", 0, &files->p, error, size);
    files->params = files->p.count;
    if (status == 0 && files->params < 1) {
        snprintf(error, (size_t)size, "%s/p.npy: got no values, allowed at least 1", dir);
        status = -1;
    }
    if (status || load_one(dir, "g.npy", files->params, &files->g, error, size) ||
        load_moment(dir, "m.npy", files->params, &files->m, error, size) ||
        load_moment(dir, "v.npy", files->params, &files->v, error, size)) {
        adamw_files_free(files);
        return -1;
    }
    return 0;
}

void adamw_files_free(struct adamw_files *files)
{
    npy_free(&files->p);
    npy_free(&files->m);
    npy_free(&files->v);
    npy_free(&files->g);
}

void adamw_files_use(const struct adamw_files *files, struct adamw_inputs *inputs)
{
    inputs->p = files->p.data;
    inputs->m = files->m.data;
    inputs->v = files->v.data;
    inputs->g = files->g.data;
}

int adamw_files_dump(
    const char *dir, int64_t count, const struct adamw_outputs *outputs, char *error, int size)
{
    return dump_folder(dir, error, size) ||
                   dump_tensor(dir, "p", NPY_F32, 1, &count, outputs->p, error, size) ||
                   dump_tensor(dir, "m", NPY_F32, 1, &count, outputs->m, error, size) ||
                   dump_tensor(dir, "v", NPY_F32, 1, &count, outputs->v, error, size) ||
                   dump_tensor(dir, "w", NPY_U16, 1, &count, outputs->w, error, size)
               ? -1
               : 0;
}
