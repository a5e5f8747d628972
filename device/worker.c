/* A ring of operations under a mutex, a thread that empties it, and a counter of the last completed
 * ticket that others wait for. A thread with nothing to do looks again for a moment while a core is
 * free, then sleeps.
 *
 * A token of the pool is held over kernels that follow one another, where nobody waits for it, and
 * given back after the ticket has counted: the thread that gets it may take the core, and what
 * waits for the ticket would wait for that one's kernel too. */
#include "device/worker.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include "device/pool.h"
#include "probe/timing.h"

#define SPIN_S 20e-6
#define NO_TOKEN (-1)
#define SLEEP_S 0.05 /* how long a sleep may overlook a failure */

struct worker {
    struct stream *stream;
    struct dev_pool *pool;
    void (*execute)(struct stream *stream, struct dev_operation *operation);
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    struct dev_operation *ring;
    int64_t capacity, head, tail; /* operations head .. tail-1 wait; changed under the lock */
    _Atomic int64_t enqueued;     /* == tail, for the spinning worker */
    _Atomic int64_t completed;    /* ticket */
    int waiting;                  /* threads in worker_reach */
    bool sleeping, stopping, started;
    pthread_t thread;
};

struct worker *worker_create(struct stream *stream, struct dev_pool *pool,
    void (*execute)(struct stream *stream, struct dev_operation *operation))
{
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->stream = stream;
    worker->pool = pool;
    worker->execute = execute;
    worker->capacity = 32;
    worker->ring = malloc((size_t)worker->capacity * sizeof *worker->ring);
    if (!worker->ring) {
        free(worker);
        return NULL;
    }
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->work, NULL);
    pthread_cond_init(&worker->progress, NULL);
    return worker;
}

/* Looks for a short time whether *counter has passed `seen`. */
static bool spin_past(struct dev_pool *pool, const _Atomic int64_t *counter, int64_t seen)
{
    struct pool_spin spin;
    bool passed = false;
    pool_spin_begin(&spin, pool, SPIN_S);
    while (!passed && pool_spin_goes_on(&spin))
        passed = atomic_load_explicit(counter, memory_order_acquire) > seen;
    pool_spin_end(&spin);
    return passed;
}

/* Waits for an operation and copies it out; false when the stream is closed and empty. */
static bool next_operation(struct worker *worker, struct dev_operation *operation)
{
    if (worker->head == worker->tail && !worker->stopping) {
        int64_t tail = worker->tail;
        pthread_mutex_unlock(&worker->lock);
        spin_past(worker->pool, &worker->enqueued, tail);
        pthread_mutex_lock(&worker->lock);
    }
    while (worker->head == worker->tail && !worker->stopping) {
        worker->sleeping = true;
        pthread_cond_wait(&worker->work, &worker->lock);
        worker->sleeping = false;
    }
    if (worker->head == worker->tail)
        return false;
    *operation = worker->ring[worker->head++ % worker->capacity];
    return true;
}

/* Under the lock. */
static bool kernel_is_next(const struct worker *worker)
{
    return worker->head < worker->tail &&
           worker->ring[worker->head % worker->capacity].kind == OP_LAUNCH;
}

static int token_for_kernel(struct dev_pool *pool, int held)
{
    return held == NO_TOKEN ? pool_enter(pool) : pool_enter_again(pool, held);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    int token = NO_TOKEN;
    struct dev_operation operation;
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: paced copies sleep to a deadline */
    pthread_mutex_lock(&worker->lock);
    while (next_operation(worker, &operation)) {
        pthread_mutex_unlock(&worker->lock);
        if (operation.kind == OP_LAUNCH)
            token = token_for_kernel(worker->pool, token);
        worker->execute(worker->stream, &operation);
        pthread_mutex_lock(&worker->lock);
        atomic_store_explicit(&worker->completed, operation.ticket, memory_order_release);
        if (worker->waiting)
            pthread_cond_broadcast(&worker->progress);
        if (token != NO_TOKEN && !kernel_is_next(worker)) {
            pthread_mutex_unlock(&worker->lock);
            pool_leave(worker->pool, token);
            token = NO_TOKEN;
            pthread_mutex_lock(&worker->lock);
        }
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

void worker_free(struct worker *worker)
{
    if (!worker)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->stopping = true;
    pthread_cond_signal(&worker->work);
    pthread_mutex_unlock(&worker->lock);
    if (worker->started)
        pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->progress);
    pthread_cond_destroy(&worker->work);
    pthread_mutex_destroy(&worker->lock);
    free(worker->ring);
    free(worker);
}

static bool grow(struct worker *worker)
{
    int64_t capacity = 2 * worker->capacity;
    struct dev_operation *ring = malloc((size_t)capacity * sizeof *ring);
    if (!ring)
        return false;
    for (int64_t i = worker->head; i < worker->tail; i++)
        ring[i % capacity] = worker->ring[i % worker->capacity];
    free(worker->ring);
    worker->ring = ring;
    worker->capacity = capacity;
    return true;
}

static bool start(struct worker *worker)
{
    if (!worker->started)
        worker->started = !pthread_create(&worker->thread, NULL, worker_main, worker);
    return worker->started;
}

bool worker_enqueue(struct worker *worker, const struct dev_operation *operation)
{
    pthread_mutex_lock(&worker->lock);
    bool room = worker->tail - worker->head < worker->capacity || grow(worker);
    if (room && start(worker)) {
        worker->ring[worker->tail++ % worker->capacity] = *operation;
        atomic_store_explicit(&worker->enqueued, worker->tail, memory_order_release);
        if (worker->sleeping)
            pthread_cond_signal(&worker->work);
    } else {
        room = false;
    }
    pthread_mutex_unlock(&worker->lock);
    return room;
}

bool worker_reached(const struct worker *worker, int64_t ticket)
{
    return atomic_load_explicit(&worker->completed, memory_order_acquire) >= ticket;
}

void worker_reach(struct worker *worker, int64_t ticket)
{
    if (worker_reached(worker, ticket))
        return;
    if (spin_past(worker->pool, &worker->completed, ticket - 1))
        return;
    pthread_mutex_lock(&worker->lock);
    worker->waiting++;
    while (!worker_reached(worker, ticket))
        pthread_cond_wait(&worker->progress, &worker->lock);
    worker->waiting--;
    pthread_mutex_unlock(&worker->lock);
}

void worker_sleep_until(const struct stream *stream, double time_s)
{
    double now_s;
    while ((now_s = timing_now_s()) < time_s && dev_status(stream->dev) == DEV_OK) {
        double until_s = time_s - now_s < SLEEP_S ? time_s : now_s + SLEEP_S;
        struct timespec until;
        until.tv_sec = (time_t)until_s;
        until.tv_nsec = (long)((until_s - (double)until.tv_sec) * 1e9);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}
