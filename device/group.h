/* Ranks that are threads of one process: who takes part, who has left, and the abort that wakes
 * all.
 *
 * One lock serves the group and all its boards: what happens under it takes well under a
 * microsecond, and waking everybody at an abort needs no order of locks. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "device/comm.h"

struct group;

/* NULL when memory is short. */
struct group *group_create(const struct ranks_config *config);
void group_free(struct group *group);
int group_size(const struct group *group);
double group_message_bytes_per_s(const struct group *group);

/* The rank's device takes part: an abort fails it. */
void group_join(struct group *group, int rank, struct device *dev);

/* The rank is done, or never came. Whoever still waits for a rank that has left aborts the group.
 */
void group_leave(struct group *group, int rank);
void group_wait_all_left(struct group *group);
/* Until `count` ranks have left. */
void group_wait_left(struct group *group, int count);

/* Called once, when the group fails, not under the lock; for what has to tell others. */
void group_on_abort(struct group *group,
    void (*tell)(void *context, const struct ranks_failure *failure), void *context);

/* The group fails because of `rank`, unless it failed before: that rank's device with `status`, the
 * others' with DEV_ABORTED; every wait ends. Not under the lock. */
void group_abort(struct group *group, int rank, enum dev_status status, const char *message);

/* Whether the group has failed; *failure (may be NULL) tells the first failure. */
bool group_failed(struct group *group, struct ranks_failure *failure);

/* Once the group has failed: fails the rank's device, before anything on this thread can go on as
 * if nothing had happened. Whoever learns of the failure does so. Not under the lock. */
void group_give_up(struct group *group, int rank);

/* Under the lock. */
bool group_has_left(const struct group *group, int rank);

void group_lock(struct group *group);
void group_unlock(struct group *group);

/* A wait of one rank for another. */
struct group_wait {
    int rank;         /* who waits */
    int missing;      /* for whom; itself: for some of its partners */
    const char *what; /* in what */
    double deadline_s;
};

/* When a wait that begins now gives up. */
double group_deadline_s(const struct group *group);

/* Under the lock: sleeps until `wake` is signalled (or for no reason: look again). False when the
 * group has failed, and then the waiting rank's device has too; the group fails here when the
 * missing rank has left or the deadline has passed. */
bool group_wait(struct group *group, pthread_cond_t *wake, const struct group_wait *wait);

/* A condition variable on the clock of timing_now_s. */
void group_cond_init(pthread_cond_t *condition);
