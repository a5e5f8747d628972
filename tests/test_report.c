/* The line, the record, the CSV and the exit status of a case, from results whose figures are set
 * by hand: one absent figure must leave no trace, one wrong byte must fail the run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/harness/report.h"
#include "probe/record.h"
#include "tests/tap.h"

static const char *const impl_names[] = {"materialized", "ring-dtp", NULL};
static const char *const impl_summaries[] = {"the baseline", "the ring", NULL};

struct fields {
    int64_t tokens, tile;
};

static const struct option shape_table[] = {
    {.name = "tokens",
        .kind = OPTION_COUNT,
        .at = offsetof(struct fields, tokens),
        .axis = true,
        .column = "N",
        .fallback = "512",
        .help = "tokens"},
    {.name = "tile",
        .kind = OPTION_COUNT,
        .at = offsetof(struct fields, tile),
        .axis = true,
        .by_impl = true,
        .fallback = "64",
        .help = "rows of a tile"},
};

static bool takes(int impl, const char *option)
{
    return (impl == 1 && !strcmp(option, "tile")) || !strcmp(option, "dump");
}

/* A program from its command line on, as its main would have it. */
struct fixture {
    struct fields fields;
    struct case_options common;
    struct option_group groups[2];
    struct program program;
    struct options *options;
    int status;
    char *out, *err;
    size_t out_size, err_size;
    int argc;
    char *argv[24];
    char words[512];
};

static void fixture_open(struct fixture *f, const char *line)
{
    memset(f, 0, sizeof *f);
    snprintf(f->words, sizeof f->words, "vocab %s", line);
    char *rest = f->words;
    for (char *word = strtok_r(rest, " ", &rest); word && f->argc < 24;
         word = strtok_r(NULL, " ", &rest))
        f->argv[f->argc++] = word;
    f->groups[0] = (struct option_group){"Shape", shape_table, 2, &f->fields};
    f->groups[1] = case_group(&f->common, impl_names);
    f->program = (struct program){.name = "vocab",
        .summary = "for tests",
        .groups = f->groups,
        .group_count = 2,
        .impl_names = impl_names,
        .impl_summaries = impl_summaries,
        .takes = takes};
    f->program.out = open_memstream(&f->out, &f->out_size);
    f->program.err = open_memstream(&f->err, &f->err_size);
    f->status = options_parse(&f->options, &f->program, f->argc, f->argv);
    if (f->status < 0)
        f->status = case_setup(&f->common, f->options);
}

static void fixture_close(struct fixture *f)
{
    options_free(f->options);
    fclose(f->program.out);
    fclose(f->program.err);
    free(f->out);
    free(f->err);
}

/* A result with every figure: 2 ranks, the second the fuller and the slower. */
static void fill(struct case_result *r, int64_t peak)
{
    static const double samples_s[] = {0.010, 0.011, 0.012, 0.010, 0.011, 0.013, 0.011};
    struct timing_protocol protocol = timing_default();
    protocol.warmup = 0;
    if (case_result_init(r, 2) || timing_init(&r->time, &protocol))
        exit(1);
    for (size_t i = 0; i < sizeof samples_s / sizeof *samples_s; i++)
        timing_add(&r->time, samples_s[i]);
    strcpy(r->against, "reference");
    struct case_tensor *dx = case_result_tensor(r, "dx");
    strcpy(dx->digest, "0123456789abcdef0123456789abcdef");
    dx->declared_order = true;
    dx->has_ulp = true;
    dx->ulp_max = 3;
    dx->ulp_mean = 0.25;
    r->work = 11e6;
    r->work_unit = "FLOP";
    r->work_formula = "6 N V H";
    for (int i = 0; i < 2; i++) {
        struct mem_probe probe;
        mem_init(&probe, 0);
        mem_add(&probe, 1000, LIVE_WEIGHTS, "w");
        case_rank_resident(&r->ranks[i], &probe);
        mem_window_reset(&probe);
        mem_add(&probe, peak - 1000 - (i == 0), LIVE_LOGITS, "logits");
        case_rank_window(&r->ranks[i], WINDOW_PASS, &probe);
        struct case_window *window = &r->ranks[i].windows[WINDOW_PASS];
        window->expected_bytes = peak - 1000 - (i == 0);
        window->expected_set_bytes[LIVE_LOGITS] = window->expected_bytes;
        window->bound_bytes = 2 * (peak - 1000);
        r->ranks[i].time_s = 0.010 + 0.001 * i;
    }
    case_result_count(r, "gemm_calls", 3);
}

/* ---- the record ----------------------------------------------------------------------------- */

static int64_t integer_at(const json_t *record, const char *path)
{
    const json_t *value = rec_get(record, path);
    return json_is_integer(value) ? json_integer_value(value) : INT64_MIN;
}

static bool text_is(const json_t *record, const char *path, const char *want)
{
    const char *text = json_string_value(rec_get(record, path));
    return text && !strcmp(text, want);
}

static void test_record(void)
{
    struct fixture f;
    struct case_result result;
    fixture_open(&f, "--tokens 512 --impl ring-dtp --threads 1 --ranks 2 --iters 7");
    tap_ok(f.status < 0 && options_next(f.options), "a command line is set up");
    fill(&result, 5000);
    json_t *r = report_record(&f.common, f.options, "vocab", "ring-dtp", &result, 0.5);
    tap_ok(integer_at(r, "schema") == REC_SCHEMA && text_is(r, "op", "vocab") &&
               text_is(r, "impl", "ring-dtp") && text_is(r, "device", "cpu") &&
               text_is(r, "status", "ok"),
        "who and what");
    tap_ok(integer_at(r, "config.tokens") == 512 && integer_at(r, "config.tile") == 64 &&
               integer_at(r, "config.ranks") == 2 && text_is(r, "config.dtype", "f32"),
        "config has the resolved options");
    tap_ok(integer_at(r, "run.options.iters") == 7 && !rec_get(r, "config.iters"),
        "how it was run stands apart from what was run");
    tap_ok(integer_at(r, "memory.tracked_peak_bytes") == 5000 &&
               integer_at(r, "memory.resident_bytes") == 1000 &&
               integer_at(r, "memory.increment_bytes") == 4000 &&
               integer_at(r, "memory.expected_bytes") == 4000 &&
               integer_at(r, "memory.bound_bytes") == 8000,
        "memory of the fullest rank");
    tap_ok(integer_at(r, "memory.by_live_set.logits.peak_bytes") == 4000 &&
               integer_at(r, "memory.by_live_set.weights.at_peak_bytes") == 1000 &&
               !rec_get(r, "memory.by_live_set.ring"),
        "live sets that were used");
    tap_ok(integer_at(r, "fullest_rank") == 1 && integer_at(r, "slowest_rank") == 1 &&
               json_array_size(rec_get(r, "ranks")) == 2,
        "all ranks, and which is the fullest and the slowest");
    tap_ok(text_is(r, "check.verdict", "bitwise") && text_is(r, "check.against", "reference") &&
               text_is(r, "check.outputs.dx.order", "declared") &&
               integer_at(r, "check.outputs.dx.ulp_from_default.max") == 3,
        "the check, tensor by tensor");
    tap_ok(json_number_value(rec_get(r, "time.median_s")) == 0.011 &&
               json_array_size(rec_get(r, "time.samples_s")) == 7 &&
               text_is(r, "time.kind", "measured") &&
               json_array_size(rec_get(r, "time.ci95_s")) == 2,
        "time with its samples and interval");
    tap_ok(fabs(json_number_value(rec_get(r, "throughput.value")) - 1e9) < 1e3 &&
               text_is(r, "throughput.unit", "FLOP/s") &&
               text_is(r, "throughput.formula", "6 N V H"),
        "throughput with unit and formula");
    tap_ok(integer_at(r, "counts.gemm_calls") == 3, "counts");
    tap_ok(!rec_get(r, "traffic") && !rec_get(r, "plan") && !rec_get(r, "reason") &&
               !rec_get(r, "memory.driver_bytes") && !rec_get(r, "memory.host_pinned_peak_bytes") &&
               !rec_get(r, "memory.forward") && !rec_get(r, "memory.fault"),
        "what does not apply is absent");
    json_decref(r);

    result.tensors[0].verdict = VERDICT_MISMATCH;
    r = report_record(&f.common, f.options, "vocab", "ring-dtp", &result, NAN);
    tap_ok(text_is(r, "check.verdict", "mismatch") && !rec_get(r, "time") &&
               !rec_get(r, "memory.saved_against_baseline"),
        "a mismatch has no time");
    json_decref(r);
    case_result_free(&result);

    case_result_init(&result, 2);
    case_result_skip(&result, "needs %d ranks", 4);
    r = report_record(&f.common, f.options, "vocab", "ring-dtp", &result, NAN);
    tap_ok(text_is(r, "status", "skipped") && text_is(r, "reason", "needs 4 ranks") &&
               !rec_get(r, "memory") && !rec_get(r, "check") && !rec_get(r, "ranks"),
        "a skipped case has its reason and no figures");
    json_decref(r);
    case_result_free(&result);
    fixture_close(&f);
}

/* ---- verdicts and exit status --------------------------------------------------------------- */

static void test_exit_status(void)
{
    struct fixture f;
    struct case_result r;
    char fault[CASE_FAULT_MAX];
    fixture_open(&f, "--impl ring-dtp");
    options_next(f.options);
    fill(&r, 5000);
    tap_ok(
        report_exit_status(&f.common, &r) == EXIT_OK && !case_memory_fault(&r, fault, sizeof fault),
        "all fine is 0");
    tap_ok(case_bound_share(&r) == 0.5, "bound share");
    r.ranks[0].windows[WINDOW_PASS].peak.set_peak_bytes[LIVE_LOGITS]++;
    tap_ok(report_exit_status(&f.common, &r) == EXIT_FAILED_CHECK &&
               case_memory_fault(&r, fault, sizeof fault) &&
               strstr(fault, "live set logits has 4000"),
        "one byte in one live set of one rank is 1: %s", fault);
    r.ranks[0].windows[WINDOW_PASS].peak.set_peak_bytes[LIVE_LOGITS]--;
    r.ranks[1].windows[WINDOW_PASS].peak.peak_bytes++;
    tap_ok(case_memory_fault(&r, fault, sizeof fault) && strstr(fault, "rank 1, pass: 4001 bytes"),
        "one byte at the peak is 1: %s", fault);
    r.ranks[1].windows[WINDOW_PASS].expected_bytes = ABSENT;
    r.ranks[1].windows[WINDOW_PASS].bound_bytes = 4000;
    tap_ok(case_memory_fault(&r, fault, sizeof fault) && strstr(fault, "above the bound of 4000"),
        "one byte above the bound is 1: %s", fault);
    r.ranks[1].windows[WINDOW_PASS].peak.peak_bytes--;
    tap_ok(report_exit_status(&f.common, &r) == EXIT_OK, "at the bound is fine");
    case_result_tensor(&r, "dw")->verdict = VERDICT_MISMATCH;
    tap_ok(case_verdict(&r) == VERDICT_MISMATCH && report_exit_status(&f.common, &r) == 1,
        "one tensor of two that mismatches is 1");
    r.status = CASE_OOM;
    tap_ok(report_exit_status(&f.common, &r) == EXIT_ENVIRONMENT, "out of memory is 3");
    r.status = CASE_ERROR;
    tap_ok(report_exit_status(&f.common, &r) == EXIT_ENVIRONMENT, "an error is 3");
    case_result_free(&r);
    fixture_close(&f);

    fixture_open(&f, "--impl ring-dtp --oom record");
    options_next(f.options);
    case_result_init(&r, 1);
    r.status = CASE_OOM;
    tap_ok(report_exit_status(&f.common, &r) == EXIT_OK, "out of memory with --oom record is 0");
    case_result_free(&r);
    fixture_close(&f);
}

/* ---- a whole run ---------------------------------------------------------------------------- */

static int count_lines(const char *text)
{
    int lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

static void test_table(void)
{
    struct fixture f;
    char path[] = "/tmp/flatpeak-report-XXXXXX", line[128], error[256];
    int file = mkstemp(path), cases = 0;
    close(file);
    /* The baseline is named last and still comes first. */
    snprintf(line, sizeof line, "--tokens 512,1024 --impl ring-dtp,materialized --json %s", path);
    fixture_open(&f, line);
    struct report *report = report_open(&f.common, f.options, &f.program, f.argc, f.argv);
    while (report && report_next(report)) {
        struct case_result result;
        fill(&result, f.common.impl == 0 ? 9000 : 4500);
        report_case(report, &result);
        case_result_free(&result);
        cases++;
    }
    int status = report_close(report);
    tap_ok(cases == 4 && status == EXIT_OK, "4 cases, exit 0");
    fflush(f.program.out);
    const char *header = strstr(f.out, "   N  ");
    tap_ok(header && count_lines(header) == 5, "a header and a line for each case");
    tap_ok(header && strstr(header, "1024") && strstr(header, "50.0%") &&
               strstr(header, "bitwise, dx"),
        "shape, saving and verdict are printed");
    json_t *records = rec_read(path, error, sizeof error);
    double saved =
        json_number_value(rec_get(json_array_get(records, 3), "memory.saved_against_baseline"));
    tap_ok(json_array_size(records) == 4 && saved == 0.5, "4 records, the last saves half");
    const json_t *id = rec_get(json_array_get(records, 0), "run.id");
    tap_ok(id && json_equal(id, rec_get(json_array_get(records, 3), "run.id")) &&
               rec_get(json_array_get(records, 0), "env"),
        "records of one process share its run.id and have the environment");
    json_decref(records);
    unlink(path);
    fixture_close(&f);
}

static void test_failing_run(void)
{
    struct fixture f;
    int cases = 0;
    fixture_open(&f, "--tokens 1,2,3 --impl ring-dtp");
    struct report *report = report_open(&f.common, f.options, &f.program, f.argc, f.argv);
    while (report && report_next(report)) {
        struct case_result result;
        fill(&result, 4500);
        if (f.fields.tokens == 1) {
            result.tensors[0].verdict = VERDICT_MISMATCH;
            strcpy(result.tensors[0].fault, "dx[3,17]: got 3f800001 want 3f800000");
        } else if (f.fields.tokens == 2) {
            struct ranks_failure failure = {DEV_OUT_OF_MEMORY, 1, "live set logits"};
            case_result_fail(&result, &failure);
        }
        report_case(report, &result);
        case_result_free(&result);
        cases++;
    }
    int status = report_close(report);
    fflush(f.program.out);
    tap_ok(cases == 3, "all cases run after a failure");
    tap_ok(status == EXIT_FAILED_CHECK, "a failed check outranks a case out of memory");
    tap_ok(strstr(f.out, "MISMATCH") && strstr(f.out, "dx[3,17]: got 3f800001"),
        "the fault is printed under its line");
    fflush(f.program.err);
    tap_ok(strstr(f.err, "of 3 cases 1 failed a check and 1 could not run"),
        "the failures are told again at the end");
    tap_ok(strstr(f.out, "OUT OF MEMORY") && strstr(f.out, "rank 1: live set logits"),
        "and the live set that did not fit");
    fixture_close(&f);
}

static int fields_of(const char *line)
{
    int fields = 1;
    bool quoted = false;
    for (; *line && *line != '\n'; line++) {
        quoted ^= *line == '"';
        fields += *line == ',' && !quoted;
    }
    return fields;
}

static void test_csv(void)
{
    struct fixture f;
    fixture_open(&f, "--impl ring-dtp --csv");
    struct report *report = report_open(&f.common, f.options, &f.program, f.argc, f.argv);
    while (report && report_next(report)) {
        struct case_result result;
        fill(&result, 4500);
        snprintf(result.reason, sizeof result.reason, "a \"reason\", with commas");
        report_case(report, &result);
        case_result_free(&result);
    }
    report_close(report);
    fflush(f.program.out);
    const char *second = strchr(f.out, '\n');
    tap_ok(second && count_lines(f.out) == 2 && fields_of(f.out) == fields_of(second + 1),
        "CSV: a header and a line with as many fields");
    tap_ok(second && strstr(second, "\"a \"\"reason\"\", with commas\""), "CSV: text is quoted");
    fixture_close(&f);
}

/* ---- common options ------------------------------------------------------------------------- */

static void test_common(void)
{
    struct fixture f;
    int64_t samples;
    fixture_open(&f, "--check sample:8 --iters 5 --warmup 2 --threads 4 --ranks 2 --dtype bf16 "
                     "--device-memory 1M --impl ring-dtp");
    options_next(f.options);
    struct timing_protocol protocol = case_timing_protocol(&f.common);
    struct ranks_config config = case_ranks_config(&f.common, NULL, NULL);
    tap_ok(protocol.min_samples == 5 && protocol.max_samples == 5 && protocol.warmup == 2,
        "--iters and --warmup");
    tap_ok(config.count == 2 && config.device.kernel_threads == 2 &&
               config.device.device_limit_bytes == 1048576 && config.timeout_s == 60,
        "ranks, width of a kernel and limit of memory");
    tap_ok(case_check_level(&f.common, 1, &samples) == CASE_CHECK_SAMPLE && samples == 8,
        "--check sample:8");
    tap_ok(f.common.dtype == DTYPE_BF16 && f.common.pass == CASE_BOTH, "names are enumerators");
    fixture_close(&f);

    fixture_open(&f, "--impl ring-dtp");
    options_next(f.options);
    tap_ok(
        case_check_level(&f.common, CASE_REFERENCE_OPERATIONS, &samples) == CASE_CHECK_REFERENCE &&
            case_check_level(&f.common, CASE_REFERENCE_OPERATIONS + 1, &samples) ==
                CASE_CHECK_SAMPLE &&
            samples == CASE_SAMPLES,
        "without --check the level follows counted work");
    fixture_close(&f);

    static const struct {
        const char *line;
        int status;
    } refused[] = {
        {"--device cuda", EXIT_ENVIRONMENT},
        {"--device sim:h200", EXIT_BAD_INPUT},
        {"--device sim --iters 5", EXIT_BAD_INPUT},
        {"--device sim --threads 1", EXIT_BAD_INPUT},
        {"--device sim --check reference", EXIT_BAD_INPUT},
        {"--device tpu", EXIT_BAD_INPUT},
        {"--check sample:0", EXIT_BAD_INPUT},
        {"--check maybe", EXIT_BAD_INPUT},
        {"--ranks 0", EXIT_BAD_INPUT},
        {"--iters 5 --min-time 1", EXIT_BAD_INPUT},
        {"--trace t.json --impl all", EXIT_BAD_INPUT},
        {"--link-gbps 5", EXIT_BAD_INPUT},
        {"--json /nonexistent-folder/r.jsonl", EXIT_BAD_INPUT},
        {"--json /tmp", EXIT_BAD_INPUT},
        {"--json nowhere/", EXIT_BAD_INPUT},
        {"--trace /proc/trace.json --impl ring-dtp", EXIT_BAD_INPUT},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        fixture_open(&f, refused[i].line);
        tap_ok(f.status == refused[i].status, "%s exits %d", refused[i].line, refused[i].status);
        fixture_close(&f);
    }
}

int main(void)
{
    test_record();
    test_exit_status();
    test_table();
    test_failing_run();
    test_csv();
    test_common();
    return tap_done();
}
