/* What an exchange takes between simulated ranks: who waits for whom, whose links it uses, and how
 * hosts and nodes join. The round machine has two ranks a node. */
#include <math.h>
#include "device/profile.h"
#include "tests/device_case.h"
#include "tests/sim_case.h"

#define LAUNCH 1e-6
#define LINK_LATENCY 2e-6
#define NETWORK_LATENCY 5e-6
#define LINK 1e10
#define NETWORK 2e9
#define RANKS 4

/* What a rank does between two barriers, and when its main stream and its host are done. */
struct plan {
    const char *name;
    void (*body)(struct rank *rank);
    double expected_s[RANKS];
    bool half_duplex;
};

struct outcome {
    const struct plan *plan;
    double took_s[RANKS];
    struct comm_traffic traffic[RANKS];
};

/* A block of `bytes` that may be sent or received. */
static void *block(struct rank *rank, int64_t bytes)
{
    return dev_alloc(rank->dev, bytes, LIVE_RING, "block");
}

/* So many milliseconds of the main stream. */
static void work(struct rank *rank, int milliseconds)
{
    if (milliseconds)
        dev_fill(dev_main_stream(rank->dev), block(rank, milliseconds * INT64_C(100000000)), 0,
            milliseconds * INT64_C(100000000));
}

static void exchange(
    struct rank *rank, int send_to, int64_t sent, int receive_from, int64_t received)
{
    struct comm_part send = {send_to, sent ? block(rank, sent) : NULL, sent};
    struct comm_part receive = {receive_from, received ? block(rank, received) : NULL, received};
    comm_exchange(
        rank->comm, dev_main_stream(rank->dev), "x", &send, sent != 0, &receive, received != 0);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* Rank 0 to rank 1, on their node. */
static void one_way(struct rank *rank)
{
    exchange(rank, 1, rank->index == 0 ? 10000000 : 0, 0, rank->index == 1 ? 10000000 : 0);
}

static void between_nodes(struct rank *rank)
{
    exchange(rank, 2, rank->index == 0 ? 10000000 : 0, 0, rank->index == 2 ? 10000000 : 0);
}

static void both_ways(struct rank *rank)
{
    if (rank->index < 2)
        exchange(rank, 1 - rank->index, 10000000, 1 - rank->index, 10000000);
    else
        exchange(rank, 0, 0, 0, 0);
}

/* Rank 0 has 2 ms of work first; ranks 2 and 3 have nothing to do with it. */
static void latest_arrival(struct rank *rank)
{
    work(rank, rank->index == 0 ? 2 : 0);
    one_way(rank);
}

/* Rank 0 sends rank 1 two messages. */
static void two_messages(struct rank *rank)
{
    struct comm_part parts[2];
    for (int i = 0; i < 2; i++)
        parts[i] = (struct comm_part){1 - rank->index, block(rank, 10000000), 10000000};
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "x", parts, rank->index == 0 ? 2 : 0,
        parts, rank->index == 1 ? 2 : 0);
}

/* Each to the next, rank 1 to rank 2 and rank 3 to rank 0 over the network. */
static void ring(struct rank *rank)
{
    exchange(rank, (rank->index + 1) % RANKS, 10000000, (rank->index + 3) % RANKS, 10000000);
}

static void to_itself(struct rank *rank)
{
    exchange(rank, rank->index, rank->index == 2 ? 50000000 : 0, rank->index,
        rank->index == 2 ? 50000000 : 0);
}

/* Two exchanges on two streams and communicators share the links. */
static void two_at_once(struct rank *rank)
{
    struct comm *other = comm_dup(rank->comm, "other");
    struct stream *side = dev_stream(rank->dev, "side");
    struct comm_part send = {1, block(rank, 10000000), 10000000};
    struct comm_part receive = {0, block(rank, 10000000), 10000000};
    dev_wait_stream(side, dev_main_stream(rank->dev));
    for (int i = 0; i < 2; i++)
        comm_exchange(i ? other : rank->comm, i ? side : dev_main_stream(rank->dev), "x", &send,
            rank->index == 0, &receive, rank->index == 1);
    dev_wait_stream(dev_main_stream(rank->dev), side);
}

/* A gather of 8 bytes joins the hosts, wherever their streams are. */
static void host_gather(struct rank *rank)
{
    int64_t mine = rank->index, all[RANKS];
    work(rank, rank->index == 3 ? 1 : 0);
    dev_sync(rank->dev);
    if (comm_host_all_gather(rank->comm, &mine, all, sizeof mine) || all[2] != 2)
        dev_fail(rank->dev, DEV_FAILED, "the gather brought %lld", (long long)all[2]);
}

/* Pairs of one node, apart from each other. */
static void subsets(struct rank *rank)
{
    struct comm *pair = comm_split(rank->comm, rank->index / 2, 0, "pair");
    struct stream *main = dev_main_stream(rank->dev);
    work(rank, rank->index / 2);
    struct comm_part send = {1, block(rank, 10000000), 10000000};
    struct comm_part receive = {0, block(rank, 10000000), 10000000};
    comm_exchange(pair, main, "x", &send, rank->index % 2 == 0, &receive, rank->index % 2 == 1);
}

#define LINK_S (1e-3 + LAUNCH + LINK_LATENCY)
#define NETWORK_S (5e-3 + LAUNCH + NETWORK_LATENCY)
#define GATHER_S (NETWORK_LATENCY + 8.0 * 3 / NETWORK)
#define WORK_S (1e-3 + LAUNCH)
/* Splitting gathers 12 bytes of each rank on the host. */
#define SPLIT_S (NETWORK_LATENCY + 12.0 * 3 / NETWORK)

static const struct plan plans[] = {
    {"one way, on a node", one_way, {LINK_S, LINK_S, 0, 0}, false},
    {"one way, between nodes", between_nodes, {NETWORK_S, 0, NETWORK_S, 0}, false},
    {"both ways", both_ways, {LINK_S, LINK_S, 0, 0}, false},
    {"both ways on links that are not duplex", both_ways,
        {2e-3 + LAUNCH + LINK_LATENCY, 2e-3 + LAUNCH + LINK_LATENCY, 0, 0}, true},
    {"it begins when the last partner has come", latest_arrival,
        {2e-3 + LAUNCH + LINK_S, 2e-3 + LAUNCH + LINK_S, 0, 0}, false},
    {"two messages in one exchange share a link", two_messages,
        {2e-3 + LAUNCH + LINK_LATENCY, 2e-3 + LAUNCH + LINK_LATENCY, 0, 0}, false},
    {"a ring over two nodes: link and network side by side", ring,
        {NETWORK_S, NETWORK_S, NETWORK_S, NETWORK_S}, false},
    {"to itself, at the memory's bandwidth", to_itself, {0, 0, 1e-3 + LAUNCH, 0}, false},
    {"two exchanges at once share a link", two_at_once,
        {2e-3 + LAUNCH + LINK_LATENCY, 2e-3 + LAUNCH + LINK_LATENCY, 0, 0}, false},
    {"a gather joins the hosts", host_gather,
        {WORK_S + GATHER_S, WORK_S + GATHER_S, WORK_S + GATHER_S, WORK_S + GATHER_S}, false},
    {"subsets do not wait for each other", subsets,
        {SPLIT_S + LINK_S, SPLIT_S + LINK_S, SPLIT_S + WORK_S + LINK_S, SPLIT_S + WORK_S + LINK_S},
        false},
};

static int run(struct rank *rank, void *context)
{
    struct outcome *outcome = context;
    if (comm_barrier(rank->comm))
        return -1;
    double begin_s = dev_clock_s(rank->dev);
    outcome->plan->body(rank);
    outcome->took_s[rank->index] = dev_clock_s(rank->dev) - begin_s;
    outcome->traffic[rank->index] = comm_traffic(rank->comm);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static struct outcome check(const struct plan *plan, struct dev_pool *pool)
{
    struct profile profile = sim_case_profile();
    struct ranks_failure failure = {.message = ""};
    struct outcome outcome = {.plan = plan};
    struct ranks_config config = {.count = RANKS,
        .device = {.kind = DEV_SIM, .pool = pool, .profiles = &profile},
        .timeout_s = 10};
    profile.link_duplex = !plan->half_duplex;
    bool good = ranks_run(&config, run, &outcome, &failure) == 0;
    if (!good)
        tap_note("%s", failure.message);
    for (int r = 0; r < RANKS; r++) {
        if (fabs(outcome.took_s[r] - plan->expected_s[r]) < 2e-12)
            continue;
        good = false;
        tap_note(
            "rank %d took %.12g s, expected %.12g s", r, outcome.took_s[r], plan->expected_s[r]);
    }
    tap_ok(good, "%s", plan->name);
    return outcome;
}

/* Bytes that leave their node are those that the network carries. */
static void check_traffic(const struct outcome *outcome)
{
    bool good = true;
    for (int r = 0; r < RANKS; r++) {
        int64_t network_bytes = outcome->plan->body == ring && r % 2 ? 10000000 : 0;
        good = good && outcome->traffic[r].network_bytes == network_bytes;
    }
    tap_ok(good, "%s: bytes over the network are counted", outcome->plan->name);
}

/* ---- refused --------------------------------------------------------------------------------- */

/* Rank 0 has its exchanges in another order than rank 1. */
static int disorder(struct rank *rank, void *context)
{
    (void)context;
    struct comm *comms[2] = {rank->comm, comm_dup(rank->comm, "other")};
    for (int i = 0; i < 2; i++) {
        struct comm_part send = {1 - rank->index, block(rank, 8), 8};
        struct comm_part receive = {1 - rank->index, block(rank, 8), 8};
        comm_exchange(
            comms[(rank->index + i) % 2], dev_main_stream(rank->dev), "x", &send, 1, &receive, 1);
    }
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static void refusals(struct dev_pool *pool)
{
    struct profile profile = sim_case_profile();
    struct ranks_failure failure = {.message = ""};
    struct ranks_config config = {.count = 2,
        .device = {.kind = DEV_SIM, .pool = pool, .profiles = &profile},
        .timeout_s = 10};
    tap_ok(ranks_run(&config, disorder, NULL, &failure) == -1 &&
               strstr(failure.message, "rank 0 is in exchange 0 of communicator 'world', rank 1 in "
                                       "exchange 0 of 'other'"),
        "exchanges of two communicators in two orders: %s", failure.message);
    config.message_bytes_per_s = 1e9;
    tap_ok(ranks_run(&config, disorder, NULL, &failure) == -1 && strstr(failure.message, "paced"),
        "paced messages: %s", failure.message);
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(1);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct outcome outcome = check(&plans[i], pool);
        if (plans[i].body == ring || plans[i].body == both_ways)
            check_traffic(&outcome);
    }
    refusals(pool);
    dev_pool_free(pool);
    return tap_done();
}
