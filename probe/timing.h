/* Repeats until the figure is good enough, and the statistics of the samples.
 *
 * The caller times one repetition (for ranks: the slowest rank's time) and hands it over; every
 * rank that is handed the same samples takes the same decision to go on or stop. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Seconds on the monotonic clock. */
double timing_now_s(void);

struct timing_protocol {
    int warmup;        /* repetitions thrown away first */
    int min_samples;   /* at least this many samples, unless max_time_s is met */
    int max_samples;   /* at most this many */
    double min_time_s; /* at least this long in all, unless max_samples or max_time_s is met */
    double max_time_s; /* once there is a sample, start no other repetition after this long */
    double target_rel; /* stop once the 95 % interval of the median is within +-this share of it */
};

/* Why it stopped; of several reasons at once the first in this order. */
enum timing_stop { TIMING_RUNNING, TIMING_NOISE, TIMING_TIME, TIMING_SAMPLES };

struct timing {
    struct timing_protocol protocol;
    int seen; /* repetitions handed over, warm-up included */
    int count;
    int capacity;
    double *samples_s; /* in the order taken; owned */
    double total_s;    /* of all repetitions, warm-up included */
    enum timing_stop stop;
};

struct timing_summary {
    double median_s, q1_s, q3_s;
    double ci95_low_s, ci95_high_s; /* order-statistic interval of the median (binomial, exact) */
    double min_s, max_s;
};

/* At least 10 samples and 0.2 s, at most 1000 samples or 2 s, in between until within 2 %: what the
 * programs use unless told otherwise. */
struct timing_protocol timing_default(void);

/* Returns 0, or -1 when memory is short. */
int timing_init(struct timing *t, const struct timing_protocol *protocol);
void timing_free(struct timing *t);

/* True while another repetition is wanted. */
bool timing_more(const struct timing *t);

/* Hands over one repetition's seconds. One that comes after the stop is kept as a sample while
 * there is room for it, and changes no decision. */
void timing_add(struct timing *t, double seconds);

/* "noise met", "time limit", "sample limit". */
const char *timing_stop_name(enum timing_stop stop);

/* Medians and quartiles by linear interpolation between order statistics; with fewer than 6
 * samples, where no 95 % interval of the median exists, ci95 is the whole range. count >= 1. */
void timing_summarise(const double *samples_s, int count, struct timing_summary *out);
