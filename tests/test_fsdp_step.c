/* The baseline's simulated step: one rank that stands for all takes what all take, layers beyond
 * the third take what the third adds, and no part of a machine alone explains a faster step. */
#include "bench/harness/fsdp_step.h"
#include <math.h>
#include "tests/tap.h"

static struct fsdp_launch launch_of(int expert, int context, int tensor, int64_t layers)
{
    return (struct fsdp_launch){.model = {.layers = layers,
                                    .hidden = 2048,
                                    .heads = 16,
                                    .ffn = 1024,
                                    .experts = 64,
                                    .vocab = 32000,
                                    .params = layers * 420000000 + 65000000,
                                    .topk = 8},
        .gpus = 16,
        .expert = expert,
        .context = context,
        .tensor = tensor,
        .length = 16384,
        .sequences = 1};
}

static double seconds_of(
    const struct fsdp_launch *launch, bool device_state, const struct profile *machine)
{
    double passes, optimizer;
    char error[256];
    if (fsdp_passes_time(launch, device_state, machine, 1, &passes, error, sizeof error) ||
        fsdp_optimizer_time(launch, device_state, machine, 1, &optimizer, error, sizeof error)) {
        tap_note("%s", error);
        return NAN;
    }
    return passes + optimizer;
}

static void test_alike(const struct profile *machine)
{
    static const int degrees[][3] = {{16, 1, 1}, {8, 4, 2}, {1, 2, 8}, {16, 16, 1}};
    for (int i = 0; i < 4; i++) {
        struct fsdp_launch one = launch_of(degrees[i][0], degrees[i][1], degrees[i][2], 2);
        struct fsdp_launch all = one;
        all.every_rank = true;
        double a = seconds_of(&one, i % 2, machine), b = seconds_of(&all, i % 2, machine);
        tap_ok(fabs(a / b - 1) < 0.02, "EP=%d, CP=%d, TP=%d: one rank's time is all ranks'",
            one.expert, one.context, one.tensor);
        tap_note("%.6f and %.6f s", a, b);
    }
}

/* The simulated program itself is given one layer more at a time by its own closed form, so that a
 * sum of differences must agree with itself and grow. */
static void test_layers(const struct profile *machine)
{
    double seconds[6];
    for (int layers = 1; layers < 6; layers++) {
        struct fsdp_launch launch = launch_of(16, 2, 2, layers);
        seconds[layers] = seconds_of(&launch, true, machine);
    }
    double third = seconds[3] - seconds[2];
    tap_ok(seconds[2] > seconds[1] && third > 0 &&
               fabs((seconds[5] - seconds[4]) / third - 1) < 0.05 &&
               fabs((seconds[2] - seconds[1]) / third - 1) < 0.2,
        "a layer takes what another takes");
    tap_note(
        "%.6f %.6f %.6f %.6f %.6f s", seconds[1], seconds[2], seconds[3], seconds[4], seconds[5]);
}

static void test_laws(const struct profile *machine)
{
    struct fsdp_launch launch = launch_of(8, 2, 2, 2);
    const struct plan_model *m = &launch.model;
    double base = seconds_of(&launch, false, machine);
    bool holds = base > 0;
    for (int part = 0; part <= PROFILE_PARTS; part++) {
        struct profile faster = profile_scaled(machine, (enum profile_part)part, 1.5);
        double seconds = seconds_of(&launch, false, &faster);
        holds = holds && seconds <= base * (1 + 1e-9) && seconds >= base / 1.5 * (1 - 1e-9);
    }
    tap_ok(holds, "a machine that is half as fast again in some part is at most that much faster");
    double tokens = (double)launch.length / (launch.context * launch.tensor), hidden = 2048;
    double layer = 4 * hidden * hidden + m->topk * 3 * hidden * (double)m->ffn;
    double least = 8 * tokens * (double)m->layers * layer / machine->bf16.peak_flops_per_s;
    tap_ok(base > least, "no step is shorter than its products at the machine's peak");
    launch.sequences = 2;
    double two = seconds_of(&launch, false, machine);
    tap_ok(two > base && two < 2 * base, "two sequences take longer than one, and less than twice");
}

static void test_even(const struct profile *machine)
{
    struct fsdp_launch launch = launch_of(16, 4, 2, 2);
    tap_ok(fsdp_launch_is_even(&launch, machine), "a launch whose degrees divide");
    launch.expert = 3;
    tap_ok(!fsdp_launch_is_even(&launch, machine), "EP that does not divide the ranks");
    launch = launch_of(16, 8, 4, 2);
    tap_ok(!fsdp_launch_is_even(&launch, machine), "CP x TP of more than the ranks");
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
    test_layers(&machine);
    test_laws(&machine);
    test_even(&machine);
    return tap_done();
}
