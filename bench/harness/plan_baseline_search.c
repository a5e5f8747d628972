/* Sweeping the baseline's degrees: memory by its closed form, time by its simulated step. */
#include "bench/harness/plan_baseline_search.h"
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/plan_record.h"
#include "bench/harness/simulate.h"
#include "bench/harness/train_run.h"
#include "probe/record.h"

#define GIB 1073741824.0
#define TENSOR_MOST 8
#define SEQUENCES_MOST 64

double plan_baseline_tokens(const struct plan_baseline_choice *c)
{
    const struct fsdp_launch *l = &c->launch;
    return (double)l->length * (double)l->sequences / (l->context * l->tensor);
}

static double rate_of(const struct plan_baseline_choice *c)
{
    return plan_baseline_tokens(c) / c->seconds[0];
}

/* ---- the sweep ------------------------------------------------------------------------------- */

static int time_choice(struct plan_baseline_search *s, const struct plan *p,
    struct plan_baseline_choice *c, const struct profile *machines, int count)
{
    (void)p;
    if (fsdp_passes_time(
            &c->launch, c->device_state, machines, count, c->passes_s, s->error, sizeof s->error) ||
        fsdp_optimizer_time(&c->launch, c->device_state, machines, count, c->optimizer_s, s->error,
            sizeof s->error))
        return -1;
    for (int m = 0; m < count; m++)
        c->seconds[m] = c->passes_s[m] + c->optimizer_s[m];
    return 0;
}

static int try_choice(
    struct plan_baseline_search *s, const struct plan *p, struct plan_baseline_choice *c)
{
    const struct fsdp_launch *l = &c->launch;
    int64_t host_bytes = c->device_state ? 0 : 16 * (l->model.params / l->gpus);
    c->memory = plan_baseline_at(&l->model, l->gpus, l->length * l->sequences, l->expert,
        l->context, l->tensor, c->device_state);
    s->count++;
    if (c->memory.device_bytes > plan_limit_bytes(p) || host_bytes > plan_host_limit_bytes(p)) {
        if (!s->fitting &&
            (!s->best.launch.gpus || c->memory.device_bytes < s->best.memory.device_bytes))
            s->best = *c;
        return 0;
    }
    if (time_choice(s, p, c, &p->machine, 1))
        return -1;
    if (!s->fitting++ || rate_of(c) > rate_of(&s->best))
        s->best = *c;
    return 0;
}

/* More sequences of a rank only where it has whole ones: half the degrees have as many tokens and
 * less to exchange. */
static int try_degrees(
    struct plan_baseline_search *s, const struct plan *p, struct plan_baseline_choice *c)
{
    bool several =
        c->launch.context * c->launch.tensor == 1 && !options_given(p->options, "sequences");
    int64_t first = p->line.sequences, most = several ? SEQUENCES_MOST : first;
    if (!fsdp_launch_is_even(&c->launch, &p->machine))
        return 0;
    for (c->launch.sequences = first; c->launch.sequences <= most; c->launch.sequences *= 2)
        for (int host = p->line.device_state ? 1 : 0; host < 2; host++) {
            c->device_state = host == 1;
            if (try_choice(s, p, c))
                return -1;
        }
    return 0;
}

int plan_baseline_search(struct plan_baseline_search *s, const struct plan *p)
{
    const int64_t *given = p->line.degrees.count ? p->line.degrees.values : NULL;
    struct profile machines[DEV_MACHINES_MAX] = {p->machine};
    struct plan_baseline_choice c = {
        .launch = {
            .model = plan_baseline_model(p), .gpus = (int)p->line.gpus, .length = p->line.context}};
    *s = (struct plan_baseline_search){0};
    for (int tensor = 1; tensor <= TENSOR_MOST; tensor *= 2)
        for (int context = 1; context * tensor <= c.launch.gpus; context++)
            for (int expert = 1; expert <= c.launch.gpus; expert++) {
                c.launch.tensor = tensor;
                c.launch.context = context;
                c.launch.expert = expert;
                if (given && (expert != given[0] || context != given[1] || tensor != given[2]))
                    continue;
                if (try_degrees(s, p, &c))
                    return -1;
            }
    return s->fitting ? time_choice(s, p, &s->best, machines, simulate_machines(machines)) : 0;
}

/* ---- the report ------------------------------------------------------------------------------ */

static int record(const struct plan *p, const struct plan_baseline_search *s, double flops)
{
    const struct plan_baseline_choice *c = &s->best;
    struct profile machines[DEV_MACHINES_MAX] = {p->machine};
    json_t *record = plan_record_begin(p, "fsdp2", true);
    if (record) {
        rec_str(record, "status", s->fitting ? "ok" : "oom");
        rec_int(record, "figures.expert", c->launch.expert);
        rec_int(record, "figures.context", c->launch.context);
        rec_int(record, "figures.tensor", c->launch.tensor);
        rec_int(record, "figures.sequences", c->launch.sequences);
        rec_int(record, "figures.device_bytes", c->memory.device_bytes);
        rec_str(record, "figures.largest_term", c->memory.term[c->memory.largest].name);
    }
    if (record && s->fitting)
        plan_record_time(
            record, c->seconds, simulate_machines(machines), plan_baseline_tokens(c), flops);
    return plan_record_append(p, record);
}

static void print_best(
    const struct plan *p, const struct plan_baseline_search *s, double flops, double composed_rate)
{
    const struct plan_baseline_choice *c = &s->best;
    double low, high;
    struct profile machines[DEV_MACHINES_MAX] = {p->machine};
    simulate_range(c->seconds, simulate_machines(machines), &low, &high);
    printf("  FSDP2 winner: EP=%d, CP=%d, TP=%d, %lld sequence%s, optimizer state on the %s\n",
        c->launch.expert, c->launch.context, c->launch.tensor, (long long)c->launch.sequences,
        c->launch.sequences > 1 ? "s" : "", c->device_state ? "device" : "host");
    printf("    its step, simulated: %.3f s, of it %.3f s optimizer; %.3f..%.3f s with rates "
           "+-20 %%\n",
        c->seconds[0], c->optimizer_s[0], low, high);
    printf("    %.1f tokens/s and %.1f TFLOP/s a rank; %.3f GiB of %.3f\n", rate_of(c),
        rate_of(c) * flops / 1e12, (double)c->memory.device_bytes / GIB,
        (double)plan_limit_bytes(p) / GIB);
    if (composed_rate > 0)
        printf("  composed over FSDP2: %.2f times the tokens/s\n", composed_rate / rate_of(c));
}

int plan_baseline_report(const struct plan *p, double composed_rate)
{
    struct plan_baseline_search *s = malloc(sizeof *s);
    struct model_shape shape = plan_shape(p, &p->line);
    double flops = train_flops_per_token(&shape);
    int status = -1;
    if (!s || plan_baseline_search(s, p)) {
        fprintf(stderr, "plan: %s\n", s ? s->error : "no memory for the search");
        free(s);
        return EXIT_ENVIRONMENT;
    }
    printf("  FSDP2 search: context %lld: %lld of %lld launches fit\n", (long long)p->line.context,
        (long long)s->fitting, (long long)s->count);
    if (s->fitting)
        print_best(p, s, flops, composed_rate);
    else
        printf(
            "  nothing fits; least needs EP=%d, CP=%d, TP=%d, state on the %s: %.3f GiB of %.3f; "
            "its largest term: %s, %.3f GiB\n",
            s->best.launch.expert, s->best.launch.context, s->best.launch.tensor,
            s->best.device_state ? "device" : "host", (double)s->best.memory.device_bytes / GIB,
            (double)plan_limit_bytes(p) / GIB, s->best.memory.term[s->best.memory.largest].name,
            (double)s->best.memory.term[s->best.memory.largest].bytes / GIB);
    if (p->line.json)
        status = record(p, s, flops);
    free(s);
    return status;
}
