/* Streams really run beside each other: a paced copy up, a paced copy down and a kernel on three
 * streams take little longer than the longest of them; and paced copies keep their pace. */
#include "tests/device_case.h"

enum { BYTES = 1 << 20 };
#define COPY_S 0.04
static const double RATE = BYTES / COPY_S;
#define KERNEL_S 0.04
#define PATIENCE_S 3 /* for a quiet moment, when others use the cores */

struct scene {
    struct stream *main, *up, *down;
    char *device_up, *device_down, *spare, *host_up, *host_down;
    int32_t *work;
};

static struct scene set_scene(struct device *dev)
{
    struct scene scene = {.main = dev_main_stream(dev),
        .up = dev_stream(dev, "up"),
        .down = dev_stream(dev, "down"),
        .device_up = dev_alloc(dev, BYTES, LIVE_STAGING, "up"),
        .device_down = dev_alloc(dev, BYTES, LIVE_STAGING, "down"),
        .spare = dev_alloc(dev, BYTES, LIVE_STAGING, "spare"),
        .host_up = dev_host_alloc(dev, BYTES, LIVE_STAGING, "up"),
        .host_down = dev_host_alloc(dev, BYTES, LIVE_STAGING, "down"),
        .work = dev_alloc(dev, 1024, LIVE_WORKSPACE, "work")};
    dev_fill(scene.main, scene.device_up, 1, BYTES);
    dev_fill(scene.main, scene.device_down, 1, BYTES);
    dev_sync(dev);
    memset(scene.host_up, 1, BYTES);
    memset(scene.host_down, 1, BYTES);
    return scene;
}

static void enqueue_all(struct scene *it)
{
    dev_copy_h2d(it->up, it->device_up, it->host_up, BYTES);
    dev_copy_d2h(it->down, it->host_down, it->device_down, BYTES);
    launch_shift(it->main, (struct shift_args){it->work, it->work, 256, 1, KERNEL_S});
}

/* The longest span, all spans together, and the time from the first begin to the last end. */
static void measure(const struct trace *trace, double *longest_s, double *sum_s, double *whole_s)
{
    int64_t count = 0;
    const struct trace_span *spans = trace_spans(trace, &count);
    double begin_s = 1e9, end_s = 0;
    *longest_s = *sum_s = 0;
    for (int64_t i = 0; i < count; i++) {
        if (spans[i].kind == TRACE_WAIT)
            continue;
        double length_s = spans[i].end_s - spans[i].begin_s;
        *sum_s += length_s;
        *longest_s = length_s > *longest_s ? length_s : *longest_s;
        begin_s = spans[i].begin_s < begin_s ? spans[i].begin_s : begin_s;
        end_s = spans[i].end_s > end_s ? spans[i].end_s : end_s;
    }
    *whole_s = end_s - begin_s;
}

static void test_three_streams(bool serial)
{
    struct trace *trace = trace_create();
    struct dev_config config = {.kind = DEV_CPU,
        .trace = trace,
        .h2d_bytes_per_s = RATE,
        .d2h_bytes_per_s = RATE,
        .serial_streams = serial};
    struct device_case it = open_case(config, 1);
    struct scene scene = set_scene(it.dev);
    double best = 1e9, longest_s = 0, sum_s = 0, whole_s = 0, shared_s = 0;
    double give_up_s = timing_now_s() + PATIENCE_S;
    while (best > 1.2 && timing_now_s() < give_up_s) {
        trace_clear(trace);
        enqueue_all(&scene);
        dev_sync(it.dev);
        measure(trace, &longest_s, &sum_s, &whole_s);
        shared_s = trace_overlap_s(trace, 0, TRACE_COPY, TRACE_KERNEL);
        best = whole_s / longest_s < best ? whole_s / longest_s : best;
        if (serial)
            break;
    }
    if (serial) {
        tap_ok(shared_s == 0 && whole_s >= 0.999 * sum_s,
            "serial streams: nothing overlaps, the whole is %.2f times the longest", best);
    } else {
        tap_ok(best <= 1.2, "two copies and a kernel: the whole is %.3f times the longest", best);
        tap_ok(shared_s > 0.5 * KERNEL_S, "copies and kernel share %.1f ms", shared_s * 1e3);
    }
    close_case(&it);
    trace_free(trace);
}

static double time_copies(struct device *dev, struct scene *it, int up, int down)
{
    dev_sync(dev);
    double begin_s = timing_now_s();
    for (int i = 0; i < up; i++)
        dev_copy_h2d(
            i % 2 ? it->main : it->up, i % 2 ? it->spare : it->device_up, it->host_up, BYTES);
    for (int i = 0; i < down; i++)
        dev_copy_d2h(it->down, it->host_down, it->device_down, BYTES);
    dev_sync(dev);
    return timing_now_s() - begin_s;
}

static void test_pace(void)
{
    struct dev_config config = {
        .kind = DEV_CPU, .h2d_bytes_per_s = RATE, .d2h_bytes_per_s = 2 * RATE};
    struct device_case it = open_case(config, 1);
    struct scene scene = set_scene(it.dev);
    static const struct {
        const char *name;
        int up, down;
        double expected_s;
    } cases[] = {
        {"a copy up", 1, 0, COPY_S},
        {"a copy down, twice the rate", 0, 1, COPY_S / 2},
        {"two copies up, on two streams, share the way", 2, 0, 2 * COPY_S},
        {"one up and two down at a time", 1, 2, COPY_S},
    };
    for (int c = 0; c < 4; c++) {
        double best_s = 1e9;
        bool early = false;
        double give_up_s = timing_now_s() + PATIENCE_S;
        while (best_s > 1.02 * cases[c].expected_s && timing_now_s() < give_up_s) {
            double seconds = time_copies(it.dev, &scene, cases[c].up, cases[c].down);
            early |= seconds < cases[c].expected_s;
            best_s = seconds < best_s ? seconds : best_s;
        }
        tap_ok(!early && best_s < 1.1 * cases[c].expected_s, "%s: %.3f ms of %.3f", cases[c].name,
            best_s * 1e3, cases[c].expected_s * 1e3);
    }
    close_case(&it);
}

int main(void)
{
    test_three_streams(false);
    test_three_streams(true);
    test_pace();
    return tap_done();
}
