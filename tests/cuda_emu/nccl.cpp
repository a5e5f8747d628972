/* NCCL among the threads of one process. A group of sends and receives is an operation on its
 * stream: when the stream comes to it, its messages are posted; it is complete when each of them
 * has met its counterpart. So a rank waits for its partners as it does on GPUs, and what a
 * partner's stream has not done before its group is not done when the message is copied. */
#include "tests/cuda_emu/nccl.h"
#include <stdio.h>
#include <unistd.h>
#include <algorithm>
#include <deque>
#include <map>
#include <vector>
#include "tests/cuda_emu/memory.h"

struct transfer {
    const char *call; /* both sides name the same collective, or send and receive */
    bool sends;
    int peer;
    char *data;
    size_t bytes;
    bool met;
};

struct group_operation;

/* What is posted from one rank to another and has not met, oldest first. */
struct channel {
    std::deque<struct transfer *> sends, receives;
};

/* The communicators that share an id. */
struct clique {
    int size, joined;
    ncclResult_t state; /* ncclInProgress until all have joined */
    const char *trouble;
    std::vector<struct member *> members; /* by rank; NULL: not there, or gone */
    std::map<std::pair<int, int>, struct channel> channels;
};

/* One rank's part in it. */
struct member {
    std::shared_ptr<struct clique> clique;
    int rank, device;
    bool aborted, finalizing;
    ncclResult_t error;
    std::deque<std::shared_ptr<struct group_operation>> pending; /* enqueued and not complete */
};

struct emulated_comm {
    std::shared_ptr<struct member> member;
};

static std::map<uint64_t, std::shared_ptr<struct clique>>
    cliques; /* by id, until all have joined */

/* ---- a group on its stream ------------------------------------------------------------------- */

struct group_operation : rendezvous {
    std::shared_ptr<struct member> member;
    std::vector<struct transfer> transfers;
    cudaStream_t stream;
    bool posted = false, failing = false;

    bool complete(void) override;
    struct emulated_stream *awaited(void) override;
};

static struct channel *channel_of(const struct member *member, const struct transfer *transfer)
{
    std::pair<int, int> ends(member->rank, transfer->peer);
    if (!transfer->sends)
        std::swap(ends.first, ends.second);
    return &member->clique->channels[ends];
}

static void check_device_memory(const struct transfer *transfer)
{
    struct allocation *found = find_allocation(transfer->data, transfer->bytes);
    if (!found || found->pinned)
        fault("%s: %zu bytes at %p are not in one block of device memory", transfer->call,
            transfer->bytes, (void *)transfer->data);
}

/* Copies what has met on the channel. */
static void match(struct channel *channel)
{
    while (!channel->sends.empty() && !channel->receives.empty()) {
        struct transfer *from = channel->sends.front(), *to = channel->receives.front();
        if (from->bytes != to->bytes || strcmp(from->call, to->call))
            return; /* as on GPUs, nothing comes of it */
        check_device_memory(from);
        check_device_memory(to);
        if (from->data != to->data)
            memcpy(to->data, from->data, from->bytes);
        from->met = to->met = true;
        channel->sends.pop_front();
        channel->receives.pop_front();
    }
}

/* Takes the operation from the books of its communicator. */
static void forget(struct group_operation *operation)
{
    auto *pending = &operation->member->pending;
    for (auto it = pending->begin(); it != pending->end(); ++it) {
        if (it->get() == operation) {
            pending->erase(it);
            return;
        }
    }
}

bool group_operation::complete(void)
{
    if (member->aborted) {
        forget(this);
        return true;
    }
    if (failing) {
        member->error = ncclSystemError;
        return false;
    }
    for (struct transfer &transfer : transfers) {
        struct channel *channel = channel_of(member.get(), &transfer);
        if (!posted)
            (transfer.sends ? channel->sends : channel->receives).push_back(&transfer);
        match(channel);
    }
    posted = true;
    for (const struct transfer &transfer : transfers)
        if (!transfer.met)
            return false;
    forget(this);
    return true;
}

struct emulated_stream *group_operation::awaited(void)
{
    for (const struct transfer &transfer : transfers) {
        struct member *peer = member->clique->members[(size_t)transfer.peer];
        if (transfer.met || !peer || peer->aborted)
            continue;
        for (const auto &other : peer->pending)
            if (!other->posted)
                return other->stream;
    }
    return NULL;
}

/* ---- groups of calls ------------------------------------------------------------------------- */

struct call {
    std::shared_ptr<struct member> member;
    cudaStream_t stream;
    struct transfer transfer;
};

static thread_local int group_depth;
static thread_local std::vector<struct call> calls;

/* The CUDA_EMU_NCCL_FAILS-th group of the process fails. */
static bool fails_now(void)
{
    static int64_t groups;
    return ++groups == emulator_settings()->nccl_fails;
}

static ncclResult_t enqueue_group(const std::shared_ptr<struct group_operation> &operation)
{
    operation->failing = fails_now();
    operation->member->pending.push_back(operation);
    if (enqueue_rendezvous(operation->stream, operation) == cudaSuccess)
        return ncclSuccess;
    forget(operation.get());
    return ncclUnhandledCudaError;
}

/* One operation for each communicator and stream that the calls name. */
static ncclResult_t end_group(void)
{
    std::vector<std::shared_ptr<struct group_operation>> operations;
    for (const struct call &call : calls) {
        std::shared_ptr<struct group_operation> found;
        for (const auto &operation : operations)
            if (operation->member == call.member && operation->stream == call.stream)
                found = operation;
        if (!found) {
            found = std::make_shared<struct group_operation>();
            found->member = call.member;
            found->stream = call.stream;
            operations.push_back(found);
        }
        found->transfers.push_back(call.transfer);
    }
    calls.clear();
    ncclResult_t result = ncclSuccess;
    for (const auto &operation : operations)
        if (result == ncclSuccess)
            result = enqueue_group(operation);
    return result;
}

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    std::unique_lock<std::mutex> held(lock);
    if (!group_depth)
        return ncclInvalidUsage;
    return --group_depth ? ncclSuccess : end_group();
}

static size_t type_bytes(ncclDataType_t type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= ncclInt8 && type <= ncclBfloat16 ? bytes[type] : 0;
}

/* The communicator's part, or NULL with *result saying why nothing can be enqueued on it. */
static std::shared_ptr<struct member> usable(ncclComm_t comm, ncclResult_t *result)
{
    *result = ncclInvalidArgument;
    if (!comm)
        return NULL;
    *result = comm->member->clique->state == ncclSuccess ? comm->member->error
                                                         : comm->member->clique->state;
    return *result == ncclSuccess ? comm->member : NULL;
}

static void note_call(const std::shared_ptr<struct member> &member, cudaStream_t stream,
    const char *call, bool sends, int peer, const void *data, size_t bytes)
{
    if (bytes)
        calls.push_back({member, stream,
            {call, sends, peer, static_cast<char *>(const_cast<void *>(data)), bytes, false}});
}

static ncclResult_t send_or_receive(bool sends, const void *data, size_t count, ncclDataType_t type,
    int peer, ncclComm_t comm, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    ncclResult_t result;
    std::shared_ptr<struct member> member = usable(comm, &result);
    if (!member)
        return result;
    if (!type_bytes(type) || peer < 0 || peer >= member->clique->size)
        return ncclInvalidArgument;
    note_call(member, stream, "send and receive", sends, peer, data, count * type_bytes(type));
    return group_depth ? ncclSuccess : end_group();
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
    ncclComm_t comm, cudaStream_t stream)
{
    return send_or_receive(true, from, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(
    void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return send_or_receive(false, to, count, type, peer, comm, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
    ncclComm_t comm, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    ncclResult_t result;
    std::shared_ptr<struct member> member = usable(comm, &result);
    if (!member)
        return result;
    size_t bytes = count * type_bytes(type);
    if (!type_bytes(type) || root < 0 || root >= member->clique->size)
        return ncclInvalidArgument;
    for (int rank = 0; member->rank == root && rank < member->clique->size; rank++)
        note_call(member, stream, "ncclBroadcast", true, rank, from, bytes);
    note_call(member, stream, "ncclBroadcast", false, root, to, bytes);
    return group_depth ? ncclSuccess : end_group();
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
    ncclComm_t comm, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    ncclResult_t result;
    std::shared_ptr<struct member> member = usable(comm, &result);
    if (!member)
        return result;
    size_t bytes = count * type_bytes(type);
    if (!type_bytes(type))
        return ncclInvalidArgument;
    for (int rank = 0; rank < member->clique->size; rank++) {
        note_call(member, stream, "ncclAllGather", true, rank, from, bytes);
        note_call(member, stream, "ncclAllGather", false, rank,
            static_cast<char *>(to) + (size_t)rank * bytes, bytes);
    }
    return group_depth ? ncclSuccess : end_group();
}

/* ---- communicators --------------------------------------------------------------------------- */

struct id {
    uint64_t number;
    int64_t process;
};

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    std::unique_lock<std::mutex> held(lock);
    static uint64_t number;
    struct id made = {++number, getpid()};
    memset(id, 0, sizeof *id);
    memcpy(id, &made, sizeof made);
    return ncclSuccess;
}

/* The clique of the id, made by the first that asks. */
static std::shared_ptr<struct clique> find_clique(uint64_t number, int ranks)
{
    std::shared_ptr<struct clique> *clique = &cliques[number];
    if (!*clique) {
        *clique = std::make_shared<struct clique>();
        (*clique)->size = ranks;
        (*clique)->state = ncclInProgress;
        (*clique)->members.resize((size_t)ranks);
    }
    return *clique;
}

static void join(const std::shared_ptr<struct clique> &clique, struct member *member, uint64_t id)
{
    for (const struct member *other : clique->members) {
        if (other && other->device == member->device) {
            clique->state = ncclInvalidUsage;
            clique->trouble = "two ranks of a communicator use the same GPU";
        }
    }
    clique->members[(size_t)member->rank] = member;
    if (++clique->joined == clique->size) {
        cliques.erase(id);
        if (clique->state == ncclInProgress)
            clique->state = ncclSuccess;
    }
    changed.notify_all();
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    std::unique_lock<std::mutex> held(lock);
    struct id made;
    memcpy(&made, &id, sizeof made);
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    if (made.process != getpid())
        return ncclSystemError; /* ranks of other processes cannot be reached */
    std::shared_ptr<struct clique> clique = find_clique(made.number, ranks);
    if (clique->size != ranks || clique->members[(size_t)rank])
        return ncclInvalidUsage;
    std::shared_ptr<struct member> member = std::make_shared<struct member>();
    member->clique = clique;
    member->rank = rank;
    member->device = current_device();
    join(clique, member.get(), made.number);
    *comm = new emulated_comm{member};
    if (config && !config->blocking)
        return ncclInProgress;
    while (clique->state == ncclInProgress)
        changed.wait(held);
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
            struct channel *channel = channel_of(member, &transfer);
            for (auto *posted : {&channel->sends, &channel->receives})
                posted->erase(
                    std::remove(posted->begin(), posted->end(), &transfer), posted->end());
        }
    }
}

static void leave(ncclComm_t comm)
{
    comm->member->clique->members[(size_t)comm->member->rank] = NULL;
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
