/* Greedy against exhaustive. What the paper leaves open is fixed here: options of a layer exclude
 * each other and are nested, equal ratios go by layer and option, and a better option of a layer
 * takes a smaller one's place when the difference fits. Saving per byte is compared as a quotient
 * in FP64: equal pairs give equal quotients. */
#include "ops/recompute_plan.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES_MAX 1e7

static const struct recompute_option nothing = {0, 0};

static const struct recompute_option *option_of(
    const struct recompute_problem *p, int64_t layer, int32_t option)
{
    return option < 0 ? &nothing : &p->options[layer * p->options_per_layer + option];
}

int recompute_check(const struct recompute_problem *p, char *error, int size)
{
    for (int64_t layer = 0; layer < p->layers; layer++)
        for (int32_t j = 0; j < p->options_per_layer; j++) {
            const struct recompute_option *before = option_of(p, layer, j - 1);
            const struct recompute_option *option = option_of(p, layer, j);
            if (option->kept_bytes > before->kept_bytes &&
                option->saved_flops > before->saved_flops)
                continue;
            snprintf(error, (size_t)size,
                "layer %lld, option %d: keeps %lld bytes and saves %lld FLOP, allowed more than "
                "%lld and %lld, those of the option before",
                (long long)layer, j, (long long)option->kept_bytes, (long long)option->saved_flops,
                (long long)before->kept_bytes, (long long)before->saved_flops);
            return -1;
        }
    return 0;
}

static struct recompute_plan plan_of(const struct recompute_problem *p, const int32_t *chosen)
{
    struct recompute_plan plan = {0};
    for (int64_t layer = 0; layer < p->layers; layer++) {
        int32_t last = (int32_t)p->options_per_layer - 1;
        plan.kept_bytes += option_of(p, layer, chosen[layer])->kept_bytes;
        plan.saved_flops += option_of(p, layer, chosen[layer])->saved_flops;
        plan.freed_bytes += option_of(p, layer, last)->kept_bytes;
    }
    plan.freed_bytes -= plan.kept_bytes;
    return plan;
}

/* ---- greedy ---------------------------------------------------------------------------------- */

struct candidate {
    int64_t layer;
    int32_t option;
    double saving; /* FLOP a byte */
};

static int better_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->saving != y->saving)
        return x->saving > y->saving ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->option < y->option ? -1 : 1;
}

int recompute_choose(
    const struct recompute_problem *p, int32_t *chosen, struct recompute_plan *plan)
{
    int64_t count = p->layers * p->options_per_layer, left = p->budget_bytes;
    struct candidate *candidates = malloc((size_t)(count + 1) * sizeof *candidates);
    if (!candidates)
        return -1;
    for (int64_t i = 0; i < count; i++)
        candidates[i] = (struct candidate){.layer = i / p->options_per_layer,
            .option = (int32_t)(i % p->options_per_layer),
            .saving = (double)p->options[i].saved_flops / (double)p->options[i].kept_bytes};
    qsort(candidates, (size_t)count, sizeof *candidates, better_first);
    for (int64_t layer = 0; layer < p->layers; layer++)
        chosen[layer] = -1;
    for (int64_t i = 0; i < count; i++) {
        const struct candidate *c = &candidates[i];
        int64_t more = option_of(p, c->layer, c->option)->kept_bytes -
                       option_of(p, c->layer, chosen[c->layer])->kept_bytes;
        if (c->option <= chosen[c->layer] || more > left)
            continue;
        left -= more;
        chosen[c->layer] = c->option;
    }
    free(candidates);
    *plan = plan_of(p, chosen);
    return 0;
}

/* ---- exhaustive ------------------------------------------------------------------------------ */

int recompute_choose_best(
    const struct recompute_problem *p, int32_t *chosen, struct recompute_plan *plan)
{
    double choices = 1;
    for (int64_t layer = 0; layer < p->layers; layer++)
        choices *= (double)p->options_per_layer + 1;
    int32_t *at = malloc((size_t)(p->layers + 1) * sizeof *at);
    if (choices > CHOICES_MAX || !at) {
        free(at);
        return -1;
    }
    for (int64_t layer = 0; layer < p->layers; layer++)
        at[layer] = chosen[layer] = -1;
    *plan = plan_of(p, chosen);
    for (int64_t layer = 0; layer < p->layers;) {
        struct recompute_plan here = plan_of(p, at);
        if (here.kept_bytes <= p->budget_bytes &&
            (here.saved_flops > plan->saved_flops ||
                (here.saved_flops == plan->saved_flops && here.kept_bytes < plan->kept_bytes))) {
            *plan = here;
            memcpy(chosen, at, (size_t)p->layers * sizeof *at);
        }
        for (layer = 0; layer < p->layers; layer++) { /* the next choice, layer 0 fastest */
            if (++at[layer] < p->options_per_layer)
                break;
            at[layer] = -1;
        }
    }
    free(at);
    return 0;
}
