/* The composed model's gradients against finite differences of its loss in FP64, every parameter of
 * a tiny model. The distance is stated, not derived: activations are stored in BF16, so that a
 * gradient is right to some percent of the largest of its tensor; a wrong formula misses by the
 * size of the values themselves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "probe/seed.h"
#include "reference/model.h"
#include "tests/model_case.h"
#include "tests/tap.h"

enum { LENGTH = 12, SEQUENCES = 3, TOKENS = LENGTH * SEQUENCES };
#define ALLOWED 0.04 /* of the largest gradient of a tensor */

struct tiny {
    struct model_shape shape;
    struct model_options options;
    int32_t tokens[TOKENS];
    int64_t targets[TOKENS];
    double loss;
    /* in the model's order */
    int64_t elements;
    double *parameters;
    float *gradients;
    int32_t *idx; /* [layers, TOKENS, topk] */
    int64_t part_first[64];
    char part_name[64][32];
    int parts;
};

/* One rank: its parts are the whole tensors, and its slices the whole parts. */
static int run_rank(struct rank *rank, void *context)
{
    struct tiny *tiny = context;
    struct model m;
    model_open(&m, &tiny->shape, &tiny->options, rank->dev, rank->comm);
    float *before = malloc((size_t)tiny->elements * sizeof *before);
    for (int64_t i = 0; before && i < m.parts; i++)
        adamw_read_state(
            &m.adamw, ADAMW_P, m.part[i].flat_first, m.part[i].count, before + m.part[i].first);
    model_step(&m, tiny->tokens, tiny->targets, &tiny->loss);
    dev_sync(rank->dev);
    if (before && dev_status(rank->dev) == DEV_OK) {
        for (int64_t i = 0; i < tiny->elements; i++)
            tiny->parameters[i] = (double)before[i];
        for (int64_t i = 0; i < m.parts; i++) {
            tiny->part_first[tiny->parts] = m.part[i].first;
            snprintf(tiny->part_name[tiny->parts++], 32, "%s", m.part[i].name);
            for (int64_t e = 0; e < m.part[i].count; e++)
                tiny->gradients[m.part[i].first + e] = m.gradients[m.part[i].flat_first + e];
        }
        for (int64_t i = 0; i < tiny->shape.layers * TOKENS * tiny->shape.topk; i++)
            tiny->idx[i] = m.chosen[i];
    }
    free(before);
    model_close(&m);
    return dev_status(rank->dev) == DEV_OK ? 0 : -1;
}

static struct ref_model reference_of(const struct tiny *tiny)
{
    const struct model_shape *s = &tiny->shape;
    return (struct ref_model){SEQUENCES, LENGTH, s->layers, s->hidden, s->layout.heads, s->ffn,
        s->layout.experts, s->vocab, s->topk, tiny->tokens, tiny->targets, tiny->idx};
}

/* The largest distance of a part's gradients, relative to its largest one. */
static double part_distance(
    struct tiny *tiny, const struct ref_model *model, int64_t first, int64_t end)
{
    const double step = 1e-4;
    double largest = 0, off = 0;
    for (int64_t i = first; i < end; i++) {
        double value = tiny->parameters[i];
        tiny->parameters[i] = value + step;
        double up = ref_model_loss_f64(model, tiny->parameters);
        tiny->parameters[i] = value - step;
        double slope = (up - ref_model_loss_f64(model, tiny->parameters)) / (2 * step);
        tiny->parameters[i] = value;
        largest = fmax(largest, fabs(slope));
        off = fmax(off, fabs(slope - (double)tiny->gradients[i]));
    }
    return largest > 0 ? off / largest : INFINITY;
}

static void test_composition(struct tiny *tiny, const char *name)
{
    struct ranks_config config = {
        .count = 1, .device = {.kind = DEV_CPU, .check_order = true, .pool = dev_pool_create(1)}};
    struct ranks_failure failure = {0};
    struct ref_model model = reference_of(tiny);
    double worst = 0;
    int worst_part = 0;
    tiny->parts = 0;
    bool ran = ranks_run(&config, run_rank, tiny, &failure) == 0;
    double exact = ran ? ref_model_loss_f64(&model, tiny->parameters) : NAN;
    tap_ok(ran && fabs(tiny->loss - exact) < 2e-2 * exact, "%s: loss %.5f, in FP64 %.5f", name,
        tiny->loss, exact);
    if (!ran)
        tap_note("%s", failure.message);
    for (int i = 0; ran && i < tiny->parts; i++) {
        int64_t end = i + 1 < tiny->parts ? tiny->part_first[i + 1] : tiny->elements;
        double distance = part_distance(tiny, &model, tiny->part_first[i], end);
        if (distance > worst) {
            worst = distance;
            worst_part = i;
        }
    }
    tap_ok(ran && worst < ALLOWED,
        "%s: %lld gradients as finite differences say; at most %.1f %% "
        "of the largest off, in %s",
        name, (long long)tiny->elements, 100 * worst, tiny->part_name[worst_part]);
    dev_pool_free(config.device.pool);
}

int main(void)
{
    static struct tiny tiny;
    tiny.shape =
        (struct model_shape){.layout = {.ranks = 1, .degree = {1, 1, 1}, .heads = 2, .experts = 4},
            .layers = 2,
            .hidden = 16,
            .ffn = 12,
            .vocab = 13,
            .topk = 2,
            .length = LENGTH,
            .sequences = SEQUENCES};
    tiny.options = model_case_options();
    for (int i = 0; i < TOKENS; i++) {
        tiny.tokens[i] = (int32_t)seed_index(9, 0, i, tiny.shape.vocab);
        tiny.targets[i] = seed_index(9, 1, i, tiny.shape.vocab);
    }
    struct ref_model model = reference_of(&tiny);
    tiny.elements = ref_model_parameters(&model);
    tiny.parameters = calloc((size_t)tiny.elements, sizeof *tiny.parameters);
    tiny.gradients = calloc((size_t)tiny.elements, sizeof *tiny.gradients);
    tiny.idx = calloc((size_t)(tiny.shape.layers * TOKENS * tiny.shape.topk), sizeof *tiny.idx);
    test_composition(&tiny, "standard");
    tiny.options.dispatch = &moe_pipelined_llep;
    tiny.options.moe.chunk_budget = 7;
    tiny.options.vocab = &vocab_ring_dtp;
    tiny.options.checkpoint = &stack_sco;
    tiny.options.stack.budget.bytes = -1;
    tiny.options.optimizer = &adamw_offload_stream;
    test_composition(&tiny, "composed");
    free(tiny.parameters);
    free(tiny.gradients);
    free(tiny.idx);
    return tap_done();
}
