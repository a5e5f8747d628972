/* The strip kernels' rows, once per instruction set.
 *
 * Everything is plain loops over kernels/arith.h in the shapes that compilers vectorise:
 * elementwise over a segment that stays in the first-level cache, or over the 32 lanes of rule 6
 * with a constant trip count. There is no remainder loop: a short segment is copied and padded to
 * whole lanes with -inf, which changes no maximum and whose exponential, +0, changes no sum. */
#include "kernels/arith.h"
#include "kernels/isa_variants.h"
#include "kernels/strip.h"
#include "kernels/strip_variants.h"

/* ---- states ------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t lane_blocks(int64_t count)
{
    return (count + ARITH_LANES - 1) / ARITH_LANES;
}

/* The largest number; a NaN among the values is passed over. */
static float max_of_numbers(const float *values, int64_t blocks)
{
    float lanes[ARITH_LANES];
    for (int lane = 0; lane < ARITH_LANES; lane++)
        lanes[lane] = -INFINITY;
    for (int64_t block = 0; block < blocks; block++, values += ARITH_LANES)
        for (int lane = 0; lane < ARITH_LANES; lane++)
            lanes[lane] = values[lane] > lanes[lane] ? values[lane] : lanes[lane];
    float max = -INFINITY;
    for (int lane = 0; lane < ARITH_LANES; lane++)
        max = lanes[lane] > max ? lanes[lane] : max;
    return max + 0.0f; /* +0 for a zero, as arith_max */
}

static float sum_of_exp(const float *values, int64_t blocks, float max)
{
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t block = 0; block < blocks; block++, values += ARITH_LANES)
        for (int lane = 0; lane < ARITH_LANES; lane++)
            lanes[lane] = lanes[lane] + arith_exp(values[lane] - max);
    return arith_add_lanes(lanes);
}

/* softmax_segment, vectorised. Infinite maxima are rare and go through the definition. Below a
 * finite maximum every exponential is at most 1, so the sum is NaN exactly when a logit is. */
static struct softmax_state segment_state(const float *logits, int64_t count)
{
    float padded[VOCAB_SEGMENT];
    int64_t blocks = lane_blocks(count);
    const float *values = logits;
    if (count < blocks * ARITH_LANES) {
        memcpy(padded, logits, (size_t)count * sizeof *logits);
        for (int64_t i = count; i < blocks * ARITH_LANES; i++)
            padded[i] = -INFINITY;
        values = padded;
    }
    struct softmax_state state;
    state.max = max_of_numbers(values, blocks);
    if (state.max == -INFINITY || state.max == INFINITY)
        return softmax_segment(logits, count);
    state.sum = sum_of_exp(values, blocks, state.max);
    if (state.sum != state.sum)
        state.max = NAN;
    return state;
}

static void fold_rows(const void *launched, int64_t begin, int64_t end)
{
    const struct strip_fold_args *args = launched;
    for (int64_t row = begin; row < end; row++) {
        const float *logits = args->logits + row * args->ld;
        struct softmax_state state = softmax_empty();
        if (!args->fresh) {
            state.max = args->max[row];
            state.sum = args->sum[row];
        }
        for (int64_t first = 0; first < args->columns; first += VOCAB_SEGMENT) {
            int64_t count = least(VOCAB_SEGMENT, args->columns - first);
            state = softmax_fold(state, segment_state(logits + first, count));
        }
        args->max[row] = state.max;
        args->sum[row] = state.sum;
        int64_t column = args->targets[row] - args->first_column;
        if (args->targets[row] != VOCAB_IGNORED && column >= 0 && column < args->columns)
            args->target_logit[row] = logits[column];
    }
}

static void finish_rows(const void *launched, int64_t begin, int64_t end)
{
    const struct strip_finish_args *args = launched;
    for (int64_t row = begin; row < end; row++) {
        struct softmax_state state = softmax_empty();
        for (int64_t shard = 0; shard < args->shards; shard++) {
            struct softmax_state next = {args->shard_max[shard * args->stride + row],
                args->shard_sum[shard * args->stride + row]};
            state = softmax_fold(state, next);
        }
        float log_z = arith_log(state.sum);
        bool ignored = args->targets[row] == VOCAB_IGNORED;
        args->max[row] = state.max;
        args->log_z[row] = log_z;
        args->loss[row] = ignored ? 0.0f : (state.max - args->target_logit[row]) + log_z;
    }
}

/* ---- elementwise -------------------------------------------------------------------------- */

static void log_softmax_rows(const void *launched, int64_t begin, int64_t end)
{
    const struct strip_log_softmax_args *args = launched;
    for (int64_t row = begin; row < end; row++) {
        const float *logits = args->logits + row * args->ld;
        float *out = args->out + row * args->ld_out;
        float max = args->max[row], log_z = args->log_z[row];
        for (int64_t i = 0; i < args->columns; i++)
            out[i] = (logits[i] - max) - log_z;
    }
}

/* At most a segment of one row. It is made in an array of its own, so that the loops vectorise
 * whether or not `out` is `logits`. `target` is relative to the segment and may lie outside. */
static void residual_segment(const float *logits, int64_t count, float max, float log_z,
    int64_t target, float scale, bool round_bf16, float *out)
{
    float p[VOCAB_SEGMENT];
    int64_t blocks = lane_blocks(count);
    for (int64_t i = 0; i < count; i++)
        p[i] = (logits[i] - max) - log_z;
    for (int64_t i = count; i < blocks * ARITH_LANES; i++)
        p[i] = 0.0f;
    for (int64_t block = 0; block < blocks; block++)
        for (int lane = 0; lane < ARITH_LANES; lane++)
            p[block * ARITH_LANES + lane] = arith_exp(p[block * ARITH_LANES + lane]);
    /* Subtracting the 0 of every other column changes nothing. */
    if (target >= 0 && target < count)
        p[target] = p[target] - 1.0f;
    if (round_bf16)
        for (int64_t i = 0; i < count; i++)
            out[i] = bf16_to_f32(f32_to_bf16(p[i] * scale));
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = p[i] * scale;
}

static void residual_rows(const void *launched, int64_t begin, int64_t end)
{
    const struct strip_residual_args *args = launched;
    for (int64_t row = begin; row < end; row++) {
        const float *logits = args->logits + row * args->ld;
        float *out = args->out + row * args->ld_out;
        if (args->targets[row] == VOCAB_IGNORED) {
            memset(out, 0, (size_t)args->columns * sizeof *out);
            continue;
        }
        /* x - 0 - 0 is x: a log-softmax that is given needs no path of its own. */
        float max = args->max ? args->max[row] : 0.0f;
        float log_z = args->max ? args->log_z[row] : 0.0f;
        int64_t target = args->targets[row] - args->first_column;
        for (int64_t first = 0; first < args->columns; first += VOCAB_SEGMENT)
            residual_segment(logits + first, least(VOCAB_SEGMENT, args->columns - first), max,
                log_z, target - first, args->scale, args->round_bf16, out + first);
    }
}

extern const struct strip_functions ISA_VARIANT(strip_functions);
const struct strip_functions ISA_VARIANT(strip_functions) = {
    .fold = fold_rows,
    .finish = finish_rows,
    .log_softmax = log_softmax_rows,
    .residual = residual_rows,
};
