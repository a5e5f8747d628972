/* What mpi.c, the engine's thread, and mpi_flight.c, its messages, share. Includes mpi.h: for them
 * alone. */
#pragma once
#include <mpi.h>
#include "device/mpi_engine.h"
#include "device/pool.h"

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
struct engine {
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
    void (*call)(void *context);
    void *call_context;
    struct dev_pool *pool, *pool_wanted;
    double tick_s;
    bool tick_soon;

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
    bool gathering;               /* as the last look at what is wanted had it */
    const int64_t *expected;      /* likewise, of a drain */
    bool draining;                /* receives are given up */
    int64_t piece_bytes;
    struct pool_spin spin;
    bool spinning;
    double quiet_since_s, nap_s, next_tick_s, last_tick_s;
    double ticking_s; /* tick_s, as it took it over */
};
extern struct engine mpi_engine;

/* Ends the job unless a call of MPI went well. */
void mpi_demand(int code, const char *what);

/* ---- mpi_flight.c, on the engine's thread -----------------------------------------------------
 */

/* Begins the messages of a transfer, or a notice, which it frees. */
void flight_post_transfer(struct engine *e, struct mpi_transfer *transfer);
void flight_post_notice(struct engine *e, struct outgoing *out);

/* Looks at what is in flight. True when something has ended. */
bool flight_test(struct engine *e);

void flight_expect_notice(struct engine *e);
void flight_take_notices(struct engine *e);

/* Goes on with a drain, if there is one. True when something was done. */
bool flight_move_drain(struct engine *e);
void flight_release(struct engine *e);
