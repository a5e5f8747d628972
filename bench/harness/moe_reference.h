/* Reference results of the dispatch problem, kept while a program runs: several implementations are
 * checked on the same inputs, and what their orders share is computed once. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "reference/moe.h"

/* Owns every result it hands out. */
struct moe_reference;

/* Keeps at most `limit_bytes` of results, dropping those unused for longest; what the latest call
 * returned stays even where it exceeds the limit alone. NULL when memory is short. */
struct moe_reference *moe_reference_create(int64_t limit_bytes);
void moe_reference_free(struct moe_reference *cache);

/* The result of `problem` with sums in `order` (NULL = default); all but y is NULL unless
 * with_backward. The arrays in `result` are the cache's and good until its next call. Inputs are
 * recognised by content. 0, or -1 with `error` as ref_moe. */
int moe_reference_get(struct moe_reference *cache, const struct ref_moe_problem *problem,
    const struct moe_order *order, bool with_backward, struct ref_moe_result *result, char *error,
    int size);

/* The FP64 values and bounds, likewise. */
int moe_reference_get_f64(struct moe_reference *cache, const struct ref_moe_problem *problem,
    bool with_backward, struct ref_moe_f64 *result, char *error, int size);

/* Bytes of results kept now. */
int64_t moe_reference_kept_bytes(const struct moe_reference *cache);
