/* The measuring loop over ranks: the slowest rank's time is the sample, all ranks take the same
 * decisions, and a rank that gives up ends the others. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "bench/harness/measure.h"
#include "tests/tap.h"

#define RANKS 3

struct shared {
    struct timing_protocol protocol;
    int fail_rank, fail_at; /* this rank's body gives up in that call; -1 = none */
    /* by rank */
    int prepared[RANKS], ran[RANKS], finished[RANKS], status[RANKS];
    double own_median_s[RANKS];
    struct timing slowest[RANKS];
};

struct part {
    struct shared *shared;
    int rank;
};

static int prepare(void *context)
{
    struct part *part = context;
    part->shared->prepared[part->rank]++;
    return 0;
}

/* Rank r sleeps r * 3 ms and a bit. */
static int body(void *context)
{
    struct part *part = context;
    struct timespec pause = {0, 1000000 + 3000000L * part->rank};
    int call = part->shared->ran[part->rank]++;
    if (part->rank == part->shared->fail_rank && call == part->shared->fail_at)
        return -1;
    nanosleep(&pause, NULL);
    return 0;
}

static int finish(void *context)
{
    struct part *part = context;
    part->shared->finished[part->rank]++;
    return 0;
}

static int run_rank(struct rank *rank, void *context)
{
    struct shared *shared = context;
    struct part part = {shared, rank->index};
    struct measure_body measured = {
        .prepare = prepare, .body = body, .finish = finish, .context = &part};
    shared->status[rank->index] = measure_ranks(rank, &shared->protocol, &measured,
        &shared->slowest[rank->index], &shared->own_median_s[rank->index]);
    return shared->status[rank->index];
}

static int run(struct shared *shared, struct ranks_failure *failure)
{
    struct dev_pool *pool = dev_pool_create(1);
    struct ranks_config config = {.count = RANKS,
        .device = {.kind = DEV_CPU, .kernel_threads = 1, .pool = pool},
        .timeout_s = 10};
    int status = ranks_run(&config, run_rank, shared, failure);
    dev_pool_free(pool);
    return status;
}

static void release(struct shared *shared)
{
    for (int i = 0; i < RANKS; i++)
        timing_free(&shared->slowest[i]);
}

static void test_samples(void)
{
    struct ranks_failure failure;
    struct shared shared = {.fail_rank = -1};
    shared.protocol = timing_default();
    shared.protocol.warmup = 2;
    shared.protocol.min_samples = shared.protocol.max_samples = 5;
    tap_ok(!run(&shared, &failure), "three ranks are measured");
    bool same = true, all_slow = true;
    for (int i = 0; i < RANKS; i++) {
        const struct timing *t = &shared.slowest[i];
        same &= t->count == 5 && shared.slowest[0].count == 5 &&
                !memcmp(t->samples_s, shared.slowest[0].samples_s, 5 * sizeof(double));
        for (int s = 0; s < t->count; s++)
            all_slow &= t->samples_s[s] >= 0.007;
        tap_ok(shared.ran[i] == 7 && shared.prepared[i] == 7 && shared.finished[i] == 7,
            "rank %d: every repetition, 2 for warm-up, is prepared, run and finished", i);
    }
    tap_ok(same, "all ranks hold the same 5 samples");
    tap_ok(all_slow, "a sample is the slowest rank's time");
    tap_ok(shared.own_median_s[0] >= 0.001 && shared.own_median_s[2] >= 0.007 &&
               shared.own_median_s[0] < shared.own_median_s[2],
        "each rank has the median of its own times (%.4f, %.4f s)", shared.own_median_s[0],
        shared.own_median_s[2]);
    release(&shared);
}

static void test_failure(void)
{
    struct ranks_failure failure;
    struct shared shared = {.fail_rank = 1, .fail_at = 3};
    shared.protocol = timing_default();
    shared.protocol.max_samples = shared.protocol.min_samples = 50;
    tap_ok(run(&shared, &failure), "a rank that gives up fails the run");
    tap_ok(shared.status[0] && shared.status[1] && shared.status[2], "and every rank returns");
    tap_ok(shared.ran[0] <= 5 && shared.ran[2] <= 5, "without another fifty repetitions");
    tap_ok(!shared.slowest[0].samples_s && !shared.slowest[0].count, "no samples are left");
    release(&shared);
}

int main(void)
{
    test_samples();
    test_failure();
    return tap_done();
}
