/* A case's lines, and its record: that of all programs, and what a model that learns adds to it. */
#include "bench/harness/train_report.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/gpu.h"
#include "bench/harness/job.h"
#include "bench/harness/report.h"
#include "bench/harness/simulate.h"
#include "bench/harness/units.h"
#include "kernels/isa.h"
#include "ops/model_keep.h"
#include "ops/model_memory.h"
#include "probe/host.h"
#include "probe/record.h"

enum { LOSS, BIGRAM, FLOPS, GEMM, EXECUTED };
static const char *const figure_names[] = {
    "loss", "bigram_nats", "flops_per_s", "gemm_flops_per_s", "executed_flops", NULL};

int train_report_open(struct train_report *report, int argc, char *const *argv)
{
    bool placed = gpu_place_ranks(report->common);
    report->bigram_nats = report->gemm_flops_per_s = NAN;
    report->run = host_run(argc, argv);
    report->env = host_environment(isa_name(isa_selected()));
    bool described = placed && report->run && report->env;
    if (described && report->common->device_kind == DEV_CUDA)
        described = gpu_describe(report->common, report->env) == 0;
    if (!described)
        fputs("train: memory is short for the report\n", stderr);
    return described ? 0 : -1;
}

void train_report_close(struct train_report *report)
{
    json_decref(report->run);
    json_decref(report->env);
}

/* ---- figures --------------------------------------------------------------------------------- */

static double median_s(const struct train_run *run)
{
    struct timing_summary summary;
    timing_summarise(run->seconds, (int)run->reached, &summary);
    return summary.median_s;
}

/* Of the last tenth of the steps. */
static double last_loss(const struct train_run *run)
{
    int64_t count = run->reached / 10 ? run->reached / 10 : 1;
    double sum = 0;
    for (int64_t i = run->reached - count; i < run->reached; i++)
        sum += run->loss[i];
    return sum / (double)count;
}

static double tokens_per_step(const struct model_shape *shape)
{
    return (double)model_tokens(shape) * (double)shape->layout.ranks;
}

static double flops_per_s(const struct train_run *run)
{
    return tokens_per_step(run->shape) * train_flops_per_token(run->shape) / median_s(run);
}

static void fill_digests(
    const struct train_run *run, enum verdict verdict, struct case_result *result)
{
    struct case_tensor *losses = case_result_tensor(result, "losses");
    struct case_tensor *weights = case_result_tensor(result, "weights");
    losses->verdict = weights->verdict = verdict;
    losses->declared_order = weights->declared_order = true;
    train_run_digests(run, losses->digest, weights->digest);
    if (verdict != VERDICT_OFF)
        snprintf(result->against, sizeof result->against, "composed");
}

/* What plan says before the run: no rank may hold more. Nothing of a composition without a bound.
 */
static int fill_bounds(const struct train_run *run, struct case_result *result)
{
    struct model_budget budget;
    for (int rank = 0; rank < result->rank_count; rank++) {
        struct case_rank *seen = &result->ranks[rank];
        if (!seen->windows[WINDOW_PASS].present)
            continue;
        if (model_budget(&budget, run->shape, run->options, rank))
            return -1;
        if (!budget.unbounded)
            seen->windows[WINDOW_PASS].bound_bytes = budget.device_bytes - seen->resident_bytes;
    }
    return 0;
}

int train_report_fill(const struct train_report *report, const struct train_run *run,
    enum verdict verdict, struct case_result *result)
{
    int steps = (int)run->steps;
    const struct timing_protocol protocol = {
        .min_samples = steps, .max_samples = steps, .max_time_s = 1e9};
    if (timing_init(&result->time, &protocol))
        return -1;
    for (int64_t i = 0; i < run->reached; i++)
        timing_add(&result->time, run->seconds[i]);
    result->simulated = case_simulates(report->common);
    result->work = tokens_per_step(run->shape);
    result->work_unit = "tokens";
    result->work_formula = "W N";
    result->rss_peak_bytes = host_rss_peak_bytes();
    case_result_figure(result, FLOPS, flops_per_s(run), "");
    case_result_figure(result, EXECUTED, run->flops, "");
    if (fill_bounds(run, result))
        return -1;
    if (result->simulated)
        return 0;
    fill_digests(run, verdict, result);
    case_result_figure(result, LOSS, last_loss(run), "");
    case_result_figure(result, BIGRAM, report->bigram_nats, "");
    case_result_figure(result, GEMM, report->gemm_flops_per_s, "");
    return 0;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* The sets that hold most, largest first. */
static void print_sets(const int64_t *peak_bytes)
{
    bool shown[LIVE_SET_COUNT] = {false};
    printf("  peak of the fullest rank by live set:");
    for (int i = 0; i < LIVE_SET_COUNT; i++) {
        int most = -1;
        for (int set = 0; set < LIVE_SET_COUNT; set++)
            if (!shown[set] && (most < 0 || peak_bytes[set] > peak_bytes[most]))
                most = set;
        char text[32];
        shown[most] = true;
        if (peak_bytes[most] == 0)
            break;
        units_bytes(peak_bytes[most], text, sizeof text);
        printf("%s %s %s", i ? "," : "", mem_live_set_name((enum live_set)most), text);
    }
    putchar('\n');
}

static void print_memory(const struct case_result *result)
{
    char peak[32], host[32], fault[CASE_FAULT_MAX];
    int fullest = case_fullest_rank(result, WINDOW_PASS);
    const struct case_rank *rank = &result->ranks[fullest];
    const struct case_window *window = &rank->windows[WINDOW_PASS];
    units_bytes(window->peak.peak_bytes, peak, sizeof peak);
    units_bytes(rank->host_pinned_peak_bytes, host, sizeof host);
    printf("  device peak %s", peak);
    if (window->bound_bytes != ABSENT)
        printf(", %.0f %% of what plan guarantees",
            100 * (double)window->peak.peak_bytes /
                (double)(window->bound_bytes + rank->resident_bytes));
    printf(", pinned host memory %s\n", host);
    if (case_memory_fault(result, fault, sizeof fault))
        printf("  MEMORY FAULT: %s\n", fault);
    print_sets(rank->windows[WINDOW_PASS].peak.set_peak_bytes);
}

static void print_loads(const struct train_run *run)
{
    int64_t least = 0, most = 0, all = run->shape->layers * run->shape->layout.experts;
    double mean = 0;
    for (int64_t i = 0; i < all; i++) {
        least = i == 0 || run->loads[i] < least ? run->loads[i] : least;
        most = run->loads[i] > most ? run->loads[i] : most;
        mean += (double)run->loads[i] / (double)all;
    }
    printf("  routes of an expert in the last step: min %lld, mean %.0f, max %lld\n",
        (long long)least, mean, (long long)most);
}

static void print_loss(const struct train_report *report, const struct train_run *run)
{
    double loss = last_loss(run);
    printf("  loss %.4f nats per byte, %s the bigram entropy of %.4f\n", loss,
        loss < report->bigram_nats ? "below" : "not below", report->bigram_nats);
}

/* Beside what is comparable: a product on the same cores, or the other GPUs. */
static void print_speed(const struct train_report *report, const struct train_run *run)
{
    char rate[32];
    double flops = flops_per_s(run), tokens = tokens_per_step(run->shape) / median_s(run);
    if (report->common->device_kind == DEV_CPU) {
        double gemm = report->gemm_flops_per_s, executed = run->flops / median_s(run);
        printf("  %.0f tokens/s, %.1f GFLOP/s, %.0f %% of a GEMM's %.1f GFLOP/s on as many threads"
               "\n  executed %.1f GFLOP/s, %.0f %% of it, with what is computed again\n",
            tokens, flops / 1e9, 100 * flops / gemm, gemm / 1e9, executed / 1e9,
            100 * executed / gemm);
        return;
    }
    units_rate(flops / run->shape->layout.ranks, "FLOP/s", rate, sizeof rate);
    printf("  %.0f tokens/s, %s per GPU\n", tokens, rate);
}

/* What attention keeps. */
static void print_kept(const struct train_run *run)
{
    char bytes[32], budget[32];
    struct recompute_option options[MODEL_KEEP_OPTIONS];
    struct recompute_plan plan;
    int64_t layers = run->shape->layers;
    int32_t *choice = malloc((size_t)layers * sizeof *choice);
    if (choice && run->options->keep_attention_bytes > 0 &&
        model_keep_choose(run->shape, run->options, choice, &plan) == 0 && plan.kept_bytes > 0) {
        model_keep_options(run->shape, options);
        double whole = (double)layers * (double)options[MODEL_KEEP_OPTIONS - 1].saved_flops;
        units_bytes(plan.kept_bytes, bytes, sizeof bytes);
        units_bytes(run->options->keep_attention_bytes, budget, sizeof budget);
        printf("  attention keeps %s of %s a rank, and computes %.1f %% less again\n", bytes,
            budget, 100 * (double)plan.saved_flops / whole);
    }
    free(choice);
}

static void print_range(const struct train_run *run, const struct case_result *result)
{
    char time[32], range[64];
    double low, high;
    simulate_range(result->machine_s, result->machines, &low, &high);
    units_seconds(median_s(run), time, sizeof time);
    units_seconds_range(low, high, range, sizeof range);
    printf("  a step takes %s, %s with rates +-20 %%: simulated%s\n", time, range,
        run->alike ? ", one rank for all" : "");
}

void train_report_print(const struct train_report *report, const struct train_run *run,
    const struct case_result *result)
{
    if (!run) {
        printf("  %s\n", result->status == CASE_OOM ? "OUT OF MEMORY" : "ERROR");
        printf("    %s\n", result->reason);
        return;
    }
    if (run->reached < run->steps)
        printf("  interrupted after step %lld of %lld\n", (long long)run->reached,
            (long long)run->steps);
    if (result->simulated)
        print_range(run, result);
    else
        print_loss(report, run);
    print_speed(report, run);
    job_name_ranks(stdout, result);
    print_kept(run);
    print_memory(result);
    print_loads(run);
    for (int i = 0; i < result->tensor_count; i++)
        printf("  digest of %-7s %s\n", result->tensors[i].name, result->tensors[i].digest);
}

/* ---- records --------------------------------------------------------------------------------- */

int train_report_record(const struct train_report *report, const struct train_run *run,
    const struct model_options *options, const struct case_result *result)
{
    char error[256] = "memory is short for the record";
    json_t *record = report_record(report->common, report->options, "train",
        composition_names[report->line->composition], result, NAN);
    int status = -1;
    if (record) {
        rec_str(record, "config.dispatch", options->dispatch->name);
        rec_str(record, "config.vocab_impl", options->vocab->name);
        rec_str(record, "config.checkpoint", options->checkpoint->name);
        rec_str(record, "config.optimizer", options->optimizer->name);
        rec_int(record, "config.expert_group", run->shape->layout.degree[LAYOUT_EXPERTS]);
        rec_int(record, "config.vocab_group", run->shape->layout.degree[LAYOUT_VOCAB]);
        report_record_figures(record, figure_names, result);
        json_t *kept = json_object_get(record, "run");
        if (kept)
            json_object_update(kept, report->run);
        else
            rec_json(record, "run", json_deep_copy(report->run));
        rec_json(record, "env", json_deep_copy(report->env));
        json_t *job = job_json();
        if (job)
            rec_json(record, "job", job);
        status = rec_append(report->common->json, record, error, sizeof error);
    }
    json_decref(record);
    if (status)
        fprintf(stderr, "train: %s\n", error);
    return status;
}
