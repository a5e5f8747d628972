/* report - the page of a run
 *
 * Usage: report [OPTION]... RUN
 *
 * RUN is a folder that run_all.sh wrote. Makes one HTML file of it that opens without a network:
 * claims with their verdicts and the command that gives each line again, plots, measured cases,
 * tables, environment. What the folder lacks is left out and said. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "bench/harness/options.h"
#include "bench/harness/run_page.h"

struct report_options {
    const char *out;
};

static const struct option report_table[] = {
    {.name = "out",
        .kind = OPTION_TEXT,
        .at = offsetof(struct report_options, out),
        .argument = "FILE",
        .default_note = "RUN/report.html",
        .help = "the page"},
};

static const char exit_codes[] = "  0    written\n"
                                 "  2    bad option, folder or file; no page was written\n"
                                 "  3    the page could not be written\n";

static int run(const void *fields, const struct options *options)
{
    const struct report_options *given = fields;
    const char *folder = options_argument(options, 0);
    char error[512], out[4096];
    struct stat about;
    int bad_input = 0;
    snprintf(out, sizeof out, "%s/report.html", folder);
    if (stat(folder, &about) || !S_ISDIR(about.st_mode)) {
        fprintf(stderr, "report: %s: is no folder\n", folder);
        return EXIT_BAD_INPUT;
    }
    if (!run_page_write(folder, given->out ? given->out : out, &bad_input, error, sizeof error))
        return EXIT_OK;
    fprintf(stderr, "report: %s\n", error);
    return bad_input ? EXIT_BAD_INPUT : EXIT_ENVIRONMENT;
}

int main(int argc, char **argv)
{
    struct report_options given;
    const struct option_group group = {
        "Options", report_table, sizeof report_table / sizeof *report_table, &given};
    const struct program program = {
        .name = "report",
        .summary = "Makes one HTML page of a run.",
        .examples = "  report results/runs/20260101T000000Z-1\n",
        .exit_codes = exit_codes,
        .groups = &group,
        .group_count = 1,
        .arguments = "RUN",
        .least_arguments = 1,
        .most_arguments = 1,
    };
    return options_main(&program, argc, argv, run);
}
