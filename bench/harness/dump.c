#include "bench/harness/dump.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_SIZE 4096

int dump_folder(const char *dir, char *error, int size)
{
    if (mkdir(dir, 0777) == 0 || errno == EEXIST)
        return 0;
    snprintf(error, (size_t)size, "%s: %s", dir, strerror(errno));
    return -1;
}

int dump_tensor(const char *dir, const char *name, enum npy_type type, int dims,
    const int64_t *shape, const void *data, char *error, int size)
{
    char path[PATH_SIZE];
    if (!data)
        return 0;
    if (snprintf(path, sizeof path, "%s/%s.npy", dir, name) >= PATH_SIZE) {
        snprintf(error, (size_t)size, "%s/%s.npy: path too long", dir, name);
        return -1;
    }
    return npy_write(path, type, dims, shape, data, error, size);
}
