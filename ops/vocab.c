/* What every implementation of the vocabulary problem shares: the cut of the vocabulary into
 * shards, the count of valid tokens, and the table of implementations. */
#include "ops/vocab.h"
#include <stdlib.h>
#include "kernels/rank_sum.h"
#include "kernels/strip.h"

const struct vocab_impl *const vocab_impls[] = {
    &vocab_materialized,
    &vocab_parallel,
    &vocab_chunked_tokens,
    &vocab_ring_dtp,
    NULL,
};

int64_t vocab_shard_rows(int64_t vocab, int ranks, int shard)
{
    return vocab / ranks + (shard < vocab % ranks);
}

int64_t vocab_shard_first(int64_t vocab, int ranks, int shard)
{
    int64_t leftover = vocab % ranks;
    return vocab / ranks * shard + (shard < leftover ? shard : leftover);
}

int64_t vocab_total_tokens(const struct vocab_shape *shape)
{
    int64_t total = 0;
    for (int r = 0; r < shape->ranks; r++)
        total += shape->tokens[r];
    return total;
}

int64_t vocab_max_tokens(const struct vocab_shape *shape)
{
    int64_t most = 0;
    for (int r = 0; r < shape->ranks; r++)
        if (shape->tokens[r] > most)
            most = shape->tokens[r];
    return most;
}

int64_t vocab_max_shard_rows(const struct vocab_shape *shape)
{
    return vocab_shard_rows(shape->vocab, shape->ranks, 0);
}

int64_t vocab_sum_valid(struct comm *comm, int64_t mine)
{
    int64_t all = 0;
    int64_t *counts = malloc((size_t)comm_size(comm) * sizeof *counts);
    if (!counts) {
        comm_abort(comm, "no host memory to count the valid tokens");
        return -1;
    }
    if (comm_host_all_gather(comm, &mine, counts, sizeof mine) == 0)
        for (int r = 0; r < comm_size(comm); r++)
            all += counts[r];
    else
        all = -1;
    free(counts);
    return all;
}

int64_t vocab_count_valid(struct comm *comm, const int64_t *host_targets, int64_t tokens)
{
    int64_t mine = 0;
    for (int64_t i = 0; i < tokens; i++)
        mine += host_targets[i] != VOCAB_IGNORED;
    return vocab_sum_valid(comm, mine);
}

float vocab_scale(int64_t valid)
{
    return valid > 0 ? (float)(1.0 / (double)valid) : 0.0f;
}

void vocab_alloc_token_outputs(struct vocab *v)
{
    int64_t bytes = v->shape.tokens[v->rank] * (int64_t)sizeof(float);
    v->max = dev_alloc(v->dev, bytes, LIVE_OUTPUT, "row maximum");
    v->log_z = dev_alloc(v->dev, bytes, LIVE_OUTPUT, "log of the normaliser");
    v->loss = dev_alloc(v->dev, bytes, LIVE_OUTPUT, "token losses");
}

void *vocab_store_input_gradient(struct vocab *v, float *sum)
{
    if (v->shape.dtype == DTYPE_F32)
        return sum;
    int64_t count = v->shape.tokens[v->rank] * v->shape.hidden;
    uint16_t *stored = dev_alloc(v->dev, count * 2, LIVE_OUTPUT, "input gradient, BF16");
    round_bf16(dev_main_stream(v->dev), stored, sum, count);
    dev_free(v->dev, sum);
    return stored;
}

float *vocab_scatter_weight_gradient(struct vocab *v, float *full)
{
    int ranks = v->shape.ranks;
    if (ranks == 1)
        return full;
    int64_t counts[VOCAB_RANKS_MAX];
    for (int r = 0; r < ranks; r++)
        counts[r] = vocab_shard_rows(v->shape.vocab, ranks, r) * v->shape.hidden;
    int64_t bytes = counts[v->rank] * (int64_t)sizeof(float);
    float *dw = dev_alloc(v->dev, bytes, LIVE_GRADIENTS, "weight gradient");
    float *scratch = dev_alloc(v->dev, ranks * bytes, LIVE_WORKSPACE, "gathered weight gradients");
    rank_sum_scatter(v->comm, dev_main_stream(v->dev), full, counts, scratch, dw);
    dev_free(v->dev, scratch);
    dev_free(v->dev, full);
    return dw;
}

void vocab_release(struct vocab *v, const struct vocab_impl *impl)
{
    if (impl->release)
        impl->release(v);
    void *outputs[] = {v->max, v->log_z, v->loss, v->dx, v->dw};
    for (int i = 0; i < 5; i++)
        dev_free(v->dev, outputs[i]);
    v->max = v->log_z = v->loss = v->dw = NULL;
    v->dx = NULL;
}
