/* Writing a budget, or what a search found, as a record. */
#include "bench/harness/plan_record.h"
#include <stdio.h>
#include "bench/harness/plan_search.h"
#include "bench/harness/simulate.h"
#include "probe/record.h"

json_t *plan_record_begin(const struct plan *p, const char *impl, bool simulated)
{
    char text[96];
    json_t *record = rec_create();
    if (!record)
        return NULL;
    snprintf(text, sizeof text, "sim:%s", p->machine.name);
    rec_str(record, "op", "plan");
    rec_str(record, "impl", impl);
    rec_str(record, "device", simulated ? text : "none");
    options_record(p->options, record);
    if (simulated)
        rec_str(record, "config.free", plan_search_free_names(p, text, sizeof text));
    rec_str(record, "status", "ok");
    rec_int(record, "figures.parameters", p->list.params);
    rec_int(record, "figures.limit_bytes", plan_limit_bytes(p));
    return record;
}

void plan_record_time(
    json_t *record, const double *seconds, int machines, double tokens, double flops_per_token)
{
    double range[2];
    char name[32];
    json_t *times = json_object();
    simulate_range(seconds, machines, &range[0], &range[1]);
    for (int m = 0; times && m < machines; m++)
        json_object_set_new(
            times, simulate_machine_name(m, name, sizeof name), json_real(seconds[m]));
    rec_real(record, "figures.tokens_per_rank", tokens);
    rec_real(record, "figures.flops_per_token", flops_per_token);
    rec_real(record, "figures.tokens_per_s", tokens / seconds[0]);
    rec_str(record, "time.kind", "simulated");
    rec_real(record, "time.median_s", seconds[0]);
    rec_reals(record, "time.range_s", range, 2);
    rec_json(record, "time.machines_s", times);
}

int plan_record_append(const struct plan *p, json_t *record)
{
    char error[256] = "memory is short";
    int status = record ? rec_append(p->line.json, record, error, sizeof error) : -1;
    json_decref(record);
    if (status)
        fprintf(stderr, "plan: %s\n", error);
    return status ? EXIT_ENVIRONMENT : -1;
}

int plan_record_budget(
    const struct plan *p, const struct model_budget *budget, const struct plan_reach *reach)
{
    char path[64];
    json_t *record = plan_record_begin(p, "composed", false);
    for (int i = 0; record && i < budget->count; i++) {
        snprintf(path, sizeof path, "figures.term_%d_bytes", i);
        rec_int(record, path, budget->term[i].bytes);
    }
    if (record) {
        rec_int(record, "figures.guaranteed_bytes", budget->device_bytes);
        rec_int(record, "figures.balanced_bytes", budget->balanced_bytes);
        rec_int(record, "figures.host_bytes", budget->host_bytes);
    }
    if (record && p->line.reach) {
        rec_int(record, "figures.longest_guaranteed", reach->context[PLAN_GUARANTEED]);
        rec_int(record, "figures.longest_balanced", reach->context[PLAN_BALANCED]);
        rec_int(record, "figures.batch_guaranteed", reach->batch[PLAN_GUARANTEED]);
        rec_int(record, "figures.batch_balanced", reach->batch[PLAN_BALANCED]);
    }
    return plan_record_append(p, record);
}

int plan_record_baseline(
    const struct plan *p, const struct plan_baseline *b, const struct plan_baseline_reach *reach)
{
    static const char *const keys[PLAN_BASELINE_TERMS] = {
        "parameters", "optimizer", "gathered", "boundaries", "attention", "dispatch", "logits"};
    char path[64];
    json_t *record = plan_record_begin(p, "fsdp2", false);
    for (int i = 0; record && i < PLAN_BASELINE_TERMS; i++) {
        snprintf(path, sizeof path, "figures.%s_bytes", keys[i]);
        rec_int(record, path, b->term[i].bytes);
        if (!p->line.reach)
            continue;
        snprintf(path, sizeof path, "figures.beyond_%s_bytes", keys[i]);
        rec_int(record, path, reach->beyond.term[i].bytes);
    }
    if (record)
        rec_int(record, "figures.device_bytes", b->device_bytes);
    if (record && p->line.reach) {
        rec_int(record, "figures.longest", reach->context);
        rec_int(record, "figures.batch", reach->batch);
        rec_int(record, "figures.beyond_bytes", reach->beyond.device_bytes);
    }
    return plan_record_append(p, record);
}
