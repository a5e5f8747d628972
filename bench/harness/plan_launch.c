/* What a command line of bin/plan asks for, as the model's shape and options, and what is refused
 * before anything is printed. */
#include "bench/harness/plan_launch.h"
#include <string.h>
#include "bench/harness/plan_ranks.h"
#include "bench/harness/writable.h"

struct model_shape plan_shape(const struct plan *p, const struct plan_line *line)
{
    const int64_t *width = p->list.width;
    int ranks = (int)line->gpus;
    return (struct model_shape){
        .layout = {.ranks = ranks,
            .degree = {(int)line->sequence_group,
                line->expert_group > 0 ? (int)line->expert_group : ranks, (int)line->vocab_group},
            .heads = width[MODEL_WIDTH_HEADS],
            .experts = width[MODEL_WIDTH_EXPERTS]},
        .layers = width[MODEL_WIDTH_LAYERS],
        .hidden = width[MODEL_WIDTH_HIDDEN],
        .ffn = width[MODEL_WIDTH_FFN],
        .vocab = width[MODEL_WIDTH_VOCAB],
        .topk = (int)width[MODEL_WIDTH_TOPK],
        .length = line->context,
        .sequences = line->sequences};
}

struct model_options plan_options(const struct plan_line *line)
{
    return (struct model_options){.dispatch = &moe_pipelined_llep,
        .moe = {.chunk_budget = line->chunk_budget,
            .max_chunks = line->max_chunks,
            .alpha = 1,
            .lambda = 1.3,
            .min_gemm_tokens = 1024},
        .vocab = &vocab_ring_dtp,
        .vocab_options = {.tile = line->tile},
        .checkpoint = &stack_sco,
        .stack = {.budget = {.bytes = line->host_budget}},
        .keep_attention_bytes = line->keep_attention,
        .optimizer = &adamw_offload_stream,
        .adamw = {.bucket = line->bucket,
            .slots = (int)line->slots,
            .gradients = ADAMW_HOST_F32,
            .scale = 1,
            .hyper = {{1e-3, 0.9, 0.95, 1e-8, 0.1}, {1e-3, 0.9, 0.95, 1e-8, 0}}}};
}

struct plan_model plan_baseline_model(const struct plan *p)
{
    const int64_t *width = p->list.width;
    return (struct plan_model){.layers = width[MODEL_WIDTH_LAYERS],
        .hidden = width[MODEL_WIDTH_HIDDEN],
        .heads = width[MODEL_WIDTH_HEADS],
        .ffn = width[MODEL_WIDTH_FFN],
        .experts = width[MODEL_WIDTH_EXPERTS],
        .vocab = width[MODEL_WIDTH_VOCAB],
        .params = p->list.params,
        .topk = (int)width[MODEL_WIDTH_TOPK]};
}

int64_t plan_limit_bytes(const struct plan *p)
{
    return profile_device_bytes(&p->machine);
}

int64_t plan_host_limit_bytes(const struct plan *p)
{
    return profile_host_bytes(&p->machine);
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The terms are those of the rank whose guaranteed total is the largest; no rank passes a total. */
static void take_fuller(struct model_budget *budget, const struct model_budget *other)
{
    int64_t balanced_bytes = most(budget->balanced_bytes, other->balanced_bytes);
    int64_t host_bytes = most(budget->host_bytes, other->host_bytes);
    if (other->device_bytes > budget->device_bytes)
        *budget = *other;
    budget->balanced_bytes = balanced_bytes;
    budget->host_bytes = host_bytes;
}

int plan_budget(const struct plan *p, const struct plan_line *line, struct model_budget *budget)
{
    char error[160];
    struct model_shape shape = plan_shape(p, line);
    struct model_options options = plan_options(line);
    struct model_budget other;
    int ranks[LAYOUT_RANKS_MAX];
    if (model_check(&shape, error, sizeof error) ||
        model_check_options(&shape, &options, error, sizeof error))
        return -1;
    int count = plan_fullest_ranks(&shape, ranks);
    if (model_budget(budget, &shape, &options, ranks[0]))
        return -1;
    for (int i = 1; i < count; i++) {
        if (model_budget(&other, &shape, &options, ranks[i]))
            return -1;
        take_fuller(budget, &other);
    }
    return 0;
}

bool plan_fits(const struct plan *p, const struct plan_line *line, bool balanced)
{
    struct model_budget budget;
    return plan_budget(p, line, &budget) == 0 &&
           (balanced ? budget.balanced_bytes : budget.device_bytes) <= plan_limit_bytes(p) &&
           budget.host_bytes <= plan_host_limit_bytes(p);
}

static int64_t longest_context(const struct plan *p, bool balanced)
{
    struct plan_line line = p->line;
    int64_t reach = 0;
    for (line.context = 1024; line.context <= INT64_C(1) << 30; line.context *= 2)
        if (plan_fits(p, &line, balanced))
            reach = line.context;
    return reach;
}

/* Memory grows with the sequences: doubling, then halving the gap. */
static int64_t most_sequences(const struct plan *p, bool balanced)
{
    struct plan_line line = p->line;
    int64_t fits = 0, fails = 1;
    for (line.sequences = 1; plan_fits(p, &line, balanced) && fails < INT64_C(1) << 20;) {
        fits = line.sequences;
        line.sequences = fails = 2 * fits;
    }
    while (fails - fits > 1) {
        line.sequences = fits + (fails - fits) / 2;
        *(plan_fits(p, &line, balanced) ? &fits : &fails) = line.sequences;
    }
    return fits;
}

struct plan_reach plan_reach(const struct plan *p)
{
    struct plan_reach reach;
    int64_t of_one = p->line.context * (p->line.gpus / p->line.sequence_group);
    for (int verdict = 0; verdict < 2; verdict++) {
        reach.context[verdict] = longest_context(p, verdict == PLAN_BALANCED);
        reach.batch[verdict] = most_sequences(p, verdict == PLAN_BALANCED) * of_one;
    }
    return reach;
}

bool plan_degree_is_even(const struct plan *p, int64_t degree)
{
    int64_t node = p->machine.ranks_per_node;
    return node % degree == 0 || degree % node == 0;
}

/* ---- what is refused before anything is printed ---------------------------------------------- */

static int check_degrees(const struct plan *p)
{
    const int64_t *degree = p->line.degrees.values;
    if (p->line.degrees.count != 3)
        return -1;
    return p->line.gpus % degree[0] || p->line.gpus % (degree[1] * degree[2]) ||
                   p->list.width[MODEL_WIDTH_EXPERTS] % degree[0]
               ? -1
               : 0;
}

/* The degrees of the current case; a search begins with 1 where none is given. */
static int check_case(const struct plan *p)
{
    static const char *const names[LAYOUT_DEGREES] = {
        "sequence-group", "expert-group", "vocab-group"};
    struct model_shape shape = plan_shape(p, &p->line);
    char error[160];
    for (int i = 0; p->line.search && i < LAYOUT_DEGREES; i++) {
        if (!options_given(p->options, names[i]))
            shape.layout.degree[i] = 1;
        else if (!plan_degree_is_even(p, shape.layout.degree[i]))
            return options_refuse(p->options, names[i],
                "got %d, allowed with --search a divisor or a multiple of the %lld ranks of a node",
                shape.layout.degree[i], (long long)p->machine.ranks_per_node);
    }
    struct model_options options = plan_options(&p->line);
    if (model_check(&shape, error, sizeof error) == 0)
        return !p->line.search && model_check_options(&shape, &options, error, sizeof error)
                   ? options_refuse(p->options, "tile", "%s", error)
                   : -1;
    if (!strstr(error, "degree"))
        return options_refuse(
            p->options, strstr(error, "64 bits") ? "context" : "model", "%s", error);
    return options_refuse(p->options,
        names[strstr(error, "vocabulary") ? LAYOUT_VOCAB
              : strstr(error, "experts")  ? LAYOUT_EXPERTS
                                          : LAYOUT_SEQUENCE],
        "%s", error);
}

int plan_check(struct plan *p)
{
    char error[1400];
    options_next(p->options); /* model and profile are the same in every case */
    if (model_list_read(&p->list, p->line.model, error, sizeof error))
        return options_refuse(p->options, "model", "%s", error);
    for (int i = 0; i < MODEL_WIDTHS; i++)
        if (!p->list.width[i])
            return options_refuse(p->options, "model", "%s does not say 'width %s NUMBER'",
                p->line.model, model_width_name((enum model_width)i));
    if (profile_read(p->line.profile, &p->machine, error, sizeof error))
        return options_refuse(p->options, "profile", "%s", error);
    if (p->line.device_state && p->line.baseline == BASELINE_NONE)
        return options_refuse(p->options, "device-state", "has no effect without --baseline");
    if (p->line.degrees.count && p->line.baseline == BASELINE_NONE)
        return options_refuse(p->options, "baseline-degrees", "has no effect without --baseline");
    if (p->line.degrees.count && check_degrees(p))
        return options_refuse(p->options, "baseline-degrees",
            "allowed three counts EP,CP,TP, with EP and CP*TP dividing the %lld ranks and EP the "
            "%lld experts",
            (long long)p->line.gpus, (long long)p->list.width[MODEL_WIDTH_EXPERTS]);
    if (p->line.verdict != PLAN_GUARANTEED && !p->line.search)
        return options_refuse(p->options, "verdict", "has no effect without --search");
    int status = writable_check(p->options, "json", p->line.json);
    for (options_rewind(p->options); status < 0 && options_next(p->options);)
        status = check_case(p);
    options_rewind(p->options);
    return status;
}
