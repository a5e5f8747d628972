/* Bookings of an engine against a row of single picoseconds: every booking takes exactly the first
 * free ones from its ready time on. */
#include "device/calendar.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/device_case.h"

#define LENGTH 4096

/* Takes the first `work` free places from `ready` on. */
static struct calendar_span take(char *busy, int64_t ready, int64_t work)
{
    struct calendar_span span = {-1, -1};
    for (int64_t at = ready; work > 0 && at < LENGTH; at++) {
        if (busy[at])
            continue;
        busy[at] = 1;
        work--;
        if (span.begin_ps < 0)
            span.begin_ps = at;
        span.end_ps = at + 1;
    }
    return span;
}

static bool spans_are_apart(const struct calendar *calendar)
{
    for (int64_t i = calendar->first; i < calendar->first + calendar->count; i++) {
        const struct calendar_span *span = &calendar->spans[i];
        if (span->begin_ps >= span->end_ps ||
            (i > calendar->first && span[-1].end_ps >= span->begin_ps))
            return false;
    }
    return true;
}

/* Every span that the calendar keeps is busy, and no other place behind `past`. */
static bool same_places(const struct calendar *calendar, const char *busy, int64_t past)
{
    char marked[LENGTH] = {0};
    for (int64_t i = calendar->first; i < calendar->first + calendar->count; i++)
        for (int64_t at = calendar->spans[i].begin_ps; at < calendar->spans[i].end_ps; at++)
            marked[at] = 1;
    for (int64_t at = past; at < LENGTH; at++)
        if (marked[at] != busy[at])
            return false;
    return true;
}

/* Ready times wander on; now and then the past moves up. */
static bool random_bookings(uint64_t seed)
{
    char busy[LENGTH] = {0};
    struct calendar calendar = {0};
    int64_t past = 0;
    bool good = true;
    for (int i = 0; good && i < 60; i++) {
        int64_t ready = past + (int64_t)(next_random(&seed) % (i % 3 ? 100 : 1000));
        int64_t work = 1 + (int64_t)(next_random(&seed) % (i % 7 ? 12 : 60));
        struct calendar_span got, want = take(busy, ready, work);
        good = calendar_book(&calendar, ready, work, past, &got) && got.begin_ps == want.begin_ps &&
               got.end_ps == want.end_ps && spans_are_apart(&calendar) &&
               same_places(&calendar, busy, past);
        if (!good)
            tap_note("booking %d: [%lld, %lld), expected [%lld, %lld)", i, (long long)got.begin_ps,
                (long long)got.end_ps, (long long)want.begin_ps, (long long)want.end_ps);
        if (next_random(&seed) % 4 == 0)
            past += (int64_t)(next_random(&seed) % 60);
    }
    calendar_free(&calendar);
    return good;
}

static bool booked(
    struct calendar *calendar, int64_t ready, int64_t work, int64_t begin, int64_t end)
{
    struct calendar_span span;
    return calendar_book(calendar, ready, work, 0, &span) && span.begin_ps == begin &&
           span.end_ps == end;
}

int main(void)
{
    struct calendar calendar = {0};
    tap_ok(booked(&calendar, 10, 5, 10, 15), "an idle engine works when the work is ready");
    tap_ok(booked(&calendar, 12, 5, 15, 20), "a busy one when it is free");
    tap_ok(booked(&calendar, 0, 4, 0, 4), "a gap before later work is used");
    tap_ok(booked(&calendar, 2, 8, 4, 22), "work that does not fit is interrupted and goes on");
    tap_ok(
        booked(&calendar, 30, 2, 30, 32) && booked(&calendar, 22, 8, 22, 30) && calendar.count == 1,
        "work may fill a gap to the end");
    calendar_free(&calendar);
    bool good = true;
    for (uint64_t seed = 1; seed <= 2000; seed++)
        good = random_bookings(seed) && good;
    tap_ok(good, "2000 random rows of bookings take the first free places");
    return tap_done();
}
