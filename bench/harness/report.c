/* The table that a person reads while the cases run, and the bookkeeping around it.
 *
 * All values of all options are known before the first case runs, so the width of every column is
 * known too: a line can be printed, aligned, the moment its case ends. Options that no list varies
 * and that are not part of a shape stand once, above the table. */
#include "bench/harness/report.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/harness/gpu.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/job.h"
#include "bench/harness/search.h"
#include "bench/harness/simulate.h"
#include "bench/harness/twins.h"
#include "bench/harness/units.h"
#include "device/launch.h"
#include "kernels/isa.h"
#include "probe/host.h"
#include "probe/record.h"

/* A list of one count per rank is cut at this width in the table (the record has all of it). */
#define CELL_MAX 24
#define TEXT_MAX 64
/* No order statistics of fewer samples enclose the median in 95 % of all cases. */
#define SAMPLES_FOR_INTERVAL 6

/* Where the baseline ran, and what it needed. */
struct baseline {
    int *position; /* options_position */
    int64_t peak_bytes;
};

struct report {
    const struct case_options *common;
    struct options *options;
    const struct program *program;
    FILE *out, *err;
    FILE *nowhere; /* owned */
    json_t *run, *env;

    int *widths; /* of each option's column; 0 = no column */
    int impl_width;
    bool oversubscribed; /* some case is */
    bool shared;         /* some case's ranks share a GPU */

    struct baseline *baselines;
    int baseline_count, baseline_capacity;
    struct twins twins;

    int64_t cases, started, failed_checks, failed_runs;
    bool failed_check, failed_environment, progress, progress_shown;
};

/* ---- header --------------------------------------------------------------------------------- */

static void cell_text(const struct options *options, int index, char text[TEXT_MAX])
{
    options_text(options, index, text, TEXT_MAX);
    if (strlen(text) > CELL_MAX)
        strcpy(text + CELL_MAX - 3, "...");
}

static const char *heading(const struct option *option)
{
    return option->column ? option->column : option->name;
}

static bool is_column(const struct options *options, int index)
{
    const struct option *option = options_at(options, index);
    return strcmp(option->name, "impl") && (option->column || options_varies(options, index));
}

static void measure_columns(struct report *report)
{
    char text[TEXT_MAX];
    struct options *options = report->options;
    report->impl_width = (int)strlen("implementation");
    for (options_rewind(options); options_next(options);) {
        gpu_case(report->common, options);
        const char *impl = report->program->impl_names[report->common->impl];
        report->oversubscribed |= case_oversubscribed(report->common);
        report->shared |= case_shares_gpu(report->common);
        if ((int)strlen(impl) > report->impl_width)
            report->impl_width = (int)strlen(impl);
        for (int i = 0; i < options_count(options); i++) {
            if (!is_column(options, i))
                continue;
            cell_text(options, i, text);
            int width = (int)strlen(text);
            /* A column that is empty in every case is left out. */
            if (options_present(options, i) && !report->widths[i])
                report->widths[i] = (int)strlen(heading(options_at(options, i)));
            if (options_present(options, i) && width > report->widths[i])
                report->widths[i] = width;
        }
    }
    options_rewind(options);
}

/* "seed 1, threads 2": what holds in every case that takes it. */
static void print_constants(struct report *report)
{
    char text[TEXT_MAX];
    struct options *options = report->options;
    int printed = 0;
    for (int i = 0; i < options_count(options); i++) {
        if (options_at(options, i)->role != OPTION_CONFIG || is_column(options, i))
            continue;
        for (options_rewind(options); options_next(options);) {
            if (options_present(options, i)) {
                cell_text(options, i, text);
                fprintf(report->out, "%s%s %s", printed++ ? ", " : "", options_at(options, i)->name,
                    text);
                break;
            }
        }
    }
    options_rewind(options);
    fprintf(report->out, "%s", printed ? "\n" : "");
}

/* ---- the family's own figures -------------------------------------------------------------- */

static int figure_count(const struct report *report)
{
    int count = 0;
    while (report->program->figures && report->program->figures[count])
        count++;
    return count;
}

/* The name without its unit, in words. */
static void figure_heading(const struct report *report, int index, char text[TEXT_MAX])
{
    static const char *const units[] = {"_bytes", "_s"};
    snprintf(text, TEXT_MAX, "%s", report->program->figures[index]);
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(text), unit = strlen(units[i]);
        if (length > unit && !strcmp(text + length - unit, units[i]))
            text[length - unit] = 0;
    }
    for (char *c = text; *c; c++)
        if (*c == '_')
            *c = ' ';
}

static int figure_width(const struct report *report, int index)
{
    char text[TEXT_MAX];
    figure_heading(report, index, text);
    int width = (int)strlen(text);
    return width < 9 ? 9 : width;
}

static void print_figures_of_family(struct report *report, const struct case_result *result)
{
    for (int i = 0; i < figure_count(report); i++) {
        const char *text = result ? result->figures[i].text : "";
        fprintf(report->out, "%*s  ", figure_width(report, i), *text ? text : "-");
    }
}

static void print_header(struct report *report)
{
    FILE *out = report->out;
    bool simulated = case_simulates(report->common);
    char where[32];
    if (report->common->device_kind == DEV_CUDA)
        snprintf(where, sizeof where, "GPUs: %d", gpu_count(report->common));
    else if (simulated)
        snprintf(where, sizeof where, "simulated");
    else
        snprintf(where, sizeof where, "%s kernels", isa_name(isa_selected()));
    fprintf(out, "%s %s on %s, %s, %lld case%s\n", report->program->name, host_version(),
        report->common->device_name, where, (long long)report->cases,
        report->cases == 1 ? "" : "s");
    print_constants(report);
    if (report->shared)
        fprintf(out, "shared-gpu: more ranks than the %d GPU%s here take turns on them\n",
            gpu_count(report->common), gpu_count(report->common) == 1 ? "" : "s");
    if (report->oversubscribed)
        fprintf(out,
            "more ranks or threads than the %d cores here: ranks take turns, and times say so\n",
            launch_node_cpus());
    for (int i = 0; i < options_count(report->options); i++) {
        if (report->widths[i])
            fprintf(out, "%*s  ", report->widths[i], heading(options_at(report->options, i)));
    }
    fprintf(out, "%-*s  %9s  %20s  %13s  %9s  %9s  %6s  %6s  ", report->impl_width,
        "implementation", "time", simulated ? "rates +-20 %" : "95 % of the median", "throughput",
        "peak", "increment", "saved", "bound");
    for (int i = 0; i < figure_count(report); i++) {
        char text[TEXT_MAX];
        figure_heading(report, i, text);
        fprintf(out, "%*s  ", figure_width(report, i), text);
    }
    fputs("verdict\n", out);
    fflush(out);
}

struct report *report_open(const struct case_options *common, struct options *options,
    const struct program *program, int argc, char *const *argv)
{
    bool placed = gpu_place_ranks(common);
    struct report *report = placed ? calloc(1, sizeof *report) : NULL;
    if (report) {
        report->widths = calloc((size_t)options_count(options) + 1, sizeof *report->widths);
        report->run = host_run(argc, argv);
        report->env = host_environment(isa_name(isa_selected()));
        if (report->env && common->device_kind == DEV_CUDA && gpu_describe(common, report->env)) {
            json_decref(report->env);
            report->env = NULL;
        }
    }
    if (!report || !report->widths || !report->run || !report->env) {
        fprintf(stderr, "%s: memory is short for the report\n", program->name);
        if (report)
            report_close(report);
        return NULL;
    }
    report->common = common;
    report->options = options;
    report->program = program;
    report->out = program->out ? program->out : stdout;
    report->err = program->err ? program->err : stderr;
    report->cases = options_cases(options);
    report->progress = launch_is_main() && isatty(STDERR_FILENO);
    if (!launch_is_main()) { /* the main process prints */
        report->nowhere = fopen("/dev/null", "w");
        if (report->nowhere)
            report->out = report->err = report->nowhere;
    }
    measure_columns(report);
    if (common->csv)
        report_csv_header(report->out, options, program->figures);
    else
        print_header(report);
    return report;
}

/* ---- progress ------------------------------------------------------------------------------- */

static void clear_progress(struct report *report)
{
    if (report->progress_shown)
        fputs("\r\033[K", stderr);
    report->progress_shown = false;
}

bool report_next(struct report *report)
{
    if (interrupt_agreed() || !options_next(report->options))
        return false;
    gpu_case(report->common, report->options);
    report->started++;
    return true;
}

void report_progress(struct report *report, const char *phase)
{
    const char *impl = report->program->impl_names[report->common->impl];
    launch_phase("%s, case %lld, %s", impl, (long long)report->started, phase);
    if (!report->progress)
        return;
    fprintf(stderr, "\r\033[K[%lld/%lld] %s: %s", (long long)report->started,
        (long long)report->cases, impl, phase);
    fflush(stderr);
    report->progress_shown = true;
}

/* ---- saved against the baseline ------------------------------------------------------------- */

static int64_t peak_bytes(const struct case_result *result)
{
    int fullest = case_fullest_rank(result, WINDOW_PASS);
    return fullest < 0 ? ABSENT : result->ranks[fullest].windows[WINDOW_PASS].peak.peak_bytes;
}

static int keep_baseline(struct report *report, int64_t bytes)
{
    if (report->baseline_count == report->baseline_capacity) {
        int capacity = report->baseline_capacity ? 2 * report->baseline_capacity : 16;
        struct baseline *grown =
            realloc(report->baselines, (size_t)capacity * sizeof *report->baselines);
        if (!grown)
            return -1;
        report->baselines = grown;
        report->baseline_capacity = capacity;
    }
    struct baseline *kept = &report->baselines[report->baseline_count];
    kept->position = malloc((size_t)options_count(report->options) * sizeof *kept->position);
    if (!kept->position)
        return -1;
    options_position(report->options, kept->position);
    kept->peak_bytes = bytes;
    report->baseline_count++;
    return 0;
}

/* Share of the baseline's peak that the current case does without; NaN when it did not run here. */
static double saved_share(struct report *report, const struct case_result *result)
{
    int64_t peak = peak_bytes(result);
    if (result->status != CASE_OK || peak == ABSENT || report->common->search)
        return NAN; /* searches end at shapes of their own */
    if (report->common->impl == 0) {
        if (keep_baseline(report, peak))
            report_failure(report, EXIT_ENVIRONMENT, "memory is short to keep the baseline's peak");
        return NAN;
    }
    for (int i = 0; i < report->baseline_count; i++) {
        const struct baseline *baseline = &report->baselines[i];
        if (options_same_shape(report->options, baseline->position) && baseline->peak_bytes > 0)
            return 1 - (double)peak / (double)baseline->peak_bytes;
    }
    return NAN;
}

/* ---- a line --------------------------------------------------------------------------------- */

static void percent_text(double share, char *text, int size)
{
    if (isnan(share))
        snprintf(text, (size_t)size, "-");
    else
        snprintf(text, (size_t)size, "%.1f%%", fabs(share) < 0.0005 ? 0.0 : 100 * share);
}

static void bytes_text(int64_t bytes, char *text, int size)
{
    if (bytes == ABSENT)
        snprintf(text, (size_t)size, "-");
    else
        units_bytes(bytes, text, size);
}

static void print_figures(struct report *report, const struct case_result *result, double saved)
{
    char time[TEXT_MAX] = "-", interval[TEXT_MAX] = "-", rate[TEXT_MAX] = "-";
    char peak[TEXT_MAX], increment[TEXT_MAX], saving[TEXT_MAX], bound[TEXT_MAX];
    const struct timing *timing = &result->time;
    if (timing->count > 0 && case_verdict(result) != VERDICT_MISMATCH) {
        struct timing_summary summary;
        timing_summarise(timing->samples_s, timing->count, &summary);
        units_seconds(summary.median_s, time, sizeof time);
        double low_s, high_s;
        simulate_range(result->machine_s, result->machines, &low_s, &high_s);
        if (result->simulated)
            units_seconds_range(low_s, high_s, interval, sizeof interval);
        else if (timing->count < SAMPLES_FOR_INTERVAL)
            snprintf(interval, sizeof interval, "(%d sample%s)", timing->count,
                timing->count == 1 ? "" : "s");
        else
            units_seconds_range(summary.ci95_low_s, summary.ci95_high_s, interval, sizeof interval);
        if (isfinite(result->work) && summary.median_s > 0) {
            char unit[32];
            snprintf(unit, sizeof unit, "%s/s", result->work_unit);
            units_rate(result->work / summary.median_s, unit, rate, sizeof rate);
        }
    }
    int fullest = case_fullest_rank(result, WINDOW_PASS);
    bytes_text(peak_bytes(result), peak, sizeof peak);
    bytes_text(fullest < 0 ? ABSENT : case_increment_bytes(result, fullest, WINDOW_PASS), increment,
        sizeof increment);
    percent_text(saved, saving, sizeof saving);
    percent_text(case_bound_share(result), bound, sizeof bound);
    fprintf(report->out, "%9s  %20s  %13s  %9s  %9s  %6s  %6s  ", time, interval, rate, peak,
        increment, saving, bound);
}

static void print_line(struct report *report, const struct case_result *result, double saved)
{
    static const char *const words[] = {"", "OUT OF MEMORY", "ERROR", "skipped"};
    char text[TEXT_MAX], memory_fault[CASE_FAULT_MAX] = "";
    FILE *out = report->out;
    for (int i = 0; i < options_count(report->options); i++) {
        if (!report->widths[i])
            continue;
        cell_text(report->options, i, text);
        fprintf(out, "%*s  ", report->widths[i], text);
    }
    fprintf(out, "%-*s  ", report->impl_width, report->program->impl_names[report->common->impl]);
    if (result->status == CASE_OK) {
        print_figures(report, result, saved);
        print_figures_of_family(report, result);
        report_print_verdict(out, result);
        if (case_memory_fault(result, memory_fault, sizeof memory_fault))
            fputs(", MEMORY FAULT", out);
    } else {
        fprintf(out, "%9s  %20s  %13s  %9s  %9s  %6s  %6s  ", "-", "-", "-", "-", "-", "-", "-");
        print_figures_of_family(report, NULL);
        fputs(words[result->status], out);
    }
    fputc('\n', out);
    report_print_faults(out, result, memory_fault);
    job_name_ranks(out, result);
}

/* ---- a case --------------------------------------------------------------------------------- */

int report_exit_status(const struct case_options *common, const struct case_result *result)
{
    char fault[CASE_FAULT_MAX];
    switch (result->status) {
    case CASE_OK:
        if (case_verdict(result) == VERDICT_MISMATCH ||
            case_memory_fault(result, fault, sizeof fault))
            return EXIT_FAILED_CHECK;
        return EXIT_OK;
    case CASE_OOM:
        return case_records_oom(common) ? EXIT_OK : EXIT_ENVIRONMENT;
    case CASE_ERROR:
        return EXIT_ENVIRONMENT;
    default:
        return EXIT_OK;
    }
}

static void append_record(
    struct report *report, const char *impl, const struct case_result *result, double saved)
{
    char error[256];
    json_t *record =
        report_record(report->common, report->options, report->program->name, impl, result, saved);
    if (!record) {
        report_failure(report, EXIT_ENVIRONMENT, "memory is short for the record");
        return;
    }
    report_record_figures(record, report->program->figures, result);
    json_t *run = json_object_get(record, "run");
    if (run)
        json_object_update(run, report->run);
    else
        rec_json(record, "run", json_deep_copy(report->run));
    rec_json(record, "env", json_deep_copy(report->env));
    json_t *job = job_json();
    if (job)
        rec_json(record, "job", job);
    if (rec_append(report->common->json, record, error, sizeof error))
        report_failure(report, EXIT_ENVIRONMENT, "%s", error);
    json_decref(record);
}

void report_case(struct report *report, const struct case_result *result)
{
    const char *impl = report->program->impl_names[report->common->impl];
    double saved = saved_share(report, result);
    int status = report_exit_status(report->common, result);
    clear_progress(report);
    if (report->common->csv)
        report_csv_case(report->out, report->options, report->program->name, impl,
            case_device_name(report->common), report->program->figures, result, saved);
    else
        print_line(report, result, saved);
    fflush(report->out);
    if (report->common->csv && status != EXIT_OK) {
        char fault[CASE_FAULT_MAX] = "";
        case_memory_fault(result, fault, sizeof fault);
        report_print_faults(report->err, result, fault);
    }
    launch_phase("between two cases");
    if (report->common->json && launch_is_main())
        append_record(report, impl, result, saved);
    report->failed_check |= status == EXIT_FAILED_CHECK;
    report->failed_environment |= status == EXIT_ENVIRONMENT;
    report->failed_checks += status == EXIT_FAILED_CHECK;
    report->failed_runs += status == EXIT_ENVIRONMENT;
}

void report_failure(struct report *report, int exit_status, const char *format, ...)
{
    va_list args;
    clear_progress(report);
    fprintf(report->err, "%s: ", report->program->name);
    va_start(args, format);
    vfprintf(report->err, format, args);
    va_end(args);
    fputc('\n', report->err);
    report->failed_check |= exit_status == EXIT_FAILED_CHECK;
    report->failed_environment |= exit_status != EXIT_FAILED_CHECK;
}

/* ---- the end -------------------------------------------------------------------------------- */

static int close_status(const struct report *report)
{
    if (interrupt_seen())
        return EXIT_INTERRUPTED;
    if (report->failed_check)
        return EXIT_FAILED_CHECK;
    return report->failed_environment ? EXIT_ENVIRONMENT : EXIT_OK;
}

static void print_ending(struct report *report)
{
    clear_progress(report);
    if (fflush(report->out) || ferror(report->out))
        report_failure(report, EXIT_ENVIRONMENT, "writing the table: %s", strerror(errno));
    if (interrupt_seen())
        fprintf(report->err, "%s: interrupted, %lld of %lld cases are done\n",
            report->program->name, (long long)report->started, (long long)report->cases);
    if (report->failed_checks || report->failed_runs)
        fprintf(report->err, "%s: of %lld cases %lld failed a check and %lld could not run\n",
            report->program->name, (long long)report->started, (long long)report->failed_checks,
            (long long)report->failed_runs);
}

int report_close(struct report *report)
{
    if (report->out)
        print_ending(report);
    int status = close_status(report);
    for (int i = 0; i < report->baseline_count; i++)
        free(report->baselines[i].position);
    free(report->baselines);
    twins_free(&report->twins);
    free(report->widths);
    if (report->nowhere)
        fclose(report->nowhere);
    json_decref(report->run);
    json_decref(report->env);
    free(report);
    return status;
}

int report_run(const struct case_options *common, struct options *options,
    const struct program *program, int argc, char *const *argv,
    void (*run_case)(void *context, struct report *report, struct case_result *result),
    void *context)
{
    struct report *report = report_open(common, options, program, argc, argv);
    if (!report)
        return EXIT_ENVIRONMENT;
    while (report_next(report)) {
        struct case_result result;
        if (case_result_init(&result, (int)common->ranks)) {
            report_failure(report, EXIT_ENVIRONMENT, "no memory for a case's result");
            break;
        }
        result.simulated = case_simulates(common);
        int64_t given, most;
        bool searched = common->search && options_get_count(options, common->search, &given, &most);
        if (!searched)
            run_case(context, report, &result);
        else if (search_run(common, options, report, run_case, context, &result))
            report_failure(report, EXIT_ENVIRONMENT, "no memory for a case's result");
        if (twins_compare(&report->twins, options, program->impl_names[common->impl], &result))
            report_failure(report, EXIT_ENVIRONMENT, "no memory to compare cases");
        report_case(report, &result);
        if (searched)
            options_set_count(options, common->search, given);
        case_result_free(&result);
    }
    return report_close(report);
}
