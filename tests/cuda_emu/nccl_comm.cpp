/* NCCL among threads and processes: communicators. Ranks of one process find each other by their
 * id; those of another find it by a file of that name (nccl_between.h). */
#include <stdio.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include "tests/cuda_emu/nccl_parts.h"

static std::map<std::string, std::shared_ptr<struct clique>>
    cliques; /* by name, until all have joined */

/* ---- ranks of other processes ---------------------------------------------------------------- */

/* Members of this process in communicators that reach beyond it; never freed, so that the thread
 * that looks after them can outlive main. */
static std::vector<std::shared_ptr<struct member>> *reaching =
    new std::vector<std::shared_ptr<struct member>>;

/* Whether a rank of another process has come to a message of the operation, or waits for the end of
 * one that is posted. */
static bool is_awaited(const struct group_operation *operation)
{
    const struct member *member = operation->member.get();
    for (const struct transfer &transfer : operation->transfers)
        if (!member->clique->local[(size_t)transfer.peer] &&
            (operation->posted || between_is_awaited(member->clique->between.get(), member->rank,
                                      transfer.peer, transfer.sends)))
            return true;
    return false;
}

/* GPUs work while their hosts do something else: what other processes wait for gets on, and who
 * waits here looks again. In a thread of its own, as long as there is such a member. */
static void look_after_others(void)
{
    std::unique_lock<std::mutex> held(lock);
    while (!reaching->empty()) {
        std::vector<std::shared_ptr<struct member>> members = *reaching;
        for (const auto &member : members) {
            while (!member->pending.empty() && is_awaited(member->pending.front().get()) &&
                   advance_stream(member->pending.front()->stream))
                continue;
        }
        changed.notify_all();
        held.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        held.lock();
    }
}

static void reach_out(const std::shared_ptr<struct member> &member)
{
    between_join(
        member->clique->between.get(), member->rank, emulator_settings()->gpus[member->device]);
    reaching->push_back(member);
    if (reaching->size() == 1)
        std::thread(look_after_others).detach();
}

/* ---- communicators --------------------------------------------------------------------------- */

struct id {
    char name[64];
    int64_t process;
};

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    std::unique_lock<std::mutex> held(lock);
    static uint64_t number;
    struct id made = {};
    made.process = getpid();
    snprintf(made.name, sizeof made.name, "cuda-emu-nccl-%ld-%llu-%08x", (long)getpid(),
        (unsigned long long)++number, std::random_device()());
    memset(id, 0, sizeof *id);
    memcpy(id, &made, sizeof made);
    return ncclSuccess;
}

/* The clique of the id, made by the first that asks. */
static std::shared_ptr<struct clique> find_clique(const struct id *id, int ranks)
{
    std::shared_ptr<struct clique> *clique = &cliques[id->name];
    if (!*clique) {
        *clique = std::make_shared<struct clique>();
        (*clique)->name = id->name;
        (*clique)->is_ours = id->process == getpid();
        (*clique)->size = ranks;
        (*clique)->state = ncclInProgress;
        (*clique)->members.resize((size_t)ranks);
        (*clique)->local.resize((size_t)ranks);
    }
    return *clique;
}

static bool same_gpu(const struct clique *clique, int a, int b)
{
    if (clique->between)
        return between_has_joined(clique->between.get(), a) &&
               between_has_joined(clique->between.get(), b) &&
               between_same_gpu(clique->between.get(), a, b);
    const struct member *left = clique->members[(size_t)a], *right = clique->members[(size_t)b];
    return left && right && left->device == right->device;
}

/* Looks whether all have joined. Who has made the id learns here that others are elsewhere. */
static void update(const std::shared_ptr<struct clique> &clique)
{
    if (clique->state != ncclInProgress)
        return;
    int joined = clique->joined;
    if (!clique->between && joined < clique->size) {
        clique->between = between_open(clique->name, clique->size, !clique->is_ours);
        for (struct member *member : clique->members)
            if (clique->between && member)
                reach_out(member->shared_from_this());
    }
    if (clique->between)
        for (int rank = joined = 0; rank < clique->size; rank++)
            joined += between_has_joined(clique->between.get(), rank);
    for (int a = 0; a < clique->size; a++) {
        for (int b = 0; b < a; b++) {
            if (same_gpu(clique.get(), a, b)) {
                clique->state = ncclInvalidUsage;
                clique->trouble = "two ranks of a communicator use the same GPU";
            }
        }
    }
    if (joined == clique->size) {
        cliques.erase(clique->name);
        if (clique->state == ncclInProgress)
            clique->state = ncclSuccess;
    }
}

static void join(const std::shared_ptr<struct clique> &clique, struct member *member)
{
    clique->members[(size_t)member->rank] = member;
    clique->local[(size_t)member->rank] = true;
    clique->joined++;
    if (clique->between)
        reach_out(member->shared_from_this());
    update(clique);
    changed.notify_all();
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    std::unique_lock<std::mutex> held(lock);
    struct id made;
    memcpy(&made, &id, sizeof made);
    if (ranks < 1 || rank < 0 || rank >= ranks || !memchr(made.name, 0, sizeof made.name))
        return ncclInvalidArgument;
    std::shared_ptr<struct clique> clique = find_clique(&made, ranks);
    if (clique->size != ranks || clique->local[(size_t)rank])
        return ncclInvalidUsage;
    std::shared_ptr<struct member> member = std::make_shared<struct member>();
    member->clique = clique;
    member->rank = rank;
    member->device = current_device();
    join(clique, member.get());
    *comm = new emulated_comm{member};
    if (config && !config->blocking)
        return ncclInProgress;
    for (update(clique); clique->state == ncclInProgress; update(clique))
        changed.wait_for(held, std::chrono::milliseconds(1));
    return clique->state;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, NULL);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    std::unique_lock<std::mutex> held(lock);
    if (!comm)
        return ncclInvalidArgument;
    struct member *member = comm->member.get();
    update(member->clique);
    *state = member->clique->state == ncclSuccess ? member->error : member->clique->state;
    if (*state == ncclSuccess && member->finalizing && !member->pending.empty()) {
        advance_stream(member->pending.front()->stream);
        *state = ncclInProgress;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    std::unique_lock<std::mutex> held(lock);
    if (!comm)
        return ncclInvalidArgument;
    comm->member->finalizing = true;
    return comm->member->pending.empty() ? ncclSuccess : ncclInProgress;
}

/* Takes the rank's messages that have not met from the channels. */
static void withdraw(struct member *member)
{
    for (const auto &operation : member->pending) {
        for (struct transfer &transfer : operation->transfers) {
            if (!member->clique->local[(size_t)transfer.peer]) {
                if (operation->posted && transfer.sends && !transfer.met)
                    between_withdraw(member->clique->between.get(), member->rank, transfer.peer,
                        transfer.number);
                continue;
            }
            struct channel *channel = channel_of(member, &transfer);
            for (auto *posted : {&channel->sends, &channel->receives})
                posted->erase(
                    std::remove(posted->begin(), posted->end(), &transfer), posted->end());
        }
    }
}

static void leave(ncclComm_t comm)
{
    struct member *member = comm->member.get();
    member->clique->members[(size_t)member->rank] = NULL;
    if (member->clique->between)
        between_leave(member->clique->between.get(), member->rank);
    reaching->erase(std::remove(reaching->begin(), reaching->end(), comm->member), reaching->end());
    changed.notify_all();
    delete comm;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    std::unique_lock<std::mutex> held(lock);
    if (!comm)
        return ncclInvalidArgument;
    comm->member->aborted = true;
    withdraw(comm->member.get());
    leave(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    std::unique_lock<std::mutex> held(lock);
    if (!comm)
        return ncclInvalidArgument;
    while (!comm->member->pending.empty())
        if (!advance_stream(comm->member->pending.front()->stream))
            changed.wait(held);
    leave(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count)
{
    *count = comm->member->clique->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    *rank = comm->member->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device)
{
    *device = comm->member->device;
    return ncclSuccess;
}

/* ---- words ----------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    }
    return "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    std::unique_lock<std::mutex> held(lock);
    const char *trouble = comm ? comm->member->clique->trouble : NULL;
    return trouble ? trouble : "";
}
