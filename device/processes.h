/* A group of ranks that processes hold between them: what ranks.c and launch.c ask of processes.c
 * and heartbeat.c, which need MPI. */
#pragma once
#include "device/group.h"
#include "device/transport.h"

struct mpi_handlers;

extern const struct comm_transport transport_processes;

/* Collective over the processes. The ranks of this process are about to run as members of `group`;
 * failures travel between the processes from here on. */
void processes_begin(struct group *group, struct dev_pool *pool, double timeout_s);

/* Collective, when this process's ranks have all left: waits for the others' and, after a failure,
 * until no message is on its way. Then all ranks of the group have left. 0, or -1 with the failure,
 * the same on every process. */
int processes_finish(struct group *group, struct ranks_failure *failure);

/* Another process's rank failed in group number `group`. */
void processes_abort(int64_t group, const struct ranks_failure *failure);

/* ---- heartbeat.c: what a process tells the others of itself -----------------------------------
 */

/* What mpi_start is to call. `program` is named in messages. */
struct mpi_handlers heartbeat_handlers(const char *program);
/* Begins, or begins anew with another number of ranks per process, which settle() makes known in
 * between. False when memory is short. */
bool heartbeat_start(int ranks_per_process, void (*settle)(int ranks_per_process));
/* Before the processes part: no silence is an alarm any more. */
void heartbeat_end(void);

void heartbeat_phase(const char *text);
void heartbeat_timeout(double timeout_s);
void heartbeat_enter(int64_t group); /* this process's ranks are in a group */
void heartbeat_leave(int local);     /* one of them is through */
void heartbeat_outside(void);        /* the group has ended */

/* A failure that no rank of this process may survive: tells it, with the rank's host, and ends the
 * job. */
void heartbeat_fatal(int rank, const char *message) __attribute__((noreturn));
