/* Comparing tensors.
 *
 * A comparison that passes must mean equal bits, so patterns are compared, never values: +0 and -0
 * differ. The one exception is NaN, whose payload depends on the hardware that made it
 * (docs/ARITHMETIC.md, rule 12): every NaN counts as the quiet one. */
#include "bench/harness/check.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* The bits of an element, NaN made one. */
static uint32_t element_bits(enum dtype type, const void *tensor, int64_t index)
{
    if (type == DTYPE_BF16) {
        uint16_t bits = ((const uint16_t *)tensor)[index];
        return (bits & 0x7fffu) > 0x7f80u ? 0x7fc0u : bits;
    }
    uint32_t bits = f32_bits(((const float *)tensor)[index]);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

static bool is_nan(enum dtype type, uint32_t bits)
{
    return bits == (type == DTYPE_BF16 ? 0x7fc0u : 0x7fc00000u);
}

/* Neighbouring numbers get neighbouring integers; both zeros get 0. */
static int64_t ordered(enum dtype type, uint32_t bits)
{
    uint32_t sign = type == DTYPE_BF16 ? 0x8000u : 0x80000000u;
    return bits & sign ? -(int64_t)(bits & (sign - 1)) : (int64_t)bits;
}

static int64_t ulp_between(enum dtype type, uint32_t a, uint32_t b)
{
    if (is_nan(type, a) || is_nan(type, b))
        return a == b ? 0 : INT64_MAX;
    int64_t distance = ordered(type, a) - ordered(type, b);
    return distance < 0 ? -distance : distance;
}

bool check_equal(enum dtype type, const void *got, const void *want, int64_t count,
    struct check_difference *difference)
{
    struct check_difference d = {.type = type, .first = -1};
    for (int64_t i = 0; i < count; i++) {
        uint32_t a = element_bits(type, got, i), b = element_bits(type, want, i);
        if (a == b)
            continue;
        for (int byte = 0; byte < 4; byte++)
            d.bytes += ((a ^ b) >> (8 * byte) & 0xffu) != 0;
        d.elements++;
        if (d.first < 0) {
            d.first = i;
            d.got_bits = a;
            d.want_bits = b;
            d.ulp = ulp_between(type, a, b);
        }
    }
    *difference = d;
    return d.first < 0;
}

struct check_ulp check_ulp_distance(enum dtype type, const void *a, const void *b, int64_t count)
{
    struct check_ulp distance = {0, 0.0};
    for (int64_t i = 0; i < count; i++) {
        int64_t ulp = ulp_between(type, element_bits(type, a, i), element_bits(type, b, i));
        distance.max = ulp > distance.max ? ulp : distance.max;
        distance.mean += (double)ulp;
    }
    if (count > 0)
        distance.mean /= (double)count;
    return distance;
}

/* |got - want| / bound; at most 1 is inside. */
static double share_of_bound(double got, double want, double bound)
{
    if (isinf(bound))
        return 0.0;
    if (isnan(want))
        return isnan(got) ? 0.0 : INFINITY;
    if (got == want)
        return 0.0;
    double error = fabs(got - want);
    if (isfinite(error) && bound > 0.0)
        return error / bound;
    return INFINITY;
}

bool check_bounded(enum dtype type, const void *got, const double *want, const double *bound,
    int64_t count, int64_t *first, double *worst)
{
    *first = -1;
    *worst = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double value = type == DTYPE_BF16 ? (double)bf16_to_f32(((const uint16_t *)got)[i])
                                          : (double)((const float *)got)[i];
        double share = share_of_bound(value, want[i], bound[i]);
        if (share > *worst)
            *worst = share;
        if (share > 1.0 && *first < 0)
            *first = i;
    }
    return *first < 0;
}

/* "[3,17]" of a flat index. */
static void print_coordinates(
    char *text, size_t size, int dims, const int64_t *shape, int64_t index)
{
    int64_t inner = 1;
    for (int d = 1; d < dims; d++)
        inner *= shape[d];
    size_t length = 0;
    for (int d = 0; d < dims && length < size; d++) {
        length += (size_t)snprintf(
            text + length, size - length, "%s%" PRId64, d ? "," : "[", index / inner);
        index %= inner;
        if (d + 1 < dims)
            inner /= shape[d + 1];
    }
    if (length < size)
        snprintf(text + length, size - length, "]");
}

void check_describe(const char *tensor, int dims, const int64_t *shape,
    const struct check_difference *difference, char *text, int size)
{
    if (difference->first < 0) {
        snprintf(text, (size_t)size, "%s: equal", tensor);
        return;
    }
    char coordinates[160], distance[32];
    int64_t count = 1;
    for (int d = 0; d < dims; d++)
        count *= shape[d];
    print_coordinates(coordinates, sizeof coordinates, dims, shape, difference->first);
    if (difference->ulp == INT64_MAX)
        snprintf(distance, sizeof distance, "NaN");
    else
        snprintf(distance, sizeof distance, "%" PRId64 " ulp", difference->ulp);
    int digits = (int)dtype_bytes(difference->type) * 2;
    snprintf(text, (size_t)size,
        "%s%s: got %0*" PRIx32 " want %0*" PRIx32 " (%s); %" PRId64 " of %" PRId64
        " elements, %" PRId64 " bytes differ",
        tensor, coordinates, digits, difference->got_bits, digits, difference->want_bits, distance,
        difference->elements, count, difference->bytes);
}
