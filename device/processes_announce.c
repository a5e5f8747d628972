/* Headers without parts: ranks of several processes whose messages another library carries tell
 * one another what they are about to exchange, and go on. A difference is found when the second of
 * two partners comes, as if the parts came this way too; and a rank whose partner does not come is
 * seen to wait for it. */
#include <stdlib.h>
#include "device/processes_meeting.h"

struct announcement {
    struct meeting meeting;
    struct mpi_transfer *transfer;
};

struct announcement *processes_announce(struct comm *comm, const struct exchange *exchange)
{
    struct announcement *it = calloc(1, sizeof *it);
    if (it) {
        it->meeting = (struct meeting){.comm = comm,
            .channel = CHANNEL_EXCHANGE,
            .label = exchange->label,
            .sequence = exchange->sequence,
            .send = exchange->send,
            .receive = exchange->receive,
            .sends = exchange->sends,
            .receives = exchange->receives,
            .partners = exchange->partners,
            .partner_count = exchange->partner_count,
            .headers_alone = true};
        it->transfer = meeting_transfer(&it->meeting);
    }
    if (!it || !it->transfer) {
        group_abort(
            meeting_group(comm), comm->root->rank, DEV_FAILED, "no memory to announce an exchange");
        free(it);
        return NULL;
    }
    mpi_transfer_begin(it->transfer);
    return it;
}

bool processes_agreed(struct announcement *it)
{
    enum mpi_transfer_state state = mpi_transfer_look(it->transfer);
    const struct comm *comm = it->meeting.comm;
    if (state == MPI_TRANSFER_REFUSED)
        group_abort(meeting_group(comm), comm->root->rank, DEV_FAILED, it->meeting.fault);
    return state == MPI_TRANSFER_DONE;
}

void processes_forget(struct announcement *it)
{
    if (!it)
        return;
    mpi_transfer_drop(it->transfer);
    free(it);
}
