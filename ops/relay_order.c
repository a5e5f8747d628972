/* The ring's orders, in the lists of ops/moe_order.h. A schedule gives its own rule of who meets
 * whom and when; a rule that meets something twice or never makes lists that moe_order_check
 * refuses. */
#include "ops/relay_order.h"
#include <stdlib.h>
#include <string.h>
#include "ops/relay_memory.h"

/* ---- Y and dX -------------------------------------------------------------------------------- */

/* One token's slots; `turn_of` [k] by slot, -1 for an empty one. Lists at most k. */
static void order_token(int topk, int turns, const int *turn_of, int8_t *slot, bool *starts)
{
    int at = 0;
    for (int turn = 0; turn < turns && at < topk; turn++)
        for (int j = 0; j < topk && at < topk; j++)
            if (turn_of[j] == turn) {
                slot[at] = (int8_t)j;
                starts[at] = at == 0;
                at++;
            }
    for (int j = 0; j < topk && at < topk; j++)
        if (turn_of[j] < 0) {
            slot[at] = (int8_t)j;
            starts[at++] = false;
        }
}

int relay_order_combine(const struct moe_shape *shape, const int32_t *const *idx, int turns,
    int (*turn)(const struct moe_shape *shape, int rank, int64_t expert), struct moe_order *out)
{
    size_t slots = (size_t)(out->tokens * out->topk);
    int8_t *slot = calloc(slots + 1, sizeof *slot);
    bool *starts = calloc(slots + 1, sizeof *starts);
    int64_t at = 0;
    if (!slot || !starts) {
        free(slot);
        free(starts);
        return -1;
    }
    for (int r = 0; r < shape->ranks; r++)
        for (int64_t t = 0; t < shape->tokens[r]; t++, at += shape->topk) {
            int turn_of[MOE_TOPK_MAX];
            for (int j = 0; j < shape->topk; j++) {
                int32_t expert = idx[r][t * shape->topk + j];
                turn_of[j] = expert == MOE_EMPTY ? -1 : turn(shape, r, expert);
            }
            order_token(shape->topk, turns, turn_of, slot + at, starts + at);
        }
    free(out->combine_slot);
    free(out->combine_starts);
    out->combine_slot = slot;
    out->combine_starts = starts;
    return 0;
}

/* ---- weight gradients ------------------------------------------------------------------------ */

/* Lists one expert's routes, [first, end) of the default order in `routes`, rank by rank. */
static void order_expert(const struct moe_shape *shape, const int64_t *rank_route, int owner,
    int (*source)(const struct moe_shape *shape, int owner, int i), bool segments,
    const int64_t *routes, struct moe_order *out, int64_t first, int64_t end)
{
    int64_t at = first;
    for (int i = 0; i < shape->ranks; i++) {
        int rank = source(shape, owner, i);
        int64_t from = first;
        while (from < end && routes[from] < rank_route[rank])
            from++;
        for (bool begins = true; from < end && routes[from] < rank_route[rank + 1] && at < end;
             from++) {
            out->gradient_route[at] = routes[from];
            out->gradient_starts[at] = at == first || (segments && begins);
            begins = false;
            at++;
        }
    }
}

int relay_order_gradients(const struct moe_shape *shape,
    int (*source)(const struct moe_shape *shape, int owner, int i), bool segments,
    struct moe_order *out)
{
    int64_t total = out->expert_first[out->experts];
    int64_t *routes = malloc((size_t)(total + 1) * sizeof *routes);
    int64_t *rank_route = calloc((size_t)shape->ranks + 1, sizeof *rank_route);
    if (!routes || !rank_route) {
        free(routes);
        free(rank_route);
        return -1;
    }
    memcpy(routes, out->gradient_route, (size_t)total * sizeof *routes);
    for (int r = 0; r < shape->ranks; r++)
        rank_route[r + 1] = rank_route[r] + shape->tokens[r] * shape->topk;
    for (int64_t e = 0; e < out->experts; e++)
        order_expert(shape, rank_route, moe_owner(shape, e), source, segments, routes, out,
            out->expert_first[e], out->expert_first[e + 1]);
    free(routes);
    free(rank_route);
    return 0;
}

/* ---- the two modes --------------------------------------------------------------------------- */

/* At which hop the rank meets the expert; after all hops = never. */
static int hop_of_expert(const struct moe_shape *shape, int rank, int64_t expert)
{
    for (int hop = 0; hop < shape->ranks; hop++)
        if (relay_held(rank, hop, shape->ranks) == moe_owner(shape, expert))
            return hop;
    return shape->ranks;
}

/* The rank that holds the owner's partition at hop i. */
static int rank_at(const struct moe_shape *shape, int owner, int i)
{
    for (int rank = 0; rank < shape->ranks; rank++)
        if (relay_held(rank, i, shape->ranks) == owner)
            return rank;
    return owner;
}

int relay_expert_order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    (void)options;
    return relay_order_combine(shape, idx, shape->ranks, hop_of_expert, out) ||
                   relay_order_gradients(shape, rank_at, true, out)
               ? -1
               : 0;
}

/* At which hop the rank's batch is with the expert's owner; after all hops = never. */
static int hop_of_batch(const struct moe_shape *shape, int rank, int64_t expert)
{
    for (int hop = 0; hop < shape->ranks; hop++)
        if (relay_held(moe_owner(shape, expert), hop, shape->ranks) == rank)
            return hop;
    return shape->ranks;
}

static int batch_at(const struct moe_shape *shape, int owner, int i)
{
    return relay_held(owner, i, shape->ranks);
}

int relay_token_order(const struct moe_shape *shape, const struct moe_options *options,
    const int32_t *const *idx, struct moe_order *out)
{
    (void)options;
    return relay_order_combine(shape, idx, shape->ranks, hop_of_batch, out) ||
                   relay_order_gradients(shape, batch_at, false, out)
               ? -1
               : 0;
}
