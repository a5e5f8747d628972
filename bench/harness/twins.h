/* On the fast path no reference gives the bits, but the path's own promise does: a row does not
 * depend on which rows share a product. So schedules that cut the same rows otherwise (chunks,
 * tiles, ranks in turn) have the same bits in every tensor whose elements are one row's
 * (case_tensor.by_row), and cases of one command that ran at one shape are held to that. */
#pragma once
#include "bench/harness/options.h"
#include "bench/harness/result.h"

struct twin;

struct twins {
    struct twin *list;
    int count, capacity;
};

/* Compares the digests of the current case with those of the first one at its shape, or keeps them
 * as such. A tensor that differs becomes a mismatch that names the other. Cases with products that
 * took another kernel because their rows are no multiples of 16 bytes are left alone. 0, or -1 when
 * memory is short. */
int twins_compare(struct twins *twins, const struct options *options, const char *impl,
    struct case_result *result);
void twins_free(struct twins *twins);
