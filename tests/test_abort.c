/* However a rank fails, every rank returns with an error that names the cause, within two seconds:
 * on the cpu device and on the simulated one. */
#include <stdatomic.h>
#include "tests/device_case.h"
#include "tests/sim_case.h"

enum { RANKS = 4, CULPRIT = 2 };
static const double WITHIN_S = 2;

/* How one rank fails, and what the others are doing meanwhile. */
struct scenario {
    const char *name;
    int (*culprit)(struct rank *rank);
    int (*others)(struct rank *rank);
    enum dev_status status; /* of the failure */
    int rank;               /* that is blamed; -1: whoever noticed */
    const char *words;      /* in its message */
};

/* ---- what the others do: wait for all ranks
 * ------------------------------------------------------ */

static void exchange_with_all(
    struct rank *rank, struct comm *comm, struct stream *stream, const char *label, int64_t bytes)
{
    struct comm_part send[RANKS], receive[RANKS];
    char *out = dev_alloc(rank->dev, bytes, LIVE_RING, "out");
    char *in = dev_alloc(rank->dev, RANKS * bytes, LIVE_RING, "in");
    dev_wait_stream(stream, dev_main_stream(rank->dev));
    for (int p = 0; p < RANKS; p++) {
        send[p] = (struct comm_part){p, out, bytes};
        receive[p] = (struct comm_part){p, in + p * bytes, bytes};
    }
    comm_exchange(comm, stream, label, send, out ? RANKS : 0, receive, in ? RANKS : 0);
}

static int exchange(struct rank *rank)
{
    exchange_with_all(rank, rank->comm, dev_main_stream(rank->dev), "exchange", 1000);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

/* Three exchanges on three streams, and the main stream behind them. */
static int exchange_on_streams(struct rank *rank)
{
    static const char *const names[] = {"one", "two", "three"};
    for (int i = 0; i < 3; i++) {
        struct stream *stream = dev_stream(rank->dev, names[i]);
        exchange_with_all(rank, comm_dup(rank->comm, names[i]), stream, names[i], 1000);
        dev_wait_stream(dev_main_stream(rank->dev), stream);
    }
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

/* In pairs of ranks, the higher one first in its communicator; then all wait for all. */
static int exchange_in_pairs(struct rank *rank, int64_t bytes, const char *label)
{
    struct comm *pair = comm_split(rank->comm, rank->index / 2, -rank->index, "pair");
    char *out = dev_alloc(rank->dev, bytes, LIVE_RING, "out");
    char *in = dev_alloc(rank->dev, 1000, LIVE_RING, "in");
    int peer = pair ? 1 - comm_rank(pair) : 0;
    struct comm_part send = {peer, out, bytes}, receive = {peer, in, 1000};
    comm_exchange(pair, dev_main_stream(rank->dev), label, &send, 1, &receive, 1);
    return dev_sync(rank->dev) == DEV_OK ? comm_barrier(rank->comm) : -1;
}

static int exchange_with_partner(struct rank *rank)
{
    return exchange_in_pairs(rank, 1000, "pair's");
}

static int wait_at_barrier(struct rank *rank)
{
    return comm_barrier(rank->comm);
}

static int gather_on_host(struct rank *rank)
{
    int mine = rank->index, all[RANKS];
    return comm_host_all_gather(rank->comm, &mine, all, sizeof mine);
}

static int duplicate(struct rank *rank)
{
    return comm_dup(rank->comm, "other") ? 0 : -1;
}

static int exchange_nothing(struct rank *rank)
{
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "exchange", NULL, 0, NULL, 0);
    return wait_at_barrier(rank);
}

/* A message that takes 100 s at the scenario's pace. */
static int exchange_slowly(struct rank *rank)
{
    comm_barrier(rank->comm);
    int64_t bytes = 1000000;
    struct comm_part send = {
        (rank->index + 1) % RANKS, dev_alloc(rank->dev, bytes, LIVE_RING, "out"), bytes};
    struct comm_part receive = {
        (rank->index + RANKS - 1) % RANKS, dev_alloc(rank->dev, bytes, LIVE_RING, "in"), bytes};
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "slow", &send, 1, &receive, 1);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

/* ---- how the culprit fails
 * ----------------------------------------------------------------------- */

static int run_out_of_memory(struct rank *rank)
{
    dev_alloc(rank->dev, (int64_t)1 << 40, LIVE_LOGITS, "logits of everything");
    return dev_status(rank->dev) == DEV_OK ? 0 : -1;
}

static int fail(struct rank *rank)
{
    sleep_s(0.05);
    dev_fail(rank->dev, DEV_FAILED, "a planted failure");
    return -1;
}

static int fail_after_a_barrier(struct rank *rank)
{
    comm_barrier(rank->comm);
    sleep_s(0.1);
    dev_fail(rank->dev, DEV_FAILED, "a planted failure");
    return -1;
}

static int return_negative(struct rank *rank)
{
    (void)rank;
    sleep_s(0.05);
    return -7;
}

static int leave_early(struct rank *rank)
{
    (void)rank;
    sleep_s(0.05);
    return 0;
}

static int call_abort(struct rank *rank)
{
    sleep_s(0.05);
    comm_abort(rank->comm, "the user had enough");
    return 0;
}

static int send_other_sizes(struct rank *rank)
{
    exchange_with_all(rank, rank->comm, dev_main_stream(rank->dev), "exchange", 999);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static int send_partner_other_sizes(struct rank *rank)
{
    return exchange_in_pairs(rank, 999, "pair's");
}

static int send_partner_another_label(struct rank *rank)
{
    return exchange_in_pairs(rank, 1000, "another label");
}

static int leave_partner(struct rank *rank)
{
    comm_split(rank->comm, rank->index / 2, -rank->index, "pair");
    sleep_s(0.05);
    return 0;
}

static int send_too_few(struct rank *rank)
{
    char *in = dev_alloc(rank->dev, RANKS * 1000, LIVE_RING, "in");
    struct comm_part receive[RANKS];
    int count = 0;
    for (int p = 0; p < RANKS; p++) {
        if (p != CULPRIT)
            receive[count++] = (struct comm_part){p, in + p * 1000, 1000};
    }
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "exchange", NULL, 0, receive, count);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

/* Only the sender knows of it. */
static int send_what_nobody_expects(struct rank *rank)
{
    struct comm_part send = {0, dev_alloc(rank->dev, 8, LIVE_RING, "out"), 8};
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "exchange", &send, 1, NULL, 0);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static int send_under_another_label(struct rank *rank)
{
    exchange_with_all(rank, rank->comm, dev_main_stream(rank->dev), "another label", 1000);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static int send_to_nobody(struct rank *rank)
{
    struct comm_part send = {RANKS, dev_alloc(rank->dev, 8, LIVE_RING, "out"), 8};
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "exchange", &send, 1, NULL, 0);
    return -1;
}

static int receive_into_what_it_sends(struct rank *rank)
{
    char *both = dev_alloc(rank->dev, 100, LIVE_RING, "both");
    struct comm_part send = {0, both, 60}, receive = {0, both + 50, 50};
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "exchange", &send, 1, &receive, 1);
    return -1;
}

static int send_itself_other_sizes(struct rank *rank)
{
    char *block = dev_alloc(rank->dev, 100, LIVE_RING, "block");
    struct comm_part send = {CULPRIT, block, 40}, receive = {CULPRIT, block + 50, 50};
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "exchange", &send, 1, &receive, 1);
    return -1;
}

static int gather_other_sizes(struct rank *rank)
{
    double mine = 0, all[RANKS];
    return comm_host_all_gather(rank->comm, &mine, all, sizeof mine);
}

/* Longer than the scenario's timeout. */
static int come_late(struct rank *rank)
{
    (void)rank;
    sleep_s(1);
    return 0;
}

/* The others never come to this. */
static int block_a_stream(struct rank *rank)
{
    struct stream *side = dev_stream(rank->dev, "side");
    exchange_with_all(rank, rank->comm, side, "exchange", 1000);
    dev_wait_stream(dev_main_stream(rank->dev), side);
    dev_fill(dev_main_stream(rank->dev), dev_alloc(rank->dev, 8, LIVE_RING, "a"), 0, 8);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static const struct scenario scenarios[] = {
    {"out of memory, others exchange", run_out_of_memory, exchange, DEV_OUT_OF_MEMORY, CULPRIT,
        "logits of everything"},
    {"out of memory, others exchange on three streams", run_out_of_memory, exchange_on_streams,
        DEV_OUT_OF_MEMORY, CULPRIT, "logits"},
    {"a failure, others exchange", fail, exchange, DEV_FAILED, CULPRIT, "a planted failure"},
    {"a failure, others exchange on three streams", fail, exchange_on_streams, DEV_FAILED, CULPRIT,
        "a planted failure"},
    {"a failure, others at a barrier", fail, wait_at_barrier, DEV_FAILED, CULPRIT, "planted"},
    {"a failure, others gather", fail, gather_on_host, DEV_FAILED, CULPRIT, "planted"},
    {"a failure, others duplicate", fail, duplicate, DEV_FAILED, CULPRIT, "planted"},
    {"a failure, others in slow messages", fail_after_a_barrier, exchange_slowly, DEV_FAILED,
        CULPRIT, "planted"},
    {"a negative return, others exchange", return_negative, exchange, DEV_FAILED, CULPRIT,
        "returned -7"},
    {"a negative return, others at a barrier", return_negative, wait_at_barrier, DEV_FAILED,
        CULPRIT, "returned -7"},
    {"a rank that leaves, others exchange", leave_early, exchange, DEV_FAILED, CULPRIT,
        "rank 2 left while rank"},
    {"a rank that leaves, others exchange on three streams", leave_early, exchange_on_streams,
        DEV_FAILED, CULPRIT, "rank 2 left while rank"},
    {"a rank that leaves its subset", leave_partner, exchange_with_partner, DEV_FAILED, CULPRIT,
        "rank 2 left while rank"},
    {"a rank that leaves, others at a barrier", leave_early, wait_at_barrier, DEV_FAILED, CULPRIT,
        "waits for it in 'barrier'"},
    {"a rank that leaves, others gather", leave_early, gather_on_host, DEV_FAILED, CULPRIT,
        "waits for it in 'host all-gather'"},
    {"comm_abort, others exchange", call_abort, exchange, DEV_ABORTED, CULPRIT, "had enough"},
    {"comm_abort, others at a barrier", call_abort, wait_at_barrier, DEV_ABORTED, CULPRIT,
        "had enough"},
    {"sizes that differ", send_other_sizes, exchange, DEV_FAILED, -1, "999"},
    {"sizes that differ in a subset", send_partner_other_sizes, exchange_with_partner, DEV_FAILED,
        -1, "rank 2 sends rank 3 999 bytes in part 0, rank 3 expects 1000"},
    {"labels that differ in a subset", send_partner_another_label, exchange_with_partner,
        DEV_FAILED, -1, "'another label' on rank 2 and 'pair's' on rank 3"},
    {"a message too few", send_too_few, exchange, DEV_FAILED, -1, "rank 2 sends rank"},
    {"a message that nobody expects", send_what_nobody_expects, exchange_nothing, DEV_FAILED,
        CULPRIT, "rank 2 sends rank 0 8 bytes in part 0, rank 0 expects 0"},
    {"labels that differ", send_under_another_label, exchange, DEV_FAILED, -1,
        "'another label' on rank 2"},
    {"a peer that does not exist", send_to_nobody, exchange, DEV_FAILED, CULPRIT,
        "names rank 4; allowed: 0 to 3"},
    {"overlapping parts", receive_into_what_it_sends, exchange, DEV_FAILED, CULPRIT,
        "receives into bytes that it also sends"},
    {"own parts that differ", send_itself_other_sizes, exchange, DEV_FAILED, CULPRIT,
        "sends itself 40 bytes and receives 50"},
    {"gathers of other sizes", gather_other_sizes, gather_on_host, DEV_FAILED, -1, "8"},
    {"a barrier against a gather", gather_on_host, wait_at_barrier, DEV_FAILED, -1, "4"},
    {"a rank that comes late to an exchange", come_late, exchange, DEV_FAILED, CULPRIT,
        "waited 0.3 s for rank 2 in 'exchange'"},
    {"a rank that comes late to a barrier", come_late, wait_at_barrier, DEV_FAILED, CULPRIT,
        "waited 0.3 s for rank 2 in 'barrier'"},
    {"a stream that waits for ranks elsewhere", block_a_stream, wait_at_barrier, DEV_FAILED, -1,
        "waited 0.3 s for rank"},
};

struct outcome {
    const struct scenario *scenario;
    atomic_int fine; /* ranks whose body ended without an error */
};

static int body(struct rank *rank, void *context)
{
    struct outcome *outcome = context;
    const struct scenario *scenario = outcome->scenario;
    int result = rank->index == CULPRIT ? scenario->culprit(rank) : scenario->others(rank);
    if (dev_status(rank->dev) == DEV_OK)
        atomic_fetch_add(&outcome->fine, 1);
    return result;
}

/* Words in the message on the simulated device; NULL where the scenario is not there: its
 * duplicates need no meeting, and it is never paced. It meets others on the host's thread, and
 * finds at once where they are instead. */
static const char *simulated_words(const struct scenario *scenario)
{
    if (scenario->others == duplicate || scenario->others == exchange_slowly)
        return NULL;
    return scenario->culprit == block_a_stream ? "'exchange' on rank 2" : scenario->words;
}

/* profile: of the simulated device; NULL = the cpu device. */
static void run_scenario(
    const struct scenario *scenario, struct dev_pool *pool, const struct profile *profile)
{
    const char *words = profile ? simulated_words(scenario) : scenario->words;
    const char *device = profile ? "sim" : "cpu";
    struct outcome outcome = {.scenario = scenario};
    struct ranks_failure failure;
    bool slow = scenario->others == exchange_slowly;
    bool late = scenario->status == DEV_FAILED && strstr(scenario->words, "waited");
    struct ranks_config config = {.count = RANKS,
        .device = {.kind = profile ? DEV_SIM : DEV_CPU,
            .pool = pool,
            .device_limit_bytes = (int64_t)1 << 30,
            .profiles = profile},
        .message_bytes_per_s = slow ? 1e4 : 0,
        .timeout_s = late ? 0.3 : 20};
    double begin_s = timing_now_s();
    int result = ranks_run(&config, body, &outcome, &failure);
    double seconds = timing_now_s() - begin_s;
    bool told = failure.status == scenario->status && strstr(failure.message, words) &&
                (scenario->rank < 0 || failure.rank == scenario->rank);
    tap_ok(result == -1 && told, "%s, %s: \"%s\"", device, scenario->name, failure.message);
    /* One that leaves, or returns, does not wait for the verdict. */
    int fine = scenario->culprit == leave_early || scenario->culprit == leave_partner ||
               scenario->culprit == return_negative;
    tap_ok(atomic_load(&outcome.fine) == fine, "%s, %s: every rank that waits fails", device,
        scenario->name);
    tap_ok(seconds < WITHIN_S, "%s, %s: within %g s", device, scenario->name, seconds);
    if (!told)
        tap_note("status %d, rank %d", failure.status, failure.rank);
}

/* ---- before and around the ranks
 * ----------------------------------------------------------------- */

static int never(struct rank *rank, void *context)
{
    (void)rank;
    *(bool *)context = true;
    return 0;
}

static void test_refusals(struct dev_pool *pool)
{
    struct ranks_failure failure;
    bool ran = false;
    struct ranks_config config = {.count = 0, .device = {.pool = pool}};
    tap_ok(
        ranks_run(&config, never, &ran, &failure) == -1 && !ran, "no ranks: %s", failure.message);
    config.count = 1025;
    tap_ok(ranks_run(&config, never, &ran, &failure) == -1 && !ran, "too many ranks: %s",
        failure.message);
    config.count = 3;
    config.device.kind = DEV_CUDA;
    tap_ok(ranks_run(&config, never, &ran, &failure) == -1 && !ran &&
               failure.status == DEV_UNAVAILABLE && *failure.message,
        "a device that is not there: %s", failure.message);
}

static int succeed(struct rank *rank, void *context)
{
    (void)context;
    return comm_barrier(rank->comm);
}

static void test_after_a_failure(struct dev_pool *pool)
{
    struct ranks_failure failure;
    struct ranks_config config = {.count = RANKS, .device = {.pool = pool}};
    tap_ok(ranks_run(&config, succeed, NULL, &failure) == 0, "the pool serves the next group");
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(2);
    struct profile profile = sim_case_profile();
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        run_scenario(&scenarios[i], pool, NULL);
        if (simulated_words(&scenarios[i]))
            run_scenario(&scenarios[i], pool, &profile);
    }
    test_refusals(pool);
    test_after_a_failure(pool);
    dev_pool_free(pool);
    return tap_done();
}
