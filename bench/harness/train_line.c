/* The table of bin/train's options: the composition, the model, the run. */
#include "bench/harness/train_line.h"
#include "ops/model.h"

#define IMPL_MAX 32
#define SIZE_MAX_MODEL (INT64_C(1) << 20)

const char *const composition_names[] = {"composed", "standard", "standard-in-order", NULL};

const char *const freeze_names[] = {"none", "attention", "experts", NULL};

/* The names of each family, for its option. */
struct families {
    const char *dispatch[IMPL_MAX], *vocab[IMPL_MAX], *checkpoint[IMPL_MAX], *optimizer[IMPL_MAX];
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

static const struct option model_options[] = {
    COUNT("layers", layers, "L", "2", 1, 512, "layers, each of attention and experts"),
    COUNT("hidden", hidden, "H", "256", 1, SIZE_MAX_MODEL, "hidden width"),
    COUNT("heads", heads, "A", "4", 1, 4096, "attention heads; they divide the width"),
    COUNT("ffn", ffn, "F", "512", 1, SIZE_MAX_MODEL, "width of an expert"),
    COUNT("experts", experts, "E", "8", 1, 65536, "experts of a layer"),
    COUNT("topk", topk, "k", "2", 1, 32, "experts of a token"),
    COUNT("length", length, "T", "256", 1, SIZE_MAX_MODEL, "tokens of a sequence"),
    COUNT("sequences", sequences, "B", "4", 1, SIZE_MAX_MODEL,
        "sequences of a sequence group in one step"),
};

static const struct option composition_options[] = {
    {.name = "composition",
        .kind = OPTION_NAME,
        .at = AT(composition),
        .axis = true,
        .argument = "NAME",
        .names = composition_names,
        .fallback = "composed,standard-in-order",
        .help = "implementations of all four families at once"},
    FAMILY("dispatch", dispatch, "expert dispatch instead (bin/dispatch --list)"),
    FAMILY("vocab-impl", vocab, "vocabulary projection instead (bin/vocab --list)"),
    FAMILY("checkpoint", checkpoint, "boundaries instead (bin/checkpoint --list)"),
    FAMILY("optimizer", optimizer, "optimizer instead (bin/optimizer --list)"),
    COUNT("chunk-budget", chunk_budget, "c", "512", 0, SIZE_MAX_MODEL,
        "tokens of a chunk of pipelined-llep and chunked; 0 = all"),
    COUNT("max-chunks", max_chunks, "K", "0", 0, SIZE_MAX_MODEL, "ceiling of the chunks; 0 = none"),
    COUNT("tile", tile, "ROWS", "0", 0, SIZE_MAX_MODEL, "rows of a tile of ring-dtp; 0 = default"),
    {.name = "host-budget",
        .kind = OPTION_BYTES,
        .at = AT(host_budget),
        .default_note = "unlimited",
        .help = "bytes of boundaries that sco may send to the host"},
    COUNT("bucket", bucket, "PARAMS", "262144", 1, INT64_C(1) << 40, "parameters of a bucket"),
    COUNT("slots", slots, "S", "2", 1, ADAMW_SLOTS_MAX, "staging slots of offload-stream"),
};

static const struct option run_options[] = {
    COUNT("steps", steps, "N", "300", 1, INT64_C(1) << 30, "training steps"),
    COUNT("ranks", ranks, "W", "4", 1, LAYOUT_RANKS_MAX, "ranks"),
    {.name = "sequence-group",
        .kind = OPTION_COUNT,
        .at = AT(sequence_group),
        .argument = "D",
        .fallback = "1",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share a sequence, then heads"},
    {.name = "expert-group",
        .kind = OPTION_COUNT,
        .at = AT(expert_group),
        .argument = "E_p",
        .default_note = "--ranks",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share the experts"},
    {.name = "vocab-group",
        .kind = OPTION_COUNT,
        .at = AT(vocab_group),
        .argument = "P",
        .default_note = "--ranks",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share the vocabulary"},
    {.name = "lr",
        .kind = OPTION_REAL,
        .at = AT(lr),
        .fallback = "0.003",
        .real_low = 0,
        .real_high = 10,
        .help = "learning rate, after 20 steps of warm-up"},
    {.name = "bias-step",
        .kind = OPTION_REAL,
        .at = AT(bias_step),
        .fallback = "0.005",
        .real_low = 0,
        .real_high = 10,
        .help = "of the routers' balancing biases, per step"},
    {.name = "freeze",
        .kind = OPTION_NAME,
        .at = AT(freeze),
        .axis = true,
        .names = freeze_names,
        .fallback = "none",
        .help = "weights that stay as they were seeded"},
    COUNT("seed", seed, "N", "1", 0, 0, "of weights and of the order of the text"),
    {.name = "text",
        .kind = OPTION_TEXT,
        .at = AT(text),
        .argument = "FILE",
        .default_note = "the project's own documents",
        .help = "what is learnt, byte by byte"},
    {.name = "threads",
        .kind = OPTION_COUNT,
        .at = AT(threads),
        .default_note = "one per core",
        .low = 1,
        .high = 4096,
        .help = "threads for kernels, of all ranks together"},
    COUNT("report", report, "N", "50", 1, INT64_C(1) << 30, "a line every so many steps"),
    {.name = "explain",
        .kind = OPTION_FLAG,
        .at = AT(explain),
        .help = "name the first loss or weight in which cases differ from the first"},
    {.name = "check-order",
        .kind = OPTION_FLAG,
        .at = AT(check_order),
        .help = "prove that conflicting accesses are ordered by events"},
    {.name = "dump-routes",
        .kind = OPTION_TEXT,
        .at = AT(dump_routes),
        .argument = "DIR",
        .help = "write every choice of the first case to DIR/routes.npy, [step, layer, P, N, k]"},
    {.name = "json",
        .kind = OPTION_TEXT,
        .at = AT(json),
        .argument = "FILE",
        .help = "append a record per case"},
};

/* Fills the names of the four families' implementations. */
static void name_families(void)
{
    for (int i = 0; i < IMPL_MAX - 1 && moe_impls[i]; i++)
        families.dispatch[i] = moe_impls[i]->name;
    for (int i = 0; i < IMPL_MAX - 1 && vocab_impls[i]; i++)
        families.vocab[i] = vocab_impls[i]->name;
    for (int i = 0; i < IMPL_MAX - 1 && stack_impls[i]; i++)
        families.checkpoint[i] = stack_impls[i]->name;
    for (int i = 0; i < IMPL_MAX - 1 && adamw_impls[i]; i++)
        families.optimizer[i] = adamw_impls[i]->name;
}

#define GROUP(title, table, line)                                                                  \
    {                                                                                              \
        title, table, (int)(sizeof(table) / sizeof *(table)), line                                 \
    }

void train_groups(struct train_line *line, struct option_group groups[TRAIN_GROUPS])
{
    name_families();
    groups[0] = (struct option_group)GROUP("Composition", composition_options, line);
    groups[1] = (struct option_group)GROUP("Model", model_options, line);
    groups[2] = (struct option_group)GROUP("Run", run_options, line);
}
