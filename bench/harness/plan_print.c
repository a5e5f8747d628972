/* Printing a budget term by term, the verdicts, and what would have to change where one is no. */
#include "bench/harness/plan_print.h"
#include <stdio.h>
#include "bench/harness/plan_record.h"

#define GIB 1073741824.0

void plan_print_head(const struct plan *p)
{
    const struct plan_line *line = &p->line;
    printf("%s, %.1f G parameters, on %lld ranks of %s (%.1f GiB each, %.1f GiB of it ours)\n",
        line->model, (double)p->list.params / 1e9, (long long)line->gpus, p->machine.name,
        (double)p->machine.memory_bytes / GIB, (double)plan_limit_bytes(p) / GIB);
}

void plan_print_verdict(const char *name, int64_t bytes, int64_t limit)
{
    if (bytes <= limit)
        printf("  %-30s %9.3f GiB   fits, %.3f GiB left\n", name, (double)bytes / GIB,
            (double)(limit - bytes) / GIB);
    else
        printf("  %-30s %9.3f GiB   does not fit, %.3f GiB too much\n", name, (double)bytes / GIB,
            (double)(bytes - limit) / GIB);
}

/* Halves or doubles one number until the launch fits; false where it never does. */
static bool try_change(
    const struct plan *p, bool balanced, size_t field, bool doubles, int64_t end, int64_t *found)
{
    struct plan_line line = p->line;
    if (line.expert_group < 1)
        line.expert_group = line.gpus;
    int64_t *value = (int64_t *)(void *)((char *)&line + field);
    if (*value < 1)
        return false;
    while (doubles ? *value * 2 <= end : *value / 2 >= end) {
        *value = doubles ? *value * 2 : *value / 2;
        if (plan_fits(p, &line, balanced)) {
            *found = *value;
            return true;
        }
    }
    return false;
}

static void print_changes(const struct plan *p, bool balanced)
{
    static const struct {
        const char *name;
        size_t field;
        bool doubles;
        int64_t end;
    } changes[] = {{"chunk-budget", offsetof(struct plan_line, chunk_budget), false, 64},
        {"sequence-group", offsetof(struct plan_line, sequence_group), true, LAYOUT_RANKS_MAX},
        {"expert-group", offsetof(struct plan_line, expert_group), false, 1},
        {"bucket", offsetof(struct plan_line, bucket), false, 1 << 20},
        {"context", offsetof(struct plan_line, context), false, 1024},
        {"gpus", offsetof(struct plan_line, gpus), true, LAYOUT_RANKS_MAX}};
    bool any = false;
    printf("    fits with");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        int64_t value;
        if (!try_change(p, balanced, changes[i].field, changes[i].doubles, changes[i].end, &value))
            continue;
        printf("%s --%s %lld", any ? ", or" : "", changes[i].name, (long long)value);
        any = true;
    }
    puts(any ? "" : " no single change of a budget or degree");
}

static void print_terms(const struct model_budget *budget)
{
    for (int i = 0; i < budget->count; i++) {
        bool turns = i >= budget->count - budget->turns;
        if (i == budget->count - budget->turns)
            puts("  and the largest of");
        printf("  %s%-*s %-32s %9.3f GiB\n", turns ? "  " : "", turns ? 36 : 38,
            budget->term[i].name, budget->term[i].formula, (double)budget->term[i].bytes / GIB);
    }
}

/* What would end the standard step first, as its own line. */
static void print_standard(const struct plan *p)
{
    struct model_budget budget;
    struct model_shape shape = plan_shape(p, &p->line);
    struct model_options options = plan_options(&p->line);
    options.dispatch = &moe_alltoall;
    options.vocab = &vocab_materialized;
    options.checkpoint = &stack_full_activations;
    options.optimizer = &adamw_device;
    if (model_budget(&budget, &shape, &options, 0) == 0)
        printf("  the standard step, without a bound: %.3f GiB of %s alone with balanced routing\n",
            (double)budget.unbounded_bytes / GIB, mem_live_set_name(budget.unbounded_set));
}

int plan_print_composed(const struct plan *p)
{
    struct model_budget budget;
    const struct plan_line *line = &p->line;
    if (plan_budget(p, line, &budget)) {
        fputs("plan: no memory for the parts\n", stderr);
        return EXIT_ENVIRONMENT;
    }
    struct model_shape shape = plan_shape(p, line);
    printf(
        "  composed step: context %lld, D=%d, E_p=%d, P=%d, %lld tokens a rank, chunks of %lld\n",
        (long long)line->context, shape.layout.degree[0], shape.layout.degree[1],
        shape.layout.degree[2], (long long)model_tokens(&shape), (long long)line->chunk_budget);
    print_terms(&budget);
    plan_print_verdict("guaranteed for any routing", budget.device_bytes, plan_limit_bytes(p));
    if (budget.device_bytes > plan_limit_bytes(p))
        print_changes(p, false);
    plan_print_verdict("with balanced routing", budget.balanced_bytes, plan_limit_bytes(p));
    if (budget.balanced_bytes > plan_limit_bytes(p))
        print_changes(p, true);
    plan_print_verdict("pinned host memory", budget.host_bytes, plan_host_limit_bytes(p));
    print_standard(p);
    struct plan_reach reach = {0};
    if (line->reach) {
        reach = plan_reach(p);
        printf(
            "  longest context: %lld guaranteed, %lld with balanced routing\n"
            "  largest batch, tokens of all ranks: %lld guaranteed, %lld with balanced routing\n",
            (long long)reach.context[PLAN_GUARANTEED], (long long)reach.context[PLAN_BALANCED],
            (long long)reach.batch[PLAN_GUARANTEED], (long long)reach.batch[PLAN_BALANCED]);
    }
    return line->json ? plan_record_budget(p, &budget, &reach) : -1;
}

int plan_print_baseline(const struct plan *p)
{
    const struct plan_line *line = &p->line;
    struct plan_model model = plan_baseline_model(p);
    const int64_t *degree = line->degrees.values, tokens = line->sequences * line->context;
    struct plan_baseline b =
        line->degrees.count
            ? plan_baseline_at(&model, (int)line->gpus, tokens, (int)degree[0], (int)degree[1],
                  (int)degree[2], line->device_state)
            : plan_baseline_best(&model, (int)line->gpus, tokens, line->device_state);
    printf("  FSDP2: context %lld, EP=%d, CP=%d, TP=%d, %lld tokens a rank\n",
        (long long)line->context, b.expert, b.context, b.tensor, (long long)b.tokens);
    for (int i = 0; i < PLAN_BASELINE_TERMS; i++)
        printf("  %-38s %-32s %9.3f GiB\n", b.term[i].name, b.term[i].formula,
            (double)b.term[i].bytes / GIB);
    plan_print_verdict("balanced load", b.device_bytes, plan_limit_bytes(p));
    if (b.device_bytes > plan_limit_bytes(p))
        printf("    what breaks: %s\n", b.term[b.largest].name);
    struct plan_baseline_reach reach = {0};
    if (line->reach) {
        reach = plan_baseline_reach(
            &model, (int)line->gpus, line->context, plan_limit_bytes(p), line->device_state);
        printf("  longest context: %lld; at twice that the largest term is %s, %.3f GiB\n"
               "  largest batch, tokens of all ranks: %lld\n",
            (long long)reach.context, reach.beyond.term[reach.beyond.largest].name,
            (double)reach.beyond.term[reach.beyond.largest].bytes / GIB, (long long)reach.batch);
    }
    return line->json ? plan_record_baseline(p, &b, &reach) : -1;
}
