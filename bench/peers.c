/* peers - our kernels against other libraries', with pass or FAIL per bar
 *
 * Usage: peers [--only NAME[,NAME]...] [--rounds N]
 *
 * A bar is the least ratio of the other library's time to ours. Both are measured in one run, in
 * turn; the ratio is the median over the rounds, so that what slows the machine for a while slows
 * both sides of a round. Threads are pinned: left alone, two threads share a core in some rounds
 * and not in others. OpenBLAS's workers spin for a while after a call, so before each sample with
 * two threads there is a pause until they sleep. A sample whose threads had to wait for a core,
 * because other processes run here too, is taken again; a bar that had to make do with such samples
 * says so, and its ratio is no verdict on a quiet machine.
 *
 * OpenBLAS is loaded without the overrides OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE that may be in
 * the environment, and the kernel it chose is printed. It reads its environment when it is loaded,
 * so each group of bars runs in a process of its own: the AVX2 group with OpenBLAS's AVX2 kernel
 * (Haswell). */
#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "bench/harness/options.h"
#include "bench/peers.h"
#include "kernels/isa.h"
#include "probe/timing.h"

#define SAMPLE_S 0.02  /* one sample repeats the work until it is about this long */
#define PAUSE_S 0.06   /* OpenBLAS's workers spin for 2^26 ticks of the clock, some 25 ms */
#define DISTURBED 0.01 /* share of a sample's time that its threads waited for a core */
enum { MOST_ROUNDS = 101, MOST_REPEATS = 10000 };

struct group {
    const char *name;
    enum isa isa;              /* of our kernels; ISA_COUNT = the widest */
    const char *openblas_core; /* NULL = its own choice */
    int (*run)(struct peers *peers);
};

static const struct group groups[] = {
    {"gemm, AVX-512", ISA_AVX512, NULL, peers_gemm_avx512},
    {"gemm, AVX2", ISA_AVX2, "Haswell", peers_gemm_avx2},
    {"exp and log, AVX-512", ISA_AVX512, NULL, peers_math_avx512},
    {"exp and log, AVX2", ISA_AVX2, NULL, peers_math_avx2},
    {"vocabulary", ISA_COUNT, NULL, peers_vocab},
    {"boundaries", ISA_COUNT, NULL, peers_stack},
    {"dispatch, kernels", ISA_COUNT, NULL, peers_moe},
    {"dispatch, schedules", ISA_COUNT, NULL, peers_dispatch},
    {"AdamW", ISA_COUNT, NULL, peers_adamw},
    {"optimizer", ISA_COUNT, NULL, peers_offload},
};
enum { GROUP_COUNT = sizeof groups / sizeof *groups };

/* ---- pinning ----------------------------------------------------------------------------- */

/* The first CPUs this process may use. Returns how many, at most 2. */
static int first_cpus(int cpus[2])
{
    cpu_set_t allowed;
    int count = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            cpus[count++] = cpu;
    return count;
}

/* The main thread on the first CPU, every other thread of the process on the second. Threads appear
 * when a library first needs them, so this is done before each sample. */
static void pin_threads(const struct peers *peers)
{
    DIR *tasks = peers->cpu_count == 2 ? opendir("/proc/self/task") : NULL;
    if (!tasks)
        return;
    for (struct dirent *task; (task = readdir(tasks));) {
        const pid_t id = (pid_t)strtol(task->d_name, NULL, 10);
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(peers->cpus[id == getpid() ? 0 : 1], &set);
        if (id > 0)
            sched_setaffinity(id, sizeof set, &set);
    }
    closedir(tasks);
}

/* ---- measuring --------------------------------------------------------------------------- */

static void pause_s(double seconds)
{
    const struct timespec time = {0, (long)(seconds * 1e9)};
    nanosleep(&time, NULL);
}

static double run_s(const struct peers_contestant *contestant, int repeats)
{
    const double start_s = timing_now_s();
    for (int i = 0; i < repeats; i++)
        contestant->run(contestant->context);
    return (timing_now_s() - start_s) / repeats;
}

/* Seconds for which the threads of this process were ready to run and did not, so far; 0 where the
 * kernel does not tell. */
static double waited_s(void)
{
    double total_s = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks)
        return 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[64];
        long long waited_ns = 0;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", task->d_name);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        if (fscanf(file, "%*d %lld", &waited_ns) == 1)
            total_s += (double)waited_ns * 1e-9;
        fclose(file);
    }
    closedir(tasks);
    return total_s;
}

/* What one bar's samples share: how many more may be taken again, how many stayed disturbed. */
struct sampling {
    bool pause;
    int64_t spare, disturbed;
};

/* One sample: once to warm caches and wake threads, then until SAMPLE_S is full; again if it was
 * disturbed. Of several the least disturbed one counts. */
static double sample_s(
    const struct peers *peers, const struct peers_contestant *contestant, struct sampling *sampling)
{
    if (contestant->seconds)
        return contestant->seconds(contestant->context);
    double least_waited = INFINITY, seconds = 0;
    for (bool again = true; again;) {
        if (sampling->pause)
            pause_s(PAUSE_S);
        contestant->run(contestant->context);
        pin_threads(peers);
        const double fitting = SAMPLE_S / run_s(contestant, 1);
        const int repeats = fitting < 1 ? 1 : fitting > MOST_REPEATS ? MOST_REPEATS : (int)fitting;
        const double before_s = waited_s();
        const double once_s = run_s(contestant, repeats);
        const double waited = (waited_s() - before_s) / (once_s * repeats);
        if (waited < least_waited) {
            least_waited = waited;
            seconds = once_s;
        }
        again = least_waited > DISTURBED && sampling->spare-- > 0;
    }
    sampling->disturbed += least_waited > DISTURBED;
    return seconds;
}

static double median(const double *samples, int64_t count)
{
    struct timing_summary summary;
    timing_summarise(samples, (int)count, &summary);
    return summary.median_s;
}

void peers_bar(struct peers *peers, const char *name, const struct peers_contestant *ours,
    const struct peers_contestant *other, double work, const char *unit, double least)
{
    const struct peers_contestant *const sides[2] = {ours, other};
    struct sampling sampling = {
        .pause = ours->threads > 1 || other->threads > 1, .spare = 2 * peers->rounds};
    double seconds[2][MOST_ROUNDS], ratios[MOST_ROUNDS];
    pause_s(PAUSE_S); /* whoever ran before */
    for (int64_t i = 0; i < peers->rounds; i++) {
        /* The order turns, so that neither side always follows the other. */
        const int first = (int)(i % 2);
        seconds[first][i] = sample_s(peers, sides[first], &sampling);
        seconds[!first][i] = sample_s(peers, sides[!first], &sampling);
        ratios[i] = seconds[1][i] / seconds[0][i];
    }
    const double ratio = median(ratios, peers->rounds);
    const bool pass = ratio >= least;
    *(pass ? &peers->counts->passed : &peers->counts->failed) += 1;
    printf("%-38s %7.1f %s/s  %-16s %7.1f %s/s  %5.2f (bar %.2f) %s", name,
        work / median(seconds[0], peers->rounds) / 1e9, unit, other->name,
        work / median(seconds[1], peers->rounds) / 1e9, unit, ratio, least, pass ? "pass" : "FAIL");
    if (sampling.disturbed)
        printf(" (%lld of %lld samples waited for a core)", (long long)sampling.disturbed,
            (long long)(2 * peers->rounds));
    printf("\n");
    fflush(stdout);
}

void peers_skip(struct peers *peers, const char *name, const char *reason)
{
    peers->counts->skipped++;
    printf("%-38s skipped: %s\n", name, reason);
}

void peers_fault(struct peers *peers, const char *name, const char *what)
{
    peers->counts->failed++;
    printf("%-38s FAIL: %s\n", name, what);
}

bool peers_wants(const struct peers *peers, const char *name)
{
    if (!peers->only)
        return true;
    for (const char *part = peers->only; *part; part += strspn(part, ",")) {
        const size_t length = strcspn(part, ",");
        for (const char *at = name; strlen(at) >= length; at++)
            if (length && !strncmp(at, part, length))
                return true;
        part += length;
    }
    return false;
}

/* ---- a process per group ----------------------------------------------------------------- */

/* Runs a group in this process; the exit status. */
static int run_group(const struct group *group, struct peers *peers)
{
    unsetenv("OPENBLAS_L2_SIZE");
    unsetenv("OPENBLAS_CORETYPE");
    if (group->openblas_core)
        setenv("OPENBLAS_CORETYPE", group->openblas_core, 1);
    printf("== %s\n", group->name);
    if (group->isa != ISA_COUNT && isa_force(group->isa)) {
        peers_skip(peers, group->name, "not on this CPU");
        return EXIT_OK;
    }
    /* Before pinning: the pool asks how many cores there are. */
    peers->pool = dev_pool_create(peers->cpu_count);
    if (!peers->pool) {
        fprintf(stderr, "peers: no threads\n");
        return EXIT_ENVIRONMENT;
    }
    const int status = group->run(peers) ? EXIT_ENVIRONMENT : EXIT_OK;
    dev_pool_free(peers->pool);
    printf("\n");
    return status;
}

/* The exit status of a group run by a child. */
static int run_child(const struct group *group, struct peers *peers)
{
    int status;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        exit(run_group(group, peers));
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        fprintf(stderr, "peers: group %s did not end\n", group->name);
        return EXIT_ENVIRONMENT;
    }
    return WEXITSTATUS(status);
}

static int run_groups(struct peers *peers)
{
    int status = EXIT_OK;
    for (int i = 0; i < GROUP_COUNT && status == EXIT_OK; i++)
        status = run_child(&groups[i], peers);
    const struct peers_counts *counts = peers->counts;
    if (status != EXIT_OK)
        return status;
    if (!counts->passed && !counts->failed && !counts->skipped) {
        fprintf(stderr, "peers: option --only: no bar's name contains '%s'\n", peers->only);
        return EXIT_BAD_INPUT;
    }
    printf(
        "%d bars passed, %d failed, %d skipped\n", counts->passed, counts->failed, counts->skipped);
    return counts->failed ? EXIT_FAILED_CHECK : EXIT_OK;
}

/* Ratios of a busy machine are no verdict: say so. */
static void warn_of_load(void)
{
    double load;
    if (getloadavg(&load, 1) == 1)
        printf("load of the last minute: %.1f%s\n\n", load,
            load > 0.5 ? "; other work disturbs these figures" : "");
}

struct peers_options {
    const char *only;
    int64_t rounds;
};

static const struct option option_table[] = {
    {.name = "only",
        .kind = OPTION_TEXT,
        .at = offsetof(struct peers_options, only),
        .argument = "NAME[,NAME]...",
        .help = "only bars whose name contains one of these"},
    {.name = "rounds",
        .kind = OPTION_COUNT,
        .at = offsetof(struct peers_options, rounds),
        .fallback = "9",
        .low = 5,
        .high = MOST_ROUNDS,
        .help = "samples of each side of a bar"},
};

int main(int argc, char **argv)
{
    struct peers_options chosen;
    const struct option_group option_groups[] = {
        {"Measuring", option_table, sizeof option_table / sizeof *option_table, &chosen}};
    const struct program program = {.name = "peers",
        .summary = "our kernels against other libraries', with pass or FAIL per bar",
        .exit_codes = "  0    every bar passed\n"
                      "  1    a bar failed\n"
                      "  2    bad option\n"
                      "  3    a library is missing, or other environment\n",
        .groups = option_groups,
        .group_count = 1};
    struct options *options;
    int status = options_parse(&options, &program, argc, argv);
    if (status >= 0)
        return status;
    /* Shared with the children, who count. */
    struct peers peers = {.counts = mmap(NULL, sizeof *peers.counts, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    peers.cpu_count = first_cpus(peers.cpus);
    status = EXIT_ENVIRONMENT;
    if (peers.counts != MAP_FAILED && peers.cpu_count && options_next(options)) {
        peers.only = chosen.only;
        peers.rounds = chosen.rounds;
        warn_of_load();
        status = run_groups(&peers);
    }
    options_free(options);
    return status;
}
