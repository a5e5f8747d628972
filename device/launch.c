/* Launchers say in the environment that they have started a process, and how many. With more than
 * one the process joins the others through MPI, or what stands for it; what it learns of them is
 * kept here. */
#include "device/launch.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "device/guard.h"
#include "device/launch_state.h"
#include "device/processes.h"
#include "probe/host.h"
#include "device/mpi_engine.h"

#define EXIT_NO_JOB 3      /* environment */
#define GROUP_TIMEOUT_S 60 /* as group_create */

struct launch launch = {
    .processes = 1, .per_process = 1, .library = "", .node_count = 1, .said = -1, .words = -1};

/* ---- the launcher ---------------------------------------------------------------------------- */

/* What launchers set to the number of processes: Open MPI, MPICH and its relatives (PMI), Slurm;
 * and whoever starts them by hand, which counts where they are to meet by a file. */
static const char *const size_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"};

/* How many processes a launcher says to have started; 0 when none did. */
static int launched_processes(const char **variable)
{
    bool alone = false;
    for (size_t i = 0; i < sizeof size_variables / sizeof *size_variables; i++) {
        const char *text = getenv(size_variables[i]);
        if (!strcmp(size_variables[i], "WORLD_SIZE") && !getenv("FLATPEAK_JOB_FILE"))
            continue;
        int count = text ? atoi(text) : 0;
        alone |= count == 1;
        if (count > 1) {
            *variable = size_variables[i];
            return count;
        }
    }
    *variable = "";
    return alone ? 1 : 0;
}

static int refuse(const char *program, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static int refuse(const char *program, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s: ", program);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return EXIT_NO_JOB;
}

/* ---- joining --------------------------------------------------------------------------------- */

static struct mpi_job job;

/* Nodes in the order of their first process; the place of each process on its node. */
static void number_nodes(void)
{
    for (int p = 0, nodes = 0; p < launch.processes; p++) {
        int leader = job.leaders[p];
        launch.node[p] = leader == p ? nodes++ : launch.node[leader];
        launch.local[p] = 0;
        for (int q = 0; q < p; q++)
            launch.local[p] += launch.node[q] == launch.node[p];
        launch.node_count = nodes;
    }
}

/* Cores of all processes of this node together, and how many processes share this one's. */
static void share_cores(void)
{
    cpu_set_t all, both;
    const cpu_set_t *own = &launch.places[launch.process].cpus;
    int sharing = 0;
    CPU_ZERO(&all);
    for (int p = 0; p < launch.processes; p++) {
        if (launch.node[p] != launch.node[launch.process])
            continue;
        CPU_OR(&all, &all, &launch.places[p].cpus);
        CPU_AND(&both, own, &launch.places[p].cpus);
        sharing += CPU_COUNT(&both) > 0;
    }
    int quota = host_cpus(), own_cpus = CPU_COUNT(own);
    /* A quota of processor time holds for the node's processes together. */
    int node_cpus = CPU_COUNT(&all);
    if (quota < own_cpus && node_cpus > quota)
        node_cpus = quota;
    launch.node_cpus = node_cpus > 0 ? node_cpus : 1;
    launch.cpus = quota / (sharing > 0 ? sharing : 1);
    if (launch.cpus < 1)
        launch.cpus = 1;
}

static bool find_places(void)
{
    size_t processes = (size_t)launch.processes;
    struct launch_place mine;
    memset(&mine, 0, sizeof mine);
    if (gethostname(mine.host, sizeof mine.host - 1))
        snprintf(mine.host, sizeof mine.host, "unknown");
    sched_getaffinity(0, sizeof mine.cpus, &mine.cpus);
    launch.places = calloc(processes, sizeof *launch.places);
    launch.node = calloc(processes, sizeof *launch.node);
    launch.local = calloc(processes, sizeof *launch.local);
    if (!launch.places || !launch.node || !launch.local)
        return false;
    mpi_gather(&mine, launch.places, sizeof mine);
    number_nodes();
    share_cores();
    return true;
}

/* What another process than the main one prints is lost; what it has to say on stderr is kept until
 * it is known whether the main one says the same. */
static void keep_quiet(void)
{
    FILE *nowhere = freopen("/dev/null", "w", stdout);
    (void)nowhere; /* without /dev/null there is nothing to be done */
    launch.words = memfd_create("stderr", MFD_CLOEXEC);
    launch.said = launch.words < 0 ? -1 : dup(STDERR_FILENO);
    if (launch.said >= 0) {
        fflush(stderr);
        dup2(launch.words, STDERR_FILENO);
    }
}

static void settle_ranks(int ranks_per_process)
{
    launch.per_process = ranks_per_process;
}

static int join(int expected, const char *variable)
{
    char error[320];
    struct mpi_handlers handlers = heartbeat_handlers(launch.program);
    if (mpi_start(&job, &handlers, error, sizeof error))
        return refuse(launch.program, "a launcher started %d processes (%s), but %s", expected,
            variable, error);
    launch.processes = job.processes;
    launch.process = job.process;
    launch.library = job.library;
    if (job.processes != expected)
        return refuse(launch.program,
            "the launcher started %d processes (%s), but %s, which this build uses, knows of %d: "
            "use its own mpirun, or build with MPICC=, or with MPI=0 for launches without MPI",
            expected, variable, job.library, job.processes);
    launch.started = true;
    if (!heartbeat_start(1, settle_ranks) || !find_places())
        return refuse(launch.program, "no memory for %d processes", job.processes);
    guard_set_rank(launch.process, launch_host(launch.process));
    if (!launch_is_main())
        keep_quiet();
    return -1;
}

int launch_open(const char *program)
{
    const char *variable;
    int expected = launched_processes(&variable);
    launch.program = program;
    launch.launched = expected > 0;
    if (expected <= 1)
        return -1;
    guard_start(program);
    int status = join(expected, variable);
    if (status >= 0)
        guard_dismiss();
    return status;
}

int launch_close(int status)
{
    if (!launch.started)
        return status;
    status = launch_follow_value(status);
    heartbeat_end();
    launch_follow(true); /* nobody is missed from here on */
    mpi_stop();
    guard_dismiss();
    launch.started = false;
    free(launch.places);
    free(launch.node);
    free(launch.local);
    free(launch.gpus);
    free(job.leaders);
    return status;
}

void launch_gather(const void *mine, void *all, int64_t bytes)
{
    if (launch.started)
        mpi_gather(mine, all, bytes);
    else
        memcpy(all, mine, (size_t)bytes);
}

void launch_set_ranks_per_process(int ranks)
{
    if (!launch.started || ranks == launch.per_process) {
        launch.per_process = ranks;
        return;
    }
    if (!heartbeat_start(ranks, settle_ranks))
        heartbeat_fatal(launch.process * launch.per_process, "no memory for its ranks");
    guard_set_rank(launch.process * ranks, launch_host(launch.process * ranks));
}

void launch_set_timeout(double timeout_s)
{
    if (launch.started)
        heartbeat_timeout(timeout_s);
}

static void set_phase(const char *text)
{
    if (launch.started)
        heartbeat_phase(text);
}

const struct comm_transport *launch_transport(void)
{
    return launch.started ? &transport_processes : NULL;
}

void launch_begin_group(struct group *group, struct dev_pool *pool, double timeout_s)
{
    if (launch.started)
        processes_begin(group, pool, timeout_s > 0 ? timeout_s : GROUP_TIMEOUT_S);
}

void launch_leave(int local)
{
    if (launch.started)
        heartbeat_leave(local);
}

int launch_finish_group(struct group *group, struct ranks_failure *failure)
{
    if (launch.started)
        return processes_finish(group, failure);
    return group_failed(group, failure) ? -1 : 0;
}

/* ---- what is known --------------------------------------------------------------------------- */

bool launch_started(void)
{
    return launch.started;
}

bool launch_by_launcher(void)
{
    return launch.launched;
}

bool launch_is_main(void)
{
    return launch.process == 0;
}

int launch_processes(void)
{
    return launch.processes;
}

int launch_process(void)
{
    return launch.process;
}

int launch_ranks_per_process(void)
{
    return launch.per_process;
}

int launch_ranks(void)
{
    return launch.processes * launch.per_process;
}

int launch_node_count(void)
{
    return launch.node_count;
}

int launch_node(int rank)
{
    return launch.node ? launch.node[rank / launch.per_process] : 0;
}

int launch_local_rank(int rank)
{
    if (!launch.local)
        return rank;
    return launch.local[rank / launch.per_process] * launch.per_process + rank % launch.per_process;
}

int launch_node_ranks(void)
{
    int processes = 0;
    for (int p = 0; launch.node && p < launch.processes; p++)
        processes += launch.node[p] == launch.node[launch.process];
    return (processes ? processes : 1) * launch.per_process;
}

const char *launch_host(int rank)
{
    return launch.places ? launch.places[rank / launch.per_process].host : "this host";
}

const char *launch_library(void)
{
    return launch.library;
}

int launch_node_cpus(void)
{
    return launch.node_cpus ? launch.node_cpus : host_cpus();
}

int launch_cpus(void)
{
    return launch.cpus ? launch.cpus : host_cpus();
}

void launch_phase(const char *format, ...)
{
    char text[96];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    set_phase(text);
}
