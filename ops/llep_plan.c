/* Least-loaded expert parallelism: who computes which positions of which expert.
 *
 * Experts are visited from the fullest. An owner keeps what fits under the soft capacity beside its
 * own experts that were not visited yet; the rest spills to the least loaded ranks that take a
 * piece worth a matrix product. What nobody takes goes over capacity: `excess` reports it.
 *
 * The published code can name an (expert, helper) pair twice, and its backward then posts one
 * receive for two sends; here a pair's pieces are merged, so the plan has each pair at most once.
 */
#include "ops/llep_plan.h"
#include <stdlib.h>
#include <string.h>

/* The plan in the making. */
struct planner {
    int ranks;
    int64_t experts;
    const int64_t *counts;
    const struct llep_options *options;
    struct llep_plan *plan;
    int64_t *pending;              /* [ranks]: native routes of experts not visited yet */
    int *list;                     /* [ranks]: ranks but the owner, least loaded first */
    int64_t *piece;                /* [ranks]: of the current expert */
    int *met;                      /* [ranks]: ranks with a piece, owner first, then as they came */
    int64_t *by_count;             /* [experts]: fullest first */
    struct llep_segment *segments; /* in the order visited */
    int64_t segment_count, segment_capacity;
};

static int owner_of(const struct planner *p, int64_t expert)
{
    return (int)(expert / (p->experts / p->ranks));
}

static int64_t load(const struct planner *p, int rank)
{
    return p->plan->load[rank] + p->pending[rank];
}

static int64_t room(const struct planner *p, int rank)
{
    return p->plan->cap - load(p, rank);
}

/* ---- order of visits ------------------------------------------------------------------------- */

struct visit {
    int64_t count, expert;
};

static int fuller_first(const void *a, const void *b)
{
    const struct visit *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

static int order_visits(struct planner *p)
{
    struct visit *visits = malloc((size_t)p->experts * sizeof *visits);
    if (!visits)
        return -1;
    for (int64_t e = 0; e < p->experts; e++)
        visits[e] = (struct visit){p->counts[e], e};
    qsort(visits, (size_t)p->experts, sizeof *visits, fuller_first);
    for (int64_t i = 0; i < p->experts; i++)
        p->by_count[i] = visits[i].expert;
    free(visits);
    return 0;
}

/* Other ranks by (effective load, rank): insertion sort, since the list is nearly sorted when it is
 * made again after one piece. */
static void order_others(struct planner *p)
{
    for (int i = 1; i < p->ranks - 1; i++) {
        int rank = p->list[i], j = i;
        int64_t own = load(p, rank);
        for (; j > 0; j--) {
            int64_t before = load(p, p->list[j - 1]);
            if (before < own || (before == own && p->list[j - 1] < rank))
                break;
            p->list[j] = p->list[j - 1];
        }
        p->list[j] = rank;
    }
}

static void list_others(struct planner *p, int owner)
{
    int n = 0;
    for (int rank = 0; rank < p->ranks; rank++)
        if (rank != owner)
            p->list[n++] = rank;
    order_others(p);
}

/* ---- placing one expert ---------------------------------------------------------------------- */

static void place(struct planner *p, int rank, int64_t count, int *met)
{
    if (count == 0)
        return;
    if (p->piece[rank] == 0)
        p->met[(*met)++] = rank;
    p->piece[rank] += count;
    p->plan->load[rank] += count;
}

/* What `rank` would take of `rest`; 0 when it has no room, or only for a piece that is too small to
 * be worth a product and would leave some over. */
static int64_t acceptable(const struct planner *p, int rank, int64_t rest)
{
    int64_t free_room = room(p, rank), piece = rest < free_room ? rest : free_room;
    if (piece <= 0 || (piece < p->options->min_gemm_tokens && piece < rest))
        return 0;
    return piece;
}

/* The owner kept a part: the least loaded rank is looked for anew after every piece. */
static void spill_rest(struct planner *p, int64_t rest, int *met)
{
    while (rest > 0) {
        int64_t piece = 0;
        int taker = p->list[0];
        for (int i = 0; i < p->ranks - 1 && piece == 0; i++) {
            piece = acceptable(p, p->list[i], rest);
            if (piece)
                taker = p->list[i];
        }
        if (piece == 0)
            piece = rest; /* over capacity */
        place(p, taker, piece, met);
        rest -= piece;
        order_others(p);
    }
}

/* The owner kept nothing: one pass over the ranks as they stood. */
static void spill_whole(struct planner *p, int64_t rest, int *met)
{
    for (int i = 0; i < p->ranks - 1 && rest > 0; i++) {
        int64_t piece = acceptable(p, p->list[i], rest);
        place(p, p->list[i], piece, met);
        rest -= piece;
    }
    place(p, p->list[0], rest, met);
}

static int push(struct planner *p, struct llep_segment segment)
{
    if (p->segment_count == p->segment_capacity) {
        int64_t capacity = 2 * p->segment_capacity + 64;
        struct llep_segment *grown = realloc(p->segments, (size_t)capacity * sizeof *grown);
        if (!grown)
            return -1;
        p->segments = grown;
        p->segment_capacity = capacity;
    }
    p->segments[p->segment_count++] = segment;
    return 0;
}

/* Lays a placed expert's pieces out from position 0, the owner's first. */
static int push_pieces(struct planner *p, int64_t expert, int met)
{
    int64_t at = 0;
    int status = 0;
    for (int i = 0; i < met; i++) {
        int rank = p->met[i];
        struct llep_segment segment = {
            .expert = expert, .first = at, .last = at + p->piece[rank], .rank = rank};
        at = segment.last;
        p->piece[rank] = 0;
        p->plan->transfers += rank != owner_of(p, expert);
        status = status || push(p, segment) ? -1 : 0;
    }
    return status;
}

static int place_expert(struct planner *p, int64_t expert)
{
    int owner = owner_of(p, expert), met = 0;
    int64_t count = p->counts[expert];
    p->pending[owner] -= count;
    int64_t kept = p->plan->planned ? room(p, owner) : count;
    if (kept > count || p->ranks == 1)
        kept = count;
    if (kept < 0)
        kept = 0;
    place(p, owner, kept, &met);
    if (kept < count) {
        list_others(p, owner);
        if (kept > 0)
            spill_rest(p, count - kept, &met);
        else
            spill_whole(p, count, &met);
    }
    return push_pieces(p, expert, met);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static int by_expert(const void *a, const void *b)
{
    const struct llep_segment *x = a, *y = b;
    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Busiest rank's native load over the mean; 1 without routes. */
static double imbalance(const struct planner *p, int64_t total)
{
    int64_t busiest = 0;
    for (int rank = 0; rank < p->ranks; rank++)
        if (p->plan->native_load[rank] > busiest)
            busiest = p->plan->native_load[rank];
    return total ? (double)busiest * p->ranks / (double)total : 1.0;
}

/* trunc(alpha * floor(total / ranks)), at least 1 and never too large to subtract from; all routes
 * where a rank's even share is none. */
static int64_t soft_capacity(const struct planner *p, int64_t total)
{
    int64_t even = total / p->ranks;
    double cap = p->options->alpha * (double)even;
    if (even == 0)
        return total > 1 ? total : 1;
    if (cap >= 0x1p62)
        return INT64_C(1) << 62;
    return cap >= 1 ? (int64_t)cap : 1;
}

static void measure(struct planner *p)
{
    struct llep_plan *plan = p->plan;
    int64_t total = 0;
    for (int64_t e = 0; e < p->experts; e++) {
        plan->native_load[owner_of(p, e)] += p->counts[e];
        total += p->counts[e];
    }
    memcpy(p->pending, plan->native_load, (size_t)p->ranks * sizeof *p->pending);
    plan->cap = soft_capacity(p, total);
    plan->planned = imbalance(p, total) >= p->options->lambda;
}

static int build(struct planner *p)
{
    struct llep_plan *plan = p->plan;
    if (order_visits(p))
        return -1;
    measure(p);
    for (int64_t i = 0; i < p->experts; i++)
        if (p->counts[p->by_count[i]] > 0 && place_expert(p, p->by_count[i]))
            return -1;
    if (p->segment_count)
        qsort(p->segments, (size_t)p->segment_count, sizeof *p->segments, by_expert);
    for (int64_t e = 0, at = 0; e <= p->experts; e++) {
        while (at < p->segment_count && p->segments[at].expert < e)
            at++;
        plan->expert_first[e] = at;
    }
    for (int rank = 0; rank < p->ranks; rank++)
        if (plan->load[rank] - plan->cap > plan->excess)
            plan->excess = plan->load[rank] - plan->cap;
    plan->segments = p->segments;
    plan->segment_count = p->segment_count;
    p->segments = NULL;
    return 0;
}

int llep_plan(struct llep_plan *plan, int ranks, int64_t experts, const int64_t *counts,
    const struct llep_options *options)
{
    size_t n = (size_t)ranks;
    *plan = (struct llep_plan){.load = calloc(n, sizeof *plan->load),
        .native_load = calloc(n, sizeof *plan->native_load),
        .expert_first = calloc((size_t)experts + 1, sizeof *plan->expert_first)};
    struct planner p = {.ranks = ranks,
        .experts = experts,
        .counts = counts,
        .options = options,
        .plan = plan,
        .pending = calloc(n, sizeof *p.pending),
        .list = calloc(n, sizeof *p.list),
        .piece = calloc(n, sizeof *p.piece),
        .met = calloc(n, sizeof *p.met),
        .by_count = calloc((size_t)experts, sizeof *p.by_count)};
    int status = -1;
    if (plan->load && plan->native_load && plan->expert_first && p.pending && p.list && p.piece &&
        p.met && p.by_count)
        status = build(&p);
    free(p.pending);
    free(p.list);
    free(p.piece);
    free(p.met);
    free(p.by_count);
    free(p.segments);
    if (status)
        llep_plan_free(plan);
    return status;
}

void llep_plan_free(struct llep_plan *plan)
{
    free(plan->load);
    free(plan->native_load);
    free(plan->segments);
    free(plan->expert_first);
    *plan = (struct llep_plan){0};
}
