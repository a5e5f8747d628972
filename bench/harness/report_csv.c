/* One CSV line per case. Columns: what was run (every option that defines a case), then what it
 * gave. A field that does not apply is empty. */
#include <math.h>
#include <string.h>
#include "bench/harness/csv.h"
#include "bench/harness/report.h"
#include "bench/harness/simulate.h"

/* Holds one count per rank of 1024 ranks. */
#define CSV_FIELD_MAX 24576

static const char *const figure_columns =
    "status,reason,verdict,against,samples,median_s,q1_s,q3_s,ci95_low_s,ci95_high_s,"
    "range_low_s,range_high_s,"
    "throughput,throughput_unit,tracked_peak_bytes,resident_bytes,increment_bytes,expected_bytes,"
    "bound_bytes,bound_share,saved_against_baseline,host_pinned_peak_bytes,rss_peak_bytes,"
    "logical_bytes,wire_bytes,messages";

void report_csv_header(FILE *out, const struct options *options, const char *const *figures)
{
    fputs("op,impl,device", out);
    for (int i = 0; i < options_count(options); i++) {
        const struct option *option = options_at(options, i);
        if (option->role == OPTION_CONFIG)
            csv_text(out, option->name);
    }
    fprintf(out, ",%s", figure_columns);
    for (int i = 0; figures && figures[i]; i++)
        csv_text(out, figures[i]);
    fputc('\n', out);
}

static void put_time(FILE *out, const struct case_result *result)
{
    const struct timing *time = &result->time;
    struct timing_summary summary = {NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    char unit[64] = "";
    double rate = NAN;
    bool timed = time->count > 0 && case_verdict(result) != VERDICT_MISMATCH;
    if (timed) {
        timing_summarise(time->samples_s, time->count, &summary);
        if (isfinite(result->work) && summary.median_s > 0) {
            rate = result->work / summary.median_s;
            snprintf(unit, sizeof unit, "%s/s", result->work_unit);
        }
    }
    csv_int(out, timed ? time->count : ABSENT);
    csv_real(out, summary.median_s);
    bool measured = !result->simulated; /* a simulated time has a range and no spread */
    csv_real(out, measured ? summary.q1_s : NAN);
    csv_real(out, measured ? summary.q3_s : NAN);
    csv_real(out, measured ? summary.ci95_low_s : NAN);
    csv_real(out, measured ? summary.ci95_high_s : NAN);
    double low_s = NAN, high_s = NAN;
    if (timed && !measured)
        simulate_range(result->machine_s, result->machines, &low_s, &high_s);
    csv_real(out, low_s);
    csv_real(out, high_s);
    csv_real(out, rate);
    csv_text(out, unit);
}

static void put_memory(FILE *out, const struct case_result *result, double saved)
{
    int fullest = case_fullest_rank(result, WINDOW_PASS);
    const struct case_rank *rank = fullest < 0 ? NULL : &result->ranks[fullest];
    const struct case_window *window = rank ? &rank->windows[WINDOW_PASS] : NULL;
    csv_int(out, rank ? window->peak.peak_bytes : ABSENT);
    csv_int(out, rank ? rank->resident_bytes : ABSENT);
    csv_int(out, rank ? case_increment_bytes(result, fullest, WINDOW_PASS) : ABSENT);
    csv_int(out, rank ? window->expected_bytes : ABSENT);
    csv_int(out, rank ? window->bound_bytes : ABSENT);
    csv_real(out, case_bound_share(result));
    csv_real(out, saved);
    csv_int(out, rank ? rank->host_pinned_peak_bytes : ABSENT);
    csv_int(out, result->rss_peak_bytes);
}

void report_csv_case(FILE *out, const struct options *options, const char *op, const char *impl,
    const char *device, const char *const *figures, const struct case_result *result, double saved)
{
    char text[CSV_FIELD_MAX];
    bool ok = result->status == CASE_OK;
    fputs(op, out);
    csv_text(out, impl);
    csv_text(out, device);
    for (int i = 0; i < options_count(options); i++) {
        if (options_at(options, i)->role != OPTION_CONFIG)
            continue;
        options_text(options, i, text, sizeof text);
        csv_text(out, options_present(options, i) ? text : "");
    }
    csv_text(out, case_status_name(result->status));
    csv_text(out, result->reason);
    csv_text(out, ok ? verdict_name(case_verdict(result)) : "");
    csv_text(out, ok ? result->against : "");
    put_time(out, result);
    put_memory(out, result, saved);
    csv_int(out, result->has_traffic ? result->traffic.logical_bytes : ABSENT);
    csv_int(out, result->has_traffic ? result->traffic.wire_bytes : ABSENT);
    csv_int(out, result->has_traffic ? result->traffic.messages : ABSENT);
    for (int i = 0; figures && figures[i]; i++)
        csv_figure(out, result->figures[i].value);
    fputc('\n', out);
}
