/* What the files of the run's page share. */
#pragma once
#include <stdbool.h>
#include "probe/new_file.h"

struct run_page {
    struct new_file file;
    const char *folder;
    bool bad_input;
    char *error;
    int error_size;
};

/* Each writes a section; 0, or -1 with the page's error filled. */
int page_summary(struct run_page *page);
int page_claims(struct run_page *page);
int page_cases(struct run_page *page);
int page_plots(struct run_page *page);
int page_tables(struct run_page *page);
int page_environment(struct run_page *page);

/* Fills the page's error; returns -1. */
int page_fail(struct run_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- lines of tab-separated files (run_page_lines.c) ----------------------------------------- */

struct tsv {
    char **lines; /* owned, cut at tabs */
    int count;    /* the heading not counted */
    int columns;
    bool present;
};

/* Reads FOLDER/NAME, whose lines must have as many fields as its heading. A file that is not there
 * is not present. 0, or -1 with the page's error filled. */
int tsv_read(struct run_page *page, const char *name, struct tsv *out);
void tsv_free(struct tsv *tsv);
const char *tsv_at(const struct tsv *tsv, int line, int column);

/* Names of FOLDER/SUB that end so, in order; a folder that is not there has none. Returns how many,
 * or -1 with the page's error filled. */
int page_list(struct run_page *page, const char *sub, const char *ending, char ***names);
void page_list_free(char **names, int count);
