/* The threads that run kernels: every part once, never more threads than tokens, and a second
 * thread that is worth having. */
#include <sched.h>
#include <stdatomic.h>
#include "probe/host.h"
#include "tests/device_case.h"

/* ---- parts ----------------------------------------------------------------------------------- */

enum { MOST_PARTS = 300 };

struct parts_case {
    int parts;
    atomic_int calls[MOST_PARTS];
    atomic_int wrong;
};

static void count_part(void *context, int index, int parts)
{
    struct parts_case *it = context;
    if (parts != it->parts || index < 0 || index >= parts)
        atomic_fetch_add(&it->wrong, 1);
    else
        atomic_fetch_add(&it->calls[index], 1);
}

static void run_parts(void *context, const struct dev_team *team)
{
    struct parts_case *it = context;
    if (team_size(team) < 1)
        atomic_fetch_add(&it->wrong, 1);
    team_run(team, it->parts, count_part, it);
}

static bool each_once(struct parts_case *it)
{
    bool once = !atomic_load(&it->wrong);
    for (int i = 0; i < MOST_PARTS; i++)
        once &= atomic_load(&it->calls[i]) == (i < it->parts);
    return once;
}

static void test_parts(void)
{
    int wrong = 0;
    for (int threads = 1; threads <= 4; threads++) {
        struct dev_pool *pool = dev_pool_create(threads);
        wrong += dev_pool_threads(pool) != threads;
        for (int parts = 0; parts <= MOST_PARTS; parts += parts < 12 ? 1 : 41) {
            for (int width = 1; width <= 5; width++) {
                struct parts_case it = {.parts = parts};
                dev_pool_run(pool, width, run_parts, &it);
                wrong += !each_once(&it);
            }
        }
        dev_pool_free(pool);
    }
    tap_ok(wrong == 0, "every part runs once, whatever the width");
    struct parts_case it = {.parts = 7};
    run_parts(&it, NULL);
    tap_ok(each_once(&it) && team_size(NULL) == 1, "no team: one after the other");
    tap_ok(!dev_pool_create(0), "a pool has at least one thread");
}

/* A part that is itself cut into parts. */
static void nest(void *context, const struct dev_team *team)
{
    atomic_int *total = context;
    struct parts_case inner = {.parts = 5};
    for (int i = 0; i < 200; i++) {
        run_parts(&inner, team);
        atomic_fetch_add(total, 1);
    }
    for (int i = 0; i < 5; i++)
        atomic_fetch_add(total, atomic_load(&inner.calls[i]));
}

static void test_many_small_runs(void)
{
    struct dev_pool *pool = dev_pool_create(3);
    atomic_int total = 0;
    dev_pool_run(pool, 3, nest, &total);
    tap_ok(atomic_load(&total) == 1200, "200 runs in a row lose nothing");
    dev_pool_free(pool);
}

/* ---- at most `threads` at a time ------------------------------------------------------------- */

enum { RANKS = 4, STREAMS = 3, LAUNCHES = 25 };

struct context_args {
    void *context;
};

/* What every rank launches many times on all streams. */
struct launches {
    const struct kernel *kernel;
    struct context_args args;
};

static int launch_many(struct rank *rank, void *context)
{
    static const char *const names[STREAMS] = {"a", "b", "c"};
    const struct launches *it = context;
    for (int i = 0; i < LAUNCHES; i++) {
        for (int s = 0; s < STREAMS; s++)
            dev_launch(dev_stream(rank->dev, names[s]), it->kernel, &it->args, sizeof it->args);
    }
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1;
}

struct crowd {
    atomic_int inside, most, runs;
};

static void crowd_part(void *context, int index, int parts)
{
    struct crowd *crowd = context;
    int inside = atomic_fetch_add(&crowd->inside, 1) + 1;
    int most = atomic_load(&crowd->most);
    while (inside > most && !atomic_compare_exchange_weak(&crowd->most, &most, inside))
        continue;
    if (index % 2 == 0)
        sleep_s(20e-6 * parts);
    atomic_fetch_sub(&crowd->inside, 1);
    atomic_fetch_add(&crowd->runs, 1);
}

static void crowd_cpu(const void *args, const struct dev_team *team)
{
    const struct context_args *it = args;
    team_run(team, 4, crowd_part, it->context);
}

static const struct kernel crowd_kernel = {.name = "crowd", .cpu = crowd_cpu};

static void test_tokens(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        struct crowd crowd = {0};
        struct launches launches = {&crowd_kernel, {&crowd}};
        struct ranks_failure failure;
        struct ranks_config config = {.count = RANKS};
        config.device.pool = dev_pool_create(threads);
        config.device.kernel_threads = 2;
        int result = ranks_run(&config, launch_many, &launches, &failure);
        tap_ok(result == 0 && atomic_load(&crowd.runs) == RANKS * STREAMS * LAUNCHES * 4,
            "%d threads serve all streams of all ranks", threads);
        tap_ok(atomic_load(&crowd.most) == threads,
            "and %d kernels' threads ran at one time, of %d allowed", atomic_load(&crowd.most),
            threads);
        dev_pool_free(config.device.pool);
    }
}

static int report_width(struct rank *rank, void *context)
{
    if (rank->index == 0)
        *(int *)context = dev_config(rank->dev)->kernel_threads;
    return 0;
}

static void test_shares(void)
{
    struct ranks_failure failure;
    struct ranks_config config = {.count = 2};
    int width = 0;
    config.device.pool = dev_pool_create(4);
    ranks_run(&config, report_width, &width, &failure);
    tap_ok(width == 2, "two ranks share four threads: %d each", width);
    config.count = 8;
    ranks_run(&config, report_width, &width, &failure);
    tap_ok(width == 1, "eight ranks: one each");
    config.device.kernel_threads = 3;
    ranks_run(&config, report_width, &width, &failure);
    tap_ok(width == 3, "a width that is given is kept");
    dev_pool_free(config.device.pool);
}

/* ---- places ---------------------------------------------------------------------------------- */

enum { MOST_CORES = 1024 };

/* What threads that run kernels saw of themselves. */
struct places {
    cpu_set_t all;
    atomic_int users[MOST_CORES];
    atomic_int shared, loose;
    atomic_int runs;
};

/* Held to one core, which no other kernel's thread is on. */
static void place_part(void *context, int index, int parts)
{
    struct places *places = context;
    cpu_set_t mine;
    (void)parts;
    if (sched_getaffinity(0, sizeof mine, &mine) || CPU_COUNT(&mine) != 1) {
        atomic_fetch_add(&places->loose, 1);
    } else {
        int core = sched_getcpu();
        if (atomic_fetch_add(&places->users[core], 1))
            atomic_fetch_add(&places->shared, 1);
        sleep_s(10e-6 * (index % 5));
        atomic_fetch_sub(&places->users[core], 1);
    }
    atomic_fetch_add(&places->runs, 1);
}

static void place_cpu(const void *args, const struct dev_team *team)
{
    const struct context_args *it = args;
    team_run(team, 5, place_part, it->context);
}

static void see_place_outside(void *context)
{
    struct places *places = context;
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof mine, &mine) || !CPU_EQUAL(&mine, &places->all))
        atomic_fetch_add(&places->loose, 1);
}

static void run_place(void *context, const struct dev_team *team)
{
    team_run(team, 5, place_part, context);
}

/* A token for each core: tokens are cores. */
static void test_places(void)
{
    static struct places places;
    if (sched_getaffinity(0, sizeof places.all, &places.all) || host_cpus() < 2 ||
        CPU_COUNT(&places.all) != host_cpus()) {
        tap_skip("one core, or a part of some", "a kernel has a core to itself");
        return;
    }
    static const struct kernel kernel = {.name = "place", .cpu = place_cpu};
    struct launches launches = {&kernel, {&places}};
    struct ranks_failure failure;
    struct ranks_config config = {.count = RANKS};
    config.device.pool = dev_pool_create(host_cpus());
    config.device.kernel_threads = 2;
    int result = ranks_run(&config, launch_many, &launches, &failure);
    for (int i = 0; i < 50; i++)
        dev_pool_run(config.device.pool, host_cpus(), run_place, &places);
    int loose = atomic_load(&places.loose), shared = atomic_load(&places.shared);
    tap_ok(result == 0 && !loose && !shared &&
               atomic_load(&places.runs) == RANKS * STREAMS * LAUNCHES * 5 + 50 * 5,
        "with a token for each core a kernel's threads have a core each: %d shared, %d anywhere",
        shared, loose);
    see_place_outside(&places);
    tap_ok(!atomic_load(&places.loose), "and may run anywhere when it is over");
    dev_pool_free(config.device.pool);
    config.device.pool = dev_pool_create(host_cpus() + 1);
    atomic_store(&places.loose, 0);
    atomic_store(&places.runs, 0);
    dev_pool_run(config.device.pool, 1, run_place, &places);
    tap_ok(atomic_load(&places.loose) == 5 && atomic_load(&places.runs) == 5,
        "where tokens and cores differ in number, the system places the threads");
    dev_pool_free(config.device.pool);
}

/* ---- a second thread is worth having --------------------------------------------------------- */

enum { SPIN_PARTS = 16 };

/* Pure arithmetic: about `rounds` times a dozen cycles. */
struct spin {
    int64_t rounds;
    double best_s;                    /* of one run */
    uint64_t results[SPIN_PARTS * 8]; /* a cache line each */
};

static void spin_part(void *context, int index, int parts)
{
    struct spin *spin = context;
    uint64_t state = (uint64_t)index;
    for (int64_t i = 0; i < spin->rounds / parts; i++)
        next_random(&state);
    spin->results[index * 8] = state;
}

static void spin_body(void *context, const struct dev_team *team)
{
    struct spin *spin = context;
    for (int i = 0; i < 10; i++) {
        double begin_s = timing_now_s();
        team_run(team, SPIN_PARTS, spin_part, spin);
        double seconds = timing_now_s() - begin_s;
        spin->best_s = seconds < spin->best_s ? seconds : spin->best_s;
    }
}

static void test_scaling(void)
{
    if (host_cpus() < 2) {
        tap_skip("one core", "a second thread speeds up short kernels");
        return;
    }
    struct dev_pool *pool = dev_pool_create(2);
    /* The best of many: others may use the cores. */
    struct spin one = {.rounds = 200000, .best_s = 1e9}, two = one;
    double give_up_s = timing_now_s() + 4;
    while (one.best_s / two.best_s < 1.8 && timing_now_s() < give_up_s) {
        dev_pool_run(pool, 1, spin_body, &one);
        dev_pool_run(pool, 2, spin_body, &two);
    }
    double ratio = one.best_s / two.best_s, load = 0;
    if (ratio <= 1.5 && getloadavg(&load, 1) == 1 && load > 2 * host_cpus())
        tap_skip("the cores are busy with other work", "a second thread speeds up short kernels");
    else
        tap_ok(ratio > 1.5, "two threads run a kernel of %.0f us %.2f times as fast",
            one.best_s * 1e6, ratio);
    dev_pool_free(pool);
}

int main(void)
{
    test_parts();
    test_many_small_runs();
    test_tokens();
    test_shares();
    test_places();
    test_scaling();
    return tap_done();
}
