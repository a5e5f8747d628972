/* The one thread of a process that calls MPI, and what the others ask of it.
 *
 * One thread, so that any level of threads from MPI_THREAD_FUNNELED on will do, several streams'
 * messages move at the same time, and a process answers while all its other threads compute. No
 * type of MPI appears here: device/mpi.c alone includes mpi.h and is all that is compiled again for
 * another library.
 *
 * In a build without MPI the calls are those of device/sockets/mpi.h. Like MPI itself it exists
 * once in a process. */
#pragma once
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct dev_pool;

/* What MPI says of the job's processes. */
struct mpi_job {
    int processes, process;
    int *leaders; /* [processes] the first process of each one's node; owned */
    int64_t tags; /* see mpi_tags */
    char library[96];
};

/* ---- transfers ------------------------------------------------------------------------------- */

struct mpi_transfer;

/* A message of a transfer, to or from a process. Between two processes messages of one tag arrive
 * in the order in which they were sent. Longer ones than the limit (mpi_limit_message) travel in
 * several. */
struct mpi_message {
    int process, tag;
    bool receives;
    void *data;
    int64_t bytes;
    int rank; /* of the group, at the other end */
    /* For a receive: 1 + the message before whose arrival it is not begun, so that nothing comes
     * into memory that it does not fit; 0: none. */
    int after;

    /* by the engine */
    bool posted, come;
    int64_t arrived_bytes; /* received so far */
    int pieces;            /* in flight */
    bool damaged;          /* what came had another size */
};

/* Messages that are begun together and are waited for together: an exchange. */
struct mpi_transfer {
    int rank;         /* of the group, that waits */
    const char *what; /* in what */
    double since_s;

    /* Called by the engine for each message that has come, unless NULL: false ends the wait, since
     * the two sides do not agree. */
    bool (*arrived)(struct mpi_transfer *transfer, int message);
    char *own;     /* storage that lives as long as the transfer; */
    void *owned;   /* and more, from malloc; may be NULL */
    void *context; /* the caller's; not to be used after an abandoned wait, but by `arrived` */

    /* by the engine */
    struct mpi_transfer *next;
    int left; /* messages that are not through */
    bool due; /* a receive can be begun */
    bool done, refused, abandoned;
    pthread_cond_t wake;

    int count;
    struct mpi_message messages[];
};

/* Room for `count` messages and `own_bytes` of storage, all zero. NULL when memory is short. */
struct mpi_transfer *mpi_transfer_create(int count, int64_t own_bytes);
void mpi_transfer_free(struct mpi_transfer *transfer);

/* Begins the transfer and waits for its end, or until stop(context), looked at after each
 * mpi_wake, says that there is no more point in waiting. True when all messages are through;
 * otherwise the transfer belongs to the engine from then on, with the memory of its messages in use
 * until mpi_drain. */
bool mpi_transfer_run(
    struct mpi_transfer *transfer, bool (*stop)(const void *context), const void *context);

/* The same for a thread that has something else to do meanwhile: begins it; looks at it; and, once
 * only, either mpi_transfer_free when it is done or mpi_transfer_drop at any time, which gives up
 * what is not done. */
enum mpi_transfer_state { MPI_TRANSFER_UNDER_WAY, MPI_TRANSFER_DONE, MPI_TRANSFER_REFUSED };
void mpi_transfer_begin(struct mpi_transfer *transfer);
enum mpi_transfer_state mpi_transfer_look(struct mpi_transfer *transfer);
void mpi_transfer_drop(struct mpi_transfer *transfer);

/* Every transfer that waits looks at its `stop` again. */
void mpi_wake(void);

/* The transfers that are waited for, one after the other, from NULL; for the tick. */
const struct mpi_transfer *mpi_next_waiting(const struct mpi_transfer *last);

/* Messages begun to, and received from, every process since the start; [processes]. */
void mpi_count_messages(int64_t *sent, int64_t *received);

/* After a failure: gives up the receives of abandoned transfers and receives, unread, what is still
 * on its way until expected[q] messages have come from every process q. Then all transfers are
 * over. Collective. */
void mpi_drain(const int64_t *expected);

/* ---- between processes ----------------------------------------------------------------------- */

/* Every process's `bytes` land at receive + process*bytes everywhere; less than 2 GiB in all. For
 * one thread of a process at a time, in the same order on all. */
void mpi_gather(const void *send, void *receive, int64_t bytes);

enum mpi_notice_kind {
    NOTICE_BEAT,  /* of a rank, to the main process */
    NOTICE_TICK,  /* of the main process */
    NOTICE_ABORT, /* a group has failed because of a rank */
    NOTICE_LOST   /* by the engine itself: process `partner` took no message of `rank` */
};

/* A few words to another process. */
struct mpi_notice {
    int32_t kind, rank, status, partner;
    int64_t group; /* which group of ranks since the start */
    double waited_s;
    char what[64];
    char text[256];
};
/* Any thread; the notice is copied, and lost when memory is short. */
void mpi_send_notice(int process, const struct mpi_notice *notice);

/* What the engine's thread calls: for each notice that comes, and every tick_s. */
struct mpi_handlers {
    void (*notice)(const struct mpi_notice *notice);
    void (*tick)(void);
    double tick_s;
    const volatile sig_atomic_t *urgent; /* not 0: the tick comes as soon as it can */
};

/* ---- start and end --------------------------------------------------------------------------- */

/* Starts MPI and the engine. 0, or -1 with `error`. */
int mpi_start(struct mpi_job *job, const struct mpi_handlers *handlers, char *error, int size);
/* Collective; no transfer is left. */
void mpi_stop(void);

void mpi_set_tick(double tick_s);
void mpi_tick_soon(void); /* the next one comes at once */

/* The pool whose threads share this process's cores with the engine, which looks again and again
 * only while they leave it one; NULL: sleeps between looks. */
void mpi_set_pool(struct dev_pool *pool);

/* Runs function(context) on the engine's thread, where it may call MPI, and waits for it; nothing
 * else moves meanwhile. */
void mpi_call(void (*function)(void *context), void *context);

/* The longest message that travels in one piece; for tests. Not while transfers run. */
void mpi_limit_message(int64_t bytes);

/* Tags of transfers are 0 .. mpi_tags() - 1. */
int64_t mpi_tags(void);

/* Ends all processes of the job with `status`, whatever they do. Does not return. */
void mpi_abort_job(int status) __attribute__((noreturn));
