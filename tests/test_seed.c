/* Seeded inputs: pinned first values, slices that equal the whole, range and distribution. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "probe/seed.h"
#include "tests/tap.h"

enum { COUNT = 1 << 20 };

/* Computed by an independent program from the definition in probe/seed.c. */
static void test_pinned(void)
{
    static const struct {
        uint64_t seed;
        uint32_t tensor;
        int64_t index;
        uint64_t bits;
        float value;
    } pins[] = {
        {0, 0, 0, UINT64_C(0x238275bc38fcbe91), -0x1.71f62cp-1f},
        {0, 0, 1, UINT64_C(0xf89a2566b5822c54), 0x1.e26894p-1f},
        {1, 0, 0, UINT64_C(0xb18a02f46d8d86c3), 0x1.8c501p-2f},
        {1, 2, 3, UINT64_C(0x8568f7c4e53b5a35), 0x1.5a3dcp-5f},
        {UINT64_MAX, UINT32_MAX, (INT64_C(1) << 40) + 5, UINT64_C(0x550248cbcb2ae2f2),
            -0x1.57edcp-2f},
    };
    for (size_t i = 0; i < sizeof pins / sizeof *pins; i++) {
        uint64_t bits = seed_bits(pins[i].seed, pins[i].tensor, pins[i].index);
        float value = seed_f32(pins[i].seed, pins[i].tensor, pins[i].index, 1);
        tap_ok(bits == pins[i].bits && value == pins[i].value, "pinned value %zu: %016llx %a", i,
            (unsigned long long)bits, value);
    }
}

static void test_slices(const float *whole, const uint16_t *whole_bf16)
{
    static const int64_t firsts[] = {0, 1, 7, 63, 1000, COUNT - 70};
    static const int64_t counts[] = {0, 1, 3, 16, 65, 70};
    float slice[80];
    uint16_t slice_bf16[80];
    bool equal = true, equal_bf16 = true, inside = true;
    for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            int64_t first = firsts[f], count = counts[c];
            memset(slice, 0x55, sizeof slice);
            memset(slice_bf16, 0x55, sizeof slice_bf16);
            seed_fill_f32(slice, 5, 9, first, count, 0.75f);
            seed_fill_bf16(slice_bf16, 5, 9, first, count, 0.75f);
            equal &= !memcmp(slice, whole + first, (size_t)count * sizeof *slice);
            equal_bf16 &= !memcmp(slice_bf16, whole_bf16 + first, (size_t)count * 2);
            uint32_t after;
            memcpy(&after, slice + count, sizeof after);
            inside &= after == 0x55555555 && slice_bf16[count] == 0x5555;
        }
    tap_ok(equal, "every slice in FP32 equals the whole");
    tap_ok(equal_bf16, "every slice in BF16 equals the whole");
    tap_ok(inside, "a fill writes its slice and nothing after it");

    bool single = true;
    for (int64_t i = 0; i < 1000; i++)
        single &=
            seed_f32(5, 9, i, 0.75f) == whole[i] && seed_bf16(5, 9, i, 0.75f) == whole_bf16[i];
    tap_ok(single, "one element at a time equals the whole");

    const int64_t far = INT64_MAX - 10;
    seed_fill_f32(slice, 5, 9, far, 8, 0.75f);
    bool beyond = true;
    for (int64_t i = 0; i < 8; i++)
        beyond &= slice[i] == seed_f32(5, 9, far + i, 0.75f);
    tap_ok(beyond, "indices to the end of 63 bits are as good as the first");
}

/* The spacing below a scale is at its widest and at its narrowest for these. */
static void test_range(const float *whole)
{
    static const float scales[] = {1.0f, 0.75f, 1.9999999f, 0x1.000002p0f, 1e-30f, 1e30f, 0.02f};
    bool inside = true;
    for (int i = 0; i < COUNT; i++)
        inside &= whole[i] >= -0.75f && whole[i] < 0.75f;
    tap_ok(inside, "2^20 values lie in [-scale, scale)");
    bool below = true;
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        /* The largest fraction there is, as seed.c forms it. */
        float largest = (float)((1 << 23) - 1) * (scales[s] * 0x1p-23f);
        below &= largest < scales[s];
    }
    tap_ok(below, "the largest fraction stays below every scale");
}

static void test_bf16(const float *whole, const uint16_t *whole_bf16)
{
    bool nearest = true, even = true;
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits = (uint32_t)whole_bf16[i] << 16;
        float value, up, down;
        memcpy(&value, &bits, sizeof value);
        bits += 0x10000;
        memcpy(&up, &bits, sizeof up);
        bits -= 0x20000;
        memcpy(&down, &bits, sizeof down);
        double error = fabs((double)whole[i] - value);
        double error_up = fabs((double)whole[i] - up), error_down = fabs((double)whole[i] - down);
        nearest &= (value == 0 || error <= error_down) && error <= error_up;
        if (value != 0 && (error == error_up || error == error_down))
            even &= (whole_bf16[i] & 1) == 0;
    }
    tap_ok(nearest, "BF16 is the nearest to the FP32 value");
    tap_ok(even, "ties go to even");
}

/* Chi-square over 256 cells of 2^20 draws: 255 degrees of freedom, standard deviation 22.6. The
 * inputs are fixed, so the verdict never changes by chance. */
static double chi_square(const int64_t *cells, double expected)
{
    double sum = 0;
    for (int i = 0; i < 256; i++)
        sum += ((double)cells[i] - expected) * ((double)cells[i] - expected) / expected;
    return sum;
}

static void test_distribution(const float *whole)
{
    int64_t cells[256] = {0}, low[256] = {0}, pairs[256] = {0};
    double sum = 0, squares = 0, neighbours = 0;
    for (int i = 0; i < COUNT; i++) {
        double u = whole[i] / 0.75;
        cells[(int)((u + 1) * 128)]++;
        uint64_t bits = seed_bits(5, 9, i);
        low[bits & 255]++;
        pairs[(bits >> 60 << 4 | seed_bits(5, 9, i + 1) >> 60) & 255]++;
        sum += u;
        squares += u * u;
        neighbours += u * (i ? whole[i - 1] / 0.75 : 0);
    }
    double expected = COUNT / 256.0;
    double high_chi = chi_square(cells, expected), low_chi = chi_square(low, expected),
           pair_chi = chi_square(pairs, expected);
    tap_ok(fabs(high_chi - 255) < 100, "values are uniform (chi-square %.0f of 255)", high_chi);
    tap_ok(fabs(low_chi - 255) < 100, "low bits are uniform (chi-square %.0f of 255)", low_chi);
    tap_ok(fabs(pair_chi - 255) < 100, "neighbours are independent (chi-square %.0f of 255)",
        pair_chi);
    tap_ok(fabs(sum / COUNT) < 0.003, "the mean is 0 (%.2e)", sum / COUNT);
    tap_ok(fabs(squares / COUNT - 1.0 / 3) < 0.003, "the variance is 1/3 (%.4f)", squares / COUNT);
    tap_ok(
        fabs(neighbours / COUNT) < 0.003, "the lag-1 correlation is 0 (%.2e)", neighbours / COUNT);
}

static void test_streams(void)
{
    int same_seed = 0, same_tensor = 0, flipped = 0;
    for (int64_t i = 0; i < 10000; i++) {
        same_seed += seed_bits(1, 0, i) == seed_bits(2, 0, i);
        same_tensor += seed_bits(1, 0, i) == seed_bits(1, 1, i);
        flipped += __builtin_popcountll(seed_bits(1, 0, i) ^ seed_bits(1, 1, i));
    }
    tap_ok(!same_seed && !same_tensor, "other seeds and other tensors give other elements");
    tap_ok(abs(flipped - 320000) < 2000, "another tensor flips half of the bits (%d of 640000)",
        flipped);
}

static void test_index(void)
{
    int64_t cells[256] = {0};
    bool inside = true, one = true, wide = true, met_high = false;
    for (int64_t i = 0; i < COUNT; i++) {
        int64_t value = seed_index(7, 1, i, 256);
        inside &= value >= 0 && value < 256;
        cells[value & 255]++;
        one &= seed_index(7, 1, i, 1) == 0;
        int64_t large = seed_index(7, 1, i, INT64_MAX);
        wide &= large >= 0 && large < INT64_MAX;
        met_high |= large > INT64_MAX / 2;
    }
    double chi = chi_square(cells, COUNT / 256.0);
    tap_ok(inside, "an index lies in [0, bound)");
    tap_ok(fabs(chi - 255) < 100, "indices are uniform (chi-square %.0f of 255)", chi);
    tap_ok(one, "bound 1 gives 0");
    tap_ok(wide && met_high, "the largest bound works");
}

int main(void)
{
    float *whole = malloc(COUNT * sizeof *whole);
    uint16_t *whole_bf16 = malloc(COUNT * sizeof *whole_bf16);
    if (tap_ok(whole && whole_bf16, "memory for the test")) {
        seed_fill_f32(whole, 5, 9, 0, COUNT, 0.75f);
        seed_fill_bf16(whole_bf16, 5, 9, 0, COUNT, 0.75f);
        test_pinned();
        test_slices(whole, whole_bf16);
        test_range(whole);
        test_bf16(whole, whole_bf16);
        test_distribution(whole);
        test_streams();
        test_index();
    }
    free(whole);
    free(whole_bf16);
    return tap_done();
}
