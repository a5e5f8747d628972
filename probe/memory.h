/* Exact accounting of one arena (a rank's device memory, or its pinned host memory).
 *
 * Every byte belongs to one named live set. The probe keeps, for the window since the last reset,
 * the peak, what was live at the instant of the peak, and each live set's own peak. Figures count
 * requested bytes, so they are the same on every machine and in every run. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum live_set {
    LIVE_WEIGHTS,
    LIVE_GRADIENTS,
    LIVE_OPTIMIZER,
    LIVE_INPUT,
    LIVE_OUTPUT,
    LIVE_DISPATCH,
    LIVE_EXPERT,
    LIVE_COMBINE,
    LIVE_LOGITS,
    LIVE_BOUNDARY,
    LIVE_STAGING,
    LIVE_RING,
    LIVE_ATTENTION,
    LIVE_WORKSPACE,
    LIVE_SET_COUNT
};

/* The first request that did not fit; bytes = 0 while there was none. */
struct mem_failure {
    int64_t requested_bytes;
    int64_t live_bytes; /* live when it was asked for */
    enum live_set set;
    char label[48];
};

struct mem_window {
    int64_t peak_bytes;
    int64_t set_peak_bytes[LIVE_SET_COUNT];    /* each live set's own peak */
    int64_t set_at_peak_bytes[LIVE_SET_COUNT]; /* live at the instant of peak_bytes */
};

struct mem_probe {
    int64_t limit_bytes; /* 0 = no limit */
    int64_t live_bytes;
    int64_t set_bytes[LIVE_SET_COUNT];
    int64_t allocations; /* calls of mem_add that succeeded, ever */
    struct mem_window window;
    struct mem_failure failure;
};

/* "weights", "gradients", ... */
const char *mem_live_set_name(enum live_set set);

/* Starts empty accounting; limit_bytes = 0 means no limit. */
void mem_init(struct mem_probe *probe, int64_t limit_bytes);

/* Counts `bytes` (>= 0) into `set`. False when the total would pass the limit: nothing is counted,
 * and the first such request is kept in probe->failure. */
bool mem_add(struct mem_probe *probe, int64_t bytes, enum live_set set, const char *label);

/* Takes `bytes` back out of `set`. */
void mem_sub(struct mem_probe *probe, int64_t bytes, enum live_set set);

/* Starts a new window: peak = what is live now. */
void mem_window_reset(struct mem_probe *probe);

/* Writes one sentence about probe->failure: live set, label, bytes asked for, live, limit. */
void mem_describe_failure(const struct mem_probe *probe, const char *arena, char *text, int size);
