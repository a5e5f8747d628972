/* Whether what a program is asked to write can be written, before it works for it. */
#pragma once
#include "bench/harness/options.h"

/* Makes a file in the folder and removes it. 0, or -1 with `error`. */
int writable_folder(const char *dir, char *error, int size);

/* Whether an option's file, or NULL, can be appended to or made: -1 to go on, or the exit status
 * after one line on stderr. The main process looks, and leaves nothing behind. */
int writable_check(const struct options *options, const char *name, const char *path);
