/* The time verdict.
 *
 * With enough launches on both sides, the ratio new/old is estimated by Hodges and Lehmann's median
 * of all pairwise ratios of launch medians, and its 95 % interval comes from the exact distribution
 * of the Mann-Whitney count: no assumption about the noise but that both sides have the same shape
 * of it, and nothing that one wild launch could move far. Equal binaries are told apart in at most
 * one comparison of twenty, and less often still because the ratio must also pass the smallest
 * effect. Fewer launches (4 + 4, 3 + 5 and 2 + 8 are enough) have no such interval. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/compare.h"

/* Up to this many launches a side the distribution is counted, beyond it it is normal enough. */
#define LAUNCHES_EXACT 24
#define LAUNCHES_MAX 1024
/* By quartiles, a gap of this many smallest effects is clear: whole launches on a busy machine are
 * seen to be off by a few of them. */
#define FEW_LAUNCHES_GAP 5

const char *time_verdict_name(enum time_verdict verdict)
{
    static const char *const names[] = {"-", "SAME", "FASTER", "SLOWER", "UNSURE"};
    return names[verdict];
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double sorted_median(const double *sorted, int count)
{
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static double median_over_launches(const struct time_launch *launches, int count)
{
    double medians[LAUNCHES_MAX];
    for (int i = 0; i < count; i++)
        medians[i] = launches[i].median_s;
    qsort(medians, (size_t)count, sizeof *medians, compare_doubles);
    return sorted_median(medians, count);
}

/* Let U count the pairs (old, new) whose new launch is the faster, when both sides are alike.
 * Returns the largest k with P(U < k) <= 0.025: of the sorted pairwise ratios, number k from below
 * and number k from above then enclose the true ratio in 95 % of all cases. 0 = no such interval.
 */
static int interval_rank(int n, int m)
{
    if (n > LAUNCHES_EXACT || m > LAUNCHES_EXACT) {
        double mean = n * (double)m / 2;
        double deviation = sqrt(n * (double)m * (n + m + 1) / 12.0);
        int rank = (int)floor(mean - 1.959964 * deviation);
        return rank > 0 ? rank : 0;
    }
    /* ways[i][u]: arrangements of i old and j new with count u, built up over j = 0 .. m. */
    static const int most = LAUNCHES_EXACT * LAUNCHES_EXACT;
    double(*ways)[LAUNCHES_EXACT * LAUNCHES_EXACT + 1] =
        calloc((size_t)LAUNCHES_EXACT + 1, sizeof *ways);
    int rank = 0;
    if (!ways)
        return 0;
    for (int i = 0; i <= n; i++)
        ways[i][0] = 1; /* j = 0 */
    for (int j = 1; j <= m; j++) {
        /* Of i old and j new, the largest is a new one (it adds none) or an old one (it has all j
         * new below it): W(i, j, u) = W(i, j - 1, u) + W(i - 1, j, u - j). */
        for (int i = 1; i <= n; i++) {
            for (int u = most; u >= 0; u--)
                ways[i][u] += u >= j ? ways[i - 1][u - j] : 0;
        }
    }
    double total = 0, below = 0;
    for (int u = 0; u <= n * m; u++)
        total += ways[n][u];
    while (below + ways[n][rank] <= 0.025 * total)
        below += ways[n][rank++];
    free(ways);
    return rank;
}

/* False when there are too few launches, or memory is short. */
static bool ratio_interval(const struct time_launch *old, int old_count,
    const struct time_launch *new, int new_count, struct time_comparison *out)
{
    int rank = interval_rank(old_count, new_count), pairs = old_count * new_count;
    double *ratios = rank ? malloc((size_t)pairs * sizeof *ratios) : NULL;
    if (!ratios)
        return false;
    for (int i = 0; i < old_count; i++) {
        for (int j = 0; j < new_count; j++)
            ratios[i * new_count + j] = new[j].median_s / old[i].median_s;
    }
    qsort(ratios, (size_t)pairs, sizeof *ratios, compare_doubles);
    out->ratio = sorted_median(ratios, pairs);
    out->ratio_low = ratios[rank - 1];
    out->ratio_high = ratios[pairs - rank];
    free(ratios);
    return true;
}

static enum time_verdict verdict_by_interval(const struct time_comparison *at, double min_effect)
{
    double low = 1 - min_effect, high = 1 + min_effect;
    if (at->ratio_low >= low && at->ratio_high <= high)
        return TIME_SAME;
    if (at->ratio_high < 1 && at->ratio <= low)
        return TIME_FASTER;
    if (at->ratio_low > 1 && at->ratio >= high)
        return TIME_SLOWER;
    return TIME_UNSURE;
}

/* The lowest first quartile and the highest third one over the launches of a side. */
static void quartile_range(const struct time_launch *launches, int count, double *low, double *high)
{
    *low = launches[0].q1_s;
    *high = launches[0].q3_s;
    for (int i = 1; i < count; i++) {
        *low = fmin(*low, launches[i].q1_s);
        *high = fmax(*high, launches[i].q3_s);
    }
}

static enum time_verdict verdict_by_quartiles(const struct time_launch *old, int old_count,
    const struct time_launch *new, int new_count, const struct time_comparison *at,
    double min_effect)
{
    double old_low, old_high, new_low, new_high;
    double same_low = 1 - min_effect, same_high = 1 + min_effect;
    quartile_range(old, old_count, &old_low, &old_high);
    quartile_range(new, new_count, &new_low, &new_high);
    double gap = 1 + FEW_LAUNCHES_GAP * min_effect;
    if (new_low >= old_high * gap)
        return TIME_SLOWER;
    if (old_low >= new_high * gap)
        return TIME_FASTER;
    if (new_low >= at->old_s * same_low && new_high <= at->old_s * same_high &&
        old_low >= at->new_s * same_low && old_high <= at->new_s * same_high)
        return TIME_SAME;
    return TIME_UNSURE;
}

static enum time_verdict verdict_by_model(const struct time_comparison *at, double min_effect)
{
    if (at->ratio >= 1 + min_effect)
        return TIME_SLOWER;
    return at->ratio <= 1 - min_effect ? TIME_FASTER : TIME_SAME;
}

void compare_times(const struct time_launch *old, int old_count, const struct time_launch *new,
    int new_count, double min_effect, bool simulated, struct time_comparison *out)
{
    old_count = old_count < LAUNCHES_MAX ? old_count : LAUNCHES_MAX;
    new_count = new_count < LAUNCHES_MAX ? new_count : LAUNCHES_MAX;
    memset(out, 0, sizeof *out);
    out->old_launches = old_count;
    out->new_launches = new_count;
    out->old_s = median_over_launches(old, old_count);
    out->new_s = median_over_launches(new, new_count);
    out->ratio = out->new_s / out->old_s;
    out->ratio_low = out->ratio_high = NAN;
    if (simulated) {
        out->basis = TIME_BY_MODEL;
        out->verdict = verdict_by_model(out, min_effect);
    } else if (ratio_interval(old, old_count, new, new_count, out)) {
        out->basis = TIME_BY_LAUNCHES;
        out->verdict = verdict_by_interval(out, min_effect);
    } else {
        out->basis = TIME_BY_QUARTILES;
        out->verdict = verdict_by_quartiles(old, old_count, new, new_count, out, min_effect);
    }
}
