/* Arrays from and to .npy files. The size of the file is known before anything is allocated, so a
 * header that lies about its shape is refused by arithmetic and never believed by malloc. */
#include "probe/npy.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "probe/new_file.h"
#include "probe/npy_header.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "data is read and written as it lies");

/* Reads exactly `count` bytes at `offset`. 0; -1 with errno; 1 when the file ended before. */
static int read_exactly(int descriptor, void *to, int64_t count, int64_t offset)
{
    for (int64_t done = 0; done < count;) {
        ssize_t got =
            pread(descriptor, (char *)to + done, (size_t)(count - done), (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -1 : 1;
        done += got;
    }
    return 0;
}

static const char *read_failure(int result)
{
    return result < 0 ? strerror(errno) : "the file became shorter while it was read";
}

static int read_header(const char *path, int descriptor, int64_t file_bytes, struct npy_array *out,
    int64_t *data_at, char *error, int size)
{
    int64_t count = file_bytes < NPY_HEADER_MAX_BYTES ? file_bytes : NPY_HEADER_MAX_BYTES;
    unsigned char *bytes = malloc(NPY_HEADER_MAX_BYTES);
    if (!bytes) {
        snprintf(error, (size_t)size, "%s: no memory to read its header", path);
        return -1;
    }
    char reason[400];
    int result = read_exactly(descriptor, bytes, count, 0);
    if (result)
        snprintf(error, (size_t)size, "%s: %s", path, read_failure(result));
    else if (npy_header_parse(bytes, count, file_bytes, out, data_at, reason, sizeof reason)) {
        snprintf(error, (size_t)size, "%s: %s", path, reason);
        result = -1;
    }
    free(bytes);
    return result ? -1 : 0;
}

static int read_open(const char *path, int descriptor, struct npy_array *out, char *error, int size)
{
    struct stat status;
    int64_t data_at;
    if (fstat(descriptor, &status)) {
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
        return -1;
    }
    if (!S_ISREG(status.st_mode)) {
        snprintf(error, (size_t)size, "%s: %s; allowed is a regular .npy file", path,
            S_ISDIR(status.st_mode) ? "a directory" : "a device, pipe or socket");
        return -1;
    }
    if (read_header(path, descriptor, status.st_size, out, &data_at, error, size))
        return -1;
    int64_t bytes = out->count * npy_type_bytes(out->type);
    out->data = malloc(bytes ? (size_t)bytes : 1);
    if (!out->data) {
        snprintf(error, (size_t)size, "%s: no memory for its %" PRId64 " bytes", path, bytes);
        return -1;
    }
    int result = read_exactly(descriptor, out->data, bytes, data_at);
    if (result)
        snprintf(error, (size_t)size, "%s: %s", path, read_failure(result));
    return result ? -1 : 0;
}

int npy_read(const char *path, struct npy_array *out, char *error, int size)
{
    *out = (struct npy_array){0};
    /* Without O_NONBLOCK opening a pipe would wait for its writer instead of refusing it. */
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
        return -1;
    }
    int result = read_open(path, descriptor, out, error, size);
    close(descriptor); /* opened to read: nothing can be lost by a failure here */
    if (result)
        npy_free(out);
    return result;
}

int npy_write(const char *path, enum npy_type type, int dims, const int64_t *shape,
    const void *data, char *error, int size)
{
    int64_t count, bytes;
    if (dims < 0 || dims > NPY_MAX_DIMS) {
        snprintf(error, (size_t)size, "%s: %d dimensions; allowed are 0 to %d", path, dims,
            NPY_MAX_DIMS);
        return -1;
    }
    if (npy_shape_count(type, dims, shape, &count, &bytes)) {
        char tuple[200];
        npy_shape_text(dims, shape, tuple, sizeof tuple);
        snprintf(error, (size_t)size,
            "%s: shape %s of %s; allowed are extents of 0 and more and at most 2^63 - 1 bytes",
            path, tuple, npy_type_name(type));
        return -1;
    }
    char header[NPY_HEADER_WRITTEN_BYTES];
    int header_bytes = npy_header_format(header, type, dims, shape);
    struct new_file file;
    int result = new_file_open(&file, path);
    if (!result) {
        new_file_write(&file, header, header_bytes);
        new_file_write(&file, data, bytes);
        result = new_file_commit(&file);
    }
    if (result)
        snprintf(error, (size_t)size, "%s: %s", path, strerror(errno));
    return result;
}

void npy_free(struct npy_array *array)
{
    free(array->data);
    *array = (struct npy_array){0};
}
