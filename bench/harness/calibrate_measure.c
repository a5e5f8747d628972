/* Measuring the cpu device for a profile.
 *
 * Every rank does the same work at the same time, on its own device with its share of the threads,
 * enqueued as a schedule enqueues it. A sample repeats it until SAMPLE_S is full; of the rounds
 * each rank's least counts, since what else runs on the machine only ever slows. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "bench/harness/calibrate.h"
#include "device/comm.h"
#include "kernels/adamw.h"
#include "kernels/rank_sum.h"
#include "ops/adamw.h"
#include "probe/timing.h"

#define SAMPLE_S 4e-3
#define MOST_REPEATS 2000
#define BLOCK_BYTES ((int64_t)32 << 20) /* with its partner beyond a share of the last cache */
#define CACHED_BYTES ((int64_t)256 << 10)
#define MESSAGE_BYTES ((int64_t)2 << 20)
#define SMALL_BYTES 64
#define SIDE 512     /* of a matrix product, where it is not short */
#define FILLING 0x3c /* every float and every BF16 number is about 0.0115 */

struct bench {
    struct rank *rank;
    struct stream *main, *second;
    char *one, *two, *three;   /* on the device */
    char *host_one, *host_two; /* pinned */
    int64_t rounds;
};

/* Enqueues the work once; `turn` counts the repetitions. */
typedef void work_function(const struct bench *bench, const void *work, int64_t turn);

/* ---- samples --------------------------------------------------------------------------------- */

static double run_s(
    const struct bench *bench, work_function *function, const void *work, int64_t repeats)
{
    comm_barrier(bench->rank->comm);
    double begin_s = timing_now_s();
    for (int64_t i = 0; i < repeats; i++)
        function(bench, work, i);
    dev_sync(bench->rank->dev);
    return (timing_now_s() - begin_s) / (double)repeats;
}

/* The largest over the ranks; infinity after a failure, which the caller sees. */
static double slowest(const struct bench *bench, double own_s)
{
    double all_s[CALIBRATE_RANKS_MAX], largest_s = 0;
    if (comm_host_all_gather(bench->rank->comm, &own_s, all_s, sizeof own_s))
        return INFINITY;
    for (int r = 0; r < bench->rank->count; r++)
        largest_s = fmax(largest_s, all_s[r]);
    return largest_s;
}

/* Seconds of the work once; the same on every rank. */
static double time_s(const struct bench *bench, work_function *function, const void *work)
{
    double samples_s[CALIBRATE_ROUNDS_MAX];
    struct timing_summary summary;
    run_s(bench, function, work, 1);
    double once_s = slowest(bench, run_s(bench, function, work, 1));
    int64_t repeats = (int64_t)fmin(MOST_REPEATS, ceil(SAMPLE_S / fmax(once_s, 1e-9)));
    for (int64_t i = 0; i < bench->rounds; i++)
        samples_s[i] = slowest(bench, run_s(bench, function, work, repeats));
    timing_summarise(samples_s, (int)bench->rounds, &summary);
    return summary.min_s;
}

/* ---- work ------------------------------------------------------------------------------------ */

static void add(const struct bench *bench, const void *work, int64_t turn)
{
    (void)turn;
    const int64_t *bytes = work;
    add_f32(bench->main, (float *)bench->one, (const float *)bench->two,
        *bytes / (int64_t)sizeof(float));
}

/* One kernel on each of two streams, each after the other's. */
static void hand_over(const struct bench *bench, const void *work, int64_t turn)
{
    (void)turn;
    (void)work;
    add_f32(bench->main, (float *)bench->one, (const float *)bench->two, 16);
    dev_wait_stream(bench->second, bench->main);
    add_f32(bench->second, (float *)bench->one, (const float *)bench->two, 16);
    dev_wait_stream(bench->main, bench->second);
}

static void copy(const struct bench *bench, const void *work, int64_t turn)
{
    (void)turn;
    (void)work;
    dev_copy_d2d(bench->main, bench->one, bench->two, BLOCK_BYTES);
}

static void copy_up(const struct bench *bench, const void *work, int64_t turn)
{
    (void)turn;
    const int64_t *bytes = work;
    dev_copy_h2d(bench->main, bench->one, bench->host_one, *bytes);
}

static void copy_down(const struct bench *bench, const void *work, int64_t turn)
{
    (void)turn;
    const int64_t *bytes = work;
    dev_copy_d2h(bench->second, bench->host_two, bench->two, *bytes);
}

static void copy_both(const struct bench *bench, const void *work, int64_t turn)
{
    copy_up(bench, work, turn);
    copy_down(bench, work, turn);
}

/* `bytes` of a block, in every turn the next ones: a schedule finds no operand where the same
 * product left it in a cache. */
static char *turned(char *block, int64_t bytes, int64_t turn)
{
    return block + turn % (BLOCK_BYTES / bytes) * bytes;
}

struct product {
    struct calibrate_product size;
    enum dtype dtype;
    bool alone; /* on rank 0, the others idle */
};

static void product(const struct bench *bench, const void *work, int64_t turn)
{
    const struct product *product = work;
    const struct calibrate_product *p = &product->size;
    int64_t element_bytes = dtype_bytes(product->dtype);
    struct gemm_args args = {.layout = p->layout,
        .init = GEMM_FRESH,
        .a_type = product->dtype,
        .b_type = product->dtype,
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .a = turned(bench->one, p->m * p->k * element_bytes, turn),
        .lda = p->layout == GEMM_TN ? p->m : p->k,
        .b = turned(bench->two, p->k * p->n * element_bytes, turn),
        .ldb = p->layout == GEMM_NT ? p->k : p->n,
        .c = (float *)turned(bench->three, p->m * p->n * (int64_t)sizeof(float), turn),
        .ldc = p->n};
    if (!product->alone || bench->rank->index == 0)
        gemm(bench->main, &args);
}

static void adamw(const struct bench *bench, const void *work, int64_t turn)
{
    (void)turn;
    dev_launch_host(bench->main, &kernel_adamw, work, sizeof(struct adamw_args));
}

/* A message to the next rank; one_way: from the even ranks alone. */
static void send(const struct bench *bench, int64_t bytes, bool one_way)
{
    int self = bench->rank->index, count = bench->rank->count;
    struct comm_part to = {(self + 1) % count, bench->one, bytes};
    struct comm_part from = {(self + count - 1) % count, bench->three, bytes};
    bool sends = !one_way || (self % 2 == 0 && self + 1 < count);
    bool receives = !one_way || self % 2;
    comm_exchange(bench->rank->comm, bench->main, "calibrate", &to, sends, &from, receives);
}

static void ring_step(const struct bench *bench, const void *work, int64_t turn)
{
    (void)turn;
    const int64_t *bytes = work;
    send(bench, *bytes, false);
}

static void one_way(const struct bench *bench, const void *work, int64_t turn)
{
    (void)turn;
    const int64_t *bytes = work;
    send(bench, *bytes, true);
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Of the 10 sizes of each layout: all sides long, then each in turn 8, 32 and 128. */
static struct calibrate_product size_of(int index)
{
    struct calibrate_product p = {(enum gemm_layout)(index / 10), SIDE, SIDE, SIDE, 0};
    int64_t *const sides[] = {&p.m, &p.n, &p.k};
    int variant = index % 10 - 1;
    if (variant >= 0)
        *sides[variant / 3] = INT64_C(8) << 2 * (variant % 3);
    return p;
}

static void time_products(
    const struct bench *bench, enum dtype dtype, double launch_s, struct calibrate_product *out)
{
    for (int i = 0; i < CALIBRATE_PRODUCTS; i++) {
        struct product work = {size_of(i), dtype, false};
        double seconds = time_s(bench, product, &work);
        out[i] = work.size;
        out[i].seconds = seconds > 2 * launch_s ? seconds - launch_s : seconds / 2;
    }
}

static void time_memory(const struct bench *bench, struct calibrate_figures *out)
{
    int64_t tiny = SMALL_BYTES, cached = CACHED_BYTES, block = BLOCK_BYTES;
    out->launch_s = time_s(bench, add, &tiny);
    out->hand_off_s = time_s(bench, hand_over, NULL) / 2;
    out->memory_bytes_per_s = 3.0 * BLOCK_BYTES / time_s(bench, add, &block);
    out->cached_bytes_per_s = 3.0 * CACHED_BYTES / time_s(bench, add, &cached);
    out->copy_bytes_per_s = 2.0 * BLOCK_BYTES / time_s(bench, copy, NULL);
}

static void time_host_link(const struct bench *bench, struct calibrate_figures *out)
{
    int64_t tiny = SMALL_BYTES, block = BLOCK_BYTES;
    double up_s = time_s(bench, copy_up, &block), down_s = time_s(bench, copy_down, &block);
    out->host_link_latency_s =
        (time_s(bench, copy_up, &tiny) + time_s(bench, copy_down, &tiny)) / 2;
    out->h2d_bytes_per_s = BLOCK_BYTES / up_s;
    out->d2h_bytes_per_s = BLOCK_BYTES / down_s;
    out->host_link_both = time_s(bench, copy_both, &block) / fmax(up_s, down_s);
}

static void time_links(const struct bench *bench, struct calibrate_figures *out)
{
    int64_t tiny = SMALL_BYTES, message = MESSAGE_BYTES;
    if (bench->rank->count < 2)
        return;
    double tiny_s = time_s(bench, ring_step, &tiny), long_s = time_s(bench, ring_step, &message);
    out->link_latency_s = tiny_s > out->launch_s ? tiny_s - out->launch_s : 0;
    out->link_bytes_per_s = MESSAGE_BYTES / (long_s > 2 * tiny_s ? long_s - tiny_s : long_s);
    out->link_both = long_s / time_s(bench, one_way, &message);
}

/* AdamW over state that fills one pinned block. */
static void time_adamw(const struct bench *bench, struct calibrate_figures *out)
{
    const struct adamw_hyper hyper = {1e-3, 0.9, 0.95, 1e-8, 0.1};
    int64_t count = BLOCK_BYTES / 4 / (int64_t)sizeof(float);
    float *state = (float *)bench->host_one;
    struct adamw_args args = {.count = count,
        .p = state,
        .m = state + count,
        .v = state + 2 * count,
        .g = state + 3 * count,
        .g_type = DTYPE_F32,
        .w = (uint16_t *)bench->host_two,
        .constants = adamw_constants_at(&hyper, 100, 1)};
    out->adamw_params_per_s =
        (double)bench->rank->count * (double)count / time_s(bench, adamw, &args);
}

static void time_scaling(const struct bench *bench, struct calibrate_figures *out)
{
    struct product work = {{GEMM_NN, SIDE, SIDE, SIDE, 0}, DTYPE_F32, false};
    double together_s = time_s(bench, product, &work);
    work.alone = true;
    double alone_s = time_s(bench, product, &work);
    out->ranks_at_once = bench->rank->count * alone_s / together_s;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct measurement {
    const struct calibrate_config *config;
    struct calibrate_figures *out; /* rank 0's */
};

static bool take_blocks(struct bench *bench)
{
    struct device *dev = bench->rank->dev;
    char **const blocks[] = {&bench->one, &bench->two, &bench->three};
    char **const pinned[] = {&bench->host_one, &bench->host_two};
    for (int i = 0; i < 3; i++) {
        *blocks[i] = dev_alloc(dev, BLOCK_BYTES, LIVE_WORKSPACE, "calibrate");
        dev_fill(bench->main, *blocks[i], FILLING, BLOCK_BYTES);
    }
    for (int i = 0; i < 2; i++) {
        *pinned[i] = dev_host_alloc(dev, BLOCK_BYTES, LIVE_WORKSPACE, "calibrate");
        if (*pinned[i])
            memset(*pinned[i], FILLING, BLOCK_BYTES);
    }
    return dev_sync(dev) == DEV_OK;
}

static int run_rank(struct rank *rank, void *context)
{
    const struct measurement *measurement = context;
    struct calibrate_figures figures = {.launch_s = 0};
    struct bench bench = {.rank = rank,
        .main = dev_main_stream(rank->dev),
        .second = dev_stream(rank->dev, "second"),
        .rounds = measurement->config->rounds};
    if (!take_blocks(&bench))
        return -1;
    time_memory(&bench, &figures);
    time_products(&bench, DTYPE_F32, figures.launch_s, figures.f32);
    time_products(&bench, DTYPE_BF16, figures.launch_s, figures.bf16);
    time_scaling(&bench, &figures);
    time_host_link(&bench, &figures);
    time_links(&bench, &figures);
    time_adamw(&bench, &figures);
    if (rank->index == 0)
        *measurement->out = figures;
    return dev_sync(rank->dev) == DEV_OK ? 0 : -1; /* the blocks go with the device */
}

int calibrate_measure(
    const struct calibrate_config *config, struct calibrate_figures *out, char *error, int size)
{
    struct measurement measurement = {config, out};
    struct ranks_failure failure;
    struct ranks_config ranks = {.count = config->ranks, .timeout_s = 60};
    ranks.device.kind = DEV_CPU;
    ranks.device.pool = dev_pool_create(config->threads);
    if (!ranks.device.pool) {
        snprintf(error, (size_t)size, "no memory for %d threads", config->threads);
        return -1;
    }
    int status = ranks_run(&ranks, run_rank, &measurement, &failure);
    if (status)
        snprintf(error, (size_t)size, "rank %d: %s", failure.rank, failure.message);
    dev_pool_free(ranks.device.pool);
    return status;
}
