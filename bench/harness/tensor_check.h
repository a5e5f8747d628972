/* One output tensor of a case against what it should be: the gate's steps that all families share.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "bench/harness/result.h"
#include "kernels/arith.h"

struct checked_tensor {
    const char *name;
    enum dtype type;
    int dims;
    int64_t rows, columns;
    const void *got;
    bool declared; /* summed in a declared order, not in the default one */
    bool by_row;   /* as of struct case_tensor */
};

/* Adds each tensor to the result with its digest and the verdict `off`. 0, or -1 when memory is
 * short. */
int tensors_digest(const struct checked_tensor *tensors, int count, struct case_result *result);

/* Compares bytes of `rows` rows; row i of `got` and `want` is the tensor's row list[i] (NULL: i).
 * The verdict is `equal`, or a mismatch that names the element where it stands in the whole. */
void tensor_compare_rows(const struct checked_tensor *tensor, const void *got, const void *want,
    int64_t rows, const int64_t *list, enum verdict equal, struct case_tensor *out);

/* The whole tensor. */
void tensor_compare(const struct checked_tensor *tensor, const void *want, enum verdict equal,
    struct case_tensor *out);

/* Notes the distance in ulp from the default order's values. */
void tensor_note_distance(
    const struct checked_tensor *tensor, const void *defaults, struct case_tensor *out);

/* A result that equals the reference must also be near the truth, since a mirrored mistake would
 * not be: outside its FP64 bounds it is a mismatch. */
void tensor_demand_bounds(const struct checked_tensor *tensor, const double *value,
    const double *bound, struct case_tensor *out);

/* Copies the rows listed. */
void tensor_gather_rows(
    const struct checked_tensor *tensor, const int64_t *list, int64_t count, void *out);

/* A sample of [0, total): the first, the last and random others, ascending, distinct. `out` has
 * room for min(count, total). Returns how many. */
int64_t tensor_sample(int64_t *out, int64_t count, int64_t total, uint32_t stream);
