/* What processes tell one another of themselves while they work: each its ranks' state to the main
 * process, the main process its own to all, every beat. So the main process can name the rank that
 * a job waits for (watch.c), every process notices when the main one is gone, and when a launcher
 * ends the job because one process has died, the others find out which before they end.
 *
 * All but the first section runs on the engine's thread, which is free whatever the ranks do. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device/guard.h"
#include "device/launch.h"
#include "device/mpi_engine.h"
#include "device/processes.h"
#include "device/watch.h"
#include "probe/timing.h"

#define EXIT_FAULT 3
#define BEATS_A_TIMEOUT 8
#define LONGEST_BEAT_S 1.0
#define SHORTEST_BEAT_S 0.02
#define DEFAULT_TIMEOUT_S 60
#define PAUSE_BEATS 4 /* a tick that is later than this says that the process was not running */
/* After the launcher has told a process to end: how long the main process listens who else is
 * there, and when the others give up on it. Launchers kill after a second. */
#define LISTEN_S 0.25
#define GIVE_UP_S 0.6
/* How long the guard of a process that is gone has the word, before another process says so. */
#define GUARD_US 400000

static volatile sig_atomic_t terminated;

static struct heartbeat {
    pthread_mutex_t lock;
    const char *program;
    /* under the lock */
    char phase[96];
    int64_t group;
    bool inside, ending;
    double *left_s; /* [ranks of this process] when each left the group; 0: not yet; owned */
    double timeout_s, beat_s;
    /* the engine's */
    struct watch_rank *ranks; /* [all ranks], of the main process; owned */
    double main_heard_s;
    char main_phase[96];
    double terminated_s; /* 0: not */
    double ticked_s;     /* the last tick; 0: none */
} beat = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .timeout_s = DEFAULT_TIMEOUT_S, .beat_s = LONGEST_BEAT_S};

/* ---- what this process's own threads say ------------------------------------------------------
 */

static void on_terminate(int number)
{
    (void)number;
    terminated = 1;
}

/* The books for a number of ranks per process, and what makes that number known. */
struct books {
    int ranks_per_process;
    void (*settle)(int ranks_per_process);
    double *left_s;
    struct watch_rank *ranks;
};

/* On the engine's thread, which alone reads the books: no tick comes between old and new. */
static void take_books(void *context)
{
    struct books *books = context;
    double now_s = timing_now_s();
    books->settle(books->ranks_per_process);
    for (int r = 0; books->ranks && r < launch_ranks(); r++)
        books->ranks[r].heard_s = now_s;
    pthread_mutex_lock(&beat.lock);
    free(beat.left_s);
    free(beat.ranks);
    beat.left_s = books->left_s;
    beat.ranks = books->ranks;
    beat.main_heard_s = now_s;
    pthread_mutex_unlock(&beat.lock);
}

static void catch_terminate(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_terminate;
    action.sa_flags = (int)SA_RESETHAND | SA_RESTART; /* the second ends at once */
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
}

bool heartbeat_start(int ranks_per_process, void (*settle)(int ranks_per_process))
{
    size_t own = (size_t)ranks_per_process, all = own * (size_t)launch_processes();
    struct books books = {ranks_per_process, settle, calloc(own, sizeof *books.left_s),
        launch_is_main() ? calloc(all, sizeof *books.ranks) : NULL};
    if (!books.left_s || (launch_is_main() && !books.ranks)) {
        free(books.left_s);
        free(books.ranks);
        return false;
    }
    mpi_call(take_books, &books);
    catch_terminate();
    return true;
}

void heartbeat_end(void)
{
    pthread_mutex_lock(&beat.lock);
    beat.ending = true;
    pthread_mutex_unlock(&beat.lock);
}

void heartbeat_phase(const char *text)
{
    pthread_mutex_lock(&beat.lock);
    snprintf(beat.phase, sizeof beat.phase, "%s", text);
    pthread_mutex_unlock(&beat.lock);
    mpi_tick_soon();
    guard_set_phase(text);
}

void heartbeat_timeout(double timeout_s)
{
    double beat_s = timeout_s / BEATS_A_TIMEOUT;
    beat_s = beat_s < SHORTEST_BEAT_S ? SHORTEST_BEAT_S : beat_s;
    beat_s = beat_s > LONGEST_BEAT_S ? LONGEST_BEAT_S : beat_s;
    pthread_mutex_lock(&beat.lock);
    beat.timeout_s = timeout_s;
    beat.beat_s = beat_s;
    pthread_mutex_unlock(&beat.lock);
    mpi_set_tick(beat_s);
}

void heartbeat_enter(int64_t group)
{
    pthread_mutex_lock(&beat.lock);
    beat.group = group;
    beat.inside = true;
    memset(beat.left_s, 0, (size_t)launch_ranks_per_process() * sizeof *beat.left_s);
    pthread_mutex_unlock(&beat.lock);
}

void heartbeat_leave(int local)
{
    pthread_mutex_lock(&beat.lock);
    beat.left_s[local] = timing_now_s();
    pthread_mutex_unlock(&beat.lock);
}

void heartbeat_outside(void)
{
    pthread_mutex_lock(&beat.lock);
    beat.inside = false;
    pthread_mutex_unlock(&beat.lock);
}

/* ---- the end of a job ------------------------------------------------------------------------ */

static void say(int rank, const char *message)
{
    fprintf(stderr, "%s: rank %d on %s: %s\n", beat.program, rank, launch_host(rank), message);
    fflush(stderr);
}

void heartbeat_fatal(int rank, const char *message)
{
    say(rank, message);
    guard_dismiss();
    mpi_abort_job(EXIT_FAULT);
}

/* ---- what is told ---------------------------------------------------------------------------- */

/* Fills in what one of this process's ranks waits for: its oldest transfer. */
static void note_waiting(struct mpi_notice *notice, double now_s)
{
    const struct mpi_transfer *oldest = NULL, *t = NULL;
    while ((t = mpi_next_waiting(t))) {
        if (t->rank == notice->rank && (!oldest || t->since_s < oldest->since_s))
            oldest = t;
    }
    if (!oldest)
        return;
    notice->status = WATCH_WAITS;
    notice->waited_s = now_s - oldest->since_s;
    snprintf(notice->what, sizeof notice->what, "%s", oldest->what);
    for (int i = 0; i < oldest->count && notice->partner < 0; i++) {
        if (oldest->messages[i].pieces)
            notice->partner = oldest->messages[i].rank;
    }
}

static struct mpi_notice notice_of(int local, double now_s)
{
    struct mpi_notice notice = {.kind = NOTICE_BEAT,
        .rank = launch_process() * launch_ranks_per_process() + local,
        .status = WATCH_OUTSIDE,
        .partner = -1};
    pthread_mutex_lock(&beat.lock);
    double left_s = beat.left_s[local];
    notice.group = beat.group;
    snprintf(notice.text, sizeof notice.text, "%s", beat.phase);
    if (beat.inside)
        notice.status = left_s > 0 ? WATCH_LEFT : WATCH_WORKS;
    pthread_mutex_unlock(&beat.lock);
    if (notice.status == WATCH_LEFT)
        notice.waited_s = now_s - left_s;
    else if (notice.status == WATCH_WORKS)
        note_waiting(&notice, now_s);
    return notice;
}

static void hear(const struct mpi_notice *notice, double now_s)
{
    if (!beat.ranks || notice->rank < 0 || notice->rank >= launch_ranks())
        return;
    struct watch_rank *rank = &beat.ranks[notice->rank];
    rank->heard_s = now_s;
    rank->state = (enum watch_state)notice->status;
    rank->group = notice->group;
    rank->partner = notice->partner;
    rank->waited_s = notice->waited_s;
    snprintf(rank->what, sizeof rank->what, "%s", notice->what);
    snprintf(rank->phase, sizeof rank->phase, "%.95s", notice->text);
}

static void send_beats(double now_s)
{
    for (int local = 0; local < launch_ranks_per_process(); local++) {
        struct mpi_notice notice = notice_of(local, now_s);
        if (launch_is_main())
            hear(&notice, now_s);
        else
            mpi_send_notice(0, &notice);
    }
}

/* The main process's own beat, to all. Urgent ones are answered at once. */
static void send_ticks(bool urgent)
{
    struct mpi_notice notice = {.kind = NOTICE_TICK, .status = urgent};
    pthread_mutex_lock(&beat.lock);
    snprintf(notice.text, sizeof notice.text, "%s", beat.phase);
    pthread_mutex_unlock(&beat.lock);
    for (int q = 1; q < launch_processes(); q++)
        mpi_send_notice(q, &notice);
}

/* ---- what is made of it ---------------------------------------------------------------------- */

static void judge(double now_s, double timeout_s, double beat_s)
{
    struct watch_finding finding =
        watch_judge(beat.ranks, launch_ranks(), now_s, timeout_s, beat_s);
    struct ranks_failure failure = {.status = DEV_FAILED, .rank = finding.rank};
    switch (finding.verdict) {
    case WATCH_FINE:
        return;
    case WATCH_GONE:
        memcpy(failure.message, finding.message, sizeof failure.message);
        struct mpi_notice notice = {.kind = NOTICE_ABORT,
            .rank = finding.rank,
            .status = DEV_FAILED,
            .group = beat.ranks[finding.rank].group};
        memcpy(notice.text, finding.message, sizeof notice.text);
        for (int q = 1; q < launch_processes(); q++)
            mpi_send_notice(q, &notice);
        processes_abort(notice.group, &failure);
        return;
    default:
        heartbeat_fatal(finding.rank, finding.message);
    }
}

static void judge_main(double now_s, double timeout_s, double beat_s)
{
    char message[256];
    double silent_s = now_s - beat.main_heard_s;
    if (silent_s <= timeout_s + 3 * beat_s)
        return;
    snprintf(message, sizeof message, "was not heard of for %.3g s%s%s", silent_s,
        beat.main_phase[0] ? "; last phase: " : "", beat.main_phase);
    heartbeat_fatal(0, message);
}

/* ---- when the launcher ends the job ------------------------------------------------------------
 */

/* Says that the job ends, and which ranks were not there any more; their guards have said why,
 * unless they are gone with them. */
static void say_terminated(void)
{
    char doing[256];
    int missing = 0, first = 0;
    for (int r = launch_ranks() - 1; r >= 0; r--) {
        if (beat.ranks[r].heard_s < beat.terminated_s) {
            missing++;
            first = r;
        }
    }
    pthread_mutex_lock(&beat.lock);
    fprintf(stderr, "%s: told to end (SIGTERM)%s%s", beat.program, beat.phase[0] ? ", phase: " : "",
        beat.phase);
    pthread_mutex_unlock(&beat.lock);
    if (missing) {
        watch_describe(&beat.ranks[first], doing, sizeof doing);
        fprintf(stderr, "; %d rank%s missing, first rank %d on %s, which was %s", missing,
            missing == 1 ? " is" : "s are", first, launch_host(first), doing);
    }
    fputc('\n', stderr);
    fflush(stderr);
}

static void end_terminated(double now_s)
{
    double since_s = now_s - beat.terminated_s;
    if (since_s <= (launch_is_main() ? LISTEN_S : GIVE_UP_S))
        return;
    if (launch_is_main())
        say_terminated();
    guard_dismiss();
    _exit(EXIT_FAULT);
}

/* ---- the engine's calls ---------------------------------------------------------------------- */

/* Time in which this process did not run, as a whole, is nobody's silence. */
static void forgive_pause(double now_s, double beat_s)
{
    double pause_s = beat.ticked_s > 0 ? now_s - beat.ticked_s : 0;
    beat.ticked_s = now_s;
    if (pause_s <= PAUSE_BEATS * beat_s)
        return;
    beat.main_heard_s += pause_s;
    for (int r = 0; beat.ranks && r < launch_ranks(); r++)
        beat.ranks[r].heard_s += pause_s;
}

static void on_tick(void)
{
    double now_s = timing_now_s();
    pthread_mutex_lock(&beat.lock);
    bool started = beat.left_s != NULL, ending = beat.ending;
    double timeout_s = beat.timeout_s, beat_s = beat.beat_s;
    pthread_mutex_unlock(&beat.lock);
    if (!started)
        return;
    forgive_pause(now_s, beat_s);
    if (terminated && !(beat.terminated_s > 0))
        beat.terminated_s = now_s;
    send_beats(now_s);
    if (launch_is_main())
        send_ticks(terminated != 0);
    if (beat.terminated_s > 0)
        end_terminated(now_s);
    else if (!ending && launch_is_main())
        judge(now_s, timeout_s, beat_s);
    else if (!ending)
        judge_main(now_s, timeout_s, beat_s);
}

/* A message could not be delivered. Unless the job is being ended, by then, it is what ends it: the
 * partner's guard knows more, its phase and how it ended. */
static void lose(const struct mpi_notice *notice)
{
    char message[320];
    int gone = notice->partner * launch_ranks_per_process();
    usleep(GUARD_US);
    if (terminated)
        return;
    if (notice->rank < 0)
        snprintf(message, sizeof message, "does not take part any more: %.200s", notice->text);
    else
        snprintf(message, sizeof message,
            "does not take part any more: rank %d's '%s' failed: %.150s", notice->rank,
            notice->what, notice->text);
    heartbeat_fatal(gone, message);
}

static void on_notice(const struct mpi_notice *notice)
{
    double now_s = timing_now_s();
    struct ranks_failure failure = {
        .status = (enum dev_status)notice->status, .rank = notice->rank};
    switch (notice->kind) {
    case NOTICE_BEAT:
        hear(notice, now_s);
        return;
    case NOTICE_TICK:
        beat.main_heard_s = now_s;
        snprintf(beat.main_phase, sizeof beat.main_phase, "%.95s", notice->text);
        if (notice->status && beat.left_s)
            send_beats(now_s);
        return;
    case NOTICE_ABORT:
        memcpy(failure.message, notice->text, sizeof failure.message);
        processes_abort(notice->group, &failure);
        return;
    default:
        lose(notice);
    }
}

struct mpi_handlers heartbeat_handlers(const char *program)
{
    beat.program = program;
    return (struct mpi_handlers){
        .notice = on_notice, .tick = on_tick, .tick_s = LONGEST_BEAT_S, .urgent = &terminated};
}
