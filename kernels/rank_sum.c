/* Sums in a stated order. These loops are bound by memory, so one plain version serves every CPU:
 * the compiler vectorises across elements, and each element's own sum keeps its order. */
#include "kernels/rank_sum.h"
#include <stdlib.h>
#include "kernels/launch.h"

static int64_t f32_bytes(int64_t count)
{
    return count * (int64_t)sizeof(float);
}

/* ---- rank sum ----------------------------------------------------------------------------- */

/* Elements that are summed before the next ones: their sums stay in the first-level cache while the
 * parts pass, and in an array of their own, so that `out` may be part 0. */
#define BLOCK 1024

static void sum_block(const struct rank_sum_args *args, int64_t first, int64_t count)
{
    float sums[BLOCK];
    memcpy(sums, args->parts + first, (size_t)f32_bytes(count));
    for (int64_t part = 1; part < args->parts_count; part++) {
        const float *values = args->parts + part * args->stride + first;
        for (int64_t i = 0; i < count; i++)
            sums[i] = sums[i] + values[i];
    }
    memcpy(args->out + first, sums, (size_t)f32_bytes(count));
}

static void rank_sum_part(void *context, int index, int parts)
{
    const struct rank_sum_args *args = context;
    struct item_range range = item_range(args->count, index, parts);
    for (int64_t first = range.begin; first < range.end; first += BLOCK) {
        int64_t left = range.end - first;
        sum_block(args, first, left < BLOCK ? left : BLOCK);
    }
}

static void rank_sum_cpu(const void *args, const struct dev_team *team)
{
    struct rank_sum_args sum = *(const struct rank_sum_args *)args;
    team_run(team, item_parts(team, sum.count, sum.parts_count), rank_sum_part, &sum);
}

static void rank_sum_cost(const void *args, struct kernel_cost *cost)
{
    const struct rank_sum_args *sum = args;
    double count = (double)sum->count, parts = (double)sum->parts_count;
    *cost = (struct kernel_cost){
        .flops = count * (parts - 1),
        .bytes = count * (parts + 1) * sizeof(float),
        .rate = DEV_RATE_F32,
    };
}

static int rank_sum_access(const void *args, struct dev_access *ranges)
{
    const struct rank_sum_args *sum = args;
    int64_t parts_bytes = strided_f32_bytes(sum->parts_count, sum->count, sum->stride);
    int count = add_access(ranges, 0, sum->parts, parts_bytes, false);
    return add_access(ranges, count, sum->out, f32_bytes(sum->count), true);
}

int rank_sum_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_rank_sum = {
    .name = "rank_sum",
    .cpu = rank_sum_cpu,
    .cuda = rank_sum_cuda,
    .cost = rank_sum_cost,
    .access = rank_sum_access,
};

void rank_sum(struct stream *stream, const struct rank_sum_args *args)
{
    dev_launch(stream, &kernel_rank_sum, args, sizeof *args);
}

/* ---- add ---------------------------------------------------------------------------------- */

static void add_part(void *context, int index, int parts)
{
    const struct add_args *args = context;
    struct item_range range = item_range(args->count, index, parts);
    float *to = args->to;
    const float *from = args->from;
    for (int64_t i = range.begin; i < range.end; i++)
        to[i] = to[i] + from[i];
}

static void add_cpu(const void *args, const struct dev_team *team)
{
    struct add_args add = *(const struct add_args *)args;
    team_run(team, item_parts(team, add.count, 1), add_part, &add);
}

static void add_cost(const void *args, struct kernel_cost *cost)
{
    const struct add_args *add = args;
    *cost = (struct kernel_cost){
        .flops = (double)add->count,
        .bytes = 3.0 * (double)f32_bytes(add->count),
        .rate = DEV_RATE_F32,
    };
}

static int add_access_ranges(const void *args, struct dev_access *ranges)
{
    const struct add_args *add = args;
    int count = add_access(ranges, 0, add->from, f32_bytes(add->count), false);
    return add_access(ranges, count, add->to, f32_bytes(add->count), true);
}

int add_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_add = {
    .name = "add",
    .cpu = add_cpu,
    .cuda = add_cuda,
    .cost = add_cost,
    .access = add_access_ranges,
};

void add_f32(struct stream *stream, float *to, const float *from, int64_t count)
{
    struct add_args args = {to, from, count};
    dev_launch(stream, &kernel_add, &args, sizeof args);
}

/* ---- round to BF16 ------------------------------------------------------------------------ */

static void round_bf16_part(void *context, int index, int parts)
{
    const struct round_bf16_args *args = context;
    struct item_range range = item_range(args->count, index, parts);
    uint16_t *restrict to = args->to;
    const float *restrict from = args->from;
    for (int64_t i = range.begin; i < range.end; i++)
        to[i] = f32_to_bf16(from[i]);
}

static void round_bf16_cpu(const void *args, const struct dev_team *team)
{
    struct round_bf16_args round = *(const struct round_bf16_args *)args;
    team_run(team, item_parts(team, round.count, 1), round_bf16_part, &round);
}

static void round_bf16_cost(const void *args, struct kernel_cost *cost)
{
    const struct round_bf16_args *round = args;
    *cost = (struct kernel_cost){
        .flops = (double)round->count,
        .bytes = (double)round->count * (double)(sizeof(float) + sizeof(uint16_t)),
        .rate = DEV_RATE_F32,
    };
}

static int round_bf16_access(const void *args, struct dev_access *ranges)
{
    const struct round_bf16_args *round = args;
    int64_t to_bytes = round->count * (int64_t)sizeof(uint16_t);
    int count = add_access(ranges, 0, round->from, f32_bytes(round->count), false);
    return add_access(ranges, count, round->to, to_bytes, true);
}

int round_bf16_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_round_bf16 = {
    .name = "round_bf16",
    .cpu = round_bf16_cpu,
    .cuda = round_bf16_cuda,
    .cost = round_bf16_cost,
    .access = round_bf16_access,
};

void round_bf16(struct stream *stream, uint16_t *to, const float *from, int64_t count)
{
    struct round_bf16_args args = {to, from, count};
    dev_launch(stream, &kernel_round_bf16, &args, sizeof args);
}

/* ---- rank sum and scatter ----------------------------------------------------------------- */

void rank_sum_scatter(struct comm *comm, struct stream *stream, const float *values,
    const int64_t *counts, float *scratch, float *out)
{
    if (!comm || !stream) /* the device has failed */
        return;
    int ranks = comm_size(comm);
    int64_t own = counts[comm_rank(comm)];
    int64_t *lists = malloc(4 * (size_t)ranks * sizeof *lists);
    if (!lists) {
        dev_fail(stream_device(stream), DEV_FAILED, "rank_sum_scatter: no memory for %d counts",
            4 * ranks);
        return;
    }
    int64_t *send_bytes = lists, *send_offsets = lists + ranks;
    int64_t *receive_bytes = lists + 2 * ranks, *receive_offsets = lists + 3 * ranks;
    int64_t begin = 0;
    for (int rank = 0; rank < ranks; rank++) {
        send_bytes[rank] = f32_bytes(counts[rank]);
        send_offsets[rank] = f32_bytes(begin);
        begin += counts[rank];
        receive_bytes[rank] = f32_bytes(own);
        receive_offsets[rank] = f32_bytes(own) * rank;
    }
    comm_all_to_all_v(
        comm, stream, values, send_bytes, send_offsets, scratch, receive_bytes, receive_offsets);
    free(lists);
    struct rank_sum_args sum = {scratch, own, own, ranks, out};
    rank_sum(stream, &sum);
}
