/* The choice of what attention keeps: by hand, against every possible choice, and its failures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ops/recompute_plan.h"
#include "probe/seed.h"
#include "tests/tap.h"

enum { LAYERS = 4, OPTIONS = 3 };

/* Two layers. By saving per byte: layer 1's first (10), layer 0's first (5), layer 1's second (4),
 * layer 0's second (3). */
static void by_hand(void)
{
    static const struct recompute_option options[4] = {{10, 50}, {30, 90}, {10, 100}, {40, 160}};
    static const struct {
        int64_t budget;
        int32_t chosen[2];
        int64_t kept, saved;
    } rows[] = {{-1, {-1, -1}, 0, 0}, {9, {-1, -1}, 0, 0}, {10, {-1, 0}, 10, 100},
        {20, {0, 0}, 20, 150}, {40, {1, 0}, 40, 190}, {50, {0, 1}, 50, 210}, {69, {0, 1}, 50, 210},
        {70, {1, 1}, 70, 250}, {1000, {1, 1}, 70, 250}};
    int good = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct recompute_problem problem = {2, 2, options, rows[i].budget};
        struct recompute_plan plan;
        int32_t chosen[2];
        bool same = !recompute_choose(&problem, chosen, &plan) &&
                    !memcmp(chosen, rows[i].chosen, sizeof chosen) &&
                    plan.kept_bytes == rows[i].kept && plan.saved_flops == rows[i].saved &&
                    plan.freed_bytes == 70 - rows[i].kept;
        good += same;
        if (!same)
            tap_note("budget %lld: options %d and %d, %lld bytes, %lld FLOP",
                (long long)rows[i].budget, chosen[0], chosen[1], (long long)plan.kept_bytes,
                (long long)plan.saved_flops);
    }
    tap_ok(good == 9, "two layers under nine budgets, as by hand");
}

static void ties(void)
{
    static const struct recompute_option options[4] = {{10, 10}, {20, 20}, {10, 10}, {20, 20}};
    struct recompute_problem problem = {2, 2, options, 20};
    struct recompute_plan plan;
    int32_t chosen[2];
    tap_ok(!recompute_choose(&problem, chosen, &plan) && chosen[0] == 1 && chosen[1] == -1,
        "equal savings per byte go to the first layer, its options in order");
}

static void random_options(int round, struct recompute_option *options)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        struct recompute_option sum = {0, 0};
        for (int j = 0; j < OPTIONS; j++) {
            int64_t at = (round * LAYERS + layer) * OPTIONS + j;
            sum.kept_bytes += 1 + seed_index(1, 1, at, 20);
            sum.saved_flops += 1 + seed_index(1, 2, at, 40);
            options[layer * OPTIONS + j] = sum;
        }
    }
}

/* Never over the budget, never better than the best; where all layers are alike and the saving per
 * byte falls from option to option, greedy loses at most what the next option would have saved. */
static void against_exhaustive(void)
{
    int within = 0, equal = 0, rounds = 200;
    double worst = 1;
    for (int round = 0; round < rounds; round++) {
        struct recompute_option options[LAYERS * OPTIONS];
        struct recompute_problem problem = {LAYERS, OPTIONS, options, 0};
        struct recompute_plan greedy, best;
        int32_t a[LAYERS], b[LAYERS];
        char why[256] = "";
        random_options(round, options);
        problem.budget_bytes = seed_index(1, 3, round, 160);
        if (recompute_check(&problem, why, sizeof why) || recompute_choose(&problem, a, &greedy) ||
            recompute_choose_best(&problem, b, &best))
            continue;
        within += greedy.kept_bytes <= problem.budget_bytes &&
                  best.kept_bytes <= problem.budget_bytes && greedy.saved_flops <= best.saved_flops;
        equal += greedy.saved_flops == best.saved_flops;
        if (best.saved_flops && (double)greedy.saved_flops / (double)best.saved_flops < worst)
            worst = (double)greedy.saved_flops / (double)best.saved_flops;
    }
    tap_ok(within == rounds, "%d random problems: within the budget, never above the best", rounds);
    tap_ok(equal > 0 && equal < rounds,
        "greedy finds the best choice in %d of them, in the worst %.0f %% of its saving", equal,
        100 * worst);
}

/* The known weakness: a small good option blocks a large one. */
static void greedy_can_lose(void)
{
    static const struct recompute_option options[2] = {{10, 30}, {90, 180}};
    struct recompute_problem problem = {2, 1, options, 95};
    struct recompute_plan greedy, best;
    int32_t a[2], b[2];
    tap_ok(!recompute_choose(&problem, a, &greedy) && !recompute_choose_best(&problem, b, &best) &&
               greedy.saved_flops == 30 && best.saved_flops == 180,
        "30 FLOP of 10 bytes are taken first, and 180 of 90 no longer fit: best keeps those alone");
}

static void refusals(void)
{
    static const struct recompute_option level[2] = {{10, 10}, {10, 20}};
    static const struct recompute_option many[60] = {{1, 1}};
    struct recompute_problem problem = {1, 2, level, 10}, large = {60, 1, many, 10};
    struct recompute_plan plan;
    int32_t chosen[60];
    char why[256] = "";
    tap_ok(recompute_check(&problem, why, sizeof why) && strstr(why, "layer 0, option 1"),
        "options that are not nested are named: %s", why);
    tap_ok(recompute_choose_best(&large, chosen, &plan) == -1, "2^60 choices are not tried");
    struct recompute_problem none = {0, 2, level, 10};
    tap_ok(!recompute_choose(&none, chosen, &plan) && plan.kept_bytes == 0, "no layers, no choice");
}

int main(void)
{
    by_hand();
    ties();
    against_exhaustive();
    greedy_can_lose();
    refusals();
    return tap_done();
}
