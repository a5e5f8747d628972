/* The tables behind the optimizer's command line. */
#include "bench/harness/adamw_line.h"

#define PARAMS_MOST (INT64_C(1) << 44)
#define WORLD_MOST (INT64_C(1) << 20)
#define STEP_MOST (INT64_C(1) << 40)
#define BELOW_ONE (1 - 0x1p-53)

static const char *const gradients_names[] = {"host-f32", "device-bf16", NULL};

#define AT(field) offsetof(struct adamw_line, field)

static const struct option problem_options[] = {
    {.name = "params",
        .kind = OPTION_COUNT,
        .at = AT(params),
        .axis = true,
        .column = "params",
        .argument = "N",
        .fallback = "4M",
        .low = 1,
        .high = PARAMS_MOST,
        .replaced_by = "model",
        .help = "parameters, one tensor with weight decay"},
    {.name = "model",
        .kind = OPTION_TEXT,
        .at = AT(model),
        .axis = true,
        .argument = "NAME|FILE",
        .default_note = "--params",
        .help = "tensors of a model: gpt-oss-20b, e2e-120b, e2e-241b, e2e-667b, or a file of lines "
                "NAME SHAPE decay|no-decay"},
    {.name = "world",
        .kind = OPTION_COUNT,
        .at = AT(world),
        .axis = true,
        .argument = "W",
        .default_note = "the ranks that run",
        .low = 1,
        .high = WORLD_MOST,
        .help = "ranks that every tensor is cut among; the first P of them run"},
    {.name = "bucket",
        .kind = OPTION_COUNT,
        .at = AT(bucket),
        .axis = true,
        .by_impl = true,
        .column = "bucket",
        .argument = "N",
        .fallback = "256K",
        .unit = "parameters",
        .low = 1,
        .high = PARAMS_MOST,
        .help = "parameters of a bucket, at most; with --whole-tensors at least"},
    {.name = "whole-tensors",
        .kind = OPTION_FLAG,
        .at = AT(whole_tensors),
        .by_impl = true,
        .help = "never cut a tensor: a bucket is closed once it holds --bucket"},
    {.name = "slots",
        .kind = OPTION_COUNT,
        .at = AT(slots),
        .axis = true,
        .by_impl = true,
        .column = "slots",
        .argument = "S",
        .fallback = "2",
        .low = 1,
        .high = ADAMW_SLOTS_MAX,
        .help = "staging slots"},
    {.name = "gradients",
        .kind = OPTION_NAME,
        .at = AT(gradients),
        .axis = true,
        .fallback = "host-f32",
        .names = gradients_names,
        .help = "where they are, and their type"},
    {.name = "steps",
        .kind = OPTION_COUNT,
        .at = AT(steps),
        .argument = "N",
        .fallback = "2",
        .low = 1,
        .high = 10000,
        .help = "steps before the state is checked"},
    {.name = "first-step",
        .kind = OPTION_COUNT,
        .at = AT(first_step),
        .argument = "T",
        .fallback = "1",
        .low = 1,
        .high = STEP_MOST,
        .help = "t of the first step"},
    {.name = "nonfinite",
        .kind = OPTION_COUNT,
        .at = AT(nonfinite),
        .argument = "N",
        .fallback = "0",
        .high = 1000,
        .help = "plant so many infinities and NaN in the seeded gradients"},
    {.name = "skip-nonfinite",
        .kind = OPTION_FLAG,
        .at = AT(skip_nonfinite),
        .role = OPTION_PROTOCOL,
        .help = "a step left out for its gradients is no failure"},
    {.name = "propagate",
        .kind = OPTION_FLAG,
        .at = AT(propagate),
        .help =
            "do not look at the gradients first: infinities and NaN go where the arithmetic takes "
            "them"},
    {.name = "plan",
        .kind = OPTION_FLAG,
        .at = AT(plan),
        .role = OPTION_ELSEWHERE,
        .help = "print buckets and the closed forms of the memory; run nothing"},
};

static const struct option step_options[] = {
    {.name = "lr",
        .kind = OPTION_REALS,
        .at = AT(lr),
        .argument = "X[,X2]",
        .fallback = "1e-3",
        .real_low = -1e30,
        .real_high = 1e30,
        .most = 2,
        .help = "learning rate"},
    {.name = "beta1",
        .kind = OPTION_REALS,
        .at = AT(beta1),
        .argument = "X[,X2]",
        .fallback = "0.9",
        .real_low = 0,
        .real_high = BELOW_ONE,
        .most = 2,
        .help = "decay of the first moment"},
    {.name = "beta2",
        .kind = OPTION_REALS,
        .at = AT(beta2),
        .argument = "X[,X2]",
        .fallback = "0.95",
        .real_low = 0,
        .real_high = BELOW_ONE,
        .most = 2,
        .help = "decay of the second moment"},
    {.name = "eps",
        .kind = OPTION_REALS,
        .at = AT(eps),
        .argument = "X[,X2]",
        .fallback = "1e-8",
        .real_low = 0,
        .real_high = 1e30,
        .most = 2,
        .help = "added to the denominator"},
    {.name = "weight-decay",
        .kind = OPTION_REALS,
        .at = AT(weight_decay),
        .argument = "X[,X2]",
        .fallback = "0.1,0",
        .real_low = -1e30,
        .real_high = 1e30,
        .most = 2,
        .help = "weight decay"},
    {.name = "grad-scale",
        .kind = OPTION_REAL,
        .at = AT(scale),
        .fallback = "1",
        .real_low = 1e-30,
        .real_high = 1e30,
        .help = "gradients are multiplied by it first, such as 1 / loss scale"},
    {.name = "clip",
        .kind = OPTION_REAL,
        .at = AT(clip),
        .argument = "NORM",
        .fallback = "0",
        .real_high = 1e30,
        .help = "largest global norm of the scaled gradients; 0 = no clipping"},
};

struct option_group adamw_problem_group(struct adamw_line *line)
{
    int count = (int)(sizeof problem_options / sizeof *problem_options);
    return (struct option_group){"Problem", problem_options, count, line};
}

struct option_group adamw_step_group(struct adamw_line *line)
{
    int count = (int)(sizeof step_options / sizeof *step_options);
    return (struct option_group){"Step", step_options, count, line};
}

/* A list's value for a group: the second, where there is one, is for tensors without weight decay.
 */
static double of_group(const struct option_reals *values, int group)
{
    return values->values[group < values->count ? group : values->count - 1];
}

struct adamw_options adamw_line_options(const struct adamw_line *line)
{
    struct adamw_options options = {.bucket = line->bucket,
        .whole_tensors = line->whole_tensors,
        .slots = (int)line->slots,
        .gradients = (enum adamw_gradients)line->gradients,
        .scale = line->scale,
        .clip = line->clip,
        .nonfinite = line->propagate ? ADAMW_PROPAGATE : ADAMW_REFUSE};
    for (int group = 0; group < ADAMW_GROUPS; group++)
        options.hyper[group] = (struct adamw_hyper){.lr = of_group(&line->lr, group),
            .b1 = of_group(&line->beta1, group),
            .b2 = of_group(&line->beta2, group),
            .eps = of_group(&line->eps, group),
            .wd = of_group(&line->weight_decay, group)};
    return options;
}
