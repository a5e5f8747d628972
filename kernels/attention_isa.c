/* Blocks of attention, once per instruction set.
 *
 * A block of 32 tokens meets the others in runs of 1024, a softmax segment, whose scores lie in a
 * tile of 32 x 1024: products with the tokens that all 32 see are kernels/gemm.h's, and the
 * triangle where the block meets itself is done row by row, so that no token meets its future.
 * Forward and queries walk the keys before the block, keys the queries behind it, with the tile
 * turned over: k q^T has the bits of q k^T. */
#include "kernels/attention.h"
#include "kernels/attention_variants.h"
#include "kernels/gemm.h"
#include "kernels/isa_variants.h"
#include "kernels/softmax_isa.h"

/* Scores of the block's tokens with a run of others, one row each. */
struct tile {
    float at[ATTENTION_BLOCK][SOFTMAX_SEGMENT];
};

/* Sums over a run, one row for each of the block's tokens. */
struct sums {
    float at[ATTENTION_BLOCK][ATTENTION_HEAD_MAX];
};

/* The block that an item is. */
struct block {
    const struct attention_shape *shape;
    int64_t first, count; /* of its tokens, in the sequence */
    int64_t row;          /* of the sequence's first token */
    int64_t head;
};

static struct block block_of(const struct attention_shape *shape, int64_t item)
{
    int64_t blocks = (shape->tokens + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    int64_t first = item % blocks * ATTENTION_BLOCK;
    int64_t left = shape->tokens - first;
    return (struct block){.shape = shape,
        .first = first,
        .count = left < ATTENTION_BLOCK ? left : ATTENTION_BLOCK,
        .row = item / (blocks * shape->heads) * shape->tokens,
        .head = item / blocks % shape->heads};
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- rows of the problem's type -------------------------------------------------------------- */

static int64_t row_stride(const struct attention_shape *shape)
{
    return shape->heads * shape->head_columns;
}

/* Where the head's columns of a token begin. */
static int64_t element_of(const struct block *block, int64_t token)
{
    return (block->row + token) * row_stride(block->shape) +
           block->head * block->shape->head_columns;
}

static const void *rows_at(const struct block *block, const void *matrix, int64_t token)
{
    return (const char *)matrix + element_of(block, token) * dtype_bytes(block->shape->type);
}

/* Of [rows, heads]. */
static int64_t column_of(const struct block *block, int64_t token)
{
    return (block->row + token) * block->shape->heads + block->head;
}

static void load_row(const struct block *block, const void *matrix, int64_t token, float *to)
{
    const void *row = rows_at(block, matrix, token);
    int64_t columns = block->shape->head_columns;
    if (block->shape->type == DTYPE_F32)
        memcpy(to, row, (size_t)columns * sizeof *to);
    else
        for (int64_t c = 0; c < columns; c++)
            to[c] = bf16_to_f32(((const uint16_t *)row)[c]);
}

static void load_block(const struct block *block, const void *matrix, struct sums *to)
{
    for (int64_t i = 0; i < block->count; i++)
        load_row(block, matrix, block->first + i, to->at[i]);
}

static void store_block(const struct block *block, const struct sums *sums, void *matrix)
{
    int64_t columns = block->shape->head_columns;
    for (int64_t i = 0; i < block->count; i++) {
        int64_t element = element_of(block, block->first + i);
        if (block->shape->type == DTYPE_F32)
            memcpy((float *)matrix + element, sums->at[i], (size_t)columns * sizeof(float));
        else
            for (int64_t c = 0; c < columns; c++)
                ((uint16_t *)matrix)[element + c] = f32_to_bf16(sums->at[i][c]);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* tile[i, j] = chain over c of mine[first + i, c] others[from + j, c]. */
static void form_tile(const struct block *block, const void *mine, const void *others, int64_t from,
    int64_t count, struct tile *tile)
{
    gemm_cpu(&(struct gemm_args){.layout = GEMM_NT,
                 .init = GEMM_FRESH,
                 .a_type = block->shape->type,
                 .b_type = block->shape->type,
                 .m = block->count,
                 .n = count,
                 .k = block->shape->head_columns,
                 .a = rows_at(block, mine, block->first),
                 .lda = row_stride(block->shape),
                 .b = rows_at(block, others, from),
                 .ldb = row_stride(block->shape),
                 .c = tile->at[0],
                 .ldc = SOFTMAX_SEGMENT},
        NULL);
}

/* sums[i, c] goes on with tile[i, begin + j] others[from + j, c] for j in [0, count). */
static void add_tile(const struct block *block, const struct tile *tile, int64_t begin,
    const void *others, int64_t from, int64_t count, struct sums *sums)
{
    gemm_cpu(&(struct gemm_args){.layout = GEMM_NN,
                 .init = GEMM_CHAIN,
                 .a_type = DTYPE_F32,
                 .b_type = block->shape->type,
                 .m = block->count,
                 .n = block->shape->head_columns,
                 .k = count,
                 .a = tile->at[0] + begin,
                 .lda = SOFTMAX_SEGMENT,
                 .b = rows_at(block, others, from),
                 .ldb = row_stride(block->shape),
                 .c = sums->at[0],
                 .ldc = ATTENTION_HEAD_MAX},
        NULL);
}

/* sum [columns] goes on with weights[j] times row j of `rows`, for j in [0, count): a few columns
 * at a time, whose chains stay in registers. */
static void add_rows(const float *weights, const float (*rows)[ATTENTION_HEAD_MAX], int64_t count,
    float *sum, int64_t columns)
{
    int64_t c = 0;
    for (; c + ARITH_LANES <= columns; c += ARITH_LANES) {
        float chain[ARITH_LANES];
        memcpy(chain, sum + c, sizeof chain);
        for (int64_t j = 0; j < count; j++)
            for (int lane = 0; lane < ARITH_LANES; lane++)
                chain[lane] = fmaf(weights[j], rows[j][c + lane], chain[lane]);
        memcpy(sum + c, chain, sizeof chain);
    }
    for (; c < columns; c++)
        for (int64_t j = 0; j < count; j++)
            sum[c] = fmaf(weights[j], rows[j][c], sum[c]);
}

static void scale_rows(const struct block *block, struct tile *tile, int64_t count)
{
    for (int64_t i = 0; i < block->count; i++)
        for (int64_t j = 0; j < count; j++)
            tile->at[i][j] = tile->at[i][j] * block->shape->scale;
}

/* values[i] = exp((values[i] - max[i]) - log_z[i]) for whole lanes. */
static void exp_lanes(float *values, const float *max, const float *log_z, int64_t count)
{
    for (int64_t block = 0; block < lane_blocks(count); block++)
        for (int lane = 0; lane < ARITH_LANES; lane++) {
            int64_t i = block * ARITH_LANES + lane;
            values[i] = arith_exp((values[i] - max[i]) - log_z[i]);
        }
}

/* ---- a block and the keys before it ---------------------------------------------------------- */

/* A run of keys: [from, from + count), of which all of the block sees the first `shared`. */
struct run {
    int64_t from, count, shared;
};

/* The run of keys that begins at `from`. */
static struct run keys_from(const struct block *block, int64_t from)
{
    struct run run = {from, least(SOFTMAX_SEGMENT, block->first + block->count - from), 0};
    if (from < block->first)
        run.shared = least(run.count, block->first - from);
    return run;
}

/* How many of the run's keys token i of the block sees. */
static int64_t seen(const struct block *block, const struct run *run, int64_t i)
{
    int64_t keys = block->first + i + 1 - run->from;
    return keys < 0 ? 0 : least(keys, run->count);
}

/* What a token's exponentials are taken against, spread out for exp_lanes. */
static void make_p(const struct block *block, struct tile *tile, const struct run *run, int64_t i,
    float max, float log_z)
{
    float maxima[SOFTMAX_SEGMENT], logs[SOFTMAX_SEGMENT];
    int64_t count = seen(block, run, i);
    for (int64_t j = 0; j < lane_blocks(count) * ARITH_LANES; j++) {
        maxima[j] = max;
        logs[j] = log_z;
    }
    exp_lanes(tile->at[i], maxima, logs, count);
}

/* The part of the run that not all of the block sees; its rows of `others` are block_rows. */
static void add_triangle(const struct block *block, const struct tile *tile, const struct run *run,
    const struct sums *block_rows, struct sums *sums)
{
    int64_t first = run->from + run->shared - block->first; /* the part's first row */
    if (run->shared == run->count)
        return;
    for (int64_t i = 0; i < block->count; i++)
        add_rows(tile->at[i] + run->shared, block_rows->at + first,
            seen(block, run, i) - run->shared, sums->at[i], block->shape->head_columns);
}

static void form_scores(const struct block *block, const void *q, const void *k,
    const struct run *run, struct tile *tile)
{
    form_tile(block, q, k, run->from, run->count, tile);
    scale_rows(block, tile, run->count);
}

static void forward_block(
    const struct attention_args *args, const struct block *block, struct tile *tile)
{
    struct softmax_state states[ATTENTION_BLOCK];
    struct sums sums = {{{0}}}, v;
    struct run run;
    int64_t end = block->first + block->count;
    for (int64_t i = 0; i < block->count; i++)
        states[i] = softmax_empty();
    for (int64_t from = 0; from < end; from += SOFTMAX_SEGMENT) {
        run = keys_from(block, from);
        form_scores(block, args->q, args->k, &run, tile);
        for (int64_t i = 0; i < block->count; i++)
            if (seen(block, &run, i))
                states[i] =
                    softmax_fold(states[i], segment_state(tile->at[i], seen(block, &run, i)));
    }
    load_block(block, args->v, &v);
    for (int64_t from = 0; from < end; from += SOFTMAX_SEGMENT) {
        run = keys_from(block, from);
        if (end > SOFTMAX_SEGMENT) /* else the only run's scores are still there */
            form_scores(block, args->q, args->k, &run, tile);
        for (int64_t i = 0; i < block->count; i++)
            make_p(block, tile, &run, i, states[i].max, arith_log(states[i].sum));
        add_tile(block, tile, 0, args->v, from, run.shared, &sums);
        add_triangle(block, tile, &run, &v, &sums);
    }
    for (int64_t i = 0; i < block->count; i++) {
        args->max[column_of(block, block->first + i)] = states[i].max;
        args->log_z[column_of(block, block->first + i)] = arith_log(states[i].sum);
    }
    store_block(block, &sums, args->o);
}

static void forward_items(const void *launched, int64_t begin, int64_t end)
{
    const struct attention_args *args = launched;
    struct tile tile;
    for (int64_t item = begin; item < end; item++) {
        struct block block = block_of(&args->shape, item);
        forward_block(args, &block, &tile);
    }
}

/* ---- backward: a block's queries ------------------------------------------------------------- */

static float row_delta(const float *gradient, const float *output, int64_t columns)
{
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t c = 0; c < columns; c++)
        lanes[c % ARITH_LANES] = fmaf(gradient[c], output[c], lanes[c % ARITH_LANES]);
    return arith_add_lanes(lanes);
}

static void make_deltas(
    const struct attention_queries_args *args, const struct block *block, float *deltas)
{
    float gradient[ATTENTION_HEAD_MAX], output[ATTENTION_HEAD_MAX];
    for (int64_t i = 0; i < block->count; i++) {
        load_row(block, args->d_o, block->first + i, gradient);
        load_row(block, args->o, block->first + i, output);
        deltas[i] = row_delta(gradient, output, block->shape->head_columns);
        args->delta[column_of(block, block->first + i)] = deltas[i];
    }
}

static void queries_block(const struct attention_queries_args *args, const struct block *block,
    struct tile *p, struct tile *ds)
{
    float deltas[ATTENTION_BLOCK];
    struct sums sums = {{{0}}}, k;
    make_deltas(args, block, deltas);
    load_block(block, args->k, &k);
    for (int64_t from = 0; from < block->first + block->count; from += SOFTMAX_SEGMENT) {
        struct run run = keys_from(block, from);
        form_scores(block, args->q, args->k, &run, p);
        form_tile(block, args->d_o, args->v, from, run.count, ds);
        for (int64_t i = 0; i < block->count; i++) {
            int64_t column = column_of(block, block->first + i);
            make_p(block, p, &run, i, args->max[column], args->log_z[column]);
            for (int64_t j = 0; j < seen(block, &run, i); j++)
                ds->at[i][j] = (p->at[i][j] * (ds->at[i][j] - deltas[i])) * block->shape->scale;
        }
        add_tile(block, ds, 0, args->k, from, run.shared, &sums);
        add_triangle(block, ds, &run, &k, &sums);
    }
    store_block(block, &sums, args->dq);
}

static void queries_items(const void *launched, int64_t begin, int64_t end)
{
    const struct attention_queries_args *args = launched;
    struct tile p, ds;
    for (int64_t item = begin; item < end; item++) {
        struct block block = block_of(&args->shape, item);
        queries_block(args, &block, &p, &ds);
    }
}

/* ---- backward: a block's keys and the queries behind it -------------------------------------- */

/* A column of [rows, heads] over a run of queries. */
static void load_column(
    const struct block *block, const float *column, int64_t from, int64_t count, float *to)
{
    for (int64_t j = 0; j < count; j++)
        to[j] = column[column_of(block, from + j)];
    for (int64_t j = count; j < lane_blocks(count) * ARITH_LANES; j++)
        to[j] = 0.0f;
}

/* Where the block meets itself: key i is seen by its queries i and later, `own` of them in all. */
static void add_own_queries(const struct block *block, const struct tile *tile, int64_t own,
    const struct sums *block_rows, struct sums *sums)
{
    for (int64_t i = 0; i < block->count; i++)
        add_rows(
            tile->at[i] + i, block_rows->at + i, own - i, sums->at[i], block->shape->head_columns);
}

/* Turns scores of keys with queries [from, from + count) into p, and products dO V^T into ds. */
static void make_turned(const struct attention_keys_args *args, const struct block *block,
    int64_t from, int64_t count, struct tile *p, struct tile *ds)
{
    float max[SOFTMAX_SEGMENT], log_z[SOFTMAX_SEGMENT], delta[SOFTMAX_SEGMENT];
    load_column(block, args->max, from, count, max);
    load_column(block, args->log_z, from, count, log_z);
    load_column(block, args->delta, from, count, delta);
    for (int64_t i = 0; i < block->count; i++) {
        exp_lanes(p->at[i], max, log_z, count);
        for (int64_t j = 0; j < count; j++)
            ds->at[i][j] = (p->at[i][j] * (ds->at[i][j] - delta[j])) * block->shape->scale;
    }
}

static void keys_block(const struct attention_keys_args *args, const struct block *block,
    struct tile *p, struct tile *ds)
{
    struct sums dk = {{{0}}}, dv = {{{0}}}, rows;
    int64_t count;
    for (int64_t from = block->first; from < block->shape->tokens; from += count) {
        count = least(SOFTMAX_SEGMENT, block->shape->tokens - from);
        form_tile(block, args->k, args->q, from, count, p);
        scale_rows(block, p, count);
        form_tile(block, args->v, args->d_o, from, count, ds);
        make_turned(args, block, from, count, p, ds);
        int64_t own = from == block->first ? block->count : 0;
        if (own) {
            load_block(block, args->q, &rows);
            add_own_queries(block, ds, own, &rows, &dk);
            load_block(block, args->d_o, &rows);
            add_own_queries(block, p, own, &rows, &dv);
        }
        add_tile(block, ds, own, args->q, from + own, count - own, &dk);
        add_tile(block, p, own, args->d_o, from + own, count - own, &dv);
    }
    store_block(block, &dk, args->dk);
    store_block(block, &dv, args->dv);
}

static void keys_items(const void *launched, int64_t begin, int64_t end)
{
    const struct attention_keys_args *args = launched;
    struct tile p, ds;
    for (int64_t item = begin; item < end; item++) {
        struct block block = block_of(&args->shape, item);
        keys_block(args, &block, &p, &ds);
    }
}

extern const struct attention_functions ISA_VARIANT(attention_functions);
const struct attention_functions ISA_VARIANT(attention_functions) = {
    .forward = forward_items,
    .queries = queries_items,
    .keys = keys_items,
};
