/* The cases, family by family: every implementation, every option that changes its schedule, ranks
 * with different numbers of tokens. */
#include "tests/sim_case.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/adamw_run.h"
#include "bench/harness/moe_run.h"
#include "bench/harness/stack_run.h"
#include "bench/harness/vocab_run.h"

#define CASES_MAX 1024 /* several times what there is */

struct profile sim_case_profile(void)
{
    struct profile_rate rate = {
        .peak_flops_per_s = 1e12, .efficiency = 0.5, .half_m = 8, .half_n = 8, .half_k = 8};
    return (struct profile){.name = "round",
        .memory_bytes = INT64_C(1) << 33,
        .reserved_memory_bytes = INT64_C(1) << 30,
        .f32 = rate,
        .bf16 = rate,
        .memory_bytes_per_s = 1e11,
        .launch_s = 1e-6,
        .ranks = 4,
        .ranks_per_node = 2,
        .link_bytes_per_s = 1e10,
        .link_latency_s = 2e-6,
        .network_bytes_per_s = 2e9,
        .network_latency_s = 5e-6,
        .link_duplex = true,
        .h2d_bytes_per_s = 4e9,
        .d2h_bytes_per_s = 4e9,
        .host_link_latency_s = 3e-6,
        .host_link_duplex = true,
        .host_memory_bytes = INT64_C(1) << 34,
        .host_memory_bytes_per_s = 4e10,
        .host_flops_per_s = 1e11,
        .host_adamw_params_per_s = 1e9};
}

/* One repetition, as on the simulated device. */
static const struct timing_protocol once = {.min_samples = 1, .max_samples = 1, .max_time_s = 1e9};

static int explain(const struct ranks_failure *failure, char *why, int size)
{
    snprintf(why, (size_t)size, "rank %d: %s", failure->rank, failure->message);
    return -1;
}

static int no_memory(char *why, int size)
{
    snprintf(why, (size_t)size, "no memory for the test");
    return -1;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

static int run_vocab(const struct sim_case *c, const struct ranks_config *ranks, bool timed,
    struct case_result *result, char *why, int size)
{
    static const struct {
        struct vocab_options options;
    } variants[] = {{{.move = VOCAB_MOVE_WEIGHTS, .tile = 16}},
        {{.move = VOCAB_MOVE_ACTIVATIONS, .tile = 1024}}, {{.chunk = 7}}};
    static const int64_t tokens[4] = {23, 0, 40, 5};
    struct vocab_shape shape = {.ranks = c->ranks,
        .tokens = tokens,
        .hidden = 24,
        .vocab = 2051,
        .dtype = c->problem ? DTYPE_BF16 : DTYPE_F32};
    struct vocab_inputs inputs;
    struct vocab_run run = {.impl = c->implementation,
        .options = &variants[c->variant].options,
        .inputs = &inputs,
        .backward = c->problem != 2,
        .timed = !timed            ? TIME_NOTHING
                 : c->problem == 2 ? TIME_FORWARD
                                   : TIME_BOTH,
        .protocol = &once,
        .ranks = ranks};
    if (vocab_inputs_seeded(&inputs, &shape, 3, 0.2))
        return no_memory(why, size);
    int status = vocab_run(&run, result) ? explain(&run.failure, why, size) : 0;
    vocab_inputs_free(&inputs);
    return status;
}

static int list_vocab(struct sim_case *cases)
{
    static const char *const variants[] = {"weights move", "activations move", "chunks of 7"};
    int count = 0;
    for (int i = 0; vocab_impls[i]; i++)
        for (int variant = 0; variant < 3; variant++)
            for (int problem = 0; problem < 3; problem++) {
                const struct vocab_impl *impl = vocab_impls[i];
                if (variant < 2 ? !impl->takes_move && variant : !impl->takes_chunk)
                    continue;
                struct sim_case *c = &cases[count++];
                *c = (struct sim_case){.family = "vocab",
                    .impl = impl->name,
                    .ranks = problem ? 4 : 3,
                    .run = run_vocab,
                    .implementation = impl,
                    .variant = variant,
                    .problem = problem};
                snprintf(c->what, sizeof c->what, "%s, %s", variants[variant],
                    problem == 2 ? "bf16 forward"
                    : problem    ? "bf16"
                                 : "f32");
            }
    return count;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static const char *const routings[] = {"balanced", "95/16", "burst"};

static int run_moe(const struct sim_case *c, const struct ranks_config *ranks, bool timed,
    struct case_result *result, char *why, int size)
{
    static const struct moe_options variants[] = {{.chunk_count = 1}, {.chunk_count = 3},
        {.chunk_budget = 10, .chunks = MOE_CHUNKS_CONTIGUOUS, .keep = MOE_KEEP_MEGATRON},
        {.chunk_count = 4, .hop_rows = 8, .overlap_off = true, .grouped_off = true}};
    int64_t tokens[4] = {24, 40, 8, 32};
    struct moe_shape shape = {.ranks = c->ranks,
        .tokens = tokens,
        .hidden = 24,
        .ffn = 40,
        .experts = 32,
        .topk = 3,
        .dtype = c->problem == 1 ? DTYPE_BF16 : DTYPE_F32,
        .activation = c->problem == 2 ? MOE_RELU : MOE_SWIGLU};
    struct moe_options options = variants[c->variant];
    struct moe_routing routing = {0};
    struct moe_inputs inputs = {0};
    options.alpha = 1;
    options.lambda = 1.3;
    options.min_gemm_tokens = 4;
    struct moe_run run = {.impl = c->implementation,
        .options = &options,
        .inputs = &inputs,
        .backward = c->problem != 2,
        .timed = !timed            ? TIME_NOTHING
                 : c->problem == 2 ? TIME_FORWARD
                                   : TIME_BOTH,
        .protocol = &once,
        .ranks = ranks};
    int status = -1;
    if (moe_routing_parse(&routing, routings[c->problem], why, size) == 0 &&
        moe_routing_check(&routing, &shape, why, size) == 0)
        status = moe_inputs_init(&inputs, &shape, &routing, 5, 0, false) ? no_memory(why, size) : 0;
    if (status == 0 && moe_run(&run, result))
        status = explain(&run.failure, why, size);
    moe_inputs_free(&inputs);
    moe_routing_free(&routing);
    return status;
}

static int list_moe(struct sim_case *cases)
{
    int count = 0;
    for (int i = 0; moe_impls[i]; i++)
        for (int variant = 0; variant < 4; variant++)
            for (int problem = 0; problem < 3; problem++) {
                const struct moe_impl *impl = moe_impls[i];
                bool relay = strstr(impl->options, "hop") != NULL;
                bool chunks = strstr(impl->options, " chunk-count ") != NULL;
                bool takes = variant == 0   ? true
                             : variant == 1 ? chunks
                             : variant == 2 ? chunks || strstr(impl->options, " keep ")
                                            : relay;
                if (!takes)
                    continue;
                struct sim_case *c = &cases[count++];
                *c = (struct sim_case){.family = "dispatch",
                    .impl = impl->name,
                    .ranks = 4,
                    .run = run_moe,
                    .implementation = impl,
                    .variant = variant,
                    .problem = problem};
                snprintf(c->what, sizeof c->what, "variant %d, %s, %s", variant, routings[problem],
                    problem == 2 ? "relu forward"
                    : problem    ? "bf16"
                                 : "f32");
            }
    return count;
}

/* ---- checkpointed layers --------------------------------------------------------------------- */

static int run_stack(const struct sim_case *c, const struct ranks_config *ranks, bool timed,
    struct case_result *result, char *why, int size)
{
    static const int64_t tokens[3] = {9, 0, 17};
    static const int64_t budgets[] = {-1, 0, 2 * 17 * 20 * 4 + 1};
    struct stack_shape shape = {.ranks = c->ranks,
        .tokens = tokens,
        .layers = 5,
        .hidden = 20,
        .ffn = 28,
        .dtype = c->problem ? DTYPE_BF16 : DTYPE_F32};
    struct stack_options options = {.budget = {.bytes = budgets[c->variant],
                                        .rounding = c->problem ? PINNED_POW2 : PINNED_EXACT},
        .keep_pool = c->problem == 1};
    struct stack_inputs inputs;
    struct stack_run run = {.impl = c->implementation,
        .options = &options,
        .inputs = &inputs,
        .backward = c->problem != 2,
        .steps = 2,
        .timed = !timed            ? TIME_NOTHING
                 : c->problem == 2 ? TIME_FORWARD
                                   : TIME_BOTH,
        .protocol = &once,
        .ranks = ranks};
    if (ranks->device.kind == DEV_SIM)
        inputs = stack_inputs_none(&shape);
    else if (stack_inputs_seeded(&inputs, &shape, 3))
        return no_memory(why, size);
    int status = stack_run(&run, result) ? explain(&run.failure, why, size) : 0;
    stack_inputs_free(&inputs);
    return status;
}

static int list_stack(struct sim_case *cases)
{
    static const char *const budgets[] = {"all", "nothing", "some"};
    int count = 0;
    for (int i = 0; stack_impls[i]; i++)
        for (int variant = 0; variant < (stack_impls[i]->takes_budget ? 3 : 1); variant++)
            for (int problem = 0; problem < 3; problem++) {
                struct sim_case *c = &cases[count++];
                *c = (struct sim_case){.family = "checkpoint",
                    .impl = stack_impls[i]->name,
                    .ranks = 3,
                    .run = run_stack,
                    .implementation = stack_impls[i],
                    .variant = variant,
                    .problem = problem};
                snprintf(c->what, sizeof c->what, "%s offloaded, %s", budgets[variant],
                    problem == 2 ? "bf16 forward"
                    : problem    ? "bf16"
                                 : "f32");
            }
    return count;
}

/* ---- the optimizer --------------------------------------------------------------------------- */

static int run_adamw(const struct sim_case *c, const struct ranks_config *ranks, bool timed,
    struct case_result *result, char *why, int size)
{
    static const struct adamw_tensor tensors[] = {
        {"a", 5003, 0}, {"b", 17, 1}, {"c", 0, 0}, {"d", 9001, 1}};
    struct adamw_options options = {.bucket = c->problem == 1 ? 700 : 1024,
        .whole_tensors = c->problem == 2,
        .slots = c->variant + 1,
        .gradients = c->problem ? ADAMW_DEVICE_BF16 : ADAMW_HOST_F32,
        .scale = 1,
        .clip = c->problem == 1 ? 0.5 : 0,
        .nonfinite = c->problem == 2 ? ADAMW_PROPAGATE : ADAMW_REFUSE};
    for (int group = 0; group < ADAMW_GROUPS; group++)
        options.hyper[group] = (struct adamw_hyper){1e-3, 0.9, 0.95, 1e-8, 0.1};
    struct adamw_inputs inputs;
    struct adamw_run run = {.impl = c->implementation,
        .options = &options,
        .inputs = &inputs,
        .ranks = ranks,
        .steps = 2,
        .first_step = 1,
        .timed = timed,
        .protocol = &once};
    if (adamw_inputs_seeded(&inputs, tensors, 4, c->ranks + 1, c->ranks, 7))
        return no_memory(why, size);
    int status = adamw_run(&run, result) ? explain(&run.failure, why, size) : 0;
    if (status == 0 && run.host_memory_differs) {
        snprintf(why, (size_t)size, "%s", run.host_memory_fault);
        status = -1;
    }
    adamw_run_free(&run);
    adamw_inputs_free(&inputs);
    return status;
}

static int list_adamw(struct sim_case *cases)
{
    static const char *const problems[] = {
        "host gradients", "device gradients, clipped", "whole tensors, no scan"};
    int count = 0;
    for (int i = 0; adamw_impls[i]; i++)
        for (int variant = 0; variant < (adamw_impls[i]->takes_slots ? 3 : 1); variant++)
            for (int problem = 0; problem < 3; problem++) {
                struct sim_case *c = &cases[count++];
                *c = (struct sim_case){.family = "optimizer",
                    .impl = adamw_impls[i]->name,
                    .ranks = 2,
                    .run = run_adamw,
                    .implementation = adamw_impls[i],
                    .variant = variant,
                    .problem = problem};
                snprintf(c->what, sizeof c->what, "%d slots, %s", variant + 1, problems[problem]);
            }
    return count;
}

/* ---- all ------------------------------------------------------------------------------------- */

struct sim_case *sim_cases(int *count)
{
    struct sim_case *cases = calloc(CASES_MAX, sizeof *cases);
    *count = 0;
    if (!cases)
        return NULL;
    *count += list_vocab(cases + *count);
    *count += list_moe(cases + *count);
    *count += list_stack(cases + *count);
    *count += list_adamw(cases + *count);
    return cases;
}

int sim_case_run(const struct sim_case *c, const struct dev_config *device, bool timed,
    struct case_result *result, char *why, int size)
{
    struct ranks_config ranks = {.count = c->ranks, .device = *device, .timeout_s = 30};
    if (case_result_init(result, c->ranks))
        return no_memory(why, size);
    ranks.device.pool = dev_pool_create(1);
    if (!ranks.device.pool)
        return no_memory(why, size);
    int status = c->run(c, &ranks, timed, result, why, size);
    dev_pool_free(ranks.device.pool);
    return status;
}
