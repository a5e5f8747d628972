/* Sums in rank order, addition, rounding to BF16, and the scatter of sums over ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/rank_sum.h"
#include "tests/kernel_run.h"
#include "tests/tap.h"

enum { MOST_PARTS = 5, MOST_COUNT = 60000, STRIDE = MOST_COUNT + 5, WIDTHS = 3 };

/* Values of many magnitudes, so that another order of addition gives other bits. */
static float value_at(int64_t index)
{
    uint32_t bits = (uint32_t)index * 2654435761u;
    bits ^= bits >> 15;
    bits *= 2246822519u;
    return ldexpf((float)(int32_t)bits, -31 + (int)(bits % 29) - 14);
}

static int64_t differences(const float *found, const float *expected, int64_t count)
{
    int64_t faults = 0;
    for (int64_t i = 0; i < count; i++)
        faults += f32_bits(found[i]) != f32_bits(expected[i]);
    return faults;
}

struct buffers {
    float parts[MOST_PARTS * STRIDE], out[STRIDE], expected[STRIDE];
    uint16_t rounded[STRIDE];
};

static void fill(struct buffers *b)
{
    for (int64_t i = 0; i < MOST_PARTS * STRIDE; i++)
        b->parts[i] = value_at(i);
    b->parts[0] = -0.0f; /* alone it stays -0: the sum begins with part 0, not with +0 */
    for (int64_t i = 0; i < STRIDE; i++)
        b->out[i] = 7.0f;
}

static const int64_t counts[] = {0, 1, 3, 1023, 1024, 1025, 20000, MOST_COUNT};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* What `out` should hold: the sums ascending, and after them what it held before. Counts where the
 * descending sum differs. */
static int64_t expect_sum(struct buffers *b, int64_t count, int64_t parts, const float *out)
{
    int64_t order_shows = 0;
    for (int64_t i = 0; i < STRIDE; i++)
        b->expected[i] = out[i];
    for (int64_t i = 0; i < count; i++) {
        float sum = b->parts[i], descending = b->parts[(parts - 1) * STRIDE + i];
        for (int64_t p = 1; p < parts; p++) {
            sum = sum + b->parts[p * STRIDE + i];
            descending = descending + b->parts[(parts - 1 - p) * STRIDE + i];
        }
        b->expected[i] = sum;
        order_shows += sum != descending;
    }
    return order_shows;
}

static void test_sum(struct dev_pool *pool, struct buffers *b)
{
    int64_t faults = 0, order_shows = 0;
    for (int c = 0; c < COUNTS; c++)
        for (int64_t parts = 1; parts <= MOST_PARTS; parts++)
            for (int way = 0; way < 2 * WIDTHS; way++) {
                fill(b);
                float *out = way & 1 ? b->parts : b->out;
                struct rank_sum_args args = {b->parts, counts[c], STRIDE, parts, out};
                order_shows += expect_sum(b, counts[c], parts, out);
                kernel_run(pool, 1 + way / 2, &kernel_rank_sum, &args);
                faults += differences(out, b->expected, STRIDE);
            }
    tap_ok(!faults, "parts are added ascending, apart and into part 0");
    tap_ok(order_shows > 0, "the values tell the order apart");
}

static void test_add(struct dev_pool *pool, struct buffers *b)
{
    int64_t faults = 0;
    for (int c = 0; c < COUNTS; c++)
        for (int width = 1; width <= WIDTHS; width++) {
            fill(b);
            struct add_args args = {b->parts, b->parts + STRIDE, counts[c]};
            for (int64_t i = 0; i < STRIDE; i++)
                b->expected[i] = i < counts[c] ? b->parts[i] + b->parts[STRIDE + i] : b->parts[i];
            kernel_run(pool, width, &kernel_add, &args);
            faults += differences(b->parts, b->expected, STRIDE);
        }
    tap_ok(!faults, "add adds what it is given and nothing after");
}

static void test_round(struct dev_pool *pool, struct buffers *b)
{
    int64_t faults = 0;
    for (int c = 0; c < COUNTS; c++)
        for (int width = 1; width <= WIDTHS; width++) {
            fill(b);
            b->parts[1] = NAN;
            b->parts[2] = INFINITY;
            memset(b->rounded, 0xab, sizeof b->rounded);
            struct round_bf16_args args = {b->rounded, b->parts, counts[c]};
            kernel_run(pool, width, &kernel_round_bf16, &args);
            for (int64_t i = 0; i < STRIDE; i++)
                faults += b->rounded[i] != (i < counts[c] ? f32_to_bf16(b->parts[i]) : 0xabab);
        }
    tap_ok(!faults, "round_bf16 rounds what it is given and nothing after");
}

static void test_descriptions(struct buffers *b)
{
    struct rank_sum_args args = {b->parts, 100, STRIDE, 3, b->out};
    struct dev_access ranges[DEV_ACCESS_MAX];
    int count = kernel_rank_sum.access(&args, ranges);
    tap_ok(count == 2 && ranges[0].from == b->parts && ranges[0].bytes == (2 * STRIDE + 100) * 4 &&
               !ranges[0].write && ranges[1].from == b->out && ranges[1].bytes == 400 &&
               ranges[1].write,
        "a sum reads from its first part to the end of its last");
    struct kernel_cost cost;
    kernel_rank_sum.cost(&args, &cost);
    tap_ok(cost.flops == 200 && cost.bytes == 1600, "a sum's cost");
}

/* ---- the scatter -------------------------------------------------------------------------- */

enum { RANKS = 3 };
static const int64_t slices[RANKS] = {5, 0, 2000};

static float contribution(int rank, int64_t index)
{
    return value_at((int64_t)rank * 100000 + index);
}

struct outcome {
    int64_t compared, faults;
};

static void compare_slice(struct outcome *outcome, const float *slice, int64_t begin, int64_t count)
{
    for (int64_t i = begin; i < begin + count; i++) {
        float sum = contribution(0, i);
        for (int rank = 1; rank < RANKS; rank++)
            sum = sum + contribution(rank, i);
        outcome->compared++;
        outcome->faults += f32_bits(sum) != f32_bits(slice[i - begin]);
    }
}

/* Each rank makes its contribution to all slices and checks the slice it gets. */
static int scatter_body(struct rank *rank, void *context)
{
    struct outcome *outcomes = context;
    int64_t total = 0, begin = 0, own = slices[rank->index];
    for (int p = 0; p < RANKS; p++) {
        begin += p < rank->index ? slices[p] : 0;
        total += slices[p];
    }
    float *host = malloc((size_t)total * sizeof *host);
    if (!host)
        return -1;
    int64_t total_bytes = total * (int64_t)sizeof *host, own_bytes = own * (int64_t)sizeof *host;
    float *values = dev_alloc(rank->dev, total_bytes, LIVE_WORKSPACE, "values");
    float *scratch = dev_alloc(rank->dev, RANKS * own_bytes, LIVE_WORKSPACE, "scratch");
    float *out = dev_alloc(rank->dev, own_bytes, LIVE_WORKSPACE, "out");
    for (int64_t i = 0; i < total; i++)
        host[i] = contribution(rank->index, i);
    dev_write(rank->dev, values, host, total_bytes);
    rank_sum_scatter(rank->comm, dev_main_stream(rank->dev), values, slices, scratch, out);
    dev_read(rank->dev, host, out, own_bytes);
    compare_slice(&outcomes[rank->index], host, begin, own);
    dev_free(rank->dev, out);
    dev_free(rank->dev, scratch);
    dev_free(rank->dev, values);
    free(host);
    return dev_status(rank->dev) == DEV_OK ? 0 : -1;
}

static void test_scatter(struct dev_pool *pool)
{
    struct outcome outcomes[RANKS] = {{0, 0}};
    struct ranks_config config = {.count = RANKS};
    config.device.kind = DEV_CPU;
    config.device.kernel_threads = 1;
    config.device.pool = pool;
    struct ranks_failure failure;
    int status = ranks_run(&config, scatter_body, outcomes, &failure);
    if (!tap_ok(!status, "three ranks scatter their sums"))
        tap_note("rank %d: %s", failure.rank, failure.message);
    bool all = true;
    for (int rank = 0; rank < RANKS; rank++)
        all = all && outcomes[rank].compared == slices[rank] && !outcomes[rank].faults;
    tap_ok(all, "each rank holds its slice, summed in rank order; a slice may be empty");
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(WIDTHS);
    struct buffers *buffers = malloc(sizeof *buffers);
    if (tap_ok(pool && buffers, "a pool of %d threads and room", WIDTHS)) {
        test_sum(pool, buffers);
        test_add(pool, buffers);
        test_round(pool, buffers);
        test_descriptions(buffers);
        test_scatter(pool);
    }
    free(buffers);
    dev_pool_free(pool);
    return tap_done();
}
