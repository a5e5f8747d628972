/* The table of bin/plan's options: the launch, its budgets and what is asked about them. */
#include "bench/harness/plan_line.h"
#include "bench/harness/composition_line.h"
#include "ops/layout.h"

static const char *const baseline_names[] = {"none", "fsdp2", NULL};
static const char *const verdict_names[] = {"guaranteed", "balanced", NULL};

#define AT(field) offsetof(struct plan_line, field)

/* Rows that say no kind are those that bin/train has too: composition_group says the rest. */
static struct option launch_options[] = {
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
    {.name = "sequences", .at = AT(sequences), .fallback = "1"},
    {.name = "sequence-group", .at = AT(sequence_group), .axis = true, .fallback = "16"},
    {.name = "expert-group", .at = AT(expert_group), .default_note = "--gpus"},
    {.name = "vocab-group", .at = AT(vocab_group), .fallback = "8"},
    {.name = "profile",
        .kind = OPTION_TEXT,
        .at = AT(profile),
        .argument = "NAME",
        .fallback = "h200-64",
        .help = "the machine: its memory, its ranks per node"},
};

static struct option budget_options[] = {
    {.name = "chunk-budget", .at = AT(chunk_budget), .axis = true, .fallback = "4096"},
    {.name = "max-chunks", .at = AT(max_chunks), .fallback = "0"},
    {.name = "tile", .at = AT(tile), .fallback = "0"},
    {.name = "host-budget", .at = AT(host_budget), .default_note = "unlimited"},
    {.name = "keep-attention", .at = AT(keep_attention), .fallback = "0"},
    {.name = "bucket", .at = AT(bucket), .fallback = "100e6"},
    {.name = "slots", .at = AT(slots), .fallback = "2"},
    {.name = "search",
        .kind = OPTION_FLAG,
        .at = AT(search),
        .help = "the degrees and budgets, of those not given, that are fastest"},
    {.name = "verdict",
        .kind = OPTION_NAME,
        .at = AT(verdict),
        .names = verdict_names,
        .fallback = "guaranteed",
        .help = "with --search: which of the two verdicts must hold"},
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
        .role = OPTION_ELSEWHERE,
        .at = AT(json),
        .argument = "FILE",
        .help = "append a record per line"},
};

void plan_groups(struct plan_line *line, struct option_group groups[PLAN_GROUPS])
{
    groups[0] = composition_group(
        "Launch", launch_options, sizeof launch_options / sizeof *launch_options, line);
    groups[1] = composition_group(
        "Budgets", budget_options, sizeof budget_options / sizeof *budget_options, line);
}
