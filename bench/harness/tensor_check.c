/* The steps of the gate that every family's check is made of. */
#include "bench/harness/tensor_check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/check.h"
#include "probe/digest.h"
#include "probe/seed.h"

/* The sample's random choice does not depend on the inputs' seed. */
#define SAMPLE_SEED 20260914

int tensors_digest(const struct checked_tensor *tensors, int count, struct case_result *result)
{
    for (int i = 0; i < count; i++) {
        const struct checked_tensor *t = &tensors[i];
        struct case_tensor *out = case_result_tensor(result, t->name);
        struct digest *d = digest_create();
        if (!out || !d)
            return -1;
        if (t->type == DTYPE_BF16)
            digest_bf16(d, t->got, t->rows * t->columns);
        else
            digest_f32(d, t->got, t->rows * t->columns);
        digest_finish(d, out->digest);
        out->verdict = VERDICT_OFF;
        out->declared_order = t->declared;
        out->by_row = t->by_row;
    }
    return 0;
}

void tensor_compare_rows(const struct checked_tensor *t, const void *got, const void *want,
    int64_t rows, const int64_t *list, enum verdict equal, struct case_tensor *out)
{
    struct check_difference difference;
    int64_t shape[2] = {t->rows, t->columns};
    if (check_equal(t->type, got, want, rows * t->columns, &difference)) {
        /* Of a tensor without values nothing was compared. */
        out->verdict = rows > 0 && t->columns > 0 ? equal : VERDICT_OFF;
        return;
    }
    out->verdict = VERDICT_MISMATCH;
    if (list)
        difference.first =
            list[difference.first / t->columns] * t->columns + difference.first % t->columns;
    check_describe(t->name, t->dims, shape, &difference, out->fault, sizeof out->fault);
}

void tensor_compare(
    const struct checked_tensor *t, const void *want, enum verdict equal, struct case_tensor *out)
{
    tensor_compare_rows(t, t->got, want, t->rows, NULL, equal, out);
}

void tensor_note_distance(
    const struct checked_tensor *t, const void *defaults, struct case_tensor *out)
{
    struct check_ulp ulp = check_ulp_distance(t->type, t->got, defaults, t->rows * t->columns);
    out->has_ulp = true;
    out->ulp_max = ulp.max;
    out->ulp_mean = ulp.mean;
}

void tensor_demand_bounds(const struct checked_tensor *t, const double *value, const double *bound,
    struct case_tensor *out)
{
    int64_t first;
    double worst;
    if (out->verdict == VERDICT_MISMATCH ||
        check_bounded(t->type, t->got, value, bound, t->rows * t->columns, &first, &worst))
        return;
    out->verdict = VERDICT_MISMATCH;
    snprintf(out->fault, sizeof out->fault,
        "%s: element %lld is %g times its bound away from the FP64 reference", t->name,
        (long long)first, worst);
}

void tensor_gather_rows(
    const struct checked_tensor *t, const int64_t *list, int64_t count, void *out)
{
    size_t bytes = (size_t)(t->columns * dtype_bytes(t->type));
    for (int64_t i = 0; i < count; i++)
        memcpy(
            (char *)out + (size_t)i * bytes, (const char *)t->got + (size_t)list[i] * bytes, bytes);
}

static int compare_index(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

int64_t tensor_sample(int64_t *out, int64_t count, int64_t total, uint32_t stream)
{
    int64_t kept = 0, wanted = count < total ? count : total;
    for (int64_t i = 0; i < wanted; i++)
        out[i] = wanted == total ? i
                 : i == 0        ? 0
                 : i == 1        ? total - 1
                                 : seed_index(SAMPLE_SEED, stream, i, total);
    qsort(out, (size_t)wanted, sizeof *out, compare_index);
    for (int64_t i = 0; i < wanted; i++)
        if (!kept || out[kept - 1] != out[i])
            out[kept++] = out[i];
    return kept;
}
