/* Reference results of the vocabulary problem, kept while a program runs: several implementations
 * are checked on the same inputs, and what their orders share is computed once. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "reference/vocab.h"

/* Owns every result it hands out. */
struct vocab_reference;

/* Keeps at most `limit_bytes` of results, dropping those unused for longest; what the latest call
 * returned stays even where it exceeds the limit alone. NULL when memory is short. */
struct vocab_reference *vocab_reference_create(int64_t limit_bytes);
void vocab_reference_free(struct vocab_reference *cache);

/* The result of `problem` with gradients summed in `order` (NULL = default); dx and dw are NULL
 * unless with_backward. The arrays in `result` are the cache's and good until its next call. Inputs
 * are recognised by content. 0, or -1 with `error` as ref_vocab. */
int vocab_reference_get(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    const struct vocab_order *order, bool with_backward, struct ref_vocab_result *result,
    char *error, int size);

/* The FP64 values and bounds, likewise; dx and dw are NULL unless with_backward. */
int vocab_reference_get_f64(struct vocab_reference *cache, const struct ref_vocab_problem *problem,
    bool with_backward, struct ref_vocab_f64 *result, char *error, int size);

/* Bytes of results kept now. */
int64_t vocab_reference_kept_bytes(const struct vocab_reference *cache);
