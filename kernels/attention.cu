/* Attention on a GPU: a warp for each token of a head. Scores are a lane's each, 32 of a run of
 * 1024 at a time; sums over the run have a lane for each column, so that every chain keeps its
 * order. Runs are softmax segments, and a warp holds one in shared memory. */
#include "kernels/softmax.cuh"
extern "C" {
#include "kernels/attention.h"
}

enum { WARPS = 4, COLUMNS_PER_LANE = ATTENTION_HEAD_MAX / WARP };

/* What a warp holds in shared memory. */
struct warp_space {
    float mine[2][ATTENTION_HEAD_MAX]; /* its token's rows: of q, or of k and v, ... */
    float weight[2][SOFTMAX_SEGMENT];  /* of the run's tokens */
};

/* A token of a head of a sequence. */
struct place {
    int64_t token; /* in its sequence */
    int64_t first; /* the sequence's first row */
    int64_t head;
};

/* Of item `item` in [0, sequences * heads * tokens). */
static __device__ struct place place_of(const struct attention_shape &shape, int64_t item)
{
    return {item % shape.tokens, item / (shape.tokens * shape.heads) * shape.tokens,
        item / shape.tokens % shape.heads};
}

static __device__ int64_t column_of(
    const struct attention_shape &shape, const struct place &at, int64_t token)
{
    return (at.first + token) * shape.heads + at.head;
}

/* Where the head's columns of a token begin. */
static __device__ int64_t element_of(
    const struct attention_shape &shape, const struct place &at, int64_t token)
{
    return column_of(shape, at, token) * shape.head_columns;
}

template <enum dtype TYPE>
static __device__ void load_mine(
    const struct attention_shape &shape, const struct place &at, const void *matrix, float *mine)
{
    const int64_t row = element_of(shape, at, at.token);
    for (int64_t c = warp_lane(); c < shape.head_columns; c += WARP)
        mine[c] = element<TYPE>(matrix, row + c);
}

/* The chain over columns of this warp's row with another token's. */
template <enum dtype TYPE>
static __device__ float dot(const struct attention_shape &shape, const struct place &at,
    const float *mine, const void *matrix, int64_t token)
{
    const int64_t row = element_of(shape, at, token);
    float chain = 0.0f;
#pragma unroll 2 /* more, or more of its callers' rounds, and sm_80 spills */
    for (int64_t c = 0; c < shape.head_columns; c++)
        chain = fmaf(mine[c], element<TYPE>(matrix, row + c), chain);
    return chain;
}

/* Each lane's columns of a sum over tokens. */
struct column_sums {
    float at[COLUMNS_PER_LANE];
};

/* sums go on with weight[j] row (from + j) for j in [0, count). */
template <enum dtype TYPE>
static __device__ void add_run(const struct attention_shape &shape, const struct place &at,
    const float *weight, const void *matrix, int64_t from, int64_t count, struct column_sums &sums)
{
    for (int64_t j = 0; j < count; j++) {
        const int64_t row = element_of(shape, at, from + j);
#pragma unroll
        for (int i = 0; i < COLUMNS_PER_LANE; i++) {
            const int64_t c = i * WARP + warp_lane();
            if (c < shape.head_columns)
                sums.at[i] = fmaf(weight[j], element<TYPE>(matrix, row + c), sums.at[i]);
        }
    }
}

template <enum dtype TYPE>
static __device__ void store_sums(const struct attention_shape &shape, const struct place &at,
    const struct column_sums &sums, void *matrix)
{
    const int64_t row = element_of(shape, at, at.token);
#pragma unroll
    for (int i = 0; i < COLUMNS_PER_LANE; i++) {
        const int64_t c = i * WARP + warp_lane();
        const float value[1] = {sums.at[i]};
        if (c < shape.head_columns)
            store<TYPE>(matrix, row + c, value);
    }
}

static __device__ int64_t run_length(int64_t from, int64_t end)
{
    return end - from < SOFTMAX_SEGMENT ? end - from : SOFTMAX_SEGMENT;
}

/* This warp's token, or false when there is none, and its share of the shared memory. */
static __device__ bool begin_warp(
    const struct attention_shape &shape, void *shared, struct place &at, struct warp_space *&space)
{
    const int64_t item = warp_row(WARPS);
    space = (struct warp_space *)shared + threadIdx.x / WARP;
    if (item >= shape.sequences * shape.heads * shape.tokens)
        return false;
    at = place_of(shape, item);
    return true;
}

template <class Arguments>
static int launch_tokens(void (*kernel)(const Arguments), const Arguments &args, void *stream)
{
    const int64_t items = args.shape.sequences * args.shape.heads * args.shape.tokens;
    return launch(kernel, dim3((unsigned)parts_of(items, WARPS)), dim3(WARPS * WARP),
        WARPS * sizeof(struct warp_space), (cudaStream_t)stream, args);
}

/* ---- forward --------------------------------------------------------------------------------- */

template <enum dtype TYPE>
static __device__ void form_scores(const struct attention_args &args, const struct place &at,
    struct warp_space *space, int64_t from, int64_t count)
{
    for (int64_t j = warp_lane(); j < count; j += WARP)
        space->weight[0][j] =
            dot<TYPE>(args.shape, at, space->mine[0], args.k, from + j) * args.shape.scale;
    __syncwarp();
}

template <enum dtype TYPE>
static __global__ void __launch_bounds__(WARPS *WARP)
    forward_tokens(const struct attention_args args)
{
    DYNAMIC_SHARED(struct warp_space, shared);
    struct place at;
    struct warp_space *space;
    if (!begin_warp(args.shape, shared, at, space))
        return;
    load_mine<TYPE>(args.shape, at, args.q, space->mine[0]);
    __syncwarp();
    struct softmax_state state = softmax_empty();
    for (int64_t from = 0; from <= at.token; from += SOFTMAX_SEGMENT) {
        const int64_t count = run_length(from, at.token + 1);
        form_scores<TYPE>(args, at, space, from, count);
        state = softmax_fold(state, segment_state(space->weight[0], count));
        __syncwarp();
    }
    const float log_z = arith_log(state.sum);
    struct column_sums sums = {};
    for (int64_t from = 0; from <= at.token; from += SOFTMAX_SEGMENT) {
        const int64_t count = run_length(from, at.token + 1);
        if (at.token >= SOFTMAX_SEGMENT) /* else the only run's scores are still there */
            form_scores<TYPE>(args, at, space, from, count);
        for (int64_t j = warp_lane(); j < count; j += WARP)
            space->weight[0][j] = arith_exp((space->weight[0][j] - state.max) - log_z);
        __syncwarp();
        add_run<TYPE>(args.shape, at, space->weight[0], args.v, from, count, sums);
        __syncwarp();
    }
    store_sums<TYPE>(args.shape, at, sums, args.o);
    if (warp_lane())
        return;
    args.max[column_of(args.shape, at, at.token)] = state.max;
    args.log_z[column_of(args.shape, at, at.token)] = log_z;
}

extern "C" int attention_cuda(const void *launched, void *stream)
{
    const struct attention_args *args = (const struct attention_args *)launched;
    return launch_tokens(
        args->shape.type == DTYPE_BF16 ? forward_tokens<DTYPE_BF16> : forward_tokens<DTYPE_F32>,
        *args, stream);
}

/* ---- backward: queries ----------------------------------------------------------------------- */

template <enum dtype TYPE>
static __device__ float make_delta(
    const struct attention_queries_args &args, const struct place &at, const float *gradient)
{
    const int64_t row = element_of(args.shape, at, at.token);
    float sum = 0.0f;
    for (int64_t c = warp_lane(); c < args.shape.head_columns; c += WARP)
        sum = fmaf(gradient[c], element<TYPE>(args.o, row + c), sum);
    return add_lanes(sum);
}

template <enum dtype TYPE>
static __global__ void __launch_bounds__(WARPS *WARP)
    queries_tokens(const struct attention_queries_args args)
{
    DYNAMIC_SHARED(struct warp_space, shared);
    struct place at;
    struct warp_space *space;
    if (!begin_warp(args.shape, shared, at, space))
        return;
    load_mine<TYPE>(args.shape, at, args.q, space->mine[0]);
    load_mine<TYPE>(args.shape, at, args.d_o, space->mine[1]);
    __syncwarp();
    const int64_t column = column_of(args.shape, at, at.token);
    const float delta = make_delta<TYPE>(args, at, space->mine[1]);
    const float max = args.max[column], log_z = args.log_z[column], scale = args.shape.scale;
    struct column_sums sums = {};
    for (int64_t from = 0; from <= at.token; from += SOFTMAX_SEGMENT) {
        const int64_t count = run_length(from, at.token + 1);
        for (int64_t j = warp_lane(); j < count; j += WARP) {
            const float score = dot<TYPE>(args.shape, at, space->mine[0], args.k, from + j) * scale;
            const float p = arith_exp((score - max) - log_z);
            const float dp = dot<TYPE>(args.shape, at, space->mine[1], args.v, from + j);
            space->weight[0][j] = (p * (dp - delta)) * scale;
        }
        __syncwarp();
        add_run<TYPE>(args.shape, at, space->weight[0], args.k, from, count, sums);
        __syncwarp();
    }
    store_sums<TYPE>(args.shape, at, sums, args.dq);
    if (warp_lane() == 0)
        args.delta[column] = delta;
}

extern "C" int attention_queries_cuda(const void *launched, void *stream)
{
    const struct attention_queries_args *args = (const struct attention_queries_args *)launched;
    return launch_tokens(
        args->shape.type == DTYPE_BF16 ? queries_tokens<DTYPE_BF16> : queries_tokens<DTYPE_F32>,
        *args, stream);
}

/* ---- backward: keys and values --------------------------------------------------------------- */

template <enum dtype TYPE>
static __global__ void __launch_bounds__(WARPS *WARP)
    keys_tokens(const struct attention_keys_args args)
{
    DYNAMIC_SHARED(struct warp_space, shared);
    struct place at;
    struct warp_space *space;
    if (!begin_warp(args.shape, shared, at, space))
        return;
    load_mine<TYPE>(args.shape, at, args.k, space->mine[0]);
    load_mine<TYPE>(args.shape, at, args.v, space->mine[1]);
    __syncwarp();
    struct column_sums dk = {}, dv = {};
    for (int64_t from = at.token; from < args.shape.tokens; from += SOFTMAX_SEGMENT) {
        const int64_t count = run_length(from, args.shape.tokens);
#pragma unroll 1
        for (int64_t j = warp_lane(); j < count; j += WARP) {
            const int64_t column = column_of(args.shape, at, from + j);
            const float score =
                dot<TYPE>(args.shape, at, space->mine[0], args.q, from + j) * args.shape.scale;
            const float p = arith_exp((score - args.max[column]) - args.log_z[column]);
            const float dp = dot<TYPE>(args.shape, at, space->mine[1], args.d_o, from + j);
            space->weight[0][j] = p;
            space->weight[1][j] = (p * (dp - args.delta[column])) * args.shape.scale;
        }
        __syncwarp();
        add_run<TYPE>(args.shape, at, space->weight[0], args.d_o, from, count, dv);
        add_run<TYPE>(args.shape, at, space->weight[1], args.q, from, count, dk);
        __syncwarp();
    }
    store_sums<TYPE>(args.shape, at, dk, args.dk);
    store_sums<TYPE>(args.shape, at, dv, args.dv);
}

extern "C" int attention_keys_cuda(const void *launched, void *stream)
{
    const struct attention_keys_args *args = (const struct attention_keys_args *)launched;
    return launch_tokens(
        args->shape.type == DTYPE_BF16 ? keys_tokens<DTYPE_BF16> : keys_tokens<DTYPE_F32>, *args,
        stream);
}
