/* dispatch - expert dispatch: pipelined-llep and relay beside what they replace
 *
 *   dispatch --impl all --ranks 8 --tokens 512 --hidden 256 --ffn 256 --experts 32 --topk 4
 *            --routing balanced,95/16,30/4 --chunk-budget 128 --check reference
 *   dispatch --routing trace.npy --experts 128 --ranks 8 --impl llep,pipelined-llep
 *   dispatch --data integers --activation relu --routing burst
 *
 * P ranks hold N tokens each and E/P experts each; a router names k experts for every token. A case
 * runs one dispatcher on one routing: once for its memory and its bits, which are compared, and
 * only then for its time. The peak that a router can force on a rank:
 *
 *   llep             all rows that a rank receives, and their experts' intermediates
 *   pipelined-llep   two chunks of them, and one chunk's intermediates
 *   relay            one hop's: all of its own routes, unless --hop-rows cuts them
 *
 * Throughput counts the experts' products, 6 H F a route forward and 12 H F backward (4 and 8 with
 * ReLU experts), whatever a schedule forms again. --help has every option. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "baselines/moe_shadow.h"
#include "bench/harness/case.h"
#include "bench/harness/job.h"
#include "bench/harness/dump.h"
#include "bench/harness/moe_check.h"
#include "bench/harness/moe_line.h"
#include "bench/harness/moe_load.h"
#include "bench/harness/moe_plan.h"
#include "bench/harness/products.h"
#include "bench/harness/moe_run.h"
#include "bench/harness/report.h"
#include "bench/harness/units.h"
#include "device/launch.h"
#include "ops/moe_route.h"
#include "probe/host.h"
#include "probe/trace.h"

#define IMPL_MAX 16

enum { CHUNKS, IMBALANCE, LENT, MOVES };
static const char *const figure_names[] = {
    "chunks", "busiest_rank_over_mean", "experts_lent", "relay_moves_tokens", NULL};

static const char description[] =
    "Throughput is the experts' products of the definition over the median time: 6 H F FLOP a "
    "route\n"
    "forward, 12 H F backward (4 and 8 with --activation relu).\n"
    "Increment is the fullest rank's tracked peak over resident tensors; saved is against llep.\n"
    "The load under a case's line is the realised one: routes to a rank's experts, to an expert.\n"
    "With several steps the line shows the step with the highest peak; the record has all steps'.\n"
    "--dump DIR writes Y.npy, dX.npy, dw.npy, dWgate.npy, dWup.npy, dWdown.npy.\n";

static const char examples[] =
    "  dispatch --impl all --ranks 8 --routing balanced,95/16,30/4 --chunk-budget 128\n"
    "  dispatch --impl pipelined-llep --ranks 4 --chunk-count 1,2,4,8 --chunks strided,contiguous\n"
    "  dispatch --impl llep,pipelined-llep --ranks 8 --routing trace.npy --experts 128\n"
    "  dispatch --impl alltoall,relay-expert,relay-token --ranks 8 --routing balanced,80/16\n"
    "  dispatch --impl all --ranks 4 --data integers --activation relu --routing uniform\n";

struct program_state {
    struct case_options common;
    struct moe_line line;
    struct options *options;
    struct moe_checker *checker;
    char described[512]; /* the routing and shape whose load was printed last */
};

/* The problem of one case. */
struct problem {
    struct moe_routing routing;
    struct moe_shape shape;
    int64_t tokens[MOE_RANKS_MAX];
    int64_t steps;
};

static bool takes(int impl, const char *option)
{
    char word[64];
    if (!strcmp(option, "load") || !strcmp(option, "host-memory") || !strcmp(option, "link-gbps"))
        return !strcmp(option, "host-memory"); /* index arrays are uploaded from pinned memory */
    if (!strcmp(option, "message-gbps") || !strcmp(option, "dump"))
        return true;
    if (!strcmp(option, "streams"))
        option = "chunks"; /* all others have one stream */
    snprintf(word, sizeof word, " %s ", option);
    return strstr(moe_impls[impl]->options, word) != NULL;
}

/* ---- the current case ---------------------------------------------------------------------------
 */

/* 0, or an exit status after one line on stderr. */
static int problem_open(struct program_state *p, struct problem *problem)
{
    const struct moe_line *line = &p->line;
    const struct option_counts *uneven = &line->tokens_per_rank;
    char error[512];
    int ranks = (int)p->common.ranks, topk = (int)line->topk;
    if (line->experts % ranks)
        return options_refuse(p->options, "experts", "got %lld, allowed a multiple of %d (--ranks)",
            (long long)line->experts, ranks);
    if (uneven->count && uneven->count != ranks)
        return options_refuse(p->options, "tokens-per-rank", "got %d counts, allowed %d (--ranks)",
            uneven->count, ranks);
    if (line->data && line->activation != MOE_RELU)
        return options_refuse(p->options, "data", "got integers, allowed with --activation relu");
    if (moe_routing_parse(&problem->routing, line->routing, error, sizeof error))
        return options_refuse(p->options, "routing", "%s", error);
    if (problem->routing.profile == MOE_TRACE &&
        (options_given(p->options, "tokens") || uneven->count))
        return options_refuse(p->options, uneven->count ? "tokens-per-rank" : "tokens",
            "has no effect on %s: a trace brings its own tokens", line->routing);
    if (moe_routing_topk(&problem->routing)) {
        if (options_given(p->options, "topk") && topk != moe_routing_topk(&problem->routing))
            return options_refuse(p->options, "topk", "got %d, allowed %d (the trace's)", topk,
                moe_routing_topk(&problem->routing));
        topk = moe_routing_topk(&problem->routing);
    }
    if (topk > MOE_TOPK_MAX)
        return options_refuse(p->options, "routing", "%s has %d slots a token, allowed at most %d",
            line->routing, topk, MOE_TOPK_MAX);
    for (int r = 0; r < ranks; r++)
        problem->tokens[r] = uneven->count ? uneven->values[r] : line->tokens;
    problem->shape = (struct moe_shape){.ranks = ranks,
        .tokens = problem->tokens,
        .hidden = line->hidden,
        .ffn = line->ffn,
        .experts = line->experts,
        .topk = topk,
        .dtype = (enum dtype)p->common.dtype,
        .activation = (enum moe_activation)line->activation};
    if (moe_routing_tokens(&problem->routing, ranks, topk, problem->tokens, problem->tokens, error,
            sizeof error) ||
        moe_routing_check(&problem->routing, &problem->shape, error, sizeof error))
        return options_refuse(p->options, "routing", "%s", error);
    int64_t there_are = moe_routing_steps(&problem->routing);
    problem->steps = line->steps > 0 ? line->steps : there_are ? there_are : 1;
    if (there_are && problem->steps > there_are)
        return options_refuse(p->options, "steps", "got %lld, allowed 1..%lld (the trace's)",
            (long long)line->steps, (long long)there_are);
    return -1;
}

static int check_case(struct program_state *p)
{
    struct problem problem = {.steps = 0};
    int status = problem_open(p, &problem);
    double tokens = 0;
    for (int r = 0; status < 0 && r < problem.shape.ranks; r++) {
        tokens += (double)problem.tokens[r];
        if (problem.tokens[r] * problem.shape.topk > INT32_MAX)
            status =
                options_refuse(p->options, "tokens", "rank %d has %lld routes, allowed at most %d",
                    r, (long long)(problem.tokens[r] * problem.shape.topk), INT32_MAX);
    }
    if (status < 0 && p->line.chunk_count && p->line.chunk_budget &&
        takes(p->common.impl, "chunk-count"))
        status = options_refuse(p->options, "chunk-budget", "has no effect beside --chunk-count");
    if (status < 0 && p->line.max_chunks && !p->line.chunk_budget &&
        takes(p->common.impl, "max-chunks"))
        status = options_refuse(p->options, "max-chunks", "has no effect without --chunk-budget");
    double values =
        tokens * problem.shape.topk * (4.0 * (double)p->line.hidden + 4.0 * (double)p->line.ffn) +
        3.0 * (double)p->line.experts * (double)p->line.hidden * (double)p->line.ffn;
    if (status < 0 && values > 0x1p58)
        status = options_refuse(
            p->options, "tokens", "tokens x topk x widths are more than 64-bit byte counts hold");
    moe_routing_free(&problem.routing);
    return status;
}

static int check_all(struct program_state *p)
{
    int status = -1;
    for (options_rewind(p->options); status < 0 && options_next(p->options);)
        status = check_case(p);
    options_rewind(p->options);
    return status;
}

/* ---- what a routing does ------------------------------------------------------------------------
 */

static bool plans(const struct moe_impl *impl)
{
    return strstr(impl->options, " lambda ") != NULL;
}

/* What the relay moves, and what either rule of its choice counts. */
static int describe_relay(const struct moe_run *run, struct case_result *result)
{
    const struct moe_shape *shape = &run->inputs->shape;
    if (run->impl != &moe_relay)
        return 0;
    const char *moves = moe_relay_moves(shape, run->options);
    case_result_figure(
        result, MOVES, !strcmp(moves, "tokens"), strcmp(moves, "tokens") ? "no" : "yes");
    return json_object_set_new(result->plan, "relay", moe_relay_json(shape, run->options));
}

/* Loads, plan and chunk count of one step. 0, or -1 when memory is short. */
static int describe_step(
    struct program_state *p, const struct moe_run *run, struct case_result *result)
{
    const struct moe_shape *shape = &run->inputs->shape;
    const struct moe_options *o = run->options;
    bool chunked = strstr(run->impl->options, " chunk-count ") != NULL;
    struct moe_partition partition = {
        .chunks = chunked ? moe_chunk_count(shape, o) : 1, .kind = o->chunks};
    struct llep_options llep = {o->alpha, o->min_gemm_tokens, o->lambda};
    struct moe_layout layout;
    struct moe_load per_rank, per_expert;
    char text[64], ranks_text[96], experts_text[96], key[512];
    struct shadow_rule rule = {shape, o->flops_per_byte};
    struct moe_planner shadows = {shadow_plan, &rule};
    const int32_t *const *idx = run->inputs->rank_idx;
    bool shadowing = run->impl == &moe_fastermoe;
    if (shadowing ? moe_layout_from_planner(&layout, shape, &partition, &shadows, idx)
                  : moe_layout_from_routing(
                        &layout, shape, &partition, plans(run->impl) ? &llep : NULL, idx))
        return -1;
    int64_t *counts = calloc((size_t)shape->experts, sizeof *counts);
    for (int r = 0; counts && r < shape->ranks; r++)
        for (int64_t e = 0; e < shape->experts; e++)
            counts[e] += layout.counts[r * shape->experts + e];
    if (!counts || moe_load_measure(&per_rank, &per_expert, shape->ranks, shape->experts, counts)) {
        free(counts);
        moe_layout_free(&layout);
        return -1;
    }
    for (int r = 0; r < shape->ranks; r++)
        result->ranks[r].routes = layout.plan.load[r];
    snprintf(text, sizeof text, "%lld", (long long)partition.chunks);
    case_result_figure(result, CHUNKS, (double)partition.chunks, text);
    snprintf(text, sizeof text, "%.2f", moe_load_imbalance(&per_rank));
    case_result_figure(result, IMBALANCE, moe_load_imbalance(&per_rank), text);
    if (plans(run->impl) || shadowing) {
        snprintf(text, sizeof text, "%lld", (long long)layout.plan.transfers);
        case_result_figure(result, LENT, (double)layout.plan.transfers, text);
    }
    json_t *loads = json_array();
    for (int r = 0; r < shape->ranks; r++)
        json_array_append_new(loads, json_integer(layout.plan.load[r]));
    json_t *tokens = json_array();
    for (int r = 0; r < shape->ranks; r++)
        json_array_append_new(tokens, json_integer(shape->tokens[r]));
    json_decref(result->plan);
    result->plan = json_pack("{s:o, s:i, s:I, s:o, s:o, s:o, s:b, s:I, s:I, s:I}", "tokens_by_rank",
        tokens, "topk", shape->topk, "chunks", (json_int_t)partition.chunks, "routes_to_rank",
        moe_load_json(&per_rank), "routes_to_expert", moe_load_json(&per_expert),
        "computed_by_rank", loads, "planned",
        layout.plan.planned && (plans(run->impl) || shadowing), "capacity",
        (json_int_t)layout.plan.cap, "excess", (json_int_t)layout.plan.excess, "transfers",
        (json_int_t)layout.plan.transfers);
    snprintf(key, sizeof key, "%.300s %lld %lld %d %d %lld", p->line.routing,
        (long long)run->inputs->total, (long long)shape->experts, shape->topk, shape->ranks,
        (long long)p->common.seed);
    if (strcmp(key, p->described)) {
        moe_load_text(&per_rank, ranks_text, sizeof ranks_text);
        moe_load_text(&per_expert, experts_text, sizeof experts_text);
        snprintf(result->note, sizeof result->note, "load: routes to a rank %s; to an expert %s",
            ranks_text, experts_text);
        snprintf(p->described, sizeof p->described, "%s", key);
    }
    free(counts);
    moe_layout_free(&layout);
    return describe_relay(run, result);
}

/* ---- running a case -----------------------------------------------------------------------------
 */

static int fail(struct case_result *result, const char *what)
{
    result->status = CASE_ERROR;
    snprintf(result->reason, sizeof result->reason, "%s", what);
    return -1;
}

static int64_t fullest_peak(const struct case_result *result)
{
    int rank = case_fullest_rank(result, WINDOW_PASS);
    return rank < 0 ? 0 : result->ranks[rank].windows[WINDOW_PASS].peak.peak_bytes;
}

static int dump(const char *dir, const struct moe_run *run, char *error, int size)
{
    const struct moe_shape *s = &run->inputs->shape;
    const struct moe_outputs *o = &run->outputs;
    enum npy_type type = s->dtype == DTYPE_BF16 ? NPY_U16 : NPY_F32;
    int64_t rows[2] = {run->inputs->total, s->hidden}, slots[2] = {run->inputs->total, s->topk};
    int64_t inner[3] = {s->experts, s->ffn, s->hidden}, outer[3] = {s->experts, s->hidden, s->ffn};
    if (dump_folder(dir, error, size))
        return -1;
    return dump_tensor(dir, "Y", type, 2, rows, o->y, error, size) ||
                   dump_tensor(dir, "dX", type, 2, rows, o->dx, error, size) ||
                   dump_tensor(dir, "dw", NPY_F32, 2, slots, o->router_gradient, error, size) ||
                   dump_tensor(dir, "dWgate", NPY_F32, 3, inner, o->gate_gradient, error, size) ||
                   dump_tensor(dir, "dWup", NPY_F32, 3, inner, o->up_gradient, error, size) ||
                   dump_tensor(dir, "dWdown", NPY_F32, 3, outer, o->down_gradient, error, size)
               ? -1
               : 0;
}

/* On the fast path once more, each product audited. 0 when it could be judged. */
static int bound_fast(
    struct report *report, const struct moe_run *run, int64_t samples, struct case_result *result)
{
    char error[256] = "no host memory for a second run";
    struct case_result scratch = {.rank_count = 0};
    struct ranks_config untraced = *run->ranks;
    struct moe_run fast = *run;
    report_progress(report, "bounding");
    untraced.device.trace = NULL;
    fast.ranks = &untraced;
    products_audit(samples);
    int status = case_result_init(&scratch, untraced.count);
    if (status == 0 && moe_run(&fast, &scratch))
        case_result_fail(result, &fast.failure);
    else if (status || moe_bound(run, &fast, result, error, sizeof error))
        fail(result, error);
    moe_outputs_free(&fast.outputs);
    case_result_free(&scratch);
    return result->status == CASE_OK ? 0 : -1;
}

/* 0, or -1 when memory is short. */
static int make_inputs(const struct program_state *p, const struct problem *problem, int64_t step,
    struct moe_inputs *inputs)
{
    uint64_t seed = (uint64_t)p->common.seed;
    if (case_simulates(&p->common))
        return moe_inputs_routed(inputs, &problem->shape, &problem->routing, seed, step);
    return moe_inputs_init(
        inputs, &problem->shape, &problem->routing, seed, step, p->line.data != 0);
}

/* One step, once: memory, bits, loads. 0, or -1 with the reason in the result. */
static int check_step(struct program_state *p, struct report *report, struct moe_run *run,
    struct moe_inputs *inputs, struct case_result *result)
{
    char error[256];
    int64_t samples;
    enum case_check level =
        case_check_level(&p->common, moe_check_operations(inputs, run->backward), &samples);
    report_progress(report, "running once");
    run->collect = !case_simulates(&p->common);
    run->timed = TIME_NOTHING;
    products_gate(&p->common);
    if (moe_run(run, result)) {
        case_result_fail(result, &run->failure);
        return -1;
    }
    if (case_simulates(&p->common))
        return describe_step(p, run, result) ? fail(result, "no host memory for a layout") : 0;
    report_progress(report, "checking");
    if (moe_check(p->checker, run, inputs, level, samples, result, error, sizeof error))
        return fail(result, error);
    if (p->common.dump && launch_is_main() && dump(p->common.dump, run, error, sizeof error)) {
        report_failure(report, EXIT_ENVIRONMENT, "--dump: %s", error);
        return -1;
    }
    if (products_bounds(&p->common) && bound_fast(report, run, samples, result))
        return -1;
    return describe_step(p, run, result) ? fail(result, "no host memory for a layout") : 0;
}

/* Median and 95th percentile of the steps' peaks. */
static void note_steps(struct case_result *result, const struct moe_routing *routing,
    const int64_t *peaks, int64_t steps, int64_t worst)
{
    struct moe_load load;
    if (steps < 2 || moe_load_of(&load, peaks, steps))
        return;
    json_object_set_new(result->plan, "step_peak_bytes", moe_load_json(&load));
    json_object_set_new(result->plan, "worst_step", json_integer(worst));
    char median[32], p95[32], most[32];
    units_bytes(load.median, median, sizeof median);
    units_bytes(load.p95, p95, sizeof p95);
    units_bytes(load.max, most, sizeof most);
    int64_t layers = routing->profile == MOE_TRACE ? routing->trace.layers : 1;
    char which[64];
    if (layers > 1)
        snprintf(which, sizeof which, "step %lld, layer %lld", (long long)(worst / layers),
            (long long)(worst % layers));
    else
        snprintf(which, sizeof which, "step %lld", (long long)worst);
    size_t at = strlen(result->note);
    snprintf(result->note + at, sizeof result->note - at,
        "%s%lld %s: peak median %s, p95 %s, max %s (%s, shown)", at ? "; " : "", (long long)steps,
        layers > 1 ? "steps and layers" : "steps", median, p95, most, which);
}

static void fill_throughput(
    const struct moe_inputs *inputs, enum case_pass pass, struct case_result *result)
{
    static const char *const formulas[2][3] = {{"6 H F routes", "12 H F routes", "18 H F routes"},
        {"4 H F routes", "8 H F routes", "12 H F routes"}};
    const struct moe_shape *s = &inputs->shape;
    double forward = s->activation == MOE_RELU ? 4 : 6, routes = 0;
    for (int64_t i = 0; i < inputs->total * s->topk; i++)
        routes += inputs->idx[i] != MOE_EMPTY;
    result->work = forward *
                   (pass == CASE_FORWARD       ? 1
                       : pass == CASE_BACKWARD ? 2
                                               : 3) *
                   (double)s->hidden * (double)s->ffn * routes;
    result->work_unit = "FLOP";
    result->work_formula = formulas[s->activation == MOE_RELU][pass == CASE_FORWARD    ? 0
                                                               : pass == CASE_BACKWARD ? 1
                                                                                       : 2];
}

/* Runs every step once and keeps the one with the highest peak in `result`. Returns that step, or
 * -1 when a step failed (the result says why) or its bits are wrong. */
static int64_t worst_step(struct program_state *p, struct report *report, struct problem *problem,
    struct moe_run *run, struct case_result *result)
{
    int64_t worst = 0, *peaks = calloc((size_t)problem->steps, sizeof *peaks);
    if (!peaks)
        return fail(result, "no host memory for the steps");
    for (int64_t step = 0; step < problem->steps && worst >= 0; step++) {
        struct moe_inputs inputs;
        struct case_result one;
        if (case_result_init(&one, problem->shape.ranks) ||
            make_inputs(p, problem, step, &inputs)) {
            worst = fail(result, "no host memory for the inputs");
            break;
        }
        one.simulated = result->simulated;
        if (problem->steps > 1) /* the step that is kept describes its own load */
            p->described[0] = 0;
        run->inputs = &inputs;
        bool good = launch_follow(check_step(p, report, run, &inputs, &one) == 0 &&
                                  case_verdict(&one) != VERDICT_MISMATCH);
        fill_throughput(&inputs, (enum case_pass)p->common.pass, &one);
        peaks[step] = fullest_peak(&one);
        moe_outputs_free(&run->outputs);
        moe_inputs_free(&inputs);
        if (!good || step == 0 || peaks[step] > peaks[worst]) {
            struct case_result kept = *result;
            *result = one;
            one = kept;
            worst = good ? step : -1;
        }
        case_result_free(&one);
    }
    if (worst >= 0)
        note_steps(result, &problem->routing, peaks, problem->steps, worst);
    free(peaks);
    return worst;
}

static void measure(struct program_state *p, struct report *report, struct problem *problem,
    struct moe_run *run, int64_t step, struct case_result *result)
{
    struct moe_inputs inputs;
    if (make_inputs(p, problem, step, &inputs)) {
        fail(result, "no host memory for the inputs");
        return;
    }
    report_progress(report, "measuring");
    struct ranks_config untraced = *run->ranks; /* a trace shows one pass, not every repetition */
    struct trace *trace = untraced.device.trace;
    untraced.device.trace = NULL;
    run->inputs = &inputs;
    run->collect = false;
    products_time(&p->common);
    int status = 0;
    if (products_bounds(&p->common) && trace) { /* the exact path was: the fast one is shown */
        trace_clear(trace);
        status = moe_run(run, result);
    }
    run->ranks = &untraced;
    run->timed = case_timed(&p->common);
    if (status || moe_run(run, result))
        case_result_fail(result, &run->failure);
    result->rss_peak_bytes = host_rss_peak_bytes();
    moe_inputs_free(&inputs);
}

/* The tensors that every dispatcher needs, and rows for all routes once: less than any case takes.
 * Says before anything is allocated when the machine cannot hold even that. */
static bool fits_machine(const struct moe_shape *shape, struct case_result *result)
{
    double tokens = 0, type = (double)dtype_bytes(shape->dtype);
    for (int r = 0; r < shape->ranks; r++)
        tokens += (double)shape->tokens[r];
    double weights = 3.0 * (double)shape->experts * (double)shape->ffn * (double)shape->hidden;
    double total = weights * (type + 4) + 4 * tokens * (double)shape->hidden * type +
                   tokens * shape->topk * ((double)shape->hidden * type + 24);
    return job_fits(total, "", result);
}

static void run_case(void *context, struct report *report, struct case_result *result)
{
    struct program_state *p = context;
    struct problem problem = {.steps = 0};
    struct moe_options options = moe_line_options(&p->line);
    struct timing_protocol protocol = case_timing_protocol(&p->common);
    if (problem_open(p, &problem) >= 0) { /* looked at before: a trace that has changed since */
        fail(result, "the routing can no longer be read");
        moe_routing_free(&problem.routing);
        return;
    }
    if (p->line.plan) {
        moe_plan_describe(moe_impls[p->common.impl], &problem.shape, &options,
            p->common.pass != CASE_FORWARD, result);
        moe_routing_free(&problem.routing);
        return;
    }
    if (problem.routing.profile == MOE_TRACE) { /* it brings its own, recorded in the plan */
        options_absent(p->options, "tokens");
        options_absent(p->options, "topk");
    }
    if (!case_simulates(&p->common) && !fits_machine(&problem.shape, result)) {
        moe_routing_free(&problem.routing);
        return;
    }
    struct trace *trace = p->common.trace ? trace_create() : NULL;
    struct dev_pool *pool = dev_pool_create(case_threads(&p->common));
    struct ranks_config ranks = case_ranks_config(&p->common, pool, trace);
    struct moe_run run = {.impl = moe_impls[p->common.impl],
        .options = &options,
        .backward = p->common.pass != CASE_FORWARD,
        .protocol = &protocol,
        .ranks = &ranks};
    if (!pool || (p->common.trace && !trace)) {
        fail(result, "no memory for threads or trace");
    } else {
        int64_t step = worst_step(p, report, &problem, &run, result);
        if (step >= 0)
            measure(p, report, &problem, &run, step, result);
    }
    job_write_trace(&p->common, trace, report);
    trace_free(trace);
    dev_pool_free(pool);
    moe_routing_free(&problem.routing);
}

static int prepare(struct program_state *p)
{
    int status = case_setup(&p->common, p->options);
    if (status < 0)
        status = check_all(p);
    if (status >= 0)
        return status;
    p->checker = moe_checker_create();
    return p->checker ? -1 : EXIT_ENVIRONMENT;
}

int main(int argc, char **argv)
{
    static struct program_state p;
    int status = launch_open("dispatch");
    if (status >= 0)
        return status;
    const char *names[IMPL_MAX] = {NULL}, *summaries[IMPL_MAX] = {NULL};
    for (int i = 0; moe_impls[i] && i < IMPL_MAX - 1; i++) {
        names[i] = moe_impls[i]->name;
        summaries[i] = moe_impls[i]->summary;
    }
    struct option_group groups[] = {
        moe_shape_group(&p.line), moe_schedule_group(&p.line), case_group(&p.common, names)};
    struct program program = {.name = "dispatch",
        .summary = "expert dispatch of a Mixture-of-Experts layer, forward and backward",
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
    moe_checker_free(p.checker);
    options_free(p.options);
    return launch_close(status);
}
