/* The kernels of RMSNorm: what a launch costs and touches, and its division over a team. The
 * arithmetic is in rmsnorm_isa.c. */
#include "kernels/rmsnorm.h"
#include "kernels/isa_variants.h"
#include "kernels/launch.h"
#include "kernels/rmsnorm_variants.h"

ISA_DECLARE(struct rmsnorm_functions, rmsnorm_functions);
static const struct rmsnorm_functions *const variants[ISA_COUNT] = ISA_TABLE(rmsnorm_functions);

/* Elements or columns that one item holds: a cache line of BF16, and whole vectors. */
#define COLUMN_ITEM 32
#define ELEMENT_ITEM 1024

static const struct rmsnorm_functions *functions(void)
{
    return variants[isa_selected()];
}

/* A launch while it runs: `count` units in items of `item` each. */
struct job {
    rmsnorm_items *function;
    const void *args;
    int64_t count, item;
};

static void run_part(void *context, int index, int parts)
{
    const struct job *job = context;
    struct item_range range = item_range((job->count + job->item - 1) / job->item, index, parts);
    int64_t end = range.end * job->item;
    job->function(job->args, range.begin * job->item, end < job->count ? end : job->count);
}

/* unit_elements: the work of one unit. */
static void run(const struct dev_team *team, rmsnorm_items *function, const void *args,
    int64_t count, int64_t item, int64_t unit_elements)
{
    struct job job = {function, args, count, item};
    if (count > 0)
        team_run(team, item_parts(team, (count + item - 1) / item, item * unit_elements), run_part,
            &job);
}

static int64_t matrix_bytes(int64_t rows, int64_t columns, enum dtype type)
{
    return rows * columns * dtype_bytes(type);
}

static struct kernel_cost cost_of(double flops, double bytes)
{
    return (struct kernel_cost){.flops = flops, .bytes = bytes, .rate = DEV_RATE_F32};
}

/* ---- forward ------------------------------------------------------------------------------ */

static void forward_cpu(const void *launched, const struct dev_team *team)
{
    const struct rmsnorm_args *args = launched;
    run(team, functions()->forward, args, args->rows, 1, args->columns);
}

static void forward_cost(const void *launched, struct kernel_cost *cost)
{
    const struct rmsnorm_args *args = launched;
    double elements = (double)args->rows * (double)args->columns;
    *cost = cost_of(4 * elements, 2 * elements * (double)dtype_bytes(args->type));
}

static int forward_access(const void *launched, struct dev_access *ranges)
{
    const struct rmsnorm_args *args = launched;
    int64_t bytes = matrix_bytes(args->rows, args->columns, args->type);
    int count = add_access(ranges, 0, args->x, bytes, false);
    count =
        add_access(ranges, count, args->gain, matrix_bytes(1, args->columns, args->type), false);
    count = add_access(ranges, count, args->r, args->rows * (int64_t)sizeof(float), true);
    return add_access(ranges, count, args->n, bytes, true);
}

int rmsnorm_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_rmsnorm = {
    .name = "rmsnorm",
    .cpu = forward_cpu,
    .cuda = rmsnorm_cuda,
    .cost = forward_cost,
    .access = forward_access,
};

void rmsnorm(struct stream *stream, const struct rmsnorm_args *args)
{
    dev_launch(stream, &kernel_rmsnorm, args, sizeof *args);
}

/* ---- backward ----------------------------------------------------------------------------- */

static void backward_cpu(const void *launched, const struct dev_team *team)
{
    const struct rmsnorm_backward_args *args = launched;
    run(team, functions()->backward, args, args->rows, 1, args->columns);
}

static void backward_cost(const void *launched, struct kernel_cost *cost)
{
    const struct rmsnorm_backward_args *args = launched;
    double elements = (double)args->rows * (double)args->columns;
    *cost = cost_of(7 * elements, 4 * elements * (double)dtype_bytes(args->type));
}

static int backward_access(const void *launched, struct dev_access *ranges)
{
    const struct rmsnorm_backward_args *args = launched;
    int64_t bytes = matrix_bytes(args->rows, args->columns, args->type);
    int count = add_access(ranges, 0, args->x, bytes, false);
    count =
        add_access(ranges, count, args->gain, matrix_bytes(1, args->columns, args->type), false);
    count = add_access(ranges, count, args->dn, bytes, false);
    count = add_access(ranges, count, args->dy, bytes, false);
    count = add_access(ranges, count, args->r, args->rows * (int64_t)sizeof(float), false);
    return add_access(ranges, count, args->dx, bytes, true);
}

int rmsnorm_backward_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_rmsnorm_backward = {
    .name = "rmsnorm_backward",
    .cpu = backward_cpu,
    .cuda = rmsnorm_backward_cuda,
    .cost = backward_cost,
    .access = backward_access,
};

void rmsnorm_backward(struct stream *stream, const struct rmsnorm_backward_args *args)
{
    dev_launch(stream, &kernel_rmsnorm_backward, args, sizeof *args);
}

/* ---- gradient of the gain ----------------------------------------------------------------- */

static void gain_cpu(const void *launched, const struct dev_team *team)
{
    const struct rmsnorm_gain_args *args = launched;
    run(team, functions()->gain, args, args->columns, COLUMN_ITEM, args->rows);
}

static void gain_cost(const void *launched, struct kernel_cost *cost)
{
    const struct rmsnorm_gain_args *args = launched;
    double elements = (double)args->rows * (double)args->columns;
    *cost = cost_of(3 * elements, 2 * elements * (double)dtype_bytes(args->type));
}

static int gain_access(const void *launched, struct dev_access *ranges)
{
    const struct rmsnorm_gain_args *args = launched;
    int64_t bytes = matrix_bytes(args->rows, args->columns, args->type);
    int count = add_access(ranges, 0, args->x, bytes, false);
    count = add_access(ranges, count, args->dn, bytes, false);
    count = add_access(ranges, count, args->r, args->rows * (int64_t)sizeof(float), false);
    return add_access(ranges, count, args->dgain, args->columns * (int64_t)sizeof(float), true);
}

int rmsnorm_gain_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_rmsnorm_gain = {
    .name = "rmsnorm_gain",
    .cpu = gain_cpu,
    .cuda = rmsnorm_gain_cuda,
    .cost = gain_cost,
    .access = gain_access,
};

void rmsnorm_gain(struct stream *stream, const struct rmsnorm_gain_args *args)
{
    dev_launch(stream, &kernel_rmsnorm_gain, args, sizeof *args);
}

/* ---- residual ----------------------------------------------------------------------------- */

static void add_cpu(const void *launched, const struct dev_team *team)
{
    const struct residual_add_args *args = launched;
    run(team, functions()->add, args, args->count, ELEMENT_ITEM, 1);
}

static void add_cost(const void *launched, struct kernel_cost *cost)
{
    const struct residual_add_args *args = launched;
    *cost =
        cost_of((double)args->count, 3.0 * (double)args->count * (double)dtype_bytes(args->type));
}

static int add_access_of(const void *launched, struct dev_access *ranges)
{
    const struct residual_add_args *args = launched;
    int64_t bytes = args->count * dtype_bytes(args->type);
    int count = add_access(ranges, 0, args->from, bytes, false);
    return add_access(ranges, count, args->to, bytes, true);
}

int residual_add_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_residual_add = {
    .name = "residual_add",
    .cpu = add_cpu,
    .cuda = residual_add_cuda,
    .cost = add_cost,
    .access = add_access_of,
};

void residual_add(struct stream *stream, const struct residual_add_args *args)
{
    dev_launch(stream, &kernel_residual_add, args, sizeof *args);
}
