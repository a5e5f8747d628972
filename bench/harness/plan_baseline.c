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

struct plan_baseline plan_baseline_best(
    const struct plan_model *model, int gpus, int64_t context, bool device_state)
{
    struct plan_baseline best = {0};
    for (int tensor = 1; tensor <= 8; tensor *= 2)
        for (int group = 1; group * tensor <= gpus; group++)
            for (int expert = 1; expert <= gpus; expert++) {
                if (gpus % (group * tensor) || gpus % expert || model->experts % expert ||
                    model->heads % tensor)
                    continue;
                struct plan_baseline b =
                    plan_baseline_at(model, gpus, context, expert, group, tensor, device_state);
                if (!best.expert || b.device_bytes < best.device_bytes)
                    best = b;
            }
    return best;
}

int64_t plan_baseline_reach(
    const struct plan_model *model, int gpus, int64_t limit_bytes, bool device_state)
{
    int64_t reach = 0;
    for (int64_t context = 1024; context <= INT64_C(1) << 30; context *= 2)
        if (plan_baseline_best(model, gpus, context, device_state).device_bytes <= limit_bytes)
            reach = context;
    return reach;
}
