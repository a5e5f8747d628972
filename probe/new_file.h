/* A file that appears whole or not at all: written under a name beside its own, then renamed. What
 * is not a regular file (a pipe, /dev/stdout) is written directly, as nothing else is possible
 * there. */
#pragma once
#include <stdint.h>
#include <stdio.h>

struct new_file {
    FILE *stream;
    char *path;      /* where it will stand, links followed; owned */
    char *temporary; /* where it is written meanwhile, NULL when directly; owned */
    int error;       /* errno of the first write that failed, 0 = none */
};

/* Opens it for writing. 0, or -1 with errno. */
int new_file_open(struct new_file *file, const char *path);

/* Each writes, or does nothing once a write has failed: new_file_commit tells. */
void new_file_write(struct new_file *file, const void *bytes, int64_t count);
void new_file_print(struct new_file *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Closes and puts the file in its place. 0, or -1 with the errno of the first failure: then the
 * path is as it was. The struct is finished either way. */
int new_file_commit(struct new_file *file);
