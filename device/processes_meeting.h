/* Ranks of several processes meet: partners send each other a header, which exchange this is, its
 * label, and the sizes of what follows, so that each waits for the other and a difference is found
 * and named as soon as the second of them comes. For processes*.c alone. */
#pragma once
#include "device/mpi_engine.h"
#include "device/processes.h"

enum channel { CHANNEL_EXCHANGE, CHANNEL_HOST, CHANNELS };

/* A communicator's state. */
struct processes_comm {
    struct group *group;
    int64_t id;       /* part of every tag */
    int64_t meetings; /* of the host so far */
    int64_t next_id;  /* of the root: more than any that this rank has a part in */
};

/* One rank's side. */
struct meeting {
    struct comm *comm;
    enum channel channel;
    const char *label;
    int64_t sequence;
    int64_t unit_bytes;                     /* a gather's, by rank */
    const struct comm_part *send, *receive; /* sorted by peer */
    int sends, receives;
    const int *partners;
    int partner_count;
    bool headers_alone; /* the parts themselves go another way */
    char fault[256];    /* how a partner's side differs */
};

/* The group that the communicator's ranks are of. */
struct group *meeting_group(const struct comm *comm);

/* The meeting's messages, to be begun; NULL when memory is short. The meeting stays where it is
 * until the transfer is over or given up. */
struct mpi_transfer *meeting_transfer(struct meeting *m);

/* Meets the partners and moves the parts. False when the group has failed, and then so has this
 * rank's device; on success the transfer is still the caller's. */
bool meeting_run(struct meeting *m, struct mpi_transfer *transfer);

/* ---- processes_announce.c: of the transport, as device/transport.h tells --------------------- */

struct announcement *processes_announce(struct comm *comm, const struct exchange *exchange);
bool processes_agreed(struct announcement *it);
void processes_forget(struct announcement *it);
