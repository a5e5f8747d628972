/* Where the ranks of one communicator meet when they are threads of one process: a page per
 * exchange, on which every rank puts its side, and gathers of the host. Backends decide what is
 * done with a page. */
#pragma once
#include "device/group.h"
#include "device/transport.h"

/* One rank's side of an exchange. Read by its partners once it is posted. */
struct board_side {
    struct exchange *exchange; /* NULL before the rank has come; owned by the page */
    int unread;                /* parts that others have yet to take; under the lock */
    bool waiting;              /* for a partner to post; likewise */
    double sent_s, received_s; /* when the rank's links are through with it (or its clock) */
    pthread_cond_t wake;
};

struct board_page {
    struct board_page *next;
    int64_t sequence;
    int done;                 /* ranks that are through with the page */
    int first;                /* the rank that came first */
    struct board_side side[]; /* by rank */
};

struct board;

/* NULL when memory is short. */
struct board *board_create(struct group *group);
/* Of the `size` ranks of the group that `members` lists, numbered in its order; it is copied. */
struct board *board_create_over(struct group *group, const int *members, int size);
void board_free(struct board *board);
struct group *board_group(const struct board *board);

/* The board of a communicator made from the one of `board`; all ranks of that one call this. It is
 * the child's rank 0's to free. NULL when the group has failed, or fails now. */
struct board *board_of_child(struct board *board, const struct comm *child);

/* Puts the rank's side on the exchange's page and takes over `exchange`. NULL when the group has
 * failed, or fails now: labels differ, memory is short. */
struct board_page *board_post(
    struct board *board, int rank, struct exchange *exchange, double sent_s, double received_s);

/* Waits until one of the partners of the rank's exchange has posted, ticks it off and returns it,
 * having checked that what the two send each other matches. -1 when the group has failed. */
int board_next(struct board *board, struct board_page *page, int rank);

/* Tells `from` that `parts` of its parts are taken. */
void board_take(struct board *board, struct board_page *page, int from, int parts);

/* Waits until all of the rank's parts are taken. False when the group has failed. */
bool board_wait_taken(struct board *board, struct board_page *page, int rank);

/* The rank is through with the page, which goes when all ranks are. */
void board_done(struct board *board, struct board_page *page);

/* Whether what `from` sends in an exchange is what `to` receives; fails the group when not, because
 * of `finder`. */
bool board_match(struct board *board, const struct exchange *sender,
    const struct exchange *receiver, int from, int to, int finder);

/* All ranks arrive, and each one's `bytes` land at receive + rank * bytes on all. They must be in
 * the same `what` (NULL: a gather of the host) with the same bytes. 0, or -1 when the group has
 * failed. */
int board_gather(struct board *board, int rank, const char *what, const void *send, void *receive,
    int64_t bytes);

/* comm_host_all_gather. */
int board_all_gather(struct board *board, int rank, const void *send, void *receive, int64_t bytes);
