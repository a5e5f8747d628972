/* The comparer: what counts as equal, what it reports of a difference, and the bounded check. */
#include "bench/harness/check.h"
#include <math.h>
#include <string.h>
#include "tests/tap.h"

#define COUNT 12

static struct check_difference compare(enum dtype type, const void *got, const void *want)
{
    struct check_difference difference;
    bool equal = check_equal(type, got, want, COUNT, &difference);
    tap_ok(equal == (difference.first < 0) && equal == (difference.elements == 0) &&
               equal == (difference.bytes == 0),
        "verdict, first element and counts agree");
    return difference;
}

static bool describes(
    const struct check_difference *difference, int dims, const int64_t *shape, const char *want)
{
    char text[256];
    check_describe("dx", dims, shape, difference, text, sizeof text);
    return tap_ok(!strcmp(text, want), "%s", text);
}

/* Every bit of every element, flipped alone, is found and named. */
static void test_each_bit(enum dtype type)
{
    unsigned char got[COUNT * 4], want[COUNT * 4];
    int width = (int)dtype_bytes(type), missed = 0;
    for (int i = 0; i < COUNT; i++) {
        float value = 0.037f * (float)(i - 5); /* no flip of a bit makes a NaN of these */
        uint16_t rounded = f32_to_bf16(value);
        memcpy(
            want + i * width, type == DTYPE_F32 ? (void *)&value : (void *)&rounded, (size_t)width);
    }
    memcpy(got, want, sizeof got);
    for (int i = 0; i < COUNT; i++)
        for (int bit = 0; bit < 8 * width; bit++) {
            struct check_difference d;
            unsigned char *byte = &got[i * width + bit / 8];
            *byte ^= (unsigned char)(1u << bit % 8);
            bool equal = check_equal(type, got, want, COUNT, &d);
            missed += equal || d.first != i || d.elements != 1 || d.bytes != 1 ||
                      (d.got_bits ^ d.want_bits) != 1u << bit;
            *byte ^= (unsigned char)(1u << bit % 8);
        }
    tap_ok(missed == 0, "each of %d bits of %d elements is found and named", 8 * width, COUNT);
}

static void test_equal(void)
{
    float a[COUNT], b[COUNT];
    uint16_t c[COUNT], d[COUNT];
    const int64_t flat[] = {COUNT}, matrix[] = {3, 4}, cube[] = {2, 2, 3};
    for (int i = 0; i < COUNT; i++) {
        a[i] = b[i] = (float)i;
        c[i] = d[i] = f32_to_bf16((float)i);
    }
    struct check_difference difference = compare(DTYPE_F32, a, b);
    describes(&difference, 2, matrix, "dx: equal");
    a[7] = f32_from_bits(f32_bits(7.0f) + 1);
    a[9] = f32_from_bits(f32_bits(9.0f) ^ 0x00010100u);
    difference = compare(DTYPE_F32, a, b);
    describes(&difference, 2, matrix,
        "dx[1,3]: got 40e00001 want 40e00000 (1 ulp); 2 of 12 elements, 3 bytes differ");
    describes(&difference, 1, flat,
        "dx[7]: got 40e00001 want 40e00000 (1 ulp); 2 of 12 elements, 3 bytes differ");
    describes(&difference, 3, cube,
        "dx[1,0,1]: got 40e00001 want 40e00000 (1 ulp); 2 of 12 elements, 3 bytes differ");
    c[11] = (uint16_t)(d[11] - 2);
    difference = compare(DTYPE_BF16, c, d);
    describes(&difference, 2, matrix,
        "dx[2,3]: got 412e want 4130 (2 ulp); 1 of 12 elements, 1 bytes differ");
    char text[20];
    check_describe("dx", 2, matrix, &difference, text, sizeof text);
    tap_ok(!strcmp(text, "dx[2,3]: got 412e w"), "a description is cut to its room");
}

static void test_special_values(void)
{
    float a[COUNT] = {0.0f}, b[COUNT] = {0.0f};
    const int64_t flat[] = {COUNT};
    struct check_difference difference;
    a[3] = -0.0f;
    difference = compare(DTYPE_F32, a, b);
    describes(&difference, 1, flat,
        "dx[3]: got 80000000 want 00000000 (0 ulp); 1 of 12 elements, 1 bytes differ");
    a[3] = f32_from_bits(0x7fc00001u);
    b[3] = f32_from_bits(0xff812345u);
    difference = compare(DTYPE_F32, a, b);
    tap_ok(difference.first == -1, "NaN equals NaN whatever the payload, FP32");
    b[3] = INFINITY;
    difference = compare(DTYPE_F32, a, b);
    describes(&difference, 1, flat,
        "dx[3]: got 7fc00000 want 7f800000 (NaN); 1 of 12 elements, 1 bytes differ");
    uint16_t c[COUNT] = {0x7f81, 0xffff}, d[COUNT] = {0x7fc0, 0x7fc0};
    difference = compare(DTYPE_BF16, c, d);
    tap_ok(difference.first == -1, "NaN equals NaN whatever the payload, BF16");
    c[1] = 0x7f80;
    difference = compare(DTYPE_BF16, c, d);
    tap_ok(difference.first == 1 && difference.ulp == INT64_MAX, "infinity is no NaN, BF16");
}

static void test_ulp(void)
{
    float a[4] = {1.0f, -0.0f, f32_from_bits(1), 2.0f},
          b[4] = {1.0f, 0.0f, -f32_from_bits(2), 2.0f};
    struct check_ulp distance = check_ulp_distance(DTYPE_F32, a, b, 4);
    tap_ok(distance.max == 3 && distance.mean == 0.75, "ulp count across zero: %lld, mean %g",
        (long long)distance.max, distance.mean);
    a[3] = b[3] = NAN;
    tap_ok(check_ulp_distance(DTYPE_F32, a, b, 4).max == 3, "NaN against NaN is 0 ulp");
    b[3] = 1.0f;
    tap_ok(check_ulp_distance(DTYPE_F32, a, b, 4).max == INT64_MAX, "NaN against a number is none");
    uint16_t c[2] = {0x3f80, 0x3f80}, d[2] = {0x3f84, 0x3f80};
    distance = check_ulp_distance(DTYPE_BF16, c, d, 2);
    tap_ok(distance.max == 4 && distance.mean == 2.0, "ulp of BF16");
    distance = check_ulp_distance(DTYPE_BF16, c, d, 0);
    tap_ok(distance.max == 0 && distance.mean == 0.0, "nothing is at no distance");
}

static bool bounded(float got, double want, double bound, double *worst)
{
    float tensor[3] = {1.0f, got, 1.0f};
    double wants[3] = {1.0, want, 1.0}, bounds[3] = {0.0, bound, 0.0};
    int64_t first;
    bool inside = check_bounded(DTYPE_F32, tensor, wants, bounds, 3, &first, worst);
    tap_ok(first == (inside ? -1 : 1), "the element outside is named");
    return inside;
}

static void test_bounded(void)
{
    double worst;
    tap_ok(bounded(1.5f, 1.0, 1.0, &worst) && worst == 0.5, "inside: half of the bound");
    tap_ok(bounded(2.0f, 1.0, 1.0, &worst) && worst == 1.0, "on the bound");
    tap_ok(!bounded(2.5f, 1.0, 1.0, &worst) && worst == 1.5, "outside");
    tap_ok(!bounded(-2.5f, 1.0, 1.0, &worst) && worst == 3.5, "outside below");
    tap_ok(!bounded(1.5f, 1.0, 0.0, &worst) && worst == INFINITY, "a bound of 0 is exact");
    tap_ok(bounded(NAN, NAN, 0.0, &worst) && worst == 0.0, "NaN where NaN is wanted");
    tap_ok(!bounded(1.0f, NAN, 1.0, &worst), "a number where NaN is wanted");
    tap_ok(!bounded(NAN, 1.0, 1.0, &worst), "NaN where a number is wanted");
    tap_ok(!bounded(1.0f, 1.5, NAN, &worst), "a bound of NaN accepts no error");
    tap_ok(bounded(INFINITY, INFINITY, 0.0, &worst), "infinities of one sign");
    tap_ok(!bounded(-INFINITY, INFINITY, 1.0, &worst), "infinities of two signs");
    tap_ok(!bounded(3e38f, INFINITY, 1.0, &worst), "a number where infinity is wanted");
    tap_ok(!bounded(INFINITY, 3e38, 1.0, &worst), "infinity where a number is wanted");
    tap_ok(bounded(NAN, 1.0, INFINITY, &worst), "an infinite bound accepts anything");
    uint16_t tensor[2] = {f32_to_bf16(1.0f), f32_to_bf16(1.5f)};
    const double want[2] = {1.0, 1.0}, bound[2] = {0.0, 0.25};
    int64_t first;
    tap_ok(!check_bounded(DTYPE_BF16, tensor, want, bound, 2, &first, &worst) && first == 1 &&
               worst == 2.0,
        "BF16");
}

int main(void)
{
    test_each_bit(DTYPE_F32);
    test_each_bit(DTYPE_BF16);
    test_equal();
    test_special_values();
    test_ulp();
    test_bounded();
    return tap_done();
}
