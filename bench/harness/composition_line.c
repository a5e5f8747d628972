/* The options of a composed step. Programs have defaults of their own, a plan's of the papers'
 * launch, training's of a model that a desk machine holds; what is allowed is the same. */
#include "bench/harness/composition_line.h"
#include <string.h>
#include "ops/adamw.h"
#include "ops/layout.h"

#define MOST_TOKENS (INT64_C(1) << 32)
#define MOST_SEQUENCES (INT64_C(1) << 20)
#define MOST_PARAMS (INT64_C(1) << 40)

static const struct option shared_options[] = {
    {.name = "sequences",
        .kind = OPTION_COUNT,
        .argument = "B",
        .low = 1,
        .high = MOST_SEQUENCES,
        .help = "sequences of a sequence group in one step"},
    {.name = "sequence-group",
        .kind = OPTION_COUNT,
        .argument = "D",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share a sequence, then heads"},
    {.name = "expert-group",
        .kind = OPTION_COUNT,
        .argument = "E_p",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share the experts"},
    {.name = "vocab-group",
        .kind = OPTION_COUNT,
        .argument = "P",
        .low = 1,
        .high = LAYOUT_RANKS_MAX,
        .help = "ranks that share the vocabulary"},
    {.name = "chunk-budget",
        .kind = OPTION_COUNT,
        .argument = "c",
        .high = MOST_TOKENS,
        .help = "tokens of a chunk of the dispatch (pipelined-llep, chunked); 0 = all"},
    {.name = "max-chunks",
        .kind = OPTION_COUNT,
        .argument = "K",
        .high = MOST_TOKENS,
        .help = "ceiling of the chunks; 0 = none"},
    {.name = "tile",
        .kind = OPTION_COUNT,
        .argument = "ROWS",
        .high = MOST_TOKENS,
        .help = "rows of a tile of the vocabulary (ring-dtp); 0 = default"},
    {.name = "host-budget",
        .kind = OPTION_BYTES,
        .unit = "bytes per rank",
        .help = "bytes of boundaries that may go to the host (sco)"},
    {.name = "keep-attention",
        .kind = OPTION_BYTES,
        .unit = "bytes per rank",
        .help = "bytes of attention's intermediates to keep from forward to backward"},
    {.name = "bucket",
        .kind = OPTION_COUNT,
        .argument = "PARAMS",
        .low = 1,
        .high = MOST_PARAMS,
        .help = "parameters of an optimizer bucket"},
    {.name = "slots",
        .kind = OPTION_COUNT,
        .argument = "S",
        .low = 1,
        .high = ADAMW_SLOTS_MAX,
        .help = "staging slots of the optimizer (offload-stream)"},
};

static const struct option *find_shared(const char *name)
{
    for (size_t i = 0; i < sizeof shared_options / sizeof *shared_options; i++)
        if (!strcmp(shared_options[i].name, name))
            return &shared_options[i];
    return NULL;
}

struct option_group composition_group(
    const char *title, struct option *options, size_t count, void *fields)
{
    for (size_t i = 0; i < count; i++) {
        struct option own = options[i];
        const struct option *shared = find_shared(own.name);
        if (!shared)
            continue;
        options[i] = *shared;
        options[i].at = own.at;
        options[i].axis = own.axis;
        options[i].fallback = own.fallback;
        options[i].default_note = own.default_note;
    }
    return (struct option_group){title, options, (int)count, fields};
}
