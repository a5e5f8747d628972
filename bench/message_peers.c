/* message_peers - messages between two ranks beside those of the MPI library alone
 *
 *   mpirun -np 2 message_peers
 *
 * Two ranks, each a process. In turn, round by round: MPI's own blocking ping-pong and exchange,
 * and with the same memory our one-way messages, a ring step and an all-to-all. A bar is the least
 * share of MPI's best large-message bandwidth, in the same pattern and run, that ours must reach;
 * best of all rounds on both sides, since what disturbs a copy only ever slows it. Exits 1 when a
 * bar is missed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/options.h"
#include "bench/harness/units.h"
#include "device/comm.h"
#include "device/launch.h"
#include "device/mpi_peer.h"
#include "probe/timing.h"

#define LEAST 0.8
#define SAMPLE_BYTES ((int64_t)32 << 20) /* of one sample, or two messages */

static const int64_t sizes[] = {1 << 20, 4 << 20, 16 << 20, 64 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes, ROUNDS = 30 };
enum pattern { MPI_ONE_WAY, MPI_BOTH_WAYS, ONE_WAY, RING, ALL_TO_ALL, PATTERNS };

struct best {
    double rate[PATTERNS][SIZES]; /* bytes/s from one rank to the other */
    bool wrong;
};

struct blocks {
    struct rank *rank;
    char *send, *receive; /* of the largest message */
};

/* One message from rank 0 to rank 1, then one back. */
static void send_one_way(const struct blocks *b, int64_t bytes)
{
    struct stream *stream = dev_main_stream(b->rank->dev);
    int self = b->rank->index;
    for (int from = 0; from < 2; from++) {
        struct comm_part send = {1, b->send, bytes}, receive = {0, b->receive, bytes};
        send.peer = 1 - self;
        receive.peer = 1 - self;
        comm_exchange(
            b->rank->comm, stream, "one way", &send, self == from, &receive, self != from);
    }
}

static void step_ring(const struct blocks *b, int64_t bytes)
{
    struct comm_part send = {1 - b->rank->index, b->send, bytes};
    struct comm_part receive = {1 - b->rank->index, b->receive, bytes};
    comm_exchange(b->rank->comm, dev_main_stream(b->rank->dev), "ring step", &send, 1, &receive, 1);
}

/* Its own part is left out, and the other is where the ring's is. */
static void all_to_all(const struct blocks *b, int64_t bytes)
{
    int64_t counts[2] = {bytes, bytes}, offsets[2] = {0, 0};
    counts[b->rank->index] = 0;
    comm_all_to_all_v(b->rank->comm, dev_main_stream(b->rank->dev), b->send, counts, offsets,
        b->receive, counts, offsets);
}

/* Seconds of one message in this pattern. */
static double sample(const struct blocks *b, enum pattern pattern, int64_t bytes)
{
    int repeats = bytes < SAMPLE_BYTES / 2 ? (int)(SAMPLE_BYTES / bytes) : 2;
    if (pattern == MPI_ONE_WAY)
        return mpi_peer_one_way_s(b->send, b->receive, bytes, repeats / 2 + 1);
    if (pattern == MPI_BOTH_WAYS)
        return mpi_peer_both_ways_s(b->send, b->receive, bytes, repeats);
    dev_sync(b->rank->dev);
    comm_barrier(b->rank->comm);
    double begin_s = timing_now_s();
    for (int i = 0; i < repeats; i++) {
        if (pattern == RING)
            step_ring(b, bytes);
        else if (pattern == ALL_TO_ALL)
            all_to_all(b, bytes);
        else if (i % 2 == 0)
            send_one_way(b, bytes);
    }
    dev_sync(b->rank->dev);
    return (timing_now_s() - begin_s) / repeats;
}

/* Both ranks' slower time counts. */
static int note(struct rank *rank, double seconds, int64_t bytes, double *rate)
{
    double both[2];
    if (comm_host_all_gather(rank->comm, &seconds, both, sizeof seconds))
        return -1;
    double slower = both[0] > both[1] ? both[0] : both[1];
    if ((double)bytes / slower > *rate)
        *rate = (double)bytes / slower;
    return 0;
}

static int run_rank(struct rank *rank, void *context)
{
    struct best *best = context;
    int64_t most = sizes[SIZES - 1];
    struct blocks b = {rank, dev_alloc(rank->dev, most, LIVE_RING, "send"),
        dev_alloc(rank->dev, most, LIVE_RING, "receive")};
    char byte = 0;
    dev_fill(dev_main_stream(rank->dev), b.send, 'a' + rank->index, most);
    dev_fill(dev_main_stream(rank->dev), b.receive, 0, most);
    for (int round = 0; round < ROUNDS; round++) {
        for (int size = 0; size < SIZES; size++) {
            for (int pattern = 0; pattern < PATTERNS; pattern++) {
                double seconds = sample(&b, (enum pattern)pattern, sizes[size]);
                if (dev_status(rank->dev) != DEV_OK ||
                    note(rank, seconds, sizes[size], &best->rate[pattern][size]))
                    return -1;
            }
        }
    }
    dev_read(rank->dev, &byte, b.receive + sizes[SIZES - 1] - 1, 1);
    best->wrong = byte != 'b' - rank->index;
    dev_free(rank->dev, b.send);
    dev_free(rank->dev, b.receive);
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

static double best_of(const double *rates)
{
    double best = 0;
    for (int i = 0; i < SIZES; i++)
        best = rates[i] > best ? rates[i] : best;
    return best;
}

/* Prints the rates and the bars. Returns how many are missed. */
static int report(const struct best *best)
{
    static const char *const names[PATTERNS] = {
        "MPI ping-pong", "MPI exchange", "one way", "ring step", "all-to-all"};
    static const int bars[PATTERNS] = {-1, -1, MPI_ONE_WAY, MPI_BOTH_WAYS, MPI_BOTH_WAYS};
    int missed = 0;
    printf("%s, two processes, bytes from one to the other\n%-14s", launch_library(), "");
    for (int i = 0; i < SIZES; i++) {
        char text[32];
        units_bytes(sizes[i], text, sizeof text);
        printf("  %13s", text);
    }
    printf("  %-24s\n", "best of MPI's best");
    for (int p = 0; p < PATTERNS; p++) {
        printf("%-14s", names[p]);
        for (int i = 0; i < SIZES; i++)
            printf("  %8.2f GB/s", best->rate[p][i] / 1e9);
        if (bars[p] >= 0) {
            double share = best_of(best->rate[p]) / best_of(best->rate[bars[p]]);
            missed += share < LEAST;
            printf("  %.2f of at least %.2f %s", share, LEAST, share < LEAST ? "FAIL" : "pass");
        }
        putchar('\n');
    }
    return missed;
}

int main(int argc, char **argv)
{
    struct best best = {.wrong = false};
    struct ranks_failure failure;
    struct ranks_config config = {.count = 2, .timeout_s = 60};
    int status = launch_open("message_peers");
    if (status >= 0)
        return status;
    if (argc > 1 || launch_ranks() != 2) {
        fprintf(stderr, "usage: mpirun -np 2 %s\n", argv[0]);
        return launch_close(EXIT_BAD_INPUT);
    }
    launch_phase("measuring");
    status = EXIT_OK;
    if (ranks_run(&config, run_rank, &best, &failure)) {
        if (launch_is_main())
            fprintf(stderr, "message_peers: rank %d: %s\n", failure.rank, failure.message);
        status = EXIT_ENVIRONMENT;
    } else if (!launch_all(!best.wrong)) {
        if (launch_is_main())
            fprintf(stderr, "message_peers: a message came with other bytes than were sent\n");
        status = EXIT_FAILED_CHECK;
    } else if (report(&best)) {
        status = EXIT_FAILED_CHECK;
    }
    return launch_close(status);
}
