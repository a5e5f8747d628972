#include "bench/harness/dump.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "bench/harness/writable.h"
#include "device/launch.h"

#define PATH_SIZE 4096

int dump_folder(const char *dir, char *error, int size)
{
    if (mkdir(dir, 0777) == 0 || errno == EEXIST)
        return 0;
    snprintf(error, (size_t)size, "%s: %s", dir, strerror(errno));
    return -1;
}

static int try_folder(const char *dir, char *error, int size)
{
    bool made = mkdir(dir, 0777) == 0;
    if (!made && errno != EEXIST) {
        snprintf(error, (size_t)size, "%s: %s", dir, strerror(errno));
        return -1;
    }
    int status = writable_folder(dir, error, size);
    if (made)
        rmdir(dir);
    return status;
}

int dump_check(const struct options *options, const char *name, const char *dir)
{
    char error[PATH_SIZE + 80];
    if (!dir || !launch_is_main() || !try_folder(dir, error, sizeof error))
        return -1;
    return options_refuse(options, name, "%s", error);
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
