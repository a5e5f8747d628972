/* bars - the records of a GPU held against the speed that they should have
 *
 * Usage: bars [--ceilings FILE] RECORDS...
 *
 * Reads record files, or folders of *.jsonl, and prints each timed record of a GPU beside the
 * ceiling of its work, then a line for every bar of whole operators: pipelined-llep at or above
 * llep, offload-stream within 10 % of the link's floor. The bars of single kernels are gpu_bars'
 * (tests/gpu_bars.cu), which also writes the ceilings. bench/gpu_check.sh runs both. */
#include <stdio.h>
#include <string.h>
#include "bench/harness/bars.h"
#include "bench/harness/compare.h"
#include "bench/harness/options.h"

#define RECORD_FILES_MAX 64

struct bars_options {
    const char *ceilings;
};

static const struct option bars_table[] = {
    {.name = "ceilings",
        .kind = OPTION_TEXT,
        .at = offsetof(struct bars_options, ceilings),
        .argument = "FILE",
        .default_note = "none: the floor is at the pace of the records' own copies",
        .help = "rates of the GPU that gpu_bars measured"},
};

static const char exit_codes[] =
    "  0    no bar was missed; one that no record tells is said to be\n"
    "  1    a bar was missed\n"
    "  2    bad option or file\n"
    "  3    out of memory\n";

/* All records of all files in one array; NULL after a line on stderr, with the exit status. */
static json_t *read_all(const struct options *options, int *status)
{
    char error[512];
    json_t *all = json_array();
    *status = EXIT_ENVIRONMENT;
    for (int i = 0; all && i < options_argument_count(options); i++) {
        struct record_set set;
        if (record_set_read(options_argument(options, i), &set, error, sizeof error)) {
            fprintf(stderr, "bars: %s\n", error);
            *status = EXIT_BAD_INPUT;
            json_decref(all);
            all = NULL;
        } else if (json_array_extend(all, set.records)) {
            json_decref(all);
            all = NULL;
        }
        record_set_free(&set);
    }
    if (!all && *status == EXIT_ENVIRONMENT)
        fprintf(stderr, "bars: memory is short for the records\n");
    return all;
}

static int run(const void *fields, const struct options *options)
{
    const struct bars_options *given = fields;
    char error[512];
    int status;
    struct bar_ceilings ceilings = {.both_bytes_per_s = 0};
    if (given->ceilings && bars_read_ceilings(given->ceilings, &ceilings, error, sizeof error)) {
        fprintf(stderr, "bars: %s\n", error);
        return EXIT_BAD_INPUT;
    }
    json_t *records = read_all(options, &status);
    if (!records)
        return status;
    struct bar_counts counts = bars_print(records, &ceilings, stdout);
    json_decref(records);
    return counts.missed ? EXIT_FAILED_CHECK : EXIT_OK;
}

int main(int argc, char **argv)
{
    struct bars_options given;
    const struct option_group group = {
        "Options", bars_table, sizeof bars_table / sizeof *bars_table, &given};
    const struct program program = {
        .name = "bars",
        .summary = "Holds the records of a GPU against the speed that they should have.",
        .examples = "  bars --ceilings run/ceilings.json run/records\n",
        .exit_codes = exit_codes,
        .groups = &group,
        .group_count = 1,
        .arguments = "RECORDS...",
        .least_arguments = 1,
        .most_arguments = RECORD_FILES_MAX,
    };
    return options_main(&program, argc, argv, run);
}
