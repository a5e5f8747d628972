/* checkpoint - boundaries of checkpointed layers on the host: sco beside what it replaces.
 *
 *   checkpoint --impl all --layers 12 --tokens 1024 --hidden 512 --ffn 1024 \
 *              --host-budget 0,2M,4M,1G --pass both --check reference
 *   checkpoint --impl resident,offload-all,sco --link-gbps 1
 *   checkpoint --ranks 3 --tokens-per-rank 5,0,7 --keep-pool
 *   checkpoint --plan --layers 47 --tokens 69632 --hidden 2880 --ffn 2880 --dtype bf16 \
 *              --host-budget 8G,16G --pinned-rounding pow2
 *
 * Each of P ranks runs its own tokens through L layers of RMSNorm and a SwiGLU MLP. A case takes
 * --steps steps for its memory and its bits, compares the outputs, and only then measures time.
 *
 *                      boundaries on the device    recomputes
 *   full-activations   L, and 3 F + H a token      0
 *   resident           L                           1
 *   offload-all        2                           1    copies in turn with the kernels
 *   sco                max(2, L - |S|)             1    copies beside them
 *
 * Throughput counts the products of the definition, whatever is computed again: 6 N L H F forward,
 * 12 N L H F backward, N over all ranks. --help has every option. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/case.h"
#include "bench/harness/job.h"
#include "bench/harness/overlap.h"
#include "bench/harness/products.h"
#include "bench/harness/report.h"
#include "bench/harness/stack_check.h"
#include "bench/harness/stack_run.h"
#include "bench/harness/units.h"
#include "probe/host.h"
#include "device/launch.h"
#include "probe/trace.h"

#define IMPL_MAX 16
/* Sizes whose products still fit 64-bit byte counts. */
#define SIZE_MAX_TOKENS (INT64_C(1) << 31)
#define SIZE_MAX_WIDTH (INT64_C(1) << 24)
#define STEPS_MAX (INT64_C(1) << 20)

struct stack_line {
    int64_t layers, tokens, hidden, ffn, host_budget, steps;
    struct option_counts tokens_per_rank;
    int rounding;
    bool keep_pool, plan;
};

static const char *const rounding_names[] = {"none", "pow2", NULL};

enum { SET, OFFLOADED, HOST, OVERLAP, EXPOSED_COPY };
static const char *const figure_names[] = {
    "set", "offloaded_bytes", "host_peak_bytes", "overlap", "exposed_copy_s", NULL};

#define AT(field) offsetof(struct stack_line, field)

static const struct option shape_options[] = {
    {.name = "layers",
        .kind = OPTION_COUNT,
        .at = AT(layers),
        .axis = true,
        .column = "layers",
        .argument = "L",
        .fallback = "8",
        .low = 1,
        .high = STACK_LAYERS_MAX,
        .help = "checkpointed layers, each with its boundary"},
    {.name = "tokens",
        .kind = OPTION_COUNT,
        .at = AT(tokens),
        .axis = true,
        .column = "tokens",
        .argument = "N",
        .fallback = "512",
        .replaced_by = "tokens-per-rank",
        .unit = "tokens per rank",
        .high = SIZE_MAX_TOKENS,
        .help = "tokens on each rank"},
    {.name = "tokens-per-rank",
        .kind = OPTION_COUNTS,
        .at = AT(tokens_per_rank),
        .argument = "N0,N1,...",
        .default_note = "--tokens on every rank",
        .unit = "tokens",
        .high = SIZE_MAX_TOKENS,
        .most = STACK_RANKS_MAX,
        .help = "uneven ranks: one count per rank, 0 allowed"},
    {.name = "hidden",
        .kind = OPTION_COUNT,
        .at = AT(hidden),
        .axis = true,
        .argument = "H",
        .fallback = "256",
        .low = 1,
        .high = SIZE_MAX_WIDTH,
        .help = "hidden width"},
    {.name = "ffn",
        .kind = OPTION_COUNT,
        .at = AT(ffn),
        .axis = true,
        .argument = "F",
        .fallback = "512",
        .low = 1,
        .high = SIZE_MAX_WIDTH,
        .help = "width of the MLP"},
    {.name = "host-budget",
        .kind = OPTION_BYTES,
        .at = AT(host_budget),
        .axis = true,
        .by_impl = true,
        .column = "budget",
        .default_note = "unlimited",
        .unit = "bytes per rank",
        .help = "bytes of boundaries that may go to the host; what does not fit stays"},
    {.name = "pinned-rounding",
        .kind = OPTION_NAME,
        .at = AT(rounding),
        .axis = true,
        .by_impl = true,
        .fallback = "none",
        .names = rounding_names,
        .help = "size of a pinned block: what it holds, or the next power of two"},
    {.name = "keep-pool",
        .kind = OPTION_FLAG,
        .at = AT(keep_pool),
        .by_impl = true,
        .help = "keep pinned blocks from step to step; else they go back after each"},
    {.name = "steps",
        .kind = OPTION_COUNT,
        .at = AT(steps),
        .role = OPTION_PROTOCOL,
        .fallback = "1",
        .low = 1,
        .high = STEPS_MAX,
        .help = "steps before the outputs are compared; none may leave memory behind"},
    {.name = "plan",
        .kind = OPTION_FLAG,
        .at = AT(plan),
        .role = OPTION_ELSEWHERE,
        .help = "print the closed forms of the memory; run nothing"},
};

static const char description[] =
    "set        boundaries that the budget chose, of the rank with most tokens\n"
    "offloaded  their bytes, which the budget limits; host peak: the pinned blocks that hold them\n"
    "overlap    of the time in which a copy ran, the share in which a kernel ran too, in one\n"
    "           traced step of rank 0; exposed copy: the rest of that time\n"
    "\n"
    "Throughput is (6 forward + 12 backward) N L H F FLOP of the definition over the median time, "
    "N\n"
    "over all ranks. Weight gradients are of each rank's own tokens. --host-memory is never an\n"
    "error here: what it does not hold stays on the device.\n";

static const char examples[] =
    "  checkpoint --impl all --layers 12 --tokens 1024 --hidden 512 --ffn 1024 \\\n"
    "             --host-budget 0,2M,4M,1G --pass both --check reference\n"
    "  checkpoint --impl resident,offload-all,sco --link-gbps 1\n"
    "  checkpoint --ranks 3 --tokens-per-rank 5,0,7 --keep-pool --steps 10\n"
    "  checkpoint --plan --layers 47 --tokens 69632 --hidden 2880 --ffn 2880 --dtype bf16 \\\n"
    "             --host-budget 8G,16G --pinned-rounding pow2\n";

struct program_state {
    struct case_options common;
    struct stack_line line;
    struct options *options;
    struct stack_inputs inputs; /* of the last shape that ran; arrays NULL before */
    uint64_t inputs_seed;
    struct stack_checker checker;
    int64_t tokens[STACK_RANKS_MAX]; /* of the current case */
    int64_t inputs_tokens[STACK_RANKS_MAX];
};

static bool takes(int impl, const char *option)
{
    const struct stack_impl *i = stack_impls[impl];
    if (!strcmp(option, "host-budget"))
        return i->takes_budget;
    if (!strcmp(option, "pinned-rounding") || !strcmp(option, "keep-pool") ||
        !strcmp(option, "link-gbps") || !strcmp(option, "host-memory"))
        return i->takes_pool;
    if (!strcmp(option, "streams"))
        return i->takes_budget;                 /* the others have one stream */
    return strcmp(option, "message-gbps") != 0; /* ranks exchange nothing */
}

/* ---- the current case -------------------------------------------------------------------------
 */

static struct stack_shape current_shape(struct program_state *p)
{
    const struct option_counts *uneven = &p->line.tokens_per_rank;
    for (int r = 0; r < p->common.ranks; r++)
        p->tokens[r] = uneven->count ? uneven->values[r] : p->line.tokens;
    return (struct stack_shape){.ranks = (int)p->common.ranks,
        .tokens = p->tokens,
        .layers = p->line.layers,
        .hidden = p->line.hidden,
        .ffn = p->line.ffn,
        .dtype = (enum dtype)p->common.dtype};
}

static struct stack_options current_options(const struct program_state *p)
{
    return (struct stack_options){.budget = {.bytes = p->line.host_budget,
                                      .pinned_limit_bytes = case_host_limit_bytes(&p->common),
                                      .rounding = (enum pinned_rounding)p->line.rounding},
        .keep_pool = p->line.keep_pool};
}

static bool with_backward(const struct program_state *p)
{
    return p->common.pass != CASE_FORWARD;
}

/* Weights, gradients, the output's gradient and the token group. */
static int64_t resident_bytes(const struct stack_shape *shape, int rank)
{
    int64_t weights = shape->layers * shape->hidden * (3 * shape->ffn + 1);
    return weights * (dtype_bytes(shape->dtype) + 4) + stack_row_bytes(shape, rank) +
           (int64_t)sizeof(struct expert_group);
}

static int fullest_rank(const struct stack_shape *shape)
{
    int most = 0;
    for (int r = 1; r < shape->ranks; r++)
        if (shape->tokens[r] > shape->tokens[most])
            most = r;
    return most;
}

static struct stack_ledger replayed(const struct stack_impl *impl, const struct stack_shape *shape,
    const struct stack_options *options, int rank, bool backward)
{
    struct stack_ledger ledger = stack_ledger_open(shape, rank, backward);
    impl->replay(shape, options, &ledger);
    return ledger;
}

/* ---- what is refused before anything runs -----------------------------------------------------
 */

static int check_case(struct program_state *p)
{
    const struct option_counts *uneven = &p->line.tokens_per_rank;
    if (p->common.ranks > STACK_RANKS_MAX)
        return options_refuse(p->options, "ranks", "got %lld, allowed at most %d",
            (long long)p->common.ranks, STACK_RANKS_MAX);
    if (uneven->count && uneven->count != p->common.ranks)
        return options_refuse(p->options, "tokens-per-rank",
            "got %d counts, allowed %lld (--ranks)", uneven->count, (long long)p->common.ranks);
    struct stack_shape shape = current_shape(p);
    double total = (double)stack_first_token(&shape, shape.ranks);
    double widths = (double)shape.hidden + 3 * (double)shape.ffn;
    double weights = (double)shape.ranks * 3 * (double)shape.hidden * (double)shape.ffn;
    if ((double)shape.layers * (total * widths + weights) > 0x1p58)
        return options_refuse(p->options, "layers",
            "%lld layers of widths %lld and %lld are more than 64-bit byte counts hold",
            (long long)shape.layers, (long long)shape.hidden, (long long)shape.ffn);
    return -1;
}

static int check_all(struct program_state *p)
{
    int status = -1;
    for (options_rewind(p->options); status < 0 && options_next(p->options);)
        status = check_case(p);
    options_rewind(p->options);
    return status;
}

/* ---- what is known without running ------------------------------------------------------------
 */

static void bytes_figure(struct case_result *result, int index, int64_t bytes)
{
    char text[32];
    units_bytes(bytes, text, sizeof text);
    case_result_figure(result, index, (double)bytes, text);
}

static void choice_figures(const struct stack_impl *impl, const struct stack_shape *shape,
    const struct stack_options *options, bool backward, struct case_result *result)
{
    char text[32];
    int rank = fullest_rank(shape);
    struct stack_ledger ledger = replayed(impl, shape, options, rank, backward);
    if (impl->takes_budget) {
        struct sco_choice choice = stack_choose(shape, options, rank, NULL);
        snprintf(text, sizeof text, "%lld/%lld", (long long)choice.count, (long long)shape->layers);
        case_result_figure(result, SET, (double)choice.count, text);
        bytes_figure(result, OFFLOADED, choice.logical_bytes);
    }
    if (impl->takes_pool)
        bytes_figure(result, HOST, ledger.host.window.peak_bytes);
}

static void describe_plan(const struct stack_impl *impl, const struct stack_shape *shape,
    const struct stack_options *options, bool backward, struct case_result *result)
{
    char increment[32], resident[32], bound[32] = "none";
    int rank = fullest_rank(shape);
    struct stack_ledger ledger = replayed(impl, shape, options, rank, backward);
    int64_t bytes = ledger.device.window.peak_bytes;
    result->plan = json_pack("{s:I, s:I, s:I, s:i, s:I}", "resident_bytes",
        (json_int_t)resident_bytes(shape, rank), "increment_bytes", (json_int_t)bytes,
        "host_pinned_bytes", (json_int_t)ledger.host.window.peak_bytes, "fullest_rank", rank,
        "boundary_bytes", (json_int_t)stack_row_bytes(shape, rank));
    units_bytes(bytes, increment, sizeof increment);
    units_bytes(resident_bytes(shape, rank), resident, sizeof resident);
    if (impl->bound_bytes)
        units_bytes(impl->bound_bytes(shape, options, rank, backward), bound, sizeof bound);
    case_result_skip(result, "closed form, nothing ran: resident %s, increment %s, bound %s",
        resident, increment, bound);
}

/* Says before anything is allocated when the machine cannot hold the case: ranks, the inputs, the
 * outputs, and the reference's. */
static bool fits_machine(const struct stack_impl *impl, const struct stack_shape *shape,
    const struct stack_options *options, bool backward, struct case_result *result)
{
    double total = 0;
    for (int r = 0; r < shape->ranks; r++) {
        struct stack_ledger ledger = replayed(impl, shape, options, r, backward);
        total += (double)(ledger.device.window.peak_bytes + ledger.host.window.peak_bytes) +
                 3 * (double)resident_bytes(shape, r);
    }
    return job_fits(total, " (--plan prints the closed forms)", result);
}

/* ---- running a case ---------------------------------------------------------------------------
 */

/* Inputs and the reference's result stay while the shape stays: budgets and implementations share
 * them. */
static int make_inputs(struct program_state *p, const struct stack_shape *shape)
{
    const struct stack_shape *have = &p->inputs.shape;
    const size_t token_bytes = (size_t)shape->ranks * sizeof *shape->tokens;
    if (p->inputs.arrays[0] && have->ranks == shape->ranks && have->layers == shape->layers &&
        have->hidden == shape->hidden && have->ffn == shape->ffn && have->dtype == shape->dtype &&
        p->inputs_seed == (uint64_t)p->common.seed &&
        !memcmp(p->inputs_tokens, shape->tokens, token_bytes))
        return 0;
    stack_checker_free(&p->checker);
    stack_inputs_free(&p->inputs);
    memcpy(p->inputs_tokens, shape->tokens, token_bytes);
    p->inputs_seed = (uint64_t)p->common.seed;
    struct stack_shape kept = *shape;
    kept.tokens = p->inputs_tokens;
    if (case_simulates(&p->common)) {
        p->inputs = stack_inputs_none(&kept);
        return 0;
    }
    return stack_inputs_seeded(&p->inputs, &kept, p->inputs_seed);
}

static void fill_throughput(
    struct case_result *result, const struct stack_shape *shape, enum case_pass pass)
{
    double products = pass == CASE_FORWARD ? 6 : pass == CASE_BACKWARD ? 12 : 18;
    result->work = products * (double)stack_first_token(shape, shape->ranks) *
                   (double)shape->layers * (double)shape->hidden * (double)shape->ffn;
    result->work_unit = "FLOP";
    result->work_formula = pass == CASE_FORWARD    ? "6 N L H F"
                           : pass == CASE_BACKWARD ? "12 N L H F"
                                                   : "18 N L H F";
}

/* One more run whose second step is traced: timed steps are not. */
static void trace_step(struct program_state *p, struct report *report, const struct stack_run *run,
    struct case_result *result)
{
    struct case_result scratch;
    struct trace *trace = trace_create();
    struct ranks_config ranks = *run->ranks;
    struct stack_run traced = *run;
    ranks.device.trace = trace;
    traced.ranks = &ranks;
    traced.steps = 2;
    traced.timed = TIME_NOTHING;
    traced.collect = false;
    if (!trace || case_result_init(&scratch, run->ranks->count)) {
        report_failure(report, EXIT_ENVIRONMENT, "no memory for a trace");
        trace_free(trace);
        return;
    }
    if (stack_run(&traced, &scratch))
        report_failure(report, EXIT_ENVIRONMENT, "the traced step: %s", traced.failure.message);
    struct copy_time copies = overlap_copies(trace, 0);
    if (copies.busy_s > 0 && isfinite(copies.exposed_s)) {
        char text[32];
        snprintf(text, sizeof text, "%.1f%%", 100 * copies.hidden_s / copies.busy_s);
        case_result_figure(result, OVERLAP, copies.hidden_s / copies.busy_s, text);
        units_seconds(copies.exposed_s, text, sizeof text);
        case_result_figure(result, EXPOSED_COPY, copies.exposed_s, text);
    }
    job_write_trace(&p->common, trace, report);
    case_result_free(&scratch);
    trace_free(trace);
}

/* Checks the steps that were taken. True when they are right and can be measured. */
static bool check_steps(struct program_state *p, struct report *report, struct stack_run *run,
    struct case_result *result)
{
    char error[CASE_FAULT_MAX];
    int64_t samples;
    enum case_check level = case_check_level(
        &p->common, stack_check_operations(&run->inputs->shape, run->backward), &samples);
    report_progress(report, "checking");
    if (run->collect &&
        stack_check(&p->checker, run, level, samples, result, error, sizeof error)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "check: %s", error);
        return false;
    }
    case_result_count(result, "recomputes_per_layer", run->backward ? run->impl->recomputes : 0);
    return case_verdict(result) != VERDICT_MISMATCH; /* a wrong result has no time */
}

/* On the fast path once more, each product audited. True when its outputs are within bounds. */
static bool bound_fast(struct program_state *p, struct report *report, const struct stack_run *run,
    struct case_result *result)
{
    char error[CASE_FAULT_MAX] = "no host memory for a second run";
    struct case_result scratch = {.rank_count = 0};
    struct stack_run fast = *run;
    int64_t samples;
    case_check_level(
        &p->common, stack_check_operations(&run->inputs->shape, run->backward), &samples);
    report_progress(report, "bounding");
    products_audit(samples);
    int status = case_result_init(&scratch, run->ranks->count);
    if (status == 0 && stack_run(&fast, &scratch)) {
        case_result_fail(result, &fast.failure);
    } else if (status || stack_bound(run, &fast, result, error, sizeof error)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "check: %s", error);
    }
    stack_outputs_free(&fast.outputs);
    case_result_free(&scratch);
    return result->status == CASE_OK && case_verdict(result) != VERDICT_MISMATCH;
}

/* Takes the steps for memory and bits; when they are right, again for time, and once more for the
 * trace. */
static void check_then_measure(struct program_state *p, struct report *report,
    struct stack_run *run, struct case_result *result)
{
    report_progress(report, "running once");
    run->collect = !case_simulates(&p->common);
    products_gate(&p->common);
    if (stack_run(run, result)) {
        case_result_fail(result, &run->failure);
        return;
    }
    bool right = launch_follow(check_steps(p, report, run, result));
    if (right && products_bounds(&p->common))
        right = launch_follow(bound_fast(p, report, run, result));
    stack_outputs_free(&run->outputs);
    if (!right)
        return;
    report_progress(report, "measuring");
    products_time(&p->common);
    run->collect = false;
    run->steps = 1;
    run->timed = case_timed(&p->common);
    if (stack_run(run, result)) {
        case_result_fail(result, &run->failure);
        return;
    }
    trace_step(p, report, run, result);
    fill_throughput(result, &run->inputs->shape, (enum case_pass)p->common.pass);
    result->rss_peak_bytes = host_rss_peak_bytes();
}

static void run_on_pool(struct program_state *p, struct report *report,
    const struct stack_options *options, struct case_result *result)
{
    struct dev_pool *pool = dev_pool_create(case_threads(&p->common));
    struct ranks_config ranks = case_ranks_config(&p->common, pool, NULL);
    struct timing_protocol protocol = case_timing_protocol(&p->common);
    struct stack_run run = {.impl = stack_impls[p->common.impl],
        .options = options,
        .inputs = &p->inputs,
        .backward = with_backward(p),
        .steps = p->line.steps,
        .protocol = &protocol,
        .ranks = &ranks};
    if (!pool) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "no memory for threads");
    } else {
        check_then_measure(p, report, &run, result);
    }
    stack_outputs_free(&run.outputs);
    dev_pool_free(pool);
}

static void run_case(void *context, struct report *report, struct case_result *result)
{
    struct program_state *p = context;
    const struct stack_impl *impl = stack_impls[p->common.impl];
    struct stack_shape shape = current_shape(p);
    struct stack_options options = current_options(p);
    choice_figures(impl, &shape, &options, with_backward(p), result);
    if (p->line.plan) {
        describe_plan(impl, &shape, &options, with_backward(p), result);
        return;
    }
    if (!case_simulates(&p->common) &&
        !fits_machine(impl, &shape, &options, with_backward(p), result))
        return;
    if (make_inputs(p, &shape)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "no host memory for the inputs");
        return;
    }
    run_on_pool(p, report, &options, result);
}

int main(int argc, char **argv)
{
    static struct program_state p;
    int status = launch_open("checkpoint");
    if (status >= 0)
        return status;
    static const char *const dropped[] = {"load", "dump", NULL};
    const char *names[IMPL_MAX] = {NULL}, *summaries[IMPL_MAX] = {NULL};
    for (int i = 0; stack_impls[i] && i < IMPL_MAX - 1; i++) {
        names[i] = stack_impls[i]->name;
        summaries[i] = stack_impls[i]->summary;
    }
    struct option_group groups[] = {
        {"Shape", shape_options, (int)(sizeof shape_options / sizeof *shape_options), &p.line},
        case_group(&p.common, names),
    };
    case_group_drop(&p.common, &groups[1], dropped);
    struct program program = {.name = "checkpoint",
        .summary = "checkpointed layers, forward and backward, boundaries on the host",
        .description = description,
        .examples = examples,
        .groups = groups,
        .group_count = 2,
        .impl_names = names,
        .impl_summaries = summaries,
        .figures = figure_names,
        .takes = takes};
    status = options_parse(&p.options, &program, argc, argv);
    if (status < 0)
        status = case_setup(&p.common, p.options);
    if (status < 0)
        status = check_all(&p);
    status = launch_agree(status, argc, argv);
    if (status < 0)
        status = report_run(&p.common, p.options, &program, argc, argv, run_case, &p);
    stack_checker_free(&p.checker);
    stack_inputs_free(&p.inputs);
    options_free(p.options);
    return launch_close(status);
}
