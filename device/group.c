/* The members of a group, its failure, and waiting. Every waiting thread is on a list, so that an
 * abort, or a rank that leaves, can wake all of them, whatever they wait for. */
#include "device/group.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "probe/timing.h"

struct member {
    struct device *dev; /* NULL before the rank has joined */
    bool left;
};

struct waiter {
    struct waiter *next;
    pthread_cond_t *wake;
};

struct group {
    int size;
    double timeout_s, message_bytes_per_s;
    pthread_mutex_t lock;
    struct waiter *waiters;
    bool failed;
    struct ranks_failure failure;
    void (*tell)(void *context, const struct ranks_failure *failure);
    void *tell_context;
    int left;
    pthread_cond_t more_left;
    struct member members[];
};

void group_cond_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct group *group_create(const struct ranks_config *config)
{
    size_t members = (size_t)config->count;
    struct group *group = calloc(1, sizeof *group + members * sizeof *group->members);
    if (!group)
        return NULL;
    group->size = config->count;
    group->timeout_s = config->timeout_s > 0 ? config->timeout_s : 60;
    group->message_bytes_per_s = config->message_bytes_per_s;
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->more_left, NULL);
    return group;
}

void group_free(struct group *group)
{
    if (!group)
        return;
    pthread_cond_destroy(&group->more_left);
    pthread_mutex_destroy(&group->lock);
    free(group);
}

int group_size(const struct group *group)
{
    return group->size;
}

double group_message_bytes_per_s(const struct group *group)
{
    return group->message_bytes_per_s;
}

void group_lock(struct group *group)
{
    pthread_mutex_lock(&group->lock);
}

void group_unlock(struct group *group)
{
    pthread_mutex_unlock(&group->lock);
}

/* ---- failure --------------------------------------------------------------------------------- */

static void wake_all(struct group *group)
{
    for (struct waiter *waiter = group->waiters; waiter; waiter = waiter->next)
        pthread_cond_broadcast(waiter->wake);
}

/* Under the lock. False when the group had failed before. */
static bool set_failure(struct group *group, int rank, enum dev_status status, const char *message)
{
    if (group->failed)
        return false;
    group->failed = true;
    group->failure.status = status;
    group->failure.rank = rank;
    snprintf(group->failure.message, sizeof group->failure.message, "%s", message);
    wake_all(group);
    return true;
}

/* Fails a member's device because the group has failed. */
static void fail_member(struct group *group, int rank, struct device *dev)
{
    const struct ranks_failure *failure = &group->failure; /* no longer changes */
    if (rank == failure->rank)
        dev_fail(dev, failure->status, "%s", failure->message);
    else
        dev_fail(dev, DEV_ABORTED, "rank %d failed: %s", failure->rank, failure->message);
}

/* Not under the lock: a device that fails calls back into the group. Devices live until all ranks
 * have left, and the rank on whose thread this runs has not. */
static void fail_members(struct group *group)
{
    for (int rank = 0; rank < group->size; rank++) {
        group_lock(group);
        struct device *dev = group->members[rank].dev;
        group_unlock(group);
        if (dev)
            fail_member(group, rank, dev);
    }
}

void group_abort(struct group *group, int rank, enum dev_status status, const char *message)
{
    group_lock(group);
    bool first = set_failure(group, rank, status, message);
    group_unlock(group);
    if (!first) {
        group_give_up(group, rank);
        return;
    }
    if (group->tell)
        group->tell(group->tell_context, &group->failure);
    fail_members(group);
}

void group_on_abort(struct group *group,
    void (*tell)(void *context, const struct ranks_failure *failure), void *context)
{
    group->tell = tell;
    group->tell_context = context;
}

void group_give_up(struct group *group, int rank)
{
    group_lock(group);
    struct device *dev = group->members[rank].dev;
    group_unlock(group);
    if (dev)
        fail_member(group, rank, dev);
}

bool group_failed(struct group *group, struct ranks_failure *failure)
{
    group_lock(group);
    bool failed = group->failed;
    if (failed && failure)
        *failure = group->failure;
    group_unlock(group);
    return failed;
}

/* ---- membership ------------------------------------------------------------------------------ */

void group_join(struct group *group, int rank, struct device *dev)
{
    group_lock(group);
    group->members[rank].dev = dev;
    bool late = group->failed;
    group_unlock(group);
    if (late)
        fail_member(group, rank, dev);
}

void group_leave(struct group *group, int rank)
{
    group_lock(group);
    group->members[rank].left = true;
    wake_all(group);
    group->left++;
    pthread_cond_broadcast(&group->more_left);
    group_unlock(group);
}

void group_wait_left(struct group *group, int count)
{
    group_lock(group);
    while (group->left < count)
        pthread_cond_wait(&group->more_left, &group->lock);
    group_unlock(group);
}

void group_wait_all_left(struct group *group)
{
    group_wait_left(group, group->size);
}

bool group_has_left(const struct group *group, int rank)
{
    return group->members[rank].left;
}

/* ---- waiting --------------------------------------------------------------------------------- */

double group_deadline_s(const struct group *group)
{
    return timing_now_s() + group->timeout_s;
}

/* Under the lock. */
static void sleep_on(struct group *group, pthread_cond_t *wake, double deadline_s)
{
    struct timespec until;
    until.tv_sec = (time_t)deadline_s;
    until.tv_nsec = (long)((deadline_s - (double)until.tv_sec) * 1e9);
    struct waiter self = {group->waiters, wake};
    group->waiters = &self;
    pthread_cond_timedwait(wake, &group->lock, &until);
    struct waiter **link = &group->waiters;
    while (*link != &self)
        link = &(*link)->next;
    *link = self.next;
}

/* Under the lock, which is let go while devices are failed. */
static bool give_up_waiting(struct group *group, const struct group_wait *wait)
{
    group_unlock(group);
    group_give_up(group, wait->rank);
    group_lock(group);
    return false;
}

/* Likewise: the group fails because of the rank that is waited for. */
static bool fail_waiting(struct group *group, const struct group_wait *wait, const char *message)
{
    group_unlock(group);
    group_abort(group, wait->missing, DEV_FAILED, message);
    group_lock(group);
    return give_up_waiting(group, wait);
}

bool group_wait(struct group *group, pthread_cond_t *wake, const struct group_wait *wait)
{
    char message[sizeof group->failure.message];
    if (group->failed)
        return give_up_waiting(group, wait);
    if (group->members[wait->missing].left) {
        snprintf(message, sizeof message, "rank %d left while rank %d waits for it in '%s'",
            wait->missing, wait->rank, wait->what);
        return fail_waiting(group, wait, message);
    }
    if (timing_now_s() >= wait->deadline_s) {
        if (wait->missing == wait->rank)
            snprintf(message, sizeof message, "rank %d waited %g s for its partners in '%s'",
                wait->rank, group->timeout_s, wait->what);
        else
            snprintf(message, sizeof message, "rank %d waited %g s for rank %d in '%s'", wait->rank,
                group->timeout_s, wait->missing, wait->what);
        return fail_waiting(group, wait, message);
    }
    sleep_on(group, wake, wait->deadline_s);
    return !group->failed || give_up_waiting(group, wait);
}
