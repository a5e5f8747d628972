/* The closed forms of a composed step's memory against the tracked peaks, to the byte: of all live
 * sets together and of each one by itself, and of pinned memory, on every rank, with the choices
 * that the router made. */
#include "ops/model_moments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/train_run.h"
#include "ops/moe_layer.h"
#include "ops/pipelined_memory.h"
#include "tests/model_case.h"
#include "tests/tap.h"

enum { STEPS = 2, RANKS_MAX = 64 };

static struct model_shape shape_of(int ranks, int sequence, int experts, int vocab)
{
    return (struct model_shape){
        .layout = {.ranks = ranks, .degree = {sequence, experts, vocab}, .heads = 4, .experts = 8},
        .layers = 3,
        .hidden = 32,
        .ffn = 24,
        .vocab = TRAIN_VOCAB,
        .topk = 2,
        .length = 24,
        .sequences = 2};
}

static struct model_options composed(int64_t chunk_budget)
{
    struct model_options options = model_case_options();
    options.dispatch = &moe_pipelined_llep;
    options.moe.chunk_budget = chunk_budget;
    options.vocab = &vocab_ring_dtp;
    options.checkpoint = &stack_sco;
    options.stack.budget.bytes = -1;
    options.optimizer = &adamw_offload_stream;
    options.adamw.bucket = 1000;
    options.adamw.slots = 2;
    return options;
}

/* ---- what the closed forms say --------------------------------------------------------------- */

/* The peaks of a rank's dispatch with the choices of all ranks of one layer, [W, N, k]; and, of
 * pipelined-llep, the index arrays that it pins. */
static int dispatch_peaks(const struct model_shape *shape, const struct model_options *options,
    int rank, const int32_t *routes, struct moe_peaks *out, int64_t *pinned_bytes)
{
    int degree = shape->layout.degree[LAYOUT_EXPERTS];
    struct layout_group block = layout_block(&shape->layout, LAYOUT_EXPERTS, rank);
    int64_t tokens[RANKS_MAX], each = model_tokens(shape) * shape->topk;
    const int32_t *idx[RANKS_MAX];
    struct moe_peaks all[RANKS_MAX];
    for (int i = 0; i < degree; i++) {
        tokens[i] = model_tokens(shape);
        idx[i] = routes + (block.first + i * block.stride) * each;
    }
    const struct moe_shape moe = {.ranks = degree,
        .tokens = tokens,
        .hidden = shape->hidden,
        .ffn = shape->ffn,
        .experts = shape->layout.experts,
        .topk = shape->topk,
        .dtype = DTYPE_BF16,
        .activation = MOE_SWIGLU};
    int status = options->dispatch->expected_bytes(&moe, &options->moe, idx, true, all);
    struct moe_partition partition = pipelined_partition(&moe, &options->moe);
    struct llep_options planner = pipelined_planner(&options->moe);
    struct moe_layout layout;
    if (status == 0 && moe_layout_from_routing(&layout, &moe, &partition, &planner, idx) == 0) {
        *out = all[block.place];
        *pinned_bytes = moe_layer_bytes(&layout, block.place);
        moe_layout_free(&layout);
        return 0;
    }
    return -1;
}

static void raise(struct moe_peaks *peaks, const struct moe_peaks *by)
{
    if (by->all_bytes > peaks->all_bytes)
        peaks->all_bytes = by->all_bytes;
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        if (by->set_bytes[set] > peaks->set_bytes[set])
            peaks->set_bytes[set] = by->set_bytes[set];
}

/* Of all steps, routes [STEPS, L, W, N, k]. */
static int expect(const struct model_shape *shape, const struct model_options *options, int rank,
    const int32_t *routes, struct moe_peaks *out, int64_t *pinned_bytes)
{
    int64_t of_layer = shape->layout.ranks * model_tokens(shape) * shape->topk;
    struct moe_peaks *peaks = calloc((size_t)shape->layers, sizeof *peaks);
    struct model_dispatch dispatch = {peaks, true};
    struct model_moments moments;
    int status = peaks ? 0 : -1;
    *out = (struct moe_peaks){0};
    *pinned_bytes = 0;
    for (int64_t step = 0; status == 0 && step < STEPS; step++) {
        for (int64_t l = 0; status == 0 && l < shape->layers; l++) {
            int64_t pinned = 0;
            status = dispatch_peaks(shape, options, rank,
                routes + (step * shape->layers + l) * of_layer, &peaks[l], &pinned);
            *pinned_bytes = pinned > *pinned_bytes ? pinned : *pinned_bytes;
        }
        if (status == 0)
            status = model_moments(&moments, shape, options, rank, &dispatch);
        if (status == 0)
            raise(out, &moments.step);
    }
    *pinned_bytes += status == 0 ? moments.host_bytes : 0;
    free(peaks);
    return status;
}

static bool same(const struct moe_peaks *want, const struct mem_window *got, int rank)
{
    bool good = want->all_bytes == got->peak_bytes;
    if (!good)
        tap_note("rank %d holds %lld bytes, closed form %lld", rank, (long long)got->peak_bytes,
            (long long)want->all_bytes);
    for (int set = 0; set < LIVE_SET_COUNT; set++)
        if (want->set_bytes[set] != got->set_peak_bytes[set]) {
            tap_note("rank %d, live set %s: %lld bytes, closed form %lld", rank,
                mem_live_set_name((enum live_set)set), (long long)got->set_peak_bytes[set],
                (long long)want->set_bytes[set]);
            good = false;
        }
    return good;
}

/* ---- small steps on the cpu device ----------------------------------------------------------- */

static void test_small(
    const struct model_shape *shape, const struct model_options *options, const char *name)
{
    unsigned char bytes[512];
    const struct train_text text = {bytes, sizeof bytes};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * i % 251);
    int ranks = shape->layout.ranks;
    int64_t routes = STEPS * shape->layers * ranks * model_tokens(shape) * shape->topk;
    struct ranks_config config = {
        .count = ranks, .device = {.kind = DEV_CPU, .pool = dev_pool_create(1)}};
    struct case_result result;
    struct train_run run = {.shape = shape,
        .options = options,
        .text = &text,
        .ranks = &config,
        .steps = STEPS,
        .routes = calloc((size_t)routes, sizeof *run.routes)};
    bool good =
        case_result_init(&result, ranks) == 0 && run.routes && train_run(&run, &result) == 0;
    for (int rank = 0; good && rank < ranks; rank++) {
        struct moe_peaks want;
        int64_t pinned, seen = result.ranks[rank].host_pinned_peak_bytes;
        good = expect(shape, options, rank, run.routes, &want, &pinned) == 0 &&
               same(&want, &result.ranks[rank].windows[WINDOW_PASS].peak, rank);
        if (options->dispatch == &moe_pipelined_llep && seen != pinned) {
            tap_note("rank %d pins %lld bytes, closed form %lld", rank, (long long)seen,
                (long long)pinned);
            good = false;
        }
    }
    const int *degree = shape->layout.degree;
    tap_ok(good, "W=%d, D=%d, E_p=%d, P=%d, T=%lld, %s: to the byte", ranks, degree[0], degree[1],
        degree[2], (long long)shape->length, name);
    train_run_free(&run);
    free(run.routes);
    case_result_free(&result);
    dev_pool_free(config.device.pool);
}

static const int layouts[][4] = {
    {1, 1, 1, 1}, {2, 1, 2, 2}, {2, 2, 1, 2}, {4, 2, 4, 2}, {4, 4, 2, 4}, {4, 1, 2, 1}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void test_layouts(void)
{
    for (int i = 0; i < LAYOUTS; i++)
        for (int64_t length = 8; length <= 128; length *= 4) {
            struct model_shape shape =
                shape_of(layouts[i][0], layouts[i][1], layouts[i][2], layouts[i][3]);
            struct model_options options = composed(5);
            shape.length = length;
            test_small(&shape, &options, "composed");
        }
}

/* Boundaries on the device, tensors that the ranks do not divide, attention kept, and every other
 * implementation but full-activations. */
static void test_options(void)
{
    static const int64_t host_budgets[] = {0, 3000, 9000, 12000};
    static const int64_t keeps[] = {5000, 20000, 1 << 20};
    char name[96];
    for (int i = 3; i < 5; i++) {
        struct model_shape shape =
            shape_of(layouts[i][0], layouts[i][1], layouts[i][2], layouts[i][3]);
        struct model_options options = composed(7);
        shape.hidden = 36;
        shape.ffn = 20;
        for (size_t b = 0; b < sizeof host_budgets / sizeof *host_budgets; b++) {
            options.stack.budget.bytes = host_budgets[b];
            snprintf(name, sizeof name, "%lld bytes to the host", (long long)host_budgets[b]);
            test_small(&shape, &options, name);
        }
        for (size_t k = 0; k < sizeof keeps / sizeof *keeps; k++) {
            options.keep_attention_bytes = keeps[k];
            snprintf(name, sizeof name, "attention keeps %lld bytes", (long long)keeps[k]);
            test_small(&shape, &options, name);
        }
        for (int c = 1; stack_impls[c]; c++) {
            options = composed(0);
            options.checkpoint = stack_impls[c];
            test_small(&shape, &options, stack_impls[c]->name);
        }
        for (int d = 0; moe_impls[d]; d++) {
            options = composed(16);
            options.dispatch = moe_impls[d];
            options.moe.flops_per_byte = 1840;
            test_small(&shape, &options, moe_impls[d]->name);
        }
        for (int v = 0; vocab_impls[v]; v++) {
            options = composed(16);
            options.vocab = vocab_impls[v];
            test_small(&shape, &options, vocab_impls[v]->name);
        }
        for (int o = 0; adamw_impls[o]; o++) {
            options = composed(16);
            options.optimizer = adamw_impls[o];
            test_small(&shape, &options, adamw_impls[o]->name);
        }
    }
}

int main(void)
{
    test_layouts();
    test_options();
    return tap_done();
}
