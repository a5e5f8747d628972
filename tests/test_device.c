/* One rank's device: memory and its accounts, streams and events, copies, launches, failures. */
#include <sys/mman.h>
#include <sys/resource.h>
#include "device/arena.h"
#include "tests/device_case.h"

static const struct dev_config plain = {.kind = DEV_CPU, .rank = 3};

static bool mapping_works(size_t bytes)
{
    void *mapping = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mapping != MAP_FAILED && !munmap(mapping, bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_accounts(void)
{
    struct device_case it = open_case(plain, 1);
    struct mem_probe *probe = dev_memory(it.dev);
    void *a = dev_alloc(it.dev, 1000, LIVE_WEIGHTS, "a");
    void *b = dev_alloc(it.dev, 24, LIVE_LOGITS, "b");
    tap_ok(a && b && a != b, "blocks are distinct");
    tap_ok((uintptr_t)a % 256 == 0 && (uintptr_t)b % 256 == 0, "blocks are 256-byte aligned");
    tap_ok(probe->live_bytes == 1024, "requested bytes are counted, not rounded ones");
    tap_ok(probe->set_bytes[LIVE_LOGITS] == 24, "each live set has its own count");
    dev_free(it.dev, a);
    tap_ok(
        probe->live_bytes == 24 && probe->window.peak_bytes == 1024, "free lowers live, not peak");
    void *c = dev_alloc(it.dev, 1000, LIVE_RING, "c");
    tap_ok(c == a, "a freed block is handed out again");
    void *p = dev_host_alloc(it.dev, 77, LIVE_STAGING, "p");
    tap_ok(p && dev_host_memory(it.dev)->live_bytes == 77 && probe->live_bytes == 1024,
        "pinned memory has accounts of its own");
    dev_host_free(it.dev, p);
    dev_free(it.dev, b);
    dev_free(it.dev, c);
    dev_free(it.dev, NULL);
    tap_ok(probe->live_bytes == 0 && dev_host_memory(it.dev)->live_bytes == 0, "all is given back");
    tap_ok(dev_status(it.dev) == DEV_OK && !*dev_message(it.dev), "nothing failed");
    close_case(&it);
}

static void test_zero_bytes(void)
{
    struct device_case it = open_case(plain, 1);
    void *a = dev_alloc(it.dev, 0, LIVE_INPUT, "none");
    void *b = dev_alloc(it.dev, 0, LIVE_INPUT, "none");
    tap_ok(a && b && a != b, "blocks of 0 bytes have addresses of their own");
    dev_copy_d2d(dev_main_stream(it.dev), a, b, 0);
    dev_fill(dev_main_stream(it.dev), a, 0, 0);
    dev_write(it.dev, a, NULL, 0);
    dev_free(it.dev, a);
    dev_free(it.dev, b);
    tap_ok(dev_sync(it.dev) == DEV_OK, "operations on 0 bytes are nothing");
    close_case(&it);
}

/* What was enqueued on the main stream before a free still sees the old contents. */
static void test_reuse(void)
{
    struct device_case it = open_case(plain, 1);
    struct stream *main_stream = dev_main_stream(it.dev);
    int32_t first = 0, second = 0;
    int32_t *kept = dev_alloc(it.dev, 8, LIVE_OUTPUT, "kept");
    int32_t *a = dev_alloc(it.dev, 4, LIVE_INPUT, "a");
    dev_fill(main_stream, a, 0, 4);
    launch_shift(main_stream, (struct shift_args){a, kept, 1, 5, 0.02});
    dev_free(it.dev, a);
    int32_t *b = dev_alloc(it.dev, 4, LIVE_INPUT, "b");
    dev_fill(main_stream, b, 1, 4);
    launch_shift(main_stream, (struct shift_args){b, kept + 1, 1, 0, 0});
    dev_read(it.dev, &first, kept, 4);
    dev_read(it.dev, &second, kept + 1, 4);
    tap_ok(first == 5 && second == 0x01010101, "reuse follows the main stream's order");
    close_case(&it);
}

/* Blocks of random sizes never overlap, keep what is written to them, and the accounts add up. */
static void test_random_blocks(void)
{
    struct device_case it = open_case(plain, 1);
    struct {
        unsigned char *address;
        int64_t bytes;
    } live[64] = {{0}};
    uint64_t random = 1;
    int64_t total = 0, damaged = 0, wrong = 0;
    for (int step = 0; step < 4000; step++) {
        int i = (int)(next_random(&random) % 64);
        if (live[i].address) {
            for (int64_t k = 0; k < live[i].bytes; k++)
                damaged += live[i].address[k] != i;
            dev_free(it.dev, live[i].address);
            total -= live[i].bytes;
            live[i].address = NULL;
        } else {
            live[i].bytes = (int64_t)(next_random(&random) % 3000);
            live[i].address = dev_alloc(it.dev, live[i].bytes, LIVE_RING, "random");
            memset(live[i].address, i, (size_t)live[i].bytes);
            total += live[i].bytes;
        }
        wrong += dev_memory(it.dev)->live_bytes != total;
    }
    tap_ok(!damaged, "4000 random allocations and frees never overlap");
    tap_ok(!wrong && dev_status(it.dev) == DEV_OK, "and the accounts are exact at every step");
    close_case(&it);
}

static void test_limit(void)
{
    struct dev_config config = plain;
    config.device_limit_bytes = 1000;
    config.host_limit_bytes = 10;
    struct device_case it = open_case(config, 1);
    void *a = dev_alloc(it.dev, 1000, LIVE_WEIGHTS, "all of it");
    tap_ok(a && dev_status(it.dev) == DEV_OK, "a request may reach the limit");
    void *b = dev_alloc(it.dev, 1, LIVE_LOGITS, "one more");
    tap_ok(!b && failed_with(it.dev, DEV_OUT_OF_MEMORY, "logits"), "one byte more fails");
    tap_ok(strstr(dev_message(it.dev), "one more") && strstr(dev_message(it.dev), "rank 3"),
        "the message names label and rank: %s", dev_message(it.dev));
    tap_ok(dev_memory(it.dev)->failure.set == LIVE_LOGITS &&
               dev_memory(it.dev)->failure.requested_bytes == 1,
        "the failed request is kept");
    dev_free(it.dev, a);
    tap_ok(!dev_alloc(it.dev, 1, LIVE_WEIGHTS, "later"), "the failure is sticky");
    close_case(&it);

    it = open_case(config, 1);
    tap_ok(!dev_host_alloc(it.dev, 11, LIVE_STAGING, "pinned") &&
               failed_with(it.dev, DEV_OUT_OF_MEMORY, "staging"),
        "pinned memory has a limit of its own");
    close_case(&it);
}

/* The arena by itself: pieces are apart, holes join again. */
static void test_arena(void)
{
    enum { PIECES = 100, SPACE = 1 << 20 };
    struct arena arena;
    uintptr_t pieces[PIECES] = {0};
    int64_t sizes[PIECES];
    uint64_t random = 9;
    int overlaps = 0, outside = 0, refused = 0;
    bool opened = arena_init(&arena, 4096, SPACE, 0);
    for (int step = 0; opened && step < 20000; step++) {
        int i = (int)(next_random(&random) % PIECES);
        if (pieces[i]) {
            arena_give(&arena, pieces[i], sizes[i]);
            pieces[i] = 0;
            continue;
        }
        sizes[i] = (int64_t)(next_random(&random) % 40000);
        pieces[i] = arena_take(&arena, sizes[i]);
        refused += !pieces[i];
        outside += pieces[i] && (pieces[i] < 4096 || pieces[i] % 256 ||
                                    pieces[i] + (uintptr_t)sizes[i] > 4096 + SPACE);
        for (int k = 0; pieces[i] && k < PIECES; k++)
            overlaps += k != i && pieces[k] && pieces[k] < pieces[i] + (uintptr_t)sizes[i] &&
                        pieces[i] < pieces[k] + (uintptr_t)sizes[k];
    }
    tap_ok(opened && !overlaps && !outside, "pieces of an arena are inside and apart");
    tap_ok(refused > 0, "a full arena says so (%d times)", refused);
    for (int i = 0; i < PIECES; i++) {
        if (pieces[i])
            arena_give(&arena, pieces[i], sizes[i]);
    }
    tap_ok(arena.count == 1 && arena_take(&arena, SPACE) == 4096, "all holes join to one");
    arena_destroy(&arena);
}

/* Where addresses are scarce, arenas are small, but there is room for many. */
static void test_limited_address_space(void)
{
    enum { DEVICES = 8 };
    struct rlimit unlimited, limited;
    struct device_case it[DEVICES];
    getrlimit(RLIMIT_AS, &unlimited);
    limited = unlimited;
    limited.rlim_cur = (rlim_t)3 << 30;
    if (setrlimit(RLIMIT_AS, &limited) || !mapping_works((size_t)2 << 30)) {
        setrlimit(RLIMIT_AS, &unlimited);
        tap_skip("the sanitizer needs the addresses", "a limited address space");
        return;
    }
    int works = 0;
    for (int i = 0; i < DEVICES; i++) {
        it[i] = open_case(plain, 1);
        char *a = dev_alloc(it[i].dev, (int64_t)50 << 20, LIVE_INPUT, "a");
        dev_fill(dev_main_stream(it[i].dev), a, i, 1000);
        works += dev_sync(it[i].dev) == DEV_OK && a[999] == i;
    }
    setrlimit(RLIMIT_AS, &unlimited);
    tap_ok(works == DEVICES, "eight devices work in 3 GiB of addresses");
    for (int i = 0; i < DEVICES; i++)
        close_case(&it[i]);
}

/* ---- what must fail -------------------------------------------------------------------------- */

static void free_twice(struct device *dev)
{
    void *a = dev_alloc(dev, 64, LIVE_INPUT, "twice");
    dev_free(dev, a);
    dev_free(dev, a);
}

static void free_foreign(struct device *dev)
{
    int foreign;
    dev_free(dev, &foreign);
}

static void free_inside(struct device *dev)
{
    char *a = dev_alloc(dev, 64, LIVE_INPUT, "whole");
    dev_free(dev, a + 8);
}

static void free_pinned_as_device(struct device *dev)
{
    dev_free(dev, dev_host_alloc(dev, 64, LIVE_STAGING, "pinned"));
}

static void allocate_negative(struct device *dev)
{
    dev_alloc(dev, -1, LIVE_INPUT, "less than nothing");
}

static void allocate_everything(struct device *dev)
{
    dev_alloc(dev, INT64_MAX / 2, LIVE_INPUT, "the world");
}

static void copy_from_ordinary(struct device *dev)
{
    char ordinary[8] = {0};
    dev_copy_h2d(dev_main_stream(dev), dev_alloc(dev, 8, LIVE_INPUT, "a"), ordinary, 8);
}

static void copy_to_ordinary(struct device *dev)
{
    char ordinary[8] = {0};
    dev_copy_d2h(dev_main_stream(dev), ordinary, dev_alloc(dev, 8, LIVE_INPUT, "a"), 8);
}

static void copy_past_the_end(struct device *dev)
{
    char *a = dev_alloc(dev, 8, LIVE_INPUT, "short");
    dev_copy_d2d(dev_main_stream(dev), a, dev_alloc(dev, 16, LIVE_INPUT, "long"), 9);
}

static void copy_from_freed(struct device *dev)
{
    char *a = dev_alloc(dev, 8, LIVE_INPUT, "a"), *b = dev_alloc(dev, 8, LIVE_INPUT, "gone");
    dev_free(dev, b);
    dev_copy_d2d(dev_main_stream(dev), a, b, 8);
}

static void copy_overlapping(struct device *dev)
{
    char *a = dev_alloc(dev, 64, LIVE_INPUT, "a");
    dev_copy_d2d(dev_main_stream(dev), a, a + 8, 16);
}

static void fill_negative(struct device *dev)
{
    dev_fill(dev_main_stream(dev), dev_alloc(dev, 8, LIVE_INPUT, "a"), 0, -8);
}

static void write_past_the_end(struct device *dev)
{
    char bytes[9] = {0};
    dev_write(dev, dev_alloc(dev, 8, LIVE_INPUT, "short"), bytes, 9);
}

static void fetch_too_much(struct device *dev)
{
    static char to[DEV_FETCH_MAX + 1];
    char *a = dev_alloc(dev, sizeof to, LIVE_INPUT, "a");
    dev_fetch(dev_main_stream(dev), to, a, sizeof to, to);
}

static void launch_too_many_arguments(struct device *dev)
{
    static const struct kernel kernel = {.name = "wide", .cpu = shift_cpu};
    char args[DEV_ARGS_MAX + 1] = {0};
    dev_launch(dev_main_stream(dev), &kernel, args, sizeof args);
}

static void open_too_many_streams(struct device *dev)
{
    static char names[DEV_STREAMS_MAX][8];
    for (int i = 0; i < DEV_STREAMS_MAX; i++) {
        snprintf(names[i], sizeof names[i], "s%d", i);
        dev_stream(dev, names[i]);
    }
}

static void test_faults(void)
{
    static const struct {
        const char *name;
        void (*act)(struct device *dev);
        enum dev_status status;
        const char *words;
    } faults[] = {
        {"freeing twice", free_twice, DEV_FAILED, "'twice' is freed twice"},
        {"freeing a foreign pointer", free_foreign, DEV_FAILED, "not a block"},
        {"freeing inside a block", free_inside, DEV_FAILED, "inside block 'whole'"},
        {"dev_free of pinned memory", free_pinned_as_device, DEV_FAILED, "not a block"},
        {"a negative size", allocate_negative, DEV_FAILED, "-1 bytes"},
        {"more than the address space", allocate_everything, DEV_OUT_OF_MEMORY, "the world"},
        {"h2d from ordinary memory", copy_from_ordinary, DEV_FAILED, "pinned host memory"},
        {"d2h to ordinary memory", copy_to_ordinary, DEV_FAILED, "pinned host memory"},
        {"a copy past the end", copy_past_the_end, DEV_FAILED, "block 'short', which has 8"},
        {"a copy from a freed block", copy_from_freed, DEV_FAILED, "'gone', which was freed"},
        {"a copy onto itself", copy_overlapping, DEV_FAILED, "overlap"},
        {"a fill of negative size", fill_negative, DEV_FAILED, "-8 bytes"},
        {"a write past the end", write_past_the_end, DEV_FAILED, "block 'short', which has 8"},
        {"a fetch of too much", fetch_too_much, DEV_FAILED, "allowed: 4096"},
        {"too many arguments", launch_too_many_arguments, DEV_FAILED, "'wide' has 385 bytes"},
        {"too many streams", open_too_many_streams, DEV_FAILED, "allowed: 16"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct device_case it = open_case(plain, 1);
        faults[i].act(it.dev);
        tap_ok(
            failed_with(it.dev, faults[i].status, faults[i].words), "refused: %s", faults[i].name);
        close_case(&it);
    }
}

static void count_call(void *context)
{
    ++*(int *)context;
}

static void test_sticky_failure(void)
{
    struct device_case it = open_case(plain, 1);
    int calls = 0;
    int32_t value = 7;
    dev_on_failure(it.dev, count_call, &calls);
    int32_t *a = dev_alloc(it.dev, 4, LIVE_INPUT, "a");
    struct stream *side = dev_stream(it.dev, "side");
    struct stream *main_stream = dev_main_stream(it.dev);
    dev_write(it.dev, a, &value, 4);
    launch_shift(side, (struct shift_args){a, a, 1, 1, 0.05});
    launch_shift(side, (struct shift_args){a, a, 1, 100, 0});
    dev_fail(it.dev, DEV_FAILED, "number %d", 1);
    dev_fail(it.dev, DEV_OUT_OF_MEMORY, "number %d", 2);
    tap_ok(failed_with(it.dev, DEV_FAILED, "number 1"), "the first failure is kept");
    tap_ok(calls == 1, "and told once");
    struct event event = dev_record(side);
    launch_shift(main_stream, (struct shift_args){a, a, 1, 1, 0});
    dev_wait(main_stream, event);
    dev_sync_event(event);
    tap_ok(dev_sync(it.dev) == DEV_FAILED, "waiting for what is enqueued still ends");
    tap_ok(!dev_stream(it.dev, "late") && !dev_alloc(it.dev, 4, LIVE_INPUT, "late"),
        "later calls give NULL");
    dev_read(it.dev, &value, a, 4);
    dev_free(it.dev, a);
    tap_ok(value == 7 && dev_memory(it.dev)->live_bytes == 4, "later calls do nothing");
    tap_ok(*a < 100, "what was enqueued but not begun is left out");
    dev_on_failure(it.dev, count_call, &calls);
    tap_ok(calls == 2, "who asks late is told at once");
    close_case(&it);
}

static void test_null_streams(void)
{
    struct event none = dev_record(NULL);
    char byte = 0;
    dev_wait(NULL, none);
    dev_wait_stream(NULL, NULL);
    dev_sync_event(none);
    dev_copy_d2d(NULL, &byte, &byte, 1);
    dev_fill(NULL, &byte, 1, 1);
    launch_shift(NULL, (struct shift_args){0});
    tap_ok(!none.stream && !stream_device(NULL) && !byte, "every call takes a NULL stream");
}

static void test_configurations(void)
{
    struct device *dev;
    char error[256] = "";
    struct dev_pool *pool = dev_pool_create(1);
    struct dev_config config = plain;
    config.pool = pool;
    config.kind = DEV_CUDA;
    tap_ok(dev_open(&config, &dev, error, sizeof error) == DEV_UNAVAILABLE && !dev && *error,
        "a device that is not built in: %s", error);
    config = plain;
    tap_ok(dev_open(&config, &dev, error, sizeof error) == DEV_FAILED && strstr(error, "pool"),
        "a device without a pool: %s", error);
    config.pool = pool;
    config.h2d_bytes_per_s = -1;
    tap_ok(dev_open(&config, &dev, error, sizeof error) == DEV_FAILED && strstr(error, "-1"),
        "a negative copy rate: %s", error);
    config = plain;
    config.pool = pool;
    config.device_limit_bytes = -5;
    tap_ok(dev_open(&config, &dev, error, sizeof error) == DEV_FAILED && strstr(error, "-5"),
        "a negative limit: %s", error);
    config = plain;
    config.pool = pool;
    config.kernel_threads = -2;
    tap_ok(dev_open(&config, &dev, error, sizeof error) == DEV_FAILED && strstr(error, "-2"),
        "a negative width: %s", error);
    dev_pool_free(pool);
}

/* ---- streams, events, copies ----------------------------------------------------------------- */

/* One stream counts, another writes down every value, each delayed now and then: an event that is
 * not waited for loses or doubles one. */
static void test_events(void)
{
    enum { ROUNDS = 400 };
    struct device_case it = open_case(plain, 2);
    struct stream *count = dev_main_stream(it.dev), *note = dev_stream(it.dev, "note");
    int32_t notes[ROUNDS];
    int32_t *x = dev_alloc(it.dev, 4, LIVE_INPUT, "x");
    int32_t *list = dev_alloc(it.dev, sizeof notes, LIVE_OUTPUT, "list");
    dev_fill(count, x, 0, 4);
    struct event first = dev_record(count);
    for (int i = 0; i < ROUNDS; i++) {
        launch_shift(count, (struct shift_args){x, x, 1, 1, i % 40 == 3 ? 1e-3 : 0});
        dev_wait_stream(note, count);
        launch_shift(note, (struct shift_args){x, list + i, 1, 0, i % 40 == 20 ? 1e-3 : 0});
        dev_wait(count, dev_record(note));
        dev_wait(count, first);
        dev_wait(note, (struct event){NULL, 0});
    }
    dev_read(it.dev, notes, list, sizeof notes);
    int right = 0;
    for (int i = 0; i < ROUNDS; i++)
        right += notes[i] == i + 1;
    tap_ok(right == ROUNDS, "events order two streams (%d of %d)", right, ROUNDS);
    dev_sync_event(first);
    dev_wait(note, first);
    tap_ok(dev_sync(it.dev) == DEV_OK, "past events may be waited for again");
    tap_ok(dev_stream(it.dev, "note") == note && stream_device(note) == it.dev,
        "streams are found by name");
    close_case(&it);
}

/* The host's wait for an event does not wait for what comes later. */
static void test_sync_event(void)
{
    struct device_case it = open_case(plain, 1);
    struct stream *stream = dev_main_stream(it.dev);
    int32_t *x = dev_alloc(it.dev, 4, LIVE_INPUT, "x");
    double begin_s = timing_now_s();
    launch_shift(stream, (struct shift_args){x, x, 0, 0, 0.02});
    struct event event = dev_record(stream);
    launch_shift(stream, (struct shift_args){x, x, 0, 0, 0.3});
    double enqueued_s = timing_now_s() - begin_s;
    dev_sync_event(event);
    double reached_s = timing_now_s() - begin_s;
    double clock_s = dev_clock_s(it.dev) - begin_s;
    tap_ok(enqueued_s < 0.015, "launches return at once (%.4f s)", enqueued_s);
    tap_ok(reached_s >= 0.02 && reached_s < 0.3, "an event is reached in time (%.3f s)", reached_s);
    tap_ok(clock_s >= 0.32, "the clock waits for all streams (%.3f s)", clock_s);
    close_case(&it);
}

static void test_copies(void)
{
    struct device_case it = open_case(plain, 1);
    struct stream *stream = dev_main_stream(it.dev);
    char text[16] = "";
    char *host = dev_host_alloc(it.dev, 16, LIVE_STAGING, "host");
    char *a = dev_alloc(it.dev, 16, LIVE_INPUT, "a"), *b = dev_alloc(it.dev, 16, LIVE_INPUT, "b");
    dev_write(it.dev, host, "to and fro, 15b", 16);
    dev_copy_h2d(stream, a, host, 16);
    dev_copy_d2d(stream, b, a, 16);
    dev_fill(stream, b, '-', 2);
    dev_copy_d2h(stream, host, b, 16);
    dev_fetch(stream, text, b, 5, "wrong");
    tap_ok(!memcmp(text, "-- an", 5), "a fetch sees what the stream has done");
    dev_read(it.dev, text, host, 16);
    tap_ok(!strcmp(text, "-- and fro, 15b"), "bytes travel up, across and down: '%s'", text);
    close_case(&it);
}

static void test_arguments_are_copied(void)
{
    struct device_case it = open_case(plain, 1);
    int32_t value = 0;
    int32_t *x = dev_alloc(it.dev, 4, LIVE_INPUT, "x");
    int32_t *pinned = dev_host_alloc(it.dev, 4, LIVE_OPTIMIZER, "pinned");
    static const struct kernel kernel = {.name = "shift", .cpu = shift_cpu};
    struct shift_args args = {x, x, 1, 1, 0.01};
    dev_fill(dev_main_stream(it.dev), x, 0, 4);
    for (int i = 0; i < 3; i++) {
        args.amount = 1 << i;
        dev_launch(dev_main_stream(it.dev), &kernel, &args, sizeof args);
    }
    args.amount = 1000;
    dev_read(it.dev, &value, x, 4);
    tap_ok(value == 7, "arguments are copied at the launch (%d)", value);
    value = 40;
    dev_write(it.dev, pinned, &value, 4);
    args = (struct shift_args){pinned, pinned, 1, 2, 0};
    dev_launch_host(dev_main_stream(it.dev), &kernel, &args, sizeof args);
    dev_fetch(dev_main_stream(it.dev), &value, pinned, 4, &args.amount);
    tap_ok(value == 42, "a kernel may run on pinned memory (%d)", value);
    close_case(&it);
}

static void test_serial_streams(void)
{
    struct dev_config config = plain;
    config.serial_streams = true;
    struct device_case it = open_case(config, 1);
    struct stream *main_stream = dev_main_stream(it.dev);
    tap_ok(dev_stream(it.dev, "copy") == main_stream, "serial: every stream is the main stream");
    dev_wait_stream(dev_stream(it.dev, "copy"), main_stream);
    tap_ok(dev_sync(it.dev) == DEV_OK, "serial: waiting for oneself is nothing");
    close_case(&it);
}

static void test_foreign_event(void)
{
    struct device_case a = open_case(plain, 1), b = open_case(plain, 1);
    dev_fill(dev_main_stream(b.dev), dev_alloc(b.dev, 8, LIVE_INPUT, "b"), 0, 8);
    dev_wait(dev_main_stream(a.dev), dev_record(dev_main_stream(b.dev)));
    tap_ok(failed_with(a.dev, DEV_FAILED, "waits for rank"), "another device's event is refused");
    close_case(&a);
    close_case(&b);
}

/* ---- traces ---------------------------------------------------------------------------------- */

static void test_trace(void)
{
    struct trace *trace = trace_create();
    struct dev_config config = plain;
    config.trace = trace;
    struct device_case it = open_case(config, 1);
    struct stream *side = dev_stream(it.dev, "side");
    int32_t *x = dev_alloc(it.dev, 4, LIVE_INPUT, "x");
    int32_t *host = dev_host_alloc(it.dev, 4, LIVE_STAGING, "host");
    launch_shift(dev_main_stream(it.dev), (struct shift_args){x, x, 1, 0, 0.02});
    dev_wait_stream(side, dev_main_stream(it.dev));
    dev_copy_d2h(side, host, x, 4);
    dev_sync(it.dev);
    int64_t count = 0;
    const struct trace_span *spans = trace_spans(trace, &count);
    bool kernel = false, copied = false, waited = false;
    for (int64_t i = 0; i < count; i++) {
        bool on_side = !strcmp(spans[i].stream, "side") && spans[i].rank == 3;
        kernel |= spans[i].kind == TRACE_KERNEL && !strcmp(spans[i].name, "shift") &&
                  spans[i].end_s - spans[i].begin_s >= 0.02;
        copied |= spans[i].kind == TRACE_COPY && !strcmp(spans[i].name, "d2h") && on_side;
        waited |= spans[i].kind == TRACE_WAIT && on_side;
    }
    tap_ok(kernel && copied && waited, "spans of kernels, copies and waits are traced");
    close_case(&it);
    trace_free(trace);
}

int main(void)
{
    test_accounts();
    test_zero_bytes();
    test_reuse();
    test_random_blocks();
    test_limit();
    test_arena();
    test_limited_address_space();
    test_faults();
    test_sticky_failure();
    test_null_streams();
    test_configurations();
    test_events();
    test_sync_event();
    test_copies();
    test_arguments_are_copied();
    test_serial_streams();
    test_foreign_event();
    test_trace();
    return tap_done();
}
