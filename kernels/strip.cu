/* The strip kernels on a GPU. The fold gives a warp each segment and a block each row; what is
 * elementwise runs along rows; a state or a target per row is a thread's. */
#include "kernels/softmax.cuh"
extern "C" {
#include "kernels/strip.h"
}

enum { FOLD_WARPS = 8, FOUR = 4 /* FP32 columns that a thread moves at a time */ };

/* ---- fold ------------------------------------------------------------------------------------ */

/* Segments of a row are made `warps` at a time; then one thread folds them from the left, while the
 * others make the next ones in the other half of `states`. */
static __global__ void __launch_bounds__(FOLD_WARPS *WARP)
    fold_rows(const struct strip_fold_args args, const int warps)
{
    SHARED(struct softmax_state[2][FOLD_WARPS], states);
    const int64_t row = blockIdx.x;
    const int warp = (int)threadIdx.x / WARP;
    const float *logits = args.logits + row * args.ld;
    struct softmax_state state = softmax_empty();
    if (!args.fresh && threadIdx.x == 0)
        state = {args.max[row], args.sum[row]};
    int half = 0;
    for (int64_t first = 0; first < args.columns; first += (int64_t)warps * VOCAB_SEGMENT) {
        const int64_t left = args.columns - first - (int64_t)warp * VOCAB_SEGMENT;
        if (left > 0) {
            const struct softmax_state made =
                segment_state(logits + first + (int64_t)warp * VOCAB_SEGMENT,
                    left < VOCAB_SEGMENT ? left : VOCAB_SEGMENT);
            if (warp_lane() == 0)
                states[half][warp] = made;
        }
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < warps; i++)
            if (first + (int64_t)i * VOCAB_SEGMENT < args.columns)
                state = softmax_fold(state, states[half][i]);
        half = 1 - half;
    }
    if (threadIdx.x)
        return;
    args.max[row] = state.max;
    args.sum[row] = state.sum;
    const int64_t column = args.targets[row] - args.first_column;
    if (args.targets[row] != VOCAB_IGNORED && column >= 0 && column < args.columns)
        args.target_logit[row] = logits[column];
}

extern "C" int strip_fold_cuda(const void *launched, void *stream)
{
    const struct strip_fold_args *args = (const struct strip_fold_args *)launched;
    const int64_t segments = parts_of(args->columns, VOCAB_SEGMENT);
    const int warps = segments < 1 ? 1 : segments < FOLD_WARPS ? (int)segments : FOLD_WARPS;
    return launch(fold_rows, dim3((unsigned)args->rows), dim3((unsigned)warps * WARP), 0,
        (cudaStream_t)stream, *args, warps);
}

/* ---- a thread for each row ------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK_THREADS)
    finish_rows(const struct strip_finish_args args)
{
    const int64_t row = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (row >= args.rows)
        return;
    struct softmax_state state = softmax_empty();
    for (int64_t shard = 0; shard < args.shards; shard++) {
        const struct softmax_state next = {
            args.shard_max[shard * args.stride + row], args.shard_sum[shard * args.stride + row]};
        state = softmax_fold(state, next);
    }
    const float log_z = arith_log(state.sum);
    const bool ignored = args.targets[row] == VOCAB_IGNORED;
    args.max[row] = state.max;
    args.log_z[row] = log_z;
    args.loss[row] = ignored ? 0.0f : (state.max - args.target_logit[row]) + log_z;
}

extern "C" int strip_finish_cuda(const void *launched, void *stream)
{
    const struct strip_finish_args *args = (const struct strip_finish_args *)launched;
    return launch(finish_rows, dim3((unsigned)parts_of(args->rows, BLOCK_THREADS)),
        dim3(BLOCK_THREADS), 0, (cudaStream_t)stream, *args);
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    take_target_rows(const struct strip_take_target_args args)
{
    const int64_t row = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (row >= args.rows)
        return;
    const int64_t column = args.targets[row] - args.first_column;
    if (args.targets[row] != VOCAB_IGNORED && column >= 0 && column < args.columns)
        args.target_logit[row] = args.candidate[row];
}

extern "C" int strip_take_target_cuda(const void *launched, void *stream)
{
    const struct strip_take_target_args *args = (const struct strip_take_target_args *)launched;
    return launch(take_target_rows, dim3((unsigned)parts_of(args->rows, BLOCK_THREADS)),
        dim3(BLOCK_THREADS), 0, (cudaStream_t)stream, *args);
}

/* ---- elementwise along rows ------------------------------------------------------------------
 * An Operation has the members of a row's place (args with rows, columns, logits, ld, out, ld_out)
 * and a method value(row, column, logit). A thread makes FOUR columns of a row, or one of the
 * columns that are in no four. */

template <class Operation>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    each_logit(const Operation operation, const int64_t row_blocks, const int64_t fours)
{
    const int64_t row = blockIdx.x / row_blocks;
    const int64_t i = blockIdx.x % row_blocks * BLOCK_THREADS + threadIdx.x;
    const float *logits = operation.args.logits + row * operation.args.ld;
    float *out = operation.args.out + row * operation.args.ld_out;
    if (i < fours) {
        const int64_t column = i * FOUR;
        float4 four = *(const float4 *)(logits + column);
        four.x = operation.value(row, column, four.x);
        four.y = operation.value(row, column + 1, four.y);
        four.z = operation.value(row, column + 2, four.z);
        four.w = operation.value(row, column + 3, four.w);
        *(float4 *)(out + column) = four;
    } else {
        const int64_t column = fours * FOUR + (i - fours);
        if (column < operation.args.columns)
            out[column] = operation.value(row, column, logits[column]);
    }
}

template <class Operation> static int launch_each_logit(const Operation &operation, void *stream)
{
    const auto &args = operation.args;
    const bool aligned = pack_aligned(args.logits) && pack_aligned(args.out) &&
                         args.ld % FOUR == 0 && args.ld_out % FOUR == 0;
    const int64_t fours = aligned ? args.columns / FOUR : 0;
    const int64_t row_blocks = parts_of(fours + (args.columns - fours * FOUR), BLOCK_THREADS);
    return launch(each_logit<Operation>, dim3((unsigned)(args.rows * row_blocks)),
        dim3(BLOCK_THREADS), 0, (cudaStream_t)stream, operation, row_blocks, fours);
}

struct log_softmax {
    struct strip_log_softmax_args args;

    __device__ float value(int64_t row, int64_t, float logit) const
    {
        return (logit - args.max[row]) - args.log_z[row];
    }
};

extern "C" int strip_log_softmax_cuda(const void *launched, void *stream)
{
    return launch_each_logit(log_softmax{*(const struct strip_log_softmax_args *)launched}, stream);
}

struct residual {
    struct strip_residual_args args;

    __device__ float value(int64_t row, int64_t column, float logit) const
    {
        const int64_t target = args.targets[row];
        if (target == VOCAB_IGNORED)
            return 0.0f;
        float p = arith_exp(args.max ? (logit - args.max[row]) - args.log_z[row] : logit);
        /* Subtracting the 0 of every other column changes nothing. */
        if (target - args.first_column == column)
            p = p - 1.0f;
        const float scaled = p * args.scale;
        return args.round_bf16 ? bf16_to_f32(f32_to_bf16(scaled)) : scaled;
    }
};

extern "C" int strip_residual_cuda(const void *launched, void *stream)
{
    return launch_each_logit(residual{*(const struct strip_residual_args *)launched}, stream);
}
