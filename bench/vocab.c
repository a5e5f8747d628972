/* vocab - the vocabulary projection and its loss: ring-dtp beside what it replaces.
 *
 *   vocab --impl all --ranks 4 --tokens 512 --hidden 256 --vocab 8192 --check reference
 *   vocab --ranks 3 --tokens-per-rank 5,0,7 --vocab 1003
 *   vocab --load DIR --dump OUT --impl ring-dtp --ranks 2
 *   vocab --plan --ranks 8 --tokens 16K --hidden 7168 --vocab 200000
 *
 * P ranks hold N tokens each and share a projection of V rows of width H. A case runs one
 * implementation once for its memory and its bits, compares the outputs, and only then measures
 * time.
 *
 *              tokens (P batches)                    live over resident, per rank
 *   materialized    N x V logits, whole weight       3 N V + ...
 *   vocab-parallel  P N x V/P logits                 N V + 2 P N H + ...
 *   chunked-tokens  a chunk x V, whole weight        chunk V + V H + ...
 *   ring-dtp        a tile of N x V/P                tile + dX + dW + two ring buffers
 *
 * Throughput counts the products of the definition, whatever an implementation forms again: 2 N V H
 * forward, 4 N V H backward, N over all ranks. --help has every option. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/case.h"
#include "bench/harness/job.h"
#include "bench/harness/products.h"
#include "bench/harness/report.h"
#include "bench/harness/vocab_check.h"
#include "bench/harness/vocab_files.h"
#include "bench/harness/vocab_run.h"
#include "bench/harness/units.h"
#include "device/launch.h"
#include "ops/ring_dtp.h"
#include "probe/host.h"
#include "probe/trace.h"

#define IMPL_MAX 16
/* Sizes whose products still fit 64-bit byte counts. */
#define SIZE_MAX_TOKENS (INT64_C(1) << 31)
#define SIZE_MAX_WIDTH (INT64_C(1) << 24)
#define SIZE_MAX_VOCAB (INT64_C(1) << 31)

struct vocab_options_line {
    int64_t tokens, hidden, vocab, tile, chunk;
    struct option_counts tokens_per_rank;
    int move;
    double ignored;
    bool plan;
};

static const char *const move_names[] = {"auto", "weights", "activations", NULL};

#define AT(field) offsetof(struct vocab_options_line, field)

static const struct option shape_options[] = {
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
        .most = VOCAB_RANKS_MAX,
        .help = "uneven ranks: one count per rank, 0 allowed"},
    {.name = "hidden",
        .kind = OPTION_COUNT,
        .at = AT(hidden),
        .axis = true,
        .column = "hidden",
        .argument = "H",
        .fallback = "256",
        .low = 1,
        .high = SIZE_MAX_WIDTH,
        .help = "hidden width"},
    {.name = "vocab",
        .kind = OPTION_COUNT,
        .at = AT(vocab),
        .axis = true,
        .column = "vocab",
        .argument = "V",
        .fallback = "8192",
        .low = 1,
        .high = SIZE_MAX_VOCAB,
        .help = "vocabulary rows; V mod P leftover rows go to the first ranks"},
    {.name = "move",
        .kind = OPTION_NAME,
        .at = AT(move),
        .axis = true,
        .by_impl = true,
        .fallback = "auto",
        .names = move_names,
        .help = "what travels the ring; auto: weights when max N > V/P, else activations"},
    {.name = "tile",
        .kind = OPTION_COUNT,
        .at = AT(tile),
        .axis = true,
        .by_impl = true,
        .argument = "ROWS",
        .fallback = "0",
        .default_note = "1024",
        .high = SIZE_MAX_VOCAB,
        .help = "rows in one tile of the side that stays put; 0 = 1024"},
    {.name = "chunk",
        .kind = OPTION_COUNT,
        .at = AT(chunk),
        .axis = true,
        .by_impl = true,
        .argument = "TOKENS",
        .fallback = "0",
        .high = SIZE_MAX_TOKENS,
        .help = "tokens in one chunk; 0 = the power of two at or above N / ceil(V / H)"},
    {.name = "ignored",
        .kind = OPTION_REAL,
        .at = AT(ignored),
        .argument = "SHARE",
        .fallback = "0",
        .real_high = 1,
        .help = "share of seeded tokens without a target (-100)"},
    {.name = "plan",
        .kind = OPTION_FLAG,
        .at = AT(plan),
        .role = OPTION_ELSEWHERE,
        .help = "print the closed forms of the memory; run nothing"},
};

static const char description[] =
    "Throughput is (2 forward + 4 backward) N V H FLOP of the definition over the median time, N "
    "over\n"
    "all ranks. Increment is the fullest rank's tracked peak over resident inputs and weights; "
    "bound is\n"
    "its share of the implementation's closed-form bound.\n"
    "A tile is cut along the side that stays: --tile counts tokens when weights move, and "
    "vocabulary\n"
    "rows (a multiple of 1024, or the whole shard) when activations move.\n"
    "--load DIR reads x.npy [tokens, hidden], w.npy [vocab, hidden] (both float32, or uint16 with "
    "BF16\n"
    "bits) and targets.npy [tokens] (int64, -100 = ignored); the tokens are dealt to the ranks in\n"
    "contiguous runs unless --tokens-per-rank says otherwise. --dump DIR writes loss.npy, dX.npy,\n"
    "dW.npy.\n";

static const char examples[] =
    "  vocab --impl all --ranks 4 --tokens 512 --hidden 256 --vocab 8192 --check reference\n"
    "  vocab --impl ring-dtp --move weights,activations --ranks 2,4 --tokens 2K --vocab 32K\n"
    "  vocab --ranks 3 --tokens-per-rank 5,0,7 --vocab 1003 --json r.jsonl\n"
    "  vocab --plan --ranks 8 --tokens 16K --hidden 7168 --vocab 200000\n";

/* Everything a case needs. */
struct program_state {
    struct case_options common;
    struct vocab_options_line line;
    struct options *options;
    struct vocab_files files; /* with --load */
    struct vocab_checker *checker;
    int64_t tokens[VOCAB_RANKS_MAX];
};

static bool takes(int impl, const char *option)
{
    const struct vocab_impl *i = vocab_impls[impl];
    if (!strcmp(option, "move"))
        return i->takes_move;
    if (!strcmp(option, "tile"))
        return i->takes_tile;
    if (!strcmp(option, "chunk"))
        return i->takes_chunk;
    if (!strcmp(option, "streams"))
        return i->takes_move; /* the others have one stream */
    if (!strcmp(option, "link-gbps") || !strcmp(option, "host-memory"))
        return false; /* no schedule of this family copies to the host */
    return true;
}

/* ---- the current case ---------------------------------------------------------------------------
 */

/* Contiguous runs, the leftover tokens to the first ranks. */
static void deal_tokens(struct program_state *p, int64_t total)
{
    int64_t ranks = p->common.ranks;
    for (int64_t r = 0; r < ranks; r++)
        p->tokens[r] = total / ranks + (r < total % ranks);
}

static struct vocab_shape current_shape(struct program_state *p)
{
    bool loaded = p->common.load != NULL;
    struct vocab_shape shape = {.ranks = (int)p->common.ranks,
        .tokens = p->tokens,
        .hidden = loaded ? p->files.hidden : p->line.hidden,
        .vocab = loaded ? p->files.vocab : p->line.vocab,
        .dtype = loaded ? p->files.dtype : (enum dtype)p->common.dtype};
    const struct option_counts *uneven = &p->line.tokens_per_rank;
    if (uneven->count)
        memcpy(p->tokens, uneven->values, (size_t)uneven->count * sizeof *uneven->values);
    else if (loaded)
        deal_tokens(p, p->files.tokens);
    else
        for (int r = 0; r < shape.ranks; r++)
            p->tokens[r] = p->line.tokens;
    return shape;
}

static struct vocab_options current_options(const struct program_state *p)
{
    return (struct vocab_options){
        .move = (enum vocab_move)p->line.move, .tile = p->line.tile, .chunk = p->line.chunk};
}

static int64_t resident_bytes(
    const struct vocab_impl *impl, const struct vocab_shape *shape, int rank)
{
    int64_t rows =
        impl->full_weight ? shape->vocab : vocab_shard_rows(shape->vocab, shape->ranks, rank);
    int64_t type = dtype_bytes(shape->dtype);
    return (shape->tokens[rank] + rows) * shape->hidden * type + shape->tokens[rank] * 8;
}

/* ---- what is refused before anything runs
 * -------------------------------------------------------- */

static int check_loaded(struct program_state *p)
{
    static const char *const fixed[] = {"tokens", "hidden", "vocab", "dtype", "ignored"};
    for (int i = 0; i < 5; i++)
        if (options_given(p->options, fixed[i]))
            return options_refuse(p->options, fixed[i], "is given by the files of --load");
    return -1;
}

static int check_case(struct program_state *p)
{
    const struct option_counts *uneven = &p->line.tokens_per_rank;
    char error[256];
    if (uneven->count && uneven->count != p->common.ranks)
        return options_refuse(p->options, "tokens-per-rank",
            "got %d counts, allowed %lld (--ranks)", uneven->count, (long long)p->common.ranks);
    struct vocab_shape shape = current_shape(p);
    int64_t total = vocab_total_tokens(&shape);
    if (p->common.load && total != p->files.tokens)
        return options_refuse(p->options, "tokens-per-rank",
            "got %lld tokens in all, allowed %lld (x.npy)", (long long)total,
            (long long)p->files.tokens);
    /* The largest live set is a few FP32 tensors of these sizes: their bytes must fit an int64_t.
     */
    double rows = (double)total + (double)shape.vocab;
    double values = (double)total * (double)shape.vocab + 4 * rows * (double)shape.hidden;
    if (values > 0x1p58)
        return options_refuse(p->options, "vocab",
            "%lld tokens x %lld rows x width %lld are more than 64-bit byte counts hold",
            (long long)total, (long long)shape.vocab, (long long)shape.hidden);
    struct vocab_options options = current_options(p);
    if (vocab_impls[p->common.impl] == &vocab_ring_dtp &&
        ring_dtp_check_options(&shape, &options, error, sizeof error))
        return options_refuse(p->options, "tile", "%s", error);
    return -1;
}

static int check_all(struct program_state *p)
{
    int status = -1;
    if (p->common.load)
        status = check_loaded(p);
    for (options_rewind(p->options); status < 0 && options_next(p->options);)
        status = check_case(p);
    options_rewind(p->options);
    return status;
}

/* ---- running a case
 * ------------------------------------------------------------------------------ */

/* Says before anything is allocated when the machine cannot hold the case. */
static bool fits_machine(const struct vocab_impl *impl, const struct vocab_shape *shape,
    const struct vocab_options *options, bool backward, struct case_result *result)
{
    double total = 0;
    for (int r = 0; r < shape->ranks; r++)
        total += (double)(resident_bytes(impl, shape, r) +
                          impl->expected_bytes(shape, options, r, -1, backward));
    return job_fits(total, " (--plan prints the closed forms)", result);
}

static void describe_plan(const struct vocab_impl *impl, const struct vocab_shape *shape,
    const struct vocab_options *options, bool backward, struct case_result *result)
{
    int64_t most = 0, resident = 0;
    int fullest = 0;
    char increment[32], bound[32] = "none", resident_text[32];
    for (int r = 0; r < shape->ranks; r++) {
        int64_t bytes = impl->expected_bytes(shape, options, r, -1, backward);
        if (resident_bytes(impl, shape, r) + bytes > resident + most || r == 0) {
            most = bytes;
            resident = resident_bytes(impl, shape, r);
            fullest = r;
        }
    }
    json_t *sets = json_object();
    for (int set = 0; set < LIVE_SET_COUNT; set++) {
        int64_t bytes = impl->expected_bytes(shape, options, fullest, set, backward);
        if (bytes)
            json_object_set_new(sets, mem_live_set_name((enum live_set)set), json_integer(bytes));
    }
    result->plan =
        json_pack("{s:I, s:I, s:i, s:o}", "resident_bytes", (json_int_t)resident, "increment_bytes",
            (json_int_t)most, "fullest_rank", fullest, "increment_by_live_set", sets);
    units_bytes(most, increment, sizeof increment);
    units_bytes(resident, resident_text, sizeof resident_text);
    if (impl->bound_bytes) {
        int64_t bytes = impl->bound_bytes(shape, options, fullest, backward);
        units_bytes(bytes, bound, sizeof bound);
        json_object_set_new(result->plan, "bound_bytes", json_integer(bytes));
    }
    if (impl->takes_move)
        json_object_set_new(result->plan, "moves",
            json_string(ring_dtp_weights_move(shape, options) ? "weights" : "activations"));
    case_result_skip(result, "closed form, nothing ran: resident %s, increment %s, bound %s",
        resident_text, increment, bound);
}

/* What the schedule chose and what the loss came to. */
static void describe_run(
    const struct vocab_run *run, const struct vocab_shape *shape, struct case_result *result)
{
    result->plan = json_pack("{s:I}", "valid_tokens", (json_int_t)run->outputs.valid);
    if (!result->simulated)
        json_object_set_new(result->plan, "mean_loss", json_real(run->outputs.mean));
    if (run->impl->takes_move)
        json_object_set_new(result->plan, "moves",
            json_string(ring_dtp_weights_move(shape, run->options) ? "weights" : "activations"));
    if (run->outputs.valid == 0)
        fprintf(stderr, "vocab: no token has a target: the loss is 0 and so are the gradients\n");
}

static void fill_throughput(
    struct case_result *result, const struct vocab_shape *shape, enum case_pass pass)
{
    double products = pass == CASE_FORWARD ? 2 : pass == CASE_BACKWARD ? 4 : 6;
    result->work =
        products * (double)vocab_total_tokens(shape) * (double)shape->vocab * (double)shape->hidden;
    result->work_unit = "FLOP";
    result->work_formula = pass == CASE_FORWARD    ? "2 N V H"
                           : pass == CASE_BACKWARD ? "4 N V H"
                                                   : "6 N V H";
}

/* Checks and describes what has run once. True when it is right and can be measured. */
static bool check_once(struct program_state *p, struct report *report, struct vocab_run *run,
    struct vocab_inputs *inputs, struct case_result *result)
{
    char error[256];
    int64_t samples;
    enum case_check level = case_check_level(
        &p->common, vocab_check_operations(&inputs->shape, run->backward), &samples);
    report_progress(report, "checking");
    if (run->collect &&
        vocab_check(p->checker, run, inputs, level, samples, result, error, sizeof error)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "check: %s", error);
        return false;
    }
    if (!launch_is_main())
        return true;
    describe_run(run, &inputs->shape, result);
    if (p->common.dump &&
        vocab_files_dump(p->common.dump, &inputs->shape, &run->outputs, error, sizeof error)) {
        report_failure(report, EXIT_ENVIRONMENT, "--dump: %s", error);
        return false;
    }
    return case_verdict(result) != VERDICT_MISMATCH; /* a wrong result has no time */
}

/* On the fast path once more, each product audited. True when its outputs are within bounds. */
static bool bound_fast(struct program_state *p, struct report *report, const struct vocab_run *run,
    struct case_result *result)
{
    char error[256] = "no host memory for a second run";
    struct case_result scratch = {.rank_count = 0};
    struct ranks_config untraced = *run->ranks;
    struct vocab_run fast = *run;
    int64_t samples;
    case_check_level(
        &p->common, vocab_check_operations(&run->inputs->shape, run->backward), &samples);
    report_progress(report, "bounding");
    untraced.device.trace = NULL;
    fast.ranks = &untraced;
    products_audit(samples);
    int status = case_result_init(&scratch, untraced.count);
    if (status == 0 && vocab_run(&fast, &scratch)) {
        case_result_fail(result, &fast.failure);
    } else if (status || vocab_bound(run, &fast, result, error, sizeof error)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "check: %s", error);
    }
    vocab_outputs_free(&fast.outputs);
    case_result_free(&scratch);
    return result->status == CASE_OK && case_verdict(result) != VERDICT_MISMATCH;
}

/* What was traced was the exact path: the fast one takes its place. 0, or -1. */
static int trace_fast(struct vocab_run *run, struct case_result *result)
{
    trace_clear(run->ranks->device.trace);
    return vocab_run(run, result);
}

/* Runs once for memory and bits; when they are right, again for time. */
static void check_then_measure(struct program_state *p, struct report *report,
    struct vocab_run *run, struct vocab_inputs *inputs, struct case_result *result)
{
    report_progress(report, "running once");
    run->collect = !case_simulates(&p->common);
    products_gate(&p->common);
    if (vocab_run(run, result)) {
        case_result_fail(result, &run->failure);
        return;
    }
    if (!launch_follow(check_once(p, report, run, inputs, result)))
        return;
    bool bounds = products_bounds(&p->common);
    if (bounds && !launch_follow(bound_fast(p, report, run, result)))
        return;
    vocab_outputs_free(&run->outputs);
    report_progress(report, "measuring");
    products_time(&p->common);
    run->collect = false;
    if (bounds && run->ranks->device.trace && trace_fast(run, result)) {
        case_result_fail(result, &run->failure);
        return;
    }
    struct ranks_config untraced = *run->ranks; /* a trace shows one pass, not every repetition */
    untraced.device.trace = NULL;
    run->ranks = &untraced;
    run->timed = case_timed(&p->common);
    if (vocab_run(run, result))
        case_result_fail(result, &run->failure);
}

static void run_on_pool(struct program_state *p, struct report *report,
    const struct vocab_shape *shape, struct vocab_inputs *inputs, struct case_result *result)
{
    struct vocab_options options = current_options(p);
    struct trace *trace = p->common.trace ? trace_create() : NULL;
    struct dev_pool *pool = dev_pool_create(case_threads(&p->common));
    struct ranks_config ranks = case_ranks_config(&p->common, pool, trace);
    struct timing_protocol protocol = case_timing_protocol(&p->common);
    struct vocab_run run = {.impl = vocab_impls[p->common.impl],
        .options = &options,
        .inputs = inputs,
        .backward = p->common.pass != CASE_FORWARD,
        .protocol = &protocol,
        .ranks = &ranks};
    if (!pool || (p->common.trace && !trace)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "no memory for threads or trace");
    } else {
        check_then_measure(p, report, &run, inputs, result);
        fill_throughput(result, shape, (enum case_pass)p->common.pass);
        result->rss_peak_bytes = host_rss_peak_bytes();
    }
    job_write_trace(&p->common, trace, report);
    vocab_outputs_free(&run.outputs);
    trace_free(trace);
    dev_pool_free(pool);
}

/* 0, or -1 when memory is short. */
static int make_inputs(
    const struct program_state *p, const struct vocab_shape *shape, struct vocab_inputs *inputs)
{
    uint64_t seed = (uint64_t)p->common.seed;
    if (p->common.load)
        return vocab_inputs_from_files(inputs, shape, &p->files);
    if (!case_simulates(&p->common))
        return vocab_inputs_seeded(inputs, shape, seed, p->line.ignored);
    *inputs = vocab_inputs_counted(shape, seed, p->line.ignored);
    return 0;
}

static void run_case(void *context, struct report *report, struct case_result *result)
{
    struct program_state *p = context;
    const struct vocab_impl *impl = vocab_impls[p->common.impl];
    struct vocab_shape shape = current_shape(p);
    struct vocab_options options = current_options(p);
    struct vocab_inputs inputs = {.seed = 0};
    bool backward = p->common.pass != CASE_FORWARD;
    if (p->common.load) { /* the files bring their own: no default may stand in its place */
        static const char *const replaced[] = {
            "tokens", "hidden", "vocab", "dtype", "ignored", "seed"};
        for (int i = 0; i < 6; i++)
            options_absent(p->options, replaced[i]);
        p->common.dtype = (int)shape.dtype;
        if (shape.dtype != DTYPE_BF16)
            options_absent(p->options, "gemm");
        snprintf(result->note, sizeof result->note,
            "loaded: %lld tokens, hidden %lld, vocab %lld, %s",
            (long long)vocab_total_tokens(&shape), (long long)shape.hidden, (long long)shape.vocab,
            shape.dtype == DTYPE_BF16 ? "bf16" : "f32");
    }
    if (p->line.plan) {
        describe_plan(impl, &shape, &options, backward, result);
        return;
    }
    if (!case_simulates(&p->common) && !fits_machine(impl, &shape, &options, backward, result))
        return;
    if (make_inputs(p, &shape, &inputs)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "no host memory for the inputs");
        return;
    }
    run_on_pool(p, report, &shape, &inputs, result);
    vocab_inputs_free(&inputs);
}

static int prepare(struct program_state *p)
{
    char error[512];
    int status = case_setup(&p->common, p->options);
    if (status >= 0)
        return status;
    options_next(p->options); /* --load is the same in every case */
    if (p->common.load && vocab_files_load(p->common.load, &p->files, error, sizeof error))
        return options_refuse(p->options, "load", "%s", error);
    status = check_all(p);
    if (status >= 0)
        return status;
    p->checker = vocab_checker_create();
    return p->checker ? -1 : EXIT_ENVIRONMENT;
}

int main(int argc, char **argv)
{
    static struct program_state p;
    int status = launch_open("vocab");
    if (status >= 0)
        return status;
    const char *names[IMPL_MAX] = {NULL}, *summaries[IMPL_MAX] = {NULL};
    for (int i = 0; vocab_impls[i] && i < IMPL_MAX - 1; i++) {
        names[i] = vocab_impls[i]->name;
        summaries[i] = vocab_impls[i]->summary;
    }
    struct option_group groups[] = {
        {"Shape", shape_options, (int)(sizeof shape_options / sizeof *shape_options), &p.line},
        case_group(&p.common, names),
    };
    struct program program = {.name = "vocab",
        .summary = "vocabulary projection and loss, forward and backward",
        .description = description,
        .examples = examples,
        .groups = groups,
        .group_count = 2,
        .impl_names = names,
        .impl_summaries = summaries,
        .takes = takes};
    status = options_parse(&p.options, &program, argc, argv);
    if (status < 0)
        status = prepare(&p);
    status = launch_agree(status, argc, argv);
    if (status < 0)
        status = report_run(&p.common, p.options, &program, argc, argv, run_case, &p);
    vocab_checker_free(p.checker);
    vocab_files_free(&p.files);
    options_free(p.options);
    return launch_close(status);
}
