/* Messages between the ranks of a group, and the ranks themselves.
 *
 * Everything that moves device memory is one primitive: comm_exchange, a grouped send and receive
 * enqueued on a stream (NCCL's group call, MPI's Isend/Irecv/Waitall). All-to-all-v, ring hops,
 * gathers and broadcasts are built from it. Libraries move bytes and never reduce: sums are made by
 * our own kernels in rank order (kernels/rank_sum.h).
 *
 * All ranks enqueue the exchanges of all their communicators in one and the same order. Exchanges
 * of one communicator follow one another; those that are to overlap use different communicators
 * (comm_dup) and streams. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"

struct comm;

int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);

/* Another communicator over the same ranks; collective. It lives as long as its group, and asking
 * the same communicator again for a name gives the same one, so that a schedule may ask in every
 * call. NULL after a failure (every call takes a NULL communicator then and does nothing). `name`
 * is kept by reference. */
struct comm *comm_dup(struct comm *comm, const char *name);

/* Communicators over subsets of the ranks; collective over `comm`. Ranks that give the same color
 * (any number) share one, numbered in it by key and, where keys are equal, by their rank in `comm`.
 * Its ranks alone take part in its exchanges and are their peers. Name and lifetime as of comm_dup,
 * which it shares its names with. */
struct comm *comm_split(struct comm *comm, int color, int key, const char *name);

/* As comm_split, for ranks that know who shares theirs: ranks[count], of `comm`, in the order of
 * their new numbers. Collective over `comm`: its ranks give lists that cover each of them once, and
 * those of one list give the same. Nothing is gathered. */
struct comm *comm_subset(struct comm *comm, const int *ranks, int count, const char *name);

/* One message of an exchange: peer may be the rank itself (a local copy). */
struct comm_part {
    int peer;
    void *data;
    int64_t bytes; /* 0: no message */
};

/* Between a pair of ranks the sender's parts and the receiver's parts match in list order, those of
 * 0 bytes left out, and must agree in bytes; all ranks give the exchange the same label (a mismatch
 * fails the group, naming both ranks). The exchange is complete on `stream` when this rank's parts
 * are sent and received. Sources and targets must not overlap. `label` is kept by reference; the
 * lists are copied. */
void comm_exchange(struct comm *comm, struct stream *stream, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives);

/* counts and offsets in bytes, [comm_size]. */
void comm_all_to_all_v(struct comm *comm, struct stream *stream, const void *send,
    const int64_t *send_bytes, const int64_t *send_offsets, void *receive,
    const int64_t *receive_bytes, const int64_t *receive_offsets);

/* Rank p's `bytes[p]` land at offset sum(bytes[0..p-1]) of `receive` on every rank. In place when
 * `send` is where this rank's bytes land. */
void comm_all_gather_v(struct comm *comm, struct stream *stream, const void *send, void *receive,
    const int64_t *bytes);

void comm_broadcast(struct comm *comm, struct stream *stream, void *data, int64_t bytes, int root);

/* ---- host side: small metadata, blocking, real on every backend ------------------------------ */

/* Rank p's `bytes` land at receive + p*bytes on every rank. 0, or -1 after an abort. */
int comm_host_all_gather(struct comm *comm, const void *send, void *receive, int64_t bytes);

/* Each rank has filled bytes at .. at + bytes - 1 of `array`, which is one array of the process
 * that its ranks share. Afterwards rank 0's process has all ranks' parts in its own. 0, or -1 after
 * an abort. */
int comm_host_collect(struct comm *comm, void *array, int64_t at, int64_t bytes);

/* All ranks arrive. 0, or -1 after an abort. */
int comm_barrier(struct comm *comm);

/* Makes every rank's pending and later calls on this group return with an error. */
void comm_abort(struct comm *comm, const char *reason);

/* Counted on this rank since the last reset, all communicators of the group together. */
struct comm_traffic {
    int64_t logical_bytes; /* sent, to itself included */
    int64_t wire_bytes;    /* sent to other ranks */
    int64_t network_bytes; /* of those, to ranks of other nodes */
    int64_t messages;      /* to other ranks, of more than 0 bytes */
    int64_t exchanges;
};
struct comm_traffic comm_traffic(const struct comm *comm);

/* What carries the messages of several ranks of the cuda device (enum dev_messages): "nccl",
 * "copies" between memories, or "host copies" by way of the processes' hosts. NULL elsewhere. */
const char *comm_carrier(const struct comm *comm);
void comm_traffic_reset(struct comm *comm);

/* ---- ranks ----------------------------------------------------------------------------------- */

struct rank {
    int index, count;
    struct device *dev;
    struct comm *comm;
};

struct ranks_config {
    int count;                  /* ranks, 1 .. 1024 */
    struct dev_config device;   /* rank is filled in for each */
    double message_bytes_per_s; /* paced messages; 0 = as fast as they go */
    double timeout_s; /* a rank that waits longer for its peers aborts the group; 0 = 60 */
};

struct ranks_failure {
    enum dev_status status;
    int rank; /* the first that failed */
    char message[256];
};

/* Runs body once per rank, each on its own host thread with its own device and communicator, and
 * waits for all. Without a pool in config->device the ranks share one with a thread per core. body
 * returns 0 or a negative number; a negative number, or a device that failed, aborts the others.
 * Returns 0, or -1 with *failure telling the first failure. */
int ranks_run(const struct ranks_config *config, int (*body)(struct rank *rank, void *context),
    void *context, struct ranks_failure *failure);
