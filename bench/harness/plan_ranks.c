/* Ranks differ by little: each slice is the share of its tensor rounded down or up, a shard of the
 * vocabulary has a row more or not. So few of them are left to count, six at most of the layouts
 * that we tried, where all would be up to a thousand. */
#include "bench/harness/plan_ranks.h"
#include <stdbool.h>
#include "ops/vocab.h"

/* What differs: slices of tensors that all ranks hold, of experts and of the head; the head. */
enum { WHOLE, SQUARE, ROUTER, GAINS, EXPERTS, HEAD_SLICE, HEAD, SHARES };

struct shares {
    int64_t count[SHARES];
};

/* Elements of the slice of the holder at `place`. */
static int64_t slice(int64_t count, int64_t holders, int64_t place)
{
    return layout_slice_first(count, holders, place + 1) -
           layout_slice_first(count, holders, place);
}

static struct shares shares_of(const struct model_shape *shape, int rank)
{
    int64_t ranks = shape->layout.ranks, hidden = shape->hidden;
    int64_t group = shape->layout.degree[LAYOUT_EXPERTS];
    int64_t vocab_group = shape->layout.degree[LAYOUT_VOCAB];
    int64_t experts = shape->layout.experts / group * shape->ffn * hidden;
    int64_t head =
        hidden * vocab_shard_rows(shape->vocab, (int)vocab_group, rank % (int)vocab_group);
    return (struct shares){.count = {[WHOLE] = slice(shape->vocab * hidden, ranks, rank),
                               [SQUARE] = slice(hidden * hidden, ranks, rank),
                               [ROUTER] = slice(shape->layout.experts * hidden, ranks, rank),
                               [GAINS] = slice((2 * shape->layers + 1) * hidden, ranks, rank),
                               [EXPERTS] = slice(experts, ranks / group, rank / group),
                               [HEAD_SLICE] = slice(head, ranks / vocab_group, rank / vocab_group),
                               [HEAD] = head}};
}

/* Whether a holds as much as b of everything. */
static bool covers(const struct shares *a, const struct shares *b)
{
    for (int i = 0; i < SHARES; i++)
        if (a->count[i] < b->count[i])
            return false;
    return true;
}

int plan_fullest_ranks(const struct model_shape *shape, int ranks[LAYOUT_RANKS_MAX])
{
    struct shares held[LAYOUT_RANKS_MAX];
    int count = 0;
    for (int rank = 0; rank < shape->layout.ranks; rank++) {
        struct shares own = shares_of(shape, rank);
        bool covered = false;
        for (int i = 0; i < count && !covered; i++)
            covered = covers(&held[i], &own);
        if (covered)
            continue;
        int kept = 0;
        for (int i = 0; i < count; i++) {
            if (covers(&own, &held[i]))
                continue;
            held[kept] = held[i];
            ranks[kept++] = ranks[i];
        }
        held[kept] = own;
        ranks[kept] = rank;
        count = kept + 1;
    }
    return count;
}
