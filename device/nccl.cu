/* Messages between ranks that have a GPU each, by NCCL: an exchange is one group of sends and
 * receives on the stream. NCCL moves bytes and never adds. Everything that ranks tell each other
 * beside that, NCCL's ids among it, goes over the host's side (device/host_side.h), so ranks may be
 * threads of one process or of several.
 *
 * Communicators do not block: whatever NCCL does at length goes on in the background, and the host
 * looks after it, so that a rank that is gone, an error on a link, or an abort of the group ends
 * every wait. To NCCL a message that does not match has no other sign than that it never ends; an
 * exchange that its stream has reached has the group's timeout to end in. Between processes ranks
 * also announce to each other what they are about to exchange, and an exchange is over only when
 * all partners have announced the same: a difference is found as soon as the second of them comes,
 * and a rank that does not come is known to be waited for (device/watch.h).
 *
 * All ranks enqueue all exchanges in one and the same order, as NCCL wants it of communicators that
 * share a GPU. */
#include "device/cuda_device.h"
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

/* A rank's last message may still be on its way when the rank has left. */
#define GRACE_S 1.0

/* An exchange that was enqueued and may not be complete. */
struct pending {
    struct pending *next;
    struct exchange *exchange; /* owned */
    cudaEvent_t begun, done;
    struct announcement *announcement; /* NULL: none, or all have agreed */
    double deadline_s;                 /* 0 until its stream was seen to have reached it */
    double left_s;                     /* when a partner was first seen to have left; 0: none has */
};

struct nccl {
    struct host_side side; /* first */
    struct cuda_watch watch;
    struct comm *comm;
    struct group *group; /* outlives all communicators */
    ncclComm_t handle;   /* NULL: not there, or aborted */
    struct pending *first, **end;
};

static struct nccl *nccl_of(const struct comm *comm)
{
    return (struct nccl *)comm->state;
}

/* ---- errors -----------------------------------------------------------------------------------
 */

/* True when the call went well or goes on in the background. */
static bool check(
    struct nccl *nccl, ncclResult_t result, const char *call, const char *file, int line)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return true;
    dev_fail(nccl->comm->dev, DEV_FAILED, "%s (%s) from %s, %s:%d, rank %d",
        ncclGetErrorString(result), ncclGetLastError(nccl->handle), call, file, line,
        nccl->comm->root->rank);
    return false;
}
#define NCCL_DO(nccl, call) check(nccl, call, #call, __FILE__, __LINE__)

static void abort_handle(struct nccl *nccl)
{
    if (nccl->handle)
        NCCL_DO(nccl, ncclCommAbort(nccl->handle));
    nccl->handle = NULL;
}

/* Whether all partners are known to exchange what this rank does. */
static bool has_agreed(struct nccl *nccl, struct pending *pending)
{
    const struct comm_transport *side = nccl->side.comm.transport;
    if (pending->announcement && side->agreed(pending->announcement)) {
        side->forget(pending->announcement);
        pending->announcement = NULL;
    }
    return !pending->announcement;
}

/* Waits until what goes on in the background is done; an exchange's (pending, else NULL) may wait
 * for partners that are still on their way. False when it failed, or the group has. */
static bool settle(struct nccl *nccl, struct pending *pending, const char *what)
{
    struct comm *comm = nccl->comm;
    struct group *group = nccl->group;
    double deadline_s = group_deadline_s(group);
    ncclResult_t state = ncclInProgress;
    char message[160];
    int turn = 0;
    while (dev_usable(comm->dev)) {
        if (!NCCL_DO(nccl, ncclCommGetAsyncError(nccl->handle, &state)) ||
            !check(nccl, state, what, __FILE__, __LINE__))
            break;
        if (state == ncclSuccess)
            return true;
        if (pending && !has_agreed(nccl, pending)) {
            deadline_s = group_deadline_s(group);
        } else if (timing_now_s() >= deadline_s) {
            snprintf(message, sizeof message, "rank %d waited too long in %s of NCCL",
                comm->root->rank, what);
            group_abort(group, comm->root->rank, DEV_FAILED, message);
            break;
        }
        if (group_failed(group, NULL))
            break;
        cuda_pause(&turn);
    }
    abort_handle(nccl);
    return false;
}

/* ---- what is under way ------------------------------------------------------------------------
 */

static void free_pending(struct nccl *nccl, struct pending *pending)
{
    struct device *dev = nccl->comm->dev;
    if (pending->announcement)
        nccl->side.comm.transport->forget(pending->announcement);
    if (pending->begun)
        CUDA_DO(dev, cudaEventDestroy(pending->begun));
    if (pending->done)
        CUDA_DO(dev, cudaEventDestroy(pending->done));
    exchange_free(pending->exchange);
    free(pending);
}

/* Whether the event has passed; an error is the next call's to find. */
static bool has_passed(cudaEvent_t event)
{
    return cudaEventQuery(event) == cudaSuccess;
}

static void forget_done(struct nccl *nccl)
{
    while (nccl->first && has_agreed(nccl, nccl->first) && has_passed(nccl->first->done)) {
        struct pending *first = nccl->first;
        nccl->first = first->next;
        if (!nccl->first)
            nccl->end = &nccl->first;
        free_pending(nccl, first);
    }
}

/* A partner that has left, or -1; the group's rank. */
static int find_left(const struct comm *comm, struct group *group, const struct exchange *exchange)
{
    int left = -1;
    group_lock(group);
    for (int i = 0; i < exchange->partner_count; i++) {
        int partner = comm_member(comm, exchange->partners[i]);
        if (group_has_left(group, partner))
            left = partner;
    }
    group_unlock(group);
    return left;
}

/* Fails the group when the oldest exchange can no longer be expected to end. */
static void judge(struct nccl *nccl, struct pending *pending)
{
    struct group *group = nccl->group;
    int rank = nccl->comm->root->rank, left = find_left(nccl->comm, group, pending->exchange);
    double now_s = timing_now_s();
    char message[160];
    if (pending->announcement || !has_passed(pending->begun))
        return;
    if (!(pending->deadline_s > 0))
        pending->deadline_s = group_deadline_s(group);
    if (left >= 0 && !(pending->left_s > 0))
        pending->left_s = now_s;
    if (left >= 0 && now_s > pending->left_s + GRACE_S) {
        snprintf(message, sizeof message, "rank %d left while rank %d waits for it in '%s'", left,
            rank, pending->exchange->label);
        group_abort(group, left, DEV_FAILED, message);
    } else if (now_s >= pending->deadline_s) {
        snprintf(message, sizeof message,
            "rank %d waited too long in '%s': a rank is late, or what they send does not match",
            rank, pending->exchange->label);
        group_abort(group, rank, DEV_FAILED, message);
    }
}

/* While the host waits for anything of this rank. */
static void look(void *context)
{
    struct nccl *nccl = (struct nccl *)context;
    ncclResult_t state = ncclSuccess;
    if (!nccl->handle)
        return;
    forget_done(nccl);
    if (NCCL_DO(nccl, ncclCommGetAsyncError(nccl->handle, &state)))
        check(nccl, state, "an exchange", __FILE__, __LINE__);
    if (nccl->first && dev_usable(nccl->comm->dev))
        judge(nccl, nccl->first);
    if (!dev_usable(nccl->comm->dev))
        abort_handle(nccl);
}

static bool expects_something(const void *context)
{
    return ((const struct nccl *)context)->first != NULL;
}

/* ---- communicators ----------------------------------------------------------------------------
 */

/* Rank 0's id on all ranks. */
static bool gather_id(struct nccl *nccl, ncclUniqueId *id)
{
    struct comm *comm = nccl->comm, *side = &nccl->side.comm;
    ncclUniqueId mine = {};
    ncclUniqueId *all = (ncclUniqueId *)malloc((size_t)comm->size * sizeof *all);
    bool sound = all != NULL;
    if (!sound)
        dev_fail(comm->dev, DEV_FAILED, "no memory for communicator '%s'", comm->name);
    if (sound && comm->rank == 0)
        sound = NCCL_DO(nccl, ncclGetUniqueId(&mine));
    if (sound && (sound = !side->transport->host_all_gather(side, &mine, all, sizeof mine)))
        *id = all[0];
    free(all);
    return sound;
}

/* Joins the ranks' NCCL communicator. comm->size, rank, dev and name are set, and so is the host's
 * side. */
static bool join(struct nccl *nccl, struct comm *comm, struct group *group)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    nccl->watch.context = nccl;
    nccl->watch.look = look;
    nccl->watch.expects = expects_something;
    nccl->comm = comm;
    nccl->group = group;
    nccl->end = &nccl->first;
    config.blocking = 0;
    if (!gather_id(nccl, &id) ||
        !NCCL_DO(
            nccl, ncclCommInitRankConfig(&nccl->handle, comm->size, id, comm->rank, &config)) ||
        !settle(nccl, NULL, "ncclCommInitRankConfig"))
        return false;
    struct cuda *cuda = cuda_of(comm->dev);
    nccl->watch.next = cuda->watches;
    cuda->watches = &nccl->watch;
    comm->state = nccl;
    return true;
}

static bool nccl_open(struct comm *comm, struct board *board)
{
    struct nccl *nccl = (struct nccl *)calloc(1, sizeof *nccl);
    if (nccl && host_side_open(&nccl->side, comm, board)) {
        if (join(nccl, comm, board_group(board)))
            return true;
        host_side_close(&nccl->side);
    }
    free(nccl);
    return false;
}

static bool nccl_duplicate(struct comm *parent, struct comm *child)
{
    struct nccl *nccl = (struct nccl *)calloc(1, sizeof *nccl);
    if (!nccl)
        dev_fail(parent->dev, DEV_FAILED, "no memory for communicator '%s'", child->name);
    if (nccl && host_side_duplicate(&nccl->side, parent, child)) {
        if (join(nccl, child, nccl_of(parent)->group))
            return true;
        host_side_close(&nccl->side);
    }
    free(nccl);
    return false;
}

static void nccl_close(struct comm *comm)
{
    struct nccl *nccl = nccl_of(comm);
    struct cuda_watch **link = &cuda_of(comm->dev)->watches;
    while (*link != &nccl->watch)
        link = &(*link)->next;
    *link = nccl->watch.next;
    cuda_use(comm->dev);
    if (nccl->handle && dev_usable(comm->dev) && NCCL_DO(nccl, ncclCommFinalize(nccl->handle)) &&
        settle(nccl, NULL, "ncclCommFinalize")) {
        NCCL_DO(nccl, ncclCommDestroy(nccl->handle));
        nccl->handle = NULL;
    }
    abort_handle(nccl);
    while (nccl->first) {
        struct pending *first = nccl->first;
        nccl->first = first->next;
        free_pending(nccl, first);
    }
    host_side_close(&nccl->side);
    free(nccl);
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

/* One group; every part that is not the rank's own. */
static bool send_and_receive(struct nccl *nccl, struct stream *stream, struct pending *pending)
{
    const struct exchange *exchange = pending->exchange;
    int rank = nccl->comm->rank;
    cudaStream_t handle = cuda_handle(stream);
    bool sound = NCCL_DO(nccl, ncclGroupStart());
    if (!sound)
        return false;
    for (int i = 0; sound && i < exchange->sends; i++) {
        const struct comm_part *part = &exchange->send[i];
        if (part->peer != rank)
            sound = NCCL_DO(nccl, ncclSend(part->data, (size_t)part->bytes, ncclUint8, part->peer,
                                      nccl->handle, handle));
    }
    for (int i = 0; sound && i < exchange->receives; i++) {
        const struct comm_part *part = &exchange->receive[i];
        if (part->peer != rank)
            sound = NCCL_DO(nccl, ncclRecv(part->data, (size_t)part->bytes, ncclUint8, part->peer,
                                      nccl->handle, handle));
    }
    return NCCL_DO(nccl, ncclGroupEnd()) && sound && settle(nccl, pending, exchange->label);
}

/* Puts the exchange, enqueued, on the list of what is under way. */
static struct pending *make_pending(struct nccl *nccl, struct exchange *exchange)
{
    struct device *dev = nccl->comm->dev;
    struct comm *side = &nccl->side.comm;
    struct pending *pending = (struct pending *)calloc(1, sizeof *pending);
    if (!pending) {
        dev_fail(dev, DEV_FAILED, "no memory for exchange '%s'", exchange->label);
        exchange_free(exchange);
        return NULL;
    }
    pending->exchange = exchange;
    if (side->transport->announce)
        pending->announcement = side->transport->announce(side, exchange);
    if (!!pending->announcement == !!side->transport->announce &&
        CUDA_DO(dev, cudaEventCreateWithFlags(&pending->begun, cudaEventDisableTiming)) &&
        CUDA_DO(dev, cudaEventCreateWithFlags(&pending->done, cudaEventDisableTiming)))
        return pending;
    free_pending(nccl, pending);
    return NULL;
}

static void nccl_exchange(struct comm *comm, struct stream *stream, struct exchange *exchange)
{
    struct nccl *nccl = nccl_of(comm);
    if (!nccl->handle || !cuda_copy_own_parts(comm, stream, exchange) || !exchange->partner_count) {
        exchange_free(exchange);
        return;
    }
    forget_done(nccl);
    struct pending *pending = make_pending(nccl, exchange);
    if (!pending)
        return;
    if (!CUDA_DO(comm->dev, cudaEventRecord(pending->begun, cuda_handle(stream))) ||
        !send_and_receive(nccl, stream, pending) ||
        !CUDA_DO(comm->dev, cudaEventRecord(pending->done, cuda_handle(stream)))) {
        free_pending(nccl, pending);
        return;
    }
    *nccl->end = pending;
    nccl->end = &pending->next;
}

/* Each rank's own thread aborts its communicators, when it next waits for anything. */
const struct comm_transport transport_nccl = {
    .open = nccl_open,
    .duplicate = nccl_duplicate,
    .close = nccl_close,
    .exchange = nccl_exchange,
    .host_all_gather = host_side_all_gather,
    .host_collect = host_side_collect,
    .abort = host_side_abort,
    .announce = NULL,
    .agreed = NULL,
    .forget = NULL,
    .carrier = "nccl",
    .spans_processes = true,
};
