/* Bars of the checkpoint boundaries: what copies cost when they can hide, and when they cannot.
 *
 * Copies are paced so that one boundary's takes 60 % of a layer's recomputation, as timed here just
 * before. A layer costs about four such units, one forward, one again and two backward, and 1.2 of
 * copies. sco with everything on the host may take 3 % more than resident; offload-all, which hides
 * nothing, must take at least 20 % more, or the pace was not what it was meant to be. */
#include "bench/peers.h"
#include <stdio.h>
#include "bench/harness/stack_run.h"

#define LAYERS 32
#define TOKENS 384
#define WIDTH 256
#define FFN 512
#define COPY_SHARE 0.6

/* One implementation ready to run; `fault` once a run failed. */
struct side {
    const struct stack_impl *impl;
    const struct stack_inputs *inputs;
    struct stack_options options;
    struct ranks_config ranks;
    enum measure_timed timed;
    char fault[320];
};

/* Loading counts for nothing: the time kept is the one taken around the pass alone. */
static double run_once(void *context)
{
    struct side *side = context;
    struct timing_protocol once = {.min_samples = 1, .max_samples = 1, .max_time_s = 60};
    struct case_result result;
    struct stack_run run = {.impl = side->impl,
        .options = &side->options,
        .inputs = side->inputs,
        .backward = true,
        .steps = 1,
        .timed = side->timed,
        .protocol = &once,
        .ranks = &side->ranks};
    double seconds = -1;
    if (case_result_init(&result, side->ranks.count) == 0 && stack_run(&run, &result) == 0 &&
        result.time.count == 1)
        seconds = result.time.samples_s[0];
    else
        snprintf(side->fault, sizeof side->fault, "%s: %s", side->impl->name, run.failure.message);
    case_result_free(&result);
    return seconds;
}

static struct side side_of(struct peers *peers, const struct stack_impl *impl,
    const struct stack_inputs *inputs, double bytes_per_s)
{
    return (struct side){.impl = impl,
        .inputs = inputs,
        .options = {.budget = {.bytes = -1}, .keep_pool = true},
        .ranks = {.count = 1,
            .device = {.kind = DEV_CPU,
                .pool = peers->pool,
                .kernel_threads = 1,
                .h2d_bytes_per_s = bytes_per_s,
                .d2h_bytes_per_s = bytes_per_s}},
        .timed = TIME_BOTH};
}

/* A layer's forward is what backward computes again: the fastest of three, in seconds. */
static double recompute_s(struct peers *peers, const struct stack_inputs *inputs)
{
    struct side side = side_of(peers, &stack_resident, inputs, 0);
    double best = -1;
    side.timed = TIME_FORWARD;
    for (int i = 0; i < 3; i++) {
        double seconds = run_once(&side) / LAYERS;
        if (best < 0 || seconds < best)
            best = seconds;
    }
    return best;
}

/* `ours` may take at most 1 / least of `other`'s time. */
static void bar(
    struct peers *peers, const char *name, struct side ours, struct side other, double least)
{
    const double work = 18.0 * LAYERS * TOKENS * WIDTH * FFN;
    if (!peers_wants(peers, name))
        return;
    peers_bar(peers, name,
        &(struct peers_contestant){.name = ours.impl->name, .seconds = run_once, .context = &ours},
        &(struct peers_contestant){
            .name = other.impl->name, .seconds = run_once, .context = &other},
        work, "GF", least);
    if (ours.fault[0] || other.fault[0])
        peers_fault(peers, name, ours.fault[0] ? ours.fault : other.fault);
}

int peers_stack(struct peers *peers)
{
    static const int64_t tokens = TOKENS;
    const struct stack_shape shape = {1, &tokens, LAYERS, WIDTH, FFN, DTYPE_F32};
    struct stack_inputs inputs;
    if (peers->cpu_count < 2) {
        peers_skip(peers, "sco", "needs two cores: one computes, one copies");
        return 0;
    }
    if (stack_inputs_seeded(&inputs, &shape, 1)) {
        fprintf(stderr, "peers: no memory for the stack's inputs\n");
        return -1;
    }
    double unit_s = recompute_s(peers, &inputs);
    if (unit_s > 0) {
        double pace = (double)stack_row_bytes(&shape, 0) / (COPY_SHARE * unit_s);
        struct side resident = side_of(peers, &stack_resident, &inputs, pace);
        printf("# boundaries: L=%d, N=%d, H=%d, F=%d, FP32; a layer again %.2f ms, a copy %.2f\n",
            LAYERS, TOKENS, WIDTH, FFN, 1e3 * unit_s, COPY_SHARE * 1e3 * unit_s);
        bar(peers, "sco, all on the host: at most 1.03 of resident",
            side_of(peers, &stack_sco, &inputs, pace), resident, 1 / 1.03);
        bar(peers, "offload-all: at least 1.2 of resident", resident,
            side_of(peers, &stack_offload_all, &inputs, pace), 1.2);
    } else {
        peers_fault(peers, "sco", "resident did not run");
    }
    stack_inputs_free(&inputs);
    return 0;
}
