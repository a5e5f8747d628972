/* recompute - what attention keeps in the memory that a smaller dispatch leaves free
 *
 *   recompute --layers 12 --tokens 60K --sequence 40K --hidden 2048 --heads 32 --kv-heads 4
 *             --head-dim 128 --budget 20G
 *
 * Under full recompute a layer keeps its input alone. With `budget` bytes to spare, layers keep
 * more of their attention, the best saving per byte first (ops/recompute_plan.h):
 *
 *   context   the attention's output and its log-sum-exp: saves the core, 2 N S A FLOP (causal)
 *   qkv       queries, keys and values too: saves their products, 2 N H (A + 2 A_kv)
 *   all       the projected output too: saves 2 N A H
 *
 * with A = heads x head-dim and A_kv = kv-heads x head-dim values a token. Nothing is run or
 * measured: bytes and FLOP follow from the shape. --capacity is another way to say the budget: a
 * device's memory less --peak, the step's peak under full recompute. */
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/options.h"
#include "bench/harness/units.h"
#include "kernels/arith.h"
#include "ops/recompute_plan.h"

enum { CONTEXT, QKV, ALL, OPTIONS };
static const char *const option_names[] = {"context", "qkv", "all"};
static const char *const dtype_names[] = {"f32", "bf16", NULL};

struct line {
    int64_t layers, tokens, sequence, hidden, heads, kv_heads, head_dim;
    int64_t budget, capacity, peak;
    int dtype;
};

#define AT(field) offsetof(struct line, field)

static const struct option table[] = {
    {.name = "layers",
        .kind = OPTION_COUNT,
        .at = AT(layers),
        .fallback = "12",
        .low = 1,
        .high = 4096,
        .help = "attention layers"},
    {.name = "tokens",
        .kind = OPTION_COUNT,
        .at = AT(tokens),
        .fallback = "61440",
        .low = 1,
        .high = 268435456,
        .help = "tokens on a rank: micro-batch times sequence over what divides it"},
    {.name = "sequence",
        .kind = OPTION_COUNT,
        .at = AT(sequence),
        .fallback = "40960",
        .low = 1,
        .high = 268435456,
        .help = "keys that a query meets, all ranks of the sequence together"},
    {.name = "hidden",
        .kind = OPTION_COUNT,
        .at = AT(hidden),
        .fallback = "2048",
        .low = 1,
        .high = 1048576,
        .help = "hidden width"},
    {.name = "heads",
        .kind = OPTION_COUNT,
        .at = AT(heads),
        .fallback = "32",
        .low = 1,
        .high = 4096,
        .help = "query heads on a rank"},
    {.name = "kv-heads",
        .kind = OPTION_COUNT,
        .at = AT(kv_heads),
        .fallback = "4",
        .low = 1,
        .high = 4096,
        .help = "key and value heads on a rank"},
    {.name = "head-dim",
        .kind = OPTION_COUNT,
        .at = AT(head_dim),
        .fallback = "128",
        .low = 1,
        .high = 4096,
        .help = "values of a head"},
    {.name = "dtype",
        .kind = OPTION_NAME,
        .at = AT(dtype),
        .fallback = "bf16",
        .names = dtype_names,
        .help = "storage type of what is kept"},
    {.name = "budget",
        .kind = OPTION_BYTES,
        .at = AT(budget),
        .default_note = "--capacity less --peak",
        .help = "bytes that may be kept on a rank"},
    {.name = "capacity",
        .kind = OPTION_BYTES,
        .at = AT(capacity),
        .default_note = "none",
        .help = "memory of a device"},
    {.name = "peak",
        .kind = OPTION_BYTES,
        .at = AT(peak),
        .default_note = "none",
        .help = "a step's peak under full recompute"},
};

static const char exit_codes[] = "  0    the choice is printed\n"
                                 "  2    bad option\n"
                                 "  3    out of memory, or the output could not be written\n";

/* ---- options of a layer ------------------------------------------------------------------------
 * All layers are alike. */

static void layer_options(const struct line *line, struct recompute_option option[OPTIONS])
{
    int64_t type_bytes = dtype_bytes((enum dtype)line->dtype), tokens = line->tokens;
    int64_t width = line->heads * line->head_dim, kv = line->kv_heads * line->head_dim;
    option[CONTEXT] = (struct recompute_option){
        tokens * (width * type_bytes + 4 * line->heads), 2 * tokens * line->sequence * width};
    option[QKV] = (struct recompute_option){
        option[CONTEXT].kept_bytes + tokens * (width + 2 * kv) * type_bytes,
        option[CONTEXT].saved_flops + 2 * tokens * line->hidden * (width + 2 * kv)};
    option[ALL] =
        (struct recompute_option){option[QKV].kept_bytes + tokens * line->hidden * type_bytes,
            option[QKV].saved_flops + 2 * tokens * width * line->hidden};
}

/* ---- output -----------------------------------------------------------------------------------
 */

static void print_options(const struct recompute_option *options)
{
    printf("%-8s  %12s  %14s  %14s\n", "option", "kept a layer", "saved a layer", "FLOP a byte");
    for (int j = 0; j < OPTIONS; j++) {
        char bytes[32], flops[32];
        units_bytes(options[j].kept_bytes, bytes, sizeof bytes);
        units_rate((double)options[j].saved_flops, "FLOP", flops, sizeof flops);
        printf("%-8s  %12s  %14s  %14.1f\n", option_names[j], bytes, flops,
            (double)options[j].saved_flops / (double)options[j].kept_bytes);
    }
}

/* Runs of layers with one choice. */
static void print_choice(const struct line *line, const int32_t *chosen)
{
    for (int64_t first = 0, last; first < line->layers; first = last + 1) {
        for (last = first; last + 1 < line->layers && chosen[last + 1] == chosen[first];)
            last++;
        printf("layers %lld to %lld: %s\n", (long long)first, (long long)last,
            chosen[first] < 0 ? "nothing kept" : option_names[chosen[first]]);
    }
}

static void print_plan(const struct recompute_problem *problem, const struct recompute_plan *plan)
{
    char budget[32], kept[32], freed[32], saved[32];
    double all = (double)problem->layers * (double)problem->options[OPTIONS - 1].saved_flops;
    units_bytes(problem->budget_bytes > 0 ? problem->budget_bytes : 0, budget, sizeof budget);
    units_bytes(plan->kept_bytes, kept, sizeof kept);
    units_bytes(plan->freed_bytes, freed, sizeof freed);
    units_rate((double)plan->saved_flops, "FLOP", saved, sizeof saved);
    printf("kept %s of a budget of %s; freed %s against keeping all\n", kept, budget, freed);
    printf("saved %s of backward's recomputation, %.1f %% of it\n", saved,
        100.0 * (double)plan->saved_flops / all);
}

static int run(const struct line *line)
{
    size_t layers = (size_t)line->layers;
    struct recompute_option *options = malloc(layers * OPTIONS * sizeof *options);
    int32_t *chosen = malloc(layers * sizeof *chosen);
    struct recompute_problem problem = {.layers = line->layers,
        .options_per_layer = OPTIONS,
        .options = options,
        .budget_bytes = line->budget >= 0 ? line->budget : line->capacity - line->peak};
    struct recompute_plan plan;
    int status = EXIT_ENVIRONMENT;
    for (size_t layer = 0; options && layer < layers; layer++)
        layer_options(line, options + layer * OPTIONS);
    if (!options || !chosen || recompute_choose(&problem, chosen, &plan)) {
        fprintf(stderr, "recompute: no memory for %lld layers\n", (long long)line->layers);
    } else {
        print_options(options);
        print_choice(line, chosen);
        print_plan(&problem, &plan);
        status = fflush(stdout) || ferror(stdout) ? EXIT_ENVIRONMENT : EXIT_OK;
        if (status != EXIT_OK)
            fprintf(stderr, "recompute: the output could not be written\n");
    }
    free(options);
    free(chosen);
    return status;
}

/* -1 to go on, or the exit status after a line on stderr. */
static int check(const struct options *options, const struct line *line)
{
    double flops = (double)line->layers * (double)line->tokens * (double)line->heads *
                   (double)line->head_dim * 2 *
                   ((double)line->sequence + 4.0 * (double)line->hidden);
    if (line->budget >= 0 && (line->capacity >= 0 || line->peak >= 0))
        return options_refuse(
            options, line->capacity >= 0 ? "capacity" : "peak", "has no effect beside --budget");
    if (line->budget < 0 && (line->capacity < 0 || line->peak < 0))
        return options_refuse(
            options, "budget", "not given, allowed that or both --capacity and --peak");
    if (line->kv_heads > line->heads)
        return options_refuse(options, "kv-heads", "got %lld, allowed at most %lld (--heads)",
            (long long)line->kv_heads, (long long)line->heads);
    if (flops > 9e18)
        return options_refuse(options, "sequence", "the recomputation is more than 9e18 FLOP");
    return -1;
}

int main(int argc, char **argv)
{
    static const char description[] =
        "Chooses, layer by layer, what attention keeps from forward to backward within a budget:\n"
        "greedily by saved FLOP per byte, options of a layer nested, ties by layer, then option.\n"
        "Arithmetic on shapes: nothing is run.\n";
    static const char examples[] =
        "  recompute --layers 12 --tokens 60K --sequence 40K --budget 8G\n"
        "  recompute --layers 48 --capacity 62e9 --peak 40G\n";
    struct line line;
    struct option_group groups[] = {
        {"Attention", table, (int)(sizeof table / sizeof *table), &line}};
    struct program program = {.name = "recompute",
        .summary = "what attention keeps in the memory that a smaller dispatch leaves free",
        .description = description,
        .examples = examples,
        .exit_codes = exit_codes,
        .groups = groups,
        .group_count = 1};
    struct options *options;
    int status = options_parse(&options, &program, argc, argv);
    if (status >= 0)
        return status;
    options_next(options);
    status = check(options, &line);
    if (status < 0)
        status = run(&line);
    options_free(options);
    return status;
}
