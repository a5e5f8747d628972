/* NumPy's .npy files (versions 1.0 to 3.0 read, 1.0 written): C order, little endian, and only the
 * types below. bfloat16 has no .npy type of its own and travels as uint16. Every refusal says the
 * file, what was found and what is allowed. */
#pragma once
#include <stdint.h>

#define NPY_MAX_DIMS 8

enum npy_type { NPY_F32, NPY_F64, NPY_U16, NPY_I32, NPY_I64, NPY_U32 };

struct npy_array {
    enum npy_type type;
    int dims;
    int64_t shape[NPY_MAX_DIMS];
    int64_t count; /* product of shape, checked against overflow */
    void *data;    /* owned; npy_free */
};

int npy_type_bytes(enum npy_type type);
const char *npy_type_name(enum npy_type type); /* "float32", ... */

/* Reads a whole file. 0, or -1 with `error` filled. */
int npy_read(const char *path, struct npy_array *out, char *error, int size);

/* Writes a file beside `path`, then renames it. 0, or -1 with `error` filled. */
int npy_write(const char *path, enum npy_type type, int dims, const int64_t *shape,
    const void *data, char *error, int size);

void npy_free(struct npy_array *array);
