/* Messages between ranks in several processes.
 *
 * Before their parts two partners send each other a header: which exchange this is, its label, and
 * the sizes of what follows. So both wait for each other, as thread ranks do, and a difference is
 * found and named as soon as the second of them comes. Parts are sent together with the headers and
 * received when theirs has come and agrees: a message that is longer than its receive may be
 * written past its end by the library.
 *
 * Gathers of the host double their blocks in ceil(log2 ranks) such steps. */
#include "device/processes.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/backend.h"
#include "device/board.h"
#include "device/launch.h"
#include "device/mpi_engine.h"
#include "device/pool.h"

#define HEADER_PARTS 6 /* whose sizes a header names */

enum channel { CHANNEL_EXCHANGE, CHANNEL_HOST, CHANNELS };

/* A communicator's state. */
struct processes_comm {
    struct group *group;
    int64_t id;       /* part of every tag */
    int64_t meetings; /* of the host so far */
    int64_t next_id;  /* of the root: more than any that this rank has a part in */
};

/* ---- a meeting of ranks ---------------------------------------------------------------------- */

struct header {
    int64_t sequence, parts, unit_bytes, total_bytes;
    int64_t part_bytes[HEADER_PARTS];
    char label[80];
};

/* One rank's side. */
struct meeting {
    struct comm *comm;
    enum channel channel;
    const char *label;
    int64_t sequence;
    int64_t unit_bytes;                     /* a gather's, by rank */
    const struct comm_part *send, *receive; /* sorted by peer */
    int sends, receives;
    const int *partners;
    int partner_count;
    char fault[256]; /* how a partner's side differs */
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
static struct mpi_transfer *make_transfer(struct meeting *m)
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
    for (int i = 0, partner = 0; i < m->receives; i++) {
        const struct comm_part *part = &m->receive[i];
        if (part->peer == comm->rank)
            continue;
        while (m->partners[partner] != part->peer) /* both lists go up, around */
            partner = (partner + 1) % n;
        transfer->messages[next].after = partner + 1;
        set_message(
            &transfer->messages[next++], m, true, false, part->peer, part->data, part->bytes);
    }
    for (int i = 0; i < m->sends; i++) {
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

static struct group *group_of(const struct comm *comm)
{
    const struct processes_comm *state = comm->state;
    return state->group;
}

/* Meets the partners and moves the parts. False when the group has failed, and then so has this
 * rank's device; on success the transfer is still the caller's. */
static bool meet(struct meeting *m, struct mpi_transfer *transfer)
{
    struct group *group = group_of(m->comm);
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

/* ---- exchanges ------------------------------------------------------------------------------- */

static void copy_own_parts(struct comm *comm, const struct exchange *exchange)
{
    int from, to, count = exchange_parts(exchange->send, exchange->sends, comm->rank, &from);
    exchange_parts(exchange->receive, exchange->receives, comm->rank, &to);
    pool_begin_work(comm->dev->config.pool);
    for (int i = 0; i < count; i++)
        memcpy(exchange->receive[to + i].data, exchange->send[from + i].data,
            (size_t)exchange->send[from + i].bytes);
    pool_end_work(comm->dev->config.pool);
}

static void processes_exchange(struct comm *comm, struct stream *stream, struct exchange *exchange)
{
    struct meeting m = {.comm = comm,
        .channel = CHANNEL_EXCHANGE,
        .label = exchange->label,
        .sequence = exchange->sequence,
        .send = exchange->send,
        .receive = exchange->receive,
        .sends = exchange->sends,
        .receives = exchange->receives,
        .partners = exchange->partners,
        .partner_count = exchange->partner_count};
    (void)stream;
    copy_own_parts(comm, exchange);
    if (m.partner_count) {
        struct mpi_transfer *transfer = make_transfer(&m);
        if (meet(&m, transfer))
            mpi_transfer_free(transfer);
    }
    exchange_free(exchange);
}

/* ---- the host's side ------------------------------------------------------------------------- */

/* One step of a gather: the first `count` blocks go to the rank `distance` below, as many come from
 * the one above and follow those that are there. */
static bool gather_step(
    struct comm *comm, const char *label, char *blocks, int distance, int count, int64_t bytes)
{
    struct processes_comm *state = comm->state;
    int below = (comm->rank - distance + comm->size) % comm->size;
    int above = (comm->rank + distance) % comm->size;
    int partners[2] = {below, above};
    struct comm_part send = {below, NULL, count * bytes}, receive = {above, NULL, count * bytes};
    struct meeting m = {.comm = comm,
        .channel = CHANNEL_HOST,
        .label = label,
        .sequence = state->meetings++,
        .unit_bytes = bytes,
        .send = &send,
        .receive = &receive,
        .sends = bytes > 0,
        .receives = bytes > 0,
        .partners = partners,
        .partner_count = below == above ? 1 : 2};
    /* What an abandoned transfer still uses must outlive this call: the blocks are its own. */
    char *own = bytes ? malloc((size_t)(2 * count * bytes)) : NULL;
    if (bytes && !own) {
        group_abort(state->group, comm->root->rank, DEV_FAILED, "no memory for a gather");
        return false;
    }
    if (bytes) {
        memcpy(own, blocks, (size_t)(count * bytes));
        send.data = own;
        receive.data = own + count * bytes;
    }
    struct mpi_transfer *transfer = make_transfer(&m);
    if (transfer)
        transfer->owned = own;
    else
        free(own);
    if (!meet(&m, transfer))
        return false;
    if (bytes)
        memcpy(blocks + distance * bytes, receive.data, (size_t)(count * bytes));
    mpi_transfer_free(transfer);
    return true;
}

static int processes_host_all_gather(
    struct comm *comm, const void *send, void *receive, int64_t bytes)
{
    const char *label = bytes ? "host all-gather" : "barrier";
    int size = comm->size;
    char *blocks = malloc((size_t)(size * bytes) + 1); /* this rank's, the next one's, ... */
    if (!blocks) {
        dev_fail(comm->dev, DEV_FAILED, "no memory for a gather of %lld bytes on the host",
            (long long)bytes);
        return -1;
    }
    if (bytes)
        memcpy(blocks, send, (size_t)bytes);
    bool sound = !group_failed(group_of(comm), NULL);
    if (!sound)
        group_give_up(group_of(comm), comm->root->rank);
    for (int distance = 1; sound && distance < size; distance *= 2) {
        int count = distance < size - distance ? distance : size - distance;
        sound = gather_step(comm, label, blocks, distance, count, bytes);
    }
    for (int r = 0; sound && bytes && r < size; r++)
        memcpy(
            (char *)receive + (comm->rank + r) % size * bytes, blocks + r * bytes, (size_t)bytes);
    free(blocks);
    return sound ? 0 : -1;
}

/* A rank's part of an array. */
struct extent {
    int64_t at, bytes;
};

static bool is_local(const struct comm *comm, int rank)
{
    int ranks = launch_ranks_per_process();
    return comm_member(comm, rank) / ranks == launch_process();
}

/* What rank 0 receives from the ranks of other processes, or one of those sends it. Returns how
 * many parts. */
static int list_collected(const struct comm *comm, char *array, const struct extent *extents,
    struct comm_part *parts, int *partners)
{
    int count = 0;
    for (int r = 1; r < comm->size; r++) {
        const struct extent *part = &extents[r];
        int peer = comm->rank == 0 ? r : 0;
        if ((comm->rank != 0 && comm->rank != r) || !part->bytes || is_local(comm, peer))
            continue;
        partners[count] = peer;
        parts[count++] = (struct comm_part){peer, array + part->at, part->bytes};
    }
    return count;
}

static bool collect_parts(struct comm *comm, char *array, const struct extent *extents)
{
    struct processes_comm *state = comm->state;
    struct comm_part *parts = malloc((size_t)comm->size * sizeof *parts);
    int *partners = malloc((size_t)comm->size * sizeof *partners);
    bool sound = parts && partners;
    struct meeting m = {.comm = comm,
        .channel = CHANNEL_HOST,
        .label = "collecting an array",
        .sequence = state->meetings++,
        .send = parts,
        .receive = parts,
        .partners = partners};
    if (!sound)
        group_abort(state->group, comm->root->rank, DEV_FAILED, "no memory to collect an array");
    else
        m.partner_count = list_collected(comm, array, extents, parts, partners);
    if (m.partner_count) {
        *(comm->rank == 0 ? &m.receives : &m.sends) = m.partner_count;
        struct mpi_transfer *transfer = make_transfer(&m);
        sound = meet(&m, transfer);
        if (sound)
            mpi_transfer_free(transfer);
    }
    free(parts);
    free(partners);
    return sound;
}

static int processes_host_collect(struct comm *comm, void *array, int64_t at, int64_t bytes)
{
    struct extent mine = {at, bytes};
    struct extent *extents = malloc((size_t)comm->size * sizeof *extents);
    if (!extents) {
        dev_fail(comm->dev, DEV_FAILED, "no memory to collect an array");
        return -1;
    }
    bool sound = !processes_host_all_gather(comm, &mine, extents, sizeof mine) &&
                 collect_parts(comm, array, extents);
    free(extents);
    return sound ? 0 : -1;
}

/* ---- communicators --------------------------------------------------------------------------- */

static bool processes_open(struct comm *comm, struct board *board)
{
    struct processes_comm *state = calloc(1, sizeof *state);
    if (!state)
        return false;
    state->group = board_group(board);
    state->next_id = 1;
    comm->size = launch_ranks();
    comm->state = state;
    return true;
}

static void processes_close(struct comm *comm)
{
    free(comm->state);
}

/* How many communicators the tags tell apart. */
static int64_t most_comms(void)
{
    int64_t ranks = launch_ranks_per_process();
    return mpi_tags() / (2 * CHANNELS * ranks * ranks);
}

/* Communicators that have a rank in common have different numbers: a new one's is the highest that
 * any rank of its parent would give. */
static bool processes_duplicate(struct comm *parent, struct comm *child)
{
    struct processes_comm *root = parent->root->state;
    struct processes_comm *state = calloc(1, sizeof *state);
    int64_t *numbers = malloc((size_t)parent->size * sizeof *numbers);
    bool sound = state && numbers;
    if (!sound)
        dev_fail(parent->dev, DEV_FAILED, "no memory for communicator '%s'", child->name);
    if (sound)
        sound = !processes_host_all_gather(parent, &root->next_id, numbers, sizeof *numbers);
    for (int r = 0; sound && r < parent->size; r++)
        state->id = numbers[r] > state->id ? numbers[r] : state->id;
    if (sound && state->id >= most_comms()) {
        dev_fail(parent->dev, DEV_FAILED,
            "communicator '%s' is one too many: MPI's tags allow %lld here", child->name,
            (long long)most_comms());
        sound = false;
    }
    free(numbers);
    if (!sound) {
        free(state);
        return false;
    }
    root->next_id = state->id + 1;
    state->group = root->group;
    child->state = state;
    return true;
}

static void abort_processes(
    struct comm *comm, int rank, enum dev_status status, const char *message)
{
    group_abort(group_of(comm), rank, status, message);
}

const struct comm_transport transport_processes = {
    .open = processes_open,
    .duplicate = processes_duplicate,
    .close = processes_close,
    .exchange = processes_exchange,
    .host_all_gather = processes_host_all_gather,
    .host_collect = processes_host_collect,
    .abort = abort_processes,
};
