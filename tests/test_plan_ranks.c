/* The ranks that a budget is counted of: the largest totals over them are those over all ranks, in
 * layouts whose tensors ranks do not divide. */
#include "bench/harness/plan_ranks.h"
#include "ops/model_memory.h"
#include "tests/draw.h"
#include "tests/model_case.h"
#include "tests/tap.h"

/* Of so many ranks: the largest guaranteed and balanced totals and pinned bytes, and the first rank
 * whose guaranteed total is the largest. */
struct totals {
    int64_t device, balanced, host;
    int fullest;
};

static struct totals largest(const struct model_shape *shape, const struct model_options *options,
    const int *ranks, int count)
{
    struct totals most = {0};
    for (int i = 0; i < count; i++) {
        struct model_budget budget;
        if (model_budget(&budget, shape, options, ranks[i]))
            return (struct totals){.fullest = -1};
        if (budget.device_bytes > most.device)
            most.fullest = ranks[i];
        most.device = budget.device_bytes > most.device ? budget.device_bytes : most.device;
        most.balanced =
            budget.balanced_bytes > most.balanced ? budget.balanced_bytes : most.balanced;
        most.host = budget.host_bytes > most.host ? budget.host_bytes : most.host;
    }
    return most;
}

static bool same(const struct totals *a, const struct totals *b)
{
    return a->device == b->device && a->balanced == b->balanced && a->host == b->host &&
           a->fullest == b->fullest;
}

static struct model_shape draw_shape(uint64_t *state)
{
    int ranks = 1 + draw(state, 24);
    int experts = draw_divisor(state, ranks), vocab = draw_divisor(state, ranks);
    return (struct model_shape){
        .layout = {ranks, {1, experts, vocab}, 1, experts * (1 + draw(state, 3))},
        .layers = 1 + draw(state, 3),
        .hidden = 2 * (1 + draw(state, 40)),
        .ffn = 1 + draw(state, 20),
        .vocab = ranks + draw(state, 3000),
        .topk = 1,
        .length = 1 + draw(state, 100),
        .sequences = 1};
}

int main(void)
{
    enum { LAYOUTS = 300 };
    struct model_options options = model_case_options();
    uint64_t state = 5;
    int good = 0, several = 0, not_first = 0, most = 0;
    options.dispatch = &moe_pipelined_llep;
    options.vocab = &vocab_ring_dtp;
    options.checkpoint = &stack_sco;
    options.optimizer = &adamw_offload_stream;
    for (int i = 0; i < LAYOUTS; i++) {
        struct model_shape shape = draw_shape(&state);
        int all[LAYOUT_RANKS_MAX], few[LAYOUT_RANKS_MAX];
        options.adamw.bucket = 1 + draw(&state, 5000);
        options.adamw.slots = 1 + draw(&state, 4);
        for (int rank = 0; rank < shape.layout.ranks; rank++)
            all[rank] = rank;
        int count = plan_fullest_ranks(&shape, few);
        struct totals of_all = largest(&shape, &options, all, shape.layout.ranks);
        struct totals of_few = largest(&shape, &options, few, count);
        if (same(&of_all, &of_few) && of_all.fullest >= 0)
            good++;
        else
            tap_note("%d ranks, E_p=%d, P=%d: rank %d of all holds %lld, rank %d of %d %lld",
                shape.layout.ranks, shape.layout.degree[1], shape.layout.degree[2], of_all.fullest,
                (long long)of_all.device, of_few.fullest, count, (long long)of_few.device);
        several += count > 1;
        not_first += of_all.fullest > 0;
        most = count > most ? count : most;
    }
    tap_ok(good == LAYOUTS, "%d of %d layouts: the same fullest rank and totals as of all ranks",
        good, (int)LAYOUTS);
    tap_ok(several > 20 && not_first > 100 && most < 8,
        "several ranks count in %d of them, rank 0 is not the fullest in %d, at most %d count",
        several, not_first, most);
    return tap_done();
}
