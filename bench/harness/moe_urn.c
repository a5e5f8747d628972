/* Drawing by weight. The named experts are cut out of the running sum, so that a draw is one number
 * below what is left, moved up past each expert that was cut out before it. */
#include "bench/harness/moe_urn.h"
#include <stdlib.h>
#include "probe/seed.h"

/* Apart from every other tensor under the seed. */
#define STREAM_DRAW 0x64726177u

int moe_urn_init(struct moe_urn *urn, int64_t experts, const int64_t *weights)
{
    *urn = (struct moe_urn){
        .experts = experts, .until = malloc(((size_t)experts + 1) * sizeof *urn->until)};
    if (!urn->until)
        return -1;
    urn->until[0] = 0;
    for (int64_t e = 0; e < experts; e++)
        urn->until[e + 1] = urn->until[e] + weights[e];
    return 0;
}

void moe_urn_free(struct moe_urn *urn)
{
    free(urn->until);
    *urn = (struct moe_urn){0};
}

static int64_t weight_of(const struct moe_urn *urn, int64_t expert)
{
    return urn->until[expert + 1] - urn->until[expert];
}

void moe_urn_name(const struct moe_urn *urn, struct moe_named *named, int64_t expert)
{
    int at = named->count++;
    for (; at > 0 && named->experts[at - 1] > expert; at--)
        named->experts[at] = named->experts[at - 1];
    named->experts[at] = expert;
    named->weight += weight_of(urn, expert);
}

/* The expert whose part of the running sum holds `at`. */
static int64_t expert_at(const struct moe_urn *urn, int64_t at)
{
    int64_t low = 0, high = urn->experts - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (urn->until[middle + 1] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int64_t moe_urn_draw(
    const struct moe_urn *urn, struct moe_named *named, uint64_t seed, int64_t draw)
{
    int64_t total = urn->until[urn->experts];
    if (total == 0)
        return -1;
    if (named->weight == total)
        *named = (struct moe_named){.experts = named->experts};
    int64_t at = seed_index(seed, STREAM_DRAW, draw, total - named->weight);
    for (int i = 0; i < named->count && at >= urn->until[named->experts[i]]; i++)
        at += weight_of(urn, named->experts[i]);
    int64_t expert = expert_at(urn, at);
    moe_urn_name(urn, named, expert);
    return expert;
}
