/* NCCL among threads and processes: messages. A group of sends and receives is an operation on its
 * stream: when the stream comes to it, its messages are posted; it is complete when each of them
 * has met its counterpart. So a rank waits for its partners as it does on GPUs, and what a
 * partner's stream has not done before its group is not done when the message is copied. */
#include <algorithm>
#include "tests/cuda_emu/memory.h"
#include "tests/cuda_emu/nccl_parts.h"

struct channel *channel_of(const struct member *member, const struct transfer *transfer)
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

/* Posts a transfer with a rank of another process unless it is; true when it has met. */
static bool meet_between(const struct member *member, struct transfer *transfer, bool posted)
{
    struct between *between = member->clique->between.get();
    int from = transfer->sends ? member->rank : transfer->peer;
    int to = transfer->sends ? transfer->peer : member->rank;
    if (!posted)
        check_device_memory(transfer);
    if (transfer->sends) {
        if (!posted)
            transfer->number =
                between_send(between, from, to, transfer->call, transfer->data, transfer->bytes);
        return between_was_taken(between, from, to, transfer->number);
    }
    if (!posted)
        transfer->number = between_expect(between, from, to);
    return between_take(
        between, from, to, transfer->number, transfer->call, transfer->data, transfer->bytes);
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
        if (!member->clique->local[(size_t)transfer.peer]) {
            transfer.met = transfer.met || meet_between(member.get(), &transfer, posted);
            if (!transfer.met && between_is_lost(member->clique->between.get(), transfer.peer))
                member->error = ncclRemoteError;
            continue;
        }
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
            {call, sends, peer, static_cast<char *>(const_cast<void *>(data)), bytes, false, 0}});
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
