/* optimizer - the offloaded AdamW step: offload-stream beside what it replaces
 *
 *   optimizer --impl all --params 4M --bucket 256K --slots 1,2,3 --iters 5 --check reference
 *   optimizer --impl staged,offload-stream --params 4M --link-gbps 2 --slots 1,2
 *   optimizer --plan --model gpt-oss-20b --world 8 --bucket 100e6 --whole-tensors
 *   optimizer --load DIR --dump OUT --impl offload-stream
 *
 * Each of P ranks holds 1/W of every tensor: FP32 master and moments, a gradient, and the BF16
 * weights that the model reads. A case takes --steps steps for its memory and its bits, compares
 * the state, and only then measures the time of a step.
 *
 *                    device, bytes a parameter    moves
 *   device           12 (+4)                      4 up, with gradients from the host
 *   cpu              0                            2 up (2 down, with gradients on the device)
 *   staged           a bucket's 16                16 up, 12 down, one after the other
 *   offload-stream   s buckets' 16                16 up, 12 down, at the same time
 *
 * Throughput counts what the arithmetic reads and writes, 30 bytes a parameter, whatever an
 * implementation moves besides. --help has every option. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/adamw_check.h"
#include "bench/harness/adamw_files.h"
#include "bench/harness/adamw_line.h"
#include "bench/harness/adamw_run.h"
#include "bench/harness/adamw_time.h"
#include "bench/harness/case.h"
#include "bench/harness/job.h"
#include "bench/harness/model_list.h"
#include "bench/harness/report.h"
#include "bench/harness/units.h"
#include "device/launch.h"
#include "probe/host.h"
#include "probe/trace.h"

#define IMPL_MAX 16

enum { BUCKETS, LARGEST_BUCKET, STAGING, OVERLAP, EQ_5, FLOOR, EXPOSED_COPY };
static const char *const figure_names[] = {"buckets", "largest_bucket", "staging_bytes", "overlap",
    "eq_5_s", "floor_s", "exposed_copy_s", NULL};

static const char description[] =
    "Hyperparameters take one value, or two: for tensors with weight decay, for those without.\n"
    "\n"
    "staging  slots x largest bucket x 16 bytes (12 with gradients on the device), a part of\n"
    "         the increment\n"
    "overlap  of what uploads, updates and downloads could hide behind the longest of them,\n"
    "         the share that they did, in one traced step\n"
    "eq 5     (G - 1) max(T_up, T_update, T_down, sum / slots) + sum, and the gradients' scan:\n"
    "         the step's time from its stages' (copies by --link-gbps where it is given)\n"
    "floor    the larger direction over the link\n"
    "exposed copy  time in which a copy ran and no kernel did, in the same step\n"
    "\n"
    "Throughput counts 30 bytes a parameter (28 with BF16 gradients): the state read and\n"
    "written, the gradient read, the weight written.\n"
    "--load DIR reads p.npy, g.npy and, if there, m.npy, v.npy (float32, one dimension, tensors\n"
    "in the model's order). --dump DIR writes p.npy, m.npy, v.npy and w.npy (uint16, BF16 bits).\n";

static const char examples[] =
    "  optimizer --impl all --params 4M --bucket 256K --slots 1,2,3 --iters 5 --check reference\n"
    "  optimizer --impl staged,offload-stream --params 4M --link-gbps 2 --slots 1,2\n"
    "  optimizer --params 1M --nonfinite 3 --skip-nonfinite\n"
    "  optimizer --plan --model gpt-oss-20b --world 8 --bucket 100e6 --whole-tensors --slots 2,3\n";

struct program_state {
    struct case_options common;
    struct adamw_line line;
    struct options *options;
    struct adamw_files files; /* with --load */
    bool streamed;            /* offload-stream was timed */
};

static bool takes(int impl, const char *option)
{
    const struct adamw_impl *i = adamw_impls[impl];
    if (!strcmp(option, "bucket") || !strcmp(option, "whole-tensors"))
        return i->takes_bucket;
    if (!strcmp(option, "slots") || !strcmp(option, "streams"))
        return i->takes_slots;
    return strcmp(option, "message-gbps") != 0; /* ranks exchange nothing but their norms */
}

/* ---- the current case ---------------------------------------------------------------------- */

static int current_world(const struct program_state *p)
{
    return (int)(p->line.world > 0 ? p->line.world : p->common.ranks);
}

static int current_model(
    const struct program_state *p, struct model_list *list, char *error, int size)
{
    if (p->line.model)
        return model_list_read(list, p->line.model, error, size);
    snprintf(error, (size_t)size, "no host memory");
    return model_list_single(list, p->common.load ? p->files.params : p->line.params);
}

/* ---- what is refused before anything runs -------------------------------------------------- */

static int check_case(struct program_state *p)
{
    char error[512];
    struct model_list list;
    struct adamw_options options = adamw_line_options(&p->line);
    if (current_world(p) < p->common.ranks)
        return options_refuse(p->options, "world", "got %lld, allowed at least %lld (--ranks)",
            (long long)p->line.world, (long long)p->common.ranks);
    if (adamw_check_options(&options, error, sizeof error))
        return options_refuse(p->options, "lr", "%s", error);
    if (current_model(p, &list, error, sizeof error))
        return options_refuse(p->options, p->line.model ? "model" : "params", "%s", error);
    int64_t params = list.params;
    model_list_free(&list);
    if (p->common.load && (params != p->files.params || current_world(p) != p->common.ranks))
        return options_refuse(p->options, "load",
            "got %lld parameters, allowed %lld on all of the world's ranks",
            (long long)p->files.params, (long long)params);
    return -1;
}

static int check_all(struct program_state *p)
{
    int status = -1;
    if (p->common.load && options_given(p->options, "params"))
        return options_refuse(p->options, "params", "is given by the files of --load");
    if (p->common.load && options_given(p->options, "nonfinite"))
        return options_refuse(p->options, "nonfinite", "has no effect with --load");
    if (case_simulates(&p->common) && options_given(p->options, "nonfinite"))
        return options_refuse(
            p->options, "nonfinite", "has no effect on sim, which stores no gradients");
    if (options_given(p->options, "skip-nonfinite") && options_given(p->options, "propagate"))
        return options_refuse(p->options, "skip-nonfinite", "has no effect with --propagate");
    for (options_rewind(p->options); status < 0 && options_next(p->options);)
        status = check_case(p);
    options_rewind(p->options);
    return status;
}

/* ---- what is known without running -------------------------------------------------------- */

/* One rank's shape and plan. */
struct sizes {
    struct adamw_options options; /* resolved */
    struct adamw_shape shape;
    struct adamw_plan plan;
};

static void sizes_free(struct sizes *sizes)
{
    adamw_plan_free(&sizes->plan);
    adamw_shape_free(&sizes->shape);
}

static int sizes_of(struct sizes *sizes, const struct program_state *p,
    const struct adamw_impl *impl, const struct model_list *list)
{
    struct adamw_options options = adamw_line_options(&p->line);
    *sizes = (struct sizes){.options = options};
    if (adamw_shape_init(&sizes->shape, list->tensor, list->tensors, current_world(p), 0))
        return -1;
    sizes->options = adamw_resolve(impl, &sizes->shape, &options);
    int status = sizes->options.whole_tensors
                     ? adamw_plan_whole_tensors(&sizes->plan, &sizes->shape, sizes->options.bucket)
                     : adamw_plan_cut(&sizes->plan, &sizes->shape, sizes->options.bucket);
    if (status)
        sizes_free(sizes);
    return status;
}

static int64_t resident_bytes(const struct sizes *s, bool host)
{
    bool host_gradients = s->options.gradients == ADAMW_HOST_F32;
    if (host)
        return host_gradients ? 4 * s->shape.params : 0;
    return s->shape.params * (host_gradients ? 2 : 4);
}

/* Figures that the plan alone gives. */
static void plan_figures(
    const struct adamw_impl *impl, const struct sizes *s, struct case_result *result)
{
    char text[32];
    if (!impl->takes_bucket)
        return;
    int64_t staging = impl->expected_bytes(&s->shape, &s->options, &s->plan, LIVE_STAGING);
    snprintf(text, sizeof text, "%lld", (long long)s->plan.buckets);
    case_result_figure(result, BUCKETS, (double)s->plan.buckets, text);
    snprintf(text, sizeof text, "%lld", (long long)s->plan.largest);
    case_result_figure(result, LARGEST_BUCKET, (double)s->plan.largest, text);
    units_bytes(staging, text, sizeof text);
    case_result_figure(result, STAGING, (double)staging, text);
}

static void describe_plan(
    const struct adamw_impl *impl, const struct sizes *s, struct case_result *result)
{
    char device[32], host[32], bound[32] = "none";
    int64_t on_device = impl->expected_bytes(&s->shape, &s->options, &s->plan, -1);
    int64_t on_host =
        impl->expected_host_bytes(&s->shape, &s->options, &s->plan, -1) + resident_bytes(s, true);
    result->plan = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "params_per_rank",
        (json_int_t)s->shape.params, "buckets", (json_int_t)s->plan.buckets, "largest_bucket",
        (json_int_t)s->plan.largest, "resident_bytes", (json_int_t)resident_bytes(s, false),
        "increment_bytes", (json_int_t)on_device, "host_pinned_bytes", (json_int_t)on_host);
    units_bytes(on_device, device, sizeof device);
    units_bytes(on_host, host, sizeof host);
    if (impl->bound_bytes)
        units_bytes(impl->bound_bytes(&s->shape, &s->options), bound, sizeof bound);
    case_result_skip(result,
        "closed form, nothing ran: %lld parameters a rank, increment %s, bound %s, pinned %s",
        (long long)s->shape.params, device, bound, host);
}

/* Says before anything is allocated when the machine cannot hold the case: each rank's arrays, and
 * the outputs and the reference's two states once. */
static bool fits_machine(const struct program_state *p, const struct adamw_impl *impl,
    const struct sizes *s, struct case_result *result)
{
    int64_t rank = impl->expected_bytes(&s->shape, &s->options, &s->plan, -1) +
                   impl->expected_host_bytes(&s->shape, &s->options, &s->plan, -1) +
                   resident_bytes(s, false) + resident_bytes(s, true);
    double total = (double)p->common.ranks * ((double)rank + 46.0 * (double)s->shape.params);
    return job_fits(total, " (--plan prints the closed forms)", result);
}

/* ---- running a case ------------------------------------------------------------------------ */

/* A step that was left out for its gradients is a failure unless it was asked for. */
static void note_nonfinite(
    struct program_state *p, const struct adamw_run *run, struct case_result *result)
{
    int64_t taken = 0, most = 0, first = -1;
    for (int64_t step = 0; step < run->steps; step++) {
        const struct adamw_report *report = &run->reports[step];
        taken += !report->skipped;
        if (report->nonfinite > most)
            most = report->nonfinite;
        if (first < 0)
            first = report->first_tensor;
    }
    if (!most)
        return;
    case_result_count(result, "nonfinite_gradients", most);
    case_result_count(result, "steps_taken", taken);
    const char *name = first < 0 ? "another rank's" : run->inputs->tensor[first].name;
    if (p->line.propagate || p->line.skip_nonfinite) {
        snprintf(result->note, sizeof result->note,
            "%lld gradients are not finite, the first in %s%s", (long long)most, name,
            p->line.propagate ? "" : ": nothing was written");
        return;
    }
    struct case_tensor *tensor = case_result_tensor(result, "gradients");
    if (!tensor)
        return;
    tensor->verdict = VERDICT_MISMATCH;
    snprintf(tensor->fault, sizeof tensor->fault,
        "%lld gradients are not finite, the first in %s: nothing was written (--skip-nonfinite "
        "accepts it)",
        (long long)most, name);
}

static bool took_every_step(const struct adamw_run *run)
{
    for (int64_t step = 0; step < run->steps; step++)
        if (run->reports[step].skipped)
            return false;
    return true;
}

/* Stage times of one traced step, and what follows from them. */
static int stage_figures(const struct program_state *p, const struct sizes *s,
    const struct adamw_impl *impl, const struct trace *trace, struct case_result *result)
{
    char text[32];
    struct overlap overlap, scan;
    if (trace_lost(trace))
        return 0;
    if (overlap_measure(trace, 0, kernel_adamw.name, &overlap) ||
        overlap_measure(trace, 0, kernel_gradient_scan.name, &scan))
        return -1;
    double buckets = (double)s->shape.params / (double)s->plan.largest;
    struct adamw_stages stages = adamw_stages_of(&overlap, buckets, s->options.slots);
    const struct option_reals *link = &p->common.link_gbps;
    if (link->count && impl->takes_bucket) {
        double largest = (double)s->plan.largest;
        stages.up_s =
            (double)adamw_slot_bytes(s->options.gradients) * largest / (link->values[0] * 1e9);
        stages.down_s = (double)ADAMW_STATE_BYTES * largest / (link->values[link->count - 1] * 1e9);
    }
    double step_s = adamw_stream_s(&stages) + scan.busy_s[OVERLAP_COMPUTE];
    double floor_s = buckets * (stages.up_s > stages.down_s ? stages.up_s : stages.down_s);
    units_seconds(step_s, text, sizeof text);
    case_result_figure(result, EQ_5, step_s, text);
    units_seconds(floor_s, text, sizeof text);
    case_result_figure(result, FLOOR, floor_s, text);
    struct copy_time copies = overlap_copies(trace, 0);
    if (copies.busy_s > 0 && isfinite(copies.exposed_s)) {
        units_seconds(copies.exposed_s, text, sizeof text);
        case_result_figure(result, EXPOSED_COPY, copies.exposed_s, text);
    }
    if (isfinite(overlap.fraction)) {
        snprintf(text, sizeof text, "%.1f%%", 100 * overlap.fraction);
        case_result_figure(result, OVERLAP, overlap.fraction, text);
    }
    return 0;
}

static void fill_throughput(const struct sizes *s, struct case_result *result)
{
    int64_t bytes = adamw_bytes_per_parameter(adamw_gradient_dtype(s->options.gradients));
    result->work = (double)bytes * (double)s->shape.params * (double)result->rank_count;
    result->work_unit = "B";
    result->work_formula = bytes == 30 ? "30 B/parameter" : "28 B/parameter";
}

/* One more run, of two steps, whose second is traced: timed steps are not. */
static void trace_step(struct program_state *p, struct report *report, const struct adamw_run *run,
    const struct sizes *s, struct case_result *result)
{
    struct case_result scratch;
    struct trace *trace = trace_create();
    struct ranks_config ranks = *run->ranks;
    struct adamw_run traced = *run;
    ranks.device.trace = trace;
    traced.ranks = &ranks;
    traced.steps = 2;
    traced.timed = traced.collect = false;
    if (!trace || case_result_init(&scratch, run->ranks->count)) {
        report_failure(report, EXIT_ENVIRONMENT, "no memory for a trace");
        trace_free(trace);
        return;
    }
    if (adamw_run(&traced, &scratch) || stage_figures(p, s, run->impl, trace, result))
        report_failure(report, EXIT_ENVIRONMENT, "the traced step: %s", traced.failure.message);
    job_write_trace(&p->common, trace, report);
    adamw_run_free(&traced);
    case_result_free(&scratch);
    trace_free(trace);
}

/* Checks the steps that were taken. True when they are right and can be measured: a step that was
 * not taken has no time either. */
static bool check_steps(struct program_state *p, struct report *report, struct adamw_run *run,
    struct case_result *result)
{
    char error[CASE_FAULT_MAX];
    int64_t samples, held = adamw_inputs_held(run->inputs);
    enum case_check level =
        case_check_level(&p->common, adamw_check_operations(held, run->steps), &samples);
    report_progress(report, "checking");
    if (run->collect && adamw_check(run, level, samples, result, error, sizeof error)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "check: %s", error);
        return false;
    }
    if (!launch_is_main())
        return true;
    note_nonfinite(p, run, result);
    if (p->common.dump &&
        adamw_files_dump(p->common.dump, held, &run->outputs, error, sizeof error)) {
        report_failure(report, EXIT_ENVIRONMENT, "--dump: %s", error);
        return false;
    }
    return case_verdict(result) != VERDICT_MISMATCH && took_every_step(run);
}

/* Runs once for memory and bits; when they are right, again for time, and once more for the trace.
 */
static void check_then_measure(struct program_state *p, struct report *report,
    struct adamw_run *run, const struct sizes *s, struct case_result *result)
{
    report_progress(report, "running once");
    run->collect = !case_simulates(&p->common);
    if (adamw_run(run, result)) {
        case_result_fail(result, &run->failure);
        return;
    }
    bool right = launch_follow(check_steps(p, report, run, result));
    adamw_run_free(run);
    if (!right)
        return;
    report_progress(report, "measuring");
    run->collect = false;
    run->steps = 1;
    run->timed = true;
    if (adamw_run(run, result)) {
        case_result_fail(result, &run->failure);
        return;
    }
    adamw_run_free(run);
    trace_step(p, report, run, s, result);
    fill_throughput(s, result);
    p->streamed |= run->impl == &adamw_offload_stream;
}

static void run_on_pool(struct program_state *p, struct report *report, const struct sizes *s,
    const struct adamw_inputs *inputs, struct case_result *result)
{
    struct adamw_options options = adamw_line_options(&p->line);
    struct dev_pool *pool = dev_pool_create(case_threads(&p->common));
    struct ranks_config ranks = case_ranks_config(&p->common, pool, NULL);
    struct timing_protocol protocol = case_timing_protocol(&p->common);
    struct adamw_run run = {.impl = adamw_impls[p->common.impl],
        .options = &options,
        .inputs = inputs,
        .ranks = &ranks,
        .steps = p->line.steps,
        .first_step = p->line.first_step,
        .protocol = &protocol};
    if (!pool) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "no memory for threads");
    } else {
        check_then_measure(p, report, &run, s, result);
    }
    adamw_run_free(&run);
    dev_pool_free(pool);
}

static void run_model(struct program_state *p, struct report *report, const struct model_list *list,
    struct case_result *result)
{
    const struct adamw_impl *impl = adamw_impls[p->common.impl];
    struct adamw_inputs inputs = {0};
    struct sizes sizes;
    if (sizes_of(&sizes, p, impl, list) ||
        adamw_inputs_seeded(&inputs, list->tensor, list->tensors, current_world(p),
            (int)p->common.ranks, (uint64_t)p->common.seed)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "no host memory for the parameter list");
        return;
    }
    inputs.nonfinite = p->line.nonfinite;
    if (p->common.load)
        adamw_files_use(&p->files, &inputs);
    plan_figures(impl, &sizes, result);
    if (p->line.plan)
        describe_plan(impl, &sizes, result);
    else if (case_simulates(&p->common) || fits_machine(p, impl, &sizes, result))
        run_on_pool(p, report, &sizes, &inputs, result);
    adamw_inputs_free(&inputs);
    sizes_free(&sizes);
}

static void run_case(void *context, struct report *report, struct case_result *result)
{
    struct program_state *p = context;
    struct model_list list;
    char error[512];
    if (current_model(p, &list, error, sizeof error)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "%.200s", error);
        return;
    }
    run_model(p, report, &list, result);
    model_list_free(&list);
}

/* What a reader of the table would wonder about. */
static void explain(const struct program_state *p)
{
    static const char note[] =
        "note: on a CPU, host and device share one memory, and device and cpu update in place at\n"
        "      its speed. staged and offload-stream copy 28 bytes a parameter through it besides,\n"
        "      so the pipeline can show overlap, not a gain over them. --link-gbps paces the "
        "copies\n"
        "      like a link.\n";
    if (p->streamed && !p->common.csv && p->common.device_kind == DEV_CPU)
        fputs(note, stdout);
}

static int prepare(struct program_state *p)
{
    char error[512];
    int status = case_setup(&p->common, p->options);
    if (status >= 0)
        return status;
    options_next(p->options); /* --load is the same in every case */
    if (p->common.load && adamw_files_load(p->common.load, &p->files, error, sizeof error))
        return options_refuse(p->options, "load", "%s", error);
    return check_all(p);
}

int main(int argc, char **argv)
{
    static struct program_state p;
    int status = launch_open("optimizer");
    if (status >= 0)
        return status;
    static const char *const dropped[] = {"dtype", "pass", "gemm", NULL};
    const char *names[IMPL_MAX] = {NULL}, *summaries[IMPL_MAX] = {NULL};
    for (int i = 0; adamw_impls[i] && i < IMPL_MAX - 1; i++) {
        names[i] = adamw_impls[i]->name;
        summaries[i] = adamw_impls[i]->summary;
    }
    struct option_group groups[] = {
        adamw_problem_group(&p.line),
        adamw_step_group(&p.line),
        case_group(&p.common, names),
    };
    case_group_drop(&p.common, &groups[2], dropped);
    struct program program = {.name = "optimizer",
        .summary = "one AdamW step over state that lives on the host",
        .description = description,
        .examples = examples,
        .groups = groups,
        .group_count = 3,
        .impl_names = names,
        .impl_summaries = summaries,
        .figures = figure_names,
        .takes = takes};
    status = options_parse(&p.options, &program, argc, argv);
    if (status < 0)
        status = prepare(&p);
    status = launch_agree(status, argc, argv);
    if (status < 0)
        status = report_run(&p.common, p.options, &program, argc, argv, run_case, &p);
    explain(&p);
    adamw_files_free(&p.files);
    options_free(p.options);
    return launch_close(status);
}
