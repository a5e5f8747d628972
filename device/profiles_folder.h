/* Where the suite's own descriptions lie (profiles/): as FLATPEAK_PROFILES says, in the tree that
 * the program runs in, in the tree that it was built in, where it was installed. */
#pragma once
#include <stdio.h>

/* Opens FOLDER/file ("models/gpt-oss-20b.txt") of the first place that has it for reading and
 * leaves its path. NULL when none has. */
FILE *profiles_open(const char *file, char *path, int size);

/* "h100-64gb-4, h200-8": what precedes `ending` in the names of the files of FOLDER/part (part may
 * be ""), in alphabetical order, of the first place that has such files; "none" where none has. */
void profiles_names(const char *part, const char *ending, char *text, int size);
