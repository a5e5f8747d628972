/* plan - does it fit? A rank's memory in a composed step, term by term, before anything is
 * launched.
 *
 *   plan --model e2e-667b --gpus 64 --context 1M --sequence-group 16 --chunk-budget 4096
 *   plan --model e2e-667b --gpus 64 --context 128K --baseline fsdp2
 *   plan --model e2e-120b --gpus 16 --reach
 *
 * The terms are those of Eq. 6 with our constants (ops/model_memory.c): the tracked peak of
 * bin/train never passes their sum, whatever the router does. --help has every option. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "bench/harness/model_list.h"
#include "bench/harness/options.h"
#include "bench/harness/plan_baseline.h"
#include "bench/harness/units.h"
#include "device/profile.h"
#include "ops/model_memory.h"
#include "probe/record.h"

#define GIB 1073741824.0

enum baseline { BASELINE_NONE, BASELINE_FSDP2 };
static const char *const baseline_names[] = {"none", "fsdp2", NULL};

struct plan_line {
    const char *model, *profile, *json;
    int64_t gpus, context, sequences, sequence_group, expert_group, vocab_group;
    int64_t chunk_budget, max_chunks, tile, host_budget, bucket, slots;
    int baseline;
    struct option_counts degrees;
    bool reach, device_state;
};

#define AT(field) offsetof(struct plan_line, field)

static const struct option launch_options[] = {
    {.name = "model",
        .kind = OPTION_TEXT,
        .at = AT(model),
        .argument = "NAME",
        .fallback = "e2e-667b",
        .help = "profiles/models/NAME.txt or a file: tensors, and widths"},
    {.name = "gpus",
        .kind = OPTION_COUNT,
        .at = AT(gpus),
        .argument = "W",
        .fallback = "64",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks"},
    {.name = "context",
        .kind = OPTION_COUNT,
        .at = AT(context),
        .axis = true,
        .argument = "T",
        .fallback = "128K",
        .low = 1,
        .high = INT64_C(1) << 32,
        .help = "tokens of a sequence"},
    {.name = "sequences",
        .kind = OPTION_COUNT,
        .at = AT(sequences),
        .argument = "B",
        .fallback = "1",
        .low = 1,
        .high = 1 << 20,
        .help = "sequences of a sequence group in one step"},
    {.name = "sequence-group",
        .kind = OPTION_COUNT,
        .at = AT(sequence_group),
        .axis = true,
        .argument = "D",
        .fallback = "16",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share a sequence, then heads"},
    {.name = "expert-group",
        .kind = OPTION_COUNT,
        .at = AT(expert_group),
        .argument = "E_p",
        .default_note = "--gpus",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share the experts"},
    {.name = "vocab-group",
        .kind = OPTION_COUNT,
        .at = AT(vocab_group),
        .argument = "P",
        .fallback = "8",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share the vocabulary"},
    {.name = "profile",
        .kind = OPTION_TEXT,
        .at = AT(profile),
        .argument = "NAME",
        .fallback = "h200-64",
        .help = "the machine: its memory, its ranks per node"},
};

static const struct option budget_options[] = {
    {.name = "chunk-budget",
        .kind = OPTION_COUNT,
        .at = AT(chunk_budget),
        .axis = true,
        .argument = "c",
        .fallback = "4096",
        .high = INT64_C(1) << 32,
        .help = "tokens of a chunk of the dispatch; 0 = all"},
    {.name = "max-chunks",
        .kind = OPTION_COUNT,
        .at = AT(max_chunks),
        .argument = "K",
        .fallback = "0",
        .high = INT64_C(1) << 32,
        .help = "ceiling of the chunks; 0 = none"},
    {.name = "tile",
        .kind = OPTION_COUNT,
        .at = AT(tile),
        .argument = "ROWS",
        .fallback = "0",
        .high = INT64_C(1) << 32,
        .help = "rows of a tile of the vocabulary; 0 = default"},
    {.name = "host-budget",
        .kind = OPTION_BYTES,
        .at = AT(host_budget),
        .default_note = "unlimited",
        .help = "bytes of boundaries of a rank that may go to the host"},
    {.name = "bucket",
        .kind = OPTION_COUNT,
        .at = AT(bucket),
        .argument = "PARAMS",
        .fallback = "100e6",
        .low = 1,
        .high = INT64_C(1) << 40,
        .help = "parameters of an optimizer bucket"},
    {.name = "slots",
        .kind = OPTION_COUNT,
        .at = AT(slots),
        .argument = "S",
        .fallback = "2",
        .low = 1,
        .high = ADAMW_SLOTS_MAX,
        .help = "staging slots of the optimizer"},
    {.name = "baseline",
        .kind = OPTION_NAME,
        .at = AT(baseline),
        .names = baseline_names,
        .fallback = "none",
        .help = "the usual stack's terms instead, at its best degrees"},
    {.name = "baseline-degrees",
        .kind = OPTION_COUNTS,
        .at = AT(degrees),
        .argument = "EP,CP,TP",
        .default_note = "those that need least",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .most = 3,
        .help = "degrees of the baseline: experts, context, tensor"},
    {.name = "device-state",
        .kind = OPTION_FLAG,
        .at = AT(device_state),
        .help = "with --baseline: masters and moments on the device"},
    {.name = "reach",
        .kind = OPTION_FLAG,
        .at = AT(reach),
        .help = "also the longest context, a power of two, that fits"},
    {.name = "json",
        .kind = OPTION_TEXT,
        .at = AT(json),
        .argument = "FILE",
        .help = "append a record per line"},
};

static const char description[] =
    "N = sequences * context / D tokens of a rank, A = heads, b = 2. Terms under \"the largest "
    "of\"\n"
    "take turns: only the largest counts.\n"
    "\n"
    "Two verdicts. Guaranteed: for any routing, every route on one rank and every expert lent.\n"
    "Balanced: routes and experts evenly spread, as bias balancing aims at. What would have to\n"
    "change names the smallest single change of a budget or a degree after which it fits.\n";

static const char examples[] =
    "  plan --model e2e-667b --gpus 64 --context 1M --sequence-group 16 --chunk-budget 4096\n"
    "  plan --model e2e-667b --gpus 64 --context 128K --baseline fsdp2\n"
    "  plan --model e2e-120b --gpus 16 --profile h200-16 --context 128K,1M --reach\n";

static const char exit_codes[] = "0 all fine, also where it does not fit; 2 bad option or input;\n"
                                 "3 the output could not be written\n";

struct program_state {
    struct plan_line line;
    struct options *options;
    struct model_list list;
    struct profile machine;
};

/* ---- the launch ------------------------------------------------------------------------------ */

static struct model_shape shape_of(const struct program_state *p, const struct plan_line *line)
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

static struct model_options options_of(const struct plan_line *line)
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
        .optimizer = &adamw_offload_stream,
        .adamw = {.bucket = line->bucket,
            .slots = (int)line->slots,
            .gradients = ADAMW_HOST_F32,
            .scale = 1,
            .hyper = {{1e-3, 0.9, 0.95, 1e-8, 0.1}, {1e-3, 0.9, 0.95, 1e-8, 0}}}};
}

static struct plan_model model_of(const struct program_state *p)
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

static int64_t limit_bytes(const struct program_state *p)
{
    return p->machine.memory_bytes - p->machine.reserved_memory_bytes;
}

static int64_t host_limit_bytes(const struct program_state *p)
{
    return p->machine.host_memory_bytes / p->machine.ranks_per_node;
}

/* The budget of rank 0, which holds as much as any. -1 when the launch is not one. */
static int budget_of(
    const struct program_state *p, const struct plan_line *line, struct model_budget *budget)
{
    char error[160];
    struct model_shape shape = shape_of(p, line);
    struct model_options options = options_of(line);
    if (model_check(&shape, error, sizeof error))
        return -1;
    return model_budget(budget, &shape, &options, 0);
}

static bool fits(const struct program_state *p, const struct plan_line *line, bool balanced)
{
    struct model_budget budget;
    return budget_of(p, line, &budget) == 0 &&
           (balanced ? budget.balanced_bytes : budget.device_bytes) <= limit_bytes(p) &&
           budget.host_bytes <= host_limit_bytes(p);
}

/* ---- what is refused before anything is printed ---------------------------------------------- */

static int check_degrees(const struct program_state *p)
{
    const int64_t *degree = p->line.degrees.values;
    if (p->line.degrees.count != 3)
        return -1;
    return p->line.gpus % degree[0] || p->line.gpus % (degree[1] * degree[2]) ||
                   p->list.width[MODEL_WIDTH_EXPERTS] % degree[0]
               ? -1
               : 0;
}

static int check_all(struct program_state *p)
{
    char error[1400];
    int status = -1;
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
    for (options_rewind(p->options); status < 0 && options_next(p->options);) {
        struct model_shape shape = shape_of(p, &p->line);
        if (model_check(&shape, error, sizeof error))
            status = options_refuse(p->options,
                strstr(error, "vocabulary") ? "vocab-group"
                : strstr(error, "experts")  ? "expert-group"
                                            : "sequence-group",
                "%s", error);
    }
    options_rewind(p->options);
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_head(const struct program_state *p)
{
    const struct plan_line *line = &p->line;
    printf("%s, %.1f G parameters, on %lld ranks of %s (%.1f GiB each, %.1f GiB of it ours)\n",
        line->model, (double)p->list.params / 1e9, (long long)line->gpus, p->machine.name,
        (double)p->machine.memory_bytes / GIB, (double)limit_bytes(p) / GIB);
}

static void print_verdict(const char *name, int64_t bytes, int64_t limit)
{
    if (bytes <= limit)
        printf("  %-30s %9.3f GiB   fits, %.3f GiB left\n", name, (double)bytes / GIB,
            (double)(limit - bytes) / GIB);
    else
        printf("  %-30s %9.3f GiB   does not fit, %.3f GiB too much\n", name, (double)bytes / GIB,
            (double)(bytes - limit) / GIB);
}

/* Halves or doubles one number until the launch fits; false where it never does. */
static bool try_change(const struct program_state *p, bool balanced, size_t field, bool doubles,
    int64_t end, int64_t *found)
{
    struct plan_line line = p->line;
    if (line.expert_group < 1)
        line.expert_group = line.gpus;
    int64_t *value = (int64_t *)(void *)((char *)&line + field);
    if (*value < 1)
        return false;
    while (doubles ? *value * 2 <= end : *value / 2 >= end) {
        *value = doubles ? *value * 2 : *value / 2;
        if (fits(p, &line, balanced)) {
            *found = *value;
            return true;
        }
    }
    return false;
}

static void print_changes(const struct program_state *p, bool balanced)
{
    static const struct {
        const char *name;
        size_t field;
        bool doubles;
        int64_t end;
    } changes[] = {{"chunk-budget", AT(chunk_budget), false, 64},
        {"sequence-group", AT(sequence_group), true, LAYOUT_RANKS_MAX},
        {"expert-group", AT(expert_group), false, 1}, {"bucket", AT(bucket), false, 1 << 20},
        {"context", AT(context), false, 1024}, {"gpus", AT(gpus), true, LAYOUT_RANKS_MAX}};
    bool any = false;
    printf("    fits with");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        int64_t value;
        if (!try_change(p, balanced, changes[i].field, changes[i].doubles, changes[i].end, &value))
            continue;
        printf("%s --%s %lld", any ? ", or" : "", changes[i].name, (long long)value);
        any = true;
    }
    puts(any ? "" : " no single change of a budget or degree");
}

static int record_budget(const struct program_state *p, const struct model_budget *budget)
{
    char path[64], error[256] = "memory is short";
    json_t *record = rec_create();
    if (record) {
        rec_str(record, "op", "plan");
        rec_str(record, "impl", "composed");
        rec_str(record, "device", "none");
        options_record(p->options, record);
        rec_str(record, "status", "ok");
        for (int i = 0; i < budget->count; i++) {
            snprintf(path, sizeof path, "figures.term_%d_bytes", i);
            rec_int(record, path, budget->term[i].bytes);
        }
        rec_int(record, "figures.guaranteed_bytes", budget->device_bytes);
        rec_int(record, "figures.balanced_bytes", budget->balanced_bytes);
        rec_int(record, "figures.host_bytes", budget->host_bytes);
        rec_int(record, "figures.limit_bytes", limit_bytes(p));
    }
    int status = record ? rec_append(p->line.json, record, error, sizeof error) : -1;
    json_decref(record);
    if (status)
        fprintf(stderr, "plan: %s\n", error);
    return status ? EXIT_ENVIRONMENT : -1;
}

static void print_terms(const struct model_budget *budget)
{
    for (int i = 0; i < budget->count; i++) {
        bool turns = i >= budget->count - budget->turns;
        if (i == budget->count - budget->turns)
            puts("  and the largest of");
        printf("  %s%-*s %-32s %9.3f GiB\n", turns ? "  " : "", turns ? 36 : 38,
            budget->term[i].name, budget->term[i].formula, (double)budget->term[i].bytes / GIB);
    }
}

/* The longest context, a power of two times 1024, that fits with everything else as it is. */
static int64_t reach_of(const struct program_state *p, bool balanced)
{
    struct plan_line line = p->line;
    int64_t reach = 0;
    for (line.context = 1024; line.context <= INT64_C(1) << 30; line.context *= 2)
        if (fits(p, &line, balanced))
            reach = line.context;
    return reach;
}

static int print_composed(struct program_state *p)
{
    struct model_budget budget;
    const struct plan_line *line = &p->line;
    if (budget_of(p, line, &budget)) {
        fputs("plan: no memory for the parts\n", stderr);
        return EXIT_ENVIRONMENT;
    }
    struct model_shape shape = shape_of(p, line);
    printf(
        "  composed step: context %lld, D=%d, E_p=%d, P=%d, %lld tokens a rank, chunks of %lld\n",
        (long long)line->context, shape.layout.degree[0], shape.layout.degree[1],
        shape.layout.degree[2], (long long)model_tokens(&shape), (long long)line->chunk_budget);
    print_terms(&budget);
    print_verdict("guaranteed for any routing", budget.device_bytes, limit_bytes(p));
    if (budget.device_bytes > limit_bytes(p))
        print_changes(p, false);
    print_verdict("with balanced routing", budget.balanced_bytes, limit_bytes(p));
    if (budget.balanced_bytes > limit_bytes(p))
        print_changes(p, true);
    print_verdict("pinned host memory", budget.host_bytes, host_limit_bytes(p));
    if (line->reach)
        printf("  longest context: %lld guaranteed, %lld with balanced routing\n",
            (long long)reach_of(p, false), (long long)reach_of(p, true));
    return line->json ? record_budget(p, &budget) : -1;
}

static void print_baseline(const struct program_state *p)
{
    const struct plan_line *line = &p->line;
    struct plan_model model = model_of(p);
    const int64_t *degree = line->degrees.values;
    struct plan_baseline b =
        line->degrees.count
            ? plan_baseline_at(&model, (int)line->gpus, line->context, (int)degree[0],
                  (int)degree[1], (int)degree[2], line->device_state)
            : plan_baseline_best(&model, (int)line->gpus, line->context, line->device_state);
    printf("  FSDP2: context %lld, EP=%d, CP=%d, TP=%d, %lld tokens a rank\n",
        (long long)line->context, b.expert, b.context, b.tensor, (long long)b.tokens);
    for (int i = 0; i < PLAN_BASELINE_TERMS; i++)
        printf("  %-38s %-32s %9.3f GiB\n", b.term[i].name, b.term[i].formula,
            (double)b.term[i].bytes / GIB);
    print_verdict("balanced load", b.device_bytes, limit_bytes(p));
    if (b.device_bytes > limit_bytes(p))
        printf("    what breaks: %s\n", b.term[b.largest].name);
    if (line->reach)
        printf("  longest context: %lld\n", (long long)plan_baseline_reach(&model, (int)line->gpus,
                                                limit_bytes(p), line->device_state));
}

static int run_all(struct program_state *p)
{
    int status = -1;
    print_head(p);
    while (status < 0 && options_next(p->options)) {
        if (p->line.baseline == BASELINE_FSDP2)
            print_baseline(p);
        else
            status = print_composed(p);
    }
    if (status < 0 && (fflush(stdout) || ferror(stdout))) {
        fputs("plan: the output could not be written\n", stderr);
        status = EXIT_ENVIRONMENT;
    }
    return status < 0 ? EXIT_OK : status;
}

int main(int argc, char **argv)
{
    static struct program_state p;
    const struct option_group groups[] = {
        {"Launch", launch_options, (int)(sizeof launch_options / sizeof *launch_options), &p.line},
        {"Budgets", budget_options, (int)(sizeof budget_options / sizeof *budget_options),
            &p.line}};
    const struct program program = {.name = "plan",
        .summary = "a rank's memory in a composed step, before anything is launched",
        .description = description,
        .examples = examples,
        .exit_codes = exit_codes,
        .groups = groups,
        .group_count = 2};
    int status = options_parse(&p.options, &program, argc, argv);
    if (status < 0)
        status = check_all(&p);
    if (status < 0)
        status = run_all(&p);
    model_list_free(&p.list);
    options_free(p.options);
    return status;
}
