/* The hash of tests/arith_hash.h on the CPU, over a team of threads. */
#pragma once
#include <stdlib.h>
#include "device/device.h"
#include "tests/arith_hash.h"

struct arith_hash_job {
    void (*function)(const float *values, float *results, int64_t count);
    uint64_t *block_hashes; /* [ARITH_BLOCKS] */
    uint64_t hash;
};

static void arith_hash_part(void *context, int index, int parts)
{
    struct arith_hash_job *job = context;
    static _Thread_local float inputs[ARITH_BLOCK], results[ARITH_BLOCK];
    /* Interleaved: the costs of blocks of one sign and exponent are alike. */
    for (int64_t block = index; block < ARITH_BLOCKS; block += parts) {
        arith_block_inputs(block, inputs);
        job->function(inputs, results, ARITH_BLOCK);
        job->block_hashes[block] = arith_block_hash(results);
    }
}

static void arith_hash_body(void *context, const struct dev_team *team)
{
    struct arith_hash_job *job = context;
    team_run(team, team_size(team), arith_hash_part, job);
    job->hash = arith_combine_hashes(job->block_hashes);
}

/* The hash of exp_cpu or log_cpu with the selected instruction set; 0 when memory is short. */
static uint64_t arith_hash_cpu(
    struct dev_pool *pool, void (*function)(const float *values, float *results, int64_t count))
{
    struct arith_hash_job job = {.function = function};
    job.block_hashes = malloc((size_t)ARITH_BLOCKS * sizeof *job.block_hashes);
    if (!job.block_hashes)
        return 0;
    dev_pool_run(pool, dev_pool_threads(pool), arith_hash_body, &job);
    free(job.block_hashes);
    return job.hash;
}
