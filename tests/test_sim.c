/* The simulated device by itself: what each call takes of which engine, what waits for what, and
 * what it keeps of memory. Times are compared to the picosecond with the formulas of
 * docs/SIMULATION.md. */
#include <math.h>
#include "device/profile.h"
#include "tests/device_case.h"
#include "tests/sim_case.h"

/* ---- kernels of given costs ------------------------------------------------------------------ */

struct cost_args {
    struct kernel_cost cost;
};

static void declared_cost(const void *args, struct kernel_cost *cost)
{
    *cost = ((const struct cost_args *)args)->cost;
}

static void never_run(const void *args, const struct dev_team *team)
{
    (void)args;
    (void)team;
    printf("Bail out! the simulated device ran a kernel\n");
    exit(1);
}

static const struct kernel kernel_priced = {
    .name = "priced", .cpu = never_run, .cost = declared_cost};
static const struct kernel kernel_unpriced = {.name = "unpriced", .cpu = never_run};

static void launch(struct stream *stream, struct kernel_cost cost)
{
    struct cost_args args = {cost};
    dev_launch(stream, &kernel_priced, &args, sizeof args);
}

/* A kernel of so many seconds of the round machine's arithmetic or memory. */
static void compute(struct stream *stream, double seconds)
{
    launch(stream, (struct kernel_cost){.flops = 5e11 * seconds});
}

static void touch(struct stream *stream, double seconds)
{
    launch(stream, (struct kernel_cost){.bytes = 1e11 * seconds});
}

/* ---- devices --------------------------------------------------------------------------------- */

static struct device_case open_on(const struct profile *profile)
{
    return open_case((struct dev_config){.kind = DEV_SIM, .rank = 2, .profiles = profile}, 1);
}

/* Whether the device's clock stands at `seconds`, to the picosecond. */
static bool at(struct device *dev, double seconds)
{
    double clock_s = dev_clock_s(dev);
    bool good = fabs(clock_s - seconds) < 1e-12;
    if (!good)
        tap_note("the clock is at %.12g s, expected %.12g s", clock_s, seconds);
    return good;
}

#define LAUNCH 1e-6
#define COPY_LATENCY 3e-6

/* ---- what a call takes ----------------------------------------------------------------------- */

static void costs(void)
{
    struct profile profile = sim_case_profile();
    struct device_case it = open_on(&profile);
    struct stream *stream = dev_main_stream(it.dev);
    double now = 0;
    tap_ok(at(it.dev, 0), "the clock starts at 0");
    compute(stream, 1e-3);
    tap_ok(at(it.dev, now += 1e-3 + LAUNCH), "flops over rate x efficiency, and a launch");
    touch(stream, 1e-3);
    tap_ok(at(it.dev, now += 1e-3 + LAUNCH), "bytes over bandwidth, and a launch");
    launch(stream, (struct kernel_cost){.flops = 5e8, .bytes = 3e8});
    tap_ok(at(it.dev, now += 3e-3 + LAUNCH), "of both the longer one");
    launch(stream, (struct kernel_cost){.flops = 5e8, .m = 8, .n = 24, .k = 56});
    tap_ok(at(it.dev, now += 1e-3 / (8.0 / 16 * 24 / 32 * 56 / 64) + LAUNCH),
        "a small product below the rate of large ones");
    launch(stream, (struct kernel_cost){0});
    tap_ok(at(it.dev, now += LAUNCH), "nothing but a launch");
    close_case(&it);
}

static void copies(void)
{
    struct profile profile = sim_case_profile();
    struct device_case it = open_on(&profile);
    struct stream *stream = dev_main_stream(it.dev);
    const int64_t bytes = 4000000;
    char *block = dev_alloc(it.dev, 2 * bytes, LIVE_INPUT, "block");
    char *pinned = dev_host_alloc(it.dev, bytes, LIVE_INPUT, "pinned");
    double now = 0;
    dev_copy_h2d(stream, block, pinned, bytes);
    tap_ok(at(it.dev, now += 1e-3 + COPY_LATENCY), "h2d: latency and bytes over the link");
    dev_copy_d2h(stream, pinned, block, bytes);
    tap_ok(at(it.dev, now += 1e-3 + COPY_LATENCY), "d2h likewise");
    dev_copy_d2d(stream, block, block + bytes, bytes);
    tap_ok(at(it.dev, now += 2.0 * (double)bytes / 1e11 + LAUNCH), "d2d: read and written");
    dev_fill(stream, block, 0, bytes);
    tap_ok(at(it.dev, now += (double)bytes / 1e11 + LAUNCH), "fill: written");
    int32_t value = 0, simulated = 7;
    dev_fetch(stream, &value, block, 4, &simulated);
    tap_ok(value == 7 && at(it.dev, now += COPY_LATENCY + 1e-9),
        "fetch: a small copy, and the value that the schedule declares");
    dev_fetch(stream, &value, pinned, 4, &simulated);
    tap_ok(at(it.dev, now), "a fetch from pinned memory takes no time");
    close_case(&it);
}

/* The round machine's node has two ranks. */
static void host_kernels(void)
{
    struct profile profile = sim_case_profile();
    struct device_case it = open_on(&profile);
    struct stream *stream = dev_main_stream(it.dev);
    struct cost_args flops = {{.flops = 5e7}}, bytes = {{.bytes = 2e7}},
                     params = {{.params = 500000}};
    double now = 0;
    dev_launch_host(stream, &kernel_priced, &flops, sizeof flops);
    tap_ok(at(it.dev, now += 1e-3 + LAUNCH), "a host kernel has the rank's share of the cores");
    dev_launch_host(stream, &kernel_priced, &bytes, sizeof bytes);
    tap_ok(at(it.dev, now += 1e-3 + LAUNCH), "and of the host's memory");
    dev_launch_host(stream, &kernel_priced, &params, sizeof params);
    tap_ok(at(it.dev, now += 1e-3 + LAUNCH), "and of CPU AdamW");
    launch(stream, (struct kernel_cost){.params = 500000});
    tap_ok(at(it.dev, now += LAUNCH), "which is nothing to a device's kernel");
    close_case(&it);
}

/* ---- what waits for what --------------------------------------------------------------------- */

static void engines(void)
{
    struct profile profile = sim_case_profile();
    struct device_case it = open_on(&profile);
    struct stream *main = dev_main_stream(it.dev), *side = dev_stream(it.dev, "side");
    double now = 0;
    compute(main, 2e-3);
    touch(side, 1e-3);
    tap_ok(at(it.dev, now += 2e-3 + LAUNCH), "one computes while the other moves");
    compute(main, 2e-3);
    compute(side, 1e-3);
    tap_ok(at(it.dev, now += 3e-3 + LAUNCH), "two that compute share the device");
    touch(main, 2e-3);
    touch(side, 1e-3);
    tap_ok(at(it.dev, now += 3e-3 + LAUNCH), "two that move likewise");

    /* Enqueued first, ready last: what comes meanwhile is not held up, and does not hold it up. */
    struct stream *third = dev_stream(it.dev, "third");
    compute(third, 4e-3);
    dev_wait_stream(main, third);
    touch(main, 1e-3);
    touch(side, 6e-3);
    tap_ok(at(it.dev, now + 7e-3 + LAUNCH),
        "the later one is interrupted, and both are done with all the work");
    close_case(&it);
}

static void links(bool duplex)
{
    struct profile profile = sim_case_profile();
    profile.host_link_duplex = duplex;
    profile.host_memory_bytes_per_s = 1e12;
    struct device_case it = open_on(&profile);
    struct stream *up = dev_stream(it.dev, "up"), *down = dev_stream(it.dev, "down");
    const int64_t bytes = 4000000;
    char *block = dev_alloc(it.dev, 2 * bytes, LIVE_INPUT, "block");
    char *pinned = dev_host_alloc(it.dev, 2 * bytes, LIVE_INPUT, "pinned");
    dev_copy_h2d(up, block, pinned, bytes);
    dev_copy_d2h(down, pinned + bytes, block + bytes, bytes);
    double one = 1e-3 + COPY_LATENCY;
    tap_ok(at(it.dev, duplex ? one : 2 * one), "up and down on a link that is %s",
        duplex ? "duplex" : "not duplex");
    dev_copy_h2d(up, block, pinned, bytes);
    dev_copy_h2d(down, block + bytes, pinned + bytes, bytes);
    tap_ok(at(it.dev, (duplex ? 3 : 4) * one), "two copies of one direction follow one another");
    close_case(&it);
}

static void host_channel(void)
{
    struct profile profile = sim_case_profile();
    profile.host_memory_bytes_per_s = 1e10; /* 5e9 for each of two ranks */
    struct device_case it = open_on(&profile);
    struct stream *up = dev_stream(it.dev, "up"), *down = dev_stream(it.dev, "down");
    char *block = dev_alloc(it.dev, 8000000, LIVE_INPUT, "block");
    char *pinned = dev_host_alloc(it.dev, 8000000, LIVE_INPUT, "pinned");
    dev_copy_h2d(up, block, pinned, 4000000);
    dev_copy_d2h(down, pinned + 4000000, block + 4000000, 4000000);
    tap_ok(at(it.dev, 8e6 / 5e9), "both directions share the host's memory");
    close_case(&it);
}

static void events(void)
{
    struct profile profile = sim_case_profile();
    struct device_case it = open_on(&profile);
    struct stream *main = dev_main_stream(it.dev), *side = dev_stream(it.dev, "side");
    compute(main, 1e-3);
    struct event first = dev_record(main);
    compute(main, 1e-3);
    dev_wait(side, first);
    touch(side, 1e-3);
    struct event last = dev_record(side);
    dev_sync_event(first);
    dev_sync_event(last);
    double now = 2e-3 + 2 * LAUNCH;
    tap_ok(at(it.dev, now), "a stream waits for a point of another, not for its end");
    dev_wait(side, first);
    touch(side, 1e-3);
    tap_ok(at(it.dev, now += 1e-3 + LAUNCH), "an event that has passed long ago costs nothing");
    compute(main, 1e-3);
    dev_wait(side, (struct event){NULL, 0});
    dev_wait_stream(side, main);
    tap_ok(at(it.dev, now += 1e-3 + LAUNCH), "a wait takes no time itself");
    compute(dev_stream(it.dev, "new"), 1e-3);
    tap_ok(at(it.dev, now += 1e-3 + LAUNCH), "a new stream begins when the host has come to it");
    close_case(&it);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void memory(void)
{
    struct profile profile = sim_case_profile();
    struct device_case it = open_on(&profile);
    const int64_t most = profile.memory_bytes - profile.reserved_memory_bytes;
    char *all = dev_alloc(it.dev, most, LIVE_WEIGHTS, "all");
    tap_ok(all && (uintptr_t)all % 256 == 0 && !dev_alloc(it.dev, 1, LIVE_LOGITS, "one more"),
        "a schedule has all memory but what is reserved");
    tap_ok(failed_with(it.dev, DEV_OUT_OF_MEMORY, "live set logits (one more)"),
        "the failure names the live set");
    close_case(&it);

    it = open_case((struct dev_config){.kind = DEV_SIM,
                       .device_limit_bytes = 1000,
                       .host_limit_bytes = 500,
                       .profiles = &profile},
        1);
    tap_ok(dev_alloc(it.dev, 1000, LIVE_INPUT, "a") &&
               dev_host_alloc(it.dev, 500, LIVE_INPUT, "b") &&
               !dev_host_alloc(it.dev, 1, LIVE_INPUT, "c"),
        "a limit that is given replaces the machine's");
    close_case(&it);

    it = open_on(&profile);
    tap_ok(!dev_host_alloc(it.dev, profile.host_memory_bytes / 2 + 1, LIVE_INPUT, "share") &&
               failed_with(it.dev, DEV_OUT_OF_MEMORY, "pinned host memory"),
        "pinned memory is limited by the rank's share of the host's");
    close_case(&it);
}

static void contents(void)
{
    struct profile profile = sim_case_profile();
    struct device_case it = open_on(&profile);
    unsigned char bytes[64], ones[64];
    memset(ones, 1, sizeof ones);
    memset(bytes, 2, sizeof bytes);
    char *block = dev_alloc(it.dev, 64, LIVE_INPUT, "block");
    dev_write(it.dev, block, ones, 64);
    dev_read(it.dev, bytes, block, 64);
    int64_t sum = 0;
    for (int i = 0; i < 64; i++)
        sum += bytes[i];
    tap_ok(
        sum == 0 && at(it.dev, 0), "what is written is nowhere, what is read are zeros, no time");
    int64_t huge = INT64_C(1) << 30;
    unsigned char *pinned = dev_host_alloc(it.dev, huge, LIVE_INPUT, "huge");
    tap_ok(
        pinned && pinned[0] == 0 && pinned[huge - 1] == 0, "1 GiB of pinned memory read as zeros");
    if (pinned)
        pinned[huge / 2] = 9;
    tap_ok(pinned && pinned[huge / 2] == 9, "and keep what the host writes");
    dev_host_free(it.dev, pinned);
    pinned = dev_host_alloc(it.dev, huge, LIVE_INPUT, "again");
    tap_ok(pinned && pinned[huge / 2] == 0, "until they are freed");
    close_case(&it);
}

/* ---- refused --------------------------------------------------------------------------------- */

static bool refused(struct dev_config config, const char *words)
{
    struct device *dev = NULL;
    char error[256] = "";
    config.kind = DEV_SIM;
    enum dev_status status = dev_open(&config, &dev, error, sizeof error);
    bool good = status == DEV_FAILED && !dev && strstr(error, words);
    if (!good)
        tap_note("status %d, '%s'; expected '%s'", status, error, words);
    if (dev)
        dev_close(dev);
    return good;
}

static void refusals(void)
{
    struct profile profile = sim_case_profile();
    tap_ok(refused((struct dev_config){.rank = 0}, "has the profiles of 0"), "no profile");
    tap_ok(refused((struct dev_config){.profiles = &profile, .machines = DEV_MACHINES_MAX + 1},
               "1 to 12 machines"),
        "more machines than there may be");
    tap_ok(refused((struct dev_config){.profiles = &profile, .d2h_bytes_per_s = 1e9}, "paced"),
        "paced copies");
    struct device_case it = open_on(&profile);
    dev_launch(dev_main_stream(it.dev), &kernel_unpriced, "", 1);
    tap_ok(failed_with(it.dev, DEV_FAILED, "kernel 'unpriced' declares no cost"),
        "a kernel without a cost");
    close_case(&it);
    it = open_on(&profile);
    for (int i = 0; i < 3; i++)
        compute(dev_main_stream(it.dev), 4e5);
    tap_ok(failed_with(it.dev, DEV_FAILED, "passes 10^6 s"), "a clock that would overflow");
    struct event failed = dev_record(dev_main_stream(it.dev));
    dev_sync_event(failed);
    tap_ok(dev_sync(it.dev) == DEV_FAILED, "waits end after a failure");
    close_case(&it);
}

/* ---- traces and machines --------------------------------------------------------------------- */

static void traces(void)
{
    struct profile profile = sim_case_profile();
    struct trace *trace = trace_create();
    struct device_case it =
        open_case((struct dev_config){.kind = DEV_SIM, .profiles = &profile, .trace = trace}, 1);
    struct stream *main = dev_main_stream(it.dev), *side = dev_stream(it.dev, "side");
    compute(main, 1e-3);
    dev_wait_stream(side, main);
    touch(side, 1e-3);
    int64_t count;
    const struct trace_span *spans = trace_spans(trace, &count);
    tap_ok(count == 3 && spans[0].kind == TRACE_KERNEL && spans[1].kind == TRACE_WAIT &&
               spans[2].kind == TRACE_KERNEL && fabs(spans[0].begin_s) < 1e-12 &&
               fabs(spans[0].end_s - (1e-3 + LAUNCH)) < 1e-12 &&
               fabs(spans[2].begin_s - spans[0].end_s) < 1e-12 && !strcmp(spans[2].stream, "side"),
        "a trace has simulated times");
    close_case(&it);
    trace_free(trace);
}

static void machines(void)
{
    struct profile profiles[2] = {sim_case_profile(), sim_case_profile()};
    profiles[1] = profile_scaled(&profiles[0], PROFILE_ARITHMETIC, 2);
    struct device_case it =
        open_case((struct dev_config){.kind = DEV_SIM, .profiles = profiles, .machines = 2}, 1);
    compute(dev_main_stream(it.dev), 1e-3);
    touch(dev_main_stream(it.dev), 1e-3);
    tap_ok(at(it.dev, 2e-3 + 2 * LAUNCH), "the first machine is the device's");
    tap_ok(fabs(dev_clock_on_s(it.dev, 1) - (1.5e-3 + LAUNCH)) < 1e-12,
        "the second one's clock runs beside it");
    close_case(&it);
}

int main(void)
{
    costs();
    copies();
    host_kernels();
    engines();
    links(true);
    links(false);
    host_channel();
    events();
    memory();
    contents();
    refusals();
    traces();
    machines();
    return tap_done();
}
