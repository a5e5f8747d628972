/* The tables behind the replay program's command line. */
#include "bench/harness/replay_line.h"
#include <string.h>
#include "ops/moe.h"

const char *const replay_plan_names[] = {"none", "llep", NULL};
const char *const replay_chunks_names[] = {"strided", "contiguous", NULL};

#define AT(field) offsetof(struct replay_line, field)
#define TOKENS_MOST (INT64_C(1) << 31)

static const struct option routing_options[] = {{.name = "ranks",
                                                    .kind = OPTION_COUNT,
                                                    .at = AT(ranks),
                                                    .axis = true,
                                                    .argument = "P",
                                                    .fallback = "8",
                                                    .low = 1,
                                                    .high = MOE_RANKS_MAX,
                                                    .help = "ranks"},
    {.name = "tokens",
        .kind = OPTION_COUNT,
        .at = AT(tokens),
        .axis = true,
        .argument = "N",
        .fallback = "4K",
        .low = 0,
        .high = TOKENS_MOST,
        .replaced_by = "tokens-per-rank",
        .help = "tokens of a rank; a trace brings its own"},
    {.name = "tokens-per-rank",
        .kind = OPTION_COUNTS,
        .at = AT(tokens_per_rank),
        .argument = "N,N,...",
        .default_note = "--tokens",
        .low = 0,
        .high = TOKENS_MOST,
        .most = MOE_RANKS_MAX,
        .help = "uneven ranks, one count each"},
    {.name = "experts",
        .kind = OPTION_COUNT,
        .at = AT(experts),
        .axis = true,
        .argument = "E",
        .fallback = "128",
        .low = 1,
        .high = 1 << 20,
        .help = "experts, a multiple of the ranks"},
    {.name = "topk",
        .kind = OPTION_COUNT,
        .at = AT(topk),
        .axis = true,
        .argument = "K",
        .default_note = "8, or a trace's own",
        .low = 1,
        .high = 1024,
        .help = "slots of a token"},
    {.name = "routing",
        .kind = OPTION_TEXT,
        .at = AT(routing),
        .axis = true,
        .argument = "NAME|FILE",
        .fallback = "balanced",
        .help = "balanced, R/H, uniform, zipf:S, hot-expert, hot-rank, spread-hot, "
                "ragged-sources, idle-rank, idle-experts, moving-hot-spot, burst, duplicates, "
                "empty-slots, or a trace"},
    {.name = "steps",
        .kind = OPTION_COUNT,
        .at = AT(steps),
        .argument = "N",
        .default_note = "1, or all of a trace's",
        .low = 1,
        .high = 1 << 24,
        .help = "steps to look at (of a trace with layers, steps times layers)"},
    {.name = "seed",
        .kind = OPTION_COUNT,
        .at = AT(seed),
        .argument = "N",
        .fallback = "1",
        .help = "seed of drawn routings"}};

static const struct option plan_options[] = {{.name = "plan",
                                                 .kind = OPTION_NAME,
                                                 .at = AT(plan),
                                                 .axis = true,
                                                 .fallback = "llep",
                                                 .names = replay_plan_names,
                                                 .help = "none leaves every expert with its owner"},
    {.name = "chunks",
        .kind = OPTION_NAME,
        .at = AT(chunks),
        .axis = true,
        .fallback = "strided",
        .names = replay_chunks_names,
        .help = "which tokens a chunk holds: every K-th, or a run"},
    {.name = "chunk-budget",
        .kind = OPTION_COUNT,
        .at = AT(chunk_budget),
        .axis = true,
        .argument = "C",
        .fallback = "0",
        .unit = "tokens",
        .low = 0,
        .help = "tokens of a chunk and rank; 0 = all in one chunk"},
    {.name = "max-chunks",
        .kind = OPTION_COUNT,
        .at = AT(max_chunks),
        .axis = true,
        .argument = "K",
        .fallback = "0",
        .low = 0,
        .help = "ceiling of K; 0 = none"},
    {.name = "alpha",
        .kind = OPTION_REAL,
        .at = AT(alpha),
        .axis = true,
        .fallback = "1.0",
        .real_low = 0.01,
        .real_high = 1e6,
        .help = "LLEP: soft capacity of a rank over the mean load"},
    {.name = "min-gemm",
        .kind = OPTION_COUNT,
        .at = AT(min_gemm_tokens),
        .axis = true,
        .argument = "M",
        .fallback = "1024",
        .low = 1,
        .unit = "routes",
        .help = "LLEP: smallest piece worth lending an expert for"},
    {.name = "lambda",
        .kind = OPTION_REAL,
        .at = AT(lambda),
        .axis = true,
        .fallback = "1.3",
        .real_low = 0,
        .real_high = 1e6,
        .help = "LLEP: busiest over mean rank below which nothing is lent; 0 = always plan"},
    {.name = "json",
        .kind = OPTION_TEXT,
        .at = AT(json),
        .role = OPTION_ELSEWHERE,
        .argument = "FILE",
        .help = "append one record per line (JSON lines)"},
    {.name = "csv",
        .kind = OPTION_FLAG,
        .at = AT(csv),
        .role = OPTION_ELSEWHERE,
        .help = "print CSV, with the loads of ranks and experts"}};

struct option_group replay_routing_group(struct replay_line *line)
{
    return (struct option_group){
        "Routing", routing_options, (int)(sizeof routing_options / sizeof *routing_options), line};
}

struct option_group replay_plan_group(struct replay_line *line)
{
    return (struct option_group){
        "Plan and chunks", plan_options, (int)(sizeof plan_options / sizeof *plan_options), line};
}

bool replay_is_of_llep(const char *option)
{
    return !strcmp(option, "alpha") || !strcmp(option, "min-gemm") || !strcmp(option, "lambda");
}
