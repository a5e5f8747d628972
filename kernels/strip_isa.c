/* The strip kernels' rows, once per instruction set.
 *
 * Everything is plain loops over kernels/arith.h in the shapes that compilers vectorise
 * (kernels/softmax_isa.h). */
#include "kernels/arith.h"
#include "kernels/isa_variants.h"
#include "kernels/softmax_isa.h"
#include "kernels/strip.h"
#include "kernels/strip_variants.h"

/* ---- states ------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
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
