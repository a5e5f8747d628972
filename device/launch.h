/* How the program was started: alone, with thread ranks, or by a launcher as one of several
 * processes that hold the ranks between them.
 *
 * A benchmark program calls launch_open first and ends with launch_close; in between every process
 * takes the same path, with the same options. The first process (rank 0's) is the main one: it
 * prints, writes and decides, and the others follow. Started alone, a program is its only process
 * and all of this costs nothing.
 *
 * What a launcher starts is the process, so this state exists once in it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct dev_place;

/* Joins the other processes when a launcher (mpirun, srun) started more than one; what processes
 * other than the main one print on stdout is lost from here on. -1 to go on, or an exit status
 * after one line on stderr: 3 where this build has another MPI than the launcher's, or none and the
 * processes do not find each other by a file (device/sockets/meeting.c). */
int launch_open(const char *program);

/* Collective: leaves the job. Returns the main process's `status`, on all. */
int launch_close(int status);

/* Several processes hold the ranks. */
bool launch_started(void);
/* A launcher started this process, be it as the only one. */
bool launch_by_launcher(void);
bool launch_is_main(void);
int launch_processes(void);
int launch_process(void);

/* ---- ranks and where they are ---------------------------------------------------------------- */

/* Ranks of a process, 1 unless set; process p has ranks p*n .. p*n + n-1. Between groups. */
int launch_ranks_per_process(void);
void launch_set_ranks_per_process(int ranks);
int launch_ranks(void); /* of all processes */

/* Nodes are numbered by their first rank. All are on node 0 unless processes were started. */
int launch_node_count(void);
int launch_node(int rank);
int launch_local_rank(int rank); /* among the ranks of its node */
int launch_node_ranks(void);     /* ranks of this process's node */
const char *launch_host(int rank);
const char *launch_library(void); /* "Open MPI v4.1.4"; "" unless started */

/* Cores that this node's processes may use together, and this one's share of its own: with
 * host_cpus processes on the same cores, each has one. */
int launch_node_cpus(void);
int launch_cpus(void);

/* ---- agreement; collective over the processes, on one thread of each ------------------------- */

/* Each process's `status` (-1, or an exit status) after reading its command line. -1 when all go
 * on; else the status to end with, after the main process has said which rank on which host was
 * started with other options, or stopped, and what it had to say on stderr. */
int launch_agree(int status, int argc, char *const *argv);

bool launch_all(bool mine);         /* whether it holds on every process */
int launch_follow_value(int value); /* the main process's number */
bool launch_follow(bool decision);  /* the main process's decision */
void launch_gather(const void *mine, void *all, int64_t bytes); /* [processes][bytes] */

/* Makes the GPUs of all ranks known, from those of this process's; nothing when alone. False when
 * memory is short, on all. */
bool launch_set_gpus(const struct dev_place *mine);
const struct dev_place *launch_gpu(int rank); /* NULL: not known */
int launch_gpus(void); /* how many different ones the ranks are on; 0: not known */

/* What this process is doing, for the message when it is never heard of again. */
void launch_phase(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* How long ranks wait for one another; 60 s until it is set. */
void launch_set_timeout(double timeout_s);

/* ---- for ranks.c: a group of ranks in several processes; nothing when alone -------------------
 */

struct comm_transport;
struct dev_pool;
struct group;
struct ranks_failure;

/* What carries messages between processes; NULL when alone. */
const struct comm_transport *launch_transport(void);
void launch_begin_group(struct group *group, struct dev_pool *pool, double timeout_s);
void launch_leave(int local); /* one of this process's ranks is through with its body */
/* When this process's ranks have left: waits for all others. 0, or -1 with the group's failure. */
int launch_finish_group(struct group *group, struct ranks_failure *failure);
