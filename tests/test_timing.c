/* Timing: quantiles and intervals on known sequences, the interval's coverage on simulated noise,
 * and every rule for stopping. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "probe/seed.h"
#include "probe/timing.h"
#include "tests/tap.h"

static void test_clock(void)
{
    double first = timing_now_s(), second = timing_now_s();
    tap_ok(first > 0 && second >= first && second - first < 60, "the clock runs forward");
}

static void test_quantiles(void)
{
    struct timing_summary s;
    const double one[] = {3}, four[] = {4, 1, 3, 2}, five[] = {50, 10, 40, 20, 30};
    timing_summarise(one, 1, &s);
    tap_ok(s.median_s == 3 && s.q1_s == 3 && s.q3_s == 3 && s.min_s == 3 && s.max_s == 3 &&
               s.ci95_low_s == 3 && s.ci95_high_s == 3,
        "one sample is everything");
    timing_summarise(four, 4, &s);
    tap_ok(s.median_s == 2.5 && s.q1_s == 1.75 && s.q3_s == 3.25 && s.min_s == 1 && s.max_s == 4,
        "an even number interpolates");
    tap_ok(s.ci95_low_s == 1 && s.ci95_high_s == 4, "with fewer than 6 the interval is the range");
    timing_summarise(five, 5, &s);
    tap_ok(s.median_s == 30 && s.q1_s == 20 && s.q3_s == 40, "an odd number hits samples");
    tap_ok(four[0] == 4 && four[1] == 1 && five[0] == 50, "the samples stay in their order");
    const double equal[] = {0, 2e-9, 2e-9, 2e-9, 1e300, 1e300};
    timing_summarise(equal, 6, &s);
    tap_ok(s.min_s == 0 && s.median_s == 2e-9 && s.max_s == 1e300, "ties and extremes are exact");
}

/* The ranks for 95 % in tables of the sign test's interval. */
static void test_interval_ranks(void)
{
    static const struct {
        int count, low, high;
    } known[] = {{5, 1, 5}, {6, 1, 6}, {8, 1, 8}, {9, 2, 8}, {10, 2, 9}, {12, 3, 10}, {15, 4, 12},
        {20, 6, 15}, {25, 8, 18}, {30, 10, 21}, {50, 18, 33}, {100, 40, 61}, {1000, 469, 532}};
    double samples[1000];
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        struct timing_summary s;
        int count = known[k].count;
        /* 1 .. count in a scattered order: 7919 is prime to every count here. */
        for (int i = 0; i < count; i++)
            samples[i] = (double)(1 + (int64_t)i * 7919 % count);
        timing_summarise(samples, count, &s);
        tap_ok(s.ci95_low_s == known[k].low && s.ci95_high_s == known[k].high,
            "of %d samples the interval is from the %g-th to the %g-th", count, s.ci95_low_s,
            s.ci95_high_s);
    }
}

/* P(interval contains the median) by exact summation in long double, for comparison. */
static double exact_coverage(int count, int rank)
{
    long double weight = ldexpl(1, -count), tail = 0;
    for (int i = 0; i < rank; i++) {
        tail += weight;
        weight *= (long double)(count - i) / (i + 1);
    }
    return (double)(1 - 2 * tail);
}

static void test_interval_exact(void)
{
    bool widest = true;
    double samples[400];
    for (int count = 6; count <= 400; count++) {
        struct timing_summary s;
        for (int i = 0; i < count; i++)
            samples[i] = i + 1;
        timing_summarise(samples, count, &s);
        int rank = (int)s.ci95_low_s;
        widest &= exact_coverage(count, rank) >= 0.95 && exact_coverage(count, rank + 1) < 0.95 &&
                  s.ci95_high_s == count + 1 - rank;
    }
    tap_ok(widest, "for 6 to 400 samples: at least 95 %%, one rank further in would be less");
    double *many = malloc(200000 * sizeof *many);
    struct timing_summary s;
    for (int i = 0; many && i < 200000; i++)
        many[i] = i + 1;
    if (tap_ok(many != NULL, "memory for the test")) {
        timing_summarise(many, 200000, &s);
        /* Normal approximation: 100000.5 -+ 1.96 * sqrt(200000) / 2. */
        tap_ok(fabs(s.ci95_low_s - 99562) < 2 && fabs(s.ci95_high_s - 100439) < 2,
            "200000 samples: %.0f to %.0f", s.ci95_low_s, s.ci95_high_s);
    }
    free(many);
}

static double uniform(int64_t trial, int64_t index)
{
    return ((double)(seed_bits(11, (uint32_t)trial, index) >> 11) + 0.5) * 0x1p-53;
}

/* Skewed noise: a floor and an exponential tail, as timings have. Its median is 1 + 0.1 ln 2. */
static void test_coverage(void)
{
    static const struct {
        int count, rank;
    } sizes[] = {{6, 1}, {10, 2}, {25, 8}, {100, 40}};
    enum { TRIALS = 4000 };
    double samples[100], median = 1 + 0.1 * log(2);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int covered = 0, count = sizes[k].count;
        for (int trial = 0; trial < TRIALS; trial++) {
            struct timing_summary s;
            for (int i = 0; i < count; i++)
                samples[i] = 1 - 0.1 * log(uniform(trial, i + 1000 * (int64_t)k));
            timing_summarise(samples, count, &s);
            covered += s.ci95_low_s <= median && median <= s.ci95_high_s;
        }
        double share = (double)covered / TRIALS, expected = exact_coverage(count, sizes[k].rank);
        double deviation = sqrt(expected * (1 - expected) / TRIALS);
        tap_ok(fabs(share - expected) < 4 * deviation,
            "%d skewed samples: the median is inside in %.4f of all trials, %.4f by theory", count,
            share, expected);
    }
}

/* Hands over what `next` gives until it stops; returns the number of repetitions. */
static int drive(struct timing *t, const struct timing_protocol *protocol, double (*next)(int))
{
    int repetitions = 0;
    if (timing_init(t, protocol))
        return -1;
    while (timing_more(t) && repetitions < 100000)
        timing_add(t, next(repetitions++));
    return repetitions;
}

static double steady(int i)
{
    (void)i;
    return 0.01;
}

/* Never within 2 %. */
static double restless(int i)
{
    return i % 2 ? 0.01 : 0.02;
}

/* A slow first repetition, as a cold start gives. */
static double cold(int i)
{
    return i ? 0.01 : 5;
}

static double slow(int i)
{
    (void)i;
    return 3;
}

static void test_stop_noise(void)
{
    struct timing t;
    struct timing_protocol p = {2, 10, 100, 0, 1000, 0.02};
    tap_ok(drive(&t, &p, steady) == 12 && t.stop == TIMING_NOISE && t.count == 10 && t.seen == 12,
        "steady samples stop at the least number, after the warm-up");
    timing_free(&t);
    p.min_time_s = 0.5;
    tap_ok(drive(&t, &p, steady) == 50 && t.stop == TIMING_NOISE,
        "not before the least time, warm-up included");
    timing_free(&t);
    p = (struct timing_protocol){0, 1, 100, 0, 1000, 0.02};
    tap_ok(drive(&t, &p, steady) == 6 && t.stop == TIMING_NOISE,
        "no interval of the median exists below 6 samples, so no noise is met there");
    timing_free(&t);
    p = (struct timing_protocol){0, 10, 100, 0, 0.1, 0.02};
    tap_ok(drive(&t, &p, steady) == 10 && t.stop == TIMING_NOISE,
        "when noise and time are met together, noise is named");
    timing_free(&t);
}

static void test_stop_time(void)
{
    struct timing t;
    struct timing_protocol p = {0, 10, 1000, 0, 1, 0.02};
    int repetitions = drive(&t, &p, restless);
    tap_ok(t.stop == TIMING_TIME && t.total_s >= 1 && t.total_s - restless(repetitions - 1) < 1,
        "restless samples stop at the first that reaches the time limit");
    timing_free(&t);
    p = (struct timing_protocol){1, 10, 1000, 0, 2, 0.02};
    tap_ok(drive(&t, &p, slow) == 2 && t.stop == TIMING_TIME && t.count == 1,
        "one sample there is, even when the warm-up alone passes the limit");
    timing_free(&t);
    p = (struct timing_protocol){0, 10, 10, 0, 0.15, 0.02};
    tap_ok(drive(&t, &p, restless) == 10 && t.stop == TIMING_TIME,
        "when time and samples are met together, time is named");
    timing_free(&t);
}

static void test_stop_samples(void)
{
    struct timing t;
    struct timing_protocol p = {3, 10, 40, 0, 1000, 0.02};
    tap_ok(drive(&t, &p, restless) == 43 && t.stop == TIMING_SAMPLES && t.count == 40,
        "restless samples stop at the greatest number");
    timing_free(&t);
    p = (struct timing_protocol){0, 10, 20, 1000, 2000, 0.02};
    tap_ok(drive(&t, &p, steady) == 20 && t.stop == TIMING_SAMPLES,
        "the greatest number goes before the least time");
    timing_free(&t);
    p = (struct timing_protocol){0, 0, 0, 0, 1000, 0};
    tap_ok(drive(&t, &p, restless) == 1 && t.count == 1, "a limit of none still gives one sample");
    timing_free(&t);
    tap_ok(!t.samples_s && !t.count, "freed is empty");
}

static void test_warmup(void)
{
    struct timing t;
    struct timing_protocol p = {1, 6, 100, 0, 1000, 0.02};
    drive(&t, &p, cold);
    bool without = true;
    for (int i = 0; i < t.count; i++)
        without &= t.samples_s[i] == 0.01;
    tap_ok(without && t.count == 6 && fabs(t.total_s - 5.06) < 1e-9,
        "the warm-up is in the total and not in the samples");
    timing_free(&t);
}

static void test_after_stop(void)
{
    struct timing t;
    struct timing_protocol p = {0, 6, 8, 0, 1000, 0.02};
    drive(&t, &p, steady);
    for (int i = 0; i < 5; i++)
        timing_add(&t, 1);
    tap_ok(t.stop == TIMING_NOISE && t.count == 8 && t.seen == 11,
        "after the stop samples are kept while there is room, and the decision stands");
    timing_free(&t);
}

/* Ranks see the same numbers, so they stop after the same one and for the same reason. */
static double noisy(int i)
{
    return 0.01 * (1 + 0.2 * uniform(99, i));
}

static void test_pure(void)
{
    struct timing a, b;
    struct timing_protocol p = {1, 10, 5000, 0, 1000, 0.004};
    int first = drive(&a, &p, noisy), second = drive(&b, &p, noisy);
    tap_ok(first == second && a.stop == b.stop && a.stop == TIMING_NOISE && a.count > 128,
        "the same samples give the same decision (after %d)", first);
    struct timing_summary s;
    timing_summarise(a.samples_s, a.count, &s);
    tap_ok(s.ci95_high_s - s.median_s <= 0.004 * s.median_s &&
               s.median_s - s.ci95_low_s <= 0.004 * s.median_s,
        "and the interval is as narrow as asked for");
    timing_free(&a);
    timing_free(&b);
}

static void test_names(void)
{
    struct timing_protocol p = timing_default();
    tap_ok(p.min_samples == 10 && p.max_time_s == 2 && p.target_rel == 0.02 && p.warmup >= 1,
        "the default is 10 samples, 2 s, 2 %%");
    tap_ok(!strcmp(timing_stop_name(TIMING_NOISE), "noise met") &&
               !strcmp(timing_stop_name(TIMING_TIME), "time limit") &&
               !strcmp(timing_stop_name(TIMING_SAMPLES), "sample limit") &&
               !strcmp(timing_stop_name(TIMING_RUNNING), "running"),
        "every stop has its name");
}

int main(void)
{
    test_clock();
    test_quantiles();
    test_interval_ranks();
    test_interval_exact();
    test_coverage();
    test_stop_noise();
    test_stop_time();
    test_stop_samples();
    test_warmup();
    test_after_stop();
    test_pure();
    test_names();
    return tap_done();
}
