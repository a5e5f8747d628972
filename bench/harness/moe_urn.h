/* Experts drawn in proportion to whole-number weights, without putting one back: integers only, so
 * that a draw is the same on every machine. */
#pragma once
#include <stdint.h>

struct moe_urn {
    int64_t experts;
    int64_t *until; /* [experts + 1]: running sum of the weights, from 0 */
};

/* Weights are >= 0 and their sum is below 2^63. 0, or -1 when memory is short. */
int moe_urn_init(struct moe_urn *urn, int64_t experts, const int64_t *weights);
void moe_urn_free(struct moe_urn *urn);

/* The experts that a token names so far, ascending. */
struct moe_named {
    int count;
    int64_t weight;   /* of them together */
    int64_t *experts; /* room for k */
};

void moe_urn_name(const struct moe_urn *urn, struct moe_named *named, int64_t expert);

/* Draws with number `draw` under `seed` one that is not named yet, and names it. When all are, it
 * starts with none named. -1 when every weight is 0. */
int64_t moe_urn_draw(
    const struct moe_urn *urn, struct moe_named *named, uint64_t seed, int64_t draw);
