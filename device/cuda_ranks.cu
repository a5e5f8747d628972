/* Which transport carries the messages of CUDA ranks: decided when a rank's communicator opens,
 * from how many ranks there are and how many GPUs. */
#include "device/cuda_device.h"

static const struct comm_transport *choose(struct comm *comm, int ranks, int gpus)
{
    enum dev_messages wanted = comm->dev->config.messages;
    bool alone = ranks <= gpus; /* each rank on a GPU of its own */
    if (wanted == DEV_MESSAGES_NCCL && !alone) {
        dev_fail(comm->dev, DEV_UNAVAILABLE,
            "%d ranks on %d GPU%s: NCCL wants a GPU for every rank; use --messages copies", ranks,
            gpus, gpus == 1 ? "" : "s");
        return NULL;
    }
#ifdef HAVE_NCCL
    if (wanted == DEV_MESSAGES_NCCL || (wanted == DEV_MESSAGES_AUTO && alone && ranks > 1))
        return &transport_nccl;
#else
    if (wanted == DEV_MESSAGES_NCCL) {
        dev_fail(comm->dev, DEV_UNAVAILABLE, "NCCL is not part of this build");
        return NULL;
    }
#endif
    return &transport_cuda_copies;
}

static bool open_chosen(struct comm *comm, struct board *board)
{
    int gpus = 0;
    struct group *group = board_group(board);
    if (group_message_bytes_per_s(group) > 0) {
        dev_fail(comm->dev, DEV_FAILED, "messages of a GPU cannot be paced; allowed: no rate");
        return false;
    }
    if (!cuda_use(comm->dev) || !CUDA_DO(comm->dev, cudaGetDeviceCount(&gpus)))
        return false;
    const struct comm_transport *chosen = choose(comm, group_size(group), gpus);
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
};
