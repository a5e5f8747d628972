/* Faults planted into the schedules of dispatch must be caught, and a replay must give the same
 * bits however ranks and streams are delayed.
 *
 * The faults are planted from outside: the linker sends the calls named below through this file
 * (--wrap), so the schedules hold no hook. What a wrapped call does depends on which fault is
 * planted, and wrapped calls take no context: that is the one reason for the state in `planted`. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/rank_sum.h"
#include "ops/moe_route.h"
#include "tests/moe_schedule_case.h"
#include "tests/tap.h"

enum fault {
    NONE,
    X_SLOT_EARLY,    /* X rows of chunk i + 2 do not wait until chunk i is computed */
    OUTPUTS_EARLY,   /* outputs of chunk i + 2 do not wait until those of chunk i have left */
    GRADIENTS_EARLY, /* nor do dY rows until the dX rows have left */
    HOME_EARLY,      /* rows leave for home before they are computed */
    ROUTES_SWAPPED,  /* the replay sends two routes of an expert in each other's place */
    ROUTES_MISTAKEN, /* the same, and their rows come home to each other's token */
    ADDED_TWICE,     /* a helper's gradient */
    ONE_BYTE,        /* more in a slot */
    DELAYS           /* no fault: streams sleep at random */
};

static struct {
    enum fault fault;
    atomic_int indexed; /* calls of moe_layout_index */
    int ranks;
    atomic_int times; /* the fault took place */
    atomic_uint random;
} planted;

static void plant(enum fault fault, int ranks)
{
    planted.fault = fault;
    planted.ranks = ranks;
    atomic_store(&planted.indexed, 0);
    atomic_store(&planted.times, 0);
}

/* ---- wrapped calls ----------------------------------------------------------------------------
 */

void __real_dev_wait(struct stream *stream, struct event event);
void __wrap_dev_wait(struct stream *stream, struct event event);
void *__real_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label);
void *__wrap_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label);
int __real_moe_layout_index(
    const struct moe_layout *layout, int rank, const int32_t *idx, const struct moe_index *index);
int __wrap_moe_layout_index(
    const struct moe_layout *layout, int rank, const int32_t *idx, const struct moe_index *index);
void __real_add_f32(struct stream *stream, float *to, const float *from, int64_t count);
void __wrap_add_f32(struct stream *stream, float *to, const float *from, int64_t count);
void __real_comm_exchange(struct comm *comm, struct stream *stream, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives);
void __wrap_comm_exchange(struct comm *comm, struct stream *stream, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives);

void __wrap_dev_wait(struct stream *stream, struct event event)
{
    struct device *dev = stream_device(stream);
    struct stream *main = dev_main_stream(dev), *dispatch = dev_stream(dev, "dispatch");
    struct stream *combine = dev_stream(dev, "combine");
    bool skipped =
        (planted.fault == X_SLOT_EARLY && stream == dispatch && event.stream == main) ||
        (planted.fault == OUTPUTS_EARLY && stream == main && event.stream == combine) ||
        (planted.fault == GRADIENTS_EARLY && stream == dispatch && event.stream == combine) ||
        (planted.fault == HOME_EARLY && stream == combine && event.stream == main);
    if (skipped)
        atomic_fetch_add(&planted.times, 1);
    else
        __real_dev_wait(stream, event);
}

void *__wrap_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label)
{
    bool more = planted.fault == ONE_BYTE && !strcmp(label, "received rows");
    if (more)
        atomic_fetch_add(&planted.times, 1);
    return __real_dev_alloc(dev, bytes + more, set, label);
}

static void swap(int32_t *a, int32_t *b)
{
    int32_t kept = *a;
    *a = *b;
    *b = kept;
}

/* The first two routes that a rank sends to one place in its first chunk. */
static void swap_routes(const struct moe_layout *layout, int rank, const struct moe_index *index)
{
    int64_t row = 0, place = 0;
    while (place < layout->place_count && moe_layout_count(layout, rank, 0, place) < 2)
        row += moe_layout_count(layout, rank, 0, place++);
    if (place == layout->place_count)
        return;
    atomic_fetch_add(&planted.times, 1);
    swap(&index->token[row], &index->token[row + 1]);
    swap(&index->route[row], &index->route[row + 1]);
    if (planted.fault == ROUTES_MISTAKEN)
        return;
    int64_t tokens = moe_chunk_tokens(&layout->partition, layout->tokens[rank], 0);
    for (int64_t i = 0; i < tokens * layout->topk; i++) {
        int32_t *position = &index->position[i];
        if (*position == row || *position == row + 1)
            *position = (int32_t)(2 * row + 1 - *position);
    }
}

int __wrap_moe_layout_index(
    const struct moe_layout *layout, int rank, const int32_t *idx, const struct moe_index *index)
{
    int status = __real_moe_layout_index(layout, rank, idx, index);
    bool replay = atomic_fetch_add(&planted.indexed, 1) >= planted.ranks;
    if (status == 0 && replay && rank == 0 &&
        (planted.fault == ROUTES_SWAPPED || planted.fault == ROUTES_MISTAKEN))
        swap_routes(layout, rank, index);
    return status;
}

void __wrap_add_f32(struct stream *stream, float *to, const float *from, int64_t count)
{
    __real_add_f32(stream, to, from, count);
    if (planted.fault == ADDED_TWICE) {
        atomic_fetch_add(&planted.times, 1);
        __real_add_f32(stream, to, from, count);
    }
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

void __wrap_comm_exchange(struct comm *comm, struct stream *stream, const char *label,
    const struct comm_part *send, int sends, const struct comm_part *receive, int receives)
{
    unsigned random = atomic_fetch_add(&planted.random, 0x9e3779b9u) * 0x85ebca6bu >> 16;
    if (planted.fault == DELAYS && random % 3 == 0) {
        struct timespec time = {.tv_nsec = (long)(random % 700) * 1000};
        atomic_fetch_add(&planted.times, 1);
        dev_launch(stream, &kernel_sleep, &time, sizeof time);
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
static const struct moe_options options = {
    .chunk_count = 4, .alpha = 1.0, .lambda = 0, .min_gemm_tokens = 2};

static bool holds(const struct moe_impl *impl, char *why, int size)
{
    struct moe_case c;
    struct moe_case_run run = {.impl = impl, .options = options};
    bool good = !moe_case_init(&c, &shape, tokens, ROUTE_SKEWED, 6, 5) &&
                moe_case_holds(&c, &run, why, size);
    moe_case_free(&c);
    return good;
}

/* Without the fault all is well; with it the run must fail, for the reason that `says` is in. */
static void caught(
    enum fault fault, const struct moe_impl *impl, const char *says, const char *name)
{
    char clean[512] = "", why[512] = "";
    plant(NONE, shape.ranks);
    bool sound = holds(impl, clean, sizeof clean);
    plant(fault, shape.ranks);
    bool passed = holds(impl, why, sizeof why);
    int times = atomic_load(&planted.times);
    plant(NONE, shape.ranks);
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
    plant(DELAYS, shape.ranks);
    bool good = !moe_case_init(&c, &shape, tokens, ROUTE_SKEWED, 6, 5) &&
                !moe_case_reference(&c, impl, &options, &want, why, sizeof why) &&
                !moe_case_run(&c, &run, &got, why, sizeof why) && atomic_load(&planted.times) > 50;
    if (!good)
        tap_note("%s", why);
    tap_ok(good, "%s: 50 rounds with streams delayed %d times: the reference's bits each time",
        impl->name, atomic_load(&planted.times));
    plant(NONE, shape.ranks);
    moe_case_result_free(&want);
    moe_case_result_free(&got);
    moe_case_free(&c);
}

int main(void)
{
    const struct moe_impl *pipelined = &moe_pipelined_llep;
    caught(X_SLOT_EARLY, pipelined, "no event orders them", "a slot of X rows reused early");
    caught(OUTPUTS_EARLY, pipelined, "no event orders them", "a slot of outputs reused early");
    caught(GRADIENTS_EARLY, pipelined, "no event orders them", "a slot of dX rows reused early");
    caught(HOME_EARLY, pipelined, "no event orders them", "rows sent home before they are made");
    caught(ROUTES_SWAPPED, pipelined, "dW", "two routes swapped in the replay");
    caught(ROUTES_MISTAKEN, pipelined, "dX", "two routes that come home to each other's token");
    caught(ADDED_TWICE, pipelined, "dW", "a helper's gradient added twice");
    caught(ADDED_TWICE, &moe_llep, "dW", "a helper's gradient added twice");
    caught(ONE_BYTE, pipelined, "expected", "one byte more in a slot");
    caught(ONE_BYTE, &moe_llep, "expected", "one byte more in a slot");
    delayed(pipelined);
    delayed(&moe_llep);
    return tap_done();
}
