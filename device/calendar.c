/* A sorted array of spans. A booking fills the gaps that it meets, which joins all spans from the
 * first to the last one that it touches into one: so it replaces a run of spans by a single one,
 * and the array stays as short as the number of gaps that are left. */
#include "device/calendar.h"
#include <stdlib.h>
#include <string.h>

void calendar_free(struct calendar *calendar)
{
    free(calendar->spans);
    *calendar = (struct calendar){0};
}

/* The first span that ends at `time_ps` or later. */
static int64_t find(const struct calendar *calendar, int64_t time_ps)
{
    int64_t low = calendar->first, high = calendar->first + calendar->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (calendar->spans[middle].end_ps < time_ps)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void forget(struct calendar *calendar, int64_t past_ps)
{
    int64_t kept = find(calendar, past_ps + 1);
    calendar->count -= kept - calendar->first;
    calendar->first = calendar->count ? kept : 0;
}

/* Room for one more span behind the last one in use. */
static bool make_room(struct calendar *calendar)
{
    if (calendar->first + calendar->count < calendar->capacity)
        return true;
    if (calendar->first > calendar->capacity / 2) {
        memmove(calendar->spans, calendar->spans + calendar->first,
            (size_t)calendar->count * sizeof *calendar->spans);
        calendar->first = 0;
        return true;
    }
    int64_t capacity = calendar->capacity ? 2 * calendar->capacity : 16;
    struct calendar_span *spans = realloc(calendar->spans, (size_t)capacity * sizeof *spans);
    if (!spans)
        return false;
    calendar->spans = spans;
    calendar->capacity = capacity;
    return true;
}

/* Puts `span` in the place of spans[from .. to - 1]. */
static void replace(struct calendar *calendar, int64_t from, int64_t to, struct calendar_span span)
{
    struct calendar_span *spans = calendar->spans;
    int64_t end = calendar->first + calendar->count;
    memmove(spans + from + 1, spans + to, (size_t)(end - to) * sizeof *spans);
    spans[from] = span;
    calendar->count += 1 - (to - from);
}

bool calendar_book(struct calendar *calendar, int64_t ready_ps, int64_t work_ps, int64_t past_ps,
    struct calendar_span *out)
{
    forget(calendar, past_ps);
    if (!make_room(calendar))
        return false;
    const struct calendar_span *spans = calendar->spans;
    int64_t from = find(calendar, ready_ps), end = calendar->first + calendar->count, next = from;
    struct calendar_span joined = {ready_ps, ready_ps};
    int64_t at_ps = ready_ps;
    out->begin_ps = -1;
    for (;; next++) {
        int64_t gap_end_ps = next < end ? spans[next].begin_ps : INT64_MAX;
        if (next == from && next < end && gap_end_ps <= ready_ps) {
            joined.begin_ps = gap_end_ps; /* it is busy when the work comes */
            at_ps = spans[next].end_ps;
            continue;
        }
        if (out->begin_ps < 0)
            out->begin_ps = at_ps;
        if (work_ps < gap_end_ps - at_ps)
            break;
        work_ps -= gap_end_ps - at_ps;
        at_ps = spans[next].end_ps;
        if (work_ps == 0) { /* it ends where the next span begins */
            out->end_ps = gap_end_ps;
            joined.end_ps = at_ps;
            replace(calendar, from, next + 1, joined);
            return true;
        }
    }
    out->end_ps = joined.end_ps = at_ps + work_ps;
    replace(calendar, from, next, joined);
    return true;
}
