/* compare - the times and the memory of two record files
 *
 * Usage: compare [OPTION]... OLD NEW
 *        compare [OPTION]... --accepted DIR NEW
 *        compare [OPTION]... --trend DIR
 *
 * OLD and NEW are record files (what --json of a benchmark program appends to) or folders of
 * *.jsonl. Cases are paired by operation, implementation, device and configuration.
 *
 * - status, check: a case that vanished, that went from ok to something worse, or that is checked
 *   more weakly than before is a regression;
 * - memory, traffic, counts, digests: tracked bytes, counts and digests are the same on every
 * machine and in every run: one byte or bit of difference is told, with the live set or tensor;
 * - driver and resident bytes may grow by --tolerance;
 * - time: SAME, FASTER, SLOWER or UNSURE, from the medians over launches.
 *
 * A launch is one process. A file may hold several launches of each case. Launch the two in turn,
 * so that both meet the same moments of the machine:
 *
 *     for i in 1 2 3 4 5; do
 *         old/bin/vocab --ranks 2 --json old.jsonl; build/bin/vocab --ranks 2 --json new.jsonl
 *     done
 *
 * With 4 launches and more on each side the ratio of times has a 95 % interval; with fewer the
 * verdict falls back on the quartiles of the samples, asks for five times the smallest effect, and
 * says so.
 *
 * --trend shows a history instead: every case over the commits that measured it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/compare.h"
#include "bench/harness/options.h"
#include "bench/harness/trend.h"
#include "bench/harness/units.h"
#include "probe/record.h"

struct compare_options {
    int fail_on;
    double min_effect, tolerance;
    const char *accepted, *trend;
    bool changed, json;
};

enum { FAIL_ON_REGRESSION, FAIL_ON_DIFFERENCE };

static const char *const fail_on_names[] = {"regression", "difference", NULL};

static const struct option compare_table[] = {
    {.name = "fail-on",
        .kind = OPTION_NAME,
        .at = offsetof(struct compare_options, fail_on),
        .argument = "LEVEL",
        .fallback = "regression",
        .names = fail_on_names,
        .help = "what makes the exit status 1; difference includes regressions"},
    {.name = "min-effect",
        .kind = OPTION_REAL,
        .at = offsetof(struct compare_options, min_effect),
        .argument = "PCT",
        .fallback = "5",
        .unit = "%",
        .real_low = 0.01,
        .real_high = 100,
        .help = "the smallest difference in time that counts"},
    {.name = "tolerance",
        .kind = OPTION_REAL,
        .at = offsetof(struct compare_options, tolerance),
        .argument = "PCT",
        .fallback = "25",
        .unit = "%",
        .real_high = 1000,
        .help = "growth of driver and resident bytes that is tolerated"},
    {.name = "accepted",
        .kind = OPTION_TEXT,
        .at = offsetof(struct compare_options, accepted),
        .argument = "DIR",
        .help = "the old records are all *.jsonl of this folder; then only NEW is given"},
    {.name = "trend",
        .kind = OPTION_TEXT,
        .at = offsetof(struct compare_options, trend),
        .argument = "DIR",
        .help = "show how each case of this history (archive --part history) moved over commits"},
    {.name = "changed",
        .kind = OPTION_FLAG,
        .at = offsetof(struct compare_options, changed),
        .help = "print only the cases in which something was found"},
    {.name = "json",
        .kind = OPTION_FLAG,
        .at = offsetof(struct compare_options, json),
        .help = "print one JSON object in place of the table"},
};

static const char exit_codes[] = "  0    nothing at the --fail-on level was found\n"
                                 "  1    something was\n"
                                 "  2    bad option or file\n"
                                 "  3    out of memory, or the output could not be written\n";

static const char examples[] =
    "  compare old.jsonl new.jsonl\n"
    "  compare --fail-on difference --accepted results/accepted new.jsonl\n"
    "  compare --trend results/history\n";

/* ---- text ----------------------------------------------------------------------------------- */

static const json_t *any_record(const struct case_comparison *at)
{
    return at->old ? at->old->records[0] : at->new->records[0];
}

static void print_time(const struct time_comparison *time)
{
    static const char *const basis[] = {
        "", ", by quartiles: too few launches for more", ", simulated"};
    char old[32], new[32];
    units_seconds(time->old_s, old, sizeof old);
    units_seconds(time->new_s, new, sizeof new);
    printf("    %s -> %s, %+.1f %%", old, new, 100 * (time->ratio - 1));
    if (!isnan(time->ratio_low))
        printf(
            " (95 %%: %+.1f..%+.1f %%)", 100 * (time->ratio_low - 1), 100 * (time->ratio_high - 1));
    printf(", %d and %d launches%s\n", time->old_launches, time->new_launches, basis[time->basis]);
}

static void print_findings(const struct findings *findings)
{
    for (int level = FINDING_REGRESSION; level <= FINDING_DIFFERENCE; level++) {
        for (int i = 0; i < findings->count; i++) {
            if ((int)findings->list[i].level == level)
                printf("    %s %s\n", level == FINDING_REGRESSION ? "REGRESSION" : "difference",
                    findings->list[i].text);
        }
    }
}

static void print_text(const struct comparison *comparison, bool changed_only)
{
    const struct record_set *const sets[] = {&comparison->old, &comparison->new};
    for (int i = 0; i < 2; i++)
        printf("%s %s: %d cases, %d launches\n", i ? "new" : "old", sets[i]->label, sets[i]->count,
            record_set_launches(sets[i]));
    for (int i = 0; i < comparison->count; i++) {
        const struct case_comparison *at = &comparison->cases[i];
        if (changed_only && !at->findings.count)
            continue;
        printf("%-6s  ", time_verdict_name(at->time.verdict));
        record_set_print_case(stdout, any_record(at), sets, 2);
        putchar('\n');
        if (at->time.verdict != TIME_ABSENT)
            print_time(&at->time);
        print_findings(&at->findings);
    }
    printf("%d cases paired, %d vanished, %d new; times: %d same, %d faster, %d slower, %d unsure; "
           "%d regressions, %d differences\n",
        comparison->paired, comparison->vanished, comparison->added, comparison->times[TIME_SAME],
        comparison->times[TIME_FASTER], comparison->times[TIME_SLOWER],
        comparison->times[TIME_UNSURE], comparison->regressions, comparison->differences);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void record_time(json_t *object, const struct time_comparison *time)
{
    static const char *const basis[] = {"launches", "quartiles", "model"};
    rec_str(object, "time.verdict", time_verdict_name(time->verdict));
    rec_str(object, "time.basis", basis[time->basis]);
    rec_int(object, "time.old_launches", time->old_launches);
    rec_int(object, "time.new_launches", time->new_launches);
    rec_real(object, "time.old_median_s", time->old_s);
    rec_real(object, "time.new_median_s", time->new_s);
    rec_real(object, "time.ratio", time->ratio);
    rec_real(object, "time.ratio_low", time->ratio_low);
    rec_real(object, "time.ratio_high", time->ratio_high);
}

static json_t *case_json(const struct case_comparison *at)
{
    static const char *const keys[] = {"op", "impl", "device", "config"};
    json_t *object = json_object(), *findings = json_array();
    const json_t *record = any_record(at);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set(object, keys[i], json_object_get(record, keys[i]));
    json_object_set_new(object, "paired", json_boolean(at->old && at->new));
    if (at->time.verdict != TIME_ABSENT)
        record_time(object, &at->time);
    for (int i = 0; i < at->findings.count; i++) {
        const struct finding *finding = &at->findings.list[i];
        json_array_append_new(findings,
            json_pack("{s:s, s:s}", "level", fail_on_names[finding->level], "text", finding->text));
    }
    json_object_set_new(object, "findings", findings);
    return object;
}

static int print_json(const struct comparison *comparison)
{
    json_t *object = json_object(), *cases = json_array();
    for (int i = 0; i < comparison->count; i++)
        json_array_append_new(cases, case_json(&comparison->cases[i]));
    rec_str(object, "old", comparison->old.label);
    rec_str(object, "new", comparison->new.label);
    rec_json(object, "cases", cases);
    rec_int(object, "paired", comparison->paired);
    rec_int(object, "vanished", comparison->vanished);
    rec_int(object, "added", comparison->added);
    rec_int(object, "regressions", comparison->regressions);
    rec_int(object, "differences", comparison->differences);
    int status = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(object);
    return status;
}

/* ---- main ----------------------------------------------------------------------------------- */

static int run(const struct compare_options *given, const char *old, const char *new)
{
    char error[512];
    struct comparison comparison;
    struct compare_settings settings = {given->min_effect / 100, given->tolerance / 100};
    int status = EXIT_OK;
    if (comparison_make(old, new, &settings, &comparison, error, sizeof error)) {
        fprintf(stderr, "compare: %s\n", error);
        status = EXIT_BAD_INPUT;
    } else {
        int written = 0;
        if (given->json)
            written = print_json(&comparison);
        else
            print_text(&comparison, given->changed);
        if (comparison.regressions ||
            (given->fail_on == FAIL_ON_DIFFERENCE && comparison.differences))
            status = EXIT_FAILED_CHECK;
        if (written || fflush(stdout) || ferror(stdout)) {
            fprintf(stderr, "compare: the output could not be written\n");
            status = EXIT_ENVIRONMENT;
        }
    }
    comparison_free(&comparison);
    return status;
}

static int show_trend(const struct compare_options *given)
{
    char error[512];
    struct trends trends;
    int status = EXIT_OK;
    if (trends_read(given->trend, given->min_effect / 100, &trends, error, sizeof error)) {
        fprintf(stderr, "compare: %s\n", error);
        status = EXIT_BAD_INPUT;
    } else {
        int written = given->json ? trends_print_json(&trends, stdout)
                                  : trends_print(&trends, given->changed, stdout);
        if (written || fflush(stdout) || ferror(stdout)) {
            fprintf(stderr, "compare: the output could not be written\n");
            status = EXIT_ENVIRONMENT;
        }
    }
    trends_free(&trends);
    return status;
}

int main(int argc, char **argv)
{
    struct compare_options given;
    struct options *options;
    const struct option_group group = {
        "Options", compare_table, sizeof compare_table / sizeof *compare_table, &given};
    const struct program program = {
        .name = "compare",
        .summary = "Compares the times and the memory of two record files.",
        .examples = examples,
        .exit_codes = exit_codes,
        .groups = &group,
        .group_count = 1,
        .arguments = "[[OLD] NEW]",
        .least_arguments = 0,
        .most_arguments = 2,
    };
    int status = options_parse(&options, &program, argc, argv);
    if (status >= 0)
        return status;
    options_next(options);
    int count = options_argument_count(options);
    int wanted = given.trend ? 0 : given.accepted ? 1 : 2;
    if (given.trend && given.accepted) {
        status = options_refuse(options, "trend", "cannot be given with --accepted");
    } else if (count != wanted) {
        static const char *const allowed[] = {
            "none with --trend", "one (NEW) with --accepted", "two (OLD NEW)"};
        fprintf(stderr, "compare: got %d files, allowed %s\n", count, allowed[wanted]);
        status = EXIT_BAD_INPUT;
    } else if (given.trend) {
        status = show_trend(&given);
    } else if (given.accepted) {
        status = run(&given, given.accepted, options_argument(options, 0));
    } else {
        status = run(&given, options_argument(options, 0), options_argument(options, 1));
    }
    options_free(options);
    return status;
}
