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
 * The first and the last must give the same losses and the same weights, bit for bit. --help has
 * every option. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/dump.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/train_line.h"
#include "bench/harness/train_run.h"
#include "bench/harness/units.h"
#include "device/launch.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "probe/host.h"
#include "probe/npy.h"
#include "probe/record.h"
#include "probe/timing.h"

static const char description[] =
    "bigram    nats per byte of a model that knows how often each byte follows each other one in\n"
    "          this text: H(next | previous)\n"
    "GEMM      of a BF16 product of 512 x 512 x 512 on as many threads, measured beside\n"
    "\n"
    "Throughput counts, for a token, 6 FLOP for every weight that it meets and 6 L T H for\n"
    "attention; nothing for what is computed again. Digests are of all losses and of all master\n"
    "weights: equal digests are equal bits.\n";

static const char examples[] =
    "  train --steps 300 --ranks 4\n"
    "  train --composition composed,standard-in-order,standard --steps 50 --explain\n"
    "  train --ranks 4 --sequence-group 2 --text README.md --freeze none,attention,experts\n"
    "  train --steps 20 --dump-routes routes\n";

struct program_state {
    struct train_line line;
    struct options *options;
    struct train_text text;
    double gemm_flops_per_s;
    struct train_run first; /* kept for comparison */
    struct model_shape first_shape;
    bool has_first, differs, failed;
};

/* ---- the current case ------------------------------------------------------------------------ */

static struct model_shape current_shape(const struct program_state *p)
{
    const struct train_line *line = &p->line;
    int ranks = (int)line->ranks;
    return (struct model_shape){.layout = {.ranks = ranks,
                                    .degree = {(int)line->sequence_group,
                                        line->expert_group > 0 ? (int)line->expert_group : ranks,
                                        line->vocab_group > 0 ? (int)line->vocab_group : ranks},
                                    .heads = line->heads,
                                    .experts = line->experts},
        .layers = line->layers,
        .hidden = line->hidden,
        .ffn = line->ffn,
        .vocab = TRAIN_VOCAB,
        .topk = (int)line->topk,
        .length = line->length,
        .sequences = line->sequences};
}

static struct model_options current_options(const struct program_state *p)
{
    const struct train_line *line = &p->line;
    bool composed = line->composition == COMPOSED;
    struct adamw_hyper hyper = {line->lr, 0.9, 0.95, 1e-8, 0.1}, plain = hyper;
    plain.wd = 0;
    struct model_options options = {.moe = {.chunk_budget = line->chunk_budget,
                                        .max_chunks = line->max_chunks,
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
        .seed = (uint64_t)line->seed};
    options.dispatch = composed ? &moe_pipelined_llep : &moe_alltoall;
    options.vocab = composed ? &vocab_ring_dtp : &vocab_materialized;
    options.checkpoint = composed ? &stack_sco : &stack_full_activations;
    options.optimizer = composed ? &adamw_offload_stream : &adamw_device;
    if (line->composition == STANDARD_IN_ORDER) {
        options.dispatch_order = &moe_pipelined_llep;
        options.vocab_order = &vocab_ring_dtp;
    }
    if (line->dispatch >= 0)
        options.dispatch = moe_impls[line->dispatch];
    if (line->vocab >= 0)
        options.vocab = vocab_impls[line->vocab];
    if (line->checkpoint >= 0)
        options.checkpoint = stack_impls[line->checkpoint];
    if (line->optimizer >= 0)
        options.optimizer = adamw_impls[line->optimizer];
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
    return strstr(message, "heads") ? "heads" : "topk";
}

static int check_case(struct program_state *p)
{
    struct model_shape shape = current_shape(p);
    struct model_options options = current_options(p);
    char error[160];
    if (model_check(&shape, error, sizeof error))
        return options_refuse(p->options, option_of(&p->line, error), "%s", error);
    if (shape.hidden / shape.layout.heads > ATTENTION_HEAD_MAX)
        return options_refuse(p->options, "heads", "heads of %lld columns, allowed at most %d",
            (long long)(shape.hidden / shape.layout.heads), ATTENTION_HEAD_MAX);
    if (options.dispatch_order && !options.dispatch->takes_run_order)
        return options_refuse(p->options, "dispatch",
            "%s sums in its own order only; standard-in-order takes alltoall, alltoall-ckpt",
            options.dispatch->name);
    if (options.vocab_order && !options.vocab->takes_run_order)
        return options_refuse(p->options, "vocab-impl",
            "%s sums in its own order only; standard-in-order takes materialized",
            options.vocab->name);
    return -1;
}

static int check_all(struct program_state *p)
{
    int status = -1;
    char error[1400];
    for (options_rewind(p->options); status < 0 && options_next(p->options);)
        status = check_case(p);
    options_rewind(p->options);
    if (status < 0 &&
        train_text_read(&p->text, p->line.text, p->line.length + 2, error, sizeof error))
        status = options_refuse(p->options, "text", "%s", error);
    return status;
}

/* ---- the machine's own rate ------------------------------------------------------------------ */

struct product {
    uint16_t *a, *b;
    float *c;
};

static void multiply(void *context, const struct dev_team *team)
{
    enum { SIDE = 512 };
    const struct product *product = context;
    gemm_cpu(&(struct gemm_args){.layout = GEMM_NN,
                 .a_type = DTYPE_BF16,
                 .b_type = DTYPE_BF16,
                 .m = SIDE,
                 .n = SIDE,
                 .k = SIDE,
                 .a = product->a,
                 .lda = SIDE,
                 .b = product->b,
                 .ldb = SIDE,
                 .c = product->c,
                 .ldc = SIDE},
        team);
}

/* The best of several, in FLOP/s; 0 when memory is short. */
static double measure_gemm(struct dev_pool *pool)
{
    enum { SIDE = 512, TIMES = 9 };
    struct product product = {
        calloc(SIDE * SIDE, 2), calloc(SIDE * SIDE, 2), calloc(SIDE * SIDE, sizeof(float))};
    double best = 0;
    for (int i = 0; i < TIMES && product.a && product.b && product.c; i++) {
        double begin_s = timing_now_s();
        dev_pool_run(pool, dev_pool_threads(pool), multiply, &product);
        double rate = 2.0 * SIDE * SIDE * SIDE / (timing_now_s() - begin_s);
        best = rate > best ? rate : best;
    }
    free(product.a);
    free(product.b);
    free(product.c);
    return best;
}

/* ---- running and printing -------------------------------------------------------------------- */

static void print_progress(void *context, int64_t step, double loss, double seconds)
{
    const struct program_state *p = context;
    double tokens = (double)(p->line.sequences * p->line.length) *
                    (double)(p->line.ranks / p->line.sequence_group);
    if (step == 0 || (step + 1) % p->line.report == 0 || step + 1 == p->line.steps)
        printf("  step %6lld  loss %.4f  %.0f tokens/s\n", (long long)step + 1, loss,
            tokens / seconds);
    fflush(stdout);
}

static double median_s(const struct train_run *run)
{
    struct timing_summary summary;
    timing_summarise(run->seconds, (int)run->steps, &summary);
    return summary.median_s;
}

/* Of the last tenth of the steps. */
static double last_loss(const struct train_run *run)
{
    int64_t count = run->steps / 10 ? run->steps / 10 : 1;
    double sum = 0;
    for (int64_t i = run->steps - count; i < run->steps; i++)
        sum += run->loss[i];
    return sum / (double)count;
}

static double tokens_per_step(const struct model_shape *shape)
{
    return (double)model_tokens(shape) * (double)shape->layout.ranks;
}

/* The sets that hold most, largest first. */
static void print_sets(const struct train_run *run)
{
    bool shown[LIVE_SET_COUNT] = {false};
    printf("  peak of the fullest rank by live set:");
    for (int i = 0; i < LIVE_SET_COUNT; i++) {
        int most = -1;
        for (int set = 0; set < LIVE_SET_COUNT; set++)
            if (!shown[set] && (most < 0 || run->set_peak_bytes[set] > run->set_peak_bytes[most]))
                most = set;
        char text[32];
        shown[most] = true;
        if (run->set_peak_bytes[most] == 0)
            break;
        units_bytes(run->set_peak_bytes[most], text, sizeof text);
        printf("%s %s %s", i ? "," : "", mem_live_set_name((enum live_set)most), text);
    }
    putchar('\n');
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

static void print_outcome(struct program_state *p, const struct train_run *run)
{
    char peak[32], host[32], losses[DIGEST_TEXT], weights[DIGEST_TEXT];
    double seconds = median_s(run), bigram = train_text_bigram_nats(&p->text);
    double tokens = tokens_per_step(run->shape) / seconds;
    double flops = tokens * train_flops_per_token(run->shape), loss = last_loss(run);
    units_bytes(run->peak_bytes, peak, sizeof peak);
    units_bytes(run->host_peak_bytes, host, sizeof host);
    train_run_digests(run, losses, weights);
    printf("  loss %.4f nats per byte, %s the bigram entropy of %.4f\n", loss,
        loss < bigram ? "below" : "not below", bigram);
    printf("  %.0f tokens/s, %.1f GFLOP/s, %.0f %% of a GEMM's %.1f GFLOP/s on as many threads\n",
        tokens, flops / 1e9, 100 * flops / p->gemm_flops_per_s, p->gemm_flops_per_s / 1e9);
    printf("  device peak %s, pinned host memory %s\n", peak, host);
    print_sets(run);
    print_loads(run);
    printf("  digest of losses  %s\n  digest of weights %s\n", losses, weights);
}

static int record_case(
    const struct program_state *p, const struct model_options *options, const struct train_run *run)
{
    char error[256] = "memory is short", losses[DIGEST_TEXT], weights[DIGEST_TEXT], path[64];
    json_t *record = rec_create();
    if (record) {
        double seconds = median_s(run);
        train_run_digests(run, losses, weights);
        rec_str(record, "op", "train");
        rec_str(record, "impl", composition_names[p->line.composition]);
        rec_str(record, "device", "cpu");
        options_record(p->options, record);
        rec_str(record, "config.dispatch", options->dispatch->name);
        rec_str(record, "config.vocab_impl", options->vocab->name);
        rec_str(record, "config.checkpoint", options->checkpoint->name);
        rec_str(record, "config.optimizer", options->optimizer->name);
        rec_str(record, "status", "ok");
        rec_str(record, "check.outputs.losses.digest", losses);
        rec_str(record, "check.outputs.weights.digest", weights);
        rec_str(record, "check.against", p->has_first ? "the first composition" : "nothing");
        rec_str(record, "check.verdict",
            !p->has_first ? "off"
            : p->differs  ? "mismatch"
                          : "bitwise");
        rec_str(record, "time.kind", "measured");
        rec_real(record, "time.median_s", seconds);
        rec_reals(record, "time.samples_s", run->seconds, run->steps);
        rec_real(record, "throughput.value", tokens_per_step(run->shape) / seconds);
        rec_str(record, "throughput.unit", "tokens/s");
        rec_real(record, "figures.loss", last_loss(run));
        rec_real(record, "figures.bigram_nats", train_text_bigram_nats(&p->text));
        rec_real(record, "figures.flops_per_s",
            tokens_per_step(run->shape) * train_flops_per_token(run->shape) / seconds);
        rec_real(record, "figures.gemm_flops_per_s", p->gemm_flops_per_s);
        rec_int(record, "memory.tracked_peak_bytes", run->peak_bytes);
        rec_int(record, "memory.host_pinned_peak_bytes", run->host_peak_bytes);
        for (int set = 0; set < LIVE_SET_COUNT; set++) {
            snprintf(path, sizeof path, "memory.by_live_set.%s.peak_bytes",
                mem_live_set_name((enum live_set)set));
            if (run->set_peak_bytes[set])
                rec_int(record, path, run->set_peak_bytes[set]);
        }
    }
    int status = record ? rec_append(p->line.json, record, error, sizeof error) : -1;
    json_decref(record);
    if (status)
        fprintf(stderr, "train: %s\n", error);
    return status ? EXIT_ENVIRONMENT : -1;
}

/* Cases that are to have the same bits: the same training but for how it is carried out. */
static bool comparable(const struct program_state *p)
{
    const struct train_line *line = &p->line;
    return line->composition != STANDARD && line->freeze == FREEZE_NONE;
}

/* Against the first case; keeps the run when it is the first. */
static void compare(struct program_state *p, const struct train_run *run)
{
    char text[160];
    p->differs = p->has_first && train_run_difference(&p->first, run, text, sizeof text);
    if (p->has_first && p->line.explain)
        printf("  against the first: %s%s\n",
            p->differs ? "first differs in " : "equal, bit for bit", p->differs ? text : "");
    if (p->differs && comparable(p)) {
        printf("  MISMATCH: these are to have the first case's bits\n");
        p->failed = true;
    }
}

static void write_routes(struct program_state *p, const struct model_shape *shape, int32_t *routes)
{
    char path[1100], error[1300];
    int64_t dims[] = {
        p->line.steps, shape->layers, shape->layout.ranks, model_tokens(shape), shape->topk};
    snprintf(path, sizeof path, "%s/routes.npy", p->line.dump_routes);
    if (dump_folder(p->line.dump_routes, error, sizeof error) ||
        npy_write(path, NPY_I32, 5, dims, routes, error, sizeof error)) {
        fprintf(stderr, "train: %s\n", error);
        p->failed = true;
        return;
    }
    printf("  choices in %s, [step, layer, rank, token, slot]\n", path);
}

/* -1 to go on, or the status to end with. */
static int run_case(struct program_state *p, struct dev_pool *pool)
{
    struct model_shape shape = current_shape(p);
    struct model_options options = current_options(p);
    struct ranks_config ranks = {.count = shape.layout.ranks,
        .device = {.kind = DEV_CPU, .pool = pool, .check_order = p->line.check_order}};
    bool dumps = p->line.dump_routes && !p->has_first;
    int64_t routes = p->line.steps * shape.layers * shape.layout.ranks;
    struct train_run run = {.shape = &shape,
        .options = &options,
        .text = &p->text,
        .ranks = &ranks,
        .steps = p->line.steps,
        .progress = print_progress,
        .context = p};
    printf("%s: %s, %s, %s, %s\n", composition_names[p->line.composition], options.dispatch->name,
        options.vocab->name, options.checkpoint->name, options.optimizer->name);
    if (p->line.freeze != FREEZE_NONE)
        printf("  %s frozen\n", freeze_names[p->line.freeze]);
    if (dumps)
        run.routes = malloc((size_t)(routes * model_tokens(&shape) * shape.topk) * sizeof(int32_t));
    int status = -1;
    if (train_run(&run)) {
        fprintf(stderr, "train: rank %d: %s\n", run.failure.rank, run.failure.message);
        status = EXIT_ENVIRONMENT;
    } else {
        compare(p, &run);
        print_outcome(p, &run);
        if (run.routes)
            write_routes(p, &shape, run.routes);
        if (p->line.json)
            status = record_case(p, &options, &run);
    }
    free(run.routes);
    if (status < 0 && !p->has_first) {
        p->first = run;
        p->first_shape = shape;
        p->first.shape = &p->first_shape;
        p->has_first = true;
    } else {
        train_run_free(&run);
    }
    return status;
}

static int run_all(struct program_state *p)
{
    int64_t threads = p->line.threads > 0 ? p->line.threads : host_cpus();
    struct dev_pool *pool = dev_pool_create((int)threads);
    int status = pool ? -1 : EXIT_ENVIRONMENT;
    if (!pool)
        fputs("train: no memory for threads\n", stderr);
    if (pool)
        p->gemm_flops_per_s = measure_gemm(pool);
    for (options_rewind(p->options); status < 0 && !interrupt_seen() && options_next(p->options);)
        status = run_case(p, pool);
    dev_pool_free(pool);
    if (status < 0 && (fflush(stdout) || ferror(stdout))) {
        fputs("train: the output could not be written\n", stderr);
        status = EXIT_ENVIRONMENT;
    }
    if (status < 0)
        status = interrupt_seen() ? EXIT_INTERRUPTED : p->failed ? EXIT_FAILED_CHECK : EXIT_OK;
    return status;
}

int main(int argc, char **argv)
{
    static struct program_state p;
    int status = launch_open("train");
    if (status >= 0)
        return status;
    if (launch_started()) {
        if (launch_is_main())
            fputs("train: ranks are threads of one process here; start it without a launcher\n",
                stderr);
        return launch_close(EXIT_ENVIRONMENT);
    }
    struct option_group groups[TRAIN_GROUPS];
    train_groups(&p.line, groups);
    const struct program program = {.name = "train",
        .summary = "a small mixture-of-experts language model, by any composition",
        .description = description,
        .examples = examples,
        .groups = groups,
        .group_count = TRAIN_GROUPS};
    status = options_parse(&p.options, &program, argc, argv);
    if (status < 0)
        status = check_all(&p);
    if (status < 0) {
        interrupt_install();
        status = run_all(&p);
    }
    train_run_free(&p.first);
    train_text_free(&p.text);
    options_free(p.options);
    return launch_close(status);
}
