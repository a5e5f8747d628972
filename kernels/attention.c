/* The kernels of attention: what a launch costs and touches, and its division over a team. The
 * arithmetic is in attention_isa.c. */
#include "kernels/attention.h"
#include "kernels/attention_variants.h"
#include "kernels/isa_variants.h"
#include "kernels/launch.h"

ISA_DECLARE(struct attention_functions, attention_functions);
static const struct attention_functions *const variants[ISA_COUNT] = ISA_TABLE(attention_functions);

/* Later blocks of a sequence have more keys: several parts per thread even that out. */
#define PARTS_PER_THREAD 8

struct job {
    attention_items *function;
    const void *args;
    int64_t items;
};

static void run_part(void *context, int index, int parts)
{
    const struct job *job = context;
    struct item_range range = item_range(job->items, index, parts);
    job->function(job->args, range.begin, range.end);
}

static void run(const struct dev_team *team, attention_items *function, const void *args)
{
    const struct attention_shape *shape = args;
    int64_t blocks = (shape->tokens + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    struct job job = {function, args, shape->sequences * shape->heads * blocks};
    int64_t most = team_size(team) > 1 ? PARTS_PER_THREAD * team_size(team) : 1;
    if (job.items > 0)
        team_run(team, (int)(job.items < most ? job.items : most), run_part, &job);
}

/* ---- what a launch costs and touches --------------------------------------------------------- */

/* `products` of the lower triangle, each T (T + 1) / 2 * D multiply-adds per head; `matrices` of
 * [rows, heads * D] and `columns` of [rows, heads] read or written. */
static struct kernel_cost cost_of(
    const struct attention_shape *shape, int products, int matrices, int columns)
{
    double rows = (double)shape->sequences * (double)shape->tokens;
    double pairs = rows * (double)(shape->tokens + 1) / 2 * (double)shape->heads;
    double elements = rows * (double)(shape->heads * shape->head_columns);
    return (struct kernel_cost){.flops = pairs * (2.0 * products * (double)shape->head_columns + 4),
        .bytes = matrices * elements * (double)dtype_bytes(shape->type) +
                 columns * rows * (double)shape->heads * 4,
        .rate = shape->type == DTYPE_BF16 ? DEV_RATE_BF16 : DEV_RATE_F32};
}

static int64_t matrix_bytes(const struct attention_shape *shape)
{
    return shape->sequences * shape->tokens * shape->heads * shape->head_columns *
           dtype_bytes(shape->type);
}

static int64_t column_bytes(const struct attention_shape *shape)
{
    return shape->sequences * shape->tokens * shape->heads * (int64_t)sizeof(float);
}

static int add_all(struct dev_access *ranges, int count, const void *const *from, int arrays,
    int64_t bytes, bool write)
{
    for (int i = 0; i < arrays; i++)
        count = add_access(ranges, count, from[i], bytes, write);
    return count;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void forward_cpu(const void *args, const struct dev_team *team)
{
    run(team, variants[isa_selected()]->forward, args);
}

/* Scores are formed for their maxima and again for the sums; the tokens of the first run still have
 * theirs. */
static void forward_cost(const void *args, struct kernel_cost *cost)
{
    const struct attention_shape *shape = args;
    double first = (double)(shape->tokens < SOFTMAX_SEGMENT ? shape->tokens : SOFTMAX_SEGMENT);
    double pairs = first * (first + 1) / 2 * (double)(shape->sequences * shape->heads);
    *cost = cost_of(shape, 3, 4, 2);
    cost->flops -= 2.0 * pairs * (double)shape->head_columns;
}

static int forward_access(const void *launched, struct dev_access *ranges)
{
    const struct attention_args *args = launched;
    const void *read[] = {args->q, args->k, args->v}, *written[] = {args->o};
    const void *columns[] = {args->max, args->log_z};
    int count = add_all(ranges, 0, read, 3, matrix_bytes(&args->shape), false);
    count = add_all(ranges, count, written, 1, matrix_bytes(&args->shape), true);
    return add_all(ranges, count, columns, 2, column_bytes(&args->shape), true);
}

int attention_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_attention = {
    .name = "attention",
    .cpu = forward_cpu,
    .cuda = attention_cuda,
    .cost = forward_cost,
    .access = forward_access,
};

void attention(struct stream *stream, const struct attention_args *args)
{
    dev_launch(stream, &kernel_attention, args, sizeof *args);
}

/* ---- backward: queries ----------------------------------------------------------------------- */

static void queries_cpu(const void *args, const struct dev_team *team)
{
    run(team, variants[isa_selected()]->queries, args);
}

static void queries_cost(const void *args, struct kernel_cost *cost)
{
    *cost = cost_of(args, 3, 6, 3);
}

static int queries_access(const void *launched, struct dev_access *ranges)
{
    const struct attention_queries_args *args = launched;
    const void *read[] = {args->q, args->k, args->v, args->o, args->d_o}, *written[] = {args->dq};
    const void *columns[] = {args->max, args->log_z}, *written_columns[] = {args->delta};
    int count = add_all(ranges, 0, read, 5, matrix_bytes(&args->shape), false);
    count = add_all(ranges, count, columns, 2, column_bytes(&args->shape), false);
    count = add_all(ranges, count, written, 1, matrix_bytes(&args->shape), true);
    return add_all(ranges, count, written_columns, 1, column_bytes(&args->shape), true);
}

int attention_queries_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_attention_queries = {
    .name = "attention_queries",
    .cpu = queries_cpu,
    .cuda = attention_queries_cuda,
    .cost = queries_cost,
    .access = queries_access,
};

void attention_queries(struct stream *stream, const struct attention_queries_args *args)
{
    dev_launch(stream, &kernel_attention_queries, args, sizeof *args);
}

/* ---- backward: keys and values --------------------------------------------------------------- */

static void keys_cpu(const void *args, const struct dev_team *team)
{
    run(team, variants[isa_selected()]->keys, args);
}

static void keys_cost(const void *args, struct kernel_cost *cost)
{
    *cost = cost_of(args, 4, 6, 3);
}

static int keys_access(const void *launched, struct dev_access *ranges)
{
    const struct attention_keys_args *args = launched;
    const void *read[] = {args->q, args->k, args->v, args->d_o}, *written[] = {args->dk, args->dv};
    const void *columns[] = {args->max, args->log_z, args->delta};
    int count = add_all(ranges, 0, read, 4, matrix_bytes(&args->shape), false);
    count = add_all(ranges, count, columns, 3, column_bytes(&args->shape), false);
    return add_all(ranges, count, written, 2, matrix_bytes(&args->shape), true);
}

int attention_keys_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_attention_keys = {
    .name = "attention_keys",
    .cpu = keys_cpu,
    .cuda = attention_keys_cuda,
    .cost = keys_cost,
    .access = keys_access,
};

void attention_keys(struct stream *stream, const struct attention_keys_args *args)
{
    dev_launch(stream, &kernel_attention_keys, args, sizeof *args);
}
