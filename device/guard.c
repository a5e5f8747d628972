/* Guard and child share one page of memory: what the child wrote last is there when it has died,
 * whatever killed it. */
#include "device/guard.h"
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_LOST 3
#define LATE_US 200000
#define HEARD_US 100000
#define PHASE_TEXT 96

struct shared {
    atomic_int dismissed;
    int rank; /* -1: not known yet */
    char host[64];
    char phase[PHASE_TEXT];
};

/* One guard to a process; signal handlers reach nothing but globals. */
static struct shared *shared;
static volatile sig_atomic_t child;

static void pass_on(int number)
{
    if (child > 0)
        kill((pid_t)child, number);
}

/* Before the fork, so that no signal finds the guard without them. */
static void catch_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = pass_on;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

static void release_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        signal(numbers[i], SIG_DFL);
}

static void report(const char *program, int status)
{
    char how[96];
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(status),
            strsignal(WTERMSIG(status)));
    else
        snprintf(how, sizeof how, "ended on its own with status %d", WEXITSTATUS(status));
    if (shared->rank < 0)
        fprintf(stderr, "%s: a process %s before it had a rank\n", program, how);
    else
        fprintf(stderr, "%s: rank %d on %s %s, phase: %s\n", program, shared->rank, shared->host,
            how, shared->phase[0] ? shared->phase : "starting");
    fflush(stderr);
}

/* The exit status of the guard: the child's, and never that of a success it did not have. */
static int await(const char *program)
{
    int status = 0;
    while (waitpid((pid_t)child, &status, 0) < 0) {
        if (errno != EINTR)
            return EXIT_LOST;
    }
    if (!atomic_load(&shared->dismissed)) {
        /* A library that meets a dead peer may end its process before the peer's guard knows; not
         * with a success, nor by this signal. */
        bool own = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : !WEXITSTATUS(status);
        if (!own)
            usleep(LATE_US);
        report(program, status);
        /* Launchers drop what they have not read when they end a job for a process that is gone. */
        usleep(HEARD_US);
        if (WIFEXITED(status) && !WEXITSTATUS(status))
            return EXIT_LOST;
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void guard_start(const char *program)
{
    pid_t guard = getpid();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        shared = NULL;
        return;
    }
    shared->rank = -1;
    catch_signals();
    pid_t pid = fork();
    if (pid > 0) {
        child = pid;
        prctl(PR_SET_PDEATHSIG, SIGHUP);  /* the launcher's end, which no rank outlives */
        prctl(PR_SET_NAME, "rank guard"); /* so that what is meant for ranks goes to them */
        _exit(await(program));
    }
    release_signals();
    if (pid < 0) {
        munmap(shared, sizeof *shared);
        shared = NULL;
        return;
    }
    setpgid(0, 0); /* what a terminal or the launcher sends comes once, from the guard */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guard)
        _exit(EXIT_LOST);
}

void guard_set_rank(int rank, const char *host)
{
    if (!shared)
        return;
    snprintf(shared->host, sizeof shared->host, "%s", host);
    shared->rank = rank;
}

void guard_set_phase(const char *phase)
{
    if (shared)
        snprintf(shared->phase, sizeof shared->phase, "%s", phase);
}

void guard_dismiss(void)
{
    if (shared)
        atomic_store(&shared->dismissed, 1);
}
