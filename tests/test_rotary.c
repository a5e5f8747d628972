/* Rotary positions: angles against the C library's, the turn against its formula on every
 * instruction set, and what it is for: products depend on distance alone. */
#include "kernels/rotary.h"
#include <math.h>
#include <string.h>
#include "kernels/isa.h"
#include "probe/seed.h"
#include "tests/kernel_run.h"
#include "tests/tap.h"

enum { ROWS = 60, HEADS = 3, WIDEST = 300, RUN = 20 };

struct rows {
    float f32[ROWS * HEADS * WIDEST];
    uint16_t bf16[ROWS * HEADS * WIDEST];
};

/* ---- angles ---------------------------------------------------------------------------------- */

/* The library's for the frequency that the rule names; both are sure of FP32's digits. */
static double distance(int64_t first, int64_t run, int64_t half)
{
    static float turns[RUN * 2 * 128];
    double worst = 0;
    rotary_turns(first, run, half, turns);
    for (int64_t place = 0; place < run; place++)
        for (int64_t i = 0; i < half; i++) {
            double step = (double)arith_exp(-9.2103404f * ((float)i / (float)half));
            double angle = (double)(first + place) * step;
            const float *at = turns + place * 2 * half + i;
            worst = fmax(worst, fabs((double)at[0] - cos(angle)));
            worst = fmax(worst, fabs((double)at[half] - sin(angle)));
        }
    return worst;
}

static void test_angles(void)
{
    double near = distance(0, RUN, 128), far = distance(1000000, RUN, 16);
    tap_ok(near <= 0x1p-24 && far <= 0x1p-24,
        "cosines and sines of places up to 10^6: off by %.1e and %.1e", near, far);
    float whole[RUN * 2 * 8], part[8 * 2 * 8];
    rotary_turns(0, RUN, 8, whole);
    rotary_turns(12, 8, 8, part);
    tap_ok(!memcmp(part, whole + (size_t)12 * 2 * 8, sizeof part),
        "a run that begins later has the same bits");
}

/* ---- turning --------------------------------------------------------------------------------- */

static struct rotary_args args_of(
    struct rows *rows, const float *turns, int64_t columns, enum dtype type, bool backward)
{
    return (struct rotary_args){.rows = ROWS,
        .heads = HEADS,
        .head_columns = columns,
        .run = RUN,
        .type = type,
        .backward = backward,
        .turns = turns,
        .x = type == DTYPE_F32 ? (void *)rows->f32 : (void *)rows->bf16};
}

static void fill(struct rows *rows)
{
    for (int64_t i = 0; i < ROWS * HEADS * WIDEST; i++) {
        rows->f32[i] = seed_index(9, 1, i, 50) ? seed_f32(9, 0, i, 3) : NAN;
        rows->bf16[i] = f32_to_bf16(rows->f32[i]);
    }
}

/* The formula, element by element. */
static void expect(const struct rotary_args *args, struct rows *rows)
{
    int64_t half = args->head_columns / 2;
    for (int64_t item = 0; item < ROWS * HEADS * half; item++) {
        int64_t at = item / half * args->head_columns + item % half, place = item / half / HEADS;
        const float *turns = args->turns + place % RUN * 2 * half + item % half;
        float c = turns[0], s = args->backward ? -turns[half] : turns[half];
        bool wide = args->type == DTYPE_F32;
        float a = wide ? rows->f32[at] : bf16_to_f32(rows->bf16[at]);
        float b = wide ? rows->f32[at + half] : bf16_to_f32(rows->bf16[at + half]);
        float low = fmaf(a, c, -(b * s)), high = fmaf(b, c, a * s);
        rows->f32[at] = wide ? low : rows->f32[at];
        rows->f32[at + half] = wide ? high : rows->f32[at + half];
        rows->bf16[at] = wide ? rows->bf16[at] : f32_to_bf16(low);
        rows->bf16[at + half] = wide ? rows->bf16[at + half] : f32_to_bf16(high);
    }
}

static bool same(const struct rows *a, const struct rows *b)
{
    bool good = !memcmp(a->bf16, b->bf16, sizeof a->bf16);
    for (int64_t i = 0; good && i < ROWS * HEADS * WIDEST; i++)
        good = f32_bits(a->f32[i]) == f32_bits(b->f32[i]) || (isnan(a->f32[i]) && isnan(b->f32[i]));
    return good;
}

static void test_turning(struct dev_pool *pool)
{
    static const int64_t widths[] = {1, 2, 7, 64, 128, WIDEST};
    static struct rows got, want;
    static float turns[RUN * WIDEST];
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        int faults = 0;
        if (!isa_available((enum isa)isa))
            continue;
        isa_force((enum isa)isa);
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int way = 0; way < 8; way++) {
                enum dtype type = way & 1 ? DTYPE_BF16 : DTYPE_F32;
                rotary_turns(5, RUN, widths[w] / 2, turns);
                fill(&got);
                fill(&want);
                struct rotary_args args = args_of(&got, turns, widths[w], type, (way & 2) != 0);
                kernel_run(pool, way & 4 ? 3 : 1, &kernel_rotary, &args);
                expect(&args, &want);
                faults += !same(&got, &want);
            }
        tap_ok(!faults, "%s: the formula's bits, both types, forward and back, odd widths",
            isa_name((enum isa)isa));
    }
}

/* ---- what it is for -------------------------------------------------------------------------- */

static double product(const struct rows *rows, int64_t i, int64_t j, int64_t columns)
{
    double sum = 0;
    for (int64_t c = 0; c < columns; c++)
        sum += (double)rows->f32[i * HEADS * columns + c] * rows->f32[j * HEADS * columns + c];
    return sum;
}

/* Equal rows at all places: the product of two is a function of how far apart they are; turned back
 * they are what they were. */
static void test_distance(struct dev_pool *pool)
{
    enum { COLUMNS = 64 };
    static struct rows rows;
    static float turns[RUN * COLUMNS];
    for (int64_t i = 0; i < ROWS * HEADS * COLUMNS; i++)
        rows.f32[i] = seed_f32(9, 2, i % (HEADS * COLUMNS), 1);
    rotary_turns(0, RUN, COLUMNS / 2, turns);
    struct rotary_args args = args_of(&rows, turns, COLUMNS, DTYPE_F32, false);
    kernel_run(pool, 1, &kernel_rotary, &args);
    double off = 0, apart = fabs(product(&rows, 0, 3, COLUMNS) - product(&rows, 0, 4, COLUMNS));
    for (int64_t i = 0; i + 3 < RUN; i++)
        off = fmax(off, fabs(product(&rows, i, i + 3, COLUMNS) - product(&rows, 0, 3, COLUMNS)));
    tap_ok(off < 1e-5 && apart > 1e-2, "products depend on distance: %.1e, not on place: %.1e",
        apart, off);
    args.backward = true;
    kernel_run(pool, 1, &kernel_rotary, &args);
    off = 0;
    for (int64_t i = 0; i < ROWS * HEADS * COLUMNS; i++)
        off = fmax(off, fabs((double)rows.f32[i] - seed_f32(9, 2, i % (HEADS * COLUMNS), 1)));
    tap_ok(off < 1e-6, "turned back: off by %.1e", off);
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(3);
    test_angles();
    test_turning(pool);
    isa_force(ISA_GENERIC);
    test_distance(pool);
    dev_pool_free(pool);
    return tap_done();
}
