/* The elementwise and row-wise kernels of expert dispatch: what a launch costs and touches, and its
 * division over a team. The arithmetic is in moe_isa.c. */
#include "kernels/moe.h"
#include "kernels/isa_variants.h"
#include "kernels/launch.h"
#include "kernels/moe_variants.h"

ISA_DECLARE(struct moe_functions, moe_functions);
static const struct moe_functions *const variants[ISA_COUNT] = ISA_TABLE(moe_functions);

/* Operations of arith_exp, a fused multiply-add counted as two. */
#define EXP_FLOPS 30

/* Elements of an activation that one item holds: enough for whole vectors and cache lines. */
#define CHUNK 1024

static const struct moe_functions *functions(void)
{
    return variants[isa_selected()];
}

/* A launch while it runs: `count` units in items of `item` each. */
struct job {
    moe_items *function;
    const void *args;
    int64_t count, item;
};

static void run_part(void *context, int index, int parts)
{
    const struct job *job = context;
    int64_t items = (job->count + job->item - 1) / job->item;
    struct item_range range = item_range(items, index, parts);
    int64_t end = range.end * job->item;
    job->function(job->args, range.begin * job->item, end < job->count ? end : job->count);
}

/* unit_elements: the work of one unit. */
static void run(const struct dev_team *team, moe_items *function, const void *args, int64_t count,
    int64_t item, int64_t unit_elements)
{
    struct job job = {function, args, count, item};
    if (count > 0)
        team_run(team, item_parts(team, (count + item - 1) / item, item * unit_elements), run_part,
            &job);
}

static int64_t words_bytes(int64_t count)
{
    return count * (int64_t)sizeof(float);
}

/* ---- activation --------------------------------------------------------------------------- */

static void activation_cpu(const void *launched, const struct dev_team *team)
{
    const struct expert_activation_args *args = launched;
    run(team, functions()->activation, args, args->count, CHUNK, 1);
}

static void activation_cost(const void *launched, struct kernel_cost *cost)
{
    const struct expert_activation_args *args = launched;
    double count = (double)args->count, element_bytes = (double)dtype_bytes(args->type);
    *cost = (struct kernel_cost){
        .flops = count * (args->g ? EXP_FLOPS + 5 : 1),
        .bytes = count * element_bytes * (args->g && args->u ? 3 : 2),
        .rate = DEV_RATE_F32,
    };
}

static int activation_access(const void *launched, struct dev_access *ranges)
{
    const struct expert_activation_args *args = launched;
    int64_t bytes = args->count * dtype_bytes(args->type);
    int count = add_access(ranges, 0, args->u, args->u ? bytes : 0, false);
    count = add_access(ranges, count, args->g, args->g ? bytes : 0, false);
    return add_access(ranges, count, args->a, bytes, true);
}

int expert_activation_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_expert_activation = {
    .name = "expert_activation",
    .cpu = activation_cpu,
    .cuda = expert_activation_cuda,
    .cost = activation_cost,
    .access = activation_access,
};

void expert_activation(struct stream *stream, const struct expert_activation_args *args)
{
    dev_launch(stream, &kernel_expert_activation, args, sizeof *args);
}

/* ---- activation, backward ----------------------------------------------------------------- */

static void activation_backward_cpu(const void *launched, const struct dev_team *team)
{
    const struct expert_activation_backward_args *args = launched;
    run(team, functions()->activation_backward, args, args->count, CHUNK, 1);
}

static void activation_backward_cost(const void *launched, struct kernel_cost *cost)
{
    const struct expert_activation_backward_args *args = launched;
    double count = (double)args->count, element_bytes = (double)dtype_bytes(args->type);
    *cost = (struct kernel_cost){
        .flops = count * (args->g ? EXP_FLOPS + 11 : 1),
        .bytes = count * element_bytes * (args->g ? 5 : 3),
        .rate = DEV_RATE_F32,
    };
}

static int activation_backward_access(const void *launched, struct dev_access *ranges)
{
    const struct expert_activation_backward_args *args = launched;
    int64_t bytes = args->count * dtype_bytes(args->type), gate_bytes = args->g ? bytes : 0;
    int count = add_access(ranges, 0, args->g, gate_bytes, false);
    count = add_access(ranges, count, args->u, bytes, false);
    count = add_access(ranges, count, args->dh, bytes, false);
    count = add_access(ranges, count, args->dg, gate_bytes, true);
    return add_access(ranges, count, args->du, bytes, true);
}

int expert_activation_backward_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_expert_activation_backward = {
    .name = "expert_activation_backward",
    .cpu = activation_backward_cpu,
    .cuda = expert_activation_backward_cuda,
    .cost = activation_backward_cost,
    .access = activation_backward_access,
};

void expert_activation_backward(
    struct stream *stream, const struct expert_activation_backward_args *args)
{
    dev_launch(stream, &kernel_expert_activation_backward, args, sizeof *args);
}

/* ---- combine ------------------------------------------------------------------------------ */

static void combine_cpu(const void *launched, const struct dev_team *team)
{
    const struct combine_rows_args *args = launched;
    run(team, functions()->combine, args, args->count, 1, args->columns * args->slots);
}

/* How many positions are taken the table alone knows: counted are all, or all rows where those are
 * fewer. */
static void combine_cost(const void *launched, struct kernel_cost *cost)
{
    const struct combine_rows_args *args = launched;
    int64_t positions = args->count * args->slots;
    int64_t rows = positions < args->from_rows ? positions : args->from_rows;
    double added = (double)rows * (double)args->columns;
    double stored = (double)args->count * (double)args->columns;
    *cost = (struct kernel_cost){
        .flops = added * (args->weight ? 2 : 1),
        .bytes = added * (double)dtype_bytes(args->from_type) +
                 stored * (double)dtype_bytes(args->to_type) * (args->continued ? 2 : 1) +
                 (double)words_bytes(positions) * (args->weight ? 2 : 1) +
                 (double)words_bytes(args->token ? args->count : 0),
        .rate = DEV_RATE_F32,
    };
}

static int combine_access(const void *launched, struct dev_access *ranges)
{
    const struct combine_rows_args *args = launched;
    int64_t to_rows = args->token ? args->to_rows : args->count;
    if (args->count <= 0)
        return 0;
    int64_t from_bytes = args->from_rows * args->columns * dtype_bytes(args->from_type);
    int64_t to_bytes = to_rows * args->columns * dtype_bytes(args->to_type);
    int count = add_access(ranges, 0, args->from, from_bytes, false);
    count =
        add_access(ranges, count, args->position, words_bytes(args->count * args->slots), false);
    if (args->weight)
        count = add_access(ranges, count, args->weight, words_bytes(to_rows * args->slots), false);
    if (args->token)
        count = add_access(ranges, count, args->token, words_bytes(args->count), false);
    return add_access(ranges, count, args->to, to_bytes, true);
}

int combine_rows_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_combine_rows = {
    .name = "combine_rows",
    .cpu = combine_cpu,
    .cuda = combine_rows_cuda,
    .cost = combine_cost,
    .access = combine_access,
};

void combine_rows(struct stream *stream, const struct combine_rows_args *args)
{
    dev_launch(stream, &kernel_combine_rows, args, sizeof *args);
}

/* ---- backward at a route ------------------------------------------------------------------ */

static void route_backward_cpu(const void *launched, const struct dev_team *team)
{
    const struct route_backward_args *args = launched;
    run(team, functions()->route_backward, args, args->count, 1, args->columns * 2);
}

static void route_backward_cost(const void *launched, struct kernel_cost *cost)
{
    const struct route_backward_args *args = launched;
    double elements = (double)args->count * (double)args->columns;
    double flops = (args->dw ? 2 : 0) + (args->de ? 1 : 0);
    double rows = 1 + (args->dw ? 1 : 0) + (args->de ? 1 : 0);
    int words =
        (args->dw ? 1 : 0) + (args->de ? 1 : 0) + (args->dy_row ? 1 : 0) + (args->route ? 1 : 0);
    *cost = (struct kernel_cost){
        .flops = elements * flops,
        .bytes = elements * rows * (double)dtype_bytes(args->type) +
                 (double)words_bytes(args->count * words),
        .rate = DEV_RATE_F32,
    };
}

static int route_backward_access(const void *launched, struct dev_access *ranges)
{
    const struct route_backward_args *args = launched;
    if (args->count <= 0)
        return 0;
    int64_t row_bytes = args->columns * dtype_bytes(args->type), list_bytes;
    int64_t dy_rows = args->dy_row ? args->dy_rows : args->count;
    int64_t routes = args->route ? args->routes : args->count;
    list_bytes = words_bytes(args->count);
    int count = add_access(ranges, 0, args->dy, dy_rows * row_bytes, false);
    if (args->dy_row)
        count = add_access(ranges, count, args->dy_row, list_bytes, false);
    if (args->route)
        count = add_access(ranges, count, args->route, list_bytes, false);
    if (args->dw) {
        count = add_access(ranges, count, args->e, args->count * row_bytes, false);
        count = add_access(ranges, count, args->dw, words_bytes(routes), true);
    }
    if (args->de) {
        count = add_access(ranges, count, args->weight, words_bytes(routes), false);
        count = add_access(ranges, count, args->de, args->count * row_bytes, true);
    }
    return count;
}

int route_backward_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_route_backward = {
    .name = "route_backward",
    .cpu = route_backward_cpu,
    .cuda = route_backward_cuda,
    .cost = route_backward_cost,
    .access = route_backward_access,
};

void route_backward(struct stream *stream, const struct route_backward_args *args)
{
    dev_launch(stream, &kernel_route_backward, args, sizeof *args);
}
