/* Messages between ranks, threads or, started by a launcher, processes: every collective at several
 * sizes of group, uneven and empty parts, communicators side by side, random patterns under random
 * delays. Every byte that arrives is compared with what its sender must have sent. */
#include "device/launch.h"
#include "tests/device_case.h"

/* Byte `index` of what `from` sends `to` in `round`. */
static unsigned char byte_of(int from, int to, int round, int64_t index)
{
    uint64_t state = (uint64_t)from * 1000003u + (uint64_t)to * 8191u + (uint64_t)round * 131u;
    state += (uint64_t)index;
    return (unsigned char)(next_random(&state) % 251);
}

static void put_bytes(struct rank *rank, char *block, int to, int round, int64_t bytes)
{
    unsigned char *values = malloc((size_t)bytes + 1);
    for (int64_t i = 0; i < bytes; i++)
        values[i] = byte_of(rank->index, to, round, i);
    dev_write(rank->dev, block, values, bytes);
    free(values);
}

/* How many bytes differ from what `from` sent to `to`. */
static int64_t wrong_bytes(
    struct rank *rank, const char *block, int from, int to, int round, int64_t bytes)
{
    unsigned char *values = malloc((size_t)bytes + 1);
    int64_t wrong = 0;
    memset(values, 0xee, (size_t)bytes + 1);
    dev_read(rank->dev, values, block, bytes);
    for (int64_t i = 0; i < bytes; i++)
        wrong += values[i] != byte_of(from, to, round, i);
    free(values);
    return wrong;
}

/* Uneven, and empty for some. */
static int64_t size_of(int from, int to)
{
    return from % 3 == 1 && to % 2 ? 0 : 37 * from + 101 * to + 1;
}

/* What a test's ranks report. */
struct tally {
    int64_t wrong[64]; /* by rank */
};

struct test {
    int (*body)(struct rank *rank, void *context);
    struct tally tally;
};

/* Every process knows all ranks' faults: the first of its ranks writes down those of others. */
static int count_faults(struct rank *rank, void *context)
{
    struct test *test = context;
    int64_t wrong[64];
    if (test->body(rank, &test->tally) ||
        comm_host_all_gather(rank->comm, &test->tally.wrong[rank->index], wrong, sizeof *wrong))
        return -1;
    bool writes = launch_started() && rank->index % launch_ranks_per_process() == 0;
    for (int r = 0; writes && r < rank->count; r++) {
        if (r / launch_ranks_per_process() != launch_process())
            test->tally.wrong[r] = wrong[r];
    }
    return 0;
}

/* Runs `body` on `count` ranks of two threads and reports whether all was right. */
static void run_ranks(
    const char *name, struct ranks_config config, int (*body)(struct rank *rank, void *context))
{
    struct test test = {.body = body};
    struct ranks_failure failure;
    int64_t wrong = 0;
    config.device.pool = dev_pool_create(2);
    config.device.check_order = true;
    int result = ranks_run(&config, count_faults, &test, &failure);
    for (int i = 0; i < config.count; i++)
        wrong += test.tally.wrong[i];
    tap_ok(result == 0 && wrong == 0, "%s, %d ranks", name, config.count);
    if (result)
        tap_note("rank %d: %s", failure.rank, failure.message);
    if (wrong)
        tap_note("%lld faults", (long long)wrong);
    dev_pool_free(config.device.pool);
}

/* ---- each collective ------------------------------------------------------------------------- */

static int all_to_all(struct rank *rank, void *context)
{
    struct tally *tally = context;
    int64_t send_bytes[8], send_offsets[8], receive_bytes[8], receive_offsets[8];
    int64_t sent = 0, received = 0;
    for (int p = 0; p < rank->count; p++) {
        send_bytes[p] = size_of(rank->index, p);
        receive_bytes[p] = size_of(p, rank->index);
        send_offsets[p] = sent;
        receive_offsets[p] = received;
        sent += send_bytes[p];
        received += receive_bytes[p];
    }
    char *send = dev_alloc(rank->dev, sent, LIVE_STAGING, "send");
    char *receive = dev_alloc(rank->dev, received, LIVE_DISPATCH, "receive");
    for (int p = 0; p < rank->count; p++)
        put_bytes(rank, send + send_offsets[p], p, 0, send_bytes[p]);
    comm_all_to_all_v(rank->comm, dev_main_stream(rank->dev), send, send_bytes, send_offsets,
        receive, receive_bytes, receive_offsets);
    for (int p = 0; p < rank->count; p++)
        tally->wrong[rank->index] +=
            wrong_bytes(rank, receive + receive_offsets[p], p, rank->index, 0, receive_bytes[p]);
    struct comm_traffic traffic = comm_traffic(rank->comm);
    int64_t messages = 0;
    for (int p = 0; p < rank->count; p++)
        messages += p != rank->index && send_bytes[p] > 0;
    tally->wrong[rank->index] += traffic.logical_bytes != sent || traffic.exchanges != 1 ||
                                 traffic.wire_bytes != sent - send_bytes[rank->index] ||
                                 traffic.messages != messages;
    comm_traffic_reset(rank->comm);
    tally->wrong[rank->index] += comm_traffic(rank->comm).exchanges != 0;
    return 0;
}

/* Gathers into a buffer of its own, then in place. */
static int all_gather(struct rank *rank, void *context)
{
    struct tally *tally = context;
    int64_t bytes[8], offset[8], total = 0;
    for (int p = 0; p < rank->count; p++) {
        bytes[p] = size_of(p, 7);
        offset[p] = total;
        total += bytes[p];
    }
    struct stream *stream = dev_main_stream(rank->dev);
    char *send = dev_alloc(rank->dev, bytes[rank->index], LIVE_STAGING, "send");
    for (int round = 0; round < 2; round++) {
        char *receive = dev_alloc(rank->dev, total, LIVE_DISPATCH, "receive");
        char *from = round ? receive + offset[rank->index] : send;
        put_bytes(rank, from, 0, round, bytes[rank->index]);
        comm_all_gather_v(rank->comm, stream, from, receive, bytes);
        for (int p = 0; p < rank->count; p++)
            tally->wrong[rank->index] +=
                wrong_bytes(rank, receive + offset[p], p, 0, round, bytes[p]);
        dev_free(rank->dev, receive);
    }
    return 0;
}

static int broadcast(struct rank *rank, void *context)
{
    struct tally *tally = context;
    char *data = dev_alloc(rank->dev, 5000, LIVE_INPUT, "data");
    for (int root = 0; root < rank->count; root++) {
        int64_t bytes = root == 1 ? 0 : 5000 - root;
        if (rank->index == root)
            put_bytes(rank, data, 0, root, bytes);
        comm_broadcast(rank->comm, dev_main_stream(rank->dev), data, bytes, root);
        tally->wrong[rank->index] += wrong_bytes(rank, data, root, 0, root, bytes);
    }
    return 0;
}

/* A payload goes all the way round. */
static int ring(struct rank *rank, void *context)
{
    enum { BYTES = 3001 };
    struct tally *tally = context;
    int next = (rank->index + 1) % rank->count;
    int previous = (rank->index + rank->count - 1) % rank->count;
    char *slots[2] = {dev_alloc(rank->dev, BYTES, LIVE_RING, "slot 0"),
        dev_alloc(rank->dev, BYTES, LIVE_RING, "slot 1")};
    put_bytes(rank, slots[0], 0, 0, BYTES);
    for (int hop = 0; hop < rank->count; hop++) {
        struct comm_part send = {next, slots[hop % 2], BYTES};
        struct comm_part receive = {previous, slots[(hop + 1) % 2], BYTES};
        comm_exchange(rank->comm, dev_main_stream(rank->dev), "ring hop", &send, 1, &receive, 1);
    }
    tally->wrong[rank->index] +=
        wrong_bytes(rank, slots[rank->count % 2], rank->index, 0, 0, BYTES);
    return 0;
}

/* Several parts to the same peer match in list order; empty ones do not count. */
static int several_parts(struct rank *rank, void *context)
{
    struct tally *tally = context;
    int next = (rank->index + 1) % rank->count;
    int previous = (rank->index + rank->count - 1) % rank->count;
    char *from = dev_alloc(rank->dev, 600, LIVE_RING, "from");
    char *to = dev_alloc(rank->dev, 600, LIVE_RING, "to");
    put_bytes(rank, from, 0, 0, 600);
    dev_fill(dev_main_stream(rank->dev), to, 0, 600);
    struct comm_part send[] = {
        {next, from, 100}, {next, from + 50, 0}, {next, from + 100, 200}, {next, from + 300, 300}};
    struct comm_part receive[] = {{previous, to + 500, 100}, {previous, to, 200}, {previous, to, 0},
        {previous, to + 200, 300}};
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "parts", send, 4, receive, 4);
    unsigned char values[600] = {0};
    dev_read(rank->dev, values, to, 600);
    for (int i = 0; i < 600; i++) {
        int source = i < 200 ? 100 + i : i < 500 ? 300 + (i - 200) : i - 500;
        tally->wrong[rank->index] += values[i] != byte_of(previous, 0, 0, source);
    }
    return 0;
}

static int host_side(struct rank *rank, void *context)
{
    struct tally *tally = context;
    int64_t all[8];
    struct comm *other = comm_dup(rank->comm, "other");
    tally->wrong[rank->index] += comm_rank(other) != rank->index || comm_size(other) != rank->count;
    for (int round = 0; round < 100; round++) {
        int64_t mine = 1000 * round + rank->index;
        struct comm *comm = round % 2 ? other : rank->comm;
        tally->wrong[rank->index] += comm_host_all_gather(comm, &mine, all, sizeof mine) != 0;
        for (int p = 0; p < rank->count; p++)
            tally->wrong[rank->index] += all[p] != 1000 * round + p;
        tally->wrong[rank->index] += comm_barrier(comm) != 0;
    }
    return 0;
}

/* Nobody passes the barrier before the last has come. */
static int barrier(struct rank *rank, void *context)
{
    struct tally *tally = context;
    double arrived_s, all_s[8];
    if (rank->index == rank->count - 1)
        sleep_s(0.03);
    arrived_s = timing_now_s();
    tally->wrong[rank->index] += comm_barrier(rank->comm) != 0;
    double passed_s = timing_now_s();
    comm_host_all_gather(rank->comm, &arrived_s, all_s, sizeof arrived_s);
    for (int p = 0; p < rank->count; p++)
        tally->wrong[rank->index] += all_s[p] > passed_s;
    return 0;
}

/* Sends `bytes` around the communicator, whose rank r is the group's ranks[r]; faults found. */
static int64_t wrong_in_ring(struct rank *rank, struct comm *comm, const int *ranks, int round)
{
    enum { BYTES = 2003 };
    int self = comm_rank(comm), size = comm_size(comm);
    int previous = (self + size - 1) % size;
    char *from = dev_alloc(rank->dev, BYTES, LIVE_RING, "from");
    char *to = dev_alloc(rank->dev, BYTES, LIVE_RING, "to");
    put_bytes(rank, from, 0, round, BYTES);
    struct comm_part send = {(self + 1) % size, from, BYTES}, receive = {previous, to, BYTES};
    comm_exchange(comm, dev_main_stream(rank->dev), "subset's ring", &send, 1, &receive, 1);
    int64_t wrong = wrong_bytes(rank, to, ranks[previous], 0, round, BYTES);
    dev_free(rank->dev, from);
    dev_free(rank->dev, to);
    return wrong;
}

/* Whether the communicator's ranks are those of the group in `ranks`. */
static int64_t wrong_members(struct rank *rank, struct comm *comm, const int *ranks, int size)
{
    int seen[8];
    int64_t wrong = comm_size(comm) != size || ranks[comm_rank(comm)] != rank->index;
    wrong += comm_host_all_gather(comm, &rank->index, seen, sizeof rank->index) != 0;
    for (int r = 0; !wrong && r < size; r++)
        wrong += seen[r] != ranks[r];
    return wrong;
}

/* Odd and even ranks apart, numbered from the last; halves of those; duplicates of both. All of
 * them at the same time, and the world beside them. */
static int subsets(struct rank *rank, void *context)
{
    struct tally *tally = context;
    int64_t *wrong = &tally->wrong[rank->index];
    int ranks[8], half[8], world[8], size = 0, halves = 0;
    for (int r = 0; r < rank->count; r++)
        world[r] = r;
    for (int r = rank->count - 1; r >= 0; r--) {
        if (r % 2 == rank->index % 2)
            ranks[size++] = r;
    }
    struct comm *same = comm_split(rank->comm, 7 * (rank->index % 2), -rank->index, "parity");
    *wrong += wrong_members(rank, same, ranks, size);
    bool upper = comm_rank(same) >= size / 2;
    for (int r = 0; r < size; r++) {
        if ((r >= size / 2) == upper)
            half[halves++] = ranks[r];
    }
    struct comm *part = comm_split(same, upper, 0, "half");
    struct comm *other = comm_dup(part, "parity"); /* a name is its parent's alone */
    *wrong += wrong_members(rank, part, half, halves) + wrong_members(rank, other, half, halves);
    *wrong += other == same || other == part || comm_dup(part, "parity") != other ||
              comm_split(rank->comm, 0, 0, "parity") != same;
    for (int round = 0; round < 20; round++) {
        *wrong += wrong_in_ring(rank, same, ranks, round);
        *wrong += wrong_in_ring(rank, round % 2 ? part : other, half, round);
        *wrong += wrong_in_ring(rank, rank->comm, world, round);
        *wrong += comm_barrier(part) != 0;
    }
    return 0;
}

/* ---- random patterns ------------------------------------------------------------------------- */

enum { ROUNDS = 200, LANES = 3, MOST_PARTS = 3, MOST_BYTES = 3000 };

/* Part i of what `from` sends `to` in `round`: the same on every rank. */
static int64_t random_bytes(int from, int to, int round, int part)
{
    uint64_t state = ((uint64_t)round * 64 + (uint64_t)from) * 64 + (uint64_t)to;
    next_random(&state);
    state += (uint64_t)part * 977;
    next_random(&state);
    uint64_t kind = next_random(&state) % 4;
    return kind < 2 ? 0 : (int64_t)(next_random(&state) % MOST_BYTES);
}

/* One lane: a communicator, a stream, and a buffer for what goes out and comes in. */
struct lane {
    struct comm *comm;
    struct stream *stream;
    char *out, *in;
};

static int list_parts(
    struct rank *rank, char *block, int round, bool sending, struct comm_part *parts)
{
    int count = 0;
    for (int p = 0; p < rank->count; p++) {
        for (int part = 0; part < MOST_PARTS; part++) {
            int64_t bytes = sending ? random_bytes(rank->index, p, round, part)
                                    : random_bytes(p, rank->index, round, part);
            parts[count] = (struct comm_part){p, block + (int64_t)count * MOST_BYTES, bytes};
            count++;
        }
    }
    return count;
}

static int64_t check_round(struct rank *rank, const struct lane *lane, int round)
{
    int64_t wrong = 0, count = 0;
    for (int p = 0; p < rank->count; p++) {
        for (int part = 0; part < MOST_PARTS; part++, count++)
            wrong += wrong_bytes(rank, lane->in + count * MOST_BYTES, p,
                rank->index * MOST_PARTS + part, round, random_bytes(p, rank->index, round, part));
    }
    return wrong;
}

static void open_lanes(struct rank *rank, struct lane *lanes)
{
    static const char *const names[LANES] = {"left", "middle", "right"};
    int64_t bytes = (int64_t)rank->count * MOST_PARTS * MOST_BYTES;
    for (int i = 0; i < LANES; i++) {
        lanes[i].comm = comm_dup(rank->comm, names[i]);
        lanes[i].stream = dev_stream(rank->dev, names[i]);
        lanes[i].out = dev_alloc(rank->dev, bytes, LIVE_RING, "out");
        lanes[i].in = dev_alloc(rank->dev, bytes, LIVE_RING, "in");
        dev_wait_stream(lanes[i].stream, dev_main_stream(rank->dev));
    }
}

/* LANES exchanges at a time on as many streams, each rank and stream delayed at random. Thread
 * ranks may even enqueue them in different orders, and here do. */
static int random_patterns(struct rank *rank, void *context)
{
    struct tally *tally = context;
    struct lane lanes[LANES];
    uint64_t delay = (uint64_t)rank->index + 5;
    struct comm_part send[64 * MOST_PARTS], receive[64 * MOST_PARTS];
    open_lanes(rank, lanes);
    for (int round = 0; round + LANES <= ROUNDS; round += LANES) {
        for (int i = 0; i < LANES; i++) {
            int count = list_parts(rank, lanes[i].out, round + i, true, send);
            for (int k = 0; k < count; k++)
                put_bytes(rank, send[k].data, send[k].peer * MOST_PARTS + k % MOST_PARTS, round + i,
                    send[k].bytes);
        }
        for (int i = 0; i < LANES; i++) {
            struct lane *lane = &lanes[(i + rank->index) % LANES];
            int lane_round = round + (i + rank->index) % LANES;
            double pause_s = (double)(next_random(&delay) % 8) * 50e-6;
            int sends = list_parts(rank, lane->out, lane_round, true, send);
            int receives = list_parts(rank, lane->in, lane_round, false, receive);
            int32_t *nothing = (int32_t *)lane->in;
            launch_shift(lane->stream, (struct shift_args){nothing, nothing, 0, 0, pause_s});
            comm_exchange(lane->comm, lane->stream, "random", send, sends, receive, receives);
        }
        for (int i = 0; i < LANES; i++)
            tally->wrong[rank->index] += check_round(rank, &lanes[i], round + i);
    }
    return 0;
}

/* ---- pacing ---------------------------------------------------------------------------------- */

enum { PACED_BYTES = 1000000 };

/* The seconds that the slower of two ranks takes for two exchanges at the same time. */
static double time_pair(
    struct rank *rank, struct comm **comms, struct stream **streams, char *blocks)
{
    int peer = 1 - rank->index;
    double mine_s, both_s[2];
    dev_sync(rank->dev);
    comm_barrier(rank->comm);
    double begin_s = timing_now_s();
    for (int i = 0; i < 2; i++) {
        struct comm_part send = {peer, blocks + i * PACED_BYTES, PACED_BYTES};
        struct comm_part receive = {peer, blocks + (i + 2) * PACED_BYTES, PACED_BYTES};
        comm_exchange(comms[i], streams[i], "paced", &send, 1, &receive, 1);
    }
    dev_sync(rank->dev);
    mine_s = timing_now_s() - begin_s;
    comm_host_all_gather(rank->comm, &mine_s, both_s, sizeof mine_s);
    return both_s[0] > both_s[1] ? both_s[0] : both_s[1];
}

/* Two exchanges of 1 MB on two communicators share a link of 50 MB/s: never less than 40 ms, and,
 * in a quiet moment, little more. */
static int paced(struct rank *rank, void *context)
{
    struct tally *tally = context;
    struct comm *comms[2] = {rank->comm, comm_dup(rank->comm, "other")};
    struct stream *streams[2] = {dev_main_stream(rank->dev), dev_stream(rank->dev, "side")};
    char *blocks = dev_alloc(rank->dev, 4 * PACED_BYTES, LIVE_RING, "blocks");
    double best_s = 1;
    dev_fill(streams[0], blocks, 1, 4 * PACED_BYTES);
    for (int i = 0; i < 40 && best_s > 0.044; i++) {
        double seconds = time_pair(rank, comms, streams, blocks);
        tally->wrong[rank->index] += seconds < 0.04;
        best_s = seconds < best_s ? seconds : best_s;
    }
    tally->wrong[rank->index] += best_s > 0.06;
    return 0;
}

static void run_collectives(int ranks)
{
    struct ranks_config config = {.count = ranks, .timeout_s = 20};
    run_ranks("all-to-all-v", config, all_to_all);
    run_ranks("all-gather-v", config, all_gather);
    run_ranks("broadcast", config, broadcast);
    run_ranks("ring", config, ring);
    run_ranks("several parts to a peer", config, several_parts);
    run_ranks("host all-gather and barrier", config, host_side);
    run_ranks("barrier", config, barrier);
    run_ranks("subsets and subsets of them", config, subsets);
    run_ranks("200 random patterns on three communicators", config, random_patterns);
}

/* An argument is a number of ranks per process. */
int main(int argc, char **argv)
{
    static const int counts[] = {1, 2, 3, 4, 8};
    int status = launch_open("test_comm");
    if (status >= 0)
        return status;
    if (argc > 1)
        launch_set_ranks_per_process(atoi(argv[1]));
    launch_agree(-1, argc, argv);
    if (launch_started()) {
        run_collectives(launch_ranks());
    } else {
        for (int i = 0; i < 5; i++)
            run_collectives(counts[i]);
        run_ranks("paced messages share a link",
            (struct ranks_config){.count = 2, .timeout_s = 20, .message_bytes_per_s = 50e6}, paced);
    }
    return launch_close(tap_done());
}
