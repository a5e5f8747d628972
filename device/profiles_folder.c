/* Finding the folder profiles/. A program finds it from wherever it is started: beside its own
 * file, not beside the caller's. */
#include "device/profiles_folder.h"
#include <dirent.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define PLACES 4

/* The folder of that place; false when there is no such place. */
static bool folder(int place, char *path, size_t size)
{
    char program[PATH_BYTES];
    const char *named = getenv("FLATPEAK_PROFILES");
    if (place == 0 && !named)
        return false;
    if (place < 2) {
        snprintf(path, size, "%s", place == 0 ? named : "profiles");
        return true;
    }
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return false;
    program[length] = 0;
    return snprintf(path, size, "%s/%s", dirname(program),
               place == 2 ? "../../profiles" : "../share/flatpeak/profiles") < (int)size;
}

FILE *profiles_open(const char *file, char *path, int size)
{
    FILE *found = NULL;
    char at[PATH_BYTES];
    for (int place = 0; !found && place < PLACES; place++)
        if (folder(place, at, sizeof at) && snprintf(path, (size_t)size, "%s/%s", at, file) < size)
            found = fopen(path, "r");
    return found;
}

/* Adds the names in that folder; how many. */
static int list(const char *path, const char *ending, char *text, int size)
{
    struct dirent **entry;
    int names = 0, entries = scandir(path, &entry, NULL, alphasort);
    for (int i = 0; i < entries; i++) {
        int written = (int)strlen(text);
        size_t length = strlen(entry[i]->d_name), tail = strlen(ending);
        if (length > tail && !strcmp(entry[i]->d_name + length - tail, ending))
            snprintf(text + written, (size_t)(size - written), "%s%.*s", names++ ? ", " : "",
                (int)(length - tail), entry[i]->d_name);
        free(entry[i]);
    }
    if (entries >= 0)
        free(entry);
    return names;
}

void profiles_names(const char *part, const char *ending, char *text, int size)
{
    char at[PATH_BYTES], path[PATH_BYTES + 64];
    int names = 0;
    text[0] = 0;
    for (int place = 0; names == 0 && place < PLACES; place++)
        if (folder(place, at, sizeof at) &&
            snprintf(path, sizeof path, "%s/%s", at, part) < (int)sizeof path)
            names = list(path, ending, text, size);
    if (names == 0)
        snprintf(text, (size_t)size, "none");
}
