/* Messages in flight: begun in pieces, looked at all together, and, after a failure, received
 * unread until none is left. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/mpi_parts.h"
#include "probe/timing.h"

#define NOTICES_AT_ONCE 64

/* ---- pieces ---------------------------------------------------------------------------------- */

/* A message that MPI could not deliver: the process at its other end is gone. */
static void fail_delivery(const struct flight *flight, int code)
{
    struct mpi_notice lost = {.kind = NOTICE_LOST, .rank = -1, .partner = flight->process};
    int length = 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    MPI_Error_string(code, text, &length);
    if (flight->transfer) {
        lost.rank = flight->transfer->rank;
        snprintf(lost.what, sizeof lost.what, "%.60s", flight->transfer->what);
    }
    snprintf(lost.text, sizeof lost.text, "%.250s", text);
    mpi_engine.handlers.notice(&lost);
}

/* Room for one more request. */
static void reserve_flight(struct engine *e)
{
    if (e->count < e->capacity)
        return;
    int capacity = e->capacity ? 2 * e->capacity : 64;
    e->requests = realloc(e->requests, (size_t)capacity * sizeof *e->requests);
    e->flights = realloc(e->flights, (size_t)capacity * sizeof *e->flights);
    e->finished = realloc(e->finished, (size_t)capacity * sizeof *e->finished);
    e->statuses = realloc(e->statuses, (size_t)capacity * sizeof *e->statuses);
    if (!e->requests || !e->flights || !e->finished || !e->statuses) {
        fprintf(stderr, "MPI cannot go on: no memory for %d requests\n", capacity);
        mpi_abort_job(3);
    }
    e->capacity = capacity;
}

static void post_piece(
    struct engine *e, struct mpi_transfer *transfer, int index, int64_t at, int64_t bytes)
{
    struct mpi_message *m = &transfer->messages[index];
    char *data = (char *)m->data + at;
    reserve_flight(e);
    MPI_Request *request = &e->requests[e->count];
    if (m->receives)
        mpi_demand(MPI_Irecv(data, (int)bytes, MPI_BYTE, m->process, m->tag, e->data, request),
            "MPI_Irecv");
    else
        mpi_demand(MPI_Isend(data, (int)bytes, MPI_BYTE, m->process, m->tag, e->data, request),
            "MPI_Isend");
    e->flights[e->count++] = (struct flight){transfer, index, bytes, m->process, m->receives, NULL};
    e->messages_in_flight++;
    m->pieces++;
    if (!m->receives)
        e->sent[m->process]++;
}

static void post_message(struct engine *e, struct mpi_transfer *transfer, int index)
{
    int64_t bytes = transfer->messages[index].bytes, at = 0;
    transfer->messages[index].posted = true;
    do {
        int64_t piece = bytes - at < e->piece_bytes ? bytes - at : e->piece_bytes;
        post_piece(e, transfer, index, at, piece);
        at += piece;
    } while (at < bytes);
}

/* Receives first, so that what comes finds its place. */
void flight_post_transfer(struct engine *e, struct mpi_transfer *transfer)
{
    transfer->left = transfer->count;
    for (int i = 0; i < transfer->count; i++) {
        if (transfer->messages[i].receives && !transfer->messages[i].after)
            post_message(e, transfer, i);
    }
    for (int i = 0; i < transfer->count; i++) {
        if (!transfer->messages[i].receives)
            post_message(e, transfer, i);
    }
    transfer->next = e->waiting;
    e->waiting = transfer;
}

/* Begins the receives whose message before has come. */
static void post_due(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    for (struct mpi_transfer *t = e->waiting; t; t = t->next) {
        if (!t->due || t->abandoned || t->refused)
            continue;
        t->due = false;
        for (int i = 0; i < t->count; i++) {
            const struct mpi_message *m = &t->messages[i];
            if (!m->posted && m->after && t->messages[m->after - 1].come)
                post_message(e, t, i);
        }
    }
    pthread_mutex_unlock(&e->lock);
}

/* Under the lock. The last message is through. */
static void end_transfer(struct engine *e, struct mpi_transfer *transfer)
{
    struct mpi_transfer **link = &e->waiting;
    while (*link != transfer)
        link = &(*link)->next;
    *link = transfer->next;
    if (transfer->abandoned) {
        mpi_transfer_free(transfer);
        return;
    }
    transfer->done = true;
    pthread_cond_signal(&transfer->wake);
}

/* Under the lock. What was not begun never will be. */
static void drop_unposted(struct engine *e)
{
    struct mpi_transfer *t = e->waiting;
    while (t) {
        struct mpi_transfer *next = t->next;
        for (int i = 0; i < t->count; i++)
            t->left -= !t->messages[i].posted;
        if (!t->left)
            end_transfer(e, t);
        t = next;
    }
}

/* Under the lock. */
static void note_arrival(struct mpi_transfer *transfer, int message)
{
    if (transfer->abandoned || transfer->refused)
        return;
    if (!transfer->arrived || transfer->arrived(transfer, message)) {
        transfer->messages[message].come = transfer->due = true;
        return;
    }
    transfer->refused = true;
    pthread_cond_signal(&transfer->wake);
}

static void end_piece(struct engine *e, const struct flight *flight, MPI_Status *status)
{
    struct mpi_transfer *transfer = flight->transfer;
    struct mpi_message *m = &transfer->messages[flight->message];
    int bytes = 0, cancelled = 0;
    pthread_mutex_lock(&e->lock);
    if (flight->receives) {
        MPI_Test_cancelled(status, &cancelled);
        MPI_Get_count(status, MPI_BYTE, &bytes);
        if (!cancelled)
            e->received[flight->process]++;
        m->damaged |= status->MPI_ERROR != MPI_SUCCESS || bytes != flight->bytes;
        m->arrived_bytes += bytes;
    }
    if (!--m->pieces) {
        transfer->left--;
        if (m->receives && !cancelled)
            note_arrival(transfer, flight->message);
    }
    if (!transfer->left)
        end_transfer(e, transfer);
    pthread_mutex_unlock(&e->lock);
}

/* Whether a request that ended with this error is over all the same: its message was longer than
 * the receive. */
static bool is_truncation(int code)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class == MPI_ERR_TRUNCATE;
}

static void end_flight(struct engine *e, int index, MPI_Status *status)
{
    struct flight flight = e->flights[index];
    if (status->MPI_ERROR != MPI_SUCCESS && !is_truncation(status->MPI_ERROR))
        fail_delivery(&flight, status->MPI_ERROR);
    if (flight.transfer) {
        e->messages_in_flight--;
        end_piece(e, &flight, status);
    } else {
        free(flight.notice);
    }
    e->flights[index].bytes = -1; /* taken out below */
}

/* True when something had ended. */
bool flight_test(struct engine *e)
{
    int ended = 0;
    if (!e->count)
        return false;
    for (int i = 0; i < e->count; i++)
        e->statuses[i].MPI_ERROR = MPI_SUCCESS;
    int code = MPI_Testsome(e->count, e->requests, &ended, e->finished, e->statuses);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS)
        mpi_demand(code, "MPI_Testsome");
    if (ended == MPI_UNDEFINED || !ended)
        return false;
    for (int i = 0; i < ended; i++) {
        if (code == MPI_SUCCESS)
            e->statuses[i].MPI_ERROR = MPI_SUCCESS; /* which it then need not have set */
        end_flight(e, e->finished[i], &e->statuses[i]);
    }
    int kept = 0;
    for (int i = 0; i < e->count; i++) {
        if (e->flights[i].bytes < 0)
            continue;
        e->flights[kept] = e->flights[i];
        e->requests[kept++] = e->requests[i];
    }
    e->count = kept;
    post_due(e);
    return true;
}

/* ---- notices --------------------------------------------------------------------------------- */

void flight_expect_notice(struct engine *e)
{
    mpi_demand(MPI_Irecv(&e->notice, sizeof e->notice, MPI_BYTE, MPI_ANY_SOURCE, 0, e->notices,
                   &e->notice_request),
        "MPI_Irecv of a notice");
}

void flight_take_notices(struct engine *e)
{
    for (int i = 0; i < NOTICES_AT_ONCE; i++) {
        int come = 0;
        mpi_demand(MPI_Test(&e->notice_request, &come, MPI_STATUS_IGNORE), "MPI_Test of a notice");
        if (!come)
            return;
        struct mpi_notice notice = e->notice;
        flight_expect_notice(e);
        e->handlers.notice(&notice);
    }
}

void flight_post_notice(struct engine *e, struct outgoing *out)
{
    reserve_flight(e);
    mpi_demand(MPI_Isend(out->notice, sizeof *out->notice, MPI_BYTE, out->process, 0, e->notices,
                   &e->requests[e->count]),
        "MPI_Isend of a notice");
    e->flights[e->count++] = (struct flight){
        .process = out->process, .bytes = sizeof *out->notice, .notice = out->notice};
    free(out);
}

void mpi_send_notice(int process, const struct mpi_notice *notice)
{
    struct outgoing *out = malloc(sizeof *out);
    struct mpi_notice *copy = malloc(sizeof *copy);
    if (!out || !copy) {
        free(out);
        free(copy);
        return;
    }
    *copy = *notice;
    *out = (struct outgoing){NULL, process, copy};
    pthread_mutex_lock(&mpi_engine.lock);
    struct outgoing **end = &mpi_engine.outgoing;
    while (*end)
        end = &(*end)->next;
    *end = out;
    pthread_cond_signal(&mpi_engine.work);
    pthread_mutex_unlock(&mpi_engine.lock);
}

/* ---- drains ---------------------------------------------------------------------------------- */

void mpi_count_messages(int64_t *sent, int64_t *received)
{
    size_t bytes = (size_t)mpi_engine.job->processes * sizeof *sent;
    pthread_mutex_lock(&mpi_engine.lock);
    memcpy(sent, mpi_engine.sent, bytes);
    memcpy(received, mpi_engine.received, bytes);
    pthread_mutex_unlock(&mpi_engine.lock);
}

/* Receives one message of process q, whatever it is. True when there was one. */
static bool discard_message(struct engine *e, int q)
{
    int there = 0, bytes = 0;
    MPI_Status status;
    mpi_demand(MPI_Iprobe(q, MPI_ANY_TAG, e->data, &there, &status), "MPI_Iprobe");
    if (!there)
        return false;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    char *nowhere = malloc((size_t)bytes + 1);
    if (!nowhere) {
        fprintf(stderr, "MPI cannot go on: no memory for a message of %d bytes\n", bytes);
        mpi_abort_job(3);
    }
    mpi_demand(MPI_Recv(nowhere, bytes, MPI_BYTE, q, status.MPI_TAG, e->data, MPI_STATUS_IGNORE),
        "MPI_Recv");
    free(nowhere);
    pthread_mutex_lock(&e->lock);
    e->received[q]++;
    pthread_mutex_unlock(&e->lock);
    return true;
}

/* Discards what is still to come. *all: nothing is. A process that is through with its own drain
 * may have begun the next group: of it no more is taken than expected. True when something was
 * taken. */
static bool discard_messages(struct engine *e, const int64_t *expected, bool *all)
{
    bool any = false;
    *all = true;
    for (int q = 0; q < e->job->processes; q++) {
        if (e->received[q] < expected[q])
            any |= discard_message(e, q);
        *all &= e->received[q] >= expected[q];
    }
    return any;
}

/* Receives that nothing will match are cancelled before anything is received without a place: what
 * they have matched counts. */
bool flight_move_drain(struct engine *e)
{
    if (!e->expected)
        return false;
    if (!e->draining) {
        for (int i = 0; i < e->count; i++) {
            if (e->flights[i].receives)
                mpi_demand(MPI_Cancel(&e->requests[i]), "MPI_Cancel");
        }
        pthread_mutex_lock(&e->lock);
        drop_unposted(e);
        pthread_mutex_unlock(&e->lock);
        e->draining = true;
        return true;
    }
    for (int i = 0; i < e->count; i++) {
        if (e->flights[i].receives)
            return false;
    }
    bool all, any = discard_messages(e, e->expected, &all);
    if (!all || e->messages_in_flight)
        return any;
    pthread_mutex_lock(&e->lock);
    e->drain = e->expected = NULL;
    e->draining = false;
    pthread_cond_broadcast(&e->answered);
    pthread_mutex_unlock(&e->lock);
    return true;
}

void mpi_drain(const int64_t *expected)
{
    struct engine *e = &mpi_engine;
    pthread_mutex_lock(&e->lock);
    e->drain = expected;
    pthread_cond_signal(&e->work);
    while (e->drain)
        pthread_cond_wait(&e->answered, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

/* ---- transfers, for the threads that wait ---------------------------------------------------- */

struct mpi_transfer *mpi_transfer_create(int count, int64_t own_bytes)
{
    size_t bytes = sizeof(struct mpi_transfer) + (size_t)count * sizeof(struct mpi_message);
    bytes = (bytes + 63) / 64 * 64;
    struct mpi_transfer *transfer = calloc(1, bytes + (size_t)own_bytes);
    if (!transfer)
        return NULL;
    transfer->own = (char *)transfer + bytes;
    transfer->count = count;
    pthread_cond_init(&transfer->wake, NULL);
    return transfer;
}

void mpi_transfer_free(struct mpi_transfer *transfer)
{
    if (!transfer)
        return;
    pthread_cond_destroy(&transfer->wake);
    free(transfer->owned);
    free(transfer);
}

/* Under the lock. */
static void submit(struct engine *e, struct mpi_transfer *transfer)
{
    struct mpi_transfer **end = &e->submitted;
    transfer->since_s = timing_now_s();
    while (*end)
        end = &(*end)->next;
    *end = transfer;
    pthread_cond_signal(&e->work);
}

bool mpi_transfer_run(
    struct mpi_transfer *transfer, bool (*stop)(const void *context), const void *context)
{
    struct engine *e = &mpi_engine;
    pthread_mutex_lock(&e->lock);
    submit(e, transfer);
    while (!transfer->done && !transfer->refused && !stop(context))
        pthread_cond_wait(&transfer->wake, &e->lock);
    bool sound = transfer->done && !transfer->refused;
    pthread_mutex_unlock(&e->lock);
    if (!sound)
        mpi_transfer_drop(transfer);
    return sound;
}

void mpi_transfer_begin(struct mpi_transfer *transfer)
{
    pthread_mutex_lock(&mpi_engine.lock);
    submit(&mpi_engine, transfer);
    pthread_mutex_unlock(&mpi_engine.lock);
}

enum mpi_transfer_state mpi_transfer_look(struct mpi_transfer *transfer)
{
    pthread_mutex_lock(&mpi_engine.lock);
    enum mpi_transfer_state state = transfer->refused ? MPI_TRANSFER_REFUSED
                                    : transfer->done  ? MPI_TRANSFER_DONE
                                                      : MPI_TRANSFER_UNDER_WAY;
    pthread_mutex_unlock(&mpi_engine.lock);
    return state;
}

void mpi_transfer_drop(struct mpi_transfer *transfer)
{
    pthread_mutex_lock(&mpi_engine.lock);
    bool over = transfer->done;
    if (!over)
        transfer->abandoned = true;
    pthread_mutex_unlock(&mpi_engine.lock);
    if (over)
        mpi_transfer_free(transfer);
}

void mpi_wake(void)
{
    pthread_mutex_lock(&mpi_engine.lock);
    for (struct mpi_transfer *t = mpi_engine.waiting; t; t = t->next)
        pthread_cond_signal(&t->wake);
    for (struct mpi_transfer *t = mpi_engine.submitted; t; t = t->next)
        pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&mpi_engine.lock);
}

const struct mpi_transfer *mpi_next_waiting(const struct mpi_transfer *last)
{
    pthread_mutex_lock(&mpi_engine.lock);
    const struct mpi_transfer *next = last ? last->next : mpi_engine.waiting;
    while (next && next->abandoned)
        next = next->next;
    pthread_mutex_unlock(&mpi_engine.lock);
    return next;
}

void flight_release(struct engine *e)
{
    free(e->requests);
    free(e->flights);
    free(e->finished);
    free(e->statuses);
    free(e->sent);
    free(e->received);
}
