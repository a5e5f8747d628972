/* When an engine of the simulated device is busy: a row of spans that never touch one another.
 * Times are whole picoseconds, so that sums are exact and the same on every machine. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct calendar_span {
    int64_t begin_ps, end_ps;
};

struct calendar {
    struct calendar_span *spans;    /* by time; owned */
    int64_t first, count, capacity; /* spans[first .. first + count - 1] are in use */
};

void calendar_free(struct calendar *calendar);

/* Works `work_ps` (> 0) from `ready_ps` on, in whatever is free: what was booked before is not
 * moved, and no gap behind ready_ps is left while work remains, so work may be interrupted. *out is
 * from its first to its last moment. Nothing will be ready before `past_ps` again: spans that end
 * there may be forgotten. False when memory is short. */
bool calendar_book(struct calendar *calendar, int64_t ready_ps, int64_t work_ps, int64_t past_ps,
    struct calendar_span *out);
