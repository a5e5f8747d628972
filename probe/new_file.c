/* Writing beside and renaming: a reader, a full disk or a kill in the middle never sees half a
 * file. The temporary name carries the process id and a number, and is created exclusively. */
#include "probe/new_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_ATTEMPTS = 100, SUFFIX_BYTES = 48 };

/* Creates "PATH.PID-N.part". The descriptor, or -1 with errno. */
static int create_beside(struct new_file *file)
{
    size_t size = strlen(file->path) + SUFFIX_BYTES;
    file->temporary = malloc(size);
    if (!file->temporary)
        return -1;
    int descriptor = -1;
    for (int attempt = 0; attempt < NAME_ATTEMPTS && descriptor < 0; attempt++) {
        snprintf(file->temporary, size, "%s.%ld-%d.part", file->path, (long)getpid(), attempt);
        descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor < 0 && errno != EEXIST)
            break;
    }
    return descriptor;
}

static void release(struct new_file *file)
{
    free(file->path);
    free(file->temporary);
    *file = (struct new_file){0};
}

int new_file_open(struct new_file *file, const char *path)
{
    struct stat existing;
    bool exists = stat(path, &existing) == 0;
    *file = (struct new_file){0};
    /* A link must go on pointing to the file, so it is the link's target that is replaced. A pipe
     * behind /proc/self/fd has no path but the link's. */
    if (exists)
        file->path = realpath(path, NULL);
    if (!file->path)
        file->path = strdup(path);
    if (!file->path)
        return -1;
    bool direct = exists && !S_ISREG(existing.st_mode);
    int descriptor = direct ? open(file->path, O_WRONLY | O_CLOEXEC) : create_beside(file);
    if (descriptor >= 0)
        file->stream = fdopen(descriptor, "w");
    if (file->stream)
        return 0;

    int reason = errno;
    if (descriptor >= 0) {
        close(descriptor);
        if (file->temporary)
            unlink(file->temporary);
    }
    release(file);
    errno = reason;
    return -1;
}

void new_file_write(struct new_file *file, const void *bytes, int64_t count)
{
    if (!file->error && count > 0 && fwrite(bytes, 1, (size_t)count, file->stream) != (size_t)count)
        file->error = errno;
}

void new_file_print(struct new_file *file, const char *format, ...)
{
    if (file->error)
        return;
    va_list args;
    va_start(args, format);
    if (vfprintf(file->stream, format, args) < 0)
        file->error = errno;
    va_end(args);
}

int new_file_commit(struct new_file *file)
{
    if (fflush(file->stream) && !file->error)
        file->error = errno;
    if (fclose(file->stream) && !file->error)
        file->error = errno;
    if (file->temporary && !file->error && rename(file->temporary, file->path))
        file->error = errno;
    int reason = file->error;
    if (reason && file->temporary)
        unlink(file->temporary);
    release(file);
    if (!reason)
        return 0;
    errno = reason;
    return -1;
}
