/* The engine: a thread that posts what others hand it, looks for what has come, and rests in
 * between.
 *
 * It rests by looking again at once while the kernels of this process leave it a core, since a
 * message of a few microseconds is not worth a sleep; then it sleeps, ever longer, so that ranks
 * that outnumber the cores do not take them from one another. MPI's own blocking calls would keep a
 * core busy however long they wait: none is made between start and end. */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include "device/group.h"
#include "device/mpi_engine.h"
#include "device/pool.h"
#include "probe/timing.h"

#define PIECE_BYTES ((int64_t)1 << 30)
#define IDLE_S 0.02     /* between looks while nothing is in flight */
#define SPIN_S 0.05     /* of looking without a sleep since the last thing came */
#define NAP_S 10e-6     /* the first sleep; */
#define LONG_NAP_S 2e-4 /* the longest while messages are in flight */
#define NOTICES_AT_ONCE 64

/* A piece of a message, or a notice (transfer NULL), in flight. */
struct flight {
    struct mpi_transfer *transfer;
    int message;
    int64_t bytes;
    int process;
    bool receives;
    struct mpi_notice *notice; /* owned */
};

struct outgoing {
    struct outgoing *next;
    int process;
    struct mpi_notice *notice;
};

/* MPI itself exists once in a process, and so does its engine. */
static struct engine {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, answered;
    struct mpi_handlers handlers;

    /* under the lock */
    struct mpi_transfer *submitted;
    struct outgoing *outgoing;
    bool stopping, started, failed;
    struct {
        const void *send;
        void *receive;
        int64_t bytes;
        bool wanted, posted;
    } gather;
    const int64_t *drain; /* expected; NULL: none */
    struct dev_pool *pool, *pool_wanted;
    double tick_s;

    /* the thread's */
    MPI_Comm data, notices, gathers;
    struct mpi_job *job;
    char *error;
    int error_size;
    MPI_Request *requests;
    struct flight *flights; /* of the requests */
    int count, capacity, messages_in_flight;
    int *finished;
    MPI_Status *statuses;
    MPI_Request gather_request, notice_request;
    struct mpi_notice notice;
    struct mpi_transfer *waiting; /* posted and not over */
    int64_t *sent, *received;     /* messages, by process; under the lock */
    bool draining;                /* receives are given up */
    int64_t piece_bytes;
    struct pool_spin spin;
    bool spinning;
    double quiet_since_s, nap_s, next_tick_s, last_tick_s;
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .piece_bytes = PIECE_BYTES};

/* ---- failure of MPI itself ------------------------------------------------------------------- */

void mpi_abort_job(int status)
{
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, status);
    abort();
}

static void demand(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "MPI cannot go on: %s: %s\n", what, text);
    mpi_abort_job(3);
}

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
    engine.handlers.notice(&lost);
}

/* ---- what is in flight ----------------------------------------------------------------------- */

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
        demand(MPI_Irecv(data, (int)bytes, MPI_BYTE, m->process, m->tag, e->data, request),
            "MPI_Irecv");
    else
        demand(MPI_Isend(data, (int)bytes, MPI_BYTE, m->process, m->tag, e->data, request),
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
    do {
        int64_t piece = bytes - at < e->piece_bytes ? bytes - at : e->piece_bytes;
        post_piece(e, transfer, index, at, piece);
        at += piece;
    } while (at < bytes);
}

/* Receives first, so that what comes finds its place. */
static void post_transfer(struct engine *e, struct mpi_transfer *transfer)
{
    transfer->left = transfer->count;
    for (int i = 0; i < transfer->count; i++) {
        if (transfer->messages[i].receives)
            post_message(e, transfer, i);
    }
    for (int i = 0; i < transfer->count; i++) {
        if (!transfer->messages[i].receives)
            post_message(e, transfer, i);
    }
    transfer->next = e->waiting;
    e->waiting = transfer;
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
        if (m->receives && !cancelled && transfer->arrived && !transfer->abandoned &&
            !transfer->refused && !transfer->arrived(transfer, flight->message)) {
            transfer->refused = true;
            pthread_cond_signal(&transfer->wake);
        }
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
static bool test_requests(struct engine *e)
{
    int ended = 0;
    if (!e->count)
        return false;
    for (int i = 0; i < e->count; i++)
        e->statuses[i].MPI_ERROR = MPI_SUCCESS;
    int code = MPI_Testsome(e->count, e->requests, &ended, e->finished, e->statuses);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS)
        demand(code, "MPI_Testsome");
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
    return true;
}

/* ---- notices --------------------------------------------------------------------------------- */

static void expect_notice(struct engine *e)
{
    demand(MPI_Irecv(&e->notice, sizeof e->notice, MPI_BYTE, MPI_ANY_SOURCE, 0, e->notices,
               &e->notice_request),
        "MPI_Irecv of a notice");
}

static void take_notices(struct engine *e)
{
    for (int i = 0; i < NOTICES_AT_ONCE; i++) {
        int come = 0;
        demand(MPI_Test(&e->notice_request, &come, MPI_STATUS_IGNORE), "MPI_Test of a notice");
        if (!come)
            return;
        struct mpi_notice notice = e->notice;
        expect_notice(e);
        e->handlers.notice(&notice);
    }
}

static void post_notice(struct engine *e, struct outgoing *out)
{
    reserve_flight(e);
    demand(MPI_Isend(out->notice, sizeof *out->notice, MPI_BYTE, out->process, 0, e->notices,
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
    pthread_mutex_lock(&engine.lock);
    struct outgoing **end = &engine.outgoing;
    while (*end)
        end = &(*end)->next;
    *end = out;
    pthread_cond_signal(&engine.work);
    pthread_mutex_unlock(&engine.lock);
}

/* ---- gathers and drains ---------------------------------------------------------------------- */

/* True when one has ended. */
static bool move_gather(struct engine *e)
{
    int come = 0;
    if (!e->gather.wanted)
        return false;
    if (!e->gather.posted) {
        int bytes = (int)e->gather.bytes;
        demand(MPI_Iallgather(e->gather.send, bytes, MPI_BYTE, e->gather.receive, bytes, MPI_BYTE,
                   e->gathers, &e->gather_request),
            "MPI_Iallgather");
        e->gather.posted = true;
    }
    demand(MPI_Test(&e->gather_request, &come, MPI_STATUS_IGNORE), "MPI_Test of a gather");
    if (!come)
        return false;
    pthread_mutex_lock(&e->lock);
    e->gather.wanted = e->gather.posted = false;
    pthread_cond_broadcast(&e->answered);
    pthread_mutex_unlock(&e->lock);
    return true;
}

void mpi_gather(const void *send, void *receive, int64_t bytes)
{
    struct engine *e = &engine;
    pthread_mutex_lock(&e->lock);
    e->gather.send = send;
    e->gather.receive = receive;
    e->gather.bytes = bytes;
    e->gather.wanted = true;
    pthread_cond_signal(&e->work);
    while (e->gather.wanted)
        pthread_cond_wait(&e->answered, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void mpi_count_messages(int64_t *sent, int64_t *received)
{
    size_t bytes = (size_t)engine.job->processes * sizeof *sent;
    pthread_mutex_lock(&engine.lock);
    memcpy(sent, engine.sent, bytes);
    memcpy(received, engine.received, bytes);
    pthread_mutex_unlock(&engine.lock);
}

/* Receives one message, whatever it is. True when there was one. */
static bool discard_message(struct engine *e)
{
    int there = 0, bytes = 0;
    MPI_Status status;
    demand(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, e->data, &there, &status), "MPI_Iprobe");
    if (!there)
        return false;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    char *nowhere = malloc((size_t)bytes + 1);
    if (!nowhere) {
        fprintf(stderr, "MPI cannot go on: no memory for a message of %d bytes\n", bytes);
        mpi_abort_job(3);
    }
    demand(MPI_Recv(nowhere, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, e->data,
               MPI_STATUS_IGNORE),
        "MPI_Recv");
    free(nowhere);
    pthread_mutex_lock(&e->lock);
    e->received[status.MPI_SOURCE]++;
    pthread_mutex_unlock(&e->lock);
    return true;
}

static bool all_received(const struct engine *e, const int64_t *expected)
{
    for (int q = 0; q < e->job->processes; q++) {
        if (e->received[q] < expected[q])
            return false;
    }
    return true;
}

/* Receives that nothing will match are cancelled before anything is received without a place: what
 * they have matched counts. */
static bool move_drain(struct engine *e)
{
    if (!e->drain)
        return false;
    if (!e->draining) {
        for (int i = 0; i < e->count; i++) {
            if (e->flights[i].receives)
                demand(MPI_Cancel(&e->requests[i]), "MPI_Cancel");
        }
        e->draining = true;
        return true;
    }
    for (int i = 0; i < e->count; i++) {
        if (e->flights[i].receives)
            return false;
    }
    if (!all_received(e, e->drain))
        return discard_message(e);
    if (e->messages_in_flight)
        return false;
    pthread_mutex_lock(&e->lock);
    e->drain = NULL;
    e->draining = false;
    pthread_cond_broadcast(&e->answered);
    pthread_mutex_unlock(&e->lock);
    return true;
}

void mpi_drain(const int64_t *expected)
{
    struct engine *e = &engine;
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

bool mpi_transfer_run(
    struct mpi_transfer *transfer, bool (*stop)(const void *context), const void *context)
{
    struct engine *e = &engine;
    transfer->since_s = timing_now_s();
    pthread_mutex_lock(&e->lock);
    struct mpi_transfer **end = &e->submitted;
    while (*end)
        end = &(*end)->next;
    *end = transfer;
    pthread_cond_signal(&e->work);
    while (!transfer->done && !transfer->refused && !stop(context))
        pthread_cond_wait(&transfer->wake, &e->lock);
    bool sound = transfer->done && !transfer->refused;
    bool over = transfer->done;
    if (!over)
        transfer->abandoned = true;
    pthread_mutex_unlock(&e->lock);
    if (over && !sound)
        mpi_transfer_free(transfer);
    return sound;
}

void mpi_wake(void)
{
    pthread_mutex_lock(&engine.lock);
    for (struct mpi_transfer *t = engine.waiting; t; t = t->next)
        pthread_cond_signal(&t->wake);
    for (struct mpi_transfer *t = engine.submitted; t; t = t->next)
        pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&engine.lock);
}

const struct mpi_transfer *mpi_next_waiting(const struct mpi_transfer *last)
{
    const struct mpi_transfer *next = last ? last->next : engine.waiting;
    while (next && next->abandoned)
        next = next->next;
    return next;
}

/* ---- resting --------------------------------------------------------------------------------- */

static void stop_spinning(struct engine *e)
{
    if (e->spinning)
        pool_spin_end(&e->spin);
    e->spinning = false;
}

static void nap(double seconds)
{
    struct timespec time = {0, (long)(seconds * 1e9)};
    nanosleep(&time, NULL);
}

/* Something is in flight, and nothing has come. */
static void rest(struct engine *e)
{
    double now_s = timing_now_s();
    if (e->pool && now_s - e->quiet_since_s < SPIN_S) {
        if (!e->spinning)
            pool_spin_begin(&e->spin, e->pool, SPIN_S);
        e->spinning = true;
        if (pool_spin_goes_on(&e->spin))
            return;
    }
    stop_spinning(e);
    nap(e->nap_s);
    double longest_s = e->messages_in_flight ? LONG_NAP_S : 10 * LONG_NAP_S;
    e->nap_s = 2 * e->nap_s < longest_s ? 2 * e->nap_s : longest_s;
}

/* Nothing is in flight: sleeps until there is work, for a moment. Under the lock. */
static void idle(struct engine *e)
{
    double until_s = timing_now_s() + IDLE_S;
    struct timespec until;
    if (until_s > e->next_tick_s)
        until_s = e->next_tick_s;
    until.tv_sec = (time_t)until_s;
    until.tv_nsec = (long)((until_s - (double)until.tv_sec) * 1e9);
    pthread_cond_timedwait(&e->work, &e->lock, &until);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Takes over what others have handed in; waits for something when nothing is in flight. True when
 * there was something. */
static bool take_work(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool busy = e->messages_in_flight || e->gather.wanted || e->drain || e->stopping;
    if (!busy && !e->submitted && !e->outgoing && e->pool == e->pool_wanted) {
        stop_spinning(e);
        idle(e);
    }
    if (e->pool != e->pool_wanted) {
        stop_spinning(e);
        e->pool = e->pool_wanted;
        pthread_cond_broadcast(&e->answered);
    }
    bool any = e->submitted || e->outgoing;
    while (e->submitted) {
        struct mpi_transfer *first = e->submitted;
        e->submitted = first->next;
        post_transfer(e, first);
    }
    while (e->outgoing) {
        struct outgoing *first = e->outgoing;
        e->outgoing = first->next;
        post_notice(e, first);
    }
    pthread_mutex_unlock(&e->lock);
    return any;
}

static bool is_over(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool over = e->stopping && !e->count && !e->outgoing && !e->gather.wanted;
    pthread_mutex_unlock(&e->lock);
    return over;
}

static void run(struct engine *e)
{
    while (!is_over(e)) {
        bool moved = take_work(e);
        moved |= test_requests(e);
        moved |= move_gather(e);
        moved |= move_drain(e);
        take_notices(e);
        double now_s = timing_now_s();
        if (now_s >= e->next_tick_s || (*e->handlers.urgent && now_s >= e->last_tick_s + IDLE_S)) {
            e->last_tick_s = now_s;
            e->next_tick_s = now_s + e->tick_s;
            e->handlers.tick();
        }
        if (moved) {
            stop_spinning(e);
            e->quiet_since_s = now_s;
            e->nap_s = NAP_S;
        } else if (e->messages_in_flight || e->gather.wanted || e->drain || e->stopping) {
            rest(e);
        }
    }
    stop_spinning(e);
}

/* ---- start and end --------------------------------------------------------------------------- */

/* The first process of each one's node. */
static bool find_leaders(struct mpi_job *job)
{
    MPI_Comm node;
    int leader = job->process;
    job->leaders = malloc((size_t)job->processes * sizeof *job->leaders);
    if (!job->leaders)
        return false;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, job->process, MPI_INFO_NULL, &node);
    MPI_Bcast(&leader, 1, MPI_INT, 0, node);
    MPI_Comm_free(&node);
    MPI_Allgather(&leader, 1, MPI_INT, job->leaders, 1, MPI_INT, MPI_COMM_WORLD);
    return true;
}

/* The first words of what the library calls itself. */
static void name_library(struct mpi_job *job)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    for (char *c = text; *c; c++) {
        if (*c == '\t')
            *c = ' ';
        else if (*c == '\n' || *c == ',')
            *c = 0;
    }
    snprintf(job->library, sizeof job->library, "%.90s", text);
}

static void make_comm(MPI_Comm *comm)
{
    MPI_Comm_dup(MPI_COMM_WORLD, comm);
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
}

static bool start(struct engine *e)
{
    int provided = MPI_THREAD_SINGLE, found = 0, *tag_limit = NULL;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        snprintf(e->error, (size_t)e->error_size, "MPI does not start");
        return false;
    }
    if (provided < MPI_THREAD_FUNNELED) {
        snprintf(e->error, (size_t)e->error_size,
            "this MPI library cannot be called from a program with threads");
        return false;
    }
    MPI_Comm_size(MPI_COMM_WORLD, &e->job->processes);
    MPI_Comm_rank(MPI_COMM_WORLD, &e->job->process);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &found);
    e->job->tags = found ? (int64_t)*tag_limit + 1 : 32768;
    name_library(e->job);
    make_comm(&e->data);
    make_comm(&e->notices);
    make_comm(&e->gathers);
    size_t processes = (size_t)e->job->processes;
    e->sent = calloc(processes, sizeof *e->sent);
    e->received = calloc(processes, sizeof *e->received);
    if (!e->sent || !e->received || !find_leaders(e->job)) {
        snprintf(e->error, (size_t)e->error_size, "no memory for %zu processes", processes);
        return false;
    }
    return true;
}

static void release(struct engine *e)
{
    free(e->requests);
    free(e->flights);
    free(e->finished);
    free(e->statuses);
    free(e->sent);
    free(e->received);
}

static void *engine_main(void *argument)
{
    struct engine *e = argument;
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: short naps */
    bool sound = start(e);
    if (sound)
        expect_notice(e);
    pthread_mutex_lock(&e->lock);
    e->started = sound;
    e->failed = !sound;
    pthread_cond_broadcast(&e->answered);
    pthread_mutex_unlock(&e->lock);
    if (!sound)
        return NULL;
    e->quiet_since_s = timing_now_s();
    e->nap_s = NAP_S;
    run(e);
    MPI_Cancel(&e->notice_request);
    MPI_Wait(&e->notice_request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&e->data);
    MPI_Comm_free(&e->notices);
    MPI_Comm_free(&e->gathers);
    MPI_Finalize();
    release(e);
    return NULL;
}

int mpi_start(struct mpi_job *job, const struct mpi_handlers *handlers, char *error, int size)
{
    struct engine *e = &engine;
    e->job = job;
    e->handlers = *handlers;
    e->tick_s = handlers->tick_s;
    e->error = error;
    e->error_size = size;
    group_cond_init(&e->work);
    pthread_cond_init(&e->answered, NULL);
    if (pthread_create(&e->thread, NULL, engine_main, e)) {
        snprintf(error, (size_t)size, "no thread for MPI");
        return -1;
    }
    pthread_mutex_lock(&e->lock);
    while (!e->started && !e->failed)
        pthread_cond_wait(&e->answered, &e->lock);
    bool sound = e->started;
    pthread_mutex_unlock(&e->lock);
    return sound ? 0 : -1;
}

void mpi_stop(void)
{
    pthread_mutex_lock(&engine.lock);
    engine.stopping = true;
    pthread_cond_signal(&engine.work);
    pthread_mutex_unlock(&engine.lock);
    pthread_join(engine.thread, NULL);
}

void mpi_set_tick(double tick_s)
{
    pthread_mutex_lock(&engine.lock);
    engine.tick_s = tick_s;
    pthread_mutex_unlock(&engine.lock);
}

void mpi_set_pool(struct dev_pool *pool)
{
    struct engine *e = &engine;
    pthread_mutex_lock(&e->lock);
    e->pool_wanted = pool;
    pthread_cond_signal(&e->work);
    while (e->pool != pool)
        pthread_cond_wait(&e->answered, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void mpi_limit_message(int64_t bytes)
{
    engine.piece_bytes = bytes;
}

int64_t mpi_tags(void)
{
    return engine.job->tags;
}
