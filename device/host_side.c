/* A communicator beside a communicator: the same ranks, names and parents, and another
 * transport. */
#include "device/host_side.h"
#include "device/launch.h"

bool host_side_open(struct host_side *side, struct comm *comm, struct board *board)
{
    const struct comm_transport *between = launch_transport();
    side->comm = *comm;
    side->comm.transport = between ? between : &transport_threads;
    side->comm.root = &side->comm;
    if (!side->comm.transport->open(&side->comm, board))
        return false;
    comm->size = side->comm.size;
    return true;
}

bool host_side_duplicate(struct host_side *side, struct comm *parent, const struct comm *child)
{
    struct comm *above = host_side_of(parent);
    side->comm = *child;
    side->comm.transport = above->transport;
    side->comm.root = above->root;
    side->comm.parent = above;
    return above->transport->duplicate(above, &side->comm);
}

void host_side_close(struct host_side *side)
{
    side->comm.transport->close(&side->comm);
}

int host_side_all_gather(struct comm *comm, const void *send, void *receive, int64_t bytes)
{
    struct comm *side = host_side_of(comm);
    return side->transport->host_all_gather(side, send, receive, bytes);
}

int host_side_collect(struct comm *comm, void *array, int64_t at, int64_t bytes)
{
    struct comm *side = host_side_of(comm);
    return side->transport->host_collect ? side->transport->host_collect(side, array, at, bytes)
                                         : 0;
}

void host_side_abort(struct comm *comm, int rank, enum dev_status status, const char *message)
{
    struct comm *side = host_side_of(comm);
    side->transport->abort(side, rank, status, message);
}
