/* AdamW and the gradient scan as kernels: what they cost, what they touch, and how a team shares
 * them. The arithmetic is in adamw_isa.c. */
#include "kernels/adamw.h"
#include "kernels/adamw_variants.h"
#include "kernels/isa_variants.h"

ISA_DECLARE(struct adamw_functions, adamw_functions);
static const struct adamw_functions *const variants[ISA_COUNT] = ISA_TABLE(adamw_functions);

/* How many units of `grain` elements there are, the last perhaps cut short. */
static int64_t units_of(int64_t count, int64_t grain)
{
    return (count + grain - 1) / grain;
}

/* One part for each thread, but never a part without a unit. */
static int parts_for(int64_t units, const struct dev_team *team)
{
    int threads = team ? team_size(team) : 1;
    return units < threads ? (int)units : threads;
}

/* ---- AdamW --------------------------------------------------------------------------------- */

/* Parts begin on multiples of this many elements: whole cache lines of every array when the run
 * begins on one, and enough work to be worth handing over. */
#define GRAIN 1024

static void update_part(void *context, int index, int parts)
{
    struct adamw_args part = *(const struct adamw_args *)context;
    int64_t units = units_of(part.count, GRAIN);
    int64_t begin = units * index / parts * GRAIN;
    int64_t end = units * (index + 1) / parts * GRAIN;
    part.count = (end < part.count ? end : part.count) - begin;
    part.p += begin;
    part.m += begin;
    part.v += begin;
    part.w += begin;
    part.g = (const char *)part.g + begin * dtype_bytes(part.g_type);
    variants[isa_selected()]->update(&part);
}

void adamw_cpu(const struct adamw_args *args, const struct dev_team *team)
{
    struct adamw_args copy = *args;
    team_run(team, parts_for(units_of(args->count, GRAIN), team), update_part, &copy);
}

static void adamw_launch(const void *args, const struct dev_team *team)
{
    adamw_cpu(args, team);
}

int64_t adamw_bytes_per_parameter(enum dtype g_type)
{
    return 12 + 12 + 2 + dtype_bytes(g_type);
}

/* A fused multiply-add counts as two; division and square root as one each. */
#define FLOPS_PER_PARAMETER 15

static void adamw_cost(const void *launched, struct kernel_cost *cost)
{
    const struct adamw_args *args = launched;
    *cost = (struct kernel_cost){.flops = (double)FLOPS_PER_PARAMETER * (double)args->count,
        .bytes = (double)adamw_bytes_per_parameter(args->g_type) * (double)args->count,
        .rate = DEV_RATE_F32,
        .params = args->count};
}

static int adamw_access(const void *launched, struct dev_access *ranges)
{
    const struct adamw_args *args = launched;
    int64_t bytes = args->count * (int64_t)sizeof(float);
    ranges[0] = (struct dev_access){args->p, bytes, true};
    ranges[1] = (struct dev_access){args->m, bytes, true};
    ranges[2] = (struct dev_access){args->v, bytes, true};
    ranges[3] = (struct dev_access){args->g, args->count * dtype_bytes(args->g_type), false};
    ranges[4] = (struct dev_access){args->w, args->count * (int64_t)sizeof *args->w, true};
    return 5;
}

int adamw_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_adamw = {
    .name = "adamw",
    .cpu = adamw_launch,
    .cuda = adamw_cuda,
    .cost = adamw_cost,
    .access = adamw_access,
};

/* ---- the gradient scan --------------------------------------------------------------------- */

static int64_t scan_blocks(const struct gradient_scan_args *args)
{
    return units_of(args->count, GRADIENT_SCAN_BLOCK);
}

static void scan_part(void *context, int index, int parts)
{
    const struct gradient_scan_args *args = context;
    int64_t blocks = scan_blocks(args);
    for (int64_t block = blocks * index / parts; block < blocks * (index + 1) / parts; block++) {
        int64_t first = block * GRADIENT_SCAN_BLOCK, left = args->count - first;
        args->scratch[block] = variants[isa_selected()]->scan(
            (const char *)args->g + first * dtype_bytes(args->g_type), args->g_type,
            left < GRADIENT_SCAN_BLOCK ? left : GRADIENT_SCAN_BLOCK, args->scale);
    }
}

/* The blocks are summed in parallel, and their sums added in one chain by the calling thread: one
 * addition for each 4096 elements. */
void gradient_scan_cpu(const struct gradient_scan_args *args, const struct dev_team *team)
{
    struct gradient_scan_args copy = *args;
    struct gradient_scan scan = {0.0, 0, -1};
    if (!args->fresh)
        scan = *args->scan;
    team_run(team, parts_for(scan_blocks(args), team), scan_part, &copy);
    for (int64_t block = 0; block < scan_blocks(args); block++) {
        scan.sum = scan.sum + args->scratch[block].sum;
        scan.nonfinite += args->scratch[block].nonfinite;
    }
    if (scan.nonfinite && scan.first_tensor < 0)
        scan.first_tensor = args->tensor;
    *args->scan = scan;
}

static void scan_launch(const void *args, const struct dev_team *team)
{
    gradient_scan_cpu(args, team);
}

static void scan_cost(const void *launched, struct kernel_cost *cost)
{
    const struct gradient_scan_args *args = launched;
    *cost = (struct kernel_cost){.flops = 3.0 * (double)args->count,
        .bytes = (double)(args->count * dtype_bytes(args->g_type)),
        .rate = DEV_RATE_F32};
}

static int scan_access(const void *launched, struct dev_access *ranges)
{
    const struct gradient_scan_args *args = launched;
    ranges[0] = (struct dev_access){args->g, args->count * dtype_bytes(args->g_type), false};
    ranges[1] = (struct dev_access){args->scan, (int64_t)sizeof *args->scan, true};
    ranges[2] = (struct dev_access){
        args->scratch, scan_blocks(args) * (int64_t)sizeof *args->scratch, true};
    return 3;
}

int gradient_scan_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_gradient_scan = {
    .name = "gradient scan",
    .cpu = scan_launch,
    .cuda = gradient_scan_cuda,
    .cost = scan_cost,
    .access = scan_access,
};
