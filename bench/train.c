/* train - a small mixture-of-experts language model, trained for real.
 *
 *   train --steps 300 --ranks 4
 *   train --composition composed,standard-in-order --explain
 *   train --text book.txt --dispatch relay --checkpoint offload-all
 *   train --steps 20 --dump-routes routes && dispatch --routing routes/routes.npy ...
 *
 * Bytes of a text are its tokens. Each family's implementation is an option; a composition is a
 * choice of all four:
 *
 *   composed            pipelined-llep, ring-dtp, sco, offload-stream
 *   standard            alltoall, materialized, full-activations, device
 *   standard-in-order   the standard step, its sums in the composed one's declared orders
 *
 * --dispatch, --vocab-impl, --checkpoint and --optimizer say what else `composed` is made of. The
 * first and the last must give the same losses and the same weights, bit for bit. --help has
 * every option. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/dump.h"
#include "bench/harness/gemm_rate.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/products.h"
#include "bench/harness/report.h"
#include "bench/harness/train_report.h"
#include "device/launch.h"
#include "kernels/attention.h"
#include "probe/npy.h"
#include "probe/trace.h"

static const char description[] =
    "bigram    nats per byte of a model that knows how often each byte follows each other one in\n"
    "          this text: H(next | previous)\n"
    "GEMM      of a BF16 product of 512 x 512 x 512 on as many threads, measured beside\n"
    "\n"
    "Throughput counts, for a token, 6 FLOP for every weight that it meets and 6 L T H for\n"
    "attention; nothing for what is computed again. Executed are the FLOP of all kernels that "
    "ran.\n"
    "Digests are of all losses and of all master\n"
    "weights: equal digests are equal bits.\n";

static const char examples[] =
    "  train --steps 300 --ranks 4\n"
    "  train --composition composed,standard-in-order,standard --steps 50 --explain\n"
    "  train --ranks 4 --sequence-group 2 --text README.md --freeze none,attention,experts\n"
    "  train --steps 20 --dump-routes routes\n";

struct program_state {
    struct case_options common;
    struct train_line line;
    struct options *options;
    struct train_text text;
    struct train_report report;
    struct train_run first; /* of a group of compositions; kept for comparison */
    struct model_shape first_shape;
    int first_composition, last_composition; /* of the group; of the last case */
    bool has_first, has_case, failed_check, failed_environment;
};

/* ---- the current case ------------------------------------------------------------------------ */

static struct model_shape current_shape(const struct program_state *p)
{
    const struct train_line *line = &p->line;
    int ranks = (int)p->common.ranks;
    return (struct model_shape){.layout = {.ranks = ranks,
                                    .degree = {(int)line->sequence_group,
                                        line->expert_group > 0 ? (int)line->expert_group : ranks,
                                        line->vocab_group > 0 ? (int)line->vocab_group : ranks},
                                    .heads = line->heads,
                                    .experts = line->experts},
        .layers = line->layers,
        .hidden = line->hidden,
        .ffn = line->ffn,
        .vocab = line->vocab,
        .topk = (int)line->topk,
        .length = line->length,
        .sequences = line->sequences};
}

/* An implementation of each family. */
struct choice {
    const struct moe_impl *dispatch;
    const struct vocab_impl *vocab;
    const struct stack_impl *checkpoint;
    const struct adamw_impl *optimizer;
};

/* What `composed` is made of: the options say so, family by family. */
static struct choice composed_of(const struct train_line *line)
{
    struct choice composed = {
        &moe_pipelined_llep, &vocab_ring_dtp, &stack_sco, &adamw_offload_stream};
    if (line->dispatch >= 0)
        composed.dispatch = moe_impls[line->dispatch];
    if (line->vocab_impl >= 0)
        composed.vocab = vocab_impls[line->vocab_impl];
    if (line->checkpoint >= 0)
        composed.checkpoint = stack_impls[line->checkpoint];
    if (line->optimizer >= 0)
        composed.optimizer = adamw_impls[line->optimizer];
    return composed;
}

static struct model_options current_options(const struct program_state *p)
{
    const struct train_line *line = &p->line;
    struct adamw_hyper hyper = {line->lr, 0.9, 0.95, 1e-8, 0.1}, plain = hyper;
    plain.wd = 0;
    struct model_options options = {.moe = {.chunk_budget = line->chunk_budget,
                                        .max_chunks = line->max_chunks,
                                        .chunks = (enum moe_chunks)line->chunks,
                                        .alpha = 1,
                                        .lambda = 1.3,
                                        .min_gemm_tokens = 16},
        .vocab_options = {.tile = line->tile},
        .stack = {.budget = {.bytes = line->host_budget}},
        .adamw = {.bucket = line->bucket,
            .slots = (int)line->slots,
            .gradients = ADAMW_HOST_F32,
            .scale = 1,
            .clip = 1,
            .hyper = {hyper, plain}},
        .bias_step = line->bias_step,
        .freeze_attention = line->freeze == FREEZE_ATTENTION,
        .freeze_experts = line->freeze == FREEZE_EXPERTS,
        .keep_attention_bytes = line->keep_attention,
        .seed = (uint64_t)p->common.seed};
    struct choice composed = composed_of(line);
    const struct choice standard = {
        &moe_alltoall, &vocab_materialized, &stack_full_activations, &adamw_device};
    const struct choice *chosen = line->composition == COMPOSED ? &composed : &standard;
    options.dispatch = chosen->dispatch;
    options.vocab = chosen->vocab;
    options.checkpoint = chosen->checkpoint;
    options.optimizer = chosen->optimizer;
    if (line->composition == STANDARD_IN_ORDER) {
        options.dispatch_order = composed.dispatch;
        options.vocab_order = composed.vocab;
    }
    return options;
}

/* ---- what is refused before anything runs ---------------------------------------------------- */

/* Which option a refusal of the model's shape is about. */
static const char *option_of(const struct train_line *line, const char *message)
{
    if (strstr(message, "sequence degree"))
        return "sequence-group";
    if (strstr(message, "experts degree"))
        return line->expert_group > 0 ? "expert-group" : "experts";
    if (strstr(message, "vocabulary degree"))
        return "vocab-group";
    if (strstr(message, "64 bits"))
        return "length";
    return strstr(message, "heads") ? "heads" : "topk";
}

static int check_routing(const struct program_state *p, const struct model_shape *shape)
{
    struct train_routing routing;
    char error[512];
    int status = -1;
    if (train_routing_read(&routing, p->line.routing, shape, error, sizeof error))
        status = options_refuse(p->options, "routing", "%s", error);
    train_routing_free(&routing);
    return status;
}

static int check_case(struct program_state *p)
{
    struct model_shape shape = current_shape(p);
    char error[160];
    if (model_check(&shape, error, sizeof error))
        return options_refuse(p->options, option_of(&p->line, error), "%s", error);
    if (shape.hidden / shape.layout.heads > ATTENTION_HEAD_MAX)
        return options_refuse(p->options, "heads", "heads of %lld columns, allowed at most %d",
            (long long)(shape.hidden / shape.layout.heads), ATTENTION_HEAD_MAX);
    struct model_options options = current_options(p);
    if (model_check_options(&shape, &options, error, sizeof error))
        return options_refuse(p->options, "tile", "%s", error);
    return case_simulates(&p->common) ? check_routing(p, &shape) : -1;
}

/* The standard step is what it is: implementations are chosen for `composed`, and
 * `standard-in-order` takes the orders of two of them. */
static int check_choice(const struct program_state *p, const bool *runs)
{
    static const char *const families[] = {"checkpoint", "optimizer", "dispatch", "vocab-impl"};
    for (int i = 0; i < 4 && !runs[COMPOSED]; i++)
        if (options_given(p->options, families[i]) && (i < 2 || !runs[STANDARD_IN_ORDER]))
            return options_refuse(p->options, families[i],
                "has no effect on the standard step: "
                "it says what 'composed' is made of");
    return -1;
}

static int check_all(struct program_state *p)
{
    char error[1400];
    int status = case_setup(&p->common, p->options);
    if (status < 0)
        status = train_line_setup(&p->line, &p->common, p->options);
    bool runs[COMPOSITIONS] = {false};
    for (options_rewind(p->options); status < 0 && options_next(p->options);) {
        runs[p->line.composition] = true;
        status = check_case(p);
    }
    if (status < 0)
        status = check_choice(p, runs);
    if (status < 0)
        status = dump_check(p->options, "dump-routes", p->line.dump_routes);
    options_rewind(p->options);
    if (status < 0 && !case_simulates(&p->common) &&
        train_text_read(&p->text, p->line.text, p->line.length + 2, error, sizeof error))
        status = options_refuse(p->options, "text", "%s", error);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

static void print_progress(void *context, int64_t step, double loss, double seconds)
{
    const struct program_state *p = context;
    double tokens = (double)(p->line.sequences * p->line.length) *
                    (double)(p->common.ranks / p->line.sequence_group);
    bool shown = step == 0 || (step + 1) % p->line.report == 0 || step + 1 == p->line.steps;
    if (shown && !case_simulates(&p->common))
        printf("  step %6lld  loss %.4f  %.0f tokens/s\n", (long long)step + 1, loss,
            tokens / seconds);
    fflush(stdout);
}

/* Compositions run fastest: where they begin anew, so do the others' values, and what follows is
 * compared with this case. */
static void begin_group(struct program_state *p)
{
    if (p->has_case && p->line.composition > p->last_composition)
        return;
    if (p->has_first)
        train_run_free(&p->first);
    p->has_first = false;
    p->first_composition = p->line.composition;
}

/* Against the group's first case, whose bits the standard step is to have in its orders. */
static enum verdict compare(struct program_state *p, const struct train_run *run)
{
    char text[160];
    const char *against = composition_names[p->first_composition];
    if (!p->has_first || case_simulates(&p->common) || run->reached < run->steps)
        return VERDICT_OFF;
    bool differs = train_run_difference(&p->first, run, text, sizeof text);
    if (p->line.explain)
        printf("  against %s: %s%s\n", against,
            differs ? "first differs in " : "equal, bit for bit", differs ? text : "");
    bool comparable = p->first_composition == COMPOSED &&
                      p->line.composition == STANDARD_IN_ORDER &&
                      products_path(&p->common) == GEMM_PATH_EXACT;
    if (!comparable)
        return VERDICT_OFF;
    if (differs)
        printf("  MISMATCH: these are to have the bits of %s\n", against);
    return differs ? VERDICT_MISMATCH : VERDICT_BITWISE;
}

static void write_routes(struct program_state *p, const struct train_run *run)
{
    const struct model_shape *shape = run->shape;
    char path[1100], error[1300];
    int64_t dims[] = {
        run->reached, shape->layers, shape->layout.ranks, model_tokens(shape), shape->topk};
    snprintf(path, sizeof path, "%s/routes.npy", p->line.dump_routes);
    if (dump_folder(p->line.dump_routes, error, sizeof error) ||
        npy_write(path, NPY_I32, 5, dims, run->routes, error, sizeof error)) {
        fprintf(stderr, "train: %s\n", error);
        p->failed_environment = true;
        return;
    }
    printf("  choices in %s, [step, layer, rank, token, slot]\n", path);
}

static void write_trace(struct program_state *p, const struct trace *trace)
{
    if (!trace || !launch_is_main() || !trace_write(trace, p->common.trace))
        return;
    fprintf(stderr, "train: --trace: cannot write %s\n", p->common.trace);
    p->failed_environment = true;
}

static void print_products(const struct case_products *products)
{
    char text[160];
    products_note(products, text, sizeof text);
    printf("  %s\n", text);
}

/* Runs the case and says how it went, on the main process; `run` is filled. */
static void train(struct program_state *p, const struct model_options *options,
    struct train_run *run, struct case_result *result)
{
    struct case_products products;
    products_time(&p->common);
    if (train_run(run, result))
        case_result_fail(result, &run->failure);
    else if (products_count(&p->common, &products))
        print_products(&products);
    launch_phase("between two cases");
    if (!launch_is_main())
        return;
    if (result->status != CASE_OK) {
        train_report_print(&p->report, NULL, result);
    } else if (train_report_fill(&p->report, run, compare(p, run), result)) {
        result->status = CASE_ERROR;
        snprintf(result->reason, sizeof result->reason, "no host memory for the times");
    } else {
        train_report_print(&p->report, run, result);
    }
    if (result->status == CASE_OK && run->routes)
        write_routes(p, run);
    int status = report_exit_status(&p->common, result);
    if (p->common.json && train_report_record(&p->report, run, options, result))
        p->failed_environment = true;
    p->failed_check |= status == EXIT_FAILED_CHECK;
    p->failed_environment |= status == EXIT_ENVIRONMENT;
    if (status == EXIT_ENVIRONMENT)
        fprintf(stderr, "train: %s\n", result->reason);
}

static void run_case(struct program_state *p, struct dev_pool *pool)
{
    char error[512];
    struct model_shape shape = current_shape(p);
    struct model_options options = current_options(p);
    struct trace *trace = p->common.trace ? trace_create() : NULL;
    struct ranks_config ranks = case_ranks_config(&p->common, pool, trace);
    struct train_routing routing = {.routes = NULL};
    struct case_result result = {.status = CASE_ERROR};
    bool dumps = p->line.dump_routes && !p->has_case;
    int64_t routes = p->line.steps * shape.layers * shape.layout.ranks;
    struct train_run run = {.shape = &shape,
        .options = &options,
        .text = &p->text,
        .routing = &routing,
        .ranks = &ranks,
        .steps = p->line.steps,
        .name = composition_names[p->line.composition],
        .progress = print_progress,
        .context = p};
    if (case_simulates(&p->common) &&
        train_routing_read(&routing, p->line.routing, &shape, error, sizeof error)) {
        trace_free(trace);
        return; /* looked at before: a file that has changed since */
    }
    run.alike = case_simulates(&p->common) && routing.even && !p->line.all_ranks;
    begin_group(p);
    printf("%s: %s, %s, %s, %s on %s\n", composition_names[p->line.composition],
        options.dispatch->name, options.vocab->name, options.checkpoint->name,
        options.optimizer->name, case_device_name(&p->common));
    if (options.dispatch_order)
        printf("  summed in the orders of %s, %s\n", options.dispatch_order->name,
            options.vocab_order->name);
    if (p->line.freeze != FREEZE_NONE)
        printf("  %s frozen\n", freeze_names[p->line.freeze]);
    if (products_path(&p->common) == GEMM_PATH_FAST)
        puts("  products on tensor cores, in sums of their own order: no bits are compared");
    fflush(stdout);
    if (dumps)
        run.routes = malloc((size_t)(routes * model_tokens(&shape) * shape.topk) * sizeof(int32_t));
    if (!launch_all(!case_result_init(&result, shape.layout.ranks) && (run.routes || !dumps) &&
                    (trace || !p->common.trace))) {
        if (launch_is_main())
            fputs("train: no memory for a case's result\n", stderr);
        p->failed_environment = true;
    } else {
        train(p, &options, &run, &result);
        write_trace(p, trace);
    }
    trace_free(trace);
    free(run.routes);
    train_routing_free(&routing);
    p->last_composition = p->line.composition;
    p->has_case = true;
    if (!p->has_first && launch_follow(result.status == CASE_OK)) {
        p->first = run;
        p->first_shape = shape;
        p->first.shape = &p->first_shape;
        p->has_first = true;
    } else {
        train_run_free(&run);
    }
    case_result_free(&result);
}

/* Nothing can be compared on a simulated device: without a choice it runs the composed step. */
static bool left_out(const struct program_state *p)
{
    return case_simulates(&p->common) && p->line.composition != COMPOSED &&
           !options_given(p->options, "composition");
}

static int run_all(struct program_state *p)
{
    struct dev_pool *pool = dev_pool_create(case_threads(&p->common));
    if (!launch_all(pool != NULL)) {
        if (launch_is_main())
            fputs("train: no memory for threads\n", stderr);
        dev_pool_free(pool);
        return EXIT_ENVIRONMENT;
    }
    if (!case_simulates(&p->common))
        p->report.bigram_nats = train_text_bigram_nats(&p->text);
    if (p->common.device_kind == DEV_CPU)
        p->report.gemm_flops_per_s = gemm_rate_flops_per_s(pool);
    options_rewind(p->options);
    while (!interrupt_agreed() && options_next(p->options))
        if (!left_out(p))
            run_case(p, pool);
    dev_pool_free(pool);
    if (fflush(stdout) || ferror(stdout)) {
        fputs("train: the output could not be written\n", stderr);
        p->failed_environment = true;
    }
    if (interrupt_seen() && launch_is_main())
        fputs("train: interrupted; what was reached is printed and recorded\n", stderr);
    return interrupt_seen()        ? EXIT_INTERRUPTED
           : p->failed_check       ? EXIT_FAILED_CHECK
           : p->failed_environment ? EXIT_ENVIRONMENT
                                   : EXIT_OK;
}

int main(int argc, char **argv)
{
    static struct program_state p;
    int status = launch_open("train");
    if (status >= 0)
        return status;
    struct option_group groups[TRAIN_GROUPS];
    train_groups(&p.line, &p.common, groups);
    const struct program program = {.name = "train",
        .summary = "a small mixture-of-experts language model, by any composition",
        .description = description,
        .examples = examples,
        .groups = groups,
        .group_count = TRAIN_GROUPS};
    status = options_parse(&p.options, &program, argc, argv);
    if (status < 0)
        status = check_all(&p);
    status = launch_agree(status, argc, argv);
    p.report.common = &p.common;
    p.report.options = p.options;
    p.report.line = &p.line;
    if (status < 0)
        status =
            launch_all(!train_report_open(&p.report, argc, argv)) ? run_all(&p) : EXIT_ENVIRONMENT;
    train_report_close(&p.report);
    train_run_free(&p.first);
    train_text_free(&p.text);
    options_free(p.options);
    return launch_close(status);
}
