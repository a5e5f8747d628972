/* Messages between simulated ranks: nothing moves, clocks meet.
 *
 * All ranks enqueue the exchanges of all communicators in one order, so they can all wait for each
 * other in each of them, on their host threads. A rank shows what it sends and when it comes; once
 * all have, it books its own links from the moment at which it and all of its partners are there,
 * and shows when they are through; once all have, the latest of its own and its partners' is its
 * end. So no rank ever touches another's clocks, and no figure depends on which thread comes first.
 *
 * What a rank shows stays readable without a lock, because nobody can be two meetings ahead. */
#include <stdlib.h>
#include <string.h>
#include "device/board.h"
#include "device/sim_links.h"

/* What a rank shows the others. */
struct side {
    /* Written before the first meeting of an exchange, read until the second. */
    const char *comm;
    struct exchange *exchange; /* owned */
    int64_t arrival_ps[DEV_MACHINES_MAX];
    /* Written before the second, read until the next. 0: not used. */
    int64_t through_ps[DEV_MACHINES_MAX][SIM_DIRECTIONS];
    /* The host's clocks at a gather, for even and odd ones in turn. */
    int64_t host_ps[2][DEV_MACHINES_MAX];
    int64_t gathers;
};

/* Where a rank meets the others of a communicator: one for all communicators over the same ranks in
 * the same order, whose exchanges follow one another in one order too. */
struct sim_comm {
    struct board *board; /* but the root's, it belongs to its rank 0 */
    struct side mine;
    struct side **sides; /* by rank; sides[0] NULL until the first meeting */
};

/* ---- communicators --------------------------------------------------------------------------- */

static struct sim_comm *create(int size)
{
    struct sim_comm *state = calloc(1, sizeof *state);
    struct side **sides = calloc((size_t)size, sizeof *sides);
    if (!state || !sides) {
        free(state);
        free(sides);
        return NULL;
    }
    state->sides = sides;
    return state;
}

static void destroy(struct sim_comm *state)
{
    if (!state)
        return;
    exchange_free(state->mine.exchange); /* of an exchange that failed: others may have read it */
    free(state->sides);
    free(state);
}

static bool sim_comm_open(struct comm *comm, struct board *board)
{
    struct sim_comm *state = create(group_size(board_group(board)));
    if (!state)
        return false;
    state->board = board;
    comm->size = group_size(board_group(board));
    comm->state = state;
    return true;
}

/* Communicators are closed before those that they were made from. */
static void sim_comm_close(struct comm *comm)
{
    struct sim_comm *state = comm->state;
    if (comm->parent && comm->parent->state == state)
        return;
    if (comm->parent && comm->rank == 0)
        board_free(state->board);
    destroy(state);
}

static bool same_ranks(const struct comm *parent, const struct comm *child)
{
    for (int r = 0; r < child->size; r++)
        if (child->size != parent->size || comm_member(child, r) != comm_member(parent, r))
            return false;
    return true;
}

/* Whether all of the parent's ranks keep their places is the same on all of them. */
static bool sim_duplicate(struct comm *parent, struct comm *child)
{
    if (same_ranks(parent, child)) {
        child->state = parent->state;
        return true;
    }
    const struct sim_comm *from = parent->state;
    struct sim_comm *state = create(child->size);
    if (!state) {
        dev_fail(parent->dev, DEV_FAILED, "no memory for communicator '%s'", child->name);
        return false;
    }
    state->board = board_of_child(from->board, child);
    if (!state->board) {
        destroy(state);
        return false;
    }
    child->state = state;
    return true;
}

/* Waits until all ranks are in `what` (NULL: a gather of the host) and gathers their bytes. */
static bool meet(
    struct comm *comm, const char *what, const void *send, void *receive, int64_t bytes)
{
    struct sim_comm *state = comm->state;
    struct side *mine = &state->mine;
    if (!state->sides[0] && board_gather(state->board, comm->rank, "the first meeting", &mine,
                                state->sides, sizeof mine))
        return false;
    return board_gather(state->board, comm->rank, what, send, receive, bytes) == 0;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static struct sim *sim_of(const struct comm *comm)
{
    return comm->dev->state;
}

/* Whether every rank is in the same exchange, and sends its partners what they expect. */
static bool check(struct comm *comm, const struct exchange *exchange)
{
    struct sim_comm *state = comm->state;
    const struct side *first = state->sides[0];
    if (strcmp(first->comm, comm->name) || first->exchange->sequence != exchange->sequence) {
        dev_fail(comm->dev, DEV_FAILED,
            "'%s': rank %d is in exchange %lld of communicator '%s', rank %d in exchange %lld of "
            "'%s'",
            exchange->label, comm_member(comm, 0), (long long)first->exchange->sequence,
            first->comm, comm_member(comm, comm->rank), (long long)exchange->sequence, comm->name);
        return false;
    }
    for (int i = 0; i < exchange->partner_count; i++) {
        int partner = exchange->partners[i];
        const struct exchange *other = state->sides[partner]->exchange;
        if (!board_match(state->board, other, exchange, partner, comm->rank, comm->rank) ||
            !board_match(state->board, exchange, other, comm->rank, partner, comm->rank))
            return false;
    }
    return true;
}

/* When the rank and all of its partners are there. */
static void find_starts(const struct comm *comm, const struct exchange *exchange, int64_t *start_ps)
{
    const struct sim_comm *state = comm->state;
    const struct sim *sim = sim_of(comm);
    for (int m = 0; m < sim->machines; m++) {
        start_ps[m] = state->mine.arrival_ps[m];
        for (int i = 0; i < exchange->partner_count; i++) {
            int64_t other_ps = state->sides[exchange->partners[i]]->arrival_ps[m];
            start_ps[m] = other_ps > start_ps[m] ? other_ps : start_ps[m];
        }
    }
}

static void complete(struct comm *comm, struct stream *stream, const struct exchange *exchange,
    struct calendar_span *spans)
{
    const struct sim_comm *state = comm->state;
    for (int i = 0; i < exchange->partner_count; i++) {
        int partner = exchange->partners[i];
        sim_links_join(comm, exchange, partner, state->sides[partner]->through_ps, spans);
    }
    sim_links_finish(comm, stream, exchange, spans);
}

static void sim_exchange(struct comm *comm, struct stream *stream, struct exchange *exchange)
{
    struct sim_comm *state = comm->state;
    struct sim *sim = sim_of(comm);
    struct calendar_span spans[DEV_MACHINES_MAX];
    int64_t start_ps[DEV_MACHINES_MAX];
    state->mine.comm = comm->name;
    state->mine.exchange = exchange; /* stays there after a failure */
    for (int m = 0; m < sim->machines; m++)
        state->mine.arrival_ps[m] = sim_ready(&sim->clocks[m], stream->index);
    if (!meet(comm, exchange->label, NULL, NULL, 0) || !check(comm, exchange))
        return;
    find_starts(comm, exchange, start_ps);
    if (!sim_links_book(comm, exchange, start_ps, spans, state->mine.through_ps) ||
        !meet(comm, exchange->label, NULL, NULL, 0))
        return;
    complete(comm, stream, exchange, spans);
    state->mine.exchange = NULL;
    exchange_free(exchange);
}

/* ---- the host's side ------------------------------------------------------------------------- */

/* The bytes are real; the hosts' clocks join at the latest and the messages' time after it. */
static int sim_host_all_gather(struct comm *comm, const void *send, void *receive, int64_t bytes)
{
    struct sim_comm *state = comm->state;
    struct sim *sim = sim_of(comm);
    int64_t latest_ps[DEV_MACHINES_MAX] = {0};
    int turn = (int)(state->mine.gathers++ % 2);
    for (int m = 0; m < sim->machines; m++)
        state->mine.host_ps[turn][m] = sim->clocks[m].host_ps;
    if (!meet(comm, NULL, send, receive, bytes))
        return -1;
    for (int m = 0; m < sim->machines; m++)
        for (int r = 0; r < comm->size; r++) {
            int64_t other_ps = state->sides[r]->host_ps[turn][m];
            latest_ps[m] = other_ps > latest_ps[m] ? other_ps : latest_ps[m];
        }
    sim_links_gather(comm, latest_ps, bytes);
    return 0;
}

static void sim_abort(struct comm *comm, int rank, enum dev_status status, const char *message)
{
    struct sim_comm *state = comm->state;
    group_abort(board_group(state->board), rank, status, message);
}

const struct comm_transport transport_sim = {
    .open = sim_comm_open,
    .duplicate = sim_duplicate,
    .close = sim_comm_close,
    .exchange = sim_exchange,
    .host_all_gather = sim_host_all_gather,
    .abort = sim_abort,
};
