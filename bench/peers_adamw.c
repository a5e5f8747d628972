/* Bars of the optimizer: AdamW against the machine's memory, the pipeline against the one that
 * takes turns, and both against Eq. 5 when the link decides.
 *
 * AdamW moves 30 bytes a parameter (p, m, v read and written, g read, the BF16 weight written).
 * STREAM's triad is counted as STREAM counts it, 24 bytes for a[i] = b[i] + s c[i] in FP64, though
 * the machine also reads a before it writes it; written with non-temporal stores the triad moves
 * what is counted. Each side moves as many counted bytes as the other, so the ratio of times is the
 * ratio of rates.
 *
 * offload-stream runs on three streams that share two cores with the update, and must still be
 * faster than one stream. With paced copies the step's time must be that of Eq. 5 for two slots,
 * and the plain sum of the stages for one, within 5 % either way: the copies' times from the pace,
 * the update's from the run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "bench/harness/adamw_run.h"
#include "bench/harness/adamw_time.h"
#include "bench/peers.h"
#include "kernels/adamw.h"
#include "probe/seed.h"
#include "probe/trace.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- AdamW against the triad ------------------------------------------------------------------
 */

#define PARAMS (INT64_C(8) << 20)
#define COUNTED_BYTES (30 * PARAMS)
#define TRIAD_COUNT (COUNTED_BYTES / 24)
#define HUGE_PAGE ((size_t)2 << 20)

struct arrays {
    float *p, *m, *v, *g;
    uint16_t *w;
    double *a, *b, *c;
};

/* One side's work on a team of so many threads. */
struct side {
    const struct arrays *arrays;
    struct dev_pool *pool;
    int threads;
};

/* Memory as the device has it: huge pages where they are offered. */
static void *take(int64_t bytes)
{
    size_t rounded = ((size_t)bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *block = aligned_alloc(HUGE_PAGE, rounded);
    if (block) {
        madvise(block, rounded, MADV_HUGEPAGE);
        memset(block, 0, rounded);
    }
    return block;
}

static void arrays_free(struct arrays *x)
{
    free(x->p);
    free(x->m);
    free(x->v);
    free(x->g);
    free(x->w);
    free(x->a);
    free(x->b);
    free(x->c);
}

static int arrays_create(struct arrays *x)
{
    *x = (struct arrays){.p = take(PARAMS * 4),
        .m = take(PARAMS * 4),
        .v = take(PARAMS * 4),
        .g = take(PARAMS * 4),
        .w = take(PARAMS * 2),
        .a = take(TRIAD_COUNT * 8),
        .b = take(TRIAD_COUNT * 8),
        .c = take(TRIAD_COUNT * 8)};
    if (!x->p || !x->m || !x->v || !x->g || !x->w || !x->a || !x->b || !x->c)
        return -1;
    seed_fill_f32(x->p, 1, 0, 0, PARAMS, 0.1f);
    seed_fill_f32(x->g, 1, 1, 0, PARAMS, 1e-2f);
    for (int64_t i = 0; i < TRIAD_COUNT; i++) {
        x->b[i] = 2.0;
        x->c[i] = 1.0;
    }
    return 0;
}

static struct adamw_args adamw_work(const struct arrays *x)
{
    const struct adamw_hyper hyper = {1e-3, 0.9, 0.95, 1e-8, 0.1};
    return (struct adamw_args){.count = PARAMS,
        .p = x->p,
        .m = x->m,
        .v = x->v,
        .g = x->g,
        .g_type = DTYPE_F32,
        .w = x->w,
        .constants = adamw_constants_at(&hyper, 100, 1)};
}

static void adamw_on_team(void *context, const struct dev_team *team)
{
    struct adamw_args args = adamw_work(context);
    adamw_cpu(&args, team);
}

static void run_adamw(void *context)
{
    const struct side *side = context;
    dev_pool_run(side->pool, side->threads, adamw_on_team, (void *)(uintptr_t)side->arrays);
}

/* A part's range, on whole cache lines of eight. */
static void range(int index, int parts, int64_t *begin, int64_t *end)
{
    *begin = TRIAD_COUNT / 8 * index / parts * 8;
    *end = TRIAD_COUNT / 8 * (index + 1) / parts * 8;
}

#define TRIAD_SCALAR 3.0

static void triad_part(void *context, int index, int parts)
{
    const struct arrays *x = context;
    double *restrict a = x->a;
    const double *restrict b = x->b, *restrict c = x->c;
    int64_t begin, end;
    range(index, parts, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        a[i] = b[i] + TRIAD_SCALAR * c[i];
}

static void triad_on_team(void *context, const struct dev_team *team)
{
    team_run(team, team_size(team), triad_part, context);
}

static void run_triad(void *context)
{
    const struct side *side = context;
    dev_pool_run(side->pool, side->threads, triad_on_team, (void *)(uintptr_t)side->arrays);
}

#ifdef __SSE2__
static void triad_stream_part(void *context, int index, int parts)
{
    const struct arrays *x = context;
    const __m128d scalar = _mm_set1_pd(TRIAD_SCALAR);
    int64_t begin, end;
    range(index, parts, &begin, &end);
    for (int64_t i = begin; i < end; i += 2)
        _mm_stream_pd(
            x->a + i, _mm_add_pd(_mm_load_pd(x->b + i), _mm_mul_pd(scalar, _mm_load_pd(x->c + i))));
    _mm_sfence();
}

static void triad_stream_on_team(void *context, const struct dev_team *team)
{
    team_run(team, team_size(team), triad_stream_part, context);
}

static void run_triad_stream(void *context)
{
    const struct side *side = context;
    dev_pool_run(side->pool, side->threads, triad_stream_on_team, (void *)(uintptr_t)side->arrays);
}
#endif

static void triad_bar(struct peers *peers, const struct arrays *arrays, int threads,
    const char *triad, void (*run)(void *), double least)
{
    char name[64];
    struct side side = {arrays, peers->pool, threads};
    snprintf(name, sizeof name, "adamw / %s, %d thread%s", triad, threads, threads > 1 ? "s" : "");
    if (!peers_wants(peers, name))
        return;
    if (threads > peers->cpu_count) {
        peers_skip(peers, name, "needs as many cores");
        return;
    }
    peers_bar(peers, name,
        &(struct peers_contestant){
            .name = "adamw", .run = run_adamw, .context = &side, .threads = threads},
        &(struct peers_contestant){.name = triad, .run = run, .context = &side, .threads = threads},
        COUNTED_BYTES, "GB", least);
}

static int triad_bars(struct peers *peers)
{
    struct arrays arrays;
    int status = arrays_create(&arrays);
    if (status)
        fprintf(stderr, "peers: no memory for %lld parameters and the triad\n", (long long)PARAMS);
    for (int threads = 1; threads <= 2 && status == 0; threads++) {
        triad_bar(peers, &arrays, threads, "triad", run_triad, 1.25);
#ifdef __SSE2__
        triad_bar(peers, &arrays, threads, "triad, streamed", run_triad_stream, 0.95);
#endif
    }
    arrays_free(&arrays);
    return status;
}

/* ---- steps --------------------------------------------------------------------------------------
 */

#define BUCKET (INT64_C(256) << 10)
#define PACE 0.25e9 /* bytes a second of each direction: far below what memory gives */
#define PACED_BUCKETS 8
#define FREE_BUCKETS 64
#define SAMPLES 5 /* of a step that is not paced */

/* One implementation ready to run. */
struct step {
    const struct adamw_impl *impl;
    int slots;
    int64_t params;
    double pace;
    struct ranks_config ranks;
    double predicted_s; /* by Eq. 5, from the latest run */
    char fault[256];
};

/* Every gradient is finite and known to be, so nothing but the buckets is timed. */
static const struct adamw_options step_options = {.bucket = BUCKET,
    .scale = 1,
    .nonfinite = ADAMW_PROPAGATE,
    .hyper = {{1e-3, 0.9, 0.95, 1e-8, 0.1}, {1e-3, 0.9, 0.95, 1e-8, 0}}};

static void predict(struct step *step, const struct overlap *overlap)
{
    double buckets = (double)step->params / BUCKET;
    struct adamw_stages stages = adamw_stages_of(overlap, buckets, step->slots);
    stages.up_s = 16 * BUCKET / step->pace;
    stages.down_s = 12 * BUCKET / step->pace;
    step->predicted_s = adamw_stream_s(&stages);
}

/* Runs the implementation over seeded inputs. Returns seconds, or 0 with step->fault. With a pace:
 * of the last of three steps, from its first operation to its last, and step->predicted_s for it.
 * Without: the median of SAMPLES timed steps. */
static double run_step(struct step *step, const struct adamw_inputs *inputs, struct trace *trace,
    struct case_result *result)
{
    const struct timing_protocol protocol = {
        .warmup = 2, .min_samples = SAMPLES, .max_samples = SAMPLES, .max_time_s = 60};
    struct adamw_options options = step_options;
    struct ranks_config ranks = step->ranks;
    struct adamw_run run = {.impl = step->impl,
        .options = &options,
        .inputs = inputs,
        .ranks = &ranks,
        .steps = 3,
        .first_step = 1,
        .timed = !trace,
        .protocol = &protocol};
    struct timing_summary summary = {0};
    struct overlap overlap = {0};
    options.slots = step->slots;
    ranks.device.trace = trace;
    ranks.device.h2d_bytes_per_s = ranks.device.d2h_bytes_per_s = step->pace;
    if (adamw_run(&run, result))
        snprintf(step->fault, sizeof step->fault, "%.250s", run.failure.message);
    else if (!trace)
        timing_summarise(result->time.samples_s, result->time.count, &summary);
    else if (overlap_measure(trace, 0, NULL, &overlap) == 0)
        predict(step, &overlap);
    adamw_run_free(&run);
    return trace ? overlap.elapsed_s : summary.median_s;
}

static double step_seconds(void *context)
{
    struct step *step = context;
    const struct adamw_tensor tensor = {"parameters", step->params, ADAMW_DECAY};
    struct adamw_inputs inputs;
    struct case_result result;
    struct trace *trace = step->pace > 0 ? trace_create() : NULL;
    double seconds = 0;
    snprintf(step->fault, sizeof step->fault, "no memory");
    if ((trace || !(step->pace > 0)) && adamw_inputs_seeded(&inputs, &tensor, 1, 1, 1, 1) == 0) {
        if (case_result_init(&result, 1) == 0) {
            *step->fault = 0;
            seconds = run_step(step, &inputs, trace, &result);
            case_result_free(&result);
        }
        adamw_inputs_free(&inputs);
    }
    trace_free(trace);
    return seconds;
}

static double predicted_seconds(void *context)
{
    struct step *step = context;
    if (!(step->predicted_s > 0))
        step_seconds(step);
    return step->predicted_s;
}

static void step_bar(struct peers *peers, const char *name, const struct peers_contestant *ours,
    const struct peers_contestant *other, double bytes, double least)
{
    const struct step *steps[2] = {ours->context, other->context};
    if (!peers_wants(peers, name))
        return;
    peers_bar(peers, name, ours, other, bytes, "GB", least);
    for (int i = 0; i < 2; i++)
        if (steps[i]->fault[0]) {
            peers_fault(peers, name, steps[i]->fault);
            return;
        }
}

static struct ranks_config step_ranks(const struct peers *peers, int threads)
{
    return (struct ranks_config){
        .count = 1, .device = {.kind = DEV_CPU, .pool = peers->pool, .kernel_threads = threads}};
}

/* The update on one thread, beside which the copies have a core, or on both. */
static void overlap_bar(struct peers *peers, int threads)
{
    char name[64];
    struct ranks_config ranks = step_ranks(peers, threads);
    struct step stream = {&adamw_offload_stream, 2, FREE_BUCKETS * BUCKET, 0, ranks, 0, ""};
    struct step staged = {&adamw_staged, 1, FREE_BUCKETS * BUCKET, 0, ranks, 0, ""};
    snprintf(
        name, sizeof name, "offload-stream / staged, %d thread%s", threads, threads > 1 ? "s" : "");
    if (peers->cpu_count < 2) {
        peers_skip(peers, name, "needs two cores: copies run beside the update");
        return;
    }
    step_bar(peers, name,
        &(struct peers_contestant){
            .name = "offload-stream", .seconds = step_seconds, .context = &stream},
        &(struct peers_contestant){.name = "staged", .seconds = step_seconds, .context = &staged},
        30.0 * FREE_BUCKETS * BUCKET, 1.2);
}

/* Within 5 % of the prediction: neither slower nor faster. */
static void paced_bars(struct peers *peers, int slots, const char *slower, const char *faster)
{
    struct step step = {
        &adamw_offload_stream, slots, PACED_BUCKETS * BUCKET, PACE, step_ranks(peers, 1), 0, ""};
    struct peers_contestant measured = {
        .name = "measured", .seconds = step_seconds, .context = &step};
    struct peers_contestant predicted = {
        .name = "predicted", .seconds = predicted_seconds, .context = &step};
    double bytes = 30.0 * PACED_BUCKETS * BUCKET;
    step_bar(peers, slower, &measured, &predicted, bytes, 0.95);
    step_bar(peers, faster, &predicted, &measured, bytes, 0.95);
}

int peers_adamw(struct peers *peers)
{
    printf("# AdamW on %lld parameters, 30 bytes each; triads of as many counted bytes\n",
        (long long)PARAMS);
    return triad_bars(peers);
}

int peers_offload(struct peers *peers)
{
    printf("# steps in buckets of %lldK parameters, 2 slots; paced at %.2f GB/s each way\n",
        (long long)BUCKET / 1024, PACE / 1e9);
    overlap_bar(peers, 1);
    overlap_bar(peers, 2);
    paced_bars(peers, 2, "paced, 2 slots: Eq. 5, not slower", "paced, 2 slots: Eq. 5, not faster");
    paced_bars(
        peers, 1, "paced, 1 slot: the sum, not slower", "paced, 1 slot: the sum, not faster");
    return 0;
}
