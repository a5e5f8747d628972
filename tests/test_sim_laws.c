/* What holds of simulated time whatever a program does: it is never below the longest chain of
 * operations that wait for one another nor below what one engine has to do, and never above the sum
 * of all operations alone; Eq. 5 of the optimizer within the time of one bucket; and the same
 * figures to the last bit in every run, however busy the machine is. */
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench/harness/adamw_run.h"
#include "bench/harness/adamw_time.h"
#include "tests/device_case.h"
#include "tests/sim_case.h"

/* ---- random programs ------------------------------------------------------------------------- */

enum { STREAMS = 5, OPERATIONS = 80 };

enum what { COMPUTE, TOUCH, BOTH, UP, DOWN, FILL, HOST, WHATS };

struct operation {
    enum what what;
    int64_t size; /* units of work */
    int stream;
    int waits_for; /* an earlier operation; -1 = none */
};

static void declared_cost(const void *args, struct kernel_cost *cost)
{
    *cost = *(const struct kernel_cost *)args;
}

static const struct kernel kernel_priced = {.name = "priced", .cost = declared_cost};

struct memory {
    char *block, *pinned;
};

static struct memory alloc_memory(struct device *dev)
{
    const int64_t bytes = INT64_C(1) << 24;
    return (struct memory){dev_alloc(dev, bytes, LIVE_INPUT, "block"),
        dev_host_alloc(dev, bytes, LIVE_INPUT, "pinned")};
}

static void enqueue(
    struct stream *stream, const struct memory *memory, const struct operation *operation)
{
    double flops = 5e5 * (double)operation->size, bytes = 1e5 * (double)operation->size;
    struct kernel_cost cost = {.flops = operation->what == TOUCH ? 0 : flops,
        .bytes = operation->what == COMPUTE ? 0 : bytes};
    switch (operation->what) {
    case UP:
        dev_copy_h2d(stream, memory->block, memory->pinned, operation->size * 4000);
        return;
    case DOWN:
        dev_copy_d2h(stream, memory->pinned, memory->block, operation->size * 4000);
        return;
    case FILL:
        dev_fill(stream, memory->block, 0, operation->size * 4000);
        return;
    case HOST:
        dev_launch_host(stream, &kernel_priced, &cost, sizeof cost);
        return;
    default:
        dev_launch(stream, &kernel_priced, &cost, sizeof cost);
    }
}

static struct device_case open_round(const struct profile *profile)
{
    return open_case((struct dev_config){.kind = DEV_SIM, .profiles = profile}, 1);
}

/* How long each operation lasts on an idle device. */
static void time_alone(
    const struct profile *profile, const struct operation *operations, double *alone_s)
{
    struct device_case it = open_round(profile);
    struct memory memory = alloc_memory(it.dev);
    for (int i = 0; i < OPERATIONS; i++) {
        double begin_s = dev_clock_s(it.dev);
        enqueue(dev_main_stream(it.dev), &memory, &operations[i]);
        alone_s[i] = dev_clock_s(it.dev) - begin_s;
    }
    close_case(&it);
}

static double time_together(const struct profile *profile, const struct operation *operations)
{
    static const char *const names[STREAMS] = {"main", "a", "b", "c", "d"};
    struct device_case it = open_round(profile);
    struct memory memory = alloc_memory(it.dev);
    struct event done[OPERATIONS];
    for (int i = 0; i < OPERATIONS; i++) {
        struct stream *stream = dev_stream(it.dev, names[operations[i].stream]);
        if (operations[i].waits_for >= 0)
            dev_wait(stream, done[operations[i].waits_for]);
        enqueue(stream, &memory, &operations[i]);
        done[i] = dev_record(stream);
    }
    double clock_s = dev_clock_s(it.dev);
    close_case(&it);
    return clock_s;
}

/* The longest chain: every operation begins when its stream and what it waits for are done. */
static double longest_chain_s(const struct operation *operations, const double *alone_s)
{
    double end_s[OPERATIONS], stream_s[STREAMS] = {0}, longest_s = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        double *now_s = &stream_s[operations[i].stream];
        int before = operations[i].waits_for;
        if (before >= 0 && end_s[before] > *now_s)
            *now_s = end_s[before];
        *now_s += alone_s[i];
        end_s[i] = *now_s;
        longest_s = *now_s > longest_s ? *now_s : longest_s;
    }
    return longest_s;
}

/* What the copies of one direction, and what kernels that compute, need in all; latencies are no
 * engine's but those of copies. */
static double busiest_engine_s(const struct operation *operations, const double *alone_s)
{
    double up_s = 0, down_s = 0, arithmetic_s = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        up_s += operations[i].what == UP ? alone_s[i] : 0;
        down_s += operations[i].what == DOWN ? alone_s[i] : 0;
        if (operations[i].what == COMPUTE || operations[i].what == BOTH)
            arithmetic_s += 1e-6 * (double)operations[i].size;
    }
    double copies_s = up_s > down_s ? up_s : down_s;
    return copies_s > arithmetic_s ? copies_s : arithmetic_s;
}

static bool random_program(const struct profile *profile, uint64_t seed)
{
    struct operation operations[OPERATIONS];
    double alone_s[OPERATIONS], serial_s = 0;
    for (int i = 0; i < OPERATIONS; i++)
        operations[i] = (struct operation){(enum what)(next_random(&seed) % WHATS),
            (int64_t)(next_random(&seed) % 1000), (int)(next_random(&seed) % STREAMS),
            i && next_random(&seed) % 3 == 0 ? (int)(next_random(&seed) % (uint64_t)i) : -1};
    time_alone(profile, operations, alone_s);
    for (int i = 0; i < OPERATIONS; i++)
        serial_s += alone_s[i];
    double took_s = time_together(profile, operations);
    double chain_s = longest_chain_s(operations, alone_s);
    double engine_s = busiest_engine_s(operations, alone_s);
    bool good = took_s >= chain_s - 1e-11 && took_s >= engine_s - 1e-11 &&
                took_s <= serial_s + 1e-11 && took_s == time_together(profile, operations);
    if (!good)
        tap_note("chain %.9g s, engine %.9g s, took %.9g s, serial %.9g s", chain_s, engine_s,
            took_s, serial_s);
    return good;
}

static void programs(void)
{
    struct profile profile = sim_case_profile();
    bool good = true;
    profile.host_memory_bytes_per_s = 1e15; /* an engine of many operations has no sum to test */
    for (uint64_t seed = 1; seed <= 300; seed++)
        good = random_program(&profile, seed) && good;
    tap_ok(good, "300 random programs: longest chain, busiest engine <= time <= serial sum");
    profile = sim_case_profile();
    profile.host_link_duplex = false;
    good = true;
    for (uint64_t seed = 301; seed <= 600; seed++)
        good = random_program(&profile, seed) && good;
    tap_ok(good, "300 more, with a narrow host and a link that is not duplex");
}

/* ---- Eq. 5 ----------------------------------------------------------------------------------- */

enum { BUCKET = 100000, BUCKETS = 40 };

/* Seconds of one step; NaN when it fails. */
static double step_s(const struct adamw_impl *impl, const struct profile *profile, int slots)
{
    static const struct timing_protocol once = {
        .min_samples = 1, .max_samples = 1, .max_time_s = 1e9};
    static const struct adamw_tensor tensor = {"all", BUCKET * BUCKETS, ADAMW_DECAY};
    struct adamw_options options = {
        .bucket = BUCKET, .slots = slots, .scale = 1, .nonfinite = ADAMW_PROPAGATE};
    for (int group = 0; group < ADAMW_GROUPS; group++)
        options.hyper[group] = (struct adamw_hyper){1e-3, 0.9, 0.95, 1e-8, 0};
    struct adamw_inputs inputs;
    struct case_result result;
    struct ranks_config ranks = {
        .count = 1, .device = {.kind = DEV_SIM, .profiles = profile}, .timeout_s = 10};
    struct adamw_run run = {.impl = impl,
        .options = &options,
        .inputs = &inputs,
        .ranks = &ranks,
        .steps = 1,
        .first_step = 1,
        .timed = true,
        .protocol = &once};
    if (adamw_inputs_seeded(&inputs, &tensor, 1, 1, 1, 1) || case_result_init(&result, 1))
        return NAN;
    double seconds = adamw_run(&run, &result) ? NAN : result.time.samples_s[0];
    adamw_run_free(&run);
    adamw_inputs_free(&inputs);
    case_result_free(&result);
    return seconds;
}

/* With one slot the plain sum; with more the longest stage G times, and at most one bucket's three
 * stages besides. */
static void eq_5(void)
{
    struct profile profile = sim_case_profile();
    profile.host_memory_bytes_per_s = 1e12;
    double bytes = 4.0 * BUCKET;
    struct adamw_stages stages = {.up_s = 4 * (3e-6 + bytes / 4e9),
        .update_s = 1e-6 + 30.0 * BUCKET / 1e11,
        .down_s = 3 * (3e-6 + bytes / 4e9),
        .buckets = BUCKETS};
    double sum_s = stages.up_s + stages.update_s + stages.down_s;
    double one_s = step_s(&adamw_offload_stream, &profile, 1);
    tap_ok(fabs(one_s - BUCKETS * sum_s) < 1e-9 &&
               fabs(one_s - step_s(&adamw_staged, &profile, 1)) < 1e-9,
        "one slot takes the plain sum, as staged does: %.6g s", one_s);
    double two_s = step_s(&adamw_offload_stream, &profile, 2);
    double least_s = BUCKETS * stages.up_s;
    tap_ok(two_s >= least_s - 1e-9 && two_s <= least_s + sum_s,
        "two slots: Eq. 5 within one bucket's stages: %.6g s, G max %.6g s", two_s, least_s);
    stages.slots = 2;
    tap_ok(fabs(two_s - adamw_stream_s(&stages)) < 0.01 * two_s, "the closed form is within 1 %%");
    double three_s = step_s(&adamw_offload_stream, &profile, 3);
    tap_ok(fabs(three_s - two_s) < sum_s, "a third slot changes little: %.6g s", three_s);
    profile.link_bytes_per_s *= 2;
    tap_ok(step_s(&adamw_offload_stream, &profile, 2) == two_s, "the ranks' link is not its");
    profile.h2d_bytes_per_s *= 2;
    tap_ok(step_s(&adamw_offload_stream, &profile, 2) < two_s, "a faster host link is");
}

/* ---- the same in every run ------------------------------------------------------------------- */

/* Keeps a core busy until it is ended. */
static pid_t busy_process(void)
{
    pid_t pid = fork();
    if (pid == 0)
        for (volatile uint64_t i = 0;; i++) {
        }
    return pid;
}

/* Times of all cases on all machines; false when one failed. */
static bool time_all(const struct sim_case *cases, int count, double (*time_s)[3])
{
    struct profile profiles[3] = {sim_case_profile(), sim_case_profile(), sim_case_profile()};
    char why[256];
    bool good = true;
    profiles[1] = profile_scaled(&profiles[0], PROFILE_LINKS, 3);
    profiles[2] = profile_scaled(&profiles[0], PROFILE_ARITHMETIC, 3);
    struct dev_config device = {.kind = DEV_SIM, .profiles = profiles, .machines = 3};
    for (int i = 0; i < count; i++) {
        struct case_result result;
        if (sim_case_run(&cases[i], &device, true, &result, why, sizeof why)) {
            tap_note("%s", why);
            good = false;
        }
        memcpy(time_s[i], result.machine_s, sizeof time_s[i]);
        good = good && result.machines == 3 && result.machine_s[0] > 0;
        case_result_free(&result);
    }
    return good;
}

static void determinism(void)
{
    int count;
    struct sim_case *cases = sim_cases(&count);
    double(*quiet_s)[3] = calloc((size_t)count, sizeof *quiet_s);
    double(*busy_s)[3] = calloc((size_t)count, sizeof *busy_s);
    if (!cases || !quiet_s || !busy_s) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    bool good = time_all(cases, count, quiet_s);
    pid_t children[3];
    for (int i = 0; i < 3; i++)
        children[i] = busy_process();
    good = time_all(cases, count, busy_s) && good;
    for (int i = 0; i < 3; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    tap_ok(good && !memcmp(quiet_s, busy_s, (size_t)count * sizeof *quiet_s),
        "%d cases take the same simulated time beside three busy processes", count);
    free(cases);
    free(quiet_s);
    free(busy_s);
}

int main(void)
{
    programs();
    eq_5();
    determinism();
    return tap_done();
}
