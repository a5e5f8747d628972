/* The engine: a thread that posts what others hand it, looks for what has come, and rests in
 * between.
 *
 * It rests by looking again at once while the kernels of this process leave it a core, since a
 * message of a few microseconds is not worth a sleep; then it sleeps, ever longer, so that ranks
 * that outnumber the cores do not take them from one another. MPI's own blocking calls would keep a
 * core busy however long they wait: none is made between start and end. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include "device/group.h"
#include "device/mpi_parts.h"
#include "probe/timing.h"

#define PIECE_BYTES ((int64_t)1 << 30)
#define IDLE_S 0.02     /* between looks while nothing is in flight */
#define LOOKS 16        /* at what is in flight, before anything else */
#define SPIN_S 0.05     /* of looking without a sleep since the last thing came */
#define NAP_S 10e-6     /* the first sleep; */
#define LONG_NAP_S 2e-4 /* the longest while messages are in flight */

struct engine mpi_engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .piece_bytes = PIECE_BYTES};

/* ---- failure of MPI itself ------------------------------------------------------------------- */

void mpi_abort_job(int status)
{
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, status);
    abort();
}

void mpi_demand(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "MPI cannot go on: %s: %s\n", what, text);
    mpi_abort_job(3);
}

/* ---- gathers -------------------------------------------------------------------------------- */

/* True when one has ended. */
static bool move_gather(struct engine *e)
{
    int come = 0;
    if (!e->gathering)
        return false;
    if (!e->gather.posted) {
        int bytes = (int)e->gather.bytes;
        mpi_demand(MPI_Iallgather(e->gather.send, bytes, MPI_BYTE, e->gather.receive, bytes,
                       MPI_BYTE, e->gathers, &e->gather_request),
            "MPI_Iallgather");
        e->gather.posted = true;
    }
    mpi_demand(MPI_Test(&e->gather_request, &come, MPI_STATUS_IGNORE), "MPI_Test of a gather");
    if (!come)
        return false;
    pthread_mutex_lock(&e->lock);
    e->gather.wanted = e->gather.posted = e->gathering = false;
    pthread_cond_broadcast(&e->answered);
    pthread_mutex_unlock(&e->lock);
    return true;
}

void mpi_gather(const void *send, void *receive, int64_t bytes)
{
    struct engine *e = &mpi_engine;
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

/* True when a function was called. */
static bool run_call(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    void (*call)(void *context) = e->call;
    pthread_mutex_unlock(&e->lock);
    if (!call)
        return false;
    call(e->call_context);
    pthread_mutex_lock(&e->lock);
    e->call = NULL;
    pthread_cond_broadcast(&e->answered);
    pthread_mutex_unlock(&e->lock);
    return true;
}

void mpi_call(void (*function)(void *context), void *context)
{
    struct engine *e = &mpi_engine;
    pthread_mutex_lock(&e->lock);
    e->call = function;
    e->call_context = context;
    pthread_cond_signal(&e->work);
    while (e->call)
        pthread_cond_wait(&e->answered, &e->lock);
    pthread_mutex_unlock(&e->lock);
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
    if (!busy && !e->submitted && !e->outgoing && !e->tick_soon && !e->call &&
        e->pool == e->pool_wanted) {
        stop_spinning(e);
        idle(e);
    }
    if (e->pool != e->pool_wanted) {
        stop_spinning(e);
        e->pool = e->pool_wanted;
        pthread_cond_broadcast(&e->answered);
    }
    e->gathering = e->gather.wanted;
    e->expected = e->drain;
    bool any = e->submitted || e->outgoing;
    if (e->tick_soon)
        e->next_tick_s = 0;
    e->ticking_s = e->tick_s;
    e->tick_soon = false;
    while (e->submitted) {
        struct mpi_transfer *first = e->submitted;
        e->submitted = first->next;
        flight_post_transfer(e, first);
    }
    while (e->outgoing) {
        struct outgoing *first = e->outgoing;
        e->outgoing = first->next;
        flight_post_notice(e, first);
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
        /* Some libraries copy a piece of a large message at each look. */
        for (int i = 0; i < LOOKS && !moved && e->messages_in_flight; i++)
            moved = flight_test(e);
        moved |= flight_test(e);
        moved |= move_gather(e);
        moved |= run_call(e);
        moved |= flight_move_drain(e);
        flight_take_notices(e);
        double now_s = timing_now_s();
        if (now_s >= e->next_tick_s || (*e->handlers.urgent && now_s >= e->last_tick_s + IDLE_S)) {
            e->last_tick_s = now_s;
            e->next_tick_s = now_s + e->ticking_s;
            e->handlers.tick();
        }
        if (moved) {
            stop_spinning(e);
            e->quiet_since_s = now_s;
            e->nap_s = NAP_S;
        } else if (e->messages_in_flight || e->gathering || e->expected || e->stopping) {
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

/* The first words of what the library calls itself: "Open MPI v4.1.4", "MPICH 4.0.2". */
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
    char *version = strstr(text, " Version:");
    if (version)
        memmove(version, version + strlen(" Version:"), strlen(version + strlen(" Version:")) + 1);
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
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING] = "";
        int length = 0;
        MPI_Error_string(code, text, &length);
        snprintf(e->error, (size_t)e->error_size, "%.250s", text);
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
    /* Whose handler a call on several requests asks is up to the library. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
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

static void *engine_main(void *argument)
{
    struct engine *e = argument;
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: short naps */
    bool sound = start(e);
    if (sound)
        flight_expect_notice(e);
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
    flight_release(e);
    return NULL;
}

int mpi_start(struct mpi_job *job, const struct mpi_handlers *handlers, char *error, int size)
{
    struct engine *e = &mpi_engine;
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
    if (sound)
        return 0;
    pthread_join(e->thread, NULL); /* it has ended: nobody stops what has not started */
    return -1;
}

void mpi_stop(void)
{
    pthread_mutex_lock(&mpi_engine.lock);
    mpi_engine.stopping = true;
    pthread_cond_signal(&mpi_engine.work);
    pthread_mutex_unlock(&mpi_engine.lock);
    pthread_join(mpi_engine.thread, NULL);
}

void mpi_tick_soon(void)
{
    pthread_mutex_lock(&mpi_engine.lock);
    mpi_engine.tick_soon = true;
    pthread_cond_signal(&mpi_engine.work);
    pthread_mutex_unlock(&mpi_engine.lock);
}

void mpi_set_tick(double tick_s)
{
    pthread_mutex_lock(&mpi_engine.lock);
    mpi_engine.tick_s = tick_s;
    pthread_mutex_unlock(&mpi_engine.lock);
}

void mpi_set_pool(struct dev_pool *pool)
{
    struct engine *e = &mpi_engine;
    pthread_mutex_lock(&e->lock);
    e->pool_wanted = pool;
    pthread_cond_signal(&e->work);
    while (e->pool != pool)
        pthread_cond_wait(&e->answered, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void mpi_limit_message(int64_t bytes)
{
    mpi_engine.piece_bytes = bytes;
}

int64_t mpi_tags(void)
{
    return mpi_engine.job->tags;
}
