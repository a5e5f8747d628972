#include "ops/moe_order.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `count` elements, at least one. */
static void *room(int64_t count, size_t element_bytes)
{
    return calloc((size_t)(count > 0 ? count : 1), element_bytes);
}

int moe_order_init(
    struct moe_order *order, int64_t tokens, int topk, int64_t experts, const int32_t *idx)
{
    int64_t slots = tokens * topk, routes = 0;
    *order = (struct moe_order){.tokens = tokens, .topk = topk, .experts = experts};
    for (int64_t i = 0; i < slots; i++)
        routes += idx[i] != MOE_EMPTY;
    order->expert_first = room(experts + 1, sizeof *order->expert_first);
    order->gradient_route = room(routes, sizeof *order->gradient_route);
    order->gradient_starts = room(routes, sizeof *order->gradient_starts);
    int64_t *next = room(experts, sizeof *next);
    if (!order->expert_first || !order->gradient_route || !order->gradient_starts || !next) {
        free(next);
        moe_order_free(order);
        return -1;
    }
    for (int64_t i = 0; i < slots; i++)
        if (idx[i] != MOE_EMPTY)
            order->expert_first[idx[i] + 1]++;
    for (int64_t e = 0; e < experts; e++) {
        next[e] = order->expert_first[e];
        order->expert_first[e + 1] += next[e];
        if (order->expert_first[e + 1] > next[e])
            order->gradient_starts[next[e]] = true;
    }
    for (int64_t i = 0; i < slots; i++)
        if (idx[i] != MOE_EMPTY)
            order->gradient_route[next[idx[i]]++] = i;
    free(next);
    return 0;
}

void moe_order_free(struct moe_order *order)
{
    free(order->combine_slot);
    free(order->combine_starts);
    free(order->expert_first);
    free(order->gradient_route);
    free(order->gradient_starts);
    *order = (struct moe_order){0};
}

int moe_order_list_combine(struct moe_order *order, const int32_t *idx)
{
    int64_t slots = order->tokens * order->topk;
    int8_t *slot = room(slots, sizeof *slot);
    bool *starts = room(slots, sizeof *starts);
    if (!slot || !starts) {
        free(slot);
        free(starts);
        return -1;
    }
    for (int64_t n = 0; n < order->tokens; n++) {
        bool any = false;
        for (int s = 0; s < order->topk; s++) {
            int64_t at = n * order->topk + s;
            slot[at] = (int8_t)s;
            starts[at] = !any && idx[at] != MOE_EMPTY;
            any = any || idx[at] != MOE_EMPTY;
        }
    }
    free(order->combine_slot);
    free(order->combine_starts);
    order->combine_slot = slot;
    order->combine_starts = starts;
    return 0;
}

/* ---- checking ----------------------------------------------------------------------------- */

/* One token's slots: each once; the first route starts a group and an empty slot starts none. */
static int check_token(
    const struct moe_order *order, const int32_t *idx, int64_t token, char *error, int size)
{
    bool met[MOE_TOPK_MAX] = {false}, any = false;
    for (int i = 0; i < order->topk; i++) {
        int64_t at = token * order->topk + i;
        int slot = order->combine_slot[at];
        const char *fault = NULL;
        if (slot < 0 || slot >= order->topk) {
            snprintf(error, (size_t)size,
                "combine of token %" PRId64 ": position %d names slot %d, allowed 0..%d", token, i,
                slot, order->topk - 1);
            return -1;
        }
        bool empty = idx[token * order->topk + slot] == MOE_EMPTY;
        if (met[slot])
            fault = "is met twice";
        else if (empty && order->combine_starts[at])
            fault = "is empty and starts a group";
        else if (!empty && !any && !order->combine_starts[at])
            fault = "comes first and starts no group";
        if (fault) {
            snprintf(error, (size_t)size, "combine of token %" PRId64 ": slot %d %s (position %d)",
                token, slot, fault, i);
            return -1;
        }
        met[slot] = true;
        any = any || !empty;
    }
    return 0;
}

/* One expert's routes: each its own, none twice over all experts, the first starting a segment. */
static int check_expert(const struct moe_order *order, const int32_t *idx, int64_t expert,
    bool *met, char *error, int size)
{
    int64_t first = order->expert_first[expert], end = order->expert_first[expert + 1];
    for (int64_t i = first; i < end; i++) {
        int64_t route = order->gradient_route[i];
        const char *fault = NULL;
        if (route < 0 || route >= order->tokens * order->topk) {
            snprintf(error, (size_t)size,
                "gradient of expert %" PRId64 ": route %" PRId64 ", allowed 0..%" PRId64, expert,
                route, order->tokens * order->topk - 1);
            return -1;
        }
        if (idx[route] != expert)
            fault = "is not routed to it";
        else if (met[route])
            fault = "is met twice";
        else if (i == first && !order->gradient_starts[i])
            fault = "comes first and starts no segment";
        if (fault) {
            snprintf(error, (size_t)size,
                "gradient of expert %" PRId64 ": token %" PRId64 " slot %d %s (position %" PRId64
                ")",
                expert, route / order->topk, (int)(route % order->topk), fault, i - first);
            return -1;
        }
        met[route] = true;
    }
    return 0;
}

/* Lists of the right length whose routes are their own and met once leave none out. */
static int check_length(
    const struct moe_order *order, const int32_t *idx, int64_t *counts, char *error, int size)
{
    for (int64_t i = 0; i < order->tokens * order->topk; i++) {
        if (idx[i] == MOE_EMPTY)
            continue;
        if (idx[i] < 0 || idx[i] >= order->experts) {
            snprintf(error, (size_t)size,
                "token %" PRId64 " slot %d names expert %d, allowed 0..%" PRId64 " or %d",
                i / order->topk, (int)(i % order->topk), (int)idx[i], order->experts - 1,
                MOE_EMPTY);
            return -1;
        }
        counts[idx[i]]++;
    }
    for (int64_t e = 0; e < order->experts; e++) {
        int64_t listed = order->expert_first[e + 1] - order->expert_first[e];
        if (order->expert_first[0] != 0 || listed != counts[e]) {
            snprintf(error, (size_t)size,
                "gradient of expert %" PRId64 ": %" PRId64 " routes listed, %" PRId64
                " routed to it",
                e, listed, counts[e]);
            return -1;
        }
    }
    return 0;
}

int moe_order_check(const struct moe_order *order, const int32_t *idx, char *error, int size)
{
    if (order->topk < 1 || order->topk > MOE_TOPK_MAX || order->tokens < 0 || order->experts < 1) {
        snprintf(error, (size_t)size,
            "an order over %" PRId64 " tokens of %d slots and %" PRId64
            " experts: allowed 0 tokens and more, 1..%d slots, 1 expert and more",
            order->tokens, order->topk, order->experts, MOE_TOPK_MAX);
        return -1;
    }
    if (!order->combine_slot != !order->combine_starts) {
        snprintf(error, (size_t)size, "a combine order lists slots or groups alone");
        return -1;
    }
    int64_t *counts = room(order->experts, sizeof *counts);
    bool *met = room(order->tokens * order->topk, sizeof *met);
    int status = counts && met ? 0 : -1;
    if (status)
        snprintf(error, (size_t)size, "no memory to check an order");
    else
        status = check_length(order, idx, counts, error, size);
    for (int64_t e = 0; !status && e < order->experts; e++)
        status = check_expert(order, idx, e, met, error, size);
    for (int64_t n = 0; !status && order->combine_slot && n < order->tokens; n++)
        status = check_token(order, idx, n, error, size);
    free(counts);
    free(met);
    return status;
}

/* ---- default or not ----------------------------------------------------------------------- */

/* Where empty slots stand in the list makes no difference. */
bool moe_order_default_combine(const struct moe_order *order, const int32_t *idx)
{
    if (!order->combine_slot)
        return true;
    for (int64_t n = 0; n < order->tokens; n++) {
        int last = -1;
        for (int i = 0; i < order->topk; i++) {
            int64_t at = n * order->topk + i;
            int slot = order->combine_slot[at];
            if (idx[n * order->topk + slot] == MOE_EMPTY)
                continue;
            if (slot < last || (last >= 0 && order->combine_starts[at]))
                return false;
            last = slot;
        }
    }
    return true;
}

bool moe_order_default_gradient(const struct moe_order *order)
{
    for (int64_t e = 0; e < order->experts; e++)
        for (int64_t i = order->expert_first[e] + 1; i < order->expert_first[e + 1]; i++)
            if (order->gradient_starts[i] ||
                order->gradient_route[i] < order->gradient_route[i - 1])
                return false;
    return true;
}
