/* A folder of its own for a test's files, and small files in it. */
#pragma once
#include <dirent.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct scratch {
    char folder[200];
};
struct scratch_path {
    char text[400];
};

/* True when the folder was made, under TMPDIR or /tmp. */
static inline bool scratch_create(struct scratch *s)
{
    const char *parent = getenv("TMPDIR");
    snprintf(s->folder, sizeof s->folder, "%s/flatpeak-test-XXXXXX", parent ? parent : "/tmp");
    return mkdtemp(s->folder) != NULL;
}

static inline int scratch_remove_entry(
    const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static inline void scratch_remove(struct scratch *s)
{
    nftw(s->folder, scratch_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static inline struct scratch_path scratch_path(const struct scratch *s, const char *name)
{
    struct scratch_path path;
    snprintf(path.text, sizeof path.text, "%s/%s", s->folder, name);
    return path;
}

/* Writes a file of exactly these bytes, making the folders on the way. */
static inline bool scratch_write(const char *path, const void *bytes, size_t count)
{
    char folder[1000];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(folder, 0777);
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool written = fwrite(bytes, 1, count, file) == count;
    return fclose(file) == 0 && written;
}

static inline bool scratch_text(const char *path, const char *text)
{
    return scratch_write(path, text, strlen(text));
}

/* The bytes of a file and a terminator after them, to be freed; NULL when it cannot be read. */
static inline char *scratch_read(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    char *bytes = NULL;
    *count = 0;
    if (!file)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) >= 0) {
        *count = (size_t)ftell(file);
        bytes = malloc(*count + 1);
        rewind(file);
        if (bytes && fread(bytes, 1, *count, file) != *count) {
            free(bytes);
            bytes = NULL;
        }
        if (bytes)
            bytes[*count] = 0;
    }
    fclose(file);
    return bytes;
}

/* How many entries the folder holds. */
static inline int scratch_entries(const struct scratch *s)
{
    DIR *folder = opendir(s->folder);
    int count = -2; /* . and .. */
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}
