/* How processes find each other without MPI: by a file that all can read, FLATPEAK_JOB_FILE.
 *
 * Process 0 listens, and writes its addresses and a number that nobody can guess into a file of
 * another name, which it renames: whoever sees the file sees all of it. The others connect and show
 * the number. When all have come process 0 removes the file and tells each where the others listen,
 * and they connect to one another.
 *
 * A file may be left from a job that is dead. Process 0 replaces it; another process that reads it
 * before finds nobody there, or somebody who does not know its number, and looks again, until the
 * deadline (--timeout). */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "device/sockets/parts.h"
#include "probe/timing.h"

#define TIMEOUT_S 60 /* as --timeout */
#define LOOK_S 0.05  /* between looks at the file */
#define TRY_MS 2000  /* for a connection, and for what must come on it at once */
#define ADDRESSES 8  /* of a host, at most */
#define MAGIC 0x666c617470656b31u

/* Where a process listens. */
struct listener {
    char host[SOCKETS_HOST_TEXT];
    uint32_t addresses[ADDRESSES]; /* IPv4, of the network; 0: no more */
    uint16_t port;                 /* likewise */
};

/* What a process says first on a connection. */
struct hello {
    uint64_t magic, number; /* the job's */
    int32_t process, processes;
    struct listener listener;
};

/* One process's way to the others. */
struct meeting {
    const char *path;
    char id[80]; /* the launcher's name of the job; "-": none */
    uint64_t number;
    int listening;
    double timeout_s, deadline_s;
    struct sockets_job *job;
    struct listener *listeners; /* [processes], owned */
    char *error;
    size_t error_size;
};

/* In launch.c's order. */
static const struct {
    const char *process, *processes;
} variables[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"}, {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"RANK", "WORLD_SIZE"}};

bool sockets_place(int *process, int *processes)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *mine = getenv(variables[i].process), *all = getenv(variables[i].processes);
        if (!mine || !all)
            continue;
        *process = atoi(mine);
        *processes = atoi(all);
        return *processes > 0 && *process >= 0 && *process < *processes;
    }
    return false;
}

/* --timeout of the command line, which nobody has read so far. */
static double read_timeout(void)
{
    static const char name[] = "--timeout";
    char text[65536];
    double timeout_s = TIMEOUT_S;
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[bytes] = 0;
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1) {
        const char *word = text + at, *value = NULL;
        if (!strcmp(word, name) && at + sizeof name < bytes)
            value = word + sizeof name;
        else if (!strncmp(word, name, sizeof name - 1) && word[sizeof name - 1] == '=')
            value = word + sizeof name;
        if (value && atof(value) > 0)
            timeout_s = atof(value);
    }
    return timeout_s;
}

static int fail(struct meeting *m, const char *what)
{
    snprintf(m->error, m->error_size, "%s: %s: %s", m->path, what, strerror(errno));
    return -1;
}

static void pause_shortly(void)
{
    const struct timespec pause = {0, (long)(LOOK_S * 1e9)};
    nanosleep(&pause, NULL);
}

static bool is_late(const struct meeting *m)
{
    return timing_now_s() >= m->deadline_s;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* All bytes, or false when they do not come in time. */
static bool receive_all(int socket, void *data, size_t bytes, double deadline_s)
{
    char *to = data;
    while (bytes) {
        struct pollfd poller = {.fd = socket, .events = POLLIN};
        double left_s = deadline_s - timing_now_s();
        if (left_s <= 0 || poll(&poller, 1, (int)(left_s * 1e3) + 1) < 0)
            return false;
        ssize_t got = poller.revents ? recv(socket, to, bytes, MSG_DONTWAIT) : -1;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (got > 0) {
            to += got;
            bytes -= (size_t)got;
        }
    }
    return true;
}

static bool send_all(int socket, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes) {
        ssize_t sent = send(socket, from, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return false;
        if (sent > 0) {
            from += sent;
            bytes -= (size_t)sent;
        }
    }
    return true;
}

/* A connection to one of the addresses; -1 when nobody answers. */
static int connect_to(const struct listener *listener)
{
    for (int i = 0; i < ADDRESSES && listener->addresses[i]; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET,
            .sin_port = listener->port,
            .sin_addr = {listener->addresses[i]}};
        struct pollfd poller = {.events = POLLOUT};
        int error = 0;
        socklen_t size = sizeof error;
        poller.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (poller.fd < 0)
            return -1;
        bool begun = connect(poller.fd, (struct sockaddr *)&address, sizeof address) == 0 ||
                     errno == EINPROGRESS;
        if (begun && poll(&poller, 1, TRY_MS) == 1 &&
            getsockopt(poller.fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && !error) {
            fcntl(poller.fd, F_SETFL, 0);
            return poller.fd;
        }
        close(poller.fd);
    }
    return -1;
}

/* Says which process this is. */
static struct hello make_hello(const struct meeting *m)
{
    struct hello hello = {.magic = MAGIC,
        .number = m->number,
        .process = m->job->process,
        .processes = m->job->processes,
        .listener = m->listeners[m->job->process]};
    return hello;
}

/* Takes in one of the processes above `above` that connects; whoever else does is sent away.
 * Returns its number, or -1. */
static int accept_process(struct meeting *m, int above, struct hello *hello)
{
    struct pollfd poller = {.fd = m->listening, .events = POLLIN};
    if (poll(&poller, 1, (int)(LOOK_S * 1e3)) != 1)
        return -1;
    int other = accept4(m->listening, NULL, NULL, SOCK_CLOEXEC);
    if (other < 0)
        return -1;
    bool known = receive_all(other, hello, sizeof *hello, timing_now_s() + TRY_MS / 1e3) &&
                 hello->magic == MAGIC && hello->number == m->number &&
                 hello->processes == m->job->processes && hello->process > above &&
                 hello->process < m->job->processes && m->job->all[hello->process].socket < 0;
    if (!known) {
        close(other);
        return -1;
    }
    m->job->all[hello->process].socket = other;
    return hello->process;
}

/* Where this host can be reached; itself alone where there is no network. */
static void list_addresses(struct listener *listener)
{
    struct ifaddrs *all = NULL;
    int count = 0;
    for (int loopback = 0; loopback < 2 && !count; loopback++) { /* that only if nothing else */
        if (getifaddrs(&all))
            break;
        for (const struct ifaddrs *it = all; it && count < ADDRESSES; it = it->ifa_next) {
            if (!it->ifa_addr || it->ifa_addr->sa_family != AF_INET || !(it->ifa_flags & IFF_UP) ||
                ((it->ifa_flags & IFF_LOOPBACK) != 0) != loopback)
                continue;
            const struct sockaddr_in *address = (const void *)it->ifa_addr;
            listener->addresses[count++] = address->sin_addr.s_addr;
        }
        freeifaddrs(all);
    }
}

static int start_listening(struct meeting *m)
{
    struct listener *mine = &m->listeners[m->job->process];
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    m->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (m->listening < 0 || bind(m->listening, (struct sockaddr *)&address, sizeof address) ||
        listen(m->listening, m->job->processes) ||
        getsockname(m->listening, (struct sockaddr *)&address, &size))
        return fail(m, "no socket to listen on");
    mine->port = address.sin_port;
    list_addresses(mine);
    if (gethostname(mine->host, sizeof mine->host - 1))
        snprintf(mine->host, sizeof mine->host, "unknown");
    return 0;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Under another name first. */
static int write_file(struct meeting *m)
{
    char other[4200], text[INET_ADDRSTRLEN];
    const struct listener *mine = &m->listeners[0];
    snprintf(other, sizeof other, "%.4096s.%016llx", m->path, (unsigned long long)m->number);
    int descriptor = open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!file)
        return fail(m, "cannot be written");
    fprintf(file, "flatpeak-job 1 %s %d %016llx %u\n", m->id, m->job->processes,
        (unsigned long long)m->number, ntohs(mine->port));
    for (int i = 0; i < ADDRESSES && mine->addresses[i]; i++)
        fprintf(file, "%s\n", inet_ntop(AF_INET, &mine->addresses[i], text, sizeof text));
    bool written = fflush(file) == 0 && fsync(descriptor) == 0;
    written &= fclose(file) == 0;
    if (written && rename(other, m->path) == 0)
        return 0;
    unlink(other);
    return fail(m, "cannot be written");
}

/* What the file says, if it is of this job; else `why` not. */
static bool read_file(struct meeting *m, struct listener *first, char *why, size_t size)
{
    char id[80] = "", text[64];
    unsigned long long number = 0;
    unsigned port = 0;
    int processes = 0, count = 0;
    FILE *file = fopen(m->path, "r");
    if (!file) {
        snprintf(why, size, "%s", errno == ENOENT ? "it was not there" : strerror(errno));
        return false;
    }
    bool sound =
        fscanf(file, "flatpeak-job 1 %79s %d %llx %u", id, &processes, &number, &port) == 4;
    memset(first, 0, sizeof *first);
    while (sound && count < ADDRESSES && fscanf(file, "%63s", text) == 1)
        count += inet_pton(AF_INET, text, &first->addresses[count]) == 1;
    fclose(file);
    first->port = htons((uint16_t)port);
    m->number = number;
    if (!sound || !count)
        snprintf(why, size, "it is not such a file");
    else if (strcmp(id, m->id) || processes != m->job->processes)
        snprintf(why, size, "it is of another job: %s, %d processes", id, processes);
    else
        return true;
    return false;
}

/* ---- the meeting ----------------------------------------------------------------------------- */

/* Who is not there, "1, 4". */
static void list_missing(const struct meeting *m, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int p = 1; p < m->job->processes && used + 16 < size; p++) {
        if (m->job->all[p].socket < 0)
            used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", p);
    }
}

/* Process 0: until all have come. */
static int await_all(struct meeting *m)
{
    char missing[160];
    struct hello hello;
    if (getrandom(&m->number, sizeof m->number, 0) != (ssize_t)sizeof m->number)
        return fail(m, "no random number");
    if (write_file(m))
        return -1;
    for (int come = 1; come < m->job->processes;) {
        int process = accept_process(m, 0, &hello);
        if (process > 0) {
            const uint64_t answer = MAGIC;
            m->listeners[process] = hello.listener;
            if (!send_all(m->job->all[process].socket, &answer, sizeof answer))
                return fail(m, "a process has gone again");
            come++;
        } else if (is_late(m)) {
            list_missing(m, missing, sizeof missing);
            unlink(m->path);
            snprintf(m->error, m->error_size,
                "%s: of %d processes these have not come to the file in %g s: %s", m->path,
                m->job->processes, m->timeout_s, missing);
            return -1;
        }
    }
    unlink(m->path);
    size_t bytes = (size_t)m->job->processes * sizeof *m->listeners;
    for (int p = 1; p < m->job->processes; p++) {
        if (!send_all(m->job->all[p].socket, m->listeners, bytes))
            return fail(m, "a process has gone again");
    }
    return 0;
}

/* Whether process 0 is at the other end, and, when all have come, where they listen. */
static bool ask_first(struct meeting *m, int other, char *why, size_t size)
{
    struct hello hello = make_hello(m);
    size_t bytes = (size_t)m->job->processes * sizeof *m->listeners;
    uint64_t answer = 0;
    if (!send_all(other, &hello, sizeof hello) ||
        !receive_all(other, &answer, sizeof answer, timing_now_s() + TRY_MS / 1e3) ||
        answer != MAGIC) {
        snprintf(why, size, "who listens where it says does not know this process");
        return false;
    }
    snprintf(why, size, "process 0 was there, but not all others");
    return receive_all(other, m->listeners, bytes, m->deadline_s);
}

/* Another process: finds process 0 and learns where all listen. */
static int find_first(struct meeting *m)
{
    char why[160] = "";
    struct listener first;
    for (; !is_late(m); pause_shortly()) {
        if (!read_file(m, &first, why, sizeof why))
            continue;
        int other = connect_to(&first);
        if (other < 0) {
            snprintf(why, sizeof why, "nobody listens where it says: its job has ended");
            continue;
        }
        if (ask_first(m, other, why, sizeof why)) {
            m->job->all[0].socket = other;
            return 0;
        }
        close(other);
    }
    snprintf(m->error, m->error_size,
        "%s: process %d did not find the others by the file in %g s: %s", m->path, m->job->process,
        m->timeout_s, why);
    return -1;
}

/* Those above 0 among each other: each connects to those below it. */
static int join_others(struct meeting *m)
{
    struct sockets_job *job = m->job;
    struct hello hello = make_hello(m);
    for (int p = 1; p < job->process; p++) {
        job->all[p].socket = connect_to(&m->listeners[p]);
        if (job->all[p].socket < 0 || !send_all(job->all[p].socket, &hello, sizeof hello))
            return fail(m, "another process cannot be reached");
    }
    for (int p = job->process + 1; p < job->processes; p += job->all[p].socket >= 0) {
        if (job->all[p].socket >= 0)
            continue;
        accept_process(m, job->process, &hello);
        if (is_late(m)) {
            snprintf(m->error, m->error_size,
                "%s: process %d did not connect to process %d in %g s", m->path, p, job->process,
                m->timeout_s);
            return -1;
        }
    }
    return 0;
}

static int meet(struct meeting *m)
{
    struct sockets_job *job = m->job;
    int on = 1;
    if (start_listening(m))
        return -1;
    int result = job->process == 0 ? await_all(m) : find_first(m) || join_others(m) ? -1 : 0;
    for (int p = 0; result == 0 && p < job->processes; p++) {
        memcpy(job->all[p].host, m->listeners[p].host, sizeof job->all[p].host);
        if (p == job->process)
            continue;
        fcntl(job->all[p].socket, F_SETFL, O_NONBLOCK);
        setsockopt(job->all[p].socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    return result;
}

static void name_job(struct meeting *m)
{
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    snprintf(m->id, sizeof m->id, "%s", "-");
    if (job)
        snprintf(m->id, sizeof m->id, "%.32s.%.32s", job, step ? step : "");
}

int sockets_meet(struct sockets_job *job, char *error, size_t size)
{
    struct meeting m = {.path = getenv("FLATPEAK_JOB_FILE"),
        .listening = -1,
        .job = job,
        .error = error,
        .error_size = size};
    if (!m.path || !*m.path || !sockets_place(&job->process, &job->processes)) {
        snprintf(error, size,
            "this build has no MPI: build with MPI=1, start the program alone with --ranks, or "
            "name "
            "a file for the processes to meet by, FLATPEAK_JOB_FILE=PATH%s",
            m.path ? ", together with RANK and WORLD_SIZE" : "");
        return -1;
    }
    name_job(&m);
    m.timeout_s = read_timeout();
    m.deadline_s = timing_now_s() + m.timeout_s;
    job->all = calloc((size_t)job->processes, sizeof *job->all);
    m.listeners = calloc((size_t)job->processes, sizeof *m.listeners);
    int result = -1;
    if (job->all && m.listeners) {
        for (int p = 0; p < job->processes; p++)
            job->all[p].socket = -1;
        result = meet(&m);
    } else {
        snprintf(error, size, "no memory for %d processes", job->processes);
    }
    if (m.listening >= 0)
        close(m.listening);
    for (int p = 0; result && job->all && p < job->processes; p++) {
        if (job->all[p].socket >= 0)
            close(job->all[p].socket);
    }
    free(m.listeners);
    return result;
}
