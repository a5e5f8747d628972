/* Which transport carries the messages of CUDA ranks: decided when a rank's communicator opens,
 * from which GPU every rank is on. Where a launcher has started processes they may see their own
 * GPUs alone, so that each calls its first one 0: GPUs are told apart by their place in a
 * machine. */
#include "device/cuda_device.h"
#include <stdlib.h>
#include <string.h>

/* Every rank's place, of its machine and on it. */
struct seat {
    int node;
    struct dev_place place;
};

/* Fills seats [ranks of the group]. False when the group has failed, or memory is short. */
static bool gather_seats(struct comm *comm, struct board *board, struct seat *seats)
{
    struct host_side side;
    struct seat mine;
    char error[192];
    memset(&mine, 0, sizeof mine);
    mine.node = launch_node(comm->rank);
    enum dev_status status = cuda_place(comm->rank, &mine.place, error, sizeof error);
    if (status != DEV_OK) {
        dev_fail(comm->dev, status, "%s", error);
        return false;
    }
    if (!host_side_open(&side, comm, board))
        return false;
    int result = side.comm.transport->host_all_gather(&side.comm, &mine, seats, sizeof mine);
    host_side_close(&side);
    return result == 0;
}

/* The first two ranks that share a GPU; false when none do. */
static bool find_sharing(const struct seat *seats, int ranks, int *first, int *second)
{
    for (*second = 1; *second < ranks; ++*second) {
        for (*first = 0; *first < *second; ++*first) {
            if (seats[*first].node == seats[*second].node &&
                !strcmp(seats[*first].place.bus, seats[*second].place.bus))
                return true;
        }
    }
    return false;
}

static const struct comm_transport *choose(struct comm *comm, const struct seat *seats, int ranks)
{
    enum dev_messages wanted = comm->dev->config.messages;
    const struct comm_transport *copies =
        launch_started() ? &transport_cuda_staged : &transport_cuda_copies;
    int first, second;
    bool sharing = find_sharing(seats, ranks, &first, &second);
    if (wanted == DEV_MESSAGES_NCCL && sharing) {
        dev_fail(comm->dev, DEV_UNAVAILABLE,
            "rank %d and rank %d are on the same GPU, %s of %s: NCCL wants a GPU for every rank; "
            "start fewer ranks, or use --messages copies",
            first, second, seats[first].place.bus, launch_host(first));
        return NULL;
    }
#ifdef HAVE_NCCL
    if (wanted == DEV_MESSAGES_NCCL || (wanted == DEV_MESSAGES_AUTO && !sharing && ranks > 1))
        return &transport_nccl;
#else
    if (wanted == DEV_MESSAGES_NCCL) {
        dev_fail(comm->dev, DEV_UNAVAILABLE, "NCCL is not part of this build");
        return NULL;
    }
#endif
    return copies;
}

static bool open_chosen(struct comm *comm, struct board *board)
{
    struct group *group = board_group(board);
    int ranks = group_size(group);
    if (group_message_bytes_per_s(group) > 0) {
        dev_fail(comm->dev, DEV_FAILED, "messages of a GPU cannot be paced; allowed: no rate");
        return false;
    }
    struct seat *seats = (struct seat *)calloc((size_t)ranks, sizeof *seats);
    bool sound = seats && cuda_use(comm->dev) && gather_seats(comm, board, seats);
    const struct comm_transport *chosen = sound ? choose(comm, seats, ranks) : NULL;
    free(seats);
    if (!chosen)
        return false;
    comm->transport = chosen;
    return chosen->open(comm, board);
}

/* It hands every call but this one to the transport that it chooses. */
extern "C" const struct comm_transport transport_cuda = {
    .open = open_chosen,
    .duplicate = NULL,
    .close = NULL,
    .exchange = NULL,
    .host_all_gather = NULL,
    .host_collect = NULL,
    .abort = NULL,
    .announce = NULL,
    .agreed = NULL,
    .forget = NULL,
    .carrier = NULL,
    .spans_processes = true,
};
