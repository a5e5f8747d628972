/* tabulate - a printed table of a paper beside our figures of it
 *
 * Usage: tabulate [OPTION]... DESCRIPTION [RECORDS]...
 *
 * DESCRIPTION says which printed figures there are and which figure of which record stands against
 * each; bench/tables/ has one for every table, and bench/harness/table.h tells the language.
 * RECORDS are record files, or folders of *.jsonl. Nothing is measured or modelled here: a row says
 *
 *   reproduced             the printed figure by its own kind of evidence
 *   better                 fewer bytes than printed, of the same live sets
 *   model agrees, differs  a simulated time, or a relation of simulated times
 *   holds on this machine  a relation, measured
 *   fitted                 the printed figure set the profile
 *   differs: WHY           it does not
 *   inconsistent in the paper
 *   not run: needs WHAT    nothing can be said without it */
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/compare.h"
#include "bench/harness/options.h"
#include "bench/harness/table.h"

#define RECORD_FILES_MAX 64

struct tabulate_options {
    bool csv;
};

static const struct option tabulate_table[] = {
    {.name = "csv",
        .kind = OPTION_FLAG,
        .at = offsetof(struct tabulate_options, csv),
        .help = "print CSV on stdout in place of the aligned table"},
};

static const char exit_codes[] =
    "  0    the table is printed, and what must equal the printed digits does\n"
    "  1    a figure that shapes alone decide differs\n"
    "  2    bad option, description or record\n"
    "  3    the output could not be written\n";

static int read_records(const struct options *options, json_t *records, char *error, int size)
{
    for (int i = 1; i < options_argument_count(options); i++) {
        struct record_set set;
        int status = record_set_read(options_argument(options, i), &set, error, size);
        if (!status)
            json_array_extend(records, set.records);
        record_set_free(&set);
        if (status)
            return -1;
    }
    return 0;
}

static int run(const void *fields, const struct options *options)
{
    const struct tabulate_options *given = fields;
    char error[512];
    struct table table;
    int failed = 0, status = EXIT_OK;
    const char *path = options_argument(options, 0);
    json_t *records = json_array();
    if (table_read(&table, path, error, sizeof error) ||
        read_records(options, records, error, sizeof error) ||
        table_print(&table, records, given->csv, &failed, error, sizeof error)) {
        fprintf(stderr, "tabulate: %s\n", error);
        status = EXIT_BAD_INPUT;
    } else if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "tabulate: the output could not be written\n");
        status = EXIT_ENVIRONMENT;
    } else if (failed) {
        fprintf(stderr, "tabulate: %s: %d figures are not the printed ones\n", table.title, failed);
        status = EXIT_FAILED_CHECK;
    }
    json_decref(records);
    table_free(&table);
    return status;
}

int main(int argc, char **argv)
{
    struct tabulate_options given;
    const struct option_group group = {
        "Options", tabulate_table, sizeof tabulate_table / sizeof *tabulate_table, &given};
    const struct program program = {
        .name = "tabulate",
        .summary = "Puts a printed table of a paper beside our figures of it.",
        .examples = "  tabulate --csv table_06.txt records.jsonl\n",
        .exit_codes = exit_codes,
        .groups = &group,
        .group_count = 1,
        .arguments = "DESCRIPTION [RECORDS]...",
        .least_arguments = 1,
        .most_arguments = RECORD_FILES_MAX,
    };
    return options_main(&program, argc, argv, run);
}
