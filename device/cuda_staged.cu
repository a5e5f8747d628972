/* Messages between CUDA ranks of several processes by way of their hosts: for processes that share
 * a GPU, which NCCL refuses, and for builds without it. The host waits until the stream is there,
 * copies what the rank sends into pinned memory, exchanges it as CPU ranks do, and copies what came
 * back to the GPU. Nothing overlaps with it; a figure of messages it is not.
 *
 * All ranks enqueue all exchanges in one and the same order, so hosts cannot wait for each other in
 * a circle. */
#include "device/cuda_device.h"
#include <stdlib.h>
#include <string.h>

struct staged {
    struct host_side side; /* first */
    char *out, *in;        /* pinned; owned; used by MPI until the group has ended */
    int64_t out_bytes, in_bytes;
};

static struct staged *staged_of(const struct comm *comm)
{
    return (struct staged *)comm->state;
}

/* ---- communicators ----------------------------------------------------------------------------
 */

static bool staged_open(struct comm *comm, struct board *board)
{
    struct staged *staged = (struct staged *)calloc(1, sizeof *staged);
    if (!staged)
        return false;
    if (!host_side_open(&staged->side, comm, board)) {
        free(staged);
        return false;
    }
    comm->state = staged;
    return true;
}

static bool staged_duplicate(struct comm *parent, struct comm *child)
{
    struct staged *staged = (struct staged *)calloc(1, sizeof *staged);
    if (!staged) {
        dev_fail(parent->dev, DEV_FAILED, "no memory for communicator '%s'", child->name);
        return false;
    }
    if (!host_side_duplicate(&staged->side, parent, child)) {
        free(staged);
        return false;
    }
    child->state = staged;
    return true;
}

static void staged_close(struct comm *comm)
{
    struct staged *staged = staged_of(comm);
    cuda_use(comm->dev);
    if (staged->out)
        CUDA_DO(comm->dev, cudaFreeHost(staged->out));
    if (staged->in)
        CUDA_DO(comm->dev, cudaFreeHost(staged->in));
    host_side_close(&staged->side);
    free(staged);
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

/* Makes *block at least so large; its contents may go. */
static bool make_room(struct device *dev, char **block, int64_t *room_bytes, int64_t bytes)
{
    void *larger = NULL;
    if (bytes <= *room_bytes)
        return true;
    if (!CUDA_DO(dev, cudaHostAlloc(&larger, (size_t)bytes, cudaHostAllocDefault)))
        return false;
    if (*block)
        CUDA_DO(dev, cudaFreeHost(*block));
    *block = (char *)larger;
    *room_bytes = bytes;
    return true;
}

static int64_t bytes_of(const struct comm_part *parts, int count)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += parts[i].bytes;
    return bytes;
}

/* The same exchange between blocks of the host, that of the rank with itself left out. NULL, and
 * the device failed, when memory is short. */
static struct exchange *make_host_exchange(
    struct comm *comm, const struct exchange *exchange, char *out, char *in)
{
    size_t parts = (size_t)(exchange->sends + exchange->receives);
    struct exchange *it =
        (struct exchange *)calloc(1, sizeof *it + parts * sizeof(struct comm_part) +
                                         (size_t)exchange->partner_count * sizeof(int));
    if (!it) {
        dev_fail(comm->dev, DEV_FAILED, "no memory for exchange '%s'", exchange->label);
        return NULL;
    }
    it->label = exchange->label;
    it->sequence = exchange->sequence;
    it->send = (struct comm_part *)(it + 1);
    it->receive = it->send + exchange->sends;
    it->partners = (int *)(it->receive + exchange->receives);
    it->partner_count = exchange->partner_count;
    memcpy(it->partners, exchange->partners, (size_t)it->partner_count * sizeof(int));
    for (int i = 0; i < exchange->sends; i++) {
        const struct comm_part *part = &exchange->send[i];
        if (part->peer != comm->rank)
            it->send[it->sends++] = {part->peer, out, part->bytes};
        out += part->bytes;
    }
    for (int i = 0; i < exchange->receives; i++) {
        const struct comm_part *part = &exchange->receive[i];
        if (part->peer != comm->rank)
            it->receive[it->receives++] = {part->peer, in, part->bytes};
        in += part->bytes;
    }
    return it;
}

/* Enqueues the copies of what others get, or give, in list order as it lies in `block`. */
static bool copy_parts(
    struct comm *comm, struct stream *stream, const struct exchange *exchange, char *block, bool in)
{
    const struct comm_part *parts = in ? exchange->receive : exchange->send;
    int count = in ? exchange->receives : exchange->sends;
    for (int i = 0; i < count; i++) {
        if (parts[i].peer != comm->rank &&
            !CUDA_DO(comm->dev,
                cudaMemcpyAsync(in ? parts[i].data : block, in ? block : parts[i].data,
                    (size_t)parts[i].bytes, in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                    cuda_handle(stream))))
            return false;
        block += parts[i].bytes;
    }
    return true;
}

static void meet(struct comm *comm, struct stream *stream, const struct exchange *exchange)
{
    struct staged *staged = staged_of(comm);
    struct device *dev = comm->dev;
    if (!make_room(
            dev, &staged->out, &staged->out_bytes, bytes_of(exchange->send, exchange->sends)) ||
        !make_room(
            dev, &staged->in, &staged->in_bytes, bytes_of(exchange->receive, exchange->receives)) ||
        !copy_parts(comm, stream, exchange, staged->out, false) || !cuda_poll(stream, NULL))
        return;
    struct exchange *between = make_host_exchange(comm, exchange, staged->out, staged->in);
    if (!between)
        return;
    struct comm *side = host_side_of(comm);
    side->transport->exchange(side, stream, between);
    if (dev_usable(dev) && copy_parts(comm, stream, exchange, staged->in, true))
        cuda_poll(stream, NULL);
}

static void staged_exchange(struct comm *comm, struct stream *stream, struct exchange *exchange)
{
    if (cuda_copy_own_parts(comm, stream, exchange) && exchange->partner_count)
        meet(comm, stream, exchange);
    exchange_free(exchange);
}

const struct comm_transport transport_cuda_staged = {
    .open = staged_open,
    .duplicate = staged_duplicate,
    .close = staged_close,
    .exchange = staged_exchange,
    .host_all_gather = host_side_all_gather,
    .host_collect = host_side_collect,
    .abort = host_side_abort,
    .announce = NULL,
    .agreed = NULL,
    .forget = NULL,
    .carrier = "host copies",
    .spans_processes = true,
};
