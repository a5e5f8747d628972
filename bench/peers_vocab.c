/* Bars of the vocabulary family: what ring-dtp costs beside the projection it replaces, at a shape
 * where the matrix product dominates. Two ranks, one kernel thread each.
 *
 * Forward, both form every logit once: within 5 % of materialized. Forward and backward, ring-dtp
 * forms them twice, four products for three: within 5 % of 4/3. */
#include "bench/peers.h"
#include <stdio.h>
#include "bench/harness/vocab_run.h"

#define TOKENS 512
#define HIDDEN 1024
#define VOCAB 8192
static const int64_t tokens[2] = {TOKENS, TOKENS};

/* One implementation ready to run; `fault` once a run failed. */
struct side {
    const struct vocab_impl *impl;
    const struct vocab_inputs *inputs;
    struct vocab_options options;
    bool backward;
    struct ranks_config ranks;
    char fault[320];
};

/* Loading inputs is part of a run on both sides and counts for nothing: the time kept is the one
 * that the measuring loop takes around the pass alone. */
static double run_once(void *context)
{
    struct side *side = context;
    struct timing_protocol once = {.min_samples = 1, .max_samples = 1, .max_time_s = 60};
    struct case_result result;
    struct vocab_run run = {.impl = side->impl,
        .options = &side->options,
        .inputs = side->inputs,
        .backward = side->backward,
        .timed = side->backward ? TIME_BOTH : TIME_FORWARD,
        .protocol = &once,
        .ranks = &side->ranks};
    double seconds = -1;
    if (case_result_init(&result, side->ranks.count) == 0 && vocab_run(&run, &result) == 0 &&
        result.time.count == 1)
        seconds = result.time.samples_s[0];
    else
        snprintf(side->fault, sizeof side->fault, "%s: %s", side->impl->name, run.failure.message);
    case_result_free(&result);
    return seconds;
}

static void bar(struct peers *peers, const char *name, const struct vocab_inputs *inputs,
    enum vocab_move move, bool backward, double least)
{
    struct ranks_config ranks = {
        .count = 2, .device = {.kind = DEV_CPU, .pool = peers->pool, .kernel_threads = 1}};
    struct side ring = {&vocab_ring_dtp, inputs, {.move = move}, backward, ranks, ""};
    struct side materialized = {&vocab_materialized, inputs, {.move = move}, backward, ranks, ""};
    if (!peers_wants(peers, name))
        return;
    double work = (backward ? 6.0 : 2.0) * 2 * TOKENS * HIDDEN * VOCAB;
    peers_bar(peers, name,
        &(struct peers_contestant){.name = "ring-dtp", .seconds = run_once, .context = &ring},
        &(struct peers_contestant){
            .name = "materialized", .seconds = run_once, .context = &materialized},
        work, "GF", least);
    if (ring.fault[0] || materialized.fault[0])
        peers_fault(peers, name, ring.fault[0] ? ring.fault : materialized.fault);
}

int peers_vocab(struct peers *peers)
{
    struct vocab_shape shape = {2, tokens, HIDDEN, VOCAB, DTYPE_F32};
    struct vocab_inputs inputs;
    if (peers->cpu_count < 2) {
        peers_skip(peers, "ring-dtp", "needs two cores: two ranks, one thread each");
        return 0;
    }
    if (vocab_inputs_seeded(&inputs, &shape, 1, 0)) {
        fprintf(stderr, "peers: no memory for the vocabulary inputs\n");
        return -1;
    }
    printf("# vocabulary: 2 ranks, 1 thread each, N=%d per rank, H=%d, V=%d, FP32\n", TOKENS,
        HIDDEN, VOCAB);
    bar(peers, "ring-dtp forward, weights move", &inputs, VOCAB_MOVE_WEIGHTS, false, 1 / 1.05);
    bar(peers, "ring-dtp forward, activations move", &inputs, VOCAB_MOVE_ACTIVATIONS, false,
        1 / 1.05);
    bar(peers, "ring-dtp both, weights move", &inputs, VOCAB_MOVE_WEIGHTS, true,
        1 / (1.05 * 4 / 3));
    bar(peers, "ring-dtp both, activations move", &inputs, VOCAB_MOVE_ACTIVATIONS, true,
        1 / (1.05 * 4 / 3));
    vocab_inputs_free(&inputs);
    return 0;
}
