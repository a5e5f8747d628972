/* When to stop measuring, and what the samples say.
 *
 * Every decision is a pure function of the repetitions handed over, so ranks that are handed the
 * same numbers stop together. The interval of the median comes from order statistics: it assumes
 * nothing about the noise but that samples are independent, which matters because timing noise is
 * skewed. */
#include "probe/timing.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double timing_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct timing_protocol timing_default(void)
{
    return (struct timing_protocol){
        .warmup = 1,
        .min_samples = 10,
        .max_samples = 1000,
        .min_time_s = 0.2,
        .max_time_s = 2,
        .target_rel = 0.02,
    };
}

int timing_init(struct timing *t, const struct timing_protocol *protocol)
{
    *t = (struct timing){.protocol = *protocol, .stop = TIMING_RUNNING};
    /* All room at once: timing_add runs between repetitions and must neither fail nor allocate. */
    t->capacity = protocol->max_samples > 1 ? protocol->max_samples : 1;
    t->samples_s = malloc((size_t)t->capacity * sizeof *t->samples_s);
    return t->samples_s ? 0 : -1;
}

void timing_free(struct timing *t)
{
    free(t->samples_s);
    t->samples_s = NULL;
    t->count = t->capacity = 0;
}

/* Times are not negative, so their bit patterns order as they do. The k-th smallest (k from 0) is
 * the least pattern that more than k samples do not exceed, found by bisection: no copy to sort,
 * hence nothing that could run out of memory. */
static double order_statistic(const double *samples_s, int count, int k)
{
    uint64_t low = 0, high = UINT64_C(0x7ff0000000000000); /* +inf */
    while (low < high) {
        uint64_t middle_bits = low + (high - low) / 2;
        double middle;
        int not_above = 0;
        memcpy(&middle, &middle_bits, sizeof middle);
        for (int i = 0; i < count; i++)
            not_above += samples_s[i] <= middle;
        if (not_above > k)
            high = middle_bits;
        else
            low = middle_bits + 1;
    }
    double value;
    memcpy(&value, &low, sizeof value);
    return value;
}

/* At `share` of the way from the least to the greatest sample, between order statistics. */
static double quantile(const double *samples_s, int count, double share)
{
    double position = share * (count - 1);
    int k = (int)position;
    double below = order_statistic(samples_s, count, k);
    if (position == k)
        return below;
    return below + (position - k) * (order_statistic(samples_s, count, k + 1) - below);
}

/* The largest r >= 1 such that the true median lies between the r-th smallest and the r-th greatest
 * of `count` samples with probability 0.95 or more: how many samples fall below the median is
 * binomial(count, 1/2), so twice P(at most r - 1) must not pass 0.05. 0 when there is none.
 *
 * The weights are taken relative to the central one, which keeps them in range for any count; those
 * too far out to be represented are too small to matter. */
static int interval_rank(int count)
{
    int centre = count / 2;
    double below = 0, weight = 1;
    for (int i = centre; i > 0; i--) {
        weight *= (double)i / (count - i + 1);
        below += weight;
    }
    double all = count % 2 ? 2 * (below + 1) : 2 * below + 1;
    double tail = below + 1; /* of at most `rank`, relative like the weights */
    int rank = centre;
    for (weight = 1; rank >= 0 && 2 * tail > 0.05 * all; rank--) {
        tail -= weight;
        weight *= (double)rank / (count - rank + 1);
    }
    return rank + 1;
}

void timing_summarise(const double *samples_s, int count, struct timing_summary *out)
{
    assert(count >= 1);
    int rank = interval_rank(count);
    out->median_s = quantile(samples_s, count, 0.5);
    out->q1_s = quantile(samples_s, count, 0.25);
    out->q3_s = quantile(samples_s, count, 0.75);
    out->min_s = order_statistic(samples_s, count, 0);
    out->max_s = order_statistic(samples_s, count, count - 1);
    out->ci95_low_s = rank ? order_statistic(samples_s, count, rank - 1) : out->min_s;
    out->ci95_high_s = rank ? order_statistic(samples_s, count, count - rank) : out->max_s;
}

static bool noise_is_met(const struct timing *t)
{
    int rank = interval_rank(t->count);
    if (!rank)
        return false;
    double median = quantile(t->samples_s, t->count, 0.5);
    double low = order_statistic(t->samples_s, t->count, rank - 1);
    double high = order_statistic(t->samples_s, t->count, t->count - rank);
    double allowed = t->protocol.target_rel * median;
    return high - median <= allowed && median - low <= allowed;
}

/* The noise is looked at after each of the first 128 samples, and then 64 times while their number
 * doubles: looking costs time in proportion to the samples. */
static bool looks_at_noise(int count)
{
    int step = 1;
    while (count / step >= 128)
        step *= 2;
    return count % step == 0;
}

static enum timing_stop decide(const struct timing *t)
{
    const struct timing_protocol *p = &t->protocol;
    if (t->count < 1)
        return TIMING_RUNNING;
    if (t->count >= p->min_samples && t->total_s >= p->min_time_s && looks_at_noise(t->count) &&
        noise_is_met(t))
        return TIMING_NOISE;
    if (t->total_s >= p->max_time_s)
        return TIMING_TIME;
    return t->count >= t->capacity ? TIMING_SAMPLES : TIMING_RUNNING;
}

bool timing_more(const struct timing *t)
{
    return t->stop == TIMING_RUNNING;
}

void timing_add(struct timing *t, double seconds)
{
    t->seen++;
    t->total_s += seconds;
    if (t->seen <= t->protocol.warmup || t->count == t->capacity)
        return;
    t->samples_s[t->count++] = seconds > 0 ? seconds : 0;
    if (t->stop == TIMING_RUNNING)
        t->stop = decide(t);
}

const char *timing_stop_name(enum timing_stop stop)
{
    static const char *const names[] = {
        [TIMING_RUNNING] = "running",
        [TIMING_NOISE] = "noise met",
        [TIMING_TIME] = "time limit",
        [TIMING_SAMPLES] = "sample limit",
    };
    return names[stop];
}
