/* The order in which an implementation of the vocabulary problem sums its gradients.
 *
 * The input gradient of batch b is a sum over all shards; the weight gradient of shard s is a sum
 * over all batches. Such a sum is written as a list of parts (shards or batches) in the order they
 * are met. A part with `starts` set begins a new segment: its own chain from +0. The segments are
 * then added from the left, in list order, each addition rounded. The default order is one segment
 * over ascending parts: one chain.
 *
 * Within a part the chain runs over ascending vocabulary rows of the shard (tokens of the batch).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define VOCAB_RANKS_MAX 1024

struct vocab_part {
    int32_t part;
    bool starts;
};

struct vocab_order {
    int ranks;
    struct vocab_part *dx; /* [batch][position] -> shard; ranks*ranks entries */
    struct vocab_part *dw; /* [shard][position] -> batch */
};

/* Allocates an order in the default order. 0, or -1 when memory is short. */
int vocab_order_init(struct vocab_order *order, int ranks);
void vocab_order_free(struct vocab_order *order);
bool vocab_order_equal(const struct vocab_order *a, const struct vocab_order *b);

/* True when the sums of dX (of dW) are the default one's: one chain over ascending parts. */
bool vocab_order_default_dx(const struct vocab_order *order);
bool vocab_order_default_dw(const struct vocab_order *order);

/* Writes why the order does not cover the problem exactly (a part missing, met twice, out of range,
 * or a first part that starts no segment). 0 when it does, else -1. */
int vocab_order_check(const struct vocab_order *order, char *error, int size);
