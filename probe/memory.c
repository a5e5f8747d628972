/* Accounting of one arena: a few integers and no allocation, so that counting a request can neither
 * fail nor disturb what it counts. A probe belongs to the thread that allocates; it takes no lock.
 */
#include "probe/memory.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *mem_live_set_name(enum live_set set)
{
    static const char *const names[LIVE_SET_COUNT] = {
        [LIVE_WEIGHTS] = "weights",
        [LIVE_GRADIENTS] = "gradients",
        [LIVE_OPTIMIZER] = "optimizer",
        [LIVE_INPUT] = "input",
        [LIVE_OUTPUT] = "output",
        [LIVE_DISPATCH] = "dispatch",
        [LIVE_EXPERT] = "expert",
        [LIVE_COMBINE] = "combine",
        [LIVE_LOGITS] = "logits",
        [LIVE_BOUNDARY] = "boundary",
        [LIVE_STAGING] = "staging",
        [LIVE_RING] = "ring",
        [LIVE_ATTENTION] = "attention",
        [LIVE_WORKSPACE] = "workspace",
    };
    assert(set >= 0 && set < LIVE_SET_COUNT);
    return names[set];
}

void mem_init(struct mem_probe *probe, int64_t limit_bytes)
{
    assert(limit_bytes >= 0);
    memset(probe, 0, sizeof *probe);
    probe->limit_bytes = limit_bytes;
}

static void keep_failure(
    struct mem_probe *probe, int64_t bytes, enum live_set set, const char *label)
{
    struct mem_failure *failure = &probe->failure;
    if (failure->requested_bytes)
        return;
    failure->requested_bytes = bytes;
    failure->live_bytes = probe->live_bytes;
    failure->set = set;
    snprintf(failure->label, sizeof failure->label, "%s", label ? label : "");
}

bool mem_add(struct mem_probe *probe, int64_t bytes, enum live_set set, const char *label)
{
    assert(bytes >= 0);
    assert(set >= 0 && set < LIVE_SET_COUNT);
    /* Without a limit the largest count there is: a sum that overflows is a request that fits
     * nowhere. */
    int64_t limit = probe->limit_bytes ? probe->limit_bytes : INT64_MAX;
    if (bytes > limit - probe->live_bytes) {
        keep_failure(probe, bytes, set, label);
        return false;
    }
    probe->live_bytes += bytes;
    probe->set_bytes[set] += bytes;
    probe->allocations++;

    struct mem_window *window = &probe->window;
    if (probe->set_bytes[set] > window->set_peak_bytes[set])
        window->set_peak_bytes[set] = probe->set_bytes[set];
    /* The first instant at which the peak was reached is kept: the order of later equal peaks must
     * not change the report. */
    if (probe->live_bytes > window->peak_bytes) {
        window->peak_bytes = probe->live_bytes;
        memcpy(window->set_at_peak_bytes, probe->set_bytes, sizeof probe->set_bytes);
    }
    return true;
}

void mem_sub(struct mem_probe *probe, int64_t bytes, enum live_set set)
{
    assert(set >= 0 && set < LIVE_SET_COUNT);
    assert(bytes >= 0 && bytes <= probe->set_bytes[set]);
    probe->live_bytes -= bytes;
    probe->set_bytes[set] -= bytes;
}

void mem_window_reset(struct mem_probe *probe)
{
    struct mem_window *window = &probe->window;
    window->peak_bytes = probe->live_bytes;
    memcpy(window->set_peak_bytes, probe->set_bytes, sizeof probe->set_bytes);
    memcpy(window->set_at_peak_bytes, probe->set_bytes, sizeof probe->set_bytes);
}

void mem_describe_failure(const struct mem_probe *probe, const char *arena, char *text, int size)
{
    const struct mem_failure *failure = &probe->failure;
    if (!failure->requested_bytes) {
        snprintf(text, (size_t)size, "%s: no request failed", arena);
        return;
    }
    char limit[48] = "there is no limit";
    if (probe->limit_bytes)
        snprintf(limit, sizeof limit, "the limit is %" PRId64, probe->limit_bytes);
    snprintf(text, (size_t)size,
        "%s: live set %s (%s) asked for %" PRId64 " bytes with %" PRId64 " live; %s", arena,
        mem_live_set_name(failure->set), failure->label, failure->requested_bytes,
        failure->live_bytes, limit);
}
