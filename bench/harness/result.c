/* The result of a case, and what is derived from it: the verdict over tensors, the rank that
 * decides a figure, and whether the memory kept its bound and its closed form. */
#include "bench/harness/result.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int case_result_init(struct case_result *result, int ranks)
{
    memset(result, 0, sizeof *result);
    result->work = NAN;
    for (int i = 0; i < CASE_FIGURES_MAX; i++)
        result->figures[i].value = NAN;
    result->rss_peak_bytes = ABSENT;
    result->ranks = calloc((size_t)ranks, sizeof *result->ranks);
    if (!result->ranks)
        return -1;
    result->rank_count = ranks;
    for (int i = 0; i < ranks; i++) {
        struct case_rank *rank = &result->ranks[i];
        rank->time_s = NAN;
        rank->resident_bytes = rank->host_pinned_peak_bytes = ABSENT;
        rank->driver_bytes = rank->routes = ABSENT;
        for (int w = 0; w < WINDOW_COUNT; w++) {
            struct case_window *window = &rank->windows[w];
            window->expected_bytes = window->bound_bytes = ABSENT;
            for (int set = 0; set < LIVE_SET_COUNT; set++)
                window->expected_set_bytes[set] = ABSENT;
        }
    }
    return 0;
}

void case_result_free(struct case_result *result)
{
    timing_free(&result->time);
    free(result->ranks);
    free(result->rank_samples_s);
    json_decref(result->plan);
    json_decref(result->search);
    memset(result, 0, sizeof *result);
}

struct case_tensor *case_result_tensor(struct case_result *result, const char *name)
{
    if (result->tensor_count == CASE_TENSORS_MAX)
        return NULL;
    struct case_tensor *tensor = &result->tensors[result->tensor_count++];
    tensor->name = name;
    return tensor;
}

void case_result_figure(struct case_result *result, int index, double value, const char *text)
{
    struct case_figure *figure = &result->figures[index];
    figure->value = value;
    snprintf(figure->text, sizeof figure->text, "%s", text);
}

void case_result_count(struct case_result *result, const char *name, int64_t value)
{
    if (result->count_count < CASE_COUNTS_MAX)
        result->counts[result->count_count++] = (struct case_count){name, value};
}

void case_result_fail(struct case_result *result, const struct ranks_failure *failure)
{
    result->status = failure->status == DEV_OUT_OF_MEMORY ? CASE_OOM : CASE_ERROR;
    snprintf(result->reason, sizeof result->reason, "rank %d: %s", failure->rank, failure->message);
}

void case_result_skip(struct case_result *result, const char *format, ...)
{
    va_list args;
    result->status = CASE_SKIPPED;
    va_start(args, format);
    vsnprintf(result->reason, sizeof result->reason, format, args);
    va_end(args);
}

void case_rank_resident(struct case_rank *rank, const struct mem_probe *probe)
{
    rank->resident_bytes = probe->live_bytes;
    memcpy(rank->resident_set_bytes, probe->set_bytes, sizeof rank->resident_set_bytes);
}

void case_rank_window(
    struct case_rank *rank, enum case_window_kind kind, const struct mem_probe *probe)
{
    rank->windows[kind].present = true;
    rank->windows[kind].peak = probe->window;
}

const char *case_status_name(enum case_status status)
{
    static const char *const names[] = {"ok", "oom", "error", "skipped"};
    return names[status];
}

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {
        "bitwise", "exact-input", "bounded", "off", "simulated", "mismatch"};
    return names[verdict];
}

const char *case_window_name(enum case_window_kind kind)
{
    static const char *const names[] = {"pass", "forward", "backward"};
    return names[kind];
}

enum verdict case_verdict(const struct case_result *result)
{
    enum verdict verdict = VERDICT_BITWISE;
    bool compared = false;
    for (int i = 0; i < result->tensor_count; i++) {
        enum verdict own = result->tensors[i].verdict;
        if (own == VERDICT_OFF)
            continue;
        compared = true;
        if (own > verdict)
            verdict = own;
    }
    return compared ? verdict : result->simulated ? VERDICT_SIMULATED : VERDICT_OFF;
}

int case_fullest_rank(const struct case_result *result, enum case_window_kind kind)
{
    int fullest = -1;
    for (int i = 0; i < result->rank_count; i++) {
        const struct case_rank *ranks = result->ranks;
        if (ranks[i].windows[kind].present &&
            (fullest < 0 || ranks[i].windows[kind].peak.peak_bytes >
                                ranks[fullest].windows[kind].peak.peak_bytes))
            fullest = i;
    }
    return fullest;
}

int case_slowest_rank(const struct case_result *result)
{
    int slowest = -1;
    for (int i = 0; i < result->rank_count; i++) {
        double time_s = result->ranks[i].time_s;
        if (!isnan(time_s) && (slowest < 0 || time_s > result->ranks[slowest].time_s))
            slowest = i;
    }
    return slowest;
}

int64_t case_increment_bytes(const struct case_result *result, int rank, enum case_window_kind kind)
{
    const struct case_rank *at = &result->ranks[rank];
    if (!at->windows[kind].present || at->resident_bytes == ABSENT)
        return ABSENT;
    return at->windows[kind].peak.peak_bytes - at->resident_bytes;
}

double case_bound_share(const struct case_result *result)
{
    double share = NAN;
    for (int i = 0; i < result->rank_count; i++) {
        for (int w = 0; w < WINDOW_COUNT; w++) {
            int64_t increment = case_increment_bytes(result, i, w);
            int64_t bound = result->ranks[i].windows[w].bound_bytes;
            if (increment == ABSENT || bound == ABSENT || (bound == 0 && increment == 0))
                continue;
            double own = bound ? (double)increment / (double)bound : INFINITY;
            if (isnan(share) || own > share)
                share = own;
        }
    }
    return share;
}

/* The first live set whose own peak differs from its closed form. */
static bool set_fault(
    const struct case_rank *rank, const struct case_window *window, char *text, int size)
{
    for (int set = 0; set < LIVE_SET_COUNT; set++) {
        int64_t got = window->peak.set_peak_bytes[set] - rank->resident_set_bytes[set];
        int64_t expected = window->expected_set_bytes[set];
        if (expected != ABSENT && got != expected) {
            snprintf(text, (size_t)size, "live set %s has %lld over resident, closed form %lld",
                mem_live_set_name(set), (long long)got, (long long)expected);
            return true;
        }
    }
    return false;
}

static bool window_fault(
    const struct case_result *result, int rank, enum case_window_kind kind, char *text, int size)
{
    const struct case_window *window = &result->ranks[rank].windows[kind];
    int64_t increment = case_increment_bytes(result, rank, kind);
    char total[96] = "", set[96] = "";
    if (increment == ABSENT)
        return false;
    if (window->bound_bytes != ABSENT && increment > window->bound_bytes)
        snprintf(total, sizeof total, "%lld bytes over resident, above the bound of %lld",
            (long long)increment, (long long)window->bound_bytes);
    else if (window->expected_bytes != ABSENT && increment != window->expected_bytes)
        snprintf(total, sizeof total, "%lld bytes over resident, closed form %lld",
            (long long)increment, (long long)window->expected_bytes);
    bool set_differs = set_fault(&result->ranks[rank], window, set, sizeof set);
    if (!*total && !set_differs)
        return false;
    snprintf(text, (size_t)size, "rank %d, %s: %s%s%s", rank, case_window_name(kind), total,
        *total && *set ? "; " : "", set);
    return true;
}

bool case_memory_fault(const struct case_result *result, char *text, int size)
{
    for (int i = 0; i < result->rank_count; i++) {
        for (int w = 0; w < WINDOW_COUNT; w++) {
            if (window_fault(result, i, w, text, size))
                return true;
        }
    }
    return false;
}
int case_result_traffic(
    struct case_result *result, const struct rank *rank, const struct comm_traffic *own)
{
    struct comm_traffic *all = malloc((size_t)rank->count * sizeof *all), sum = {0};
    int status = all ? comm_host_all_gather(rank->comm, own, all, sizeof *all) : -1;
    for (int r = 0; status == 0 && r < rank->count; r++) {
        sum.logical_bytes += all[r].logical_bytes;
        sum.wire_bytes += all[r].wire_bytes;
        sum.network_bytes += all[r].network_bytes;
        sum.messages += all[r].messages;
        sum.exchanges += all[r].exchanges;
    }
    if (rank->index == 0 && status == 0) {
        result->traffic = sum;
        result->has_traffic = true;
        result->carrier = comm_carrier(rank->comm);
    }
    free(all);
    return status;
}
