/* Eq. 5. */
#include "bench/harness/adamw_time.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

double adamw_stream_s(const struct adamw_stages *stages)
{
    double sum = stages->up_s + stages->update_s + stages->down_s;
    double period =
        larger(larger(stages->up_s, stages->update_s), larger(stages->down_s, sum / stages->slots));
    return stages->buckets > 1 ? (stages->buckets - 1) * period + sum : stages->buckets * sum;
}

struct adamw_stages adamw_stages_of(const struct overlap *overlap, double buckets, int slots)
{
    return (struct adamw_stages){.up_s = overlap->busy_s[OVERLAP_UP] / buckets,
        .update_s = overlap->busy_s[OVERLAP_COMPUTE] / buckets,
        .down_s = overlap->busy_s[OVERLAP_DOWN] / buckets,
        .buckets = buckets,
        .slots = slots};
}
