/* What device/nccl.cu takes for granted of NCCL, with a thread for each rank: messages in groups,
 * communicators that do not block, errors that come later, and abort. The emulator is held to it
 * here; so are GPUs, one for each of four ranks, where the test is linked with NCCL. */
#include "kernels/launch.cuh"
#include <pthread.h>
#include <time.h>
extern "C" {
#include "tests/tap.h"
}

#ifdef HAVE_NCCL
#include <nccl.h>

enum { RANKS = 4, COUNT = 1000 };

/* A rank of one test; `wrong` counts what did not come as it should. */
struct rank {
    int number, wrong;
    ncclUniqueId id;
    void (*body)(struct rank *rank);
    ncclComm_t comm;
    cudaStream_t stream;
    int *send, *receive; /* COUNT and RANKS * COUNT numbers on the device */
};

#define EXPECT(rank, condition) ((rank)->wrong += !(condition))

static void pause_shortly(void)
{
    const struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
}

/* What the communicator comes to, when it is no longer in progress. */
static ncclResult_t settle(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    for (int turn = 0; turn < 50000 && state == ncclInProgress; turn++) {
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess)
            return ncclInternalError;
        pause_shortly();
    }
    return state;
}

/* Whether the stream ends within about `turns` pauses. */
static bool ends(cudaStream_t stream, int turns)
{
    cudaError_t state = cudaErrorNotReady;
    for (int turn = 0; turn < turns && state == cudaErrorNotReady; turn++) {
        state = cudaStreamQuery(stream);
        pause_shortly();
    }
    return state == cudaSuccess;
}

static void *run_rank(void *context)
{
    struct rank *rank = (struct rank *)context;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int numbers[COUNT];
    for (int i = 0; i < COUNT; i++)
        numbers[i] = 10000 * rank->number + i;
    EXPECT(rank, cudaSetDevice(rank->number) == cudaSuccess);
    EXPECT(rank,
        cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking) == cudaSuccess &&
            cudaMalloc((void **)&rank->send, sizeof numbers) == cudaSuccess &&
            cudaMalloc((void **)&rank->receive, RANKS * sizeof numbers) == cudaSuccess &&
            cudaMemset(rank->receive, 0, RANKS * sizeof numbers) == cudaSuccess &&
            cudaMemcpy(rank->send, numbers, sizeof numbers, cudaMemcpyHostToDevice) == cudaSuccess);
    ncclResult_t result =
        ncclCommInitRankConfig(&rank->comm, RANKS, rank->id, rank->number, &config);
    EXPECT(rank, result == ncclSuccess || result == ncclInProgress);
    EXPECT(rank, settle(rank->comm) == ncclSuccess);
    rank->body(rank);
    EXPECT(rank, cudaStreamDestroy(rank->stream) == cudaSuccess);
    EXPECT(rank, cudaFree(rank->send) == cudaSuccess && cudaFree(rank->receive) == cudaSuccess);
    return NULL;
}

/* How often ranks found something wrong. */
static int run_ranks(void (*body)(struct rank *rank))
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    ncclUniqueId id;
    int wrong = ncclGetUniqueId(&id) != ncclSuccess;
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = {r, 0, id, body, NULL, NULL, NULL, NULL};
        if (pthread_create(&threads[r], NULL, run_rank, &ranks[r])) {
            printf("Bail out! no thread\n");
            exit(1);
        }
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
        wrong += ranks[r].wrong;
    }
    return wrong;
}

static void finish(struct rank *rank)
{
    ncclResult_t result = ncclCommFinalize(rank->comm);
    EXPECT(rank, result == ncclSuccess || result == ncclInProgress);
    EXPECT(rank, settle(rank->comm) == ncclSuccess);
    EXPECT(rank, ncclCommDestroy(rank->comm) == ncclSuccess);
}

/* Whether the received numbers from `at` on are the `count` first ones of rank `from`. */
static bool came(const struct rank *rank, int at, int from, int count)
{
    int numbers[COUNT], differ = 0;
    if (cudaMemcpy(numbers, rank->receive + at, (size_t)count * sizeof *numbers,
            cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    for (int i = 0; i < count; i++)
        differ += numbers[i] != 10000 * from + i;
    return !differ;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* Rank r sends 100 (r + 1) numbers to each of the others, in two messages. */
static void all_to_all(struct rank *rank)
{
    const int own = 100 * (rank->number + 1);
    EXPECT(rank, ncclGroupStart() == ncclSuccess);
    for (int peer = 0; peer < RANKS; peer++) {
        if (peer == rank->number)
            continue;
        const int theirs = 100 * (peer + 1);
        EXPECT(rank, ncclSend(rank->send, (size_t)own - 60, ncclInt32, peer, rank->comm,
                         rank->stream) == ncclSuccess);
        EXPECT(rank, ncclSend(rank->send + own - 60, 60, ncclInt32, peer, rank->comm,
                         rank->stream) == ncclSuccess);
        EXPECT(rank, ncclRecv(rank->receive + peer * COUNT, (size_t)theirs - 60, ncclInt32, peer,
                         rank->comm, rank->stream) == ncclSuccess);
        EXPECT(rank, ncclRecv(rank->receive + peer * COUNT + theirs - 60, 60 * 4, ncclUint8, peer,
                         rank->comm, rank->stream) == ncclSuccess);
    }
    ncclResult_t result = ncclGroupEnd();
    EXPECT(rank, result == ncclSuccess || result == ncclInProgress);
    EXPECT(rank, settle(rank->comm) == ncclSuccess);
    EXPECT(rank, cudaStreamSynchronize(rank->stream) == cudaSuccess);
    for (int peer = 0; peer < RANKS; peer++)
        if (peer != rank->number)
            EXPECT(rank, came(rank, peer * COUNT, peer, 100 * (peer + 1)));
    finish(rank);
}

static void gather_and_broadcast(struct rank *rank)
{
    int count = 0, number = -1;
    EXPECT(rank, ncclCommCount(rank->comm, &count) == ncclSuccess && count == RANKS);
    EXPECT(rank, ncclCommUserRank(rank->comm, &number) == ncclSuccess && number == rank->number);
    ncclResult_t result =
        ncclAllGather(rank->send, rank->receive, COUNT, ncclFloat32, rank->comm, rank->stream);
    EXPECT(rank, result == ncclSuccess || result == ncclInProgress);
    EXPECT(rank, settle(rank->comm) == ncclSuccess && ends(rank->stream, 50000));
    for (int peer = 0; peer < RANKS; peer++)
        EXPECT(rank, came(rank, peer * COUNT, peer, COUNT));
    result =
        ncclBroadcast(rank->send, rank->receive, COUNT, ncclInt32, 2, rank->comm, rank->stream);
    EXPECT(rank, result == ncclSuccess || result == ncclInProgress);
    EXPECT(rank, settle(rank->comm) == ncclSuccess && ends(rank->stream, 50000));
    EXPECT(rank, came(rank, 0, 2, COUNT));
    finish(rank);
}

/* The last rank stays away: the others' groups do not end until they are aborted. */
static void wait_in_vain(struct rank *rank)
{
    const int peer = (rank->number + 1) % RANKS, from = (rank->number + RANKS - 1) % RANKS;
    if (rank->number != RANKS - 1) {
        EXPECT(rank, ncclGroupStart() == ncclSuccess);
        EXPECT(rank,
            ncclSend(rank->send, COUNT, ncclInt32, peer, rank->comm, rank->stream) == ncclSuccess);
        EXPECT(rank, ncclRecv(rank->receive, COUNT, ncclInt32, from, rank->comm, rank->stream) ==
                         ncclSuccess);
        ncclResult_t result = ncclGroupEnd();
        EXPECT(rank, result == ncclSuccess || result == ncclInProgress);
        EXPECT(rank, settle(rank->comm) == ncclSuccess);
        if (rank->number != 1) /* rank 0 misses the last one's message, 2 its receiver */
            EXPECT(rank, !ends(rank->stream, 100));
    }
    EXPECT(rank, ncclCommAbort(rank->comm) == ncclSuccess);
    EXPECT(rank, ends(rank->stream, 50000));
}

/* ---- without threads ------------------------------------------------------------------------- */

static bool mistakes_are_told(void)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    int *numbers = NULL;
    bool holds = ncclGetUniqueId(&id) == ncclSuccess &&
                 ncclCommInitRank(&comm, 1, id, 1) == ncclInvalidArgument &&
                 ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess &&
                 cudaMalloc((void **)&numbers, 4) == cudaSuccess &&
                 ncclSend(numbers, 1, ncclInt32, 7, comm, NULL) == ncclInvalidArgument &&
                 ncclCommDestroy(comm) == ncclSuccess && cudaFree(numbers) == cudaSuccess;
    return holds && strstr(ncclGetErrorString(ncclInvalidArgument), "invalid argument");
}

int main(void)
{
    int devices = 0;
    setenv("CUDA_EMU_DEVICES", "4", 0); /* of no effect on GPUs */
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < RANKS) {
        printf("1..0 # SKIP %d CUDA devices here, needed are %d\n", devices, RANKS);
        return 0;
    }
    tap_ok(run_ranks(all_to_all) == 0, "a group of sends and receives of all lengths");
    tap_ok(run_ranks(gather_and_broadcast) == 0, "an all-gather and a broadcast");
    tap_ok(run_ranks(wait_in_vain) == 0, "a group without its partner ends with an abort");
    tap_ok(mistakes_are_told(), "ranks and peers that are not there");
    return tap_done();
}
#else
int main(void)
{
    printf("1..0 # SKIP built without NCCL\n");
    return 0;
}
#endif
