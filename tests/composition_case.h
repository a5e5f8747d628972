/* Compositions of a tiny model against the standard step in their declared orders: for the test of
 * a few steps and the slow one of fifty. */
#pragma once
#include <stdint.h>
#include "tests/model_case.h"

/* An implementation of each family, by number; a vocabulary choice is one of its table below, since
 * ring-dtp has two orders. */
struct composition {
    int dispatch, vocab, checkpoint, optimizer;
};

/* A layout, and what was run of it. */
struct compositions {
    struct model_case base; /* the standard step */
    int dispatchers, vocabs, checkpoints, optimizers;
    struct model_outcome standard;  /* in its own orders */
    struct model_outcome *in_order; /* [dispatchers, vocabs]: in these ones' orders; owned */
    bool *ran;
};

/* P ranks in the degrees of D, E_p, P. A long run has longer sequences and a wider model: enough
 * sums that are rounded to BF16 for another order of slots to be seen in some of them. 0, or -1
 * when memory is short; close follows in any case. */
int compositions_open(
    struct compositions *all, int ranks, int sequence, int experts, int vocab, int steps);
void compositions_close(struct compositions *all);

int64_t compositions_count(const struct compositions *all);
struct composition compositions_at(const struct compositions *all, int64_t index);

/* One TAP line: the composition's losses and master weights are, bit for bit, those of the standard
 * step in its orders. */
void compositions_check(struct compositions *all, struct composition chosen);

/* One TAP line for these two orders: the standard step differs from itself in them only where an
 * order differs, whose first tensor a note names, and stays near. */
void compositions_check_own(struct compositions *all, int dispatch, int vocab);

/* Every implementation of every family with the standard ones beside it, both orders of ring-dtp,
 * and `mixed` compositions drawn by seed. */
void compositions_check_each(struct compositions *all, int mixed, uint64_t seed);
