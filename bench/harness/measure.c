/* The measuring loop. One message per repetition carries a rank's time and whether it has seen an
 * interrupt; it travels outside the clock. */
#include "bench/harness/measure.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/interrupt.h"
#include "bench/harness/job.h"

struct report_of_rank {
    double time_s;
    double machine_s[DEV_MACHINES_MAX]; /* of a simulated device */
    int64_t interrupted;
};

static int machines_of(const struct rank *rank)
{
    return dev_is_simulated(rank->dev) ? dev_config(rank->dev)->machines : 0;
}

/* The time since `time_s`, in its place: from zeros first the clocks, then how far they went on. */
static void read_machines(const struct rank *rank, double *time_s)
{
    for (int m = 0; m < machines_of(rank); m++)
        time_s[m] = dev_clock_on_s(rank->dev, m) - time_s[m];
}

static int run_once(
    const struct rank *rank, const struct measure_body *body, struct report_of_rank *mine)
{
    if (body->prepare && body->prepare(body->context))
        return -1;
    if (dev_sync(rank->dev) != DEV_OK || comm_barrier(rank->comm))
        return -1;
    double start_s = dev_clock_s(rank->dev);
    read_machines(rank, mine->machine_s);
    if (body->body(body->context) || dev_sync(rank->dev) != DEV_OK)
        return -1;
    mine->time_s = dev_clock_s(rank->dev) - start_s;
    read_machines(rank, mine->machine_s);
    return body->finish ? body->finish(body->context) : 0;
}

static void slowest_of(
    const struct report_of_rank *all, int count, double *time_s, bool *interrupted)
{
    *time_s = all[0].time_s;
    *interrupted = false;
    for (int i = 0; i < count; i++) {
        *time_s = all[i].time_s > *time_s ? all[i].time_s : *time_s;
        *interrupted |= all[i].interrupted != 0;
    }
}

static void note_machines(
    const struct rank *rank, const struct report_of_rank *all, struct case_result *result)
{
    if (rank->index || !result)
        return;
    result->machines = machines_of(rank);
    for (int m = 0; m < result->machines; m++) {
        result->machine_s[m] = all[0].machine_s[m];
        for (int r = 1; r < rank->count; r++)
            if (all[r].machine_s[m] > result->machine_s[m])
                result->machine_s[m] = all[r].machine_s[m];
    }
}

static int repeat(const struct rank *rank, const struct measure_body *body, struct timing *slowest,
    struct timing *own, struct report_of_rank *all)
{
    bool interrupted = false;
    while (timing_more(slowest) && !(interrupted && slowest->count)) {
        struct report_of_rank mine = {0};
        double time_s;
        if (run_once(rank, body, &mine))
            return -1;
        mine.interrupted = interrupt_seen();
        if (comm_host_all_gather(rank->comm, &mine, all, sizeof mine))
            return -1;
        slowest_of(all, rank->count, &time_s, &interrupted);
        note_machines(rank, all, body->machines);
        timing_add(slowest, time_s);
        timing_add(own, mine.time_s);
    }
    return 0;
}

int measure_ranks(const struct rank *rank, const struct timing_protocol *protocol,
    const struct measure_body *body, struct timing *slowest, double *own_median_s)
{
    struct timing own;
    struct timing_summary summary;
    struct report_of_rank *all = malloc((size_t)rank->count * sizeof *all);
    int status = -1;
    if (timing_init(slowest, protocol)) {
        free(all);
        return -1;
    }
    if (all && !timing_init(&own, protocol)) {
        status = repeat(rank, body, slowest, &own, all);
        if (!status) {
            timing_summarise(own.samples_s, own.count, &summary);
            *own_median_s = summary.median_s;
            if (body->machines)
                status = job_gather_samples(rank, &own, body->machines);
        }
        timing_free(&own);
    }
    if (status) {
        timing_free(slowest);
        memset(slowest, 0, sizeof *slowest);
    }
    free(all);
    return status;
}

/* ---- forward and backward ------------------------------------------------------------------- */

struct timed_passes {
    const struct measure_passes *passes;
    enum measure_timed timed;
};

static int before_clock(void *context)
{
    const struct timed_passes *t = context;
    const struct measure_passes *p = t->passes;
    if (p->prepare && p->prepare(p->context))
        return -1;
    return t->timed == TIME_BACKWARD ? p->forward(p->context) : 0;
}

static int on_clock(void *context)
{
    const struct timed_passes *t = context;
    const struct measure_passes *p = t->passes;
    if (t->timed != TIME_BACKWARD && p->forward(p->context))
        return -1;
    return t->timed == TIME_FORWARD ? 0 : p->backward(p->context);
}

static int after_clock(void *context)
{
    const struct measure_passes *p = ((const struct timed_passes *)context)->passes;
    return p->finish(p->context);
}

int measure_passes(const struct rank *rank, enum measure_timed timed,
    const struct timing_protocol *protocol, const struct measure_passes *passes,
    struct case_result *result)
{
    struct timed_passes t = {passes, timed};
    struct measure_body body = {.prepare = before_clock,
        .body = on_clock,
        .finish = after_clock,
        .context = &t,
        .machines = result};
    struct timing slowest;
    if (timed == TIME_NOTHING)
        return 0;
    int status = measure_ranks(rank, protocol, &body, &slowest, &result->ranks[rank->index].time_s);
    if (status == 0 && rank->index == 0)
        result->time = slowest;
    else
        timing_free(&slowest);
    return status;
}
