/* Bars of the dispatch schedules: what chunks cost where products dominate, and what overlap saves
 * where messages weigh. Two ranks, one kernel thread each.
 *
 * pipelined-llep makes the products of llep in chunks of a token budget: its forward pass within
 * 3 % of llep's speed on balanced routing, within 5 % on skewed; both passes are reported. Four
 * chunks of the profile's cyclic routing over eight experts load both ranks evenly in every chunk;
 * over four experts chunk and routing are in step, every other chunk belongs to one rank alone,
 * and the ranks take turns: that case is reported beside them.
 *
 * With messages paced to 0.8 of the products' time one stream takes 1.8 of it. Three streams hide
 * all but the first chunk's way out and the last one's way home, 1 + 0.8 / K of it: at most 0.65.
 *
 * What is not a product: the layer with experts of width 1 gathers, sends, returns and sums the
 * same rows, and all of its time is counted as movement: under 15 % of the layer's.
 *
 * relay-expert does the products of alltoall-ckpt hop by hop, fewer rows at a time: at least 0.9 of
 * its speed. On a ring of four with messages paced so that a hop's travel takes a hop's products,
 * serial hops take 7 of 4 parts, overlapped ones 4: at most 0.75 of the time. */
#include <stdio.h>
#include "bench/harness/moe_run.h"
#include "bench/peers.h"

enum { RANKS = 2, TOKENS = 8192, HIDDEN = 1024, FFN = 1024, EXPERTS = 8, TOPK = 2, RING = 4 };
static const int64_t tokens[RING] = {TOKENS, TOKENS, TOKENS, TOKENS};

/* One implementation ready to run; `fault` once a run failed. */
struct side {
    const struct moe_impl *impl;
    struct moe_inputs inputs;
    struct moe_options options;
    bool backward;
    struct ranks_config ranks;
    int64_t wire_bytes; /* a rank sends in one pass */
    char fault[320];
};

/* As in the vocabulary's bars: loading counts for nothing, the time is that of the pass alone. */
static double run_once(void *context)
{
    struct side *side = context;
    struct timing_protocol once = {.min_samples = 1, .max_samples = 1, .max_time_s = 60};
    struct case_result result;
    struct moe_run run = {.impl = side->impl,
        .options = &side->options,
        .inputs = &side->inputs,
        .backward = side->backward,
        .timed = side->backward ? TIME_BOTH : TIME_FORWARD,
        .protocol = &once,
        .ranks = &side->ranks};
    double seconds = -1;
    if (case_result_init(&result, side->ranks.count) == 0 && moe_run(&run, &result) == 0 &&
        result.time.count == 1) {
        seconds = result.time.samples_s[0];
        side->wire_bytes = result.traffic.wire_bytes / side->ranks.count;
    } else {
        snprintf(side->fault, sizeof side->fault, "%s: %s", side->impl->name, run.failure.message);
    }
    case_result_free(&result);
    return seconds;
}

/* 0, or -1 after a line on stderr. */
static int side_init(struct side *side, const struct peers *peers, const struct moe_impl *impl,
    int ranks, const char *routing_text, int64_t experts, int64_t ffn, int64_t budget)
{
    const struct moe_shape shape = {.ranks = ranks,
        .tokens = tokens,
        .hidden = HIDDEN,
        .ffn = ffn,
        .experts = experts,
        .topk = TOPK,
        .dtype = DTYPE_F32,
        .activation = MOE_SWIGLU};
    struct moe_routing routing;
    char error[256];
    *side = (struct side){.impl = impl,
        .options = {.chunk_budget = budget, .alpha = 1, .lambda = 1.3, .min_gemm_tokens = 64},
        .ranks = {
            .count = ranks, .device = {.kind = DEV_CPU, .pool = peers->pool, .kernel_threads = 1}}};
    snprintf(error, sizeof error, "no memory for the inputs");
    int status = moe_routing_parse(&routing, routing_text, error, sizeof error);
    if (status == 0)
        status = moe_inputs_init(&side->inputs, &shape, &routing, 1, 0, false);
    moe_routing_free(&routing);
    if (status)
        fprintf(stderr, "peers: dispatch: %s\n", error);
    return status;
}

static void contest(struct peers *peers, const char *name, struct side *ours, const char *our_name,
    struct side *other, const char *other_name, double work, double least)
{
    peers_bar(peers, name,
        &(struct peers_contestant){.name = our_name, .seconds = run_once, .context = ours},
        &(struct peers_contestant){.name = other_name, .seconds = run_once, .context = other}, work,
        "GF", least);
    if (ours->fault[0] || other->fault[0])
        peers_fault(peers, name, ours->fault[0] ? ours->fault : other->fault);
}

static double layer_work(int ranks, int64_t ffn, bool backward)
{
    return (backward ? 18.0 : 6.0) * ranks * TOKENS * TOPK * HIDDEN * (double)ffn;
}

/* ---- chunks -----------------------------------------------------------------------------------
 */

/* least 0: reported, held to nothing. */
static int chunk_bar(struct peers *peers, const char *name, const char *routing, int64_t experts,
    bool backward, double least)
{
    struct side ours, llep;
    if (!peers_wants(peers, name))
        return 0;
    int status =
        side_init(&ours, peers, &moe_pipelined_llep, RANKS, routing, experts, FFN, TOKENS / 4);
    if (status)
        return status;
    status = side_init(&llep, peers, &moe_llep, RANKS, routing, experts, FFN, 0);
    if (status == 0) {
        ours.backward = llep.backward = backward;
        contest(peers, name, &ours, "pipelined-llep", &llep, "llep",
            layer_work(RANKS, FFN, backward), least);
        moe_inputs_free(&llep.inputs);
    }
    moe_inputs_free(&ours.inputs);
    return status;
}

/* ---- overlap ----------------------------------------------------------------------------------
 */

enum { PACE_SAMPLES = 3, CHUNKS = 16 };
#define MESSAGE_SHARE 0.8

static int overlap_bar(struct peers *peers)
{
    static const char name[] = "pipelined-llep, messages at 0.8";
    struct side overlapped, serial;
    double products_s = 1e9;
    if (!peers_wants(peers, name))
        return 0;
    if (side_init(
            &serial, peers, &moe_pipelined_llep, RANKS, "balanced", EXPERTS, FFN, TOKENS / CHUNKS))
        return -1;
    serial.ranks.device.serial_streams = true;
    for (int i = 0; i < PACE_SAMPLES; i++) {
        double seconds = run_once(&serial);
        products_s = seconds > 0 && seconds < products_s ? seconds : products_s;
    }
    serial.ranks.message_bytes_per_s = (double)serial.wire_bytes / (MESSAGE_SHARE * products_s);
    overlapped = serial; /* the same inputs */
    overlapped.ranks.device.serial_streams = false;
    contest(peers, name, &overlapped, "three streams", &serial, "one stream",
        layer_work(RANKS, FFN, false), 1 / 0.65);
    moe_inputs_free(&serial.inputs);
    return 0;
}

/* ---- movement ---------------------------------------------------------------------------------
 */

static int movement_bar(struct peers *peers, const struct moe_impl *impl)
{
    struct side narrow, layer;
    char name[64];
    snprintf(name, sizeof name, "%s: rows moved, of the layer", impl->name);
    if (!peers_wants(peers, name))
        return 0;
    int status = side_init(&narrow, peers, impl, RANKS, "balanced", EXPERTS, 1, TOKENS / 4);
    if (status)
        return status;
    status = side_init(&layer, peers, impl, RANKS, "balanced", EXPERTS, FFN, TOKENS / 4);
    if (status == 0) {
        contest(peers, name, &narrow, "width 1", &layer, "the layer", layer_work(RANKS, FFN, false),
            1 / 0.15);
        moe_inputs_free(&layer.inputs);
    }
    moe_inputs_free(&narrow.inputs);
    return status;
}

/* ---- the ring ---------------------------------------------------------------------------------
 */

static int ring_bar(struct peers *peers)
{
    static const char name[] = "relay-expert both, balanced";
    struct side ours, ckpt;
    if (!peers_wants(peers, name))
        return 0;
    int status = side_init(&ours, peers, &moe_relay_expert, RANKS, "balanced", EXPERTS, FFN, 0);
    if (status)
        return status;
    status = side_init(&ckpt, peers, &moe_alltoall_ckpt, RANKS, "balanced", EXPERTS, FFN, 0);
    if (status == 0) {
        ours.backward = ckpt.backward = true;
        contest(peers, name, &ours, "relay-expert", &ckpt, "alltoall-ckpt",
            layer_work(RANKS, FFN, true), 0.9);
        moe_inputs_free(&ckpt.inputs);
    }
    moe_inputs_free(&ours.inputs);
    return status;
}

static int ring_overlap_bar(struct peers *peers)
{
    static const char name[] = "relay-expert, hops paced as products";
    struct side overlapped, serial;
    double products_s = 1e9;
    if (!peers_wants(peers, name))
        return 0;
    if (side_init(&serial, peers, &moe_relay_expert, RING, "balanced", EXPERTS, FFN, 0))
        return -1;
    serial.options.overlap_off = true;
    for (int i = 0; i < PACE_SAMPLES; i++) {
        double seconds = run_once(&serial);
        products_s = seconds > 0 && seconds < products_s ? seconds : products_s;
    }
    serial.ranks.message_bytes_per_s = (double)serial.wire_bytes / (products_s * (RING - 1) / RING);
    overlapped = serial; /* the same inputs */
    overlapped.options.overlap_off = false;
    contest(peers, name, &overlapped, "overlap on", &serial, "overlap off",
        layer_work(RING, FFN, false), 1 / 0.75);
    moe_inputs_free(&serial.inputs);
    return 0;
}

int peers_dispatch(struct peers *peers)
{
    struct peers fewer = *peers;
    fewer.rounds = 5;
    if (peers->cpu_count < 2) {
        peers_skip(peers, "pipelined-llep", "needs two cores: two ranks, one thread each");
        return 0;
    }
    printf("# dispatch: 2 ranks, 1 thread each, N=%d per rank, H=F=%d, E=%d, k=%d, FP32\n", TOKENS,
        HIDDEN, EXPERTS, TOPK);
    return chunk_bar(peers, "pipelined-llep forward, balanced", "balanced", EXPERTS, false, 0.97) ||
                   chunk_bar(peers, "pipelined-llep forward, 50/1", "50/1", EXPERTS, false, 0.95) ||
                   chunk_bar(&fewer, "pipelined-llep both, no bar", "balanced", EXPERTS, true, 0) ||
                   chunk_bar(&fewer, "pipelined-llep, 4 experts in step, no bar", "balanced", 4,
                       false, 0) ||
                   overlap_bar(peers) || movement_bar(peers, &moe_llep) ||
                   movement_bar(peers, &moe_pipelined_llep) || ring_bar(&fewer) ||
                   ring_overlap_bar(&fewer)
               ? -1
               : 0;
}
