/* How long two kinds of work ran at the same time, from intervals alone: sort, merge each kind into
 * disjoint intervals, walk both lists once. Spans may nest, touch and repeat on many streams; time
 * that several of them cover counts once. */
#include <math.h>
#include <stdlib.h>
#include "probe/trace_store.h"

struct interval {
    double begin_s, end_s;
};

static int compare_intervals(const void *left, const void *right)
{
    const struct interval *a = left, *b = right;
    return (a->begin_s > b->begin_s) - (a->begin_s < b->begin_s);
}

/* Merges in place what overlaps or touches; returns how many disjoint intervals remain. */
static int64_t unite(struct interval *intervals, int64_t count)
{
    int64_t kept = 0;
    qsort(intervals, (size_t)count, sizeof *intervals, compare_intervals);
    for (int64_t i = 0; i < count; i++) {
        struct interval *last = kept ? &intervals[kept - 1] : NULL;
        if (!last || intervals[i].begin_s > last->end_s)
            intervals[kept++] = intervals[i];
        else if (intervals[i].end_s > last->end_s)
            last->end_s = intervals[i].end_s;
    }
    return kept;
}

static double intersection_s(
    const struct interval *a, int64_t a_count, const struct interval *b, int64_t b_count)
{
    double sum = 0;
    int64_t i = 0, j = 0;
    while (i < a_count && j < b_count) {
        double begin = fmax(a[i].begin_s, b[j].begin_s), end = fmin(a[i].end_s, b[j].end_s);
        if (end > begin)
            sum += end - begin;
        if (a[i].end_s < b[j].end_s)
            i++;
        else
            j++;
    }
    return sum;
}

static int64_t collect(
    const struct trace *t, int rank, enum trace_kind kind, struct interval *intervals)
{
    int64_t count = 0;
    for (int64_t i = 0; i < t->span_count; i++) {
        const struct trace_span *span = &t->spans[i];
        if (span->rank == rank && span->kind == kind)
            intervals[count++] = (struct interval){span->begin_s, span->end_s};
    }
    return unite(intervals, count);
}

double trace_overlap_s(const struct trace *t, int rank, enum trace_kind a, enum trace_kind b)
{
    if (!t)
        return 0;
    trace_lock(t);
    double overlap = t->lost ? NAN : 0;
    if (t->span_count && !t->lost) {
        size_t room = (size_t)t->span_count;
        struct interval *intervals = calloc(2 * room, sizeof *intervals);
        if (intervals) {
            int64_t a_count = collect(t, rank, a, intervals);
            int64_t b_count = collect(t, rank, b, intervals + room);
            overlap = intersection_s(intervals, a_count, intervals + room, b_count);
        } else {
            overlap = NAN;
        }
        free(intervals);
    }
    trace_unlock(t);
    return overlap;
}
