/* The orders in which a dispatcher sums, for the reference.
 *
 * A route is a (token, slot) pair with a token's global index (ranks one after the other); its
 * number is token * k + slot. An empty slot (-1) is no route.
 *
 * Combine of token n: groups of slots; within a group one chain from +0 in the listed order, groups
 * then added from the left, the first taken as it is. Default: one group, slots ascending. The same
 * order sums dX; there the chain adds stored rows instead of multiplying. A token without routes
 * has Y and dX of +0.
 *
 * Weight gradient of expert e: segments of routes; within a segment one chain from +0 in the listed
 * order, segments then added from the left, the first taken as it is. Default: one segment, routes
 * by source rank, then token, then slot, that is by ascending number. An expert without routes has
 * gradient +0. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define MOE_TOPK_MAX 64
#define MOE_EMPTY (-1)

struct moe_order {
    int64_t tokens; /* all ranks' */
    int topk;
    int64_t experts;
    /* NULL = default everywhere. Else [tokens * k]: slot met at each position, and whether it
     * starts a group; empty slots are listed too (they add nothing and start nothing). */
    int8_t *combine_slot;
    bool *combine_starts;
    /* [routes]: expert e's routes are gradient_route[expert_first[e]] .. [expert_first[e+1]-1], in
     * the order met; gradient_starts marks the first of each segment. */
    int64_t *expert_first; /* [experts + 1] */
    int64_t *gradient_route;
    bool *gradient_starts;
};

/* The default order of this routing: idx [tokens, k], -1 = empty slot, else in [0, experts). 0, or
 * -1 when memory is short. */
int moe_order_init(
    struct moe_order *order, int64_t tokens, int topk, int64_t experts, const int32_t *idx);
void moe_order_free(struct moe_order *order);

/* Writes the default combine out into combine_slot and combine_starts, for an implementation to
 * rearrange. 0, or -1 when memory is short. */
int moe_order_list_combine(struct moe_order *order, const int32_t *idx);

/* 0 when every route is met exactly once by its own expert and every slot once by its token, each
 * sum's first part starting its segment; else -1 and why. */
int moe_order_check(const struct moe_order *order, const int32_t *idx, char *error, int size);

/* Of a checked order: true when the combine (the weight gradients) are summed in the default order.
 */
bool moe_order_default_combine(const struct moe_order *order, const int32_t *idx);
bool moe_order_default_gradient(const struct moe_order *order);
