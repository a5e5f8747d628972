/* The LLEP planner: answers known from the published planner, a second planner written straight
 * from the rules, and what must hold of every plan. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ops/llep_plan.h"
#include "probe/seed.h"
#include "probe/timing.h"
#include "tests/tap.h"

#define RANKS_MOST 16
#define EXPERTS_MOST 64
#define INSTANCES 100000

static struct llep_plan plan_of(
    int ranks, int64_t experts, const int64_t *counts, struct llep_options options)
{
    struct llep_plan plan;
    if (llep_plan(&plan, ranks, experts, counts, &options))
        abort();
    return plan;
}

/* "0:[0,10)@0 [10,40)@1; 1: ..." without the experts that have no segment. */
static void write_plan(const struct llep_plan *plan, int64_t experts, char *text, size_t size)
{
    size_t used = 0;
    *text = 0;
    for (int64_t e = 0; e < experts; e++)
        for (int64_t s = plan->expert_first[e]; s < plan->expert_first[e + 1] && used < size; s++) {
            const struct llep_segment *segment = &plan->segments[s];
            if (s == plan->expert_first[e])
                used += (size_t)snprintf(
                    text + used, size - used, "%s%" PRId64 ":", used ? "; " : "", e);
            else
                used += (size_t)snprintf(text + used, size - used, " ");
            used += (size_t)snprintf(text + used, size - used, "[%" PRId64 ",%" PRId64 ")@%d",
                segment->first, segment->last, segment->rank);
        }
}

static void write_loads(const struct llep_plan *plan, int ranks, char *text, size_t size)
{
    size_t used = 0;
    for (int r = 0; r < ranks && used < size; r++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%" PRId64, r ? "/" : "", plan->load[r]);
}

/* ---- known answers -------------------------------------------------------------------------- */

struct known {
    int ranks;
    int64_t experts, counts[4];
    double alpha;
    int64_t min_gemm_tokens, cap, excess;
    const char *loads, *segments;
};

static const struct known known[] = {
    {4, 4, {0, 0, 0, 0}, 1, 1, 1, 0, "0/0/0/0", ""},
    {1, 2, {5, 7}, 1, 1, 12, 0, "12", "0:[0,5)@0; 1:[0,7)@0"},
    {1, 2, {5, 7}, 0.5, 1, 6, 6, "12", "0:[0,5)@0; 1:[0,7)@0"},
    {4, 4, {1, 0, 0, 0}, 1, 1, 1, 0, "1/0/0/0", "0:[0,1)@0"},
    {4, 4, {3, 0, 0, 0}, 1, 1, 3, 0, "3/0/0/0", "0:[0,3)@0"},
    {2, 4, {4, 4, 4, 4}, 1, 1, 8, 0, "8/8", "0:[0,4)@0; 1:[0,4)@0; 2:[0,4)@1; 3:[0,4)@1"},
    {2, 4, {8, 8, 0, 0}, 1, 1, 8, 0, "8/8", "0:[0,8)@1; 1:[0,8)@0"},
    {4, 4, {40, 0, 0, 0}, 1, 16, 10, 20, "10/30/0/0", "0:[0,10)@0 [10,40)@1"},
    {4, 4, {40, 0, 0, 0}, 1, 1, 10, 0, "10/10/10/10", "0:[0,10)@0 [10,20)@1 [20,30)@2 [30,40)@3"},
    {4, 4, {12, 10, 10, 8}, 1, 5, 10, 0, "10/10/10/10",
        "0:[0,10)@0 [10,12)@3; 1:[0,10)@1; 2:[0,10)@2; 3:[0,8)@3"},
    {2, 2, {10, 10}, 0.5, 1, 5, 10, "15/5", "0:[0,5)@0 [5,10)@1; 1:[0,10)@0"},
    {2, 4, {101, 0, 0, 0}, 1, 1, 50, 1, "50/51", "0:[0,50)@0 [50,101)@1"},
    {2, 2, {7, 1}, 1e300, 1, INT64_C(1) << 62, 0, "7/1", "0:[0,7)@0; 1:[0,1)@1"},
};

static void test_known(void)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const struct known *k = &known[i];
        char loads[200], segments[500], counts[100] = "";
        struct llep_plan plan = plan_of(k->ranks, k->experts, k->counts,
            (struct llep_options){.alpha = k->alpha, .min_gemm_tokens = k->min_gemm_tokens});
        write_loads(&plan, k->ranks, loads, sizeof loads);
        write_plan(&plan, k->experts, segments, sizeof segments);
        for (int64_t e = 0, at = 0; e < k->experts; e++)
            at += snprintf(
                counts + at, sizeof counts - (size_t)at, "%s%" PRId64, e ? "," : "", k->counts[e]);
        tap_ok(plan.planned && plan.cap == k->cap && plan.excess == k->excess &&
                   !strcmp(loads, k->loads) && !strcmp(segments, k->segments),
            "P=%d [%s] alpha=%g m=%" PRId64 ": cap %" PRId64 ", excess %" PRId64 ", loads %s, %s",
            k->ranks, counts, k->alpha, k->min_gemm_tokens, plan.cap, plan.excess, loads, segments);
        llep_plan_free(&plan);
    }
}

/* Expert 0 on rank 0 spills to rank 1, then rank 2, and what is over lands on rank 1 again: one
 * segment there, and rank 2's begins after all of it. */
static void test_merged_apart(void)
{
    const int64_t counts[3] = {32, 0, 0};
    struct llep_plan plan =
        plan_of(3, 3, counts, (struct llep_options){.alpha = 1, .min_gemm_tokens = 1});
    char segments[200];
    write_plan(&plan, 3, segments, sizeof segments);
    tap_ok(!strcmp(segments, "0:[0,10)@0 [10,22)@1 [22,32)@2") && plan.transfers == 2,
        "pieces of one helper that do not touch are merged: %s", segments);
    llep_plan_free(&plan);
}

static void test_gate(void)
{
    const int64_t counts[4] = {13, 7, 12, 8}; /* ranks of 20 and 20; experts uneven */
    const int64_t skewed[4] = {14, 12, 7, 7}; /* 26 / 20 = 1.3 exactly */
    struct llep_options options = {.alpha = 1, .min_gemm_tokens = 1, .lambda = 1.3};
    char segments[200];
    struct llep_plan plan = plan_of(2, 4, counts, options);
    tap_ok(!plan.planned && plan.transfers == 0 && plan.segment_count == 4,
        "the gate looks at ranks, not experts");
    llep_plan_free(&plan);
    plan = plan_of(2, 4, skewed, options);
    tap_ok(plan.planned && plan.transfers > 0, "a busiest rank of exactly lambda times the mean "
                                               "is planned for");
    llep_plan_free(&plan);
    options.lambda = nextafter(1.3, 2);
    plan = plan_of(2, 4, skewed, options);
    write_plan(&plan, 4, segments, sizeof segments);
    tap_ok(!plan.planned && plan.load[0] == 26 && plan.excess == 6 &&
               !strcmp(segments, "0:[0,14)@0; 1:[0,12)@0; 2:[0,7)@1; 3:[0,7)@1"),
        "just below it all stays at home, and the excess is told: %s", segments);
    llep_plan_free(&plan);
    const int64_t none[4] = {0};
    options.lambda = 1.0;
    plan = plan_of(2, 4, none, options);
    tap_ok(plan.planned && plan.segment_count == 0 && plan.expert_first[4] == 0,
        "without routes the ratio is 1 and the plan is empty");
    llep_plan_free(&plan);
}

/* ---- a second planner, straight from the rules ---------------------------------------------- */

struct naive {
    int ranks;
    int64_t experts, min_gemm_tokens, cap;
    int64_t assigned[RANKS_MOST], pending[RANKS_MOST];
    int64_t piece[RANKS_MOST]; /* of the current expert */
    int met[RANKS_MOST], met_count;
};

static int64_t naive_load(const struct naive *n, int rank)
{
    return n->assigned[rank] + n->pending[rank];
}

static void naive_give(struct naive *n, int rank, int64_t count)
{
    if (count > 0 && n->piece[rank] == 0)
        n->met[n->met_count++] = rank;
    n->piece[rank] += count;
    n->assigned[rank] += count;
}

/* The other ranks by (load, rank). */
static int naive_order(const struct naive *n, int owner, int *order)
{
    int count = 0;
    for (int rank = 0; rank < n->ranks; rank++)
        if (rank != owner)
            order[count++] = rank;
    for (int i = 0; i < count; i++)
        for (int j = i + 1; j < count; j++) {
            int64_t a = naive_load(n, order[i]), b = naive_load(n, order[j]);
            if (b < a || (b == a && order[j] < order[i])) {
                int swapped = order[i];
                order[i] = order[j];
                order[j] = swapped;
            }
        }
    return count;
}

static void naive_place(struct naive *n, int owner, int64_t count)
{
    int order[RANKS_MOST], others;
    n->pending[owner] -= count;
    int64_t room = n->cap - n->assigned[owner] - n->pending[owner];
    int64_t kept = room >= count || n->ranks == 1 ? count : room > 0 ? room : 0;
    int64_t rest = count - kept;
    naive_give(n, owner, kept);
    others = naive_order(n, owner, order);
    for (int at = 0; rest > 0;) {
        int taker = -1;
        int64_t piece = 0;
        if (kept > 0) {
            others = naive_order(n, owner, order);
            at = 0;
        }
        for (; at < others && taker < 0; at++) {
            int64_t free_room = n->cap - naive_load(n, order[at]);
            piece = rest < free_room ? rest : free_room;
            if (free_room > 0 && !(piece < n->min_gemm_tokens && piece < rest))
                taker = order[at];
        }
        if (taker < 0) {
            taker = order[0];
            piece = rest;
        }
        naive_give(n, taker, piece);
        rest -= piece;
    }
}

/* Does `plan` equal the naive one? Sets *unlike to what differs. */
static bool equals_naive(const struct llep_plan *plan, int ranks, int64_t experts,
    const int64_t *counts, const struct llep_options *options)
{
    struct naive n = {
        .ranks = ranks, .experts = experts, .min_gemm_tokens = options->min_gemm_tokens};
    bool visited[EXPERTS_MOST] = {false};
    int64_t total = 0;
    for (int64_t e = 0; e < experts; e++) {
        n.pending[e / (experts / ranks)] += counts[e];
        total += counts[e];
    }
    int64_t q = total / ranks;
    n.cap = q > 0 ? (int64_t)(options->alpha * (double)q) : total;
    n.cap = n.cap > 1 ? n.cap : 1;
    if (n.cap != plan->cap)
        return false;
    for (int64_t turn = 0; turn < experts; turn++) {
        int64_t e = -1;
        for (int64_t i = 0; i < experts; i++)
            if (!visited[i] && (e < 0 || counts[i] > counts[e]))
                e = i;
        visited[e] = true;
        n.met_count = 0;
        memset(n.piece, 0, sizeof n.piece);
        if (counts[e])
            naive_place(&n, (int)(e / (experts / ranks)), counts[e]);
        if (plan->expert_first[e + 1] - plan->expert_first[e] != n.met_count)
            return false;
        for (int i = 0; i < n.met_count; i++) {
            const struct llep_segment *segment = &plan->segments[plan->expert_first[e] + i];
            if (segment->rank != n.met[i] || segment->last - segment->first != n.piece[n.met[i]])
                return false;
        }
    }
    return memcmp(n.assigned, plan->load, (size_t)ranks * sizeof *plan->load) == 0;
}

/* ---- properties ----------------------------------------------------------------------------- */

enum { TILES, ONCE, LOADS, EXCESS, GATE, NAIVE, SAME, PROPERTIES };

static const char *const property_names[PROPERTIES] = {"segments tile every expert",
    "an (expert, rank) pair occurs at most once, an owner first",
    ("loads are the sums of segments, native loads those of counts, and transfers the pairs apart "
     "from home"),
    "the excess over the soft cap is reported", "the gate holds below lambda and only there",
    "the plan is that of a planner written straight from the rules",
    "the same counts give the same plan"};

/* Bits of the properties that this plan breaks. */
static unsigned check_segments(
    const struct llep_plan *plan, int ranks, int64_t experts, const int64_t *counts)
{
    unsigned broken = 0;
    int64_t load[RANKS_MOST] = {0}, native[RANKS_MOST] = {0}, transfers = 0;
    for (int64_t e = 0; e < experts; e++) {
        int owner = (int)(e / (experts / ranks));
        int64_t next = 0;
        bool met[RANKS_MOST] = {false};
        for (int64_t s = plan->expert_first[e]; s < plan->expert_first[e + 1]; s++) {
            const struct llep_segment *segment = &plan->segments[s];
            if (segment->expert != e || segment->first != next || segment->last <= next)
                broken |= 1u << TILES;
            if (met[segment->rank] || (segment->rank == owner && s > plan->expert_first[e]))
                broken |= 1u << ONCE;
            met[segment->rank] = true;
            next = segment->last;
            load[segment->rank] += segment->last - segment->first;
            transfers += segment->rank != owner;
        }
        if (next != counts[e])
            broken |= 1u << TILES;
        native[owner] += counts[e];
    }
    if (plan->expert_first[0] != 0 || plan->expert_first[experts] != plan->segment_count)
        broken |= 1u << TILES;
    if (memcmp(load, plan->load, (size_t)ranks * sizeof *load) ||
        memcmp(native, plan->native_load, (size_t)ranks * sizeof *native) ||
        transfers != plan->transfers)
        broken |= 1u << LOADS;
    return broken;
}

static unsigned check_figures(
    const struct llep_plan *plan, int ranks, const struct llep_options *options)
{
    unsigned broken = 0;
    int64_t most = 0, busiest = 0, total = 0;
    for (int r = 0; r < ranks; r++) {
        most = plan->load[r] > most ? plan->load[r] : most;
        busiest = plan->native_load[r] > busiest ? plan->native_load[r] : busiest;
        total += plan->native_load[r];
    }
    if (plan->excess != (most > plan->cap ? most - plan->cap : 0))
        broken |= 1u << EXCESS;
    double ratio = total ? (double)(busiest * ranks) / (double)total : 1;
    if (plan->planned != (ratio >= options->lambda) || (!plan->planned && plan->transfers))
        broken |= 1u << GATE;
    return broken;
}

static bool equal_plans(const struct llep_plan *a, const struct llep_plan *b, int64_t experts)
{
    if (a->segment_count != b->segment_count || a->planned != b->planned || a->cap != b->cap ||
        memcmp(a->expert_first, b->expert_first, ((size_t)experts + 1) * sizeof *a->expert_first))
        return false;
    for (int64_t s = 0; s < a->segment_count; s++) {
        const struct llep_segment *x = &a->segments[s], *y = &b->segments[s];
        if (x->expert != y->expert || x->first != y->first || x->last != y->last ||
            x->rank != y->rank)
            return false;
    }
    return true;
}

/* One random number of an instance. */
struct random {
    int64_t instance, next;
};

static int64_t draw(struct random *random, int64_t bound)
{
    return seed_index(7, (uint32_t)random->instance, random->next++, bound);
}

/* Shapes from one rank to many, counts from none to steep: a power shapes the spread. */
static void make_instance(struct random *random, int *ranks, int64_t *experts, int64_t *counts,
    struct llep_options *options)
{
    static const double alphas[] = {0.5, 0.9, 1.0, 1.0, 1.1, 1.25, 2.0};
    static const int64_t sizes[] = {1, 3, 20, 400, 5000, 100000};
    static const double lambdas[] = {0, 0, 1.0, 1.3, 2.0};
    *ranks = 1 + (int)draw(random, RANKS_MOST);
    *experts = *ranks * (1 + draw(random, EXPERTS_MOST / *ranks));
    int64_t most = sizes[draw(random, 6)], steepness = draw(random, 4);
    for (int64_t e = 0; e < *experts; e++) {
        counts[e] = draw(random, most + 1);
        for (int64_t i = 0; i < steepness; i++)
            counts[e] = draw(random, counts[e] + 1);
    }
    options->alpha = alphas[draw(random, 7)];
    options->min_gemm_tokens = 1 + draw(random, draw(random, 2) ? 1 : most + 1);
    options->lambda = lambdas[draw(random, 5)];
}

static void test_properties(void)
{
    int64_t broken_at[PROPERTIES], over = 0, planned = 0;
    memset(broken_at, -1, sizeof broken_at);
    for (int64_t i = 0; i < INSTANCES; i++) {
        struct random random = {.instance = i};
        int64_t experts, counts[EXPERTS_MOST];
        int ranks;
        struct llep_options options;
        make_instance(&random, &ranks, &experts, counts, &options);
        struct llep_plan plan = plan_of(ranks, experts, counts, options);
        struct llep_plan again = plan_of(ranks, experts, counts, options);
        unsigned broken =
            check_segments(&plan, ranks, experts, counts) | check_figures(&plan, ranks, &options);
        if (plan.planned && !equals_naive(&plan, ranks, experts, counts, &options))
            broken |= 1u << NAIVE;
        if (!equal_plans(&plan, &again, experts))
            broken |= 1u << SAME;
        for (int p = 0; p < PROPERTIES; p++)
            if (broken >> p & 1 && broken_at[p] < 0)
                broken_at[p] = i;
        planned += plan.planned;
        over += plan.planned && plan.excess > 0;
        llep_plan_free(&plan);
        llep_plan_free(&again);
    }
    for (int p = 0; p < PROPERTIES; p++)
        tap_ok(broken_at[p] < 0, "%s, in %d random instances (first fault: %" PRId64 ")",
            property_names[p], INSTANCES, broken_at[p]);
    tap_ok(planned > INSTANCES / 2 && planned < INSTANCES && over > INSTANCES / 20,
        "the instances reach the gate and the soft cap: %" PRId64 " planned, %" PRId64
        " of them over it",
        planned, over);
}

/* ---- time ----------------------------------------------------------------------------------- */

static void note_time(void)
{
    enum { RANKS = 64, EXPERTS = 384, TIMES = 101 };
    static const char *const names[] = {"even", "random", "steep"};
    int64_t counts[EXPERTS];
    for (int shape = 0; shape < 3; shape++) {
        double best = INFINITY;
        for (int64_t e = 0; e < EXPERTS; e++)
            counts[e] = shape == 0   ? 21845
                        : shape == 1 ? seed_index(1, 2, e, 43691)
                                     : 8388608 / ((e * 97 % EXPERTS) + 1);
        for (int i = 0; i < TIMES; i++) {
            double begin = timing_now_s();
            struct llep_plan plan = plan_of(
                RANKS, EXPERTS, counts, (struct llep_options){.alpha = 1, .min_gemm_tokens = 1024});
            double took = timing_now_s() - begin;
            best = took < best ? took : best;
            llep_plan_free(&plan);
        }
        tap_note("a plan of 384 experts on 64 ranks, %s counts: %.3f ms", names[shape], best * 1e3);
    }
}

int main(void)
{
    test_known();
    test_merged_apart();
    test_gate();
    test_properties();
    note_time();
    return tap_done();
}
