/* The experts' matrix products: one launch over all groups of rows, each with its own matrix.
 *
 * Every group is cut into blocks of rows by columns, and a team takes blocks one by one, whichever
 * group they belong to: many small groups keep all threads at work, and so does one large group. A
 * block is an ordinary product (kernels/gemm.h) on the calling thread alone; its bits do not depend
 * on the cut. A block repacks its operands, which costs one part in its rows for the matrix and one
 * part in its columns for the rows; blocks are therefore large, and cut finer only where a team
 * would be left without work.
 *
 * Where the result is stored in BF16 the block's chains are formed in private FP32 scratch and
 * rounded once whole. */
#include "kernels/gemm.h"
#include "kernels/isa_variants.h"
#include "kernels/launch.h"
#include "kernels/moe.h"
#include "kernels/moe_variants.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <threads.h>

ISA_DECLARE(struct moe_functions, moe_functions);
static const struct moe_functions *const variants[ISA_COUNT] = ISA_TABLE(moe_functions);

enum {
    ROWS_MULTIPLE = 42, /* whole tiles of 6 and of 14 rows */
    COLUMNS_MULTIPLE = 32,
    MOST_ROWS = 96 * ROWS_MULTIPLE,
    MOST_ROUNDED_ROWS = 12 * ROWS_MULTIPLE, /* where the block lies in scratch */
    FEWEST_ROWS = 3 * ROWS_MULTIPLE,
    MOST_COLUMNS = 1024,
    MOST_ROUNDED_COLUMNS = 1024,
    FEWEST_COLUMNS = 128,
    BLOCKS_PER_THREAD = 4, /* so that the last one to finish keeps the others waiting briefly */
    SCRATCH_PAD = 16,      /* keeps rows of a block from meeting in one set of the cache */
    STACK_ROWS = 16,
    STACK_COLUMNS = 256
};

/* ---- blocks ------------------------------------------------------------------------------- */

/* The largest block of a launch. */
struct cut {
    int64_t rows, columns;
};

static int64_t parts_of(int64_t count, int64_t most)
{
    return (count + most - 1) / most;
}

/* The size of nearly equal parts, each a multiple and at most `most`, itself a multiple. */
static int64_t even_part(int64_t count, int64_t most, int64_t multiple)
{
    int64_t parts = parts_of(count, most);
    return parts > 1 ? parts_of(parts_of(count, parts), multiple) * multiple : count;
}

/* Blocks of a product of `rows` by `columns`. */
static int64_t count_blocks(int64_t rows, int64_t columns, const struct cut *cut)
{
    return parts_of(rows, cut->rows) * parts_of(columns, cut->columns);
}

/* Part `index` of those: its place in the product. */
struct block {
    int64_t row, rows, column, columns;
};

static struct block block_at(int64_t rows, int64_t columns, const struct cut *cut, int64_t index)
{
    int64_t row_size = even_part(rows, cut->rows, ROWS_MULTIPLE);
    int64_t column_size = even_part(columns, cut->columns, COLUMNS_MULTIPLE);
    int64_t across = parts_of(columns, cut->columns);
    struct block block = {.row = index / across * row_size, .column = index % across * column_size};
    block.rows = rows - block.row < row_size ? rows - block.row : row_size;
    block.columns = columns - block.column < column_size ? columns - block.column : column_size;
    return block;
}

/* Halves `cut`, the largest, until every thread has blocks enough or they are as small as is worth
 * while. count(context, cut): the launch's blocks under a cut. */
static struct cut choose_cut(struct cut cut, const struct dev_team *team,
    int64_t (*count)(const void *args, const struct cut *cut), const void *args)
{
    int threads = team ? team_size(team) : 1;
    while (threads > 1 && count(args, &cut) < (int64_t)threads * BLOCKS_PER_THREAD) {
        if (cut.columns >= cut.rows && cut.columns > FEWEST_COLUMNS)
            cut.columns /= 2;
        else if (cut.rows > FEWEST_ROWS)
            cut.rows /= 2;
        else if (cut.columns > FEWEST_COLUMNS)
            cut.columns /= 2;
        else
            break;
    }
    return cut;
}

/* Parts of a launch of so many blocks: runs of them where they are many. */
static int team_parts(const struct dev_team *team, int64_t blocks)
{
    int64_t most = 16 * (int64_t)(team ? team_size(team) : 1);
    return (int)(blocks < most ? blocks : most);
}

/* A product on the calling thread alone. */
static void multiply(const struct gemm_args *product)
{
    gemm_cpu(product, NULL);
}

static const char *matrix_at(const struct expert_matrices *m, int32_t number, int64_t bytes)
{
    if (number < m->owned_count)
        return (const char *)m->owned + number * bytes;
    return (const char *)m->lent + (number - m->owned_count) * bytes;
}

/* ---- scratch ------------------------------------------------------------------------------
 * A block of FP32 for each thread that outlives the launch, as the GEMM's packing memory. */

static once_flag slot_once = ONCE_FLAG_INIT;
static tss_t slot;
static atomic_bool slot_made;

static void make_slot(void)
{
    atomic_store(&slot_made, tss_create(&slot, free) == thrd_success);
}

int64_t expert_matmul_scratch_bytes(void)
{
    int64_t bytes =
        (int64_t)sizeof(float) * MOST_ROUNDED_ROWS * (MOST_ROUNDED_COLUMNS + (int64_t)SCRATCH_PAD);
    return (bytes + 4095) / 4096 * 4096;
}

/* This thread's block, or NULL when memory is short. */
static float *thread_scratch(void)
{
    call_once(&slot_once, make_slot);
    if (!atomic_load(&slot_made))
        return NULL;
    float *scratch = tss_get(slot);
    if (scratch)
        return scratch;
    scratch = aligned_alloc(4096, (size_t)expert_matmul_scratch_bytes());
    if (scratch && tss_set(slot, scratch) != thrd_success) {
        free(scratch);
        return NULL;
    }
    return scratch;
}

/* ---- expert matmul ------------------------------------------------------------------------ */

struct matmul_job {
    const struct expert_matmul_args *args;
    struct cut cut;
    int64_t blocks;
};

static int64_t matmul_blocks(const void *launched, const struct cut *cut)
{
    const struct expert_matmul_args *args = launched;
    int64_t blocks = 0;
    for (int64_t i = 0; i < args->group_count; i++)
        blocks += count_blocks(args->groups[i].rows, args->n, cut);
    return blocks;
}

/* One half of a block's chain: rows from `row` of `a`, columns from block->column of the matrix. */
static struct gemm_args half_product(const struct expert_matmul_args *args, const void *a,
    const struct expert_matrices *weights, const struct expert_group *group,
    const struct block *block)
{
    const int64_t element_bytes = dtype_bytes(args->type);
    const bool turned = args->layout == GEMM_NT;
    const char *matrix = matrix_at(weights, group->weight, args->n * args->k * element_bytes);
    return (struct gemm_args){
        .layout = args->layout,
        .init = GEMM_FRESH,
        .a_type = args->type,
        .b_type = args->type,
        .m = block->rows,
        .n = block->columns,
        .k = args->k,
        .a = (const char *)a + (group->first + block->row) * args->k * element_bytes,
        .lda = args->k,
        .b = matrix + block->column * (turned ? args->k : 1) * element_bytes,
        .ldb = turned ? args->k : args->n,
    };
}

static void whole_chain(const struct expert_matmul_args *args, const struct expert_group *group,
    const struct block *block, float *c, int64_t ldc)
{
    struct gemm_args product = half_product(args, args->a, &args->weights, group, block);
    product.c = c;
    product.ldc = ldc;
    multiply(&product);
    if (!args->a_then)
        return;
    product = half_product(args, args->a_then, &args->weights_then, group, block);
    product.init = GEMM_CHAIN;
    product.c = c;
    product.ldc = ldc;
    multiply(&product);
}

/* Chains in `scratch`, then rounded. */
static void rounded_block(const struct expert_matmul_args *args, const struct expert_group *group,
    const struct block *block, float *scratch, int64_t scratch_ld)
{
    const struct moe_functions *functions = variants[isa_selected()];
    uint16_t *out = (uint16_t *)args->out + (group->first + block->row) * args->n + block->column;
    whole_chain(args, group, block, scratch, scratch_ld);
    for (int64_t row = 0; row < block->rows; row++)
        functions->round_bf16(out + row * args->n, scratch + row * scratch_ld, block->columns);
}

/* Without memory of its own the thread works on its stack, piece by piece: slower, the same bits.
 */
static __attribute__((noinline)) void rounded_block_on_stack(const struct expert_matmul_args *args,
    const struct expert_group *group, const struct block *block)
{
    float scratch[STACK_ROWS * STACK_COLUMNS];
    const struct cut cut = {STACK_ROWS, STACK_COLUMNS};
    for (int64_t row = 0; row < block->rows; row += cut.rows)
        for (int64_t column = 0; column < block->columns; column += cut.columns) {
            struct block piece = {block->row + row, cut.rows, block->column + column, cut.columns};
            if (piece.rows > block->rows - row)
                piece.rows = block->rows - row;
            if (piece.columns > block->columns - column)
                piece.columns = block->columns - column;
            rounded_block(args, group, &piece, scratch, STACK_COLUMNS);
        }
}

static void matmul_block(const struct expert_matmul_args *args, const struct expert_group *group,
    const struct block *block)
{
    if (args->out_type == DTYPE_F32) {
        float *out = (float *)args->out + (group->first + block->row) * args->n + block->column;
        whole_chain(args, group, block, out, args->n);
        return;
    }
    float *scratch = thread_scratch();
    if (scratch)
        rounded_block(args, group, block, scratch, block->columns + SCRATCH_PAD);
    else
        rounded_block_on_stack(args, group, block);
}

/* A run of blocks, counted over all groups. */
static void matmul_part(void *context, int index, int parts)
{
    const struct matmul_job *job = context;
    const struct expert_matmul_args *args = job->args;
    struct item_range run = item_range(job->blocks, index, parts);
    int64_t before = 0;
    for (int64_t i = 0; i < args->group_count && before < run.end; i++) {
        const struct expert_group *group = &args->groups[i];
        int64_t blocks = count_blocks(group->rows, args->n, &job->cut);
        int64_t first = run.begin > before ? run.begin - before : 0;
        int64_t end = run.end - before < blocks ? run.end - before : blocks;
        for (int64_t at = first; at < end; at++) {
            struct block block = block_at(group->rows, args->n, &job->cut, at);
            matmul_block(args, group, &block);
        }
        before += blocks;
    }
}

static void matmul_cpu(const void *launched, const struct dev_team *team)
{
    struct matmul_job job = {.args = launched};
    const struct cut direct = {MOST_ROWS, MOST_COLUMNS};
    const struct cut rounded_cut = {MOST_ROUNDED_ROWS, MOST_ROUNDED_COLUMNS};
    job.cut = choose_cut(
        job.args->out_type == DTYPE_F32 ? direct : rounded_cut, team, matmul_blocks, launched);
    job.blocks = matmul_blocks(launched, &job.cut);
    team_run(team, team_parts(team, job.blocks), matmul_part, &job);
}

/* The groups are the device's to read: counted are all rows, and a matrix for each group. */
static void matmul_cost(const void *launched, struct kernel_cost *cost)
{
    const struct expert_matmul_args *args = launched;
    double rows = (double)args->rows, n = (double)args->n, k = (double)args->k;
    double groups = (double)args->group_count, halves = args->a_then ? 2 : 1;
    *cost = (struct kernel_cost){
        .flops = 2.0 * rows * n * k * halves,
        .bytes = halves * (rows * k + groups * n * k) * (double)dtype_bytes(args->type) +
                 rows * n * (double)dtype_bytes(args->out_type) +
                 groups * sizeof(struct expert_group),
        .rate = args->type == DTYPE_BF16 ? DEV_RATE_BF16 : DEV_RATE_F32,
        .m = args->group_count > 0 ? (args->rows + args->group_count - 1) / args->group_count : 0,
        .n = args->n,
        .k = args->k * (args->a_then ? 2 : 1),
    };
}

static int add_groups(
    struct dev_access *ranges, int count, const struct expert_group *groups, int64_t group_count)
{
    return add_access(
        ranges, count, groups, group_count * (int64_t)sizeof(struct expert_group), false);
}

static int add_matrices(
    struct dev_access *ranges, int count, const struct expert_matrices *m, int64_t bytes)
{
    count = add_access(ranges, count, m->owned, m->owned_count * bytes, false);
    return add_access(ranges, count, m->lent, m->lent_count * bytes, false);
}

static int matmul_access(const void *launched, struct dev_access *ranges)
{
    const struct expert_matmul_args *args = launched;
    int64_t a_bytes = args->rows * args->k * dtype_bytes(args->type);
    int64_t out_bytes = args->rows * args->n * dtype_bytes(args->out_type);
    int64_t matrix_bytes = args->n * args->k * dtype_bytes(args->type);
    int count = add_groups(ranges, 0, args->groups, args->group_count);
    count = add_access(ranges, count, args->a, a_bytes, false);
    count = add_matrices(ranges, count, &args->weights, matrix_bytes);
    if (args->a_then) {
        count = add_access(ranges, count, args->a_then, a_bytes, false);
        count = add_matrices(ranges, count, &args->weights_then, matrix_bytes);
    }
    return add_access(ranges, count, args->out, out_bytes, true);
}

int expert_matmul_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_expert_matmul = {
    .name = "expert_matmul",
    .cpu = matmul_cpu,
    .cuda = expert_matmul_cuda,
    .cost = matmul_cost,
    .access = matmul_access,
};

void expert_matmul(struct stream *stream, const struct expert_matmul_args *args)
{
    dev_launch(stream, &kernel_expert_matmul, args, sizeof *args);
}

/* ---- expert gradient ---------------------------------------------------------------------- */

struct gradient_job {
    const struct expert_gradient_args *args;
    struct cut cut;
    int64_t blocks;
};

static int64_t gradient_blocks(const void *launched, const struct cut *cut)
{
    const struct expert_gradient_args *args = launched;
    return args->group_count * count_blocks(args->m, args->n, cut);
}

static void gradient_block(const struct expert_gradient_args *args,
    const struct expert_group *group, const struct block *block)
{
    const int64_t element_bytes = dtype_bytes(args->type), elements = args->m * args->n;
    float *gradient = group->weight < args->owned_count
                          ? args->owned + group->weight * elements
                          : args->lent + (group->weight - args->owned_count) * elements;
    const struct gemm_args product = {
        .layout = GEMM_TN,
        .init = (enum gemm_init)group->init,
        .a_type = args->type,
        .b_type = args->type,
        .m = block->rows,
        .n = block->columns,
        .k = group->rows,
        .a = (const char *)args->a + (group->first * args->m + block->row) * element_bytes,
        .lda = args->m,
        .b = (const char *)args->b + (group->first * args->n + block->column) * element_bytes,
        .ldb = args->n,
        .c = gradient + block->row * args->n + block->column,
        .ldc = args->n,
    };
    multiply(&product);
}

static void gradient_part(void *context, int index, int parts)
{
    const struct gradient_job *job = context;
    const struct expert_gradient_args *args = job->args;
    const int64_t each = count_blocks(args->m, args->n, &job->cut);
    struct item_range run = item_range(job->blocks, index, parts);
    for (int64_t at = run.begin; at < run.end; at++) {
        struct block block = block_at(args->m, args->n, &job->cut, at % each);
        gradient_block(args, &args->groups[at / each], &block);
    }
}

static void gradient_cpu(const void *launched, const struct dev_team *team)
{
    struct gradient_job job = {.args = launched};
    job.cut = choose_cut((struct cut){MOST_ROWS, MOST_COLUMNS}, team, gradient_blocks, launched);
    job.blocks = gradient_blocks(launched, &job.cut);
    team_run(team, team_parts(team, job.blocks), gradient_part, &job);
}

/* A gradient counts as written and not read: which ones continue a sum the groups alone say. */
static void gradient_cost(const void *launched, struct kernel_cost *cost)
{
    const struct expert_gradient_args *args = launched;
    double rows = (double)args->rows, m = (double)args->m, n = (double)args->n;
    double groups = (double)args->group_count;
    *cost = (struct kernel_cost){
        .flops = 2.0 * rows * m * n,
        .bytes = rows * (m + n) * (double)dtype_bytes(args->type) + groups * m * n * sizeof(float) +
                 groups * sizeof(struct expert_group),
        .rate = args->type == DTYPE_BF16 ? DEV_RATE_BF16 : DEV_RATE_F32,
        .m = args->m,
        .n = args->n,
        .k = args->group_count > 0 ? (args->rows + args->group_count - 1) / args->group_count : 0,
    };
}

static int gradient_access(const void *launched, struct dev_access *ranges)
{
    const struct expert_gradient_args *args = launched;
    int64_t matrix_bytes = args->m * args->n * (int64_t)sizeof(float);
    int count = add_groups(ranges, 0, args->groups, args->group_count);
    count =
        add_access(ranges, count, args->a, args->rows * args->m * dtype_bytes(args->type), false);
    count =
        add_access(ranges, count, args->b, args->rows * args->n * dtype_bytes(args->type), false);
    count = add_access(ranges, count, args->owned, args->owned_count * matrix_bytes, true);
    return add_access(ranges, count, args->lent, args->lent_count * matrix_bytes, true);
}

int expert_gradient_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_expert_gradient = {
    .name = "expert_gradient",
    .cpu = gradient_cpu,
    .cuda = expert_gradient_cuda,
    .cost = gradient_cost,
    .access = gradient_access,
};

void expert_gradient(struct stream *stream, const struct expert_gradient_args *args)
{
    dev_launch(stream, &kernel_expert_gradient, args, sizeof *args);
}
