/* Results as .npy files in a folder: what --dump of every family writes. */
#pragma once
#include "bench/harness/options.h"
#include "probe/npy.h"

/* Makes the folder unless it is there. 0, or -1 with `error`. */
int dump_folder(const char *dir, char *error, int size);

/* Whether an option's folder, or NULL, can be made and written, before anything runs: -1 to go on,
 * or the exit status after one line on stderr. The main process tries and leaves nothing behind. */
int dump_check(const struct options *options, const char *name, const char *dir);

/* Writes DIR/NAME.npy; nothing where data is NULL. 0, or -1 with `error`. */
int dump_tensor(const char *dir, const char *name, enum npy_type type, int dims,
    const int64_t *shape, const void *data, char *error, int size);
