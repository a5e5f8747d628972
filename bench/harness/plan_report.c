/* The search's result: the front of memory against speed, the winner with its whole step, and why
 * the others lost. */
#include "bench/harness/plan_report.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/plan_print.h"
#include "bench/harness/plan_record.h"
#include "bench/harness/simulate.h"
#include "bench/harness/train_run.h"
#include "probe/record.h"

#define GIB 1073741824.0

/* A line of the front is at least this much faster than the one before. */
#define FRONT_STEP 1.01

/* What is not slower than this is as fast as the winner. */
#define TIE 0.999

static double tflops_of(const struct plan_search *s, const struct plan_candidate *c, double rate)
{
    struct model_shape shape = plan_shape(s->plan, &c->line);
    return rate * train_flops_per_token(&shape) / 1e12;
}

/* Layers that keep something of their attention. */
static int64_t layers_kept(const struct plan_candidate *c)
{
    int64_t layers = 0;
    for (int i = 0; i < MODEL_KEEP_OPTIONS; i++)
        layers += c->kept[i];
    return layers;
}

/* "D=16, E_p=64, P=8, chunks of 4096, buckets of 25 M, ..." */
static const char *name_of(const struct plan_candidate *c, char *text, int size)
{
    char sequences[40] = "";
    if (c->line.sequences > 1)
        snprintf(sequences, sizeof sequences, ", %lld sequences", (long long)c->line.sequences);
    snprintf(text, (size_t)size,
        "D=%lld%s, E_p=%lld, P=%lld, chunks of %lld, buckets of %lld M, %lld boundaries on the "
        "host, attention of %lld layers kept",
        (long long)c->line.sequence_group, sequences, (long long)c->line.expert_group,
        (long long)c->line.vocab_group, (long long)c->line.chunk_budget,
        (long long)(c->line.bucket / 1000000), (long long)c->host_boundaries,
        (long long)layers_kept(c));
    return text;
}

/* ---- the front ------------------------------------------------------------------------------- */

/* What a candidate is sorted by. */
struct sort_key {
    int64_t bytes, index;
    double rate;
};

/* By memory, then the faster one, then as they were listed. */
static int by_memory(const void *a, const void *b)
{
    const struct sort_key *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->rate != y->rate)
        return x->rate > y->rate ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static void print_line(const struct plan_search *s, const struct plan_candidate *c)
{
    double rate = plan_candidate_rate(s, c);
    printf("  %4lld %4lld %4lld %4lld %7lld %6lld M %5lld %5lld %10.3f %8.3f %10.3f %9.1f %8.1f\n",
        (long long)c->line.sequence_group, (long long)c->line.sequences,
        (long long)c->line.expert_group, (long long)c->line.vocab_group,
        (long long)c->line.chunk_budget, (long long)(c->line.bucket / 1000000),
        (long long)c->host_boundaries, (long long)layers_kept(c), (double)c->device_bytes / GIB,
        (double)c->host_bytes / GIB, c->seconds, rate, tflops_of(s, c, rate));
}

static int print_front(const struct plan_search *s)
{
    struct sort_key *order = malloc((size_t)s->count * sizeof *order + 1);
    int64_t fitting = 0;
    double fastest = 0;
    if (!order)
        return -1;
    for (int64_t i = 0; i < s->count; i++)
        if (s->candidate[i].fits)
            order[fitting++] = (struct sort_key){
                s->candidate[i].device_bytes, i, plan_candidate_rate(s, &s->candidate[i])};
    qsort(order, (size_t)fitting, sizeof *order, by_memory);
    printf(
        "  memory against speed: each line is the least memory at its speed, and 1 %% faster than "
        "the one above\n"
        "  %4s %4s %4s %4s %7s %8s %5s %5s %10s %8s %10s %9s %8s\n",
        "D", "B", "E_p", "P", "c", "bucket", "host", "kept", "device", "host", "step", "tokens/s",
        "TFLOP/s");
    printf("  %4s %4s %4s %4s %7s %8s %5s %5s %10s %8s %10s %9s %8s\n", "", "", "", "", "", "",
        "of 2L", "of L", "GiB", "GiB", "s", "a rank", "a rank");
    for (int64_t i = 0; i < fitting; i++) {
        if (order[i].rate < fastest * FRONT_STEP && order[i].index != s->best)
            continue;
        print_line(s, &s->candidate[order[i].index]);
        fastest = order[i].rate;
    }
    free(order);
    return 0;
}

/* ---- who lost, and why ----------------------------------------------------------------------- */

static bool same_launch(const struct plan_candidate *a, const struct plan_candidate *b)
{
    return a->place == b->place && a->experts == b->experts && a->vocab == b->vocab &&
           a->chunk == b->chunk;
}

/* The fastest that fits, of other degrees or another chunk budget than the winner, and more than a
 * little slower; NULL = none. *ties: how many are not. */
static const struct plan_candidate *second(const struct plan_search *s, int64_t *ties)
{
    const struct plan_candidate *best = &s->candidate[s->best], *found = NULL;
    *ties = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const struct plan_candidate *c = &s->candidate[i];
        if (!c->fits || i == s->best)
            continue;
        if (plan_candidate_rate(s, c) > plan_candidate_rate(s, best) * TIE)
            (*ties)++;
        else if (!same_launch(c, best) &&
                 (!found || plan_candidate_rate(s, c) > plan_candidate_rate(s, found)))
            found = c;
    }
    return found;
}

/* A number that is printed in such steps, and 0 where it is less than half of one: a part is a
 * difference of two times and may fall short of zero by their last bits. */
static double shown(double value, double step)
{
    return fabs(value) < step / 2 ? 0 : value;
}

static void print_parts(const struct plan_search *s, const struct plan_candidate *c)
{
    printf("    for 1000 tokens of a rank:");
    for (int i = 0; i < PLAN_PARTS; i++)
        printf("%s %s %.1f ms", i ? "," : "", plan_part_name(i),
            shown(c->part_s[i] / (double)plan_candidate_tokens(s, c) * 1e6, 0.1));
    puts("");
}

/* Which parts take longer, for the same number of tokens. */
static void print_second(const struct plan_search *s)
{
    int64_t ties;
    const struct plan_candidate *best = &s->candidate[s->best], *c = second(s, &ties);
    char name[240];
    if (ties)
        printf("    %lld more are less than 0.1 %% slower\n", (long long)ties);
    if (!c)
        return;
    printf("  runner-up: %s\n    fits, and is %.2f %% slower: for 1000 tokens of a rank",
        name_of(c, name, sizeof name),
        100 * (1 - plan_candidate_rate(s, c) / plan_candidate_rate(s, best)));
    int listed = 0;
    for (int i = 0; i < PLAN_PARTS; i++) {
        double more = c->part_s[i] / (double)plan_candidate_tokens(s, c) -
                      best->part_s[i] / (double)plan_candidate_tokens(s, best);
        if (fabs(more) >= 1e-9)
            printf("%s %s %+.3f ms", listed++ ? "," : "", plan_part_name(i), more * 1e6);
    }
    puts("");
}

/* A term by the verdict that is asked for. */
static int64_t term_of(const struct plan *p, const struct model_budget *budget, int i)
{
    bool dispatch = i == budget->count - budget->turns + MODEL_TURN_EXPERTS;
    return dispatch && p->line.verdict == PLAN_BALANCED ? budget->balanced_dispatch_bytes
                                                        : budget->term[i].bytes;
}

/* Of those that take turns, the one that counts. */
static int largest_turn(const struct plan *p, const struct model_budget *budget)
{
    int most = budget->count - budget->turns;
    for (int i = most + 1; i < budget->count; i++)
        if (term_of(p, budget, i) > term_of(p, budget, most))
            most = i;
    return most;
}

/* The term of a budget that grew most against the winner's. */
static void print_terms_grown(
    const struct plan *p, const struct plan_candidate *c, const struct plan_candidate *best)
{
    struct model_budget have, want;
    if (plan_budget(p, &c->line, &want) || plan_budget(p, &best->line, &have))
        return;
    int most = largest_turn(p, &want);
    int64_t from = term_of(p, &have, largest_turn(p, &have)), to = term_of(p, &want, most);
    for (int i = 0; i < want.count - want.turns && i < have.count - have.turns; i++)
        if (want.term[i].bytes - have.term[i].bytes > to - from) {
            most = i;
            from = have.term[i].bytes;
            to = want.term[i].bytes;
        }
    printf("    needs %.3f GiB of %.3f on the device, %.3f of %.3f on the host; most grows: %s, "
           "%.3f to %.3f GiB\n",
        (double)c->device_bytes / GIB, (double)plan_limit_bytes(p) / GIB,
        (double)c->host_bytes / GIB, (double)plan_host_limit_bytes(p) / GIB, want.term[most].name,
        (double)from / GIB, (double)to / GIB);
}

/* Tokens/s where no attention is kept: what does not fit has nothing left to keep it in. */
static double plain_rate(const struct plan_search *s, const struct plan_candidate *c)
{
    return (double)plan_candidate_tokens(s, c) / (c->seconds - c->part_s[PLAN_KEPT_ATTENTION]);
}

/* Of those one step of one coordinate away from the winner, the fastest that would beat it. 0, or
 * -1 after a failure. */
static int print_barred(struct plan_search *s)
{
    const struct plan_candidate *best = &s->candidate[s->best];
    struct plan_candidate *found = NULL;
    char name[240];
    for (int64_t i = 0; i < s->count; i++) {
        struct plan_candidate *c = &s->candidate[i];
        int away = abs(c->place - best->place) + abs(c->experts - best->experts) +
                   abs(c->vocab - best->vocab) + abs(c->chunk - best->chunk);
        if (c->fits || away != 1 || c->bucket != best->bucket ||
            (c->line.host_budget == 0) != (best->line.host_budget == 0))
            continue;
        if (plan_search_time(s, c))
            return -1;
        if (plain_rate(s, c) > (found ? plain_rate(s, found) : plain_rate(s, best)))
            found = c;
    }
    if (found) {
        printf("  would be %.1f %% faster%s, but does not fit: %s\n",
            100 * (plain_rate(s, found) / plain_rate(s, best) - 1),
            layers_kept(best) ? ", attention kept in neither" : "",
            name_of(found, name, sizeof name));
        print_terms_grown(s->plan, found, best);
    }
    return 0;
}

/* ---- the winner ------------------------------------------------------------------------------ */

static int record(const struct plan_search *s, const struct step_time *whole, int machines)
{
    const struct plan *p = s->plan;
    const struct plan_candidate *c = &s->candidate[s->best];
    json_t *record = plan_record_begin(p, "composed", true);
    if (record) {
        rec_int(record, "figures.sequence_group", c->line.sequence_group);
        rec_int(record, "figures.sequences", c->line.sequences);
        rec_int(record, "figures.expert_group", c->line.expert_group);
        rec_int(record, "figures.vocab_group", c->line.vocab_group);
        rec_int(record, "figures.chunk_budget", c->line.chunk_budget);
        rec_int(record, "figures.bucket", c->line.bucket);
        rec_int(record, "figures.host_boundaries", c->host_boundaries);
        rec_int(record, "figures.kept_layers", layers_kept(c));
        rec_real(record, "figures.composed_s", c->seconds);
        rec_int(record, "figures.device_bytes", c->device_bytes);
        rec_int(record, "figures.host_bytes", c->host_bytes);
        plan_record_time(record, whole->seconds, machines, (double)plan_candidate_tokens(s, c),
            tflops_of(s, c, 1) * 1e12);
    }
    return plan_record_append(p, record);
}

static int print_winner(struct plan_search *s, double *winner_rate)
{
    const struct plan_candidate *best = &s->candidate[s->best];
    struct profile machines[DEV_MACHINES_MAX] = {s->plan->machine};
    struct step_time whole;
    int count = simulate_machines(machines);
    char name[240];
    if (plan_search_whole(s, best, machines, count, &whole))
        return EXIT_ENVIRONMENT;
    double rate = (double)plan_candidate_tokens(s, best) / whole.seconds[0], low, high;
    *winner_rate = rate;
    simulate_range(whole.seconds, count, &low, &high);
    printf("  winner: %s\n", name_of(best, name, sizeof name));
    printf("    its whole step, simulated: %.3f s, %.3f..%.3f s with rates +-20 %%; from its parts "
           "%.3f s (%+.2f %%)\n",
        whole.seconds[0], low, high, best->seconds,
        shown(100 * (best->seconds / whole.seconds[0] - 1), 0.01));
    printf("    %.1f tokens/s and %.1f TFLOP/s a rank; %lld tokens in a step of all ranks\n", rate,
        tflops_of(s, best, rate), (long long)(plan_candidate_tokens(s, best) * s->plan->line.gpus));
    printf("    tracked peak %.3f GiB of a budget of %.3f\n", (double)whole.device_peak_bytes / GIB,
        (double)best->device_bytes / GIB);
    print_parts(s, best);
    print_second(s);
    if (print_barred(s))
        return EXIT_ENVIRONMENT;
    return s->plan->line.json ? record(s, &whole, count) : -1;
}

/* Nothing fits: what needs least, and of that what most. */
static void print_least(const struct plan_search *s)
{
    const struct plan_candidate *least = &s->candidate[0];
    struct model_budget budget;
    char name[240];
    int most = 0;
    for (int64_t i = 1; i < s->count; i++)
        if (s->candidate[i].device_bytes < least->device_bytes)
            least = &s->candidate[i];
    if (plan_budget(s->plan, &least->line, &budget))
        return;
    for (int i = 1; i < budget.count; i++)
        if (term_of(s->plan, &budget, i) > term_of(s->plan, &budget, most))
            most = i;
    printf(
        "  nothing fits; least needs %s\n    %.3f GiB of %.3f on the device, %.3f of %.3f on the "
        "host; its largest term: %s, %.3f GiB\n",
        name_of(least, name, sizeof name), (double)least->device_bytes / GIB,
        (double)plan_limit_bytes(s->plan) / GIB, (double)least->host_bytes / GIB,
        (double)plan_host_limit_bytes(s->plan) / GIB, budget.term[most].name,
        (double)term_of(s->plan, &budget, most) / GIB);
    if (s->plan->line.verdict == PLAN_GUARANTEED)
        puts("    --verdict balanced asks for less: even routing, which bias balancing aims at");
}

/* ---- the report ------------------------------------------------------------------------------ */

static int report(struct plan_search *s, double *rate)
{
    const struct plan *p = s->plan;
    printf("  search: context %lld, %s: %lld of %lld candidates fit, %lld simulated steps\n",
        (long long)p->line.context,
        p->line.verdict == PLAN_BALANCED ? "with balanced routing" : "guaranteed for any routing",
        (long long)s->fitting, (long long)s->count, (long long)s->steps);
    if (s->best < 0) {
        print_least(s);
        return -1;
    }
    if (print_front(s)) {
        snprintf(s->error, sizeof s->error, "no memory for the front");
        return EXIT_ENVIRONMENT;
    }
    return print_winner(s, rate);
}

int plan_search_report(const struct plan *p, double *rate)
{
    struct plan_search *s = malloc(sizeof *s);
    int status = EXIT_ENVIRONMENT;
    *rate = 0;
    if (!s) {
        fputs("plan: no memory for the search\n", stderr);
        return status;
    }
    if (plan_search_run(s, p) == 0)
        status = report(s, rate);
    if (status >= 0 && s->error[0])
        fprintf(stderr, "plan: %s\n", s->error);
    plan_search_free(s);
    free(s);
    return status;
}
