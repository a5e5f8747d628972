/* Only a file that is made tells of folders that take none, whoever asks; the one that is asked for
 * is not touched, since another program may be appending to it. */
#include "bench/harness/writable.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "device/launch.h"

#define PATH_SIZE 4096

int writable_folder(const char *dir, char *error, int size)
{
    char path[PATH_SIZE];
    int file = -1;
    if (snprintf(path, sizeof path, "%s/trial-XXXXXX", dir) < PATH_SIZE)
        file = mkstemp(path);
    else
        errno = ENAMETOOLONG;
    if (file < 0) {
        snprintf(error, (size_t)size, "%s: no file can be written there: %s", dir, strerror(errno));
        return -1;
    }
    close(file);
    unlink(path);
    return 0;
}

/* A file that is not there yet. */
static int try_new(const char *path, char *error, int size)
{
    char folder[PATH_SIZE];
    struct stat status;
    const char *slash = strrchr(path, '/');
    int length = slash > path ? (int)(slash - path) : 1;
    snprintf(folder, sizeof folder, "%.*s", length, slash ? path : ".");
    if (slash && !slash[1])
        errno = EISDIR;
    else if (stat(folder, &status) == 0)
        return writable_folder(folder, error, size);
    snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
    return -1;
}

static int try_file(const char *path, char *error, int size)
{
    struct stat status;
    if (stat(path, &status)) {
        if (errno == ENOENT)
            return try_new(path, error, size);
    } else if (S_ISDIR(status.st_mode)) {
        errno = EISDIR;
    } else if (access(path, W_OK) == 0) {
        return 0;
    }
    snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
    return -1;
}

int writable_check(const struct options *options, const char *name, const char *path)
{
    char error[PATH_SIZE + 80];
    if (!path || !launch_is_main() || !try_file(path, error, sizeof error))
        return -1;
    return options_refuse(options, name, "%s", error);
}
