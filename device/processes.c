/* Messages between ranks in several processes.
 *
 * Before their parts two partners send each other a header: which exchange this is, its label, and
 * the sizes of what follows. So both wait for each other, as thread ranks do, and a difference is
 * found and named as soon as the second of them comes. Parts are sent together with the headers and
 * received when theirs has come and agrees: a message that is longer than its receive may be
 * written past its end by the library.
 *
 * Gathers of the host double their blocks in ceil(log2 ranks) such steps. */
#include <stdlib.h>
#include <string.h>
#include "device/backend.h"
#include "device/board.h"
#include "device/launch.h"
#include "device/pool.h"
#include "device/processes_meeting.h"

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
        struct mpi_transfer *transfer = meeting_transfer(&m);
        if (meeting_run(&m, transfer))
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
    struct mpi_transfer *transfer = meeting_transfer(&m);
    if (transfer)
        transfer->owned = own;
    else
        free(own);
    if (!meeting_run(&m, transfer))
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
    bool sound = !group_failed(meeting_group(comm), NULL);
    if (!sound)
        group_give_up(meeting_group(comm), comm->root->rank);
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
        struct mpi_transfer *transfer = meeting_transfer(&m);
        sound = meeting_run(&m, transfer);
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
    group_abort(meeting_group(comm), rank, status, message);
}

const struct comm_transport transport_processes = {
    .open = processes_open,
    .duplicate = processes_duplicate,
    .close = processes_close,
    .exchange = processes_exchange,
    .host_all_gather = processes_host_all_gather,
    .host_collect = processes_host_collect,
    .abort = abort_processes,
    .announce = processes_announce,
    .agreed = processes_agreed,
    .forget = processes_forget,
};
