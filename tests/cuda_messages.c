/* Messages between CUDA ranks, by copies and by NCCL: every byte of random exchanges on several
 * communicators, subsets and streams at once, and every way in which a rank can fail the others.
 * The emulated device has four GPUs here, so that ranks have one each, or share them; on real ones
 * NCCL is tested as far as they allow. Under a launcher (tests/cuda_processes.t) the bytes go
 * between its processes. */
#include <stdatomic.h>
#include "device/launch.h"
#include "tests/device_case.h"

enum { RANKS_MOST = 6, ROUNDS = 12, LANES = 2, PARTS = 3, MOST_BYTES = 700 };

static const char *const message_names[] = {"auto", "copies", "NCCL"};

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Part `part` of what `from` sends `to`, both of the group, in `round` on `lane`: its size, and its
 * byte `index`. The same on every rank. */
static uint64_t seed_of(int from, int to, int round, int lane, int part)
{
    uint64_t state = 1;
    const int parts[] = {from, to, round, lane, part};
    for (int i = 0; i < 5; i++) {
        state += (uint64_t)(parts[i] + 1) * 0x9e3779b97f4a7c15u;
        next_random(&state);
    }
    return state;
}

static int64_t bytes_of(int from, int to, int round, int lane, int part)
{
    uint64_t state = seed_of(from, to, round, lane, part);
    return next_random(&state) % 3 ? (int64_t)(next_random(&state) % MOST_BYTES) : 0;
}

static void fill_part(unsigned char *values, int from, int to, int round, int lane, int part)
{
    uint64_t state = seed_of(from, to, round, lane, part);
    int64_t bytes = bytes_of(from, to, round, lane, part);
    for (int64_t i = 0; i < bytes; i++)
        values[i] = (unsigned char)next_random(&state);
}

/* A communicator with a stream and room for what each of its ranks sends and gets. */
struct lane {
    int index;
    struct comm *comm;
    struct stream *stream;
    int members[RANKS_MOST]; /* the group's rank of each */
    char *out, *in;
};

static int64_t room_of(const struct lane *lane)
{
    return (int64_t)comm_size(lane->comm) * PARTS * MOST_BYTES;
}

static bool open_lane(struct rank *rank, struct lane *lane, int index, struct comm *comm)
{
    static const char *const names[] = {"first lane", "second lane"};
    lane->index = index;
    lane->comm = comm;
    lane->stream = dev_stream(rank->dev, names[index]);
    if (!comm || comm_host_all_gather(comm, &rank->index, lane->members, sizeof rank->index))
        return false;
    lane->out = dev_alloc(rank->dev, room_of(lane), LIVE_RING, "out");
    lane->in = dev_alloc(rank->dev, room_of(lane), LIVE_RING, "in");
    dev_wait_stream(lane->stream, dev_main_stream(rank->dev));
    return lane->out && lane->in;
}

/* Writes what the rank sends in the round, and enqueues the exchange. */
static void exchange_round(struct rank *rank, struct lane *lane, int round)
{
    struct comm_part send[RANKS_MOST * PARTS], receive[RANKS_MOST * PARTS];
    unsigned char values[MOST_BYTES];
    int count = comm_size(lane->comm) * PARTS;
    for (int i = 0; i < count; i++) {
        int peer = i / PARTS, other = lane->members[peer], part = i % PARTS;
        int64_t bytes = bytes_of(rank->index, other, round, lane->index, part);
        fill_part(values, rank->index, other, round, lane->index, part);
        dev_write(rank->dev, lane->out + i * MOST_BYTES, values, bytes);
        send[i] = (struct comm_part){peer, lane->out + i * MOST_BYTES, bytes};
        receive[i] = (struct comm_part){peer, lane->in + i * MOST_BYTES,
            bytes_of(other, rank->index, round, lane->index, part)};
    }
    comm_exchange(lane->comm, lane->stream, "round", send, count, receive, count);
}

static int64_t wrong_bytes(struct rank *rank, const struct lane *lane, int round)
{
    unsigned char expected[MOST_BYTES], got[MOST_BYTES];
    int64_t wrong = 0;
    for (int i = 0; i < comm_size(lane->comm) * PARTS; i++) {
        int other = lane->members[i / PARTS], part = i % PARTS;
        int64_t bytes = bytes_of(other, rank->index, round, lane->index, part);
        fill_part(expected, other, rank->index, round, lane->index, part);
        memset(got, 0xee, sizeof got);
        dev_read(rank->dev, got, lane->in + i * MOST_BYTES, bytes);
        wrong += memcmp(expected, got, (size_t)bytes) != 0;
    }
    return wrong;
}

/* Two lanes at once: all ranks, and those of the rank's parity in the reverse order. */
static int exchange_at_random(struct rank *rank, void *context)
{
    atomic_llong *wrong = context;
    struct lane lanes[LANES];
    struct comm *all = comm_dup(rank->comm, "all");
    struct comm *parity = comm_split(rank->comm, rank->index % 2, -rank->index, "parity");
    if (!open_lane(rank, &lanes[0], 0, all) || !open_lane(rank, &lanes[1], 1, parity))
        return -1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LANES; i++)
            exchange_round(rank, &lanes[i], round);
        for (int i = 0; i < LANES; i++)
            atomic_fetch_add(wrong, wrong_bytes(rank, &lanes[i], round));
    }
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static void test_bytes(struct dev_pool *pool, enum dev_messages messages, int ranks)
{
    atomic_llong wrong = 0;
    struct ranks_failure failure;
    struct ranks_config config = {.count = ranks,
        .device = {.kind = DEV_CUDA, .pool = pool, .check_order = true, .messages = messages},
        .timeout_s = 20};
    int result = ranks_run(&config, exchange_at_random, &wrong, &failure);
    tap_ok(result == 0 && atomic_load(&wrong) == 0, "%s, ranks: %d, every byte arrives",
        message_names[messages], ranks);
    if (result)
        tap_note("rank %d: %s", failure.rank, failure.message);
}

/* ---- failures -------------------------------------------------------------------------------- */

enum { FAILING_RANKS = 3, CULPRIT = 1 };

static int exchange_with_all(struct rank *rank, int64_t bytes)
{
    struct comm_part send[FAILING_RANKS], receive[FAILING_RANKS];
    char *out = dev_alloc(rank->dev, bytes, LIVE_RING, "out");
    char *in = dev_alloc(rank->dev, FAILING_RANKS * bytes, LIVE_RING, "in");
    for (int p = 0; p < FAILING_RANKS; p++) {
        send[p] = (struct comm_part){p, out, bytes};
        receive[p] = (struct comm_part){p, in + p * bytes, bytes};
    }
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "exchange", send, FAILING_RANKS, receive,
        FAILING_RANKS);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static int fail(struct rank *rank)
{
    sleep_s(0.05);
    dev_fail(rank->dev, DEV_FAILED, "a planted failure");
    return -1;
}

static int run_out_of_memory(struct rank *rank)
{
    dev_alloc(rank->dev, (int64_t)1 << 50, LIVE_LOGITS, "logits of everything");
    return -1;
}

static int leave(struct rank *rank)
{
    (void)rank;
    return 0;
}

static int send_other_sizes(struct rank *rank)
{
    return exchange_with_all(rank, 999);
}

static int launch_what_is_not_there(struct rank *rank)
{
    int32_t *block = dev_alloc(rank->dev, 4, LIVE_WORKSPACE, "block");
    launch_shift(dev_main_stream(rank->dev), (struct shift_args){block, block, 1, 1, 0});
    return dev_status(rank->dev) == DEV_OK ? 0 : -1;
}

struct scenario {
    const char *name;
    int (*culprit)(struct rank *rank);
    enum dev_status status;
    double timeout_s;
    const char *words; /* in the message, by copies and by NCCL */
    const char *nccl_words;
};

static const struct scenario scenarios[] = {
    {"a failure", fail, DEV_FAILED, 20, "a planted failure", "a planted failure"},
    {"too little memory", run_out_of_memory, DEV_OUT_OF_MEMORY, 20, "logits of everything",
        "logits of everything"},
    {"a kernel that is not written for CUDA", launch_what_is_not_there, DEV_FAILED, 20,
        "'shift' is not written for CUDA", "'shift' is not written for CUDA"},
    {"a rank that leaves", leave, DEV_FAILED, 20, "rank 1 left while rank",
        "rank 1 left while rank"},
    {"sizes that differ", send_other_sizes, DEV_FAILED, 0.5, "999", ""},
};

static int fail_or_exchange(struct rank *rank, void *context)
{
    const struct scenario *scenario = context;
    return rank->index == CULPRIT ? scenario->culprit(rank) : exchange_with_all(rank, 1000);
}

static void test_failure(
    struct dev_pool *pool, enum dev_messages messages, const struct scenario *scenario)
{
    struct ranks_failure failure;
    struct ranks_config config = {.count = FAILING_RANKS,
        .device = {.kind = DEV_CUDA, .pool = pool, .messages = messages},
        .timeout_s = scenario->timeout_s};
    const char *words = messages == DEV_MESSAGES_NCCL ? scenario->nccl_words : scenario->words;
    struct scenario copy = *scenario;
    double begin_s = timing_now_s();
    int result = ranks_run(&config, fail_or_exchange, &copy, &failure);
    double seconds = timing_now_s() - begin_s;
    tap_ok(result == -1 && failure.status == scenario->status && strstr(failure.message, words),
        "%s, %s: \"%s\"", message_names[messages], scenario->name, failure.message);
    tap_ok(seconds < 5, "%s, %s: all end within %g s", message_names[messages], scenario->name,
        seconds);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static int never(struct rank *rank, void *context)
{
    (void)rank;
    *(bool *)context = true;
    return 0;
}

static void test_refusals(struct dev_pool *pool, int gpus)
{
    struct ranks_failure failure;
    bool ran = false;
    struct ranks_config config = {.count = gpus + 1,
        .device = {.kind = DEV_CUDA, .pool = pool, .messages = DEV_MESSAGES_NCCL}};
    tap_ok(ranks_run(&config, never, &ran, &failure) == -1 && !ran &&
               failure.status == DEV_UNAVAILABLE && strstr(failure.message, "--messages copies"),
        "NCCL with two ranks on a GPU: %s", failure.message);
    config.device.messages = DEV_MESSAGES_COPIES;
    config.message_bytes_per_s = 1e9;
    tap_ok(ranks_run(&config, never, &ran, &failure) == -1 && !ran, "paced messages: %s",
        failure.message);
    config.message_bytes_per_s = 0;
    config.device.h2d_bytes_per_s = 1e9;
    tap_ok(ranks_run(&config, never, &ran, &failure) == -1 && !ran, "paced copies: %s",
        failure.message);
}

static void test_all_bytes(struct dev_pool *pool, int gpus)
{
    for (int ranks = 1; ranks <= 4; ranks += ranks < 2 ? 1 : 2) {
        test_bytes(pool, DEV_MESSAGES_COPIES, ranks);
        if (ranks <= gpus)
            test_bytes(pool, DEV_MESSAGES_NCCL, ranks);
    }
    test_bytes(pool, DEV_MESSAGES_COPIES, RANKS_MOST);
    test_bytes(pool, DEV_MESSAGES_AUTO, 3);
    test_bytes(pool, DEV_MESSAGES_AUTO, 5);
}

/* Ranks that processes hold, `argument` of each. */
static int between_processes(int argc, char **argv)
{
    struct dev_pool *pool = dev_pool_create(2);
    int status = launch_agree(-1, argc, argv);
    if (status >= 0 || !pool)
        return launch_close(1);
    launch_set_ranks_per_process(argc > 1 ? atoi(argv[1]) : 1);
    test_bytes(pool, DEV_MESSAGES_COPIES, launch_ranks());
    test_bytes(pool, DEV_MESSAGES_NCCL, launch_ranks());
    dev_pool_free(pool);
    return launch_close(tap_done());
}

int main(int argc, char **argv)
{
    struct dev_facts facts;
    char error[256] = "";
    int status = launch_open("cuda_messages");
    if (status >= 0)
        return status;
    setenv("CUDA_EMU_DEVICES", "4", 1);
    if (launch_started())
        return between_processes(argc, argv);
    if (dev_facts(DEV_CUDA, &facts, error, sizeof error) != DEV_OK) {
        tap_skip(error, "messages between CUDA ranks");
        return tap_done();
    }
    struct dev_pool *pool = dev_pool_create(2);
    tap_ok(facts.count > 0 && facts.name[0] && facts.memory_bytes > 0 && facts.driver[0] &&
               facts.runtime[0] && !strncmp(facts.messages, "NCCL ", 5),
        "GPUs: %d, %s, %lld bytes, driver %s, CUDA %s, %s", facts.count, facts.name,
        (long long)facts.memory_bytes, facts.driver, facts.runtime, facts.messages);
    test_all_bytes(pool, facts.count);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        test_failure(pool, DEV_MESSAGES_COPIES, &scenarios[i]);
        if (facts.count >= FAILING_RANKS)
            test_failure(pool, DEV_MESSAGES_NCCL, &scenarios[i]);
    }
    test_refusals(pool, facts.count);
    dev_pool_free(pool);
    return tap_done();
}
