/* The header of a .npy file, apart from the file: parsed from bytes in memory, so that hostile
 * bytes can be tried by the thousand. Private to probe/npy*.c and its test. */
#pragma once
#include <stdint.h>
#include "probe/npy.h"

/* The first bytes of a file that hold any header we accept. */
#define NPY_HEADER_MAX_BYTES 65536

/* Parses the header in the first `count` bytes of a file of `file_bytes` bytes; count is the lesser
 * of file_bytes and NPY_HEADER_MAX_BYTES. Fills out->type, dims, shape and count, and *data_at, the
 * offset of the data, and makes sure that exactly the data follows. 0, or -1 with `error` saying
 * what was found and what is allowed. */
int npy_header_parse(const unsigned char *bytes, int64_t count, int64_t file_bytes,
    struct npy_array *out, int64_t *data_at, char *error, int size);

/* The product of the extents as elements and as bytes. 0, or -1 when an extent is negative or the
 * bytes pass 63 bits. A zero among the extents makes both 0 but excuses no overflow of the others.
 */
int npy_shape_count(
    enum npy_type type, int dims, const int64_t *shape, int64_t *count, int64_t *bytes);

/* Writes the header (version 1.0, padded to 64 bytes) and returns its length, at most
 * NPY_HEADER_WRITTEN_BYTES. */
#define NPY_HEADER_WRITTEN_BYTES 320
int npy_header_format(
    char text[NPY_HEADER_WRITTEN_BYTES], enum npy_type type, int dims, const int64_t *shape);

/* "(3, 4)", "(3,)", "()" as Python prints it, cut to `size`. */
void npy_shape_text(int dims, const int64_t *shape, char *text, int size);
