/* Digests: equal to the plain hash of the bytes, blind to cuts and NaN payloads, and to nothing
 * else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "probe/digest.h"
#include "probe/seed.h"
#include "tests/tap.h"

enum { COUNT = 10007 }; /* several blocks and a rest */

static void plain_hash(const void *bytes, size_t count, char text[DIGEST_TEXT])
{
    XXH128_hash_t hash = XXH3_128bits(bytes, count);
    snprintf(text, DIGEST_TEXT, "%016llx%016llx", (unsigned long long)hash.high64,
        (unsigned long long)hash.low64);
}

/* The digest of `values` handed over in pieces of `piece` elements. */
static void whole_f32(const float *values, int64_t count, int64_t piece, char text[DIGEST_TEXT])
{
    struct digest *d = digest_create();
    for (int64_t at = 0; at < count; at += piece)
        digest_f32(d, values + at, count - at < piece ? count - at : piece);
    digest_finish(d, text);
}

static void whole_bf16(const uint16_t *values, int64_t count, int64_t piece, char text[DIGEST_TEXT])
{
    struct digest *d = digest_create();
    for (int64_t at = 0; at < count; at += piece)
        digest_bf16(d, values + at, count - at < piece ? count - at : piece);
    digest_finish(d, text);
}

static void test_pinned(void)
{
    char text[DIGEST_TEXT];
    struct digest *d = digest_create();
    digest_f32(d, NULL, 0);
    digest_bf16(d, NULL, 0);
    digest_finish(d, text);
    tap_ok(!strcmp(text, "99aa06d3014798d86001c324468d497f"), "the empty tensor: %s", text);
}

static void test_f32(const float *values)
{
    static const int64_t pieces[] = {1, 3, 1000, 2047, 2048, 2049, COUNT};
    char want[DIGEST_TEXT], got[DIGEST_TEXT];
    plain_hash(values, COUNT * sizeof *values, want);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        whole_f32(values, COUNT, pieces[i], got);
        tap_ok(!strcmp(got, want), "FP32 in pieces of %lld: %s", (long long)pieces[i], got);
    }
}

static void test_bf16(const uint16_t *values)
{
    static const int64_t pieces[] = {1, 3, 4095, 4096, 4097, COUNT};
    char want[DIGEST_TEXT], got[DIGEST_TEXT];
    plain_hash(values, COUNT * sizeof *values, want);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        whole_bf16(values, COUNT, pieces[i], got);
        tap_ok(!strcmp(got, want), "BF16 in pieces of %lld: %s", (long long)pieces[i], got);
    }
}

static float f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool same_f32(uint32_t a, uint32_t b)
{
    char text_a[DIGEST_TEXT], text_b[DIGEST_TEXT];
    float value_a = f32_of(a), value_b = f32_of(b);
    whole_f32(&value_a, 1, 1, text_a);
    whole_f32(&value_b, 1, 1, text_b);
    return !strcmp(text_a, text_b);
}

static bool same_bf16(uint16_t a, uint16_t b)
{
    char text_a[DIGEST_TEXT], text_b[DIGEST_TEXT];
    whole_bf16(&a, 1, 1, text_a);
    whole_bf16(&b, 1, 1, text_b);
    return !strcmp(text_a, text_b);
}

static void test_nan(void)
{
    static const uint32_t nans[] = {
        0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc12345};
    bool equal = true, equal_bf16 = true;
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        equal &= same_f32(nans[i], 0x7fc00000);
        uint16_t nan = (uint16_t)((nans[i] >> 16) | 1);
        equal_bf16 &= same_bf16(nan, 0x7fc0);
    }
    tap_ok(equal, "every FP32 NaN counts as the one quiet NaN");
    tap_ok(equal_bf16, "every BF16 NaN counts as the one quiet NaN");
    tap_ok(!same_f32(0x7f800000, 0x7fc00000) && !same_f32(0xff800000, 0x7f800000) &&
               !same_bf16(0x7f80, 0x7fc0) && !same_bf16(0xff80, 0x7f80),
        "infinities are no NaN and keep their sign");
    tap_ok(!same_f32(0, 0x80000000) && !same_bf16(0, 0x8000), "+0 and -0 differ");
    tap_ok(!same_f32(1, 0) && !same_bf16(1, 0), "denormals are kept");
}

static void test_one_bit(float *values, uint16_t *values_bf16)
{
    static const int positions[] = {0, 2047, 2048, COUNT - 1};
    char before[DIGEST_TEXT], after[DIGEST_TEXT];
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        int at = positions[i];
        uint32_t bits;
        whole_f32(values, COUNT, COUNT, before);
        memcpy(&bits, values + at, sizeof bits);
        float kept = values[at];
        values[at] = f32_of(bits ^ 1);
        whole_f32(values, COUNT, COUNT, after);
        values[at] = kept;
        bool f32_differs = strcmp(before, after) != 0;

        whole_bf16(values_bf16, COUNT, COUNT, before);
        values_bf16[at] ^= 1;
        whole_bf16(values_bf16, COUNT, COUNT, after);
        values_bf16[at] ^= 1;
        tap_ok(
            f32_differs && strcmp(before, after), "one flipped bit at %d changes the digest", at);
    }
    whole_f32(values, COUNT, COUNT, before);
    whole_f32(values, COUNT - 1, COUNT, after);
    tap_ok(strcmp(before, after) != 0, "a missing last element changes the digest");
}

int main(void)
{
    float *values = malloc(COUNT * sizeof *values);
    uint16_t *values_bf16 = malloc(COUNT * sizeof *values_bf16);
    if (tap_ok(values && values_bf16, "memory for the test")) {
        seed_fill_f32(values, 1, 2, 0, COUNT, 1);
        seed_fill_bf16(values_bf16, 1, 2, 0, COUNT, 1);
        test_pinned();
        test_f32(values);
        test_bf16(values_bf16);
        test_nan();
        test_one_bit(values, values_bf16);
    }
    free(values);
    free(values_bf16);
    return tap_done();
}
