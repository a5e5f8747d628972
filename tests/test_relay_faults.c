/* Faults planted into the ring must be caught: a partition that visits a rank twice, a hop of
 * gradients or sums that is lost, buffers that are reused early. And however ranks and streams are
 * delayed, fifty rounds give the same bits, those of tutel and janus too.
 *
 * As in test_moe_faults the linker sends the calls named below through this file (--wrap), so the
 * schedules hold no hook; wrapped calls take no context, hence the state in `planted`. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "bench/harness/moe_check.h"
#include "ops/relay_order.h"
#include "ops/relay_plan.h"
#include "tests/moe_schedule_case.h"
#include "tests/tap.h"

enum fault {
    NONE,
    DOUBLE_VISIT,  /* hop 2 meets what hop 1 met, by the rule that plan and order follow */
    STALE_PAYLOAD, /* the same in the messages: what hop 1 held arrives again in place of the next
                    */
    LOST_SUMS,     /* of the second exchange the sums that follow one hop behind do not arrive */
    SLOT_EARLY,    /* a payload is sent on before the main stream says so */
    ARRIVAL_EARLY, /* what arrives is used before it is there */
    INDICES_EARLY, /* a piece's rows are gathered before their indices are there */
    ONE_BYTE,      /* more in a buffer of the ring */
    DELAYS         /* no fault: streams sleep at random */
};

static struct {
    enum fault fault;
    atomic_int times; /* the fault took place */
    atomic_uint random;
    atomic_int exchanges[8]; /* by rank */
} planted;

static void plant(enum fault fault)
{
    planted.fault = fault;
    atomic_store(&planted.times, 0);
    for (int r = 0; r < 8; r++)
        atomic_store(&planted.exchanges[r], 0);
}

/* ---- wrapped calls ----------------------------------------------------------------------------
 */

int __real_relay_held(int rank, int hop, int ranks);
int __wrap_relay_held(int rank, int hop, int ranks);
void __real_dev_wait(struct stream *stream, struct event event);
void __wrap_dev_wait(struct stream *stream, struct event event);
void __real_dev_wait_stream(struct stream *later, struct stream *earlier);
void __wrap_dev_wait_stream(struct stream *later, struct stream *earlier);
void *__real_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label);
void *__wrap_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label);
void __real_comm_exchange(struct comm *comm, struct stream *stream, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives);
void __wrap_comm_exchange(struct comm *comm, struct stream *stream, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives);

int __wrap_relay_held(int rank, int hop, int ranks)
{
    bool again = planted.fault == DOUBLE_VISIT && hop == 2;
    if (again)
        atomic_fetch_add(&planted.times, 1);
    return __real_relay_held(rank, again ? 1 : hop, ranks);
}

void __wrap_dev_wait(struct stream *stream, struct event event)
{
    struct device *dev = stream_device(stream); /* none after a failure */
    struct stream *main = dev ? dev_main_stream(dev) : NULL;
    bool skipped = dev && ((planted.fault == ARRIVAL_EARLY && stream == main &&
                               event.stream == dev_stream(dev, "ring")) ||
                              (planted.fault == INDICES_EARLY && stream == main &&
                                  event.stream == dev_stream(dev, "indices")));
    if (skipped)
        atomic_fetch_add(&planted.times, 1);
    else
        __real_dev_wait(stream, event);
}

void __wrap_dev_wait_stream(struct stream *later, struct stream *earlier)
{
    struct device *dev = stream_device(later);
    bool skipped = dev && planted.fault == SLOT_EARLY && later == dev_stream(dev, "ring") &&
                   atomic_fetch_add(&planted.exchanges[dev_config(dev)->rank], 1) > 0;
    if (skipped)
        atomic_fetch_add(&planted.times, 1);
    else
        __real_dev_wait_stream(later, earlier);
}

void *__wrap_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label)
{
    bool more = planted.fault == ONE_BYTE && set == LIVE_RING;
    if (more)
        atomic_fetch_add(&planted.times, 1);
    return __real_dev_alloc(dev, bytes + more, set, label);
}

static void sleep_cpu(const void *args, const struct dev_team *team)
{
    (void)team;
    const struct timespec *time = args;
    nanosleep(time, NULL);
}

static int sleep_access(const void *args, struct dev_access *ranges)
{
    (void)args;
    (void)ranges;
    return 0;
}

static const struct kernel kernel_sleep = {
    .name = "sleep", .cpu = sleep_cpu, .access = sleep_access};

/* The second exchange of backward: payload and what follows one hop behind. */
static bool is_second_of_backward(struct comm *comm, const char *label)
{
    return (strstr(label, "gradients behind") || strstr(label, "dX behind")) &&
           atomic_fetch_add(&planted.exchanges[comm_rank(comm)], 1) == 1;
}

void __wrap_comm_exchange(struct comm *comm, struct stream *stream, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives)
{
    unsigned random = atomic_fetch_add(&planted.random, 0x9e3779b9u) * 0x85ebca6bu >> 16;
    if (planted.fault == DELAYS && random % 3 == 0) {
        struct timespec time = {.tv_nsec = (long)(random % 700) * 1000};
        atomic_fetch_add(&planted.times, 1);
        dev_launch(stream, &kernel_sleep, &time, sizeof time);
    }
    if ((planted.fault == LOST_SUMS || planted.fault == STALE_PAYLOAD) &&
        is_second_of_backward(comm, label)) {
        atomic_fetch_add(&planted.times, 1);
        /* three of weights, three of gradients; or X, dY and w, then dX and dw */
        int half = 3;
        if (planted.fault == LOST_SUMS) {
            for (int i = half; i < sends; i++)
                dev_fill(stream, receive[i].data, 0, receive[i].bytes);
            __real_comm_exchange(comm, stream, label, send, half, receive, half);
            return;
        }
        for (int i = 0; i < half; i++)
            dev_copy_d2d(stream, receive[i].data, send[i].data, receive[i].bytes);
        __real_comm_exchange(
            comm, stream, label, send + half, sends - half, receive + half, receives - half);
        return;
    }
    __real_comm_exchange(comm, stream, label, send, sends, receive, receives);
}

/* ---- faults -----------------------------------------------------------------------------------
 */

static const int64_t tokens[4] = {13, 8, 0, 17};
static const struct moe_shape shape = {.ranks = 4,
    .hidden = 24,
    .ffn = 16,
    .experts = 8,
    .topk = 3,
    .dtype = DTYPE_F32,
    .activation = MOE_SWIGLU};
static const struct moe_options options = {.hop_rows = 6, .parts = 2, .credits = 2};

static bool holds(const struct moe_impl *impl, char *why, int size)
{
    struct moe_case c;
    struct moe_case_result got = {0}, want = {0};
    struct moe_case_run run = {.impl = impl, .options = options};
    bool good = !moe_case_init(&c, &shape, tokens, ROUTE_SKEWED, 6, 5) &&
                !moe_case_run(&c, &run, &got, why, size) &&
                !moe_case_reference(&c, impl, &options, &want, why, size) &&
                moe_case_equal(&c, &got, &want, false, why, size);
    moe_case_result_free(&got);
    moe_case_result_free(&want);
    moe_case_free(&c);
    return good;
}

/* Without the fault all is well; with it the run must fail, for the reason that `says` is in. */
static void caught(
    enum fault fault, const struct moe_impl *impl, const char *says, const char *name)
{
    char clean[512] = "", why[512] = "";
    plant(NONE);
    bool sound = holds(impl, clean, sizeof clean);
    plant(fault);
    bool passed = holds(impl, why, sizeof why);
    int times = atomic_load(&planted.times);
    plant(NONE);
    bool good = sound && !passed && times && strstr(why, says);
    if (!good)
        tap_note("without: %s; with (%d times): %s", clean, times, why);
    tap_ok(good, "%s: %s", impl->name, name);
}

/* ---- delays -----------------------------------------------------------------------------------
 */

static bool same_as_first(
    const struct moe_case *c, const struct moe_case_result *result, int round, void *context)
{
    char why[256];
    (void)round;
    return moe_case_equal(c, result, context, false, why, sizeof why);
}

static void delayed(const struct moe_impl *impl)
{
    struct moe_case c;
    struct moe_case_result want = {0}, got = {0};
    char why[512] = "";
    struct moe_case_run run = {.impl = impl,
        .options = options,
        .rounds = 50,
        .no_order_check = true,
        .each = same_as_first,
        .context = &want};
    plant(DELAYS);
    bool good = !moe_case_init(&c, &shape, tokens, ROUTE_SKEWED, 6, 5) &&
                !moe_case_reference(&c, impl, &options, &want, why, sizeof why) &&
                !moe_case_run(&c, &run, &got, why, sizeof why) && atomic_load(&planted.times) > 50;
    if (!good)
        tap_note("%s", why);
    tap_ok(good, "%s: 50 rounds with streams delayed %d times: the reference's bits each time",
        impl->name, atomic_load(&planted.times));
    plant(NONE);
    moe_case_result_free(&want);
    moe_case_result_free(&got);
    moe_case_free(&c);
}

int main(void)
{
    const struct moe_impl *experts = &moe_relay_expert, *batches = &moe_relay_token;
    caught(DOUBLE_VISIT, experts, "is met twice", "a partition visits a rank twice");
    caught(DOUBLE_VISIT, batches, "expects", "a batch visits a rank twice");
    caught(STALE_PAYLOAD, experts, "dX", "the partition of the hop before arrives again");
    caught(LOST_SUMS, experts, "dW", "a hop of gradients is lost");
    caught(LOST_SUMS, batches, "dX", "a hop of sums is lost");
    caught(SLOT_EARLY, experts, "no event orders them", "a buffer of the ring reused early");
    caught(SLOT_EARLY, batches, "no event orders them", "a buffer of the ring reused early");
    caught(ARRIVAL_EARLY, experts, "no event orders them", "experts used before they are there");
    caught(ARRIVAL_EARLY, batches, "no event orders them", "sums used before they are there");
    caught(INDICES_EARLY, experts, "no event orders them", "rows gathered before their indices");
    caught(ONE_BYTE, experts, "expected", "one byte more in a buffer");
    caught(ONE_BYTE, batches, "expected", "one byte more in a buffer");
    delayed(experts);
    delayed(batches);
    delayed(&moe_tutel);
    delayed(&moe_janus);
    return tap_done();
}
