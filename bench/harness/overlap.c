/* Overlap of copies and kernels: unions of intervals. */
#include "bench/harness/overlap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct interval {
    double begin_s, end_s;
};

static int compare_begin(const void *a, const void *b)
{
    double x = ((const struct interval *)a)->begin_s, y = ((const struct interval *)b)->begin_s;
    return x < y ? -1 : x > y;
}

/* Sorts, and returns the measure of the union. */
static double measure(struct interval *intervals, int64_t count)
{
    double sum = 0, reached = -INFINITY;
    qsort(intervals, (size_t)count, sizeof *intervals, compare_begin);
    for (int64_t i = 0; i < count; i++) {
        double begin = intervals[i].begin_s > reached ? intervals[i].begin_s : reached;
        if (intervals[i].end_s > begin) {
            sum += intervals[i].end_s - begin;
            reached = intervals[i].end_s;
        }
    }
    return sum;
}

/* The stage that a span belongs to; OVERLAP_STAGES = none. */
static enum overlap_stage stage_of(const struct trace_span *span, const char *kernel)
{
    if (span->kind == TRACE_KERNEL && (!kernel || !strcmp(span->name, kernel)))
        return OVERLAP_COMPUTE;
    if (span->kind == TRACE_COPY && !strcmp(span->name, "h2d"))
        return OVERLAP_UP;
    if (span->kind == TRACE_COPY && !strcmp(span->name, "d2h"))
        return OVERLAP_DOWN;
    return OVERLAP_STAGES;
}

/* The rank's spans of one stage (OVERLAP_STAGES: of all three). */
static int64_t gather(const struct trace_span *spans, int64_t count, int rank, const char *kernel,
    enum overlap_stage stage, struct interval *out)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        enum overlap_stage own = stage_of(&spans[i], kernel);
        if (spans[i].rank == rank && own < OVERLAP_STAGES &&
            (own == stage || stage == OVERLAP_STAGES))
            out[kept++] = (struct interval){spans[i].begin_s, spans[i].end_s};
    }
    return kept;
}

int overlap_measure(
    const struct trace *trace, int rank, const char *kernel, struct overlap *overlap)
{
    int64_t count;
    const struct trace_span *spans = trace_spans(trace, &count);
    struct interval *intervals = malloc(((size_t)count + 1) * sizeof *intervals);
    double sum = 0, longest = 0;
    *overlap = (struct overlap){.fraction = NAN};
    if (!intervals)
        return -1;
    if (trace_lost(trace)) {
        *overlap = (struct overlap){{NAN, NAN, NAN}, NAN, NAN, NAN};
        free(intervals);
        return 0;
    }
    for (int stage = 0; stage < OVERLAP_STAGES; stage++) {
        int64_t kept = gather(spans, count, rank, kernel, (enum overlap_stage)stage, intervals);
        double busy = overlap->busy_s[stage] = measure(intervals, kept);
        sum += busy;
        longest = busy > longest ? busy : longest;
    }
    int64_t kept = gather(spans, count, rank, kernel, OVERLAP_STAGES, intervals);
    overlap->union_s = measure(intervals, kept);
    double first = INFINITY, last = -INFINITY;
    for (int64_t i = 0; i < kept; i++) {
        first = intervals[i].begin_s < first ? intervals[i].begin_s : first;
        last = intervals[i].end_s > last ? intervals[i].end_s : last;
    }
    overlap->elapsed_s = kept ? last - first : 0;
    if (sum > longest)
        overlap->fraction = (sum - overlap->union_s) / (sum - longest);
    free(intervals);
    return 0;
}

struct copy_time overlap_copies(const struct trace *trace, int rank)
{
    struct copy_time time = {.busy_s = trace_overlap_s(trace, rank, TRACE_COPY, TRACE_COPY),
        .hidden_s = trace_overlap_s(trace, rank, TRACE_COPY, TRACE_KERNEL)};
    time.exposed_s = time.busy_s - time.hidden_s;
    return time;
}
