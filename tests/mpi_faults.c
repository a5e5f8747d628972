/* A job of processes in which rank 2 goes wrong in the way that the argument names; tests/mpi.t
 * runs it, tests/cuda_processes.t with GPUs (a second argument: how messages go). The main process
 * prints how each of its groups ended. */
#include <signal.h>
#include <unistd.h>
#include "device/launch.h"
#include "device/mpi_engine.h"
#include "tests/device_case.h"

enum { CULPRIT = 2, LARGE = 300000, GROUPS = 4 };

static const char *fault;

static bool is(const char *name)
{
    return !strcmp(fault, name);
}

/* All to all; large messages wait for their receivers. Returns wrong bytes, -1 after a failure. */
static int64_t exchange(struct rank *rank, const char *label, int64_t bytes)
{
    struct comm_part send[16], receive[16];
    char *out = dev_alloc(rank->dev, bytes, LIVE_RING, "out");
    char *in = dev_alloc(rank->dev, rank->count * bytes, LIVE_RING, "in");
    char *seen = malloc((size_t)(rank->count * bytes));
    int64_t wrong = 0;
    dev_fill(dev_main_stream(rank->dev), out, 17 + rank->index, bytes);
    for (int p = 0; p < rank->count; p++) {
        send[p] = (struct comm_part){p, out, bytes};
        receive[p] = (struct comm_part){p, in + p * bytes, bytes};
    }
    comm_exchange(
        rank->comm, dev_main_stream(rank->dev), label, send, rank->count, receive, rank->count);
    dev_read(rank->dev, seen, in, rank->count * bytes);
    for (int64_t i = 0; dev_status(rank->dev) == DEV_OK && i < rank->count * bytes; i++)
        wrong += seen[i] != 17 + i / bytes;
    free(seen);
    return dev_sync(rank->dev) == DEV_OK ? wrong : -1;
}

/* What the culprit does in place of its exchange. */
static int go_wrong(struct rank *rank)
{
    volatile int *nothing = NULL;
    if (is("exit 0"))
        _exit(0);
    if (is("exit 7"))
        exit(7);
    if (is("kill"))
        raise(SIGKILL);
    if (is("stop"))
        raise(SIGSTOP);
    if (is("crash"))
        return *nothing;
    while (is("loop"))
        usleep(1000);
    if (is("leave"))
        return 0;
    if (is("negative"))
        return -3;
    if (is("memory"))
        return dev_alloc(rank->dev, (int64_t)1 << 40, LIVE_RING, "too much") ? 0 : -1;
    if (is("label"))
        return exchange(rank, "another label", LARGE) ? -1 : 0;
    return exchange(rank, "planned", LARGE - 1) ? -1 : 0;
}

static int run_rank(struct rank *rank, void *context)
{
    const int *group = context;
    bool wrong_now = *group % 2 == 0 && strcmp(fault, "none") != 0;
    if (comm_barrier(rank->comm))
        return -1;
    launch_phase("group %d", *group);
    if (rank->index == CULPRIT && wrong_now)
        return go_wrong(rank);
    int64_t wrong = exchange(rank, "planned", LARGE);
    return wrong || exchange(rank, "second", 1000) ? -1 : 0;
}

/* A message of more than 2 GiB from rank 0 to rank 1, which no count of MPI holds. Its bytes are
 * those of where they lie, at every border of a piece and on a grid. */
static int send_large(struct rank *rank, void *context)
{
    enum { STEP = 77777 };
    const int64_t bytes = (INT64_C(2) << 30) + 12345, border = INT64_C(1) << 30;
    char *block = dev_alloc(rank->dev, bytes, LIVE_RING, "large");
    struct comm_part part = {1 - rank->index, block, bytes};
    int64_t wrong = 0;
    (void)context;
    for (int64_t at = 0; block && rank->index == 0 && at < bytes; at += STEP)
        dev_write(rank->dev, block + at, &(char){(char)(at / STEP)}, 1);
    for (int64_t at = border; block && rank->index == 0 && at < bytes; at += border)
        dev_write(rank->dev, block + at - 2, "edge", 4);
    comm_exchange(rank->comm, dev_main_stream(rank->dev), "large", &part, rank->index == 0, &part,
        rank->index == 1);
    for (int64_t at = 0; rank->index == 1 && at < bytes; at += STEP) {
        char seen = 0;
        dev_read(rank->dev, &seen, block + at, 1);
        wrong += seen != (char)(at / STEP) && at % border > 2 && border - at % border > 2;
    }
    for (int64_t at = border; rank->index == 1 && at < bytes; at += border) {
        char seen[4] = "";
        dev_read(rank->dev, seen, block + at - 2, 4);
        wrong += memcmp(seen, "edge", 4) != 0;
    }
    return dev_sync(rank->dev) == DEV_OK && !wrong ? 0 : -1;
}

static int run_large(void)
{
    struct ranks_failure failure;
    struct ranks_config config = {.count = launch_ranks()};
    int status = ranks_run(&config, send_large, NULL, &failure);
    if (status)
        printf("rank %d: %s\n", failure.rank, failure.message);
    else
        printf("a large message: fine\n");
    fflush(stdout);
    return status ? 1 : 0;
}

int main(int argc, char **argv)
{
    int status = launch_open("mpi_faults"), failures = 0;
    if (status >= 0)
        return status;
    fault = argc > 1 ? argv[1] : "none";
    status = launch_agree(-1, argc, argv);
    if (status < 0 && is("large"))
        return launch_close(run_large());
    mpi_limit_message(100000);
    for (int group = 0; status < 0 && group < GROUPS; group++) {
        struct ranks_failure failure;
        struct ranks_config config = {.count = launch_ranks(),
            .device = {.kind = argc > 2 ? DEV_CUDA : DEV_CPU,
                .messages =
                    argc > 2 && !strcmp(argv[2], "nccl") ? DEV_MESSAGES_NCCL : DEV_MESSAGES_COPIES,
                .device_limit_bytes = (int64_t)1 << 30},
            .timeout_s = 2};
        launch_phase("before group %d", group);
        if (!ranks_run(&config, run_rank, &group, &failure)) {
            printf("group %d: fine\n", group);
            continue;
        }
        failures++;
        printf("group %d: rank %d, status %d: %s\n", group, failure.rank, failure.status,
            failure.message);
    }
    fflush(stdout);
    return launch_close(status < 0 ? failures > 0 : status);
}
