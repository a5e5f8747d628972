/* The order check: planted faults are caught, correct programs are not accused, and on random
 * programs it agrees, step by step, with an oracle that follows every path between operations. */
#include "tests/device_case.h"

static const struct dev_config checked = {.kind = DEV_CPU, .check_order = true};

/* A small device with two further streams, two device blocks and a pinned one. */
struct scene {
    struct device *dev;
    struct stream *main, *up, *down;
    int32_t *a, *b, *pinned;
};

enum { COUNT = 64, BYTES = 4 * COUNT };

static struct scene set_scene(struct device *dev)
{
    struct scene scene = {.dev = dev,
        .main = dev_main_stream(dev),
        .up = dev_stream(dev, "up"),
        .down = dev_stream(dev, "down")};
    scene.a = dev_alloc(dev, BYTES, LIVE_RING, "slot a");
    scene.b = dev_alloc(dev, BYTES, LIVE_RING, "slot b");
    scene.pinned = dev_host_alloc(dev, BYTES, LIVE_STAGING, "pinned");
    dev_wait_stream(scene.up, scene.main);
    dev_wait_stream(scene.down, scene.main);
    return scene;
}

static void shift(struct stream *stream, int32_t *to, const int32_t *from)
{
    launch_shift(stream, (struct shift_args){from, to, COUNT, 1, 0});
}

/* ---- planted faults -------------------------------------------------------------------------- */

static void two_writers(struct scene *it)
{
    dev_fill(it->up, it->a, 0, BYTES);
    dev_fill(it->down, it->a, 0, BYTES);
}

static void read_too_early(struct scene *it)
{
    dev_copy_h2d(it->up, it->a, it->pinned, BYTES);
    shift(it->main, it->b, it->a);
}

static void slot_reused_early(struct scene *it)
{
    shift(it->main, it->b, it->a);
    dev_copy_h2d(it->up, it->a, it->pinned, BYTES);
}

static void event_before_the_copy(struct scene *it)
{
    struct event early = dev_record(it->up);
    dev_copy_h2d(it->up, it->a, it->pinned, BYTES);
    dev_wait(it->main, early);
    shift(it->main, it->b, it->a);
}

static void write_back_not_waited_for(struct scene *it)
{
    shift(it->main, it->a, it->b);
    dev_wait_stream(it->down, it->main);
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
    dev_wait_stream(it->up, it->main);
    dev_fill(it->up, it->a, 0, BYTES);
}

/* up has waited for main, but main had waited for down too early. */
static void broken_chain(struct scene *it)
{
    dev_wait_stream(it->main, it->down);
    dev_fill(it->down, it->a, 0, BYTES);
    dev_wait_stream(it->up, it->main);
    shift(it->up, it->b, it->a);
}

/* An event carries what its stream knew then, not what it learned later. */
static void knowledge_of_later(struct scene *it)
{
    dev_fill(it->up, it->a, 0, BYTES);
    dev_fill(it->main, it->b, 0, BYTES);
    struct event before = dev_record(it->main);
    dev_wait_stream(it->main, it->up);
    dev_wait(it->down, before);
    dev_fill(it->down, it->a, 0, BYTES);
}

/* The reader between does not stand for the writer. */
static void written_then_read_elsewhere(struct scene *it)
{
    dev_copy_h2d(it->up, it->a, it->pinned, BYTES);
    dev_wait_stream(it->main, it->up);
    shift(it->main, it->b, it->a);
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
}

static void allocation_not_waited_for(struct scene *it)
{
    int32_t *fresh = dev_alloc(it->dev, BYTES, LIVE_INPUT, "fresh");
    dev_fill(it->up, fresh, 0, BYTES);
}

static void allocation_waited_for_too_early(struct scene *it)
{
    struct event early = dev_record(it->main);
    int32_t *fresh = dev_alloc(it->dev, BYTES, LIVE_INPUT, "fresh");
    dev_wait(it->up, early);
    dev_fill(it->up, fresh, 0, BYTES);
}

static void freed_while_read(struct scene *it)
{
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
    dev_free(it->dev, it->a);
}

static void freed_while_written(struct scene *it)
{
    dev_copy_h2d(it->up, it->a, it->pinned, BYTES);
    dev_wait_stream(it->down, it->up);
    dev_free(it->dev, it->a);
}

static void used_after_free(struct scene *it)
{
    dev_free(it->dev, it->a);
    shift(it->main, it->b, it->a);
}

static void past_the_end(struct scene *it)
{
    launch_shift(it->main, (struct shift_args){it->a + 1, it->b, COUNT, 0, 0});
}

static void nowhere(struct scene *it)
{
    static int32_t ordinary[COUNT];
    shift(it->main, ordinary, it->a);
}

static void no_declaration(struct scene *it)
{
    static const struct kernel silent = {.name = "silent", .cpu = shift_cpu};
    struct shift_args args = {it->a, it->b, COUNT, 0, 0};
    dev_launch(it->main, &silent, &args, sizeof args);
}

static void one_byte_shared(struct scene *it)
{
    dev_fill(it->up, it->a, 0, 9);
    dev_fill(it->down, (char *)it->a + 8, 0, 8);
}

static void pinned_written_and_read(struct scene *it)
{
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
    dev_copy_h2d(it->up, it->b, it->pinned, BYTES);
}

static void pinned_freed_in_use(struct scene *it)
{
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
    dev_wait_stream(it->main, it->down);
    dev_host_free(it->dev, it->pinned);
}

static void pinned_freed_after_wrong_event(struct scene *it)
{
    struct event early = dev_record(it->down);
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
    dev_sync_event(early);
    dev_host_free(it->dev, it->pinned);
}

static void host_kernel_unordered(struct scene *it)
{
    static const struct kernel kernel = {
        .name = "host shift", .cpu = shift_cpu, .access = shift_access};
    struct shift_args args = {it->pinned, it->pinned, COUNT, 0, 0};
    dev_copy_h2d(it->up, it->b, it->pinned, BYTES);
    dev_launch_host(it->main, &kernel, &args, sizeof args);
}

static void fetch_unordered(struct scene *it)
{
    int32_t value;
    dev_fill(it->up, it->a, 0, BYTES);
    dev_fetch(it->main, &value, it->a, 4, "");
}

static void test_planted_faults(void)
{
    static const struct {
        const char *name;
        void (*plant)(struct scene *it);
        const char *words;
    } faults[] = {
        {"two writers", two_writers, "'fill' on stream 'down' writes"},
        {"a read before the copy is done", read_too_early, "'h2d' on stream 'up' writes"},
        {"a slot reused early", slot_reused_early, "'shift' on stream 'main' reads"},
        {"an event recorded before the copy", event_before_the_copy, "slot a"},
        {"a write-back not waited for", write_back_not_waited_for, "'d2h' on stream 'down' reads"},
        {"a chain of events with a link too early", broken_chain, "'fill' on stream 'down'"},
        {"an event that knew less", knowledge_of_later, "'fill' on stream 'up'"},
        {"a second reader that did not wait", written_then_read_elsewhere, "'h2d' on stream 'up'"},
        {"an allocation not waited for", allocation_not_waited_for, "since the allocation"},
        {"an allocation waited for too early", allocation_waited_for_too_early, "'fresh'"},
        {"a block freed while it is read", freed_while_read, "block 'slot a' is freed"},
        {"a block freed while it is written", freed_while_written, "'h2d' on stream 'up'"},
        {"a block used after its free", used_after_free, "'slot a', which was freed"},
        {"a kernel past the end of a block", past_the_end, "which has 256"},
        {"a kernel on memory of nobody", nowhere, "not in a block"},
        {"a kernel that declares nothing", no_declaration, "'silent' declares no accesses"},
        {"ranges that share one byte", one_byte_shared, "bytes 8 to 16"},
        {"pinned memory written and read", pinned_written_and_read, "block 'pinned'"},
        {"pinned memory freed in use", pinned_freed_in_use, "the host has not waited"},
        {"pinned memory freed after the wrong event", pinned_freed_after_wrong_event, "the host"},
        {"a host kernel beside a copy", host_kernel_unordered, "'host shift'"},
        {"a fetch of what another stream writes", fetch_unordered, "'fetch' on stream 'main'"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct device_case it = open_case(checked, 1);
        struct scene scene = set_scene(it.dev);
        bool clean = dev_status(it.dev) == DEV_OK;
        faults[i].plant(&scene);
        tap_ok(clean && failed_with(it.dev, DEV_FAILED, faults[i].words), "caught: %s",
            faults[i].name);
        close_case(&it);
    }
}

/* ---- correct programs ------------------------------------------------------------------------ */

/* Buckets through two slots on three streams, as an offloaded optimizer runs them. */
static void two_slots(struct scene *it)
{
    int32_t *slots[2] = {it->a, it->b};
    struct event down[2] = {{NULL, 0}, {NULL, 0}};
    int32_t *out = dev_host_alloc(it->dev, 8 * BYTES, LIVE_OPTIMIZER, "out");
    for (int i = 0; i < 8; i++) {
        dev_wait(it->up, down[i % 2]);
        dev_copy_h2d(it->up, slots[i % 2], it->pinned, BYTES);
        dev_wait_stream(it->main, it->up);
        shift(it->main, slots[i % 2], slots[i % 2]);
        dev_wait_stream(it->down, it->main);
        dev_copy_d2h(it->down, out + (int64_t)i * COUNT, slots[i % 2], BYTES);
        down[i % 2] = dev_record(it->down);
    }
    dev_wait_stream(it->main, it->down);
    dev_wait_stream(it->main, it->up);
    dev_free(it->dev, it->a);
    dev_free(it->dev, it->b);
    dev_sync(it->dev);
    dev_host_free(it->dev, out);
}

static void disjoint_ranges(struct scene *it)
{
    dev_fill(it->up, it->a, 0, 8);
    dev_fill(it->down, (char *)it->a + 8, 0, 8);
    dev_fill(it->main, (char *)it->a + 16, 0, BYTES - 16);
}

static void many_readers(struct scene *it)
{
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
    shift(it->main, it->b, it->a);
    dev_wait_stream(it->up, it->down);
    dev_wait_stream(it->up, it->main);
    dev_fill(it->up, it->a, 0, BYTES);
}

static void ordered_through_a_third(struct scene *it)
{
    dev_fill(it->up, it->a, 0, BYTES);
    dev_wait_stream(it->main, it->up);
    dev_wait_stream(it->down, it->main);
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
}

static void ordered_by_the_host(struct scene *it)
{
    dev_fill(it->up, it->a, 0, BYTES);
    dev_sync_event(dev_record(it->up));
    dev_fill(it->down, it->a, 0, BYTES);
    dev_sync(it->dev);
    dev_fill(it->up, it->a, 0, BYTES);
    int32_t value = 0;
    dev_write(it->dev, it->a, &value, 4);
    dev_fill(it->main, it->a, 0, BYTES);
    dev_sync_event(dev_record(it->main));
    dev_fetch(it->up, &value, it->a, 4, "");
}

static void allocated_and_freed(struct scene *it)
{
    for (int i = 0; i < 20; i++) {
        int32_t *fresh = dev_alloc(it->dev, BYTES, LIVE_INPUT, "fresh");
        dev_wait_stream(it->up, it->main);
        shift(it->up, fresh, it->a);
        dev_wait_stream(it->main, it->up);
        dev_free(it->dev, fresh);
    }
}

static void waited_for_again(struct scene *it)
{
    dev_fill(it->up, it->a, 0, BYTES);
    struct event event = dev_record(it->up);
    for (int i = 0; i < 5; i++)
        dev_fill(it->up, it->b, 0, BYTES);
    dev_wait(it->down, event);
    dev_copy_d2h(it->down, it->pinned, it->a, BYTES);
    dev_wait(it->main, event);
    shift(it->main, it->a, it->a);
}

static void test_correct_programs(void)
{
    static const struct {
        const char *name;
        void (*run)(struct scene *it);
    } programs[] = {
        {"two slots, three streams", two_slots},
        {"disjoint ranges of a block", disjoint_ranges},
        {"many readers, then a writer", many_readers},
        {"an order through a third stream", ordered_through_a_third},
        {"an order through the host", ordered_by_the_host},
        {"allocation and free in a loop", allocated_and_freed},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        struct device_case it = open_case(checked, 1);
        struct scene scene = set_scene(it.dev);
        programs[i].run(&scene);
        tap_ok(
            dev_sync(it.dev) == DEV_OK, "not accused: %s%s", programs[i].name, dev_message(it.dev));
        close_case(&it);
    }
}

/* The reader of a past event knows what came before it; a writer after it must know the reader. */
static void test_reader_after_event(void)
{
    struct device_case it = open_case(checked, 1);
    struct scene scene = set_scene(it.dev);
    waited_for_again(&scene);
    tap_ok(failed_with(it.dev, DEV_FAILED, "'d2h' on stream 'down' reads"),
        "a writer ordered after the first writer alone is caught by the reader");
    close_case(&it);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static int exchange_in_order(struct rank *rank, void *context)
{
    struct scene it = set_scene(rank->dev);
    bool *fault = context;
    struct comm_part send = {1 - rank->index, it.a, BYTES};
    struct comm_part receive = {1 - rank->index, it.b, BYTES};
    comm_exchange(rank->comm, it.up, "ring hop", &send, 1, &receive, 1);
    if (!*fault)
        dev_wait_stream(it.main, it.up);
    shift(it.main, it.a, it.b);
    return 0;
}

static void test_exchanges(void)
{
    struct ranks_config config = {.count = 2, .device = checked, .timeout_s = 10};
    struct ranks_failure failure;
    bool fault = false;
    tap_ok(ranks_run(&config, exchange_in_order, &fault, &failure) == 0,
        "not accused: what is received is used after the exchange%s", failure.message);
    fault = true;
    tap_ok(ranks_run(&config, exchange_in_order, &fault, &failure) == -1 &&
               strstr(failure.message, "'ring hop' on stream 'up'"),
        "caught: what is received is used before the exchange is done");
}

/* ---- random programs against an oracle ------------------------------------------------------- */

enum { STREAMS = 4, STEPS = 48, PROGRAMS = 2000 };

/* One operation that touches a range of a block, for the oracle. */
struct node {
    int stream, block, begin, end;
    bool write;
    uint64_t before; /* bit i: node i comes before it */
};

struct oracle {
    struct node nodes[STEPS + 2];
    int count;
    uint64_t stream_before[STREAMS]; /* what comes before the stream's next node */
    uint64_t host_before;
};

struct oracle_event {
    struct event event;
    uint64_t before;
};

/* Whether the node's conflicts all come before it. */
static bool add_node(struct oracle *oracle, struct node node)
{
    node.before = oracle->stream_before[node.stream] | oracle->host_before;
    bool ordered = true;
    for (int i = 0; i < oracle->count; i++) {
        const struct node *old = &oracle->nodes[i];
        bool conflict = old->block == node.block && (old->write || node.write) &&
                        old->begin < node.end && node.begin < old->end;
        ordered &= !conflict || node.before >> i & 1;
    }
    oracle->stream_before[node.stream] = node.before | (uint64_t)1 << oracle->count;
    oracle->nodes[oracle->count++] = node;
    return ordered;
}

/* The node as a call: a kernel whose argument is its one access. */
static int touch_access(const void *args, struct dev_access *ranges)
{
    ranges[0] = *(const struct dev_access *)args;
    return 1;
}

static void touch_cpu(const void *args, const struct dev_team *team)
{
    (void)args;
    (void)team;
}

static void touch(struct stream *stream, char *block, const struct node *node)
{
    static const struct kernel kernel = {.name = "touch", .cpu = touch_cpu, .access = touch_access};
    struct dev_access access = {block + node->begin, node->end - node->begin, node->write};
    dev_launch(stream, &kernel, &access, sizeof access);
}

/* Runs one random program until the first fault; true when device and oracle agree at every step.
 */
static bool run_program(uint64_t seed, int *faults)
{
    static const char *const names[STREAMS] = {"main", "one", "two", "three"};
    struct device_case it = open_case(checked, 1);
    struct stream *streams[STREAMS];
    struct oracle oracle = {.count = 0};
    struct oracle_event events[8] = {{{NULL, 0}, 0}};
    char *blocks[2];
    uint64_t random = seed;
    for (int i = 0; i < STREAMS; i++)
        streams[i] = i ? dev_stream(it.dev, names[i]) : dev_main_stream(it.dev);
    for (int i = 0; i < 2; i++) {
        blocks[i] = dev_alloc(it.dev, 16, LIVE_RING, "block");
        add_node(&oracle, (struct node){.block = i, .end = 16, .write = true});
    }
    for (int i = 1; i < STREAMS && seed % 4; i++) {
        dev_wait_stream(streams[i], streams[0]);
        oracle.stream_before[i] = oracle.stream_before[0];
    }
    bool agree = true;
    for (int step = 0; step < STEPS && agree && dev_status(it.dev) == DEV_OK; step++) {
        int s = (int)(next_random(&random) % STREAMS);
        int e = (int)(next_random(&random) % 8);
        uint64_t kind = next_random(&random) % 32;
        bool ordered = true;
        if (kind < 9) {
            events[e].event = dev_record(streams[s]);
            events[e].before = oracle.stream_before[s] | oracle.host_before;
        } else if (kind < 25) {
            dev_wait(streams[s], events[e].event);
            oracle.stream_before[s] |= events[e].before;
        } else if (kind == 25) {
            dev_sync_event(events[e].event);
            oracle.host_before |= events[e].before;
        } else if (kind == 26 && step % 4 == 0) {
            dev_sync(it.dev);
            for (int i = 0; i < STREAMS; i++)
                oracle.host_before |= oracle.stream_before[i];
        } else {
            struct node node = {.stream = s, .block = (int)(next_random(&random) % 2)};
            node.begin = (int)(next_random(&random) % 13);
            node.end = node.begin + 1 + (int)(next_random(&random) % 4);
            node.write = next_random(&random) % 3 == 0;
            ordered = add_node(&oracle, node);
            touch(streams[s], blocks[node.block], &node);
        }
        agree = ordered == (dev_status(it.dev) == DEV_OK);
        *faults += !ordered;
    }
    if (!agree)
        tap_note("program %llu: %s", (unsigned long long)seed, dev_message(it.dev));
    close_case(&it);
    return agree;
}

static void test_random_programs(void)
{
    int agree = 0, faults = 0;
    for (int i = 0; i < PROGRAMS; i++)
        agree += run_program((uint64_t)i + 1, &faults);
    tap_ok(agree == PROGRAMS, "%d of %d random programs agree with the oracle (%d end in a fault)",
        agree, PROGRAMS, faults);
    tap_ok(faults > PROGRAMS / 10 && faults < PROGRAMS * 9 / 10,
        "some have a fault and some have none");
}

int main(void)
{
    test_planted_faults();
    test_correct_programs();
    test_reader_after_event();
    test_exchanges();
    test_random_programs();
    return tap_done();
}
