/* figures - the CSV files that the plots are drawn from
 *
 * Usage: figures [OPTION]... [RECORDS]
 *
 * RECORDS is a record file, or a folder of *.jsonl. Writes to --out, each only when there is
 * something to show:
 *
 *   operators-FAMILY-KIND.csv  implementations of a family side by side; KIND measured or simulated
 *   chunks-KIND.csv            chunk count against memory and time of pipelined-llep
 *   sco-KIND.csv               pinned host memory likewise
 *   optimizer-KIND.csv         buckets and slots likewise; KIND may also be computed
 *   live_sets-FAMILY.csv       bytes by live set over time, from --traces
 *   streams-FAMILY.csv         what each stream did, from --traces
 *   history.csv                peak and throughput over commits, from --history
 *
 * plots/draw.sh draws them. Figures are in SI base units, as in the records. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "bench/harness/figures.h"
#include "bench/harness/options.h"

#define RECORD_FILES_MAX 1
/* A trend's time verdicts are not drawn as such; the default of compare. */
#define MIN_EFFECT 0.05

struct figures_options {
    const char *out, *traces, *history;
};

static const struct option figures_table[] = {
    {.name = "out",
        .kind = OPTION_TEXT,
        .at = offsetof(struct figures_options, out),
        .argument = "DIR",
        .fallback = ".",
        .help = "the folder to write to; made when it is missing"},
    {.name = "traces",
        .kind = OPTION_TEXT,
        .at = offsetof(struct figures_options, traces),
        .argument = "DIR",
        .help = "traces FAMILY.IMPL.KIND.json, such as dispatch.llep.measured.json"},
    {.name = "history",
        .kind = OPTION_TEXT,
        .at = offsetof(struct figures_options, history),
        .argument = "DIR",
        .help = "a history (archive --part history)"},
};

static const char exit_codes[] = "  0    written\n"
                                 "  2    bad option or file\n"
                                 "  3    out of memory, or a file could not be written\n";

static int fail(const char *error, int status)
{
    fprintf(stderr, "figures: %s\n", error);
    return status;
}

static int write_history(const char *history, const char *out)
{
    char error[512];
    struct trends trends;
    int status = EXIT_OK;
    if (trends_read(history, MIN_EFFECT, &trends, error, sizeof error))
        status = fail(error, EXIT_BAD_INPUT);
    else if (figures_write_history(&trends, out, error, sizeof error))
        status = fail(error, EXIT_ENVIRONMENT);
    trends_free(&trends);
    return status;
}

/* A plot shows the cases of one argument: a folder is read whole. */
static int write_records(const struct options *options, const char *out)
{
    char error[512];
    struct record_set set;
    int status = EXIT_OK;
    for (int i = 0; i < options_argument_count(options) && !status; i++) {
        if (record_set_read(options_argument(options, i), &set, error, sizeof error))
            status = fail(error, EXIT_BAD_INPUT);
        else if (figures_write_operators(&set, out, error, sizeof error) ||
                 figures_write_sweeps(&set, out, error, sizeof error))
            status = fail(error, EXIT_ENVIRONMENT);
        record_set_free(&set);
    }
    return status;
}

static int run(const void *fields, const struct options *options)
{
    const struct figures_options *given = fields;
    char error[512];
    if (mkdir(given->out, 0777) && errno != EEXIST) {
        snprintf(error, sizeof error, "%s: %s", given->out, strerror(errno));
        return fail(error, EXIT_ENVIRONMENT);
    }
    int status = write_records(options, given->out);
    if (!status && given->traces &&
        figures_write_traces(given->traces, given->out, error, sizeof error))
        status = fail(error, EXIT_BAD_INPUT);
    if (!status && given->history)
        status = write_history(given->history, given->out);
    return status;
}

int main(int argc, char **argv)
{
    struct figures_options given;
    const struct option_group group = {
        "Options", figures_table, sizeof figures_table / sizeof *figures_table, &given};
    const struct program program = {
        .name = "figures",
        .summary = "Writes the CSV files that the plots are drawn from.",
        .examples = "  figures --out run/csv --traces run/traces run/records\n",
        .exit_codes = exit_codes,
        .groups = &group,
        .group_count = 1,
        .arguments = "[RECORDS]",
        .least_arguments = 0,
        .most_arguments = RECORD_FILES_MAX,
    };
    return options_main(&program, argc, argv, run);
}
