/* Plain calls of MPI, on the engine's thread, as no other thread may make them. */
#include "device/mpi_peer.h"
#include <mpi.h>
#include "device/launch.h"
#include "device/mpi_engine.h"
#include "probe/timing.h"

#define TAG 1

struct measurement {
    void *send, *receive;
    int64_t bytes;
    int repeats;
    double seconds;
};

static void one_way(void *context)
{
    struct measurement *m = context;
    int peer = 1 - launch_process(), bytes = (int)m->bytes;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin_s = timing_now_s();
    for (int i = 0; i < m->repeats; i++) {
        if (peer == 1)
            MPI_Send(m->send, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
        MPI_Recv(m->receive, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (peer == 0)
            MPI_Send(m->send, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
    }
    m->seconds = (timing_now_s() - begin_s) / (2 * m->repeats);
}

static void both_ways(void *context)
{
    struct measurement *m = context;
    int peer = 1 - launch_process(), bytes = (int)m->bytes;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin_s = timing_now_s();
    for (int i = 0; i < m->repeats; i++)
        MPI_Sendrecv(m->send, bytes, MPI_BYTE, peer, TAG, m->receive, bytes, MPI_BYTE, peer, TAG,
            MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    m->seconds = (timing_now_s() - begin_s) / m->repeats;
}

double mpi_peer_one_way_s(void *send, void *receive, int64_t bytes, int repeats)
{
    struct measurement m = {send, receive, bytes, repeats, 0};
    mpi_call(one_way, &m);
    return m.seconds;
}

double mpi_peer_both_ways_s(void *send, void *receive, int64_t bytes, int repeats)
{
    struct measurement m = {send, receive, bytes, repeats, 0};
    mpi_call(both_ways, &m);
    return m.seconds;
}
