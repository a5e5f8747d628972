/* The JSON record of a case (docs/RECORDS.md). Figures are numbers in SI base units under names
 * that say the unit; what does not apply is absent. */
#include <math.h>
#include <string.h>
#include "bench/harness/report.h"
#include "bench/harness/simulate.h"
#include "device/launch.h"
#include "probe/record.h"

static json_t *subobject(json_t *parent, const char *key)
{
    json_t *object = json_object();
    json_object_set_new(parent, key, object);
    return object;
}

static void set_int(json_t *object, const char *key, int64_t value)
{
    if (value != ABSENT)
        json_object_set_new(object, key, json_integer(value));
}

static void set_real(json_t *object, const char *key, double value)
{
    if (isfinite(value))
        json_object_set_new(object, key, json_real(value));
}

/* ---- check ---------------------------------------------------------------------------------- */

static json_t *tensor_json(const struct case_tensor *tensor)
{
    json_t *object = json_object();
    json_object_set_new(object, "verdict", json_string(verdict_name(tensor->verdict)));
    if (tensor->digest[0])
        json_object_set_new(object, "digest", json_string(tensor->digest));
    if (tensor->exact_digest[0]) {
        json_t *exact = subobject(object, "exact");
        json_object_set_new(exact, "verdict", json_string(verdict_name(tensor->exact_verdict)));
        json_object_set_new(exact, "digest", json_string(tensor->exact_digest));
        set_real(object, "distance", tensor->distance);
    }
    json_object_set_new(
        object, "order", json_string(tensor->declared_order ? "declared" : "default"));
    if (tensor->has_ulp) {
        json_t *ulp = subobject(object, "ulp_from_default");
        /* INT64_MAX says "NaN against a number": there is no distance. */
        if (tensor->ulp_max != INT64_MAX)
            set_int(ulp, "max", tensor->ulp_max);
        set_real(ulp, "mean", tensor->ulp_mean);
    }
    if (tensor->fault[0])
        json_object_set_new(object, "fault", json_string(tensor->fault));
    return object;
}

static void record_check(json_t *record, const struct case_result *result)
{
    rec_str(record, "check.verdict", verdict_name(case_verdict(result)));
    if (result->against[0])
        rec_str(record, "check.against", result->against);
    if (result->products.present) {
        const struct case_products *products = &result->products;
        rec_int(record, "check.products.library", products->library);
        rec_int(record, "check.products.own", products->own);
        rec_int(record, "check.products.odd", products->odd);
        rec_int(record, "check.products.exact", products->exact);
        rec_int(record, "check.products.elements", products->elements);
        rec_int(record, "check.products.outside", products->outside);
        rec_real(record, "check.products.worst", products->worst);
    }
    if (!result->tensor_count)
        return;
    json_t *outputs = json_object();
    for (int i = 0; i < result->tensor_count; i++)
        json_object_set_new(outputs, result->tensors[i].name, tensor_json(&result->tensors[i]));
    rec_json(record, "check.outputs", outputs);
}

/* ---- time ----------------------------------------------------------------------------------- */

static void record_measurement(json_t *record, const struct case_options *common,
    const struct timing *time, const struct timing_summary *summary)
{
    rec_str(record, "time.protocol.start", "barrier");
    rec_str(record, "time.protocol.caches", "warm");
    rec_bool(record, "time.protocol.oversubscribed", case_oversubscribed(common));
    rec_int(record, "time.protocol.warmup", time->protocol.warmup);
    rec_int(record, "time.protocol.min_samples", time->protocol.min_samples);
    rec_int(record, "time.protocol.max_samples", time->protocol.max_samples);
    rec_real(record, "time.protocol.min_time_s", time->protocol.min_time_s);
    rec_real(record, "time.protocol.max_time_s", time->protocol.max_time_s);
    rec_real(record, "time.protocol.target_rel", time->protocol.target_rel);
    rec_real(record, "time.q1_s", summary->q1_s);
    rec_real(record, "time.q3_s", summary->q3_s);
    double interval[2] = {summary->ci95_low_s, summary->ci95_high_s};
    rec_reals(record, "time.ci95_s", interval, 2);
    rec_str(record, "time.stopped_by",
        time->stop == TIMING_RUNNING ? "interrupt" : timing_stop_name(time->stop));
}

/* The range, and the time on each machine by its name. */
static void record_simulation(json_t *record, const struct case_result *result)
{
    char name[32];
    double range[2];
    json_t *machines = json_object();
    simulate_range(result->machine_s, result->machines, &range[0], &range[1]);
    rec_reals(record, "time.range_s", range, 2);
    for (int m = 0; m < result->machines; m++)
        set_real(machines, simulate_machine_name(m, name, sizeof name), result->machine_s[m]);
    rec_json(record, "time.machines_s", machines);
}

static void record_time(
    json_t *record, const struct case_options *common, const struct case_result *result)
{
    const struct timing *time = &result->time;
    struct timing_summary summary;
    if (time->count < 1)
        return;
    timing_summarise(time->samples_s, time->count, &summary);
    rec_str(record, "time.kind", result->simulated ? "simulated" : "measured");
    rec_reals(record, "time.samples_s", time->samples_s, time->count);
    rec_real(record, "time.median_s", summary.median_s);
    if (result->simulated)
        record_simulation(record, result);
    else
        record_measurement(record, common, time, &summary);
    if (isfinite(result->work) && summary.median_s > 0) {
        char unit[64];
        snprintf(unit, sizeof unit, "%s/s", result->work_unit);
        rec_real(record, "throughput.value", result->work / summary.median_s);
        rec_str(record, "throughput.unit", unit);
        if (result->work_formula)
            rec_str(record, "throughput.formula", result->work_formula);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

static json_t *live_sets_json(const struct mem_window *peak)
{
    json_t *sets = json_object();
    for (int set = 0; set < LIVE_SET_COUNT; set++) {
        if (!peak->set_peak_bytes[set])
            continue;
        json_t *own = subobject(sets, mem_live_set_name(set));
        set_int(own, "peak_bytes", peak->set_peak_bytes[set]);
        set_int(own, "at_peak_bytes", peak->set_at_peak_bytes[set]);
    }
    return sets;
}

/* The fullest rank's figures. */
static void fill_window(
    json_t *memory, const struct case_result *result, enum case_window_kind kind)
{
    int fullest = case_fullest_rank(result, kind);
    const struct case_window *window = &result->ranks[fullest].windows[kind];
    set_int(memory, "tracked_peak_bytes", window->peak.peak_bytes);
    set_int(memory, "increment_bytes", case_increment_bytes(result, fullest, kind));
    set_int(memory, "expected_bytes", window->expected_bytes);
    set_int(memory, "bound_bytes", window->bound_bytes);
    json_object_set_new(memory, "by_live_set", live_sets_json(&window->peak));
}

static int64_t fullest_host_bytes(const struct case_result *result)
{
    int64_t most = ABSENT;
    for (int i = 0; i < result->rank_count; i++) {
        if (result->ranks[i].host_pinned_peak_bytes > most)
            most = result->ranks[i].host_pinned_peak_bytes;
    }
    return most;
}

/* Of the fullest GPU: ranks that share one say the same. */
static int64_t driver_bytes(const struct case_result *result)
{
    int64_t most = ABSENT;
    for (int i = 0; i < result->rank_count; i++) {
        if (result->ranks[i].driver_bytes > most)
            most = result->ranks[i].driver_bytes;
    }
    return most;
}

static void record_memory(json_t *record, const struct case_result *result, double saved)
{
    json_t *memory = json_object();
    int fullest = case_fullest_rank(result, WINDOW_PASS);
    if (fullest >= 0) {
        fill_window(memory, result, WINDOW_PASS);
        set_int(memory, "resident_bytes", result->ranks[fullest].resident_bytes);
    }
    for (int w = WINDOW_FORWARD; w < WINDOW_COUNT; w++) {
        if (case_fullest_rank(result, w) >= 0)
            fill_window(subobject(memory, case_window_name(w)), result, w);
    }
    set_real(memory, "saved_against_baseline", saved);
    set_int(memory, "host_pinned_peak_bytes", fullest_host_bytes(result));
    set_int(memory, "driver_bytes", driver_bytes(result));
    set_int(memory, "rss_peak_bytes", result->rss_peak_bytes);
    char fault[CASE_FAULT_MAX];
    if (case_memory_fault(result, fault, sizeof fault))
        json_object_set_new(memory, "fault", json_string(fault));
    if (json_object_size(memory))
        rec_json(record, "memory", memory);
    else
        json_decref(memory);
}

/* ---- ranks, traffic, counts ----------------------------------------------------------------- */

static json_t *samples_json(const double *samples_s, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(array, json_real(samples_s[i]));
    return array;
}

static void record_ranks(json_t *record, const struct case_result *result)
{
    int slowest = case_slowest_rank(result), fullest = case_fullest_rank(result, WINDOW_PASS);
    if (slowest < 0 && fullest < 0)
        return;
    json_t *ranks = json_array();
    for (int i = 0; i < result->rank_count; i++) {
        const struct case_rank *rank = &result->ranks[i];
        json_t *object = json_object();
        set_real(object, "time_s", rank->time_s);
        if (rank->windows[WINDOW_PASS].present)
            set_int(object, "peak_bytes", rank->windows[WINDOW_PASS].peak.peak_bytes);
        set_int(object, "resident_bytes", rank->resident_bytes);
        set_int(object, "routes", rank->routes);
        if (result->rank_samples_s)
            json_object_set_new(object, "samples_s",
                samples_json(result->rank_samples_s + (int64_t)i * result->rank_sample_count,
                    result->rank_sample_count));
        json_array_append_new(ranks, object);
    }
    rec_json(record, "ranks", ranks);
    if (slowest >= 0)
        rec_int(record, "slowest_rank", slowest);
    if (fullest >= 0)
        rec_int(record, "fullest_rank", fullest);
}

static void record_counts(json_t *record, const struct case_result *result)
{
    if (result->has_traffic) {
        rec_int(record, "traffic.logical_bytes", result->traffic.logical_bytes);
        rec_int(record, "traffic.wire_bytes", result->traffic.wire_bytes);
        if (result->traffic.network_bytes > 0 || launch_node_count() > 1)
            rec_int(record, "traffic.network_bytes", result->traffic.network_bytes);
        rec_int(record, "traffic.messages", result->traffic.messages);
        rec_int(record, "traffic.exchanges", result->traffic.exchanges);
        if (result->carrier)
            rec_str(record, "messages", result->carrier);
    }
    if (result->count_count) {
        json_t *counts = json_object();
        for (int i = 0; i < result->count_count; i++)
            set_int(counts, result->counts[i].name, result->counts[i].value);
        rec_json(record, "counts", counts);
    }
}

void report_record_figures(
    json_t *record, const char *const *names, const struct case_result *result)
{
    json_t *figures = json_object();
    for (int i = 0; names && names[i]; i++)
        set_real(figures, names[i], result->figures[i].value);
    if (json_object_size(figures))
        rec_json(record, "figures", figures);
    else
        json_decref(figures);
}

json_t *report_record(const struct case_options *common, const struct options *options,
    const char *op, const char *impl, const struct case_result *result, double saved)
{
    json_t *record = rec_create();
    if (!record)
        return NULL;
    rec_str(record, "op", op);
    rec_str(record, "impl", impl);
    rec_str(record, "device", case_device_name(common));
    options_record(options, record);
    rec_str(record, "status", case_status_name(result->status));
    if (result->reason[0])
        rec_str(record, "reason", result->reason);
    if (result->status == CASE_OK) {
        record_check(record, result);
        /* A case whose check failed carries its fault and no time. */
        if (case_verdict(result) != VERDICT_MISMATCH)
            record_time(record, common, result);
        record_ranks(record, result);
        record_memory(record, result, saved);
        record_counts(record, result);
    }
    if (result->search)
        rec_json(record, "search", json_incref(result->search));
    if (result->plan)
        rec_json(record, "plan", json_incref(result->plan));
    return record;
}
