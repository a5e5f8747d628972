/* The messages with which ranks of several processes meet, and what they find out there. */
#include "device/processes_meeting.h"
#include <stdio.h>
#include <string.h>
#include "device/launch.h"

#define HEADER_PARTS 6 /* whose sizes a header names */

struct header {
    int64_t sequence, parts, unit_bytes, total_bytes;
    int64_t part_bytes[HEADER_PARTS];
    char label[80];
};

static int64_t tag_of(const struct meeting *m, bool header, int from, int to)
{
    const struct processes_comm *state = m->comm->state;
    int64_t ranks = launch_ranks_per_process();
    int64_t kind = (state->id * CHANNELS + m->channel) * 2 + header;
    return (kind * ranks + from % ranks) * ranks + to % ranks;
}

static void set_message(struct mpi_message *message, const struct meeting *m, bool receives,
    bool header, int peer, void *data, int64_t bytes)
{
    int self = m->comm->root->rank, other = comm_member(m->comm, peer);
    message->receives = receives;
    message->process = other / launch_ranks_per_process();
    message->tag =
        (int)(receives ? tag_of(m, header, other, self) : tag_of(m, header, self, other));
    message->data = data;
    message->bytes = bytes;
    message->rank = other;
}

static void fill_header(struct header *header, const struct meeting *m, int peer)
{
    int first, count = exchange_parts(m->send, m->sends, peer, &first);
    header->sequence = m->sequence;
    header->unit_bytes = m->unit_bytes;
    header->parts = count;
    snprintf(header->label, sizeof header->label, "%s", m->label);
    for (int i = 0; i < count; i++) {
        header->total_bytes += m->send[first + i].bytes;
        if (i < HEADER_PARTS)
            header->part_bytes[i] = m->send[first + i].bytes;
    }
}

static void describe_place(
    struct meeting *m, const struct header *theirs, const struct header *mine, int peer)
{
    int self = m->comm->root->rank, other = comm_member(m->comm, peer);
    bool lower = self < other;
    if (theirs->sequence == mine->sequence)
        snprintf(m->fault, sizeof m->fault,
            "exchange %lld of a communicator is '%.60s' on rank %d and '%.60s' on rank %d",
            (long long)mine->sequence, lower ? mine->label : theirs->label, lower ? self : other,
            lower ? theirs->label : mine->label, lower ? other : self);
    else
        snprintf(m->fault, sizeof m->fault,
            "rank %d is in exchange %lld of a communicator, '%.50s', rank %d in exchange %lld, "
            "'%.50s'",
            self, (long long)mine->sequence, mine->label, other, (long long)theirs->sequence,
            theirs->label);
}

/* Whether what a partner sends is what this rank receives. */
static bool sizes_match(struct meeting *m, const struct header *theirs, int peer)
{
    int self = m->comm->root->rank, other = comm_member(m->comm, peer), first;
    int count = exchange_parts(m->receive, m->receives, peer, &first);
    int64_t total_bytes = 0;
    for (int i = 0; i < count; i++)
        total_bytes += m->receive[first + i].bytes;
    for (int i = 0; i < HEADER_PARTS; i++) {
        int64_t expected = i < count ? m->receive[first + i].bytes : 0;
        if (theirs->part_bytes[i] == expected)
            continue;
        snprintf(m->fault, sizeof m->fault,
            "exchange '%s': rank %d sends rank %d %lld bytes in part %d, rank %d expects %lld",
            m->label, other, self, (long long)theirs->part_bytes[i], i, self, (long long)expected);
        return false;
    }
    if (theirs->parts == count && theirs->total_bytes == total_bytes)
        return true;
    snprintf(m->fault, sizeof m->fault,
        "exchange '%s': rank %d sends rank %d %lld bytes in %lld parts, rank %d expects %lld in %d",
        m->label, other, self, (long long)theirs->total_bytes, (long long)theirs->parts, self,
        (long long)total_bytes, count);
    return false;
}

/* A partner's header has come. */
static bool header_matches(struct meeting *m, const struct header *theirs, int peer)
{
    struct header mine = {.sequence = m->sequence};
    snprintf(mine.label, sizeof mine.label, "%s", m->label);
    if (theirs->unit_bytes != m->unit_bytes) {
        snprintf(m->fault, sizeof m->fault, "rank %d gathers %lld bytes on the host, rank %d %lld",
            m->comm->root->rank, (long long)m->unit_bytes, comm_member(m->comm, peer),
            (long long)theirs->unit_bytes);
        return false;
    }
    if (theirs->sequence != mine.sequence || strcmp(theirs->label, mine.label)) {
        describe_place(m, theirs, &mine, peer);
        return false;
    }
    return sizes_match(m, theirs, peer);
}

static bool on_arrival(struct mpi_transfer *transfer, int index)
{
    struct meeting *m = transfer->context;
    if (index >= m->partner_count)
        return true;
    return header_matches(m, transfer->messages[index].data, m->partners[index]);
}

/* Headers first: what is missing of a partner is its header, as long as it has not come. */
struct mpi_transfer *meeting_transfer(struct meeting *m)
{
    struct comm *comm = m->comm;
    int n = m->partner_count, next = 2 * n;
    struct mpi_transfer *transfer =
        mpi_transfer_create(2 * n + m->sends + m->receives, 2 * n * (int64_t)sizeof(struct header));
    if (!transfer)
        return NULL;
    struct header *headers = (struct header *)(void *)transfer->own;
    for (int i = 0; i < n; i++) {
        fill_header(&headers[n + i], m, m->partners[i]);
        set_message(
            &transfer->messages[i], m, true, true, m->partners[i], &headers[i], sizeof *headers);
        set_message(&transfer->messages[n + i], m, false, true, m->partners[i], &headers[n + i],
            sizeof *headers);
    }
    for (int i = 0, partner = 0; !m->headers_alone && i < m->receives; i++) {
        const struct comm_part *part = &m->receive[i];
        if (part->peer == comm->rank)
            continue;
        while (m->partners[partner] != part->peer) /* both lists go up, around */
            partner = (partner + 1) % n;
        transfer->messages[next].after = partner + 1;
        set_message(
            &transfer->messages[next++], m, true, false, part->peer, part->data, part->bytes);
    }
    for (int i = 0; !m->headers_alone && i < m->sends; i++) {
        const struct comm_part *part = &m->send[i];
        if (part->peer != comm->rank)
            set_message(
                &transfer->messages[next++], m, false, false, part->peer, part->data, part->bytes);
    }
    transfer->count = next;
    transfer->rank = comm->root->rank;
    transfer->what = m->label;
    transfer->arrived = on_arrival;
    transfer->context = m;
    return transfer;
}

static bool group_is_lost(const void *group)
{
    return group_failed((struct group *)(uintptr_t)group, NULL);
}

struct group *meeting_group(const struct comm *comm)
{
    const struct processes_comm *state = comm->state;
    return state->group;
}

bool meeting_run(struct meeting *m, struct mpi_transfer *transfer)
{
    struct group *group = meeting_group(m->comm);
    int rank = m->comm->root->rank;
    if (!transfer) {
        group_abort(group, rank, DEV_FAILED, "no memory for an exchange");
        return false;
    }
    if (!mpi_transfer_run(transfer, group_is_lost, group)) {
        if (m->fault[0])
            group_abort(group, rank, DEV_FAILED, m->fault);
        else
            group_give_up(group, rank);
        return false;
    }
    for (int i = 0; i < transfer->count; i++) {
        const struct mpi_message *message = &transfer->messages[i];
        if (!message->receives || !message->damaged)
            continue;
        snprintf(m->fault, sizeof m->fault,
            "exchange '%s': %lld bytes of rank %d's %lld came to rank %d", m->label,
            (long long)message->arrived_bytes, message->rank, (long long)message->bytes, rank);
        group_abort(group, rank, DEV_FAILED, m->fault);
        return false;
    }
    return true;
}
