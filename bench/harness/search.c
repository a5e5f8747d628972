/* The search for the largest case that fits: doubling, then bisection, in multiples of the grid. */
#include "bench/harness/search.h"
#include <stdio.h>
#include <string.h>
#include "bench/harness/interrupt.h"
#include "bench/harness/report.h"

#define DEFAULT_STEP 1024

struct search {
    const struct case_options *common;
    struct options *options;
    struct report *report;
    void (*run_case)(void *context, struct report *report, struct case_result *result);
    void *context;
    struct case_result *result; /* of the last try */
    int64_t tried;              /* the multiple of the grid it was made at */
    int tries;
    int64_t fits, fails;              /* multiples; 0 and INT64_MAX: none known */
    char reason[CASE_FAULT_MAX + 64]; /* of the smallest that does not fit */
};

static int64_t step_of(const struct case_options *common)
{
    return common->search_step > 0 ? common->search_step : DEFAULT_STEP;
}

int search_setup(const struct case_options *common, const struct options *options)
{
    int64_t most, value;
    if (!common->search)
        return options_given(options, "search-step")
                   ? options_refuse(options, "search-step", "has no effect without --search")
                   : -1;
    if (!options_get_count(options, common->search, &value, &most))
        return options_refuse(options, "search",
            "got '%.60s', allowed a count of the shape that is a list, such as tokens",
            common->search);
    if (step_of(common) > most)
        return options_refuse(options, "search-step",
            "got %lld, allowed at most %lld, the largest --%s", (long long)step_of(common),
            (long long)most, common->search);
    if (common->device_kind == DEV_CPU)
        return options_refuse(options, "search",
            "allowed with --device sim, which counts the same bytes and computes nothing, or cuda");
    return -1;
}

/* Runs the case at `multiple` of the grid. 0, or -1 when memory is short. */
static int try(struct search *s, int64_t multiple)
{
    char phase[64];
    case_result_free(s->result);
    if (case_result_init(s->result, (int)s->common->ranks))
        return -1;
    options_set_count(s->options, s->common->search, multiple * step_of(s->common));
    snprintf(phase, sizeof phase, "searching, %s %lld", s->common->search,
        (long long)(multiple * step_of(s->common)));
    report_progress(s->report, phase);
    s->result->simulated = case_simulates(s->common);
    s->run_case(s->context, s->report, s->result);
    s->tried = multiple;
    s->tries++;
    if (s->result->status == CASE_OOM) {
        s->fails = multiple;
        snprintf(s->reason, sizeof s->reason, "%s", s->result->reason);
    } else if (s->result->status == CASE_OK) {
        s->fits = multiple;
    }
    return 0;
}

/* An error, or Ctrl-C, ends the search; so does the end of the allowed values. */
static int narrow(struct search *s, int64_t first, int64_t most)
{
    int status = try(s, first);
    while (!status && !interrupt_agreed() && s->fails - s->fits > 1 &&
           (s->result->status == CASE_OK || s->result->status == CASE_OOM)) {
        int64_t next = s->fails == INT64_MAX ? 2 * s->fits
                       : s->fits == 0        ? s->fails / 2
                                             : s->fits + (s->fails - s->fits) / 2;
        if (next > most)
            next = most;
        if (next < 1 || next == s->fits)
            break;
        status = try(s, next);
    }
    return status;
}

static void describe(const struct search *s)
{
    struct case_result *result = s->result;
    int64_t step = step_of(s->common);
    size_t used = strlen(result->note);
    if (result->status != CASE_OK)
        return;
    const char *between = used ? "; " : "";
    if (s->fails == INT64_MAX)
        snprintf(result->note + used, sizeof result->note - used,
            "%sthe largest %s that is allowed fits", between, s->common->search);
    else
        snprintf(result->note + used, sizeof result->note - used,
            "%s%s %lld fits, %lld does not: %.300s", between, s->common->search,
            (long long)(s->fits * step), (long long)(s->fails * step), s->reason);
    result->search = json_pack("{s:s, s:I, s:I, s:i}", "of", s->common->search, "step",
        (json_int_t)step, "fits", (json_int_t)(s->fits * step), "tries", s->tries);
    if (result->search && s->fails != INT64_MAX) {
        json_object_set_new(result->search, "first_failure", json_integer(s->fails * step));
        json_object_set_new(result->search, "reason", json_string(s->reason));
    }
}

int search_run(const struct case_options *common, struct options *options, struct report *report,
    void (*run_case)(void *context, struct report *report, struct case_result *result),
    void *context, struct case_result *result)
{
    struct search s = {.common = common,
        .options = options,
        .report = report,
        .run_case = run_case,
        .context = context,
        .result = result,
        .fails = INT64_MAX};
    int64_t first, most;
    options_get_count(options, common->search, &first, &most);
    first /= step_of(common);
    int status = narrow(&s, first < 1 ? 1 : first, most / step_of(common));
    bool answered = result->status == CASE_OK || result->status == CASE_OOM;
    bool found = s.fails - s.fits == 1 || s.fits == most / step_of(common);
    if (!status && answered && !found && interrupt_agreed()) {
        case_result_skip(result, "interrupted while searching: %s %lld fits", common->search,
            (long long)(s.fits * step_of(common)));
        return 0;
    }
    if (!status && answered && s.fits && s.tried != s.fits)
        status = try(&s, s.fits);
    if (!status)
        describe(&s);
    return status;
}
