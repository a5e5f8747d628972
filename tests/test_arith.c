/* The scalar contract: BF16 rounding, exp and log at their hard cases and, by one hash, everywhere,
 * the rules of rows and of softmax states.
 *
 * tests/slow_arith.c proves exp and log for every input; here the hash of all results on the widest
 * instruction set says that nothing has changed since. */
#include "tests/arith_hash_cpu.h"
#include <unistd.h>
#include "kernels/exp_log.h"
#include "kernels/isa.h"
#include "tests/tap.h"

/* ---- BF16 --------------------------------------------------------------------------------- */

/* The value of a finite BF16 from its fields; infinity counts as the next power of two, as it does
 * when a number is rounded. */
static double bf16_value(uint16_t bits)
{
    int exponent = (bits >> 7) & 0xff, fraction = bits & 0x7f;
    double magnitude = exponent ? ldexp(128 + fraction, exponent - 134) : ldexp(fraction, -133);
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* Rounds by comparing the exact distances to the two BF16 neighbours. */
static uint16_t round_by_distance(float value)
{
    if (isnan(value))
        return 0x7fc0;
    uint16_t towards_zero = (uint16_t)(f32_bits(value) >> 16);
    if (isinf(value))
        return towards_zero;
    uint16_t away = (uint16_t)(towards_zero + 1);
    double below = fabs((double)value - bf16_value(towards_zero));
    double above = fabs((double)value - bf16_value(away));
    if (below == above)
        return towards_zero & 1 ? away : towards_zero;
    return below < above ? towards_zero : away;
}

static void test_bf16(void)
{
    int64_t wrong_widening = 0, wrong_return = 0, wrong_rounding = 0, values = 0;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float widened = bf16_to_f32((uint16_t)bits);
        bool nan = (bits & 0x7fff) > 0x7f80, infinite = (bits & 0x7fff) == 0x7f80;
        double expected =
            infinite ? (bits & 0x8000 ? -INFINITY : INFINITY) : bf16_value((uint16_t)bits);
        bool equal =
            nan ? isnan(widened) : widened == expected && !signbit(widened) == !(bits & 0x8000);
        wrong_widening += !equal;
        wrong_return += f32_to_bf16(widened) != (nan ? 0x7fc0 : bits);

        static const uint32_t low_halves[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (size_t i = 0; i < sizeof low_halves / sizeof low_halves[0]; i++, values++) {
            float value = f32_from_bits(bits << 16 | low_halves[i]);
            wrong_rounding += f32_to_bf16(value) != round_by_distance(value);
        }
    }
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 1009, values++) {
        float value = f32_from_bits((uint32_t)bits);
        wrong_rounding += f32_to_bf16(value) != round_by_distance(value);
    }
    tap_ok(!wrong_widening, "every BF16 widens to its value");
    tap_ok(!wrong_return, "every BF16 returns from FP32, a NaN as 0x7fc0");
    tap_ok(!wrong_rounding, "%lld FP32 round to the nearest BF16, ties to even", (long long)values);
}

/* ---- exp and log -------------------------------------------------------------------------- */

struct known {
    uint32_t input, result;
};

/* Made with MPFR 4.2.0: mpfr_exp and mpfr_log to 24 bits, to nearest, then mpfr_subnormalize with
 * FP32's exponents. */
static const struct known known_exp[] = {
    /* The twelve results nearest the middle of two FP32 numbers, within 2^-29 .. 2^-26 of their
     * distance. */
    {0xc16912cd, 0x34fd331b}, /* exp(-14.56709) */
    {0xbbf0edf1, 0x3f7e1fe9}, /* exp(-0.00735258358) */
    {0xc2b2e798, 0x000f6dce}, /* exp(-89.4523315), a denormal */
    {0x377eff81, 0x3f800080}, /* exp(1.51990689e-05) */
    {0x38e69cc1, 0x3f80039a}, /* exp(0.000109964523) */
    {0x39c6be5b, 0x3f800c6d}, /* exp(0.000379073288) */
    {0xbae0e25c, 0x3f7f8fa7}, /* exp(-0.00171573041) */
    {0x383a3ef1, 0x3f800175}, /* exp(4.44044745e-05) */
    {0x3d1a274e, 0x3f84e8ba}, /* exp(0.0376351401) */
    {0x4001b249, 0x40f2cd14}, /* exp(2.02650666) */
    {0x40315b33, 0x417fa47d}, /* exp(2.77119136) */
    {0x36fdffc1, 0x3f800040}, /* exp(7.56976124e-06) */
    /* Around zero: denormals, and the last inputs whose result is 1 on either side. */
    {0x00000000, 0x3f800000},
    {0x80000000, 0x3f800000},
    {0x00000001, 0x3f800000},
    {0x80000001, 0x3f800000},
    {0x007fffff, 0x3f800000},
    {0x807fffff, 0x3f800000},
    {0x337fffff, 0x3f800000}, /* just below 2^-24 */
    {0x33800000, 0x3f800001},
    {0xb3000000, 0x3f800000}, /* -2^-25 */
    {0xb3000001, 0x3f7fffff},
    {0x3f800000, 0x402df854}, /* e */
    {0xbf800000, 0x3ebc5ab2},
    {0x3f317218, 0x40000000}, /* exp(0.693147182) */
    /* Overflow, the last normal result, the last result that is not zero. */
    {0x42b17217, 0x7f7fff84}, /* exp(88.7228317) */
    {0x42b17218, 0x7f800000},
    {0x42b20000, 0x7f800000}, /* exp(89) */
    {0x7f7fffff, 0x7f800000},
    {0x7f800000, 0x7f800000},
    {0xc2aeac4f, 0x00800026}, /* exp(-87.3365402) */
    {0xc2aeac50, 0x007fffe6},
    {0xc2aeac51, 0x007fffa6},
    {0xc2cff1b3, 0x00000001},
    {0xc2cff1b4, 0x00000001}, /* exp(-103.972076) */
    {0xc2cff1b5, 0x00000000},
    {0xc2d00000, 0x00000000}, /* exp(-104) */
    {0xff7fffff, 0x00000000},
    {0xff800000, 0x00000000},
    {0x7fc00000, 0x7fc00000},
    {0x7f800001, 0x7fc00000}, /* NaN: signalling, with a payload, negative */
    {0x7fffffff, 0x7fc00000},
    {0xffc12345, 0x7fc00000},
};

static const struct known known_log[] = {
    /* The five inputs that arith_log mends. */
    {0x3c413d3a, 0xc08e158f}, /* log(0.0117943827) */
    {0x41178feb, 0x400fe5e7}, /* log(9.47263622) */
    {0x6f31a8ec, 0x42845a89}, /* log(5.49830608e+28) */
    {0x4c5d65a5, 0x418f034b}, /* log(58037908) */
    {0x65d890d3, 0x4254d1f9}, /* log(1.27837837e+23) */
    /* Seven more of the results nearest the middle of two FP32 numbers. */
    {0x1f116ab8, 0xc233b53e}, /* log(3.079322e-20) */
    {0x4d604ebe, 0x419a352c}, /* log(235203552) */
    {0x66a8c860, 0x42595e46}, /* log(3.98526918e+23) */
    {0x0dc8bba4, 0xc289bac4}, /* log(1.23711245e-30) */
    {0x111c87f8, 0xc28085df}, /* log(1.23481287e-28) */
    {0x2c4c24b7, 0xc1d48710}, /* log(2.90105245e-12) */
    {0x38dcbe38, 0xc1128ba4}, /* log(0.000105258485) */
    /* Denormals, the neighbours of 1 and of sqrt(1/2) and sqrt(2) where the reduction changes. */
    {0x00000001, 0xc2ce8ed0},
    {0x00000002, 0xc2cd2bec},
    {0x007fffff, 0xc2aeac50},
    {0x00800000, 0xc2aeac50},
    {0x3f7fffff, 0xb3800000},
    {0x3f800000, 0x00000000},
    {0x3f800001, 0x33ffffff},
    {0x3f3504f3, 0xbeb17219},
    {0x3f3504f4, 0xbeb17216},
    {0x3fb504f3, 0x3eb17217},
    {0x3fb504f4, 0x3eb1721a},
    {0x402df854, 0x3f7fffff}, /* e */
    {0x40000000, 0x3f317218},
    {0x3f000000, 0xbf317218},
    {0x7f7fffff, 0x42b17218},
    {0x7f800000, 0x7f800000},
    {0x00000000, 0xff800000},
    {0x80000000, 0xff800000},
    {0x80000001, 0x7fc00000}, /* negative numbers */
    {0xbf800000, 0x7fc00000},
    {0xff7fffff, 0x7fc00000},
    {0xff800000, 0x7fc00000},
    {0x7fc00000, 0x7fc00000},
    {0x7f800001, 0x7fc00000},
    {0xffc12345, 0x7fc00000},
};

static uint32_t canonical_bits(float value)
{
    return isnan(value) ? 0x7fc00000u : f32_bits(value);
}

static void test_known(const char *name, const struct known *known, int64_t count,
    float (*one)(float), void (*array)(const float *, float *, int64_t))
{
    float inputs[64], results[64];
    for (int64_t i = 0; i < count; i++)
        inputs[i] = f32_from_bits(known[i].input);
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (isa_force((enum isa)isa)) {
            tap_skip("this CPU does not run it", "%s on %s", name, isa_name((enum isa)isa));
            continue;
        }
        array(inputs, results, count);
        int64_t faults = 0;
        for (int64_t i = 0; i < count; i++) {
            uint32_t found = canonical_bits(results[i]), alone = canonical_bits(one(inputs[i]));
            if (found == known[i].result && alone == known[i].result)
                continue;
            faults++;
            tap_note("%s(%08x) is %08x in an array, %08x alone, should be %08x", name,
                (unsigned)known[i].input, (unsigned)found, (unsigned)alone,
                (unsigned)known[i].result);
        }
        tap_ok(!faults, "%s at %lld known inputs on %s", name, (long long)count,
            isa_name((enum isa)isa));
    }
}

static float one_exp(float value)
{
    return arith_exp(value);
}

static float one_log(float value)
{
    return arith_log(value);
}

static enum isa force_widest(void)
{
    int isa = ISA_COUNT - 1;
    while (isa_force((enum isa)isa))
        isa--;
    return (enum isa)isa;
}

/* Sanitized loops take minutes for 2^32 results. */
#if defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static void test_hashes(void)
{
    if (SANITIZED) {
        tap_skip("built with a sanitizer", "the hashes of all 2^32 results of exp and log");
        return;
    }
    const char *isa = isa_name(force_widest());
    int threads = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 2 : 1;
    struct dev_pool *pool = dev_pool_create(threads);
    if (!tap_ok(pool != NULL, "a pool of %d threads", threads))
        return;
    uint64_t of_exp = arith_hash_cpu(pool, exp_cpu);
    uint64_t of_log = arith_hash_cpu(pool, log_cpu);
    tap_ok(of_exp == ARITH_EXP_HASH, "the hash of all 2^32 results of exp on %s: %016llx", isa,
        (unsigned long long)of_exp);
    tap_ok(of_log == ARITH_LOG_HASH, "the hash of all 2^32 results of log on %s: %016llx", isa,
        (unsigned long long)of_log);
    dev_pool_free(pool);
}

/* ---- sigmoid and silu --------------------------------------------------------------------- */

/* Three roundings of relative size 2^-24, the first damped by e^-x / (1 + e^-x) < 1; below -87 the
 * exponential overflows and the sigmoid is 0. */
static void test_sigmoid(void)
{
    int64_t far = 0, not_product = 0;
    for (float x = -87.0f; x < 100.0f; x += 0.0078125f) {
        double exact = 1.0 / (1.0 + exp(-(double)x));
        far += !(fabs(arith_sigmoid(x) - exact) <= exact * 3.01 * 0x1p-24);
        not_product += arith_silu(x) != x * arith_sigmoid(x);
    }
    tap_ok(!far, "sigmoid is within three roundings");
    tap_ok(!not_product, "silu is the rounded product");
    tap_ok(arith_sigmoid(0.0f) == 0.5f && arith_sigmoid(INFINITY) == 1.0f &&
               f32_bits(arith_sigmoid(-INFINITY)) == 0 && isnan(arith_sigmoid(NAN)),
        "sigmoid of 0, the infinities and NaN");
    tap_ok(arith_silu(INFINITY) == INFINITY && isnan(arith_silu(-INFINITY)) &&
               isnan(arith_silu(NAN)) && f32_bits(arith_silu(-0.0f)) == 0x80000000u,
        "silu of the infinities, NaN and -0");
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Rule 6 as it is written: the sum of the lanes [lane, lane + 32 / width) is a tree. */
static float lane_sum(const float *values, int64_t count, int lane)
{
    float sum = 0.0f;
    for (int64_t i = lane; i < count; i += 32)
        sum = sum + values[i];
    return sum;
}

static float tree(const float *values, int64_t count, int lane, int distance)
{
    if (distance == 32)
        return lane_sum(values, count, lane);
    return tree(values, count, lane, distance * 2) +
           tree(values, count, lane + distance, distance * 2);
}

static void test_row_sum(void)
{
    static float values[1025];
    uint32_t state = 12345;
    for (int i = 0; i < 1025; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = ldexpf((float)(state >> 8) - 8388608.0f, (int)(state & 31) - 40);
    }
    static const int64_t counts[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 1000, 1024, 1025};
    int faults = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        faults +=
            f32_bits(arith_row_sum(values, counts[i])) != f32_bits(tree(values, counts[i], 0, 1));
    tap_ok(!faults, "row sums follow the 32 lanes and the tree");
    float negative_zero = -0.0f;
    tap_ok(f32_bits(arith_row_sum(&negative_zero, 1)) == 0, "lanes begin at +0");
    float one_after_another = 0.0f;
    for (int i = 0; i < 1000; i++)
        one_after_another = one_after_another + values[i];
    tap_ok(one_after_another != arith_row_sum(values, 1000), "the values tell the order apart");
}

static void test_max(void)
{
    tap_ok(arith_max(1.0f, 2.0f) == 2.0f && arith_max(2.0f, 1.0f) == 2.0f &&
               arith_max(-INFINITY, -3.0f) == -3.0f && arith_max(INFINITY, 1.0f) == INFINITY,
        "the maximum of numbers");
    tap_ok(isnan(arith_max(NAN, 1.0f)) && isnan(arith_max(1.0f, NAN)) &&
               isnan(arith_max(NAN, INFINITY)) && isnan(arith_max(-INFINITY, NAN)),
        "the maximum of a NaN and anything is NaN");
    tap_ok(f32_bits(arith_max(-0.0f, 0.0f)) == 0 && f32_bits(arith_max(0.0f, -0.0f)) == 0 &&
               f32_bits(arith_max(-0.0f, -0.0f)) == 0,
        "a zero maximum is +0 in either order");
    float row[3] = {-2.0f, 5.0f, NAN};
    tap_ok(arith_row_max(row, 2) == 5.0f && isnan(arith_row_max(row, 3)) &&
               arith_row_max(row, 0) == -INFINITY,
        "row maxima");
}

/* ---- softmax states ----------------------------------------------------------------------- */

static bool same_state(struct softmax_state a, struct softmax_state b)
{
    return canonical_bits(a.max) == canonical_bits(b.max) &&
           canonical_bits(a.sum) == canonical_bits(b.sum);
}

static bool is_empty(struct softmax_state state)
{
    return state.max == -INFINITY && f32_bits(state.sum) == 0;
}

static void test_softmax(void)
{
    struct softmax_state empty = softmax_empty();
    struct softmax_state a = {2.0f, 3.0f}, b = {3.5f, 1.25f};
    struct softmax_state folded = softmax_fold(a, b);
    float expected = 3.0f * arith_exp(-1.5f) + 1.25f * 1.0f;
    tap_ok(folded.max == 3.5f && folded.sum == expected, "two states fold by rule 7");
    tap_ok(same_state(softmax_fold(empty, a), a) && same_state(softmax_fold(a, empty), a) &&
               is_empty(softmax_fold(empty, empty)),
        "an empty state leaves the other as it is");
    struct softmax_state nan = {NAN, NAN};
    tap_ok(same_state(softmax_fold(nan, a), nan) && same_state(softmax_fold(a, nan), nan) &&
               same_state(softmax_fold(nan, empty), nan) &&
               same_state(softmax_fold(empty, nan), nan),
        "a NaN state stays NaN");

    float logits[40];
    for (int i = 0; i < 40; i++)
        logits[i] = (float)(i % 7) - 3.0f;
    float exponentials[40];
    for (int i = 0; i < 40; i++)
        exponentials[i] = arith_exp(logits[i] - 3.0f);
    struct softmax_state segment = softmax_segment(logits, 40);
    tap_ok(segment.max == 3.0f && segment.sum == arith_row_sum(exponentials, 40),
        "a segment's state is its maximum and the row sum of exponentials");
    float masked[3] = {-INFINITY, -INFINITY, -INFINITY};
    tap_ok(is_empty(softmax_segment(masked, 3)) && is_empty(softmax_segment(masked, 0)),
        "a segment of -inf and a segment of nothing are empty");
    masked[1] = 4.0f;
    tap_ok(softmax_segment(masked, 3).max == 4.0f && softmax_segment(masked, 3).sum == 1.0f,
        "-inf adds nothing");
    masked[0] = NAN;
    tap_ok(same_state(softmax_segment(masked, 3), nan), "a NaN logit makes the state NaN");
    masked[0] = INFINITY;
    tap_ok(softmax_segment(masked, 3).max == INFINITY && isnan(softmax_segment(masked, 3).sum),
        "+inf makes the sum NaN");
}

int main(void)
{
    test_bf16();
    test_known("exp", known_exp, sizeof known_exp / sizeof known_exp[0], one_exp, exp_cpu);
    test_known("log", known_log, sizeof known_log / sizeof known_log[0], one_log, log_cpu);
    test_sigmoid();
    test_row_sum();
    test_max();
    test_softmax();
    test_hashes();
    return tap_done();
}
