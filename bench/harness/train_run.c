/* One thread per rank opens the model, trains, and writes the slices that it owns to their place
 * among the whole tensors. */
#include "bench/harness/train_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "probe/timing.h"

double train_flops_per_token(const struct model_shape *s)
{
    double hidden = (double)s->hidden, layer = 4 * hidden * hidden; /* multiply-adds */
    layer += hidden * (double)s->length;                            /* two products of half */
    layer += hidden * (double)s->layout.experts;
    layer += (double)s->topk * 3 * hidden * (double)s->ffn;
    return 6 * ((double)s->layers * layer + hidden * (double)s->vocab);
}

/* ---- one rank -------------------------------------------------------------------------------- */

struct on_rank {
    struct train_run *run;
    struct rank *rank;
    struct model model;
    int32_t *tokens;  /* [N] */
    int64_t *targets; /* [N] */
};

static void load_batch(struct on_rank *r, int64_t step)
{
    const struct model_shape *shape = &r->model.shape;
    struct layout_group block = r->model.layout.block[LAYOUT_SEQUENCE];
    int64_t run = shape->length / block.size;
    struct train_window window = {.seed = r->run->options->seed,
        .step = step,
        .first_sequence = block.first / block.size * shape->sequences,
        .sequences = shape->sequences,
        .length = shape->length,
        .first = block.place * run,
        .run = run};
    train_text_batch(r->run->text, &window, r->tokens, r->targets);
}

/* This rank's place in [steps, layers, ranks, N, k]. */
static void keep_routes(struct on_rank *r, int64_t step)
{
    const struct model_shape *shape = &r->model.shape;
    int64_t routes = model_tokens(shape) * shape->topk;
    for (int64_t layer = 0; layer < shape->layers; layer++) {
        int64_t place = (step * shape->layers + layer) * r->rank->count + r->rank->index;
        memcpy(r->run->routes + place * routes, r->model.idx[layer],
            (size_t)routes * sizeof *r->run->routes);
    }
}

static int train(struct on_rank *r)
{
    struct device *dev = r->rank->dev;
    for (int64_t step = 0; step < r->run->steps; step++) {
        double loss, begin_s;
        load_batch(r, step);
        if (comm_barrier(r->rank->comm))
            return -1;
        begin_s = dev_clock_s(dev);
        if (model_step(&r->model, r->tokens, r->targets, &loss) != DEV_OK)
            return -1;
        double seconds = dev_clock_s(dev) - begin_s;
        if (r->rank->index == 0) {
            r->run->loss[step] = loss;
            r->run->seconds[step] = seconds;
            if (r->run->progress)
                r->run->progress(r->run->context, step, loss, seconds);
        }
        if (r->run->routes)
            keep_routes(r, step);
    }
    return 0;
}

static void collect(struct on_rank *r)
{
    struct model *m = &r->model;
    int64_t first = 0;
    for (int64_t i = 0; i < m->parts; i++) {
        const struct model_part *part = &m->part[i];
        adamw_read_state(&m->adamw, ADAMW_P, part->flat_first, part->slice,
            r->run->master + first + part->global_first + part->slice_first);
        first += model_whole_count(&m->shape, part);
    }
    if (r->rank->index == 0)
        memcpy(r->run->loads, m->loads,
            (size_t)(m->shape.layers * m->shape.layout.experts) * sizeof *m->loads);
}

/* The fullest rank's figures, after all have them. */
static int note_memory(struct on_rank *r)
{
    struct figures {
        int64_t peak, host, set[LIVE_SET_COUNT];
    } mine, *all = calloc((size_t)r->rank->count, sizeof *all);
    const struct mem_probe *memory = dev_memory(r->rank->dev);
    mine.peak = memory->window.peak_bytes;
    mine.host = dev_host_memory(r->rank->dev)->window.peak_bytes;
    memcpy(mine.set, memory->window.set_peak_bytes, sizeof mine.set);
    int status = all ? comm_host_all_gather(r->rank->comm, &mine, all, sizeof mine) : -1;
    for (int p = 0; status == 0 && r->rank->index == 0 && p < r->rank->count; p++) {
        if (p && all[p].peak <= r->run->peak_bytes)
            continue;
        r->run->peak_bytes = all[p].peak;
        r->run->host_peak_bytes = all[p].host;
        memcpy(r->run->set_peak_bytes, all[p].set, sizeof mine.set);
    }
    free(all);
    return status;
}

static int run_rank(struct rank *rank, void *context)
{
    struct train_run *run = context;
    struct on_rank r = {.run = run, .rank = rank};
    int64_t count = model_tokens(run->shape);
    r.tokens = malloc((size_t)count * sizeof *r.tokens + 1);
    r.targets = malloc((size_t)count * sizeof *r.targets + 1);
    int status = -1;
    if (!r.tokens || !r.targets)
        dev_fail(rank->dev, DEV_FAILED, "no host memory for a batch");
    if (model_open(&r.model, run->shape, run->options, rank->dev, rank->comm) == DEV_OK)
        status = train(&r);
    if (status == 0) {
        collect(&r);
        status = note_memory(&r);
    }
    model_close(&r.model);
    free(r.tokens);
    free(r.targets);
    return status;
}

/* ---- the run --------------------------------------------------------------------------------- */

int train_run(struct train_run *run)
{
    size_t loads = (size_t)(run->shape->layers * run->shape->layout.experts);
    run->elements = model_elements(run->shape);
    run->loss = calloc((size_t)run->steps + 1, sizeof *run->loss);
    run->seconds = calloc((size_t)run->steps + 1, sizeof *run->seconds);
    run->master = calloc((size_t)run->elements, sizeof *run->master);
    run->loads = calloc(loads, sizeof *run->loads);
    if (!run->loss || !run->seconds || !run->master || !run->loads) {
        run->failure = (struct ranks_failure){
            .status = DEV_FAILED, .message = "no host memory for the results of a run"};
        return -1;
    }
    return ranks_run(run->ranks, run_rank, run, &run->failure);
}

void train_run_free(struct train_run *run)
{
    free(run->loss);
    free(run->seconds);
    free(run->master);
    free(run->loads);
    run->loss = run->seconds = NULL;
    run->master = NULL;
    run->loads = NULL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

void train_run_digests(
    const struct train_run *run, char losses[DIGEST_TEXT], char weights[DIGEST_TEXT])
{
    snprintf(losses, DIGEST_TEXT, "-");
    snprintf(weights, DIGEST_TEXT, "-");
    struct digest *d = digest_create(), *w = digest_create();
    for (int64_t i = 0; d && i < run->steps; i++) {
        float words[2]; /* a loss's 64 bits */
        memcpy(words, &run->loss[i], sizeof words);
        digest_f32(d, words, 2);
    }
    if (w)
        digest_f32(w, run->master, run->elements);
    if (d)
        digest_finish(d, losses);
    if (w)
        digest_finish(w, weights);
}

/* The tensor that holds element `at` of the whole model. */
static void name_element(const struct model_shape *s, int64_t at, char *text, int size)
{
    int64_t square = s->hidden * s->hidden, expert = s->layout.experts * s->ffn * s->hidden;
    int64_t counts[MODEL_GAINS + 1] = {[MODEL_EMBEDDING] = s->vocab * s->hidden,
        [MODEL_Q] = square,
        [MODEL_K] = square,
        [MODEL_V] = square,
        [MODEL_O] = square,
        [MODEL_ROUTER] = s->layout.experts * s->hidden,
        [MODEL_GATE] = expert,
        [MODEL_UP] = expert,
        [MODEL_DOWN] = expert,
        [MODEL_HEAD] = s->vocab * s->hidden,
        [MODEL_GAINS] = (2 * s->layers + 1) * s->hidden};
    if (at < counts[MODEL_EMBEDDING]) {
        snprintf(text, (size_t)size, "embedding [%lld]", (long long)at);
        return;
    }
    at -= counts[MODEL_EMBEDDING];
    for (int64_t layer = 0; layer < s->layers; layer++)
        for (int tensor = MODEL_Q; tensor <= MODEL_DOWN; at -= counts[tensor++])
            if (at < counts[tensor]) {
                snprintf(text, (size_t)size, "layer %lld %s [%lld]", (long long)layer,
                    model_tensor_name((enum model_tensor)tensor), (long long)at);
                return;
            }
    bool gain = at < counts[MODEL_GAINS];
    snprintf(text, (size_t)size, "%s [%lld]", gain ? "gains" : "head",
        (long long)(gain ? at : at - counts[MODEL_GAINS]));
}

bool train_run_difference(
    const struct train_run *a, const struct train_run *b, char *text, int size)
{
    for (int64_t i = 0; i < a->steps; i++)
        if (memcmp(&a->loss[i], &b->loss[i], sizeof a->loss[i])) {
            snprintf(text, (size_t)size, "the loss of step %lld: %.17g and %.17g", (long long)i,
                a->loss[i], b->loss[i]);
            return true;
        }
    for (int64_t i = 0; i < a->elements; i++)
        if (memcmp(&a->master[i], &b->master[i], sizeof a->master[i])) {
            char name[64];
            name_element(a->shape, i, name, sizeof name);
            snprintf(text, (size_t)size, "%s: %.9g and %.9g", name, (double)a->master[i],
                (double)b->master[i]);
            return true;
        }
    return false;
}
