/* A composed step of one rank that stands for all takes what all of them take; and steps of more
 * layers take as much more for each. */
#include "bench/harness/step_time.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "device/sim_alike.h"
#include "tests/tap.h"

static struct model_shape shape_of(
    int ranks, int sequence, int experts, int vocab, int64_t length, int64_t layers)
{
    return (struct model_shape){.layout = {.ranks = ranks,
                                    .degree = {sequence, experts, vocab},
                                    .heads = 16,
                                    .experts = 64},
        .layers = layers,
        .hidden = 2048,
        .ffn = 1024,
        .vocab = 32000,
        .topk = 8,
        .length = length,
        .sequences = 1};
}

static struct model_options options_of(int64_t chunk_budget)
{
    return (struct model_options){.dispatch = &moe_pipelined_llep,
        .moe = {.chunk_budget = chunk_budget, .alpha = 1, .lambda = 1.3, .min_gemm_tokens = 1024},
        .vocab = &vocab_ring_dtp,
        .checkpoint = &stack_sco,
        .stack = {.budget = {.bytes = -1}},
        .optimizer = &adamw_offload_stream,
        .adamw = {.bucket = 4000000,
            .slots = 2,
            .gradients = ADAMW_HOST_F32,
            .scale = 1,
            .hyper = {{1e-3, 0.9, 0.95, 1e-8, 0.1}, {1e-3, 0.9, 0.95, 1e-8, 0}}}};
}

static void test_alike(const struct profile *machine)
{
    static const int64_t cases[][6] = {/* W, D, E_p, P, length, c */
        {8, 2, 8, 4, 16384, 1024}, {8, 8, 4, 8, 16384, 0}, {16, 4, 16, 8, 32768, 2048},
        {16, 1, 8, 16, 8192, 3000}, {16, 16, 16, 2, 65536, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *c = cases[i];
        struct model_shape shape = shape_of((int)c[0], (int)c[1], (int)c[2], (int)c[3], c[4], 2);
        struct model_options options = options_of(c[5]);
        struct step_time one, all;
        char error[256] = "";
        int status =
            step_time_run(STEP_WHOLE, &shape, &options, machine, 1, &one, error, sizeof error);
        status |= step_time_run_all(&shape, &options, machine, 1, &all, error, sizeof error);
        tap_note("%.6f and %.6f s, peaks of %lld and %lld bytes %s", one.seconds[0], all.seconds[0],
            (long long)one.device_peak_bytes, (long long)all.device_peak_bytes, error);
        tap_ok(status == 0 && fabs(one.seconds[0] / all.seconds[0] - 1) < 0.02 &&
                   llabs(one.device_peak_bytes - all.device_peak_bytes) <
                       all.device_peak_bytes / 500 &&
                   one.traffic.exchanges == all.traffic.exchanges,
            "W=%lld, D=%lld, E_p=%lld, P=%lld: one rank's time and peak are all ranks'",
            (long long)c[0], (long long)c[1], (long long)c[2], (long long)c[3]);
    }
}

/* Ranks that each name an expert block of their own: every one of them is the same. */
static void test_exact(const struct profile *machine)
{
    struct model_shape shape = shape_of(8, 1, 1, 1, 2048, 1);
    struct model_options options = options_of(0);
    struct step_time one, all;
    char error[256] = "";
    int status = step_time_run(STEP_WHOLE, &shape, &options, machine, 1, &one, error, sizeof error);
    status |= step_time_run_all(&shape, &options, machine, 1, &all, error, sizeof error);
    tap_ok(status == 0 && fabs(one.seconds[0] - all.seconds[0]) < 1e-11 &&
               one.device_peak_bytes == all.device_peak_bytes &&
               one.host_peak_bytes == all.host_peak_bytes &&
               !memcmp(&one.traffic, &all.traffic, sizeof all.traffic),
        "ranks that are alike: to the picosecond, the byte and the message");
    if (status || fabs(one.seconds[0] - all.seconds[0]) >= 1e-11)
        tap_note("%.12f and %.12f s %s", one.seconds[0], all.seconds[0], error);
}

static void test_layers(const struct profile *machine)
{
    struct model_options options = options_of(1024);
    double seconds[7] = {0};
    char error[256] = "";
    for (int layers = 2; layers <= 6; layers += layers == 3 ? 3 : 1) {
        struct model_shape shape = shape_of(16, 4, 16, 8, 16384, layers);
        struct step_time time;
        if (step_time_run(STEP_WHOLE, &shape, &options, machine, 1, &time, error, sizeof error) ==
            0)
            seconds[layers] = time.seconds[0];
    }
    double six = seconds[2] + 4 * (seconds[3] - seconds[2]);
    tap_ok(seconds[6] > 0 && fabs(six / seconds[6] - 1) < 0.01,
        "six layers take what two and three say, within 1 %%");
    tap_note("%.6f s, from two and three %.6f s %s", seconds[6], six, error);
}

static void test_even(void)
{
    static const int64_t strides[] = {1, 2, 3, 8, 21, 64};
    int64_t tokens = 65536, experts = 384, worst = 0;
    int32_t *idx = step_even_routing(tokens, 8, experts);
    for (size_t s = 0; idx && s < sizeof strides / sizeof *strides; s++) {
        int64_t load[384] = {0}, mean = tokens / strides[s] * 8 / experts;
        for (int64_t i = 0; i < tokens; i += strides[s])
            for (int j = 0; j < 8; j++)
                load[idx[i * 8 + j]]++;
        for (int e = 0; e < 384; e++)
            if (100 * load[e] / mean > worst)
                worst = 100 * load[e] / mean;
    }
    tap_ok(idx && worst >= 100 && worst <= 130,
        "even routing stays even in every K-th token: %lld %% of the mean", (long long)worst);
    free(idx);
}

static int splits(struct rank *rank, void *context)
{
    (void)context;
    return comm_split(rank->comm, rank->index % 2, 0, "parity") ? 0 : -1;
}

static void test_refused(const struct profile *machine)
{
    struct ranks_config config = {
        .count = 4, .device = {.kind = DEV_SIM, .profiles = machine, .machines = 1}};
    struct ranks_failure failure;
    tap_ok(sim_alike_run(&config, splits, NULL, &failure) == -1 &&
               strstr(failure.message, "split by colors"),
        "colors of ranks that are not there: %s", failure.message);
    config.device.kind = DEV_CPU;
    tap_ok(sim_alike_run(&config, splits, NULL, &failure) == -1 &&
               strstr(failure.message, "simulated device"),
        "ranks that compute do not stand for others: %s", failure.message);
}

int main(void)
{
    struct profile machine;
    char error[256];
    if (profile_read("h200-16", &machine, error, sizeof error)) {
        tap_ok(false, "%s", error);
        return tap_done();
    }
    test_alike(&machine);
    test_exact(&machine);
    test_layers(&machine);
    test_even();
    test_refused(&machine);
    return tap_done();
}
