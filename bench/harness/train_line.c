/* The table of bin/train's options: the composition, the model, the run. */
#include "bench/harness/train_line.h"
#include <string.h>
#include "bench/harness/composition_line.h"
#include "bench/harness/model_list.h"
#include "bench/harness/train_text.h"
#include "ops/model.h"

#define IMPL_MAX 32
#define SIZE_MAX_MODEL (INT64_C(1) << 20)
#define TOKENS_MAX INT32_MAX

const char *const composition_names[] = {"composed", "standard", "standard-in-order", NULL};

const char *const freeze_names[] = {"none", "attention", "experts", NULL};

static const char *const chunk_names[] = {"strided", "contiguous", NULL}; /* enum moe_chunks */

/* The names of each family, for its option. */
struct families {
    const char *dispatch[IMPL_MAX], *vocab_impl[IMPL_MAX], *checkpoint[IMPL_MAX],
        *optimizer[IMPL_MAX];
};
static struct families families;

#define AT(field) offsetof(struct train_line, field)
#define COUNT(option, field, argument_name, default_text, least, most_value, text)                 \
    {                                                                                              \
        .name = option, .kind = OPTION_COUNT, .at = AT(field), .argument = argument_name,          \
        .fallback = default_text, .low = least, .high = most_value, .help = text                   \
    }
#define FAMILY(option, field, text)                                                                \
    {                                                                                              \
        .name = option, .kind = OPTION_NAME, .at = AT(field), .axis = true,                        \
        .names = families.field, .default_note = "the composition's", .help = text                 \
    }

/* Rows that say no kind are those that bin/plan has too: composition_group says the rest. */
static struct option model_options[] = {
    {.name = "model",
        .kind = OPTION_TEXT,
        .at = AT(model),
        .argument = "NAME",
        .help = "widths from profiles/models/NAME.txt or a file, where they are not given"},
    COUNT("layers", layers, "L", "2", 1, 512, "layers, each of attention and experts"),
    COUNT("hidden", hidden, "H", "256", 1, SIZE_MAX_MODEL, "hidden width"),
    COUNT("heads", heads, "A", "4", 1, 4096, "attention heads; they divide the width"),
    COUNT("ffn", ffn, "F", "512", 1, SIZE_MAX_MODEL, "width of an expert"),
    COUNT("experts", experts, "E", "8", 1, 65536, "experts of a layer"),
    COUNT("topk", topk, "k", "2", 1, 32, "experts of a token"),
    COUNT("vocab", vocab, "V", "256", TRAIN_VOCAB, TOKENS_MAX, "tokens that there are"),
    COUNT("length", length, "T", "256", 1, TOKENS_MAX, "tokens of a sequence"),
    {.name = "sequences", .at = AT(sequences), .fallback = "8"},
};

/* The last axis runs fastest: the compositions of the same choice follow one another, and are
 * compared. */
static struct option composition_options[] = {
    FAMILY("dispatch", dispatch, "expert dispatch instead (bin/dispatch --list)"),
    FAMILY("vocab-impl", vocab_impl, "vocabulary projection instead (bin/vocab --list)"),
    FAMILY("checkpoint", checkpoint, "boundaries instead (bin/checkpoint --list)"),
    FAMILY("optimizer", optimizer, "optimizer instead (bin/optimizer --list)"),
    {.name = "chunk-budget", .at = AT(chunk_budget), .fallback = "1024"},
    {.name = "max-chunks", .at = AT(max_chunks), .fallback = "0"},
    {.name = "chunks",
        .kind = OPTION_NAME,
        .at = AT(chunks),
        .names = chunk_names,
        .fallback = "strided",
        .help = "which tokens a chunk of pipelined-llep holds"},
    {.name = "tile", .at = AT(tile), .fallback = "0"},
    {.name = "host-budget", .at = AT(host_budget), .default_note = "unlimited"},
    {.name = "keep-attention", .at = AT(keep_attention), .axis = true, .fallback = "16M"},
    {.name = "bucket", .at = AT(bucket), .fallback = "262144"},
    {.name = "slots", .at = AT(slots), .fallback = "2"},
    {.name = "freeze",
        .kind = OPTION_NAME,
        .at = AT(freeze),
        .axis = true,
        .names = freeze_names,
        .fallback = "none",
        .help = "weights that stay as they were seeded"},
    {.name = "composition",
        .kind = OPTION_NAME,
        .at = AT(composition),
        .axis = true,
        .argument = "NAME",
        .names = composition_names,
        .fallback = "composed,standard-in-order",
        .help = "all four at once; standard-in-order is standard in the orders of composed"},
};

static struct option run_options[] = {
    {.name = "steps",
        .kind = OPTION_COUNT,
        .at = AT(steps),
        .argument = "N",
        .fallback = "300",
        .low = 1,
        .high = INT64_C(1) << 30,
        .help = "training steps; on sim 1 unless given"},
    {.name = "routing",
        .kind = OPTION_TEXT,
        .at = AT(routing),
        .argument = "HOW",
        .fallback = "even",
        .help = "on sim, whose router computes nothing: even, or as of bin/dispatch"},
    {.name = "all-ranks",
        .kind = OPTION_FLAG,
        .at = AT(all_ranks),
        .help = "on sim: run every rank, where the routing is even too and one stands for all"},
    {.name = "sequence-group", .at = AT(sequence_group), .fallback = "1"},
    {.name = "expert-group", .at = AT(expert_group), .default_note = "--ranks"},
    {.name = "vocab-group", .at = AT(vocab_group), .default_note = "--ranks"},
    {.name = "lr",
        .kind = OPTION_REAL,
        .at = AT(lr),
        .fallback = "0.003",
        .real_low = 0,
        .real_high = 10,
        .help = "learning rate"},
    {.name = "bias-step",
        .kind = OPTION_REAL,
        .at = AT(bias_step),
        .fallback = "0.005",
        .real_low = 0,
        .real_high = 10,
        .help = "of the routers' balancing biases, per step"},
    {.name = "text",
        .kind = OPTION_TEXT,
        .at = AT(text),
        .argument = "FILE",
        .default_note = "the project's own documents",
        .help = "what is learnt, byte by byte: a file or a pipe, of at most 1 GiB"},
    COUNT("report", report, "N", "50", 1, INT64_C(1) << 30, "a line every so many steps"),
    {.name = "explain",
        .kind = OPTION_FLAG,
        .at = AT(explain),
        .help = "name the first loss or weight in which cases differ from the first"},
    {.name = "dump-routes",
        .kind = OPTION_TEXT,
        .at = AT(dump_routes),
        .argument = "DIR",
        .help = "write every choice of the first case to DIR/routes.npy, [step, layer, P, N, k]"},
};

/* Fills the names of the four families' implementations. */
static void name_families(void)
{
    for (int i = 0; i < IMPL_MAX - 1 && moe_impls[i]; i++)
        families.dispatch[i] = moe_impls[i]->name;
    for (int i = 0; i < IMPL_MAX - 1 && vocab_impls[i]; i++)
        families.vocab_impl[i] = vocab_impls[i]->name;
    for (int i = 0; i < IMPL_MAX - 1 && stack_impls[i]; i++)
        families.checkpoint[i] = stack_impls[i]->name;
    for (int i = 0; i < IMPL_MAX - 1 && adamw_impls[i]; i++)
        families.optimizer[i] = adamw_impls[i]->name;
}

/* What all programs have but for what a run of training steps has no use for. */
static struct option_group common_group(struct case_options *common)
{
    static const char *const dropped[] = {"impl", "dtype", "pass", "iters", "warmup", "min-time",
        "check", "search", "search-step", "csv", "load", "dump", NULL};
    struct option_group group = case_group(common, NULL);
    case_group_drop(common, &group, dropped);
    for (int i = 0; i < common->table_count; i++) {
        struct option *option = &common->table[i];
        option->axis = false; /* cases are compared: they differ in the composition alone */
        if (!strcmp(option->name, "ranks"))
            option->fallback = "4";
    }
    return group;
}

void train_groups(
    struct train_line *line, struct case_options *common, struct option_group groups[TRAIN_GROUPS])
{
    name_families();
    groups[3] = common_group(common);
    groups[0] = composition_group("Composition", composition_options,
        sizeof composition_options / sizeof *composition_options, line);
    groups[1] = composition_group(
        "Model", model_options, sizeof model_options / sizeof *model_options, line);
    groups[2] =
        composition_group("Run", run_options, sizeof run_options / sizeof *run_options, line);
}

/* ---- what other options decide --------------------------------------------------------------- */

static int take_model(const struct train_line *line, struct options *options)
{
    char error[1400];
    struct model_list list;
    int status = -1;
    if (!line->model)
        return -1;
    if (model_list_read(&list, line->model, error, sizeof error))
        return options_refuse(options, "model", "%s", error);
    for (int i = 0; i < MODEL_WIDTHS && status < 0; i++) {
        const char *name = model_width_name((enum model_width)i);
        int64_t low, high;
        options_count_range(options, name, &low, &high);
        if (!list.width[i])
            status = options_refuse(
                options, "model", "%s does not say 'width %s NUMBER'", line->model, name);
        else if (!options_given(options, name) && (list.width[i] < low || list.width[i] > high))
            status = options_refuse(options, "model", "%s has %s %lld, allowed %lld..%lld",
                line->model, name, (long long)list.width[i], (long long)low, (long long)high);
        else
            options_default_count(options, name, list.width[i]);
    }
    model_list_free(&list);
    return status;
}

/* What has an effect where values are computed, or where they are not. */
static int refuse_meaningless(const struct case_options *common, const struct options *options)
{
    static const struct {
        const char *name, *why;
    } on_sim[] = {
        {"text", "has no effect on sim, which reads no tokens"},
        {"lr", "has no effect on sim, which computes no weights"},
        {"bias-step", "has no effect on sim, whose routing is given"},
        {"explain", "has no effect on sim, which computes no values that could be compared"},
        {"dump-routes", "has no effect on sim, whose routing is given"},
    };
    if (!case_simulates(common) && options_given(options, "routing"))
        return options_refuse(options, "routing",
            "has an effect on --device sim alone: elsewhere the router chooses");
    if (!case_simulates(common) && options_given(options, "all-ranks"))
        return options_refuse(
            options, "all-ranks", "has an effect on --device sim alone: elsewhere all ranks run");
    if (!case_simulates(common))
        return -1;
    for (size_t i = 0; i < sizeof on_sim / sizeof *on_sim; i++)
        if (options_given(options, on_sim[i].name))
            return options_refuse(options, on_sim[i].name, "%s", on_sim[i].why);
    return -1;
}

static void hide_meaningless(const struct case_options *common, struct options *options)
{
    static const char *const on_sim[] = {"text", "lr", "bias-step", "explain", "dump-routes"};
    for (size_t i = 0; case_simulates(common) && i < sizeof on_sim / sizeof *on_sim; i++)
        options_hide(options, on_sim[i]);
    if (case_simulates(common)) {
        options_default_count(options, "steps", 1);
        return;
    }
    options_hide(options, "routing");
    options_hide(options, "all-ranks");
}

int train_line_setup(struct train_line *line, struct case_options *common, struct options *options)
{
    int status = take_model(line, options);
    common->dtype = DTYPE_BF16; /* after case_setup: products are exact unless --gemm says fast */
    if (status < 0)
        status = refuse_meaningless(common, options);
    if (status < 0)
        hide_meaningless(common, options);
    return status;
}
