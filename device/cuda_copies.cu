/* Messages between thread ranks as copies on the GPU: for ranks that share a GPU, which a message
 * library refuses, and for ranks of several GPUs that can reach each other's memory.
 *
 * An exchange is carried out when it is enqueued. The ranks' host threads meet on the board, twice:
 *
 *     sender:    record `ready`, post ---------------------. .--> wait for `taken` on the stream
 *     receiver:  post, wait for the sender's `ready` on the stream, copy, record `taken`, tell
 *
 * An event must have been recorded before it is waited for, hence the two meetings; the GPU itself
 * never waits for a host. All ranks enqueue their exchanges in one order, so the hosts cannot wait
 * for each other in a circle, and every wait on a stream is for what was enqueued before it. */
#include "device/cuda_device.h"
#include <stdlib.h>
#include <string.h>

struct copies {
    struct board *board; /* but the root's, it belongs to rank 0's communicator */
};

/* Of one rank's side of an exchange; as long as its page is in use, so that each partner can still
 * wait for them. */
struct copy_events {
    cudaEvent_t ready; /* what the rank sends is there */
    cudaEvent_t taken; /* it has copied all that it receives */
};

/* ---- communicators ----------------------------------------------------------------------------
 */

/* Lets the GPUs of other ranks read this rank's memory. */
static bool share_memory(struct comm *comm, int gpus)
{
    struct device *dev = comm->dev;
    int own = cuda_of(dev)->ordinal, used = comm->size < gpus ? comm->size : gpus;
    for (int other = 0; other < used; other++) {
        int reachable = 0;
        if (other == own)
            continue;
        if (!CUDA_DO(dev, cudaDeviceCanAccessPeer(&reachable, other, own)))
            return false;
        if (!reachable) {
            dev_fail(dev, DEV_UNAVAILABLE,
                "GPU %d cannot read the memory of GPU %d, which messages by copies need; use NCCL",
                other, own);
            return false;
        }
        cudaMemAccessDesc access;
        memset(&access, 0, sizeof access);
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = other;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        if (!CUDA_DO(dev, cudaMemPoolSetAccess(cuda_of(dev)->pool, &access, 1)))
            return false;
    }
    return true;
}

static bool copies_open(struct comm *comm, struct board *board)
{
    int gpus = 0;
    struct copies *copies = (struct copies *)calloc(1, sizeof *copies);
    if (!copies)
        return false;
    copies->board = board;
    comm->size = group_size(board_group(board));
    if (!CUDA_DO(comm->dev, cudaGetDeviceCount(&gpus)) || !share_memory(comm, gpus)) {
        free(copies);
        return false;
    }
    comm->state = copies;
    return true;
}

static void copies_close(struct comm *comm)
{
    struct copies *copies = (struct copies *)comm->state;
    if (comm != comm->root && comm->rank == 0)
        board_free(copies->board);
    free(copies);
}

static bool copies_duplicate(struct comm *parent, struct comm *child)
{
    const struct copies *from = (const struct copies *)parent->state;
    struct copies *copies = (struct copies *)calloc(1, sizeof *copies);
    if (!copies) {
        dev_fail(parent->dev, DEV_FAILED, "no memory for communicator '%s'", child->name);
        return false;
    }
    copies->board = board_of_child(from->board, child);
    if (!copies->board) {
        free(copies);
        return false;
    }
    child->state = copies;
    return true;
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

static void release_events(void *state)
{
    struct copy_events *events = (struct copy_events *)state;
    /* Nobody is left who could act on an error. */
    if (events->ready)
        (void)cudaEventDestroy(events->ready);
    if (events->taken)
        (void)cudaEventDestroy(events->taken);
    free(events);
}

static bool make_events(struct device *dev, struct exchange *exchange)
{
    struct copy_events *events = (struct copy_events *)calloc(1, sizeof *events);
    if (!events) {
        dev_fail(dev, DEV_FAILED, "no memory for exchange '%s'", exchange->label);
        return false;
    }
    exchange->state = events;
    exchange->release = release_events;
    return CUDA_DO(dev, cudaEventCreateWithFlags(&events->ready, cudaEventDisableTiming)) &&
           CUDA_DO(dev, cudaEventCreateWithFlags(&events->taken, cudaEventDisableTiming));
}

static const struct copy_events *events_of(const struct board_page *page, int rank)
{
    return (const struct copy_events *)page->side[rank].exchange->state;
}

/* Enqueues the copies of what `from` sends to `to`; their parts match. Returns how many parts, or
 * -1. */
static int copy_parts(struct stream *stream, const struct exchange *sender,
    const struct exchange *receiver, int from, int to)
{
    int send_first, receive_first;
    int count = exchange_parts(sender->send, sender->sends, to, &send_first);
    exchange_parts(receiver->receive, receiver->receives, from, &receive_first);
    for (int i = 0; i < count; i++) {
        const struct comm_part *part = &sender->send[send_first + i];
        if (!CUDA_DO(
                stream->dev, cudaMemcpyAsync(receiver->receive[receive_first + i].data, part->data,
                                 (size_t)part->bytes, cudaMemcpyDefault, cuda_handle(stream))))
            return -1;
    }
    return count;
}

/* Copies what all partners send, each behind its `ready`. taken[i] is how many parts partners[i]
 * gave; the exchange's own list is ticked off. */
static bool copy_all(struct comm *comm, struct stream *stream, struct board *board,
    struct board_page *page, int *partners, int *taken)
{
    struct exchange *exchange = page->side[comm->rank].exchange;
    int first;
    for (int i = 0; exchange->partner_count; i++) {
        partners[i] = board_next(board, page, comm->rank);
        if (partners[i] < 0)
            return false;
        const struct exchange *sender = page->side[partners[i]].exchange;
        taken[i] = exchange_parts(sender->send, sender->sends, comm->rank, &first);
        if (!taken[i])
            continue;
        if (!CUDA_DO(comm->dev,
                cudaStreamWaitEvent(cuda_handle(stream), events_of(page, partners[i])->ready, 0)) ||
            copy_parts(stream, sender, exchange, partners[i], comm->rank) < 0)
            return false;
    }
    return CUDA_DO(
        comm->dev, cudaEventRecord(events_of(page, comm->rank)->taken, cuda_handle(stream)));
}

/* The stream goes on when all partners have copied what this rank sends. */
static bool wait_taken(struct comm *comm, struct stream *stream, struct board *board,
    struct board_page *page, const int *partners, int count)
{
    const struct exchange *exchange = page->side[comm->rank].exchange;
    int first;
    if (!board_wait_taken(board, page, comm->rank))
        return false;
    for (int i = 0; i < count; i++) {
        if (exchange_parts(exchange->send, exchange->sends, partners[i], &first) &&
            !CUDA_DO(comm->dev,
                cudaStreamWaitEvent(cuda_handle(stream), events_of(page, partners[i])->taken, 0)))
            return false;
    }
    return true;
}

bool cuda_copy_own_parts(struct comm *comm, struct stream *stream, const struct exchange *exchange)
{
    return copy_parts(stream, exchange, exchange, comm->rank, comm->rank) >= 0;
}

static void meet(struct comm *comm, struct stream *stream, struct board *board,
    struct board_page *page, int *partners, int *taken)
{
    const struct exchange *exchange = page->side[comm->rank].exchange;
    int count = exchange->partner_count;
    if (!cuda_copy_own_parts(comm, stream, exchange) ||
        !copy_all(comm, stream, board, page, partners, taken))
        return;
    for (int i = 0; i < count; i++)
        board_take(board, page, partners[i], taken[i]);
    if (wait_taken(comm, stream, board, page, partners, count))
        board_done(board, page);
}

static void copies_exchange(struct comm *comm, struct stream *stream, struct exchange *exchange)
{
    struct board *board = ((struct copies *)comm->state)->board;
    int *lists = (int *)malloc(2 * (size_t)comm->size * sizeof *lists);
    if (!lists)
        dev_fail(comm->dev, DEV_FAILED, "no memory for exchange '%s'", exchange->label);
    if (!lists || !make_events(comm->dev, exchange) ||
        !CUDA_DO(comm->dev,
            cudaEventRecord(((struct copy_events *)exchange->state)->ready, cuda_handle(stream)))) {
        exchange_free(exchange);
        free(lists);
        return;
    }
    struct board_page *page = board_post(board, comm->rank, exchange, 0, 0);
    if (page)
        meet(comm, stream, board, page, lists, lists + comm->size);
    free(lists);
}

/* ---- the host's side --------------------------------------------------------------------------
 */

static int copies_host_all_gather(struct comm *comm, const void *send, void *receive, int64_t bytes)
{
    return board_all_gather(
        ((struct copies *)comm->state)->board, comm->rank, send, receive, bytes);
}

static void copies_abort(struct comm *comm, int rank, enum dev_status status, const char *message)
{
    group_abort(board_group(((struct copies *)comm->state)->board), rank, status, message);
}

const struct comm_transport transport_cuda_copies = {
    .open = copies_open,
    .duplicate = copies_duplicate,
    .close = copies_close,
    .exchange = copies_exchange,
    .host_all_gather = copies_host_all_gather,
    .host_collect = NULL,
    .abort = copies_abort,
    .announce = NULL,
    .agreed = NULL,
    .forget = NULL,
    .carrier = "copies",
    .spans_processes = false,
};
