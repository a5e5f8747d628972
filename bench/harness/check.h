/* Comparing tensors: bit by bit, within derived bounds, and in ulp. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/arith.h"

struct check_difference {
    enum dtype type;
    int64_t bytes; /* how many differ */
    int64_t elements;
    int64_t first;                /* index of the first element that differs, -1 = none */
    uint32_t got_bits, want_bits; /* of it */
    int64_t ulp;                  /* between the two, INT64_MAX when one is NaN */
};

/* Byte compare of two tensors of `count` elements; every NaN is the one quiet NaN, +0 and -0
 * differ. True when equal. */
bool check_equal(enum dtype type, const void *got, const void *want, int64_t count,
    struct check_difference *difference);

/* Distance in ulp, element by element: the largest and the mean. NaN against NaN is 0, +0 against
 * -0 too; NaN against a number is INT64_MAX. */
struct check_ulp {
    int64_t max;
    double mean;
};
struct check_ulp check_ulp_distance(enum dtype type, const void *a, const void *b, int64_t count);

/* |got - want| <= bound for every element (NaN where want is NaN; infinities equal; an infinite
 * bound accepts anything). True when so, and *first is -1; else *first is the first element
 * outside. *worst is the largest |error| / bound of all elements, infinite where no finite ratio
 * exists. */
bool check_bounded(enum dtype type, const void *got, const double *want, const double *bound,
    int64_t count, int64_t *first, double *worst);

/* "dx[3,17]: got 3f800001 want 3f800000 (1 ulp); 12 of 4096 elements, 15 bytes differ" */
void check_describe(const char *tensor, int dims, const int64_t *shape,
    const struct check_difference *difference, char *text, int size);
