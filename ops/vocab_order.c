#include "ops/vocab_order.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int vocab_order_init(struct vocab_order *order, int ranks)
{
    size_t count = (size_t)ranks * (size_t)ranks;
    order->ranks = ranks;
    order->dx = malloc(count * sizeof *order->dx);
    order->dw = malloc(count * sizeof *order->dw);
    if (!order->dx || !order->dw) {
        vocab_order_free(order);
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        int position = (int)(i % (size_t)ranks);
        order->dx[i] = (struct vocab_part){.part = position, .starts = position == 0};
        order->dw[i] = order->dx[i];
    }
    return 0;
}

void vocab_order_free(struct vocab_order *order)
{
    free(order->dx);
    free(order->dw);
    order->dx = order->dw = NULL;
}

static bool lists_equal(const struct vocab_part *a, const struct vocab_part *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (a[i].part != b[i].part || a[i].starts != b[i].starts)
            return false;
    return true;
}

bool vocab_order_equal(const struct vocab_order *a, const struct vocab_order *b)
{
    size_t count = (size_t)a->ranks * (size_t)a->ranks;
    return a->ranks == b->ranks && lists_equal(a->dx, b->dx, count) &&
           lists_equal(a->dw, b->dw, count);
}

static bool list_default(const struct vocab_part *list, int ranks)
{
    for (int i = 0; i < ranks * ranks; i++)
        if (list[i].part != i % ranks || list[i].starts != (i % ranks == 0))
            return false;
    return true;
}

bool vocab_order_default_dx(const struct vocab_order *order)
{
    return list_default(order->dx, order->ranks);
}

bool vocab_order_default_dw(const struct vocab_order *order)
{
    return list_default(order->dw, order->ranks);
}

/* One sum over `ranks` parts: each exactly once, the first of them starting a segment. */
static int check_list(const struct vocab_part *list, int ranks, const char *tensor, int owner,
    const char *kind, char *error, int size)
{
    unsigned char met[VOCAB_RANKS_MAX] = {0};
    for (int i = 0; i < ranks; i++) {
        int part = list[i].part;
        if (part < 0 || part >= ranks) {
            snprintf(error, (size_t)size, "%s of %d: position %d names %s %d, allowed 0..%d",
                tensor, owner, i, kind, part, ranks - 1);
            return -1;
        }
        if (met[part]) {
            snprintf(error, (size_t)size, "%s of %d: %s %d is met twice (again at position %d)",
                tensor, owner, kind, part, i);
            return -1;
        }
        met[part] = 1;
    }
    if (!list[0].starts) {
        snprintf(error, (size_t)size, "%s of %d: the first part starts no segment", tensor, owner);
        return -1;
    }
    return 0;
}

int vocab_order_check(const struct vocab_order *order, char *error, int size)
{
    if (order->ranks < 1 || order->ranks > VOCAB_RANKS_MAX) {
        snprintf(error, (size_t)size, "order over %d ranks, allowed 1..%d", order->ranks,
            VOCAB_RANKS_MAX);
        return -1;
    }
    for (int i = 0; i < order->ranks; i++) {
        size_t at = (size_t)i * (size_t)order->ranks;
        if (check_list(order->dx + at, order->ranks, "dX", i, "shard", error, size) ||
            check_list(order->dw + at, order->ranks, "dW", i, "batch", error, size))
            return -1;
    }
    return 0;
}
