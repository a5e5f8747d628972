/* Every strip kernel on every instruction set and on teams of one to three threads, bit for bit
 * against loops written here from rules 6 and 7: ragged columns, padded rows, infinities, NaN rows,
 * ignored targets, zero rows and columns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/isa.h"
#include "kernels/strip.h"
#include "tests/kernel_run.h"
#include "tests/tap.h"

enum { MOST_ROWS = 40, MOST_COLUMNS = 3000, PADDING = 7, MOST_SHARDS = 5, WIDTHS = 3 };
enum { FIRST_COLUMN = 5000 }; /* the strip's place in the vocabulary */

#define MOST_ELEMENTS (MOST_ROWS * (MOST_COLUMNS + PADDING))
#define SENTINEL 12345.678f /* what nobody should overwrite */

/* ---- inputs ------------------------------------------------------------------------------- */

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float uniform(uint32_t *state, float scale)
{
    return ((float)next_random(state) / 8388608.0f - 1.0f) * scale;
}

/* What a row holds, by its index: rows of every kind lie side by side. */
static float element(int64_t row, int64_t column, int64_t columns, uint32_t *state)
{
    float ordinary = uniform(state, 10.0f);
    switch (row % 10) {
    case 1:
        return uniform(state, 1e4f);
    case 2:
        return -INFINITY;
    case 3:
        return column % 3 ? -INFINITY : ordinary;
    case 4:
        return column == columns - 1 ? NAN : ordinary;
    case 5:
        return column == columns / 2 ? INFINITY : ordinary;
    case 6: /* a NaN among -inf, in one segment only */
        return column == 0 ? f32_from_bits(0xffc00001u) : -INFINITY;
    case 7:
        return column & 1 ? 0.0f : -0.0f;
    case 8: /* the first segment is empty */
        return column < VOCAB_SEGMENT ? -INFINITY : ordinary;
    case 9:
        return column == columns / 3 ? NAN : column == columns - 1 ? INFINITY : ordinary;
    default:
        return ordinary;
    }
}

static void fill_logits(float *logits, int64_t rows, int64_t columns, int64_t ld)
{
    uint32_t state = (uint32_t)(rows * 31 + columns);
    for (int64_t i = 0; i < rows * ld; i++)
        logits[i] = SENTINEL;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++)
            logits[row * ld + column] = element(row, column, columns, &state);
}

/* Inside, at both ends, just outside on either side, far off, and ignored. */
static void fill_targets(int64_t *targets, int64_t rows, int64_t columns)
{
    for (int64_t row = 0; row < rows; row++) {
        const int64_t choices[] = {
            columns / 2, 0, columns - 1, -1, columns, -FIRST_COLUMN, VOCAB_IGNORED - FIRST_COLUMN};
        targets[row] = FIRST_COLUMN + choices[row % 7];
    }
}

static bool same(float a, float b)
{
    return f32_bits(a) == f32_bits(b) || (isnan(a) && isnan(b));
}

static int64_t differences(const float *found, const float *expected, int64_t count)
{
    int64_t faults = 0;
    for (int64_t i = 0; i < count; i++)
        faults += !same(found[i], expected[i]);
    return faults;
}

/* ---- the rules ---------------------------------------------------------------------------- */

struct state {
    float max, sum;
};

static struct state rule_segment(const float *logits, int64_t count)
{
    struct state state = {-INFINITY, 0.0f};
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i]))
            return (struct state){NAN, NAN};
        if (logits[i] > state.max)
            state.max = logits[i];
    }
    if (state.max == -INFINITY)
        return state;
    state.max = state.max == 0.0f ? 0.0f : state.max; /* a zero maximum is +0 */
    float lanes[32] = {0.0f};
    for (int64_t i = 0; i < count; i++)
        lanes[i % 32] += arith_exp(logits[i] - state.max);
    for (int distance = 16; distance >= 1; distance /= 2)
        for (int lane = 0; lane < distance; lane++)
            lanes[lane] += lanes[lane + distance];
    state.sum = lanes[0];
    return state;
}

static struct state rule_fold(struct state a, struct state b)
{
    if (a.max == -INFINITY)
        return b;
    if (b.max == -INFINITY)
        return a;
    float max = isnan(a.max) || isnan(b.max) ? NAN : a.max > b.max ? a.max : b.max;
    float left = a.sum * arith_exp(a.max - max), right = b.sum * arith_exp(b.max - max);
    return (struct state){max, left + right};
}

static bool holds(int64_t target, int64_t columns)
{
    return target != VOCAB_IGNORED && target >= FIRST_COLUMN && target < FIRST_COLUMN + columns;
}

static void rule_strip_fold(const struct strip_fold_args *args)
{
    for (int64_t row = 0; row < args->rows; row++) {
        const float *logits = args->logits + row * args->ld;
        struct state state = {-INFINITY, 0.0f};
        if (!args->fresh)
            state = (struct state){args->max[row], args->sum[row]};
        for (int64_t first = 0; first < args->columns; first += 1024) {
            int64_t left = args->columns - first;
            state = rule_fold(state, rule_segment(logits + first, left < 1024 ? left : 1024));
        }
        args->max[row] = state.max;
        args->sum[row] = state.sum;
        if (holds(args->targets[row], args->columns))
            args->target_logit[row] = logits[args->targets[row] - FIRST_COLUMN];
    }
}

static void rule_strip_residual(const struct strip_residual_args *args)
{
    for (int64_t row = 0; row < args->rows; row++)
        for (int64_t column = 0; column < args->columns; column++) {
            float x = args->logits[row * args->ld + column];
            if (args->max)
                x = (x - args->max[row]) - args->log_z[row];
            float hit = args->targets[row] == FIRST_COLUMN + column ? 1.0f : 0.0f;
            float r = (arith_exp(x) - hit) * args->scale;
            if (args->round_bf16)
                r = bf16_to_f32(f32_to_bf16(r));
            if (args->targets[row] == VOCAB_IGNORED)
                r = 0.0f;
            args->out[row * args->ld_out + column] = r;
        }
}

/* ---- buffers ------------------------------------------------------------------------------ */

struct buffers {
    float logits[MOST_ELEMENTS], found[MOST_ELEMENTS], expected[MOST_ELEMENTS];
    int64_t targets[MOST_ROWS];
    float max[MOST_ROWS], sum[MOST_ROWS], target_logit[MOST_ROWS];
    float expected_max[MOST_ROWS], expected_sum[MOST_ROWS], expected_target_logit[MOST_ROWS];
    float log_z[MOST_ROWS];
};

static void fill_f32(float *values, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = value;
}

struct shape {
    int64_t rows, columns, padding;
};

static const struct shape shapes[] = {
    {0, 100, 0},
    {3, 0, 2},
    {1, 1, 0},
    {11, 31, 0},
    {11, 32, PADDING},
    {11, 33, 1},
    {13, 1000, 0},
    {13, 1023, PADDING},
    {13, 1024, 0},
    {13, 1025, 3},
    {21, 2048, 0},
    {MOST_ROWS, MOST_COLUMNS, PADDING},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* ---- fold --------------------------------------------------------------------------------- */

static struct strip_fold_args fold_args(struct buffers *b, const struct shape *shape, bool fresh)
{
    fill_logits(b->logits, shape->rows, shape->columns, shape->columns + shape->padding);
    fill_targets(b->targets, shape->rows, shape->columns);
    for (int64_t row = 0; row < shape->rows; row++) { /* an earlier tile's states */
        b->max[row] = row % 4 == 3 ? -INFINITY : (float)row - 5.0f;
        b->sum[row] = row % 4 == 3 ? 0.0f : 3.5f;
        b->target_logit[row] = SENTINEL;
    }
    return (struct strip_fold_args){
        .logits = b->logits,
        .rows = shape->rows,
        .columns = shape->columns,
        .ld = shape->columns + shape->padding,
        .first_column = FIRST_COLUMN,
        .targets = b->targets,
        .max = b->max,
        .sum = b->sum,
        .target_logit = b->target_logit,
        .fresh = fresh,
    };
}

static struct strip_fold_args expect_fold(struct buffers *b, const struct strip_fold_args *args)
{
    struct strip_fold_args rule = *args;
    memcpy(b->expected_max, b->max, sizeof b->max);
    memcpy(b->expected_sum, b->sum, sizeof b->sum);
    memcpy(b->expected_target_logit, b->target_logit, sizeof b->target_logit);
    rule.max = b->expected_max;
    rule.sum = b->expected_sum;
    rule.target_logit = b->expected_target_logit;
    rule_strip_fold(&rule);
    return rule;
}

static int64_t fold_faults(const struct buffers *b, int64_t rows)
{
    return differences(b->max, b->expected_max, rows) + differences(b->sum, b->expected_sum, rows) +
           differences(b->target_logit, b->expected_target_logit, rows);
}

static void test_fold(struct dev_pool *pool, struct buffers *b, const char *isa)
{
    int64_t faults = 0;
    for (int i = 0; i < SHAPES; i++)
        for (int fresh = 0; fresh < 2; fresh++)
            for (int width = 1; width <= WIDTHS; width++) {
                struct strip_fold_args args = fold_args(b, &shapes[i], fresh);
                expect_fold(b, &args);
                kernel_run(pool, width, &kernel_strip_fold, &args);
                faults += fold_faults(b, args.rows);
            }
    tap_ok(!faults, "%s: fold follows rules 6 and 7", isa);
}

/* Tiles of whole segments folded one after the other are the strip folded at once. */
static void test_tiles(struct dev_pool *pool, struct buffers *b, const char *isa)
{
    const struct shape *shape = &shapes[SHAPES - 1];
    int64_t faults = 0;
    for (int64_t tile = VOCAB_SEGMENT; tile <= 2 * VOCAB_SEGMENT; tile += VOCAB_SEGMENT) {
        struct strip_fold_args whole = fold_args(b, shape, true);
        expect_fold(b, &whole);
        for (int64_t first = 0; first < whole.columns; first += tile) {
            struct strip_fold_args args = whole;
            int64_t left = whole.columns - first;
            args.columns = left < tile ? left : tile;
            args.logits = whole.logits + first;
            args.first_column = whole.first_column + first;
            args.fresh = first == 0;
            kernel_run(pool, 1, &kernel_strip_fold, &args);
        }
        faults += fold_faults(b, whole.rows);
    }
    tap_ok(!faults, "%s: tiles folded in turn equal one call", isa);
}

/* ---- finish ------------------------------------------------------------------------------- */

static void test_finish(struct dev_pool *pool, struct buffers *b, const char *isa)
{
    enum { STRIDE = MOST_ROWS + 3 };
    float shard_max[MOST_SHARDS * STRIDE], shard_sum[MOST_SHARDS * STRIDE];
    float loss[MOST_ROWS], expected_loss[MOST_ROWS], expected_log_z[MOST_ROWS];
    int64_t faults = 0;
    uint32_t random = 7;
    for (int64_t i = 0; i < MOST_SHARDS * STRIDE; i++) {
        bool empty = i % 5 == 0 || i % STRIDE == 8;
        shard_max[i] = empty ? -INFINITY : uniform(&random, i % 3 ? 5.0f : 1e4f);
        shard_sum[i] = empty ? 0.0f : 1.0f + fabsf(uniform(&random, 100.0f));
    }
    shard_max[11] = shard_sum[11] = NAN;
    shard_max[STRIDE + 12] = INFINITY;
    shard_sum[STRIDE + 12] = NAN;
    fill_targets(b->targets, MOST_ROWS, MOST_COLUMNS);
    for (int64_t row = 0; row < MOST_ROWS; row++)
        b->target_logit[row] = uniform(&random, 10.0f);

    for (int64_t shards = 1; shards <= MOST_SHARDS; shards++)
        for (int64_t rows = 0; rows <= MOST_ROWS; rows += MOST_ROWS / 2) {
            struct strip_finish_args args = {shard_max, shard_sum, shards, STRIDE, rows, b->targets,
                b->target_logit, b->max, b->log_z, loss};
            kernel_run(pool, WIDTHS, &kernel_strip_finish, &args);
            for (int64_t row = 0; row < rows; row++) {
                struct state state = {-INFINITY, 0.0f};
                for (int64_t s = 0; s < shards; s++)
                    state = rule_fold(state,
                        (struct state){shard_max[s * STRIDE + row], shard_sum[s * STRIDE + row]});
                b->expected_max[row] = state.max;
                expected_log_z[row] = arith_log(state.sum);
                expected_loss[row] = (state.max - b->target_logit[row]) + expected_log_z[row];
                if (b->targets[row] == VOCAB_IGNORED)
                    expected_loss[row] = 0.0f;
            }
            faults += differences(b->max, b->expected_max, rows) +
                      differences(b->log_z, expected_log_z, rows) +
                      differences(loss, expected_loss, rows);
        }
    tap_ok(!faults, "%s: finish folds shards ascending and forms the losses", isa);
}

/* ---- elementwise -------------------------------------------------------------------------- */

/* The row's normaliser, for every kind of row: from its own states. */
static void normalise(struct buffers *b, const struct shape *shape)
{
    struct strip_fold_args args = fold_args(b, shape, true);
    rule_strip_fold(&args);
    for (int64_t row = 0; row < shape->rows; row++)
        b->log_z[row] = arith_log(b->sum[row]);
}

static void test_log_softmax(struct dev_pool *pool, struct buffers *b, const char *isa)
{
    int64_t faults = 0;
    for (int i = 0; i < SHAPES; i++)
        for (int width = 1; width <= WIDTHS; width++) {
            const struct shape *shape = &shapes[i];
            int64_t ld = shape->columns + shape->padding, ld_out = shape->columns + 2;
            normalise(b, shape);
            fill_f32(b->found, shape->rows * ld_out, SENTINEL);
            fill_f32(b->expected, shape->rows * ld_out, SENTINEL);
            struct strip_log_softmax_args args = {
                b->logits, shape->rows, shape->columns, ld, b->max, b->log_z, b->found, ld_out};
            kernel_run(pool, width, &kernel_strip_log_softmax, &args);
            for (int64_t row = 0; row < shape->rows; row++)
                for (int64_t v = 0; v < shape->columns; v++)
                    b->expected[row * ld_out + v] =
                        (b->logits[row * ld + v] - b->max[row]) - b->log_z[row];
            faults += differences(b->found, b->expected, shape->rows * ld_out);
        }
    tap_ok(!faults, "%s: log-softmax", isa);
}

/* The four ways to call the residual, each apart and in place. */
static int64_t residual_faults(
    struct dev_pool *pool, struct buffers *b, const struct shape *shape, int way, int width)
{
    bool in_place = way & 1, round_bf16 = way & 2, given = way & 4;
    int64_t ld = shape->columns + shape->padding;
    normalise(b, shape);
    if (given)
        for (int64_t i = 0; i < shape->rows * ld; i++)
            b->logits[i] = b->logits[i] == SENTINEL ? SENTINEL : -fabsf(b->logits[i]);
    struct strip_residual_args args = {
        .logits = b->logits,
        .rows = shape->rows,
        .columns = shape->columns,
        .ld = ld,
        .first_column = FIRST_COLUMN,
        .targets = b->targets,
        .max = given ? NULL : b->max,
        .log_z = given ? NULL : b->log_z,
        .scale = 1.0f / 3.0f,
        .round_bf16 = round_bf16,
        .out = b->expected,
        .ld_out = in_place ? ld : shape->columns + 1,
    };
    int64_t elements = shape->rows * args.ld_out;
    fill_f32(b->expected, elements, SENTINEL);
    fill_f32(b->found, elements, SENTINEL);
    rule_strip_residual(&args);
    args.out = in_place ? b->logits : b->found;
    kernel_run(pool, width, &kernel_strip_residual, &args);
    return differences(args.out, b->expected, elements);
}

static void test_residual(struct dev_pool *pool, struct buffers *b, const char *isa)
{
    for (int way = 0; way < 8; way++) {
        int64_t faults = 0;
        for (int i = 0; i < SHAPES; i++) /* the width turns with shape and way: all are met */
            faults += residual_faults(pool, b, &shapes[i], way, 1 + (i + way) % WIDTHS);
        tap_ok(!faults, "%s: residual %s, %s, from %s", isa, way & 1 ? "in place" : "apart",
            way & 2 ? "rounded to BF16" : "in FP32", way & 4 ? "a given log-softmax" : "logits");
    }
}

/* ---- take target, cost and access --------------------------------------------------------- */

static void test_take_target(struct dev_pool *pool, struct buffers *b)
{
    fill_targets(b->targets, MOST_ROWS, 100);
    for (int64_t row = 0; row < MOST_ROWS; row++)
        b->max[row] = (float)row;
    fill_f32(b->target_logit, MOST_ROWS, SENTINEL);
    struct strip_take_target_args args = {
        b->max, b->targets, MOST_ROWS, FIRST_COLUMN, 100, b->target_logit};
    kernel_run(pool, WIDTHS, &kernel_strip_take_target, &args);
    int64_t faults = 0;
    for (int64_t row = 0; row < MOST_ROWS; row++)
        faults += b->target_logit[row] != (holds(b->targets[row], 100) ? (float)row : SENTINEL);
    tap_ok(!faults, "take target writes where the strip holds the target and nowhere else");
}

static bool covers(const struct dev_access *range, const void *from, int64_t bytes, bool write)
{
    return range->from == from && range->bytes == bytes && range->write == write;
}

static void test_descriptions(struct buffers *b)
{
    struct shape shape = {4, 10, 2};
    struct strip_fold_args fold = fold_args(b, &shape, true);
    struct dev_access ranges[DEV_ACCESS_MAX];
    int count = kernel_strip_fold.access(&fold, ranges);
    tap_ok(count == 5 && covers(&ranges[0], b->logits, (3 * 12 + 10) * 4, false) &&
               covers(&ranges[1], b->targets, 4 * 8, false) &&
               covers(&ranges[2], b->max, 16, true) && covers(&ranges[3], b->sum, 16, true) &&
               covers(&ranges[4], b->target_logit, 16, true),
        "a fold's ranges: logits from first to last, targets, states");
    struct kernel_cost cost;
    kernel_strip_fold.cost(&fold, &cost);
    tap_ok(cost.bytes == 40 * 4 + 4 * 8 + 3 * 16, "a fold's bytes, each operand once");
    fold.rows = 0;
    tap_ok(kernel_strip_fold.access(&fold, ranges) == 0, "no rows touch nothing");

    struct strip_residual_args residual = {.logits = b->logits,
        .rows = 4,
        .columns = 10,
        .ld = 12,
        .targets = b->targets,
        .out = b->found,
        .ld_out = 10};
    count = kernel_strip_residual.access(&residual, ranges);
    tap_ok(count == 3 && covers(&ranges[2], b->found, 160, true),
        "a residual of a given log-softmax reads no normaliser");
    kernel_strip_residual.cost(&residual, &cost);
    tap_ok(cost.bytes == 2 * 160 + 4 * 8 && cost.m == 0, "a residual's bytes");
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(WIDTHS);
    struct buffers *buffers = malloc(sizeof *buffers);
    if (tap_ok(pool && buffers, "a pool of %d threads and room", WIDTHS)) {
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            const char *name = isa_name((enum isa)isa);
            if (isa_force((enum isa)isa)) {
                tap_skip("this CPU does not run it", "strip kernels on %s", name);
                continue;
            }
            test_fold(pool, buffers, name);
            test_tiles(pool, buffers, name);
            test_finish(pool, buffers, name);
            test_log_softmax(pool, buffers, name);
            test_residual(pool, buffers, name);
        }
        test_take_target(pool, buffers);
        test_descriptions(buffers);
    }
    free(buffers);
    dev_pool_free(pool);
    return tap_done();
}
