/* The terms of the FSDP2 baseline. Parameters and gradients are sharded over all ranks; two layers
 * are gathered at a time, of the experts only the rank's own E / EP. A layer's activations exist
 * while it is recomputed; its boundaries stay. The dispatch is an all-to-all under autograd: 4 H +
 * 4 F values for every received route (what Table 6 of the paper shows). Logits are materialized.
 */
#include "bench/harness/plan_baseline.h"

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

struct plan_baseline plan_baseline_at(const struct plan_model *model, int gpus, int64_t context,
    int expert, int context_group, int tensor, bool device_state)
{
    int64_t tokens = divide_up(context, context_group), local = divide_up(tokens, tensor);
    int64_t hidden = model->hidden, dense = 4 * hidden * hidden + model->experts * hidden;
    int64_t own_experts = model->experts / expert * 3 * hidden * model->ffn;
    int64_t routes = local * model->topk;
    struct plan_baseline b = {.expert = expert,
        .context = context_group,
        .tensor = tensor,
        .tokens = tokens,
        .term = {{"parameters and gradients", "4 Theta / W", 4 * divide_up(model->params, gpus)},
            {"optimizer state", device_state ? "12 Theta / W" : "on the host",
                device_state ? 12 * divide_up(model->params, gpus) : 0},
            {"two gathered layers", "2 (4 H^2 + 3 F H E / EP) b / TP",
                2 * (dense / tensor + own_experts) * 2},
            {"boundaries", "L N H b / TP", model->layers * local * hidden * 2},
            {"attention of a layer", "8 N H b / TP", 8 * local * hidden * 2},
            {"dispatch of a layer", "N k (4 H + 4 F) b / TP",
                routes * (4 * hidden + 4 * model->ffn) * 2},
            {"logits, softmax, gradient", "N V (b + 4 + 4) / TP",
                tokens * divide_up(model->vocab, tensor) * 10}}};
    for (int i = 0; i < PLAN_BASELINE_TERMS; i++) {
        b.device_bytes += b.term[i].bytes;
        if (b.term[i].bytes > b.term[b.largest].bytes)
            b.largest = i;
    }
    return b;
}

/* Calls `look` with every choice of degrees that divide. */
static void each_choice(const struct plan_model *model, int gpus,
    void (*look)(int expert, int context_group, int tensor, void *context), void *context)
{
    for (int tensor = 1; tensor <= 8; tensor *= 2)
        for (int group = 1; group * tensor <= gpus; group++)
            for (int expert = 1; expert <= gpus; expert++)
                if (gpus % (group * tensor) == 0 && gpus % expert == 0 &&
                    model->experts % expert == 0 && model->heads % tensor == 0)
                    look(expert, group, tensor, context);
}

struct question {
    const struct plan_model *model;
    int gpus;
    int64_t context, limit_bytes;
    bool device_state;
    struct plan_baseline best;
    int64_t batch;
};

static void look_for_least(int expert, int group, int tensor, void *context)
{
    struct question *q = context;
    struct plan_baseline b =
        plan_baseline_at(q->model, q->gpus, q->context, expert, group, tensor, q->device_state);
    if (!q->best.expert || b.device_bytes < q->best.device_bytes)
        q->best = b;
}

/* Memory grows with the tokens of a group, in however many sequences: doubling, then halving. */
static void look_for_batch(int expert, int group, int tensor, void *context)
{
    struct question *q = context;
    int64_t fits = 0, fails = 1, groups = q->gpus / (group * tensor), sequences = 1;
    for (bool grows = true; fails - fits > 1 || grows;) {
        bool fit = plan_baseline_at(q->model, q->gpus, sequences * q->context, expert, group,
                       tensor, q->device_state)
                       .device_bytes <= q->limit_bytes;
        *(fit ? &fits : &fails) = sequences;
        grows = grows && fit && sequences < 1 << 20;
        if (grows)
            fails = 2 * sequences;
        sequences = grows ? fails : fits + (fails - fits) / 2;
    }
    if (fits * groups * q->context > q->batch)
        q->batch = fits * groups * q->context;
}

struct plan_baseline plan_baseline_best(
    const struct plan_model *model, int gpus, int64_t context, bool device_state)
{
    struct question q = {
        .model = model, .gpus = gpus, .context = context, .device_state = device_state};
    each_choice(model, gpus, look_for_least, &q);
    return q.best;
}

struct plan_baseline_reach plan_baseline_reach(const struct plan_model *model, int gpus,
    int64_t context, int64_t limit_bytes, bool device_state)
{
    struct plan_baseline_reach reach = {0};
    struct question q = {model, gpus, context, limit_bytes, device_state, {0}, 0};
    for (int64_t length = 1024; length <= INT64_C(1) << 30; length *= 2)
        if (plan_baseline_best(model, gpus, length, device_state).device_bytes <= limit_bytes)
            reach.context = length;
    reach.beyond =
        plan_baseline_best(model, gpus, reach.context ? 2 * reach.context : 1024, device_state);
    each_choice(model, gpus, look_for_batch, &q);
    reach.batch = q.batch;
    return reach;
}
