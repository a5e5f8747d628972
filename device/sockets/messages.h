/* Requests over the sockets of a job; for world.c, which gives them MPI's names. */
#pragma once
#include "device/sockets/mpi.h"
#include "device/sockets/parts.h"

/* A message to be sent or received, or several that are waited for together. */
struct sockets_request {
    struct sockets_request *next; /* on the list that it is on */
    int peer, tag, comm;
    void *data;
    int64_t bytes, at; /* at: of frame and bytes, that the socket has taken */
    bool receives, matched, done;
    MPI_Status status;
    struct sockets_request **parts; /* owned, like them; NULL: one message */
    int part_count;
};

/* Meets the other processes. 0, or -1 with `error`. */
int sockets_open(char *error, size_t size);
const struct sockets_job *sockets_job(void);
/* When all processes have come to it. */
void sockets_close(void);
/* Ends this process, and all others by telling them. */
void sockets_abort(int status) __attribute__((noreturn));

/* Moves what can move. */
void sockets_progress(void);

struct sockets_request *sockets_request_create(
    int peer, int tag, int comm, void *data, int64_t bytes);
void sockets_send(struct sockets_request *send);
void sockets_receive(struct sockets_request *receive);
/* A receive that nothing has met is done and cancelled. */
void sockets_cancel(struct sockets_request *request);

/* Whether such a message is there that nobody has asked for. */
bool sockets_find(int from, int tag, int comm, MPI_Status *status);
