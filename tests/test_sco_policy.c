/* The choice of boundaries against figures known beforehand. */
#include <math.h>
#include <string.h>
#include "ops/sco_policy.h"
#include "tests/tap.h"

#define GIB (INT64_C(1) << 30)
#define BOUNDARIES 47

/* One boundary of gpt-oss-20b at the paper's ceiling: 557056 tokens on 8 ranks, H 2880, BF16. */
#define BOUNDARY (INT64_C(557056) / 8 * 2880 * 2)

static struct sco_choice choose_equal(int64_t bytes, int64_t count, struct sco_budget budget)
{
    int64_t sizes[BOUNDARIES];
    for (int64_t i = 0; i < count; i++)
        sizes[i] = bytes;
    return sco_choose(sizes, count, &budget, NULL);
}

/* The paper's column is printed to two digits of a step slightly below the ceiling: 47 boundaries
 * at the ceiling are 17.556 GiB where it has 17.55. */
static bool prints_as(int64_t bytes, double gib)
{
    return fabs((double)bytes / (double)GIB - gib) < 0.007;
}

static void paper(int64_t budget_bytes, int64_t count, double logical, double pinned)
{
    struct sco_choice choice = choose_equal(
        BOUNDARY, BOUNDARIES, (struct sco_budget){.bytes = budget_bytes, .rounding = PINNED_POW2});
    tap_ok(choice.count == count && prints_as(choice.logical_bytes, logical) &&
               (double)choice.pinned_bytes / (double)GIB == pinned,
        "gpt-oss-20b, budget %lld GiB: %lld boundaries, %.2f GiB, %.1f GiB pinned",
        (long long)(budget_bytes < 0 ? -1 : budget_bytes / GIB), (long long)count, logical, pinned);
}

static void budgets(void)
{
    static const struct {
        const char *name;
        int64_t budget, count;
    } cases[] = {{"nothing", 0, 0}, {"less than one boundary", 99, 0}, {"one exactly", 100, 1},
        {"three exactly", 300, 3}, {"one byte short of three", 299, 2}, {"all exactly", 500, 5},
        {"more than all", 501, 5}, {"unlimited", -1, 5}, {"the largest number", INT64_MAX, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sco_choice choice =
            choose_equal(100, 5, (struct sco_budget){.bytes = cases[i].budget});
        tap_ok(choice.count == cases[i].count && choice.logical_bytes == 100 * cases[i].count &&
                   choice.pinned_bytes == choice.logical_bytes,
            "budget of %s", cases[i].name);
    }
}

static void uneven(void)
{
    static const int64_t sizes[] = {60, 50, 0, 30, 40, 10};
    static const bool want[] = {true, false, true, true, false, true};
    bool chosen[6];
    struct sco_choice choice = sco_choose(sizes, 6, &(struct sco_budget){.bytes = 100}, chosen);
    tap_ok(choice.count == 4 && choice.logical_bytes == 100 && !memcmp(chosen, want, sizeof want),
        "uneven boundaries: what does not fit is passed over, smaller ones behind it still go");
    struct sco_budget limited = {.bytes = -1, .pinned_limit_bytes = 128, .rounding = PINNED_POW2};
    choice = sco_choose(sizes, 6, &limited, chosen);
    tap_ok(choice.count == 3 && choice.pinned_bytes == 128 && chosen[0] && chosen[1] && chosen[2] &&
               !chosen[3] && !chosen[4] && !chosen[5],
        "pinned memory that there is limits the choice too, after rounding");
}

int main(void)
{
    paper(0, 0, 0, 0);
    paper(8 * GIB, 21, 7.84, 10.5);
    paper(16 * GIB, 42, 15.69, 21.0);
    paper(-1, 47, 17.55, 23.5);
    budgets();
    uneven();
    tap_ok(sco_pinned_bytes(0, PINNED_POW2) == 0 && sco_pinned_bytes(1, PINNED_POW2) == 1 &&
               sco_pinned_bytes(3, PINNED_POW2) == 4 && sco_pinned_bytes(4, PINNED_POW2) == 4 &&
               sco_pinned_bytes(5, PINNED_EXACT) == 5,
        "pinned sizes");
    return tap_done();
}
