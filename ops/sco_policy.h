/* Which checkpoint boundaries a host budget moves off the device, and what they take there: a pure
 * function of sizes. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* How a pinned block's size follows from what it holds. A caching host allocator rounds to the next
 * power of two. */
enum pinned_rounding { PINNED_EXACT, PINNED_POW2 };

struct sco_budget {
    int64_t bytes;              /* of boundaries, per rank; < 0 = unlimited */
    int64_t pinned_limit_bytes; /* of pinned memory that there is; 0 = no limit */
    enum pinned_rounding rounding;
};

struct sco_choice {
    int64_t count;         /* |S| */
    int64_t logical_bytes; /* of the boundaries themselves: what the budget limits */
    int64_t pinned_bytes;  /* of the blocks that hold them */
};

/* Walks the boundaries in forward order and chooses each that still fits; one that does not stays
 * on the device, and a later, smaller one may fit again. Nothing is an error. chosen [boundaries]
 * may be NULL. */
struct sco_choice sco_choose(const int64_t *boundary_bytes, int64_t boundaries,
    const struct sco_budget *budget, bool *chosen);

/* What a pinned block for `bytes` takes. */
int64_t sco_pinned_bytes(int64_t bytes, enum pinned_rounding rounding);
