/* The CUDA device beneath the kernels: memory and its reuse, pinned blocks, streams and events,
 * work that is left to the host, values that are fetched, what a trace shows, and what the driver
 * says. */
#include "tests/device_case.h"

enum { COUNT = 3000 };

static const struct dev_config plain = {.kind = DEV_CUDA, .check_order = true};

static void fill_numbers(int32_t *values, int32_t first)
{
    for (int32_t i = 0; i < COUNT; i++)
        values[i] = first + i;
}

static bool are_numbers(const int32_t *values, int32_t first)
{
    for (int32_t i = 0; i < COUNT; i++)
        if (values[i] != first + i)
            return false;
    return true;
}

/* Up on one stream, across on another, down on a third, each behind the one before. */
static void test_streams(void)
{
    struct device_case it = open_case(plain, 2);
    int64_t bytes = COUNT * (int64_t)sizeof(int32_t);
    int32_t *from = dev_host_alloc(it.dev, bytes, LIVE_STAGING, "from");
    int32_t *to = dev_host_alloc(it.dev, bytes, LIVE_STAGING, "to");
    struct stream *streams[] = {
        dev_stream(it.dev, "up"), dev_stream(it.dev, "across"), dev_stream(it.dev, "down")};
    bool right = true;
    for (int round = 0; round < 20; round++) {
        int32_t *a = dev_alloc(it.dev, bytes, LIVE_RING, "a");
        int32_t *b = dev_alloc(it.dev, bytes, LIVE_RING, "b");
        fill_numbers(from, round);
        dev_wait_stream(streams[0], dev_main_stream(it.dev));
        dev_copy_h2d(streams[0], a, from, bytes);
        struct event up = dev_record(streams[0]);
        dev_fill(dev_main_stream(it.dev), dev_alloc(it.dev, 8, LIVE_RING, "beside"), 0, 8);
        dev_wait(streams[1], up);
        dev_wait_stream(streams[1], dev_main_stream(it.dev));
        dev_copy_d2d(streams[1], b, a, bytes);
        dev_wait_stream(streams[2], streams[1]);
        dev_copy_d2h(streams[2], to, b, bytes);
        for (int i = 0; i < 3; i++)
            dev_wait_stream(dev_main_stream(it.dev), streams[i]);
        dev_free(it.dev, a);
        dev_free(it.dev, b);
        dev_sync_event(dev_record(streams[2]));
        dev_sync_event(up);
        right &= are_numbers(to, round);
        dev_sync(it.dev);
    }
    tap_ok(right && dev_status(it.dev) == DEV_OK, "copies on three streams, ordered by events: %s",
        dev_message(it.dev));
    int32_t value = 0;
    dev_fetch(streams[2], &value, to + 7, sizeof value, NULL);
    tap_ok(value == 19 + 7, "a value fetched from a pinned block");
    close_case(&it);
}

/* A kernel of the host between copies, in stream order. */
static void test_host_work(void)
{
    static const struct kernel kernel = {.name = "shift", .cpu = shift_cpu, .access = shift_access};
    struct device_case it = open_case(plain, 2);
    int64_t bytes = COUNT * (int64_t)sizeof(int32_t);
    struct stream *stream = dev_main_stream(it.dev);
    int32_t *block = dev_alloc(it.dev, bytes, LIVE_RING, "block");
    int32_t *host = dev_host_alloc(it.dev, bytes, LIVE_STAGING, "host");
    fill_numbers(host, 5);
    struct shift_args args = {host, host, COUNT, 100, 0.01};
    dev_launch_host(stream, &kernel, &args, sizeof args);
    dev_copy_h2d(stream, block, host, bytes);
    dev_sync(it.dev);
    fill_numbers(host, 0);
    dev_read(it.dev, host, block, bytes);
    tap_ok(are_numbers(host, 105), "work left to the host runs in stream order: %s",
        dev_message(it.dev));
    close_case(&it);
}

static void test_memory(void)
{
    struct dev_config config = plain;
    config.device_limit_bytes = 1 << 20;
    struct device_case it = open_case(config, 1);
    tap_ok(dev_driver_bytes(it.dev) >= 0, "the driver tells what is in use");
    char *nothing = dev_alloc(it.dev, 0, LIVE_RING, "nothing");
    char *other = dev_alloc(it.dev, 0, LIVE_RING, "nothing else");
    tap_ok(nothing && other && nothing != other, "blocks of no bytes have addresses of their own");
    char *block = dev_alloc(it.dev, 1 << 20, LIVE_RING, "all");
    unsigned char first = 0;
    dev_read(it.dev, &first, block + 12345, 1);
    tap_ok(block && (uintptr_t)block % 256 == 0 && first == 0xff,
        "a new block is aligned and, checked, holds NaN");
    tap_ok(dev_driver_bytes(it.dev) >= 1 << 20, "the driver has seen the block");
    void *pinned = dev_host_alloc(it.dev, 777, LIVE_STAGING, "pinned");
    dev_host_free(it.dev, pinned);
    tap_ok(dev_host_alloc(it.dev, 777, LIVE_STAGING, "again") == pinned,
        "a pinned block is handed out again");
    dev_alloc(it.dev, 1, LIVE_LOGITS, "one more");
    tap_ok(
        failed_with(it.dev, DEV_OUT_OF_MEMORY, "one more"), "the limit: %s", dev_message(it.dev));
    close_case(&it);
}

/* The spans of the kind and name of rank 3. */
static int count_spans(const struct trace *trace, enum trace_kind kind, const char *name)
{
    int64_t count;
    const struct trace_span *spans = trace_spans(trace, &count);
    int found = 0;
    for (int64_t i = 0; i < count; i++)
        found += spans[i].rank == 3 && spans[i].kind == kind && !strcmp(spans[i].name, name) &&
                 spans[i].begin_s <= spans[i].end_s;
    return found;
}

static void test_trace(void)
{
    struct trace *trace = trace_create();
    struct dev_config config = plain;
    config.rank = 3;
    config.trace = trace;
    double begin_s = timing_now_s();
    struct device_case it = open_case(config, 1);
    struct stream *side = dev_stream(it.dev, "side");
    char *block = dev_alloc(it.dev, 4096, LIVE_RING, "block");
    char *host = dev_host_alloc(it.dev, 4096, LIVE_STAGING, "host");
    memset(host, 1, 4096);
    dev_fill(dev_main_stream(it.dev), block, 0, 4096);
    dev_wait_stream(side, dev_main_stream(it.dev));
    dev_copy_h2d(side, block, host, 4096);
    dev_copy_d2h(side, host, block, 4096);
    dev_phase(it.dev, "forward");
    dev_sync(it.dev);
    dev_phase(it.dev, NULL);
    tap_ok(count_spans(trace, TRACE_COPY, "h2d") == 1 &&
               count_spans(trace, TRACE_COPY, "d2h") == 1 &&
               count_spans(trace, TRACE_KERNEL, "fill") == 1 && !trace_lost(trace),
        "copies and kernels are in the trace once all streams are done");
    int64_t count;
    const struct trace_span *spans = trace_spans(trace, &count);
    bool timely = count > 0;
    for (int64_t i = 0; i < count; i++)
        timely &= spans[i].begin_s > begin_s - 1e-3 && spans[i].end_s < timing_now_s() + 1e-3;
    tap_ok(timely, "their times are the host's");
    trace_clear(trace);
    dev_copy_d2h(side, host, block, 4096);
    close_case(&it);
    tap_ok(count_spans(trace, TRACE_COPY, "d2h") == 1, "closing shows the rest");
    trace_free(trace);
}

int main(void)
{
    struct dev_facts facts;
    char error[256] = "";
    if (dev_facts(DEV_CUDA, &facts, error, sizeof error) != DEV_OK) {
        tap_skip(error, "the CUDA device");
        return tap_done();
    }
    test_streams();
    test_host_work();
    test_memory();
    test_trace();
    return tap_done();
}
