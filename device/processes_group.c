/* A group of ranks in several processes: its failure and its end.
 *
 * A process's own ranks are members of an ordinary group (group.c), in which the ranks of other
 * processes have no device. A failure is told to all processes at once, so that nobody waits any
 * longer; which failure was the group's is agreed on at the end, when all are through: the one of
 * the lowest rank. Then the messages that nobody waits for any more are received and thrown away,
 * and the next group finds MPI empty. */
#include <stdlib.h>
#include <string.h>
#include "device/launch.h"
#include "device/mpi_engine.h"
#include "device/processes.h"

/* The group that runs; there is one at a time. */
static struct {
    pthread_mutex_t lock;
    struct group *group;  /* NULL between groups */
    int64_t number;       /* of the group that runs, or ran last */
    int64_t early_number; /* a group of which a failure came before it began here */
    struct ranks_failure early;
} current = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- failures on their way ------------------------------------------------------------------- */

/* The group has failed here: if because of a rank of this process, the others are told. */
static void tell_others(void *context, const struct ranks_failure *failure)
{
    struct mpi_notice notice = {.kind = NOTICE_ABORT,
        .rank = failure->rank,
        .status = (int32_t)failure->status,
        .group = current.number};
    (void)context;
    memcpy(notice.text, failure->message, sizeof notice.text);
    if (failure->rank / launch_ranks_per_process() == launch_process()) {
        for (int q = 0; q < launch_processes(); q++) {
            if (q != launch_process())
                mpi_send_notice(q, &notice);
        }
    }
    mpi_wake();
}

void processes_abort(int64_t number, const struct ranks_failure *failure)
{
    pthread_mutex_lock(&current.lock);
    struct group *group = number == current.number ? current.group : NULL;
    if (number > current.number) {
        current.early_number = number;
        current.early = *failure;
    }
    /* Under the lock, so that the group does not end meanwhile. */
    if (group)
        group_abort(group, failure->rank, failure->status, failure->message);
    pthread_mutex_unlock(&current.lock);
}

void processes_begin(struct group *group, struct dev_pool *pool, double timeout_s)
{
    heartbeat_timeout(timeout_s);
    mpi_set_pool(pool);
    group_on_abort(group, tell_others, NULL);
    pthread_mutex_lock(&current.lock);
    current.group = group;
    current.number++;
    bool failed = current.early_number == current.number;
    pthread_mutex_unlock(&current.lock);
    heartbeat_enter(current.number);
    if (failed)
        group_abort(group, current.early.rank, current.early.status, current.early.message);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* What a process knows at the end. */
struct ending {
    int32_t failed, own; /* own: the rank is one of its */
    struct ranks_failure failure;
};

/* The group's failure: the lowest rank's that its own process tells of. */
static const struct ending *first_failure(const struct ending *endings)
{
    const struct ending *first = NULL;
    for (int p = 0; p < launch_processes(); p++) {
        const struct ending *ending = &endings[p];
        if (!ending->failed)
            continue;
        if (!first || (ending->own && !first->own) ||
            (ending->own == first->own && ending->failure.rank < first->failure.rank))
            first = ending;
    }
    return first;
}

/* Receives what other processes have sent here and nobody waits for. */
static void drain(void)
{
    size_t processes = (size_t)launch_processes(), row = processes * sizeof(int64_t);
    int64_t *sent = malloc(row), *received = malloc(row), *all = malloc(processes * row);
    if (!sent || !received || !all)
        heartbeat_fatal(launch_process() * launch_ranks_per_process(),
            "no memory to end a group that has failed");
    mpi_count_messages(sent, received);
    mpi_gather(sent, all, (int64_t)row);
    for (size_t q = 0; q < processes; q++)
        received[q] = all[q * processes + (size_t)launch_process()];
    mpi_drain(received);
    free(sent);
    free(received);
    free(all);
}

int processes_finish(struct group *group, struct ranks_failure *failure)
{
    int ranks = launch_ranks_per_process();
    struct ending mine = {.failed = group_failed(group, &mine.failure)};
    struct ending *all = malloc((size_t)launch_processes() * sizeof *all);
    if (!all)
        heartbeat_fatal(launch_process() * ranks, "no memory to end a group");
    mine.own = mine.failed && mine.failure.rank / ranks == launch_process();
    mpi_gather(&mine, all, sizeof mine);
    const struct ending *first = first_failure(all);
    if (first)
        drain();
    pthread_mutex_lock(&current.lock);
    current.group = NULL;
    pthread_mutex_unlock(&current.lock);
    heartbeat_outside();
    mpi_set_pool(NULL);
    if (first)
        *failure = first->failure;
    int result = first ? -1 : 0;
    free(all);
    for (int r = 0; r < launch_ranks(); r++) {
        if (r / ranks != launch_process())
            group_leave(group, r);
    }
    return result;
}
