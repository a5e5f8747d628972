/* The strip kernels: what each launch costs and touches, and its division over a team. Rows are
 * independent, so a team divides them; the arithmetic of a row is in strip_isa.c. */
#include "kernels/strip.h"
#include "kernels/isa_variants.h"
#include "kernels/launch.h"
#include "kernels/strip_variants.h"

ISA_DECLARE(struct strip_functions, strip_functions);
static const struct strip_functions *const variants[ISA_COUNT] = ISA_TABLE(strip_functions);

/* Operations of arith_exp and arith_log, a fused multiply-add counted as two. */
#define EXP_FLOPS 30
#define LOG_FLOPS 36

/* A launch while it runs. */
struct strip_job {
    strip_rows *function;
    const void *args;
    int64_t rows;
};

static void run_part(void *context, int index, int parts)
{
    const struct strip_job *job = context;
    struct item_range rows = item_range(job->rows, index, parts);
    job->function(job->args, rows.begin, rows.end);
}

/* row_elements: the work of one row. */
static void run_rows(const struct dev_team *team, strip_rows *function, const void *args,
    int64_t rows, int64_t row_elements)
{
    struct strip_job job = {function, args, rows};
    team_run(team, item_parts(team, rows, row_elements), run_part, &job);
}

static const struct strip_functions *functions(void)
{
    return variants[isa_selected()];
}

static int64_t f32_bytes(int64_t count)
{
    return count * (int64_t)sizeof(float);
}

static int64_t target_bytes(int64_t count)
{
    return count * (int64_t)sizeof(int64_t);
}

/* ---- fold --------------------------------------------------------------------------------- */

static void fold_cpu(const void *args, const struct dev_team *team)
{
    const struct strip_fold_args *fold = args;
    run_rows(team, functions()->fold, args, fold->rows, fold->columns);
}

/* Per element a comparison, a subtraction, an exponential and an addition. */
static void fold_cost(const void *args, struct kernel_cost *cost)
{
    const struct strip_fold_args *fold = args;
    double elements = (double)fold->rows * (double)fold->columns;
    int64_t state_bytes = f32_bytes(fold->rows) * (fold->fresh ? 2 : 4);
    double flops = elements * (EXP_FLOPS + 3);
    double bytes = elements * sizeof(float) +
                   (double)(state_bytes + f32_bytes(fold->rows) + target_bytes(fold->rows));
    *cost = (struct kernel_cost){.flops = flops, .bytes = bytes, .rate = DEV_RATE_F32};
}

static int fold_access(const void *args, struct dev_access *ranges)
{
    const struct strip_fold_args *fold = args;
    int64_t rows = fold->rows;
    int64_t logit_bytes = strided_f32_bytes(rows, fold->columns, fold->ld);
    int count = add_access(ranges, 0, fold->logits, logit_bytes, false);
    count = add_access(ranges, count, fold->targets, target_bytes(rows), false);
    count = add_access(ranges, count, fold->max, f32_bytes(rows), true);
    count = add_access(ranges, count, fold->sum, f32_bytes(rows), true);
    return add_access(ranges, count, fold->target_logit, f32_bytes(rows), true);
}

int strip_fold_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_strip_fold = {
    .name = "strip_fold",
    .cpu = fold_cpu,
    .cuda = strip_fold_cuda,
    .cost = fold_cost,
    .access = fold_access,
};

void strip_fold(struct stream *stream, const struct strip_fold_args *args)
{
    dev_launch(stream, &kernel_strip_fold, args, sizeof *args);
}

/* ---- finish ------------------------------------------------------------------------------- */

static void finish_cpu(const void *args, const struct dev_team *team)
{
    const struct strip_finish_args *finish = args;
    /* Scalar code: a row's exponentials and its logarithm take as long as several elements each. */
    int64_t row_elements = 8 * (2 * finish->shards + 1);
    run_rows(team, functions()->finish, args, finish->rows, row_elements);
}

static void finish_cost(const void *args, struct kernel_cost *cost)
{
    const struct strip_finish_args *finish = args;
    double rows = (double)finish->rows, shards = (double)finish->shards;
    double flops = rows * (shards * (2 * EXP_FLOPS + 6) + LOG_FLOPS + 2);
    double bytes = rows * ((2 * shards + 4) * sizeof(float) + sizeof(int64_t));
    *cost = (struct kernel_cost){.flops = flops, .bytes = bytes, .rate = DEV_RATE_F32};
}

static int finish_access(const void *args, struct dev_access *ranges)
{
    const struct strip_finish_args *finish = args;
    int64_t rows = finish->rows;
    int64_t state_bytes = strided_f32_bytes(finish->shards, rows, finish->stride);
    int count = add_access(ranges, 0, finish->shard_max, state_bytes, false);
    count = add_access(ranges, count, finish->shard_sum, state_bytes, false);
    count = add_access(ranges, count, finish->targets, target_bytes(rows), false);
    count = add_access(ranges, count, finish->target_logit, f32_bytes(rows), false);
    count = add_access(ranges, count, finish->max, f32_bytes(rows), true);
    count = add_access(ranges, count, finish->log_z, f32_bytes(rows), true);
    return add_access(ranges, count, finish->loss, f32_bytes(rows), true);
}

int strip_finish_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_strip_finish = {
    .name = "strip_finish",
    .cpu = finish_cpu,
    .cuda = strip_finish_cuda,
    .cost = finish_cost,
    .access = finish_access,
};

void strip_finish(struct stream *stream, const struct strip_finish_args *args)
{
    dev_launch(stream, &kernel_strip_finish, args, sizeof *args);
}

/* ---- log-softmax -------------------------------------------------------------------------- */

static void log_softmax_cpu(const void *args, const struct dev_team *team)
{
    const struct strip_log_softmax_args *log_softmax = args;
    run_rows(team, functions()->log_softmax, args, log_softmax->rows, log_softmax->columns);
}

static void log_softmax_cost(const void *args, struct kernel_cost *cost)
{
    const struct strip_log_softmax_args *log_softmax = args;
    double rows = (double)log_softmax->rows;
    double elements = rows * (double)log_softmax->columns;
    double flops = 2 * elements;
    double bytes = (2 * elements + 2 * rows) * sizeof(float);
    *cost = (struct kernel_cost){.flops = flops, .bytes = bytes, .rate = DEV_RATE_F32};
}

static int log_softmax_access(const void *args, struct dev_access *ranges)
{
    const struct strip_log_softmax_args *log_softmax = args;
    int64_t rows = log_softmax->rows, columns = log_softmax->columns;
    int64_t logit_bytes = strided_f32_bytes(rows, columns, log_softmax->ld);
    int64_t out_bytes = strided_f32_bytes(rows, columns, log_softmax->ld_out);
    int count = add_access(ranges, 0, log_softmax->logits, logit_bytes, false);
    count = add_access(ranges, count, log_softmax->max, f32_bytes(rows), false);
    count = add_access(ranges, count, log_softmax->log_z, f32_bytes(rows), false);
    return add_access(ranges, count, log_softmax->out, out_bytes, true);
}

int strip_log_softmax_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_strip_log_softmax = {
    .name = "strip_log_softmax",
    .cpu = log_softmax_cpu,
    .cuda = strip_log_softmax_cuda,
    .cost = log_softmax_cost,
    .access = log_softmax_access,
};

void strip_log_softmax(struct stream *stream, const struct strip_log_softmax_args *args)
{
    dev_launch(stream, &kernel_strip_log_softmax, args, sizeof *args);
}

/* ---- residual ----------------------------------------------------------------------------- */

static void residual_cpu(const void *args, const struct dev_team *team)
{
    const struct strip_residual_args *residual = args;
    run_rows(team, functions()->residual, args, residual->rows, residual->columns);
}

/* Per element two subtractions (none when the log-softmax is given), an exponential, a product. */
static void residual_cost(const void *args, struct kernel_cost *cost)
{
    const struct strip_residual_args *residual = args;
    double rows = (double)residual->rows;
    double elements = rows * (double)residual->columns;
    double flops = elements * (EXP_FLOPS + (residual->max ? 3 : 1));
    double bytes = (2 * elements + (residual->max ? 2 * rows : 0)) * sizeof(float) +
                   (double)target_bytes(residual->rows);
    *cost = (struct kernel_cost){.flops = flops, .bytes = bytes, .rate = DEV_RATE_F32};
}

static int residual_access(const void *args, struct dev_access *ranges)
{
    const struct strip_residual_args *residual = args;
    int64_t rows = residual->rows, columns = residual->columns;
    int64_t logit_bytes = strided_f32_bytes(rows, columns, residual->ld);
    int64_t out_bytes = strided_f32_bytes(rows, columns, residual->ld_out);
    int count = add_access(ranges, 0, residual->logits, logit_bytes, false);
    count = add_access(ranges, count, residual->targets, target_bytes(rows), false);
    if (residual->max) {
        count = add_access(ranges, count, residual->max, f32_bytes(rows), false);
        count = add_access(ranges, count, residual->log_z, f32_bytes(rows), false);
    }
    return add_access(ranges, count, residual->out, out_bytes, true);
}

int strip_residual_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_strip_residual = {
    .name = "strip_residual",
    .cpu = residual_cpu,
    .cuda = strip_residual_cuda,
    .cost = residual_cost,
    .access = residual_access,
};

void strip_residual(struct stream *stream, const struct strip_residual_args *args)
{
    dev_launch(stream, &kernel_strip_residual, args, sizeof *args);
}

/* ---- take target -------------------------------------------------------------------------- */

/* A few bytes per row: not worth a team. */
static void take_target_cpu(const void *args, const struct dev_team *team)
{
    const struct strip_take_target_args *take = args;
    (void)team;
    for (int64_t row = 0; row < take->rows; row++) {
        int64_t column = take->targets[row] - take->first_column;
        if (take->targets[row] != VOCAB_IGNORED && column >= 0 && column < take->columns)
            take->target_logit[row] = take->candidate[row];
    }
}

static void take_target_cost(const void *args, struct kernel_cost *cost)
{
    const struct strip_take_target_args *take = args;
    double bytes = (double)(2 * f32_bytes(take->rows) + target_bytes(take->rows));
    *cost = (struct kernel_cost){.bytes = bytes, .rate = DEV_RATE_F32};
}

static int take_target_access(const void *args, struct dev_access *ranges)
{
    const struct strip_take_target_args *take = args;
    int64_t rows = take->rows;
    int count = add_access(ranges, 0, take->candidate, f32_bytes(rows), false);
    count = add_access(ranges, count, take->targets, target_bytes(rows), false);
    return add_access(ranges, count, take->target_logit, f32_bytes(rows), true);
}

int strip_take_target_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_strip_take_target = {
    .name = "strip_take_target",
    .cpu = take_target_cpu,
    .cuda = strip_take_target_cuda,
    .cost = take_target_cost,
    .access = take_target_access,
};

void strip_take_target(struct stream *stream, const struct strip_take_target_args *args)
{
    dev_launch(stream, &kernel_strip_take_target, args, sizeof *args);
}
