/* Between the common half of a communicator (comm.c) and what carries its messages. */
#pragma once
#include "device/comm.h"

struct announcement;
struct board;
struct comm_transport;

struct comm {
    const struct comm_transport *transport;
    void *state; /* the transport's */
    struct device *dev;
    int rank, size;
    const char *name;
    struct comm *root;       /* the first communicator of the group: itself, for the root */
    struct comm *parent;     /* that it was made from; NULL for the root */
    int *members;            /* the rank in the group of each of its ranks; NULL: the same; owned */
    int leader;              /* the parent's rank of its rank 0 */
    struct comm *duplicates; /* of the root: all made from it, linked by `next` */
    struct comm *next;
    int64_t exchanges;           /* enqueued on this communicator so far */
    struct comm_traffic traffic; /* of the root: the whole group's */
};

/* One rank's side of an exchange. Parts are sorted by peer, in list order for each, and none is of
 * 0 bytes; the rank's parts to itself match in bytes. One allocation. */
struct exchange {
    const char *label;
    int64_t sequence; /* which exchange of the communicator it is */
    int sends, receives;
    struct comm_part *send, *receive;
    int partner_count; /* the other ranks that it sends to or receives from */
    int *partners;     /* ascending from rank + 1, around; for the transport to tick off */
    void *state;       /* the transport's, NULL at first; */
    void (*release)(void *state); /* called by exchange_free, from any thread, unless NULL */
};

void exchange_free(struct exchange *exchange);

/* The parts with `peer` are parts[first .. first + count - 1]. */
int exchange_parts(const struct comm_part *parts, int count, int peer, int *first);

/* Whether it is there and its device has not failed. */
bool comm_usable(const struct comm *comm);

/* The rank in the group of a communicator's rank. */
static inline int comm_member(const struct comm *comm, int rank)
{
    return comm->members ? comm->members[rank] : rank;
}

/* The node of a communicator's rank, for bytes that leave it: where its process is, or where the
 * simulated machine has it. */
int comm_node(const struct comm *comm, int rank);

struct comm_transport {
    /* The root communicator of a rank of thread ranks, which meet on `board`. Sets comm->size and
     * state; comm->rank and dev are set. May put another transport in comm->transport. False when
     * memory is short or, with the device failed, for another reason. */
    bool (*open)(struct comm *comm, struct board *board);

    /* Collective over the parent, whose ranks each make a child: all ranks the same one, or, after
     * comm_split and comm_subset, those with the same child->leader. The child's size, rank and
     * members are set. False after a failure. */
    bool (*duplicate)(struct comm *parent, struct comm *child);
    void (*close)(struct comm *comm);

    /* Takes over the exchange. On streams that are threads it is called by the stream's thread and
     * returns when the exchange is complete; on others by the host's when it is enqueued. */
    void (*exchange)(struct comm *comm, struct stream *stream, struct exchange *exchange);

    /* 0, or -1 after an abort. */
    int (*host_all_gather)(struct comm *comm, const void *send, void *receive, int64_t bytes);

    /* comm_host_collect; NULL where all ranks are threads of one process. */
    int (*host_collect)(struct comm *comm, void *array, int64_t at, int64_t bytes);

    /* The group fails because of `rank`: every rank's device fails, whoever waits is woken. */
    void (*abort)(struct comm *comm, int rank, enum dev_status status, const char *message);

    /* For the host's side of communicators whose messages go another way (device/host_side.h); NULL
     * where it has none of this. announce() tells the exchange's partners what this rank is about
     * to send them and receive, and does not wait; the exchange outlives what it returns, NULL when
     * memory is short and the group fails. agreed(): all partners have said what fits; the group
     * fails when one has not. */
    struct announcement *(*announce)(struct comm *comm, const struct exchange *exchange);
    bool (*agreed)(struct announcement *announcement);
    void (*forget)(struct announcement *announcement); /* at any time; NULL is fine */

    /* "nccl", "copies": which of several carries the messages; NULL where there is no choice. */
    const char *carrier;

    /* Its open() sees to it that ranks of several processes (device/launch.h) reach one another. */
    bool spans_processes;
};

extern const struct comm_transport transport_threads, transport_sim;

/* The root communicator of one rank; from here on the device's failure aborts the group. NULL when
 * memory is short or, with the device failed, for another reason. */
struct comm *comm_open(
    const struct comm_transport *transport, struct board *board, int rank, struct device *dev);

/* Also frees the duplicates. The device's streams are done. */
void comm_close(struct comm *comm);
