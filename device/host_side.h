/* The host's side of communicators whose messages a library for GPUs carries: gathers, failures,
 * subsets, and what ranks agree on go over an ordinary transport, the one that the job's CPU ranks
 * use: threads in one process, MPI between several. */
#pragma once
#include "device/transport.h"

/* A communicator of that transport, beside one of another; the first member of the other's state.
 */
struct host_side {
    struct comm comm;
};

/* The host's side of a communicator whose state begins with it. */
static inline struct comm *host_side_of(const struct comm *comm)
{
    return &((struct host_side *)comm->state)->comm;
}

/* For the root communicator of a rank; sets comm->size. False as comm_transport's open. */
bool host_side_open(struct host_side *side, struct comm *comm, struct board *board);

/* Collective, for a child of a communicator that has one. False as comm_transport's duplicate. */
bool host_side_duplicate(struct host_side *side, struct comm *parent, const struct comm *child);

void host_side_close(struct host_side *side);

/* comm_transport's calls, for transports that leave them to the host's side. */
int host_side_all_gather(struct comm *comm, const void *send, void *receive, int64_t bytes);
int host_side_collect(struct comm *comm, void *array, int64_t at, int64_t bytes);
void host_side_abort(struct comm *comm, int rank, enum dev_status status, const char *message);
