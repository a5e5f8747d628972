/* Replays plans: the planner, the partition into chunks and the rule of positions are those that
 * the schedules use (ops/moe_route.h). */
#include "bench/harness/moe_replay.h"
#include <stdlib.h>
#include "ops/moe_route.h"

/* Rows from a rank to another in one chunk. */
static int64_t sent_to(const struct moe_layout *layout, int from, int64_t chunk, int to)
{
    int64_t sum = 0;
    for (int64_t p = layout->rank_first[to]; p < layout->rank_first[to + 1]; p++)
        sum += moe_layout_count(layout, from, chunk, p);
    return sum;
}

static double send_ratio(const struct moe_layout *layout)
{
    double worst = 1.0;
    for (int64_t chunk = 0; chunk < layout->partition.chunks; chunk++)
        for (int from = 0; from < layout->ranks; from++) {
            int64_t most = 0, all = 0;
            for (int to = 0; to < layout->ranks; to++) {
                int64_t rows = sent_to(layout, from, chunk, to);
                most = rows > most ? rows : most;
                all += rows;
            }
            double ratio = all ? (double)most * layout->ranks / (double)all : 1.0;
            worst = ratio > worst ? ratio : worst;
        }
    return worst;
}

static int64_t most_received(const struct moe_layout *layout)
{
    int64_t most = 0;
    for (int rank = 0; rank < layout->ranks; rank++) {
        int64_t received = moe_layout_most_received(layout, rank);
        most = received > most ? received : most;
    }
    return most;
}

static int measure_loads(struct moe_replay *replay, const struct moe_layout *layout)
{
    int64_t *counts = calloc((size_t)layout->experts, sizeof *counts);
    if (!counts)
        return -1;
    for (int rank = 0; rank < layout->ranks; rank++)
        for (int64_t e = 0; e < layout->experts; e++)
            counts[e] += layout->counts[rank * layout->experts + e];
    int status =
        moe_load_measure(&replay->rank, &replay->expert, layout->ranks, layout->experts, counts);
    free(counts);
    return status ? -1 : moe_load_of(&replay->computed, layout->plan.load, layout->ranks);
}

int moe_replay(struct moe_replay *replay, const struct moe_shape *shape,
    const struct moe_options *options, bool llep, const int32_t *const *idx)
{
    struct moe_layout layout;
    const struct moe_partition partition = {
        .chunks = moe_chunk_count(shape, options), .kind = options->chunks};
    const struct llep_options plan = {.alpha = options->alpha,
        .min_gemm_tokens = options->min_gemm_tokens,
        .lambda = options->lambda};
    if (moe_layout_from_routing(&layout, shape, &partition, llep ? &plan : NULL, idx))
        return -1;
    *replay = (struct moe_replay){.chunks = partition.chunks,
        .chunk_tokens = moe_chunk_tokens_max(shape, partition.chunks),
        .planned = llep && layout.plan.planned,
        .capacity = layout.plan.cap,
        .excess = layout.plan.excess,
        .transfers = layout.plan.transfers,
        .send_ratio = send_ratio(&layout),
        .received = most_received(&layout)};
    double bound = (double)shape->ranks * shape->topk * (double)replay->chunk_tokens;
    replay->received_share = bound > 0 ? (double)replay->received / bound : 0;
    int status = measure_loads(replay, &layout);
    moe_layout_free(&layout);
    return status;
}
