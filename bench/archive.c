/* archive - the part of records that is kept
 *
 * Usage: archive [OPTION]... RECORDS...
 *
 * Reads record files, or folders of *.jsonl, and writes one record per case to a new file:
 *
 *   --part exact     what is the same on every machine: status, check, tracked memory, traffic,
 *                    counts, plan, simulated times. results/accepted holds such files; one case
 *                    once, keys sorted, so that two of them can be read with diff.
 *   --part history   what a trend shows: commit, machine, median time, throughput, peak. Every
 *                    launch of every case. results/history holds such files, one a run.
 *
 * The file appears whole or not at all. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/compare.h"
#include "bench/harness/options.h"
#include "bench/harness/record_part.h"
#include "probe/new_file.h"

#define RECORD_FILES_MAX 64

enum part { PART_EXACT, PART_HISTORY };

struct archive_options {
    int part;
    const char *out;
};

static const char *const part_names[] = {"exact", "history", NULL};

static const struct option archive_table[] = {
    {.name = "part",
        .kind = OPTION_NAME,
        .at = offsetof(struct archive_options, part),
        .argument = "PART",
        .fallback = "exact",
        .names = part_names,
        .help = "what is kept"},
    {.name = "out",
        .kind = OPTION_TEXT,
        .at = offsetof(struct archive_options, out),
        .argument = "FILE",
        .default_note = "stdout",
        .help = "the file to write"},
};

static const char exit_codes[] = "  0    written\n"
                                 "  2    bad option or file; nothing was written\n"
                                 "  3    out of memory, or the file could not be written\n";

/* 0, or -1 when memory is short. */
static int write_part(struct new_file *file, const json_t *record, enum part kind)
{
    json_t *part = kind == PART_EXACT ? record_exact_part(record) : record_history_part(record);
    char *line = part ? json_dumps(part, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    if (line)
        new_file_print(file, "%s\n", line);
    free(line);
    json_decref(part);
    return line ? 0 : -1;
}

/* History: every record of every case. Exact: the first of each, as the others must equal it. */
static int write_set(struct new_file *file, const struct record_set *set, enum part kind)
{
    int status = 0;
    for (int i = 0; i < set->count && !status; i++) {
        const struct record_group *group = &set->cases[i];
        int count = kind == PART_EXACT ? 1 : group->count;
        for (int j = 0; j < count && !status; j++)
            status = write_part(file, group->records[j], kind);
    }
    return status;
}

static int run(const void *fields, const struct options *options)
{
    const struct archive_options *given = fields;
    const char *out = given->out ? given->out : "/dev/stdout";
    char error[512];
    struct new_file file;
    struct record_set sets[RECORD_FILES_MAX];
    int count = options_argument_count(options), read = 0, status = EXIT_OK;
    for (; read < count && !status; read++) {
        if (record_set_read(options_argument(options, read), &sets[read], error, sizeof error)) {
            fprintf(stderr, "archive: %s\n", error);
            status = EXIT_BAD_INPUT;
        }
    }
    if (!status && new_file_open(&file, out)) {
        fprintf(stderr, "archive: %s: %s\n", out, strerror(errno));
        status = EXIT_ENVIRONMENT;
    } else if (!status) {
        int short_of_memory = 0;
        for (int i = 0; i < read && !short_of_memory; i++)
            short_of_memory = write_set(&file, &sets[i], given->part);
        if (short_of_memory && !file.error)
            file.error = ENOMEM;
        if (new_file_commit(&file)) {
            fprintf(stderr, "archive: %s: %s\n", out, strerror(errno));
            status = EXIT_ENVIRONMENT;
        }
    }
    for (int i = 0; i < read; i++)
        record_set_free(&sets[i]);
    return status;
}

int main(int argc, char **argv)
{
    struct archive_options given;
    const struct option_group group = {
        "Options", archive_table, sizeof archive_table / sizeof *archive_table, &given};
    const struct program program = {
        .name = "archive",
        .summary = "Writes the part of records that a gate or a history keeps.",
        .examples = "  archive --out results/accepted/cpu.jsonl run/records\n"
                    "  archive --part history --out results/history/today.jsonl run/records\n",
        .exit_codes = exit_codes,
        .groups = &group,
        .group_count = 1,
        .arguments = "RECORDS...",
        .least_arguments = 1,
        .most_arguments = RECORD_FILES_MAX,
    };
    return options_main(&program, argc, argv, run);
}
