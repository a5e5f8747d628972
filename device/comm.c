/* What every transport shares: checks, traffic, the order check, and the collectives made of
 * exchanges. It runs on the rank's host thread when an exchange is enqueued. */
#include "device/transport.h"
#include <stdlib.h>
#include <string.h>
#include "device/backend.h"
#include "device/launch.h"
#include "device/order.h"
#include "device/profile.h"

bool comm_usable(const struct comm *comm)
{
    return comm && dev_usable(comm->dev);
}

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_size(const struct comm *comm)
{
    return comm->size;
}

/* ---- the parts of an exchange ---------------------------------------------------------------- */

void exchange_free(struct exchange *exchange)
{
    if (exchange && exchange->release)
        exchange->release(exchange->state);
    free(exchange);
}

int exchange_parts(const struct comm_part *parts, int count, int peer, int *first)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (parts[middle].peer < peer)
            low = middle + 1;
        else
            high = middle;
    }
    *first = low;
    while (low < count && parts[low].peer == peer)
        low++;
    return low - *first;
}

/* Copies the parts that carry bytes, sorted by peer (a counting sort: stable). starts [size + 1].
 */
static int sort_parts(
    const struct comm_part *parts, int count, int size, int *starts, struct comm_part *sorted)
{
    memset(starts, 0, (size_t)(size + 1) * sizeof *starts);
    for (int i = 0; i < count; i++) {
        if (parts[i].bytes)
            starts[parts[i].peer + 1]++;
    }
    for (int p = 0; p < size; p++)
        starts[p + 1] += starts[p];
    int total = starts[size];
    for (int i = 0; i < count; i++) {
        if (parts[i].bytes)
            sorted[starts[parts[i].peer]++] = parts[i];
    }
    return total;
}

static void list_partners(struct exchange *exchange, int rank, int size)
{
    int first;
    exchange->partner_count = 0;
    for (int i = 1; i < size; i++) {
        int peer = (rank + i) % size;
        if (exchange_parts(exchange->send, exchange->sends, peer, &first) ||
            exchange_parts(exchange->receive, exchange->receives, peer, &first))
            exchange->partners[exchange->partner_count++] = peer;
    }
}

static struct exchange *make_exchange(struct comm *comm, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives)
{
    size_t parts_bytes = (size_t)(sends + receives) * sizeof(struct comm_part);
    struct exchange *exchange =
        malloc(sizeof *exchange + parts_bytes + (size_t)comm->size * sizeof(int));
    int *starts = malloc((size_t)(comm->size + 1) * sizeof *starts);
    if (exchange && starts) {
        exchange->label = label;
        exchange->sequence = comm->exchanges;
        exchange->send = (struct comm_part *)(exchange + 1);
        exchange->receive = exchange->send + sends;
        exchange->sends = sort_parts(send, sends, comm->size, starts, exchange->send);
        exchange->receives = sort_parts(receive, receives, comm->size, starts, exchange->receive);
        exchange->partners = (int *)(exchange->receive + receives);
        exchange->state = NULL;
        exchange->release = NULL;
        list_partners(exchange, comm->rank, comm->size);
    } else {
        free(exchange);
        exchange = NULL;
        dev_fail(comm->dev, DEV_FAILED, "no memory for exchange '%s'", label);
    }
    free(starts);
    return exchange;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static bool parts_are_sound(
    struct comm *comm, const char *label, const struct comm_part *parts, int count)
{
    for (int i = 0; i < count; i++) {
        if (parts[i].peer < 0 || parts[i].peer >= comm->size) {
            dev_fail(comm->dev, DEV_FAILED, "exchange '%s' names rank %d; allowed: 0 to %d", label,
                parts[i].peer, comm->size - 1);
            return false;
        }
        if (parts[i].bytes < 0) {
            dev_fail(comm->dev, DEV_FAILED, "exchange '%s' has a part of %lld bytes", label,
                (long long)parts[i].bytes);
            return false;
        }
        if (parts[i].bytes &&
            !dev_find_range(comm->dev, &comm->dev->blocks, parts[i].data, parts[i].bytes, label))
            return false;
    }
    return true;
}

static int by_address(const void *a, const void *b)
{
    const struct dev_access *left = a, *right = b;
    uintptr_t l = (uintptr_t)left->from, r = (uintptr_t)right->from;
    return (l > r) - (l < r);
}

/* The ranges that an exchange touches, by address; NULL, and the device failed, when memory is
 * short. */
static struct dev_access *list_ranges(struct comm *comm, const struct exchange *exchange)
{
    int count = exchange->sends + exchange->receives;
    struct dev_access *ranges = malloc((size_t)(count + 1) * sizeof *ranges);
    if (!ranges) {
        dev_fail(comm->dev, DEV_FAILED, "no memory for exchange '%s'", exchange->label);
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        bool write = i >= exchange->sends;
        const struct comm_part *part =
            write ? &exchange->receive[i - exchange->sends] : &exchange->send[i];
        ranges[i] = (struct dev_access){part->data, part->bytes, write};
    }
    qsort(ranges, (size_t)count, sizeof *ranges, by_address);
    return ranges;
}

/* Sources may overlap one another; a target may overlap nothing. */
static bool ranges_are_apart(
    struct comm *comm, const char *label, const struct dev_access *ranges, int count)
{
    uintptr_t read_end = 0, write_end = 0;
    for (int i = 0; i < count; i++) {
        uintptr_t begin = (uintptr_t)ranges[i].from, end = begin + (uintptr_t)ranges[i].bytes;
        if (begin < write_end || (ranges[i].write && begin < read_end)) {
            dev_fail(comm->dev, DEV_FAILED, "exchange '%s' receives into bytes that it also %s",
                label, ranges[i].write && begin < write_end ? "receives elsewhere" : "sends");
            return false;
        }
        uintptr_t *reached = ranges[i].write ? &write_end : &read_end;
        if (*reached < end)
            *reached = end;
    }
    return true;
}

static bool check_ranges(struct comm *comm, struct stream *stream, const struct exchange *exchange)
{
    struct dev_access *ranges = list_ranges(comm, exchange);
    if (!ranges)
        return false;
    int count = exchange->sends + exchange->receives;
    bool sound =
        ranges_are_apart(comm, exchange->label, ranges, count) &&
        (!comm->dev->order || order_access(comm->dev, &comm->dev->blocks, stream,
                                  stream->last_ticket + 1, exchange->label, ranges, count));
    free(ranges);
    return sound;
}

/* What the rank sends itself must match what it receives from itself. */
static bool check_own_parts(struct comm *comm, const struct exchange *exchange)
{
    int from, to;
    int sends = exchange_parts(exchange->send, exchange->sends, comm->rank, &from);
    int receives = exchange_parts(exchange->receive, exchange->receives, comm->rank, &to);
    for (int i = 0; i < sends || i < receives; i++) {
        int64_t sent = i < sends ? exchange->send[from + i].bytes : 0;
        int64_t received = i < receives ? exchange->receive[to + i].bytes : 0;
        if (sent != received) {
            dev_fail(comm->dev, DEV_FAILED,
                "exchange '%s': rank %d sends itself %lld bytes and receives %lld", exchange->label,
                comm->rank, (long long)sent, (long long)received);
            return false;
        }
    }
    return true;
}

int comm_node(const struct comm *comm, int rank)
{
    const struct profile *machine = comm->dev->config.profiles;
    int member = comm_member(comm, rank);
    return machine ? (int)(member / machine->ranks_per_node) : launch_node(member);
}

static void count_traffic(struct comm *comm, const struct exchange *exchange)
{
    struct comm_traffic *traffic = &comm->root->traffic;
    int node = comm_node(comm, comm->rank);
    traffic->exchanges++;
    for (int i = 0; i < exchange->sends; i++) {
        traffic->logical_bytes += exchange->send[i].bytes;
        if (exchange->send[i].peer == comm->rank)
            continue;
        traffic->wire_bytes += exchange->send[i].bytes;
        if (comm_node(comm, exchange->send[i].peer) != node)
            traffic->network_bytes += exchange->send[i].bytes;
        traffic->messages++;
    }
}

/* ---- collectives ----------------------------------------------------------------------------- */

void comm_exchange(struct comm *comm, struct stream *stream, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives)
{
    if (!comm_usable(comm) || !stream_usable(stream))
        return;
    if (stream->dev != comm->dev) {
        dev_fail(comm->dev, DEV_FAILED, "exchange '%s' is on another device's stream", label);
        return;
    }
    if (!parts_are_sound(comm, label, send, sends) ||
        !parts_are_sound(comm, label, receive, receives))
        return;
    struct exchange *exchange = make_exchange(comm, label, send, sends, receive, receives);
    if (!exchange)
        return;
    struct dev_operation operation = {.kind = OP_EXCHANGE, .exchange = {comm, exchange}};
    if (!check_own_parts(comm, exchange) || !check_ranges(comm, stream, exchange)) {
        exchange_free(exchange);
        return;
    }
    count_traffic(comm, exchange);
    if (dev_submit(stream, &operation))
        comm->exchanges++;
    else
        exchange_free(exchange);
}

/* Room for a part to and a part from every rank; NULL, and the device failed, when memory is short.
 */
static struct comm_part *make_parts(struct comm *comm, const char *label)
{
    struct comm_part *parts = malloc(2 * (size_t)comm->size * sizeof *parts);
    if (!parts)
        dev_fail(comm->dev, DEV_FAILED, "no memory for exchange '%s'", label);
    return parts;
}

void comm_all_to_all_v(struct comm *comm, struct stream *stream, const void *send,
    const int64_t *send_bytes, const int64_t *send_offsets, void *receive,
    const int64_t *receive_bytes, const int64_t *receive_offsets)
{
    if (!comm_usable(comm))
        return;
    struct comm_part *parts = make_parts(comm, "all_to_all_v");
    if (!parts)
        return;
    for (int p = 0; p < comm->size; p++) {
        parts[p] = (struct comm_part){p, (char *)send + send_offsets[p], send_bytes[p]};
        parts[comm->size + p] =
            (struct comm_part){p, (char *)receive + receive_offsets[p], receive_bytes[p]};
    }
    comm_exchange(comm, stream, "all_to_all_v", parts, comm->size, parts + comm->size, comm->size);
    free(parts);
}

void comm_all_gather_v(
    struct comm *comm, struct stream *stream, const void *send, void *receive, const int64_t *bytes)
{
    if (!comm_usable(comm))
        return;
    struct comm_part *parts = make_parts(comm, "all_gather_v");
    if (!parts)
        return;
    int64_t offset = 0;
    for (int p = 0; p < comm->size; p++) {
        char *target = (char *)receive + offset;
        bool in_place = p == comm->rank && send == target;
        parts[p] = (struct comm_part){p, (void *)send, in_place ? 0 : bytes[comm->rank]};
        parts[comm->size + p] = (struct comm_part){p, target, in_place ? 0 : bytes[p]};
        offset += bytes[p];
    }
    comm_exchange(comm, stream, "all_gather_v", parts, comm->size, parts + comm->size, comm->size);
    free(parts);
}

void comm_broadcast(struct comm *comm, struct stream *stream, void *data, int64_t bytes, int root)
{
    if (!comm_usable(comm))
        return;
    if (root < 0 || root >= comm->size) {
        dev_fail(comm->dev, DEV_FAILED, "broadcast from rank %d; allowed: 0 to %d", root,
            comm->size - 1);
        return;
    }
    struct comm_part from_root = {root, data, bytes};
    if (comm->rank != root) {
        comm_exchange(comm, stream, "broadcast", NULL, 0, &from_root, 1);
        return;
    }
    struct comm_part *parts = make_parts(comm, "broadcast");
    if (!parts)
        return;
    int count = 0;
    for (int p = 0; p < comm->size; p++) {
        if (p != root)
            parts[count++] = (struct comm_part){p, data, bytes};
    }
    comm_exchange(comm, stream, "broadcast", parts, count, NULL, 0);
    free(parts);
}

/* ---- host side ------------------------------------------------------------------------------- */

int comm_host_all_gather(struct comm *comm, const void *send, void *receive, int64_t bytes)
{
    if (!comm_usable(comm))
        return -1;
    if (bytes < 0) {
        dev_fail(comm->dev, DEV_FAILED, "a gather of %lld bytes on the host", (long long)bytes);
        return -1;
    }
    return comm->transport->host_all_gather(comm, send, receive, bytes);
}

int comm_host_collect(struct comm *comm, void *array, int64_t at, int64_t bytes)
{
    if (!comm_usable(comm))
        return -1;
    if (!comm->transport->host_collect)
        return 0;
    return comm->transport->host_collect(comm, array, at, bytes);
}

int comm_barrier(struct comm *comm)
{
    return comm_host_all_gather(comm, NULL, NULL, 0);
}

void comm_abort(struct comm *comm, const char *reason)
{
    if (comm)
        comm->transport->abort(comm, comm->root->rank, DEV_ABORTED, reason);
}

struct comm_traffic comm_traffic(const struct comm *comm)
{
    return comm ? comm->root->traffic : (struct comm_traffic){0};
}

const char *comm_carrier(const struct comm *comm)
{
    return comm->size > 1 ? comm->transport->carrier : NULL;
}

void comm_traffic_reset(struct comm *comm)
{
    if (comm)
        comm->root->traffic = (struct comm_traffic){0};
}
