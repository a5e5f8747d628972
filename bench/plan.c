/* plan - does it fit? A rank's memory in a composed step, term by term, before anything is
 * launched.
 *
 *   plan --model e2e-667b --gpus 64 --context 1M --sequence-group 16 --chunk-budget 4096
 *   plan --model e2e-667b --gpus 64 --context 128K --baseline fsdp2
 *   plan --model e2e-120b --gpus 16 --reach
 *
 * The terms are those of Eq. 6 with our constants (ops/model_memory.c): the tracked peak of
 * bin/train never passes their sum, whatever the router does. --help has every option. */
#include <stdio.h>
#include "bench/harness/plan_baseline_search.h"
#include "bench/harness/plan_print.h"
#include "bench/harness/plan_report.h"

static const char description[] =
    "N = sequences * context / D tokens of a rank, A = heads, b = 2. Terms under \"the largest "
    "of\"\n"
    "take turns: only the largest counts.\n"
    "\n"
    "Two verdicts. Guaranteed: for any routing, every route on one rank and every expert lent.\n"
    "Balanced: routes and experts evenly spread, as bias balancing aims at. What would have to\n"
    "change names the smallest single change of a budget or a degree after which it fits.\n";

static const char examples[] =
    "  plan --model e2e-667b --gpus 64 --context 1M --sequence-group 16 --chunk-budget 4096\n"
    "  plan --model e2e-667b --gpus 64 --context 128K --baseline fsdp2\n"
    "  plan --model e2e-120b --gpus 16 --profile h200-16 --context 128K,1M --reach\n";

static const char exit_codes[] = "0 all fine, also where it does not fit; 2 bad option or input;\n"
                                 "3 the output could not be written\n";

/* One case: a budget, or a search, of the composed step or beside the baseline. */
static int run_case(const struct plan *p)
{
    bool baseline = p->line.baseline == BASELINE_FSDP2;
    double composed_rate = 0;
    int status;
    if (p->line.search)
        status = plan_search_report(p, &composed_rate);
    else if (baseline)
        status = plan_print_baseline(p);
    else
        status = plan_print_composed(p);
    bool timed = baseline && (p->line.search || p->line.degrees.count);
    return timed && status < 0 ? plan_baseline_report(p, composed_rate) : status;
}

static int run_all(struct plan *p)
{
    int status = -1;
    plan_print_head(p);
    while (status < 0 && options_next(p->options))
        status = run_case(p);
    if (status < 0 && (fflush(stdout) || ferror(stdout))) {
        fputs("plan: the output could not be written\n", stderr);
        status = EXIT_ENVIRONMENT;
    }
    return status < 0 ? EXIT_OK : status;
}

int main(int argc, char **argv)
{
    static struct plan p;
    struct option_group groups[PLAN_GROUPS];
    plan_groups(&p.line, groups);
    const struct program program = {.name = "plan",
        .summary = "a rank's memory in a composed step, before anything is launched",
        .description = description,
        .examples = examples,
        .exit_codes = exit_codes,
        .groups = groups,
        .group_count = PLAN_GROUPS};
    int status = options_parse(&p.options, &program, argc, argv);
    if (status < 0)
        status = plan_check(&p);
    if (status < 0)
        status = run_all(&p);
    model_list_free(&p.list);
    options_free(p.options);
    return status;
}
