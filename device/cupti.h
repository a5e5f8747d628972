/* When kernels and copies ran on the GPU and what memory pools held, as CUPTI tells it. One session
 * serves the process, since CUPTI has no other; any thread may call. CUPTI is loaded when a session
 * first opens: a program starts and runs without it. */
#pragma once
#include <stdint.h>

/* Joins the session. False when there is no CUPTI here, or another profiler has it. */
bool cupti_open(void);

/* Leaves it; the last one to leave ends it. */
void cupti_close(void);

/* What the calling thread enqueues from here on belongs to `id`, until cupti_pop. */
void cupti_push(uint64_t id);
void cupti_pop(void);

/* Gives what has run of ids first .. last to `take`, once each, in seconds of timing_now_s. Returns
 * how many records CUPTI has dropped, whosever they were, since the last call of anybody. */
int64_t cupti_take(uint64_t first, uint64_t last,
    void (*take)(void *context, uint64_t id, double begin_s, double end_s), void *context);

/* Gives every record of a pool's memory that belongs to `id` to `take`, in the order of the calls:
 * bytes that the pool had in use and in all after it. */
void cupti_take_memory(uint64_t id,
    void (*take)(void *context, double time_s, int64_t used_bytes, int64_t pool_bytes),
    void *context);
