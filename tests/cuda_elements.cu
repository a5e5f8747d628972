/* AdamW, the gradient scan, and the sums and roundings of element by element, on CUDA against the
 * CPU, byte by byte: several blocks, what is left over from packs, unaligned arrays, special
 * values. */
#include "tests/cuda_case.cuh"
extern "C" {
#include "kernels/adamw.h"
#include "kernels/gradient_scan.h"
#include "kernels/rank_sum.h"
}

static const int64_t counts[] = {0, 1, 7, 8, 9, 255, 2048, 2053, 10007};
enum { COUNTS = sizeof counts / sizeof *counts };

/* Aligned and ordinary, unaligned, and with special values. */
enum { TURNS = 3 };

static int skew_of(int turn)
{
    return turn == 1;
}

static int every_of(int turn)
{
    return turn == 2 ? 5 : 0;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

static struct adamw_constants some_constants(float scale)
{
    struct adamw_constants k;
    k.scale = scale;
    k.b1 = 0.9f;
    k.c1 = 0.1f;
    k.b2 = 0.95f;
    k.c2 = 0.05f;
    k.rs = 1.7f;
    k.eps = 1e-8f;
    k.step = 3e-4f;
    k.decay = 0.99997f;
    return k;
}

static int64_t adamw_faults(int64_t count, enum dtype g_type, int turn)
{
    struct adamw_args args;
    struct cuda_case c = begin_case(&kernel_adamw, &args, skew_of(turn));
    args.count = count;
    args.g_type = g_type;
    args.constants = some_constants(turn ? 0.37f : 1.0f);
    point(&c, &args.p, add_typed(&c, DTYPE_F32, count + 3, 1, every_of(turn)));
    point(&c, &args.m, add_typed(&c, DTYPE_F32, count + 3, 2, every_of(turn)));
    const int v = add_typed(&c, DTYPE_F32, count + 3, 3, every_of(turn));
    point(&c, &args.v, v);
    for (int64_t i = 0; i < count; i++) { /* second moments; under a special turn any sign */
        float *value = (float *)c.arrays[v].host + i;
        *value = turn == 2 ? *value : fabsf(*value) * 1e-6f;
    }
    point(&c, &args.g, add_typed(&c, g_type, count + 3, 4, every_of(turn)));
    point(&c, &args.w, add_typed(&c, DTYPE_BF16, count + 3, 5, 0));
    return run_case(&c);
}

static void test_adamw(void)
{
    int64_t faults = 0;
    for (int i = 0; i < COUNTS; i++)
        for (int turn = 0; turn < TURNS; turn++)
            for (int type = 0; type < 2; type++)
                faults += adamw_faults(counts[i], (enum dtype)type, turn);
    tap_ok(!faults, "AdamW");
}

/* ---- the gradient scan ----------------------------------------------------------------------- */

static int64_t scan_faults(int64_t count, enum dtype type, bool fresh, int turn)
{
    struct gradient_scan_args args;
    const struct gradient_scan before = {1.5, turn == 1, turn == 1 ? 4 : -1};
    struct cuda_case c = begin_case(&kernel_gradient_scan, &args, skew_of(turn));
    args.g_type = type;
    args.count = count;
    args.scale = turn ? 1e3f : 0.125f;
    args.tensor = 9;
    args.fresh = fresh;
    point(&c, &args.g, add_typed(&c, type, count, 11, turn == 2 ? 500 : 0));
    point(&c, &args.scan, add_bytes(&c, &before, sizeof before));
    point(&c, &args.scratch,
        add_array(&c, CONTENT_BYTES,
            GRADIENT_SCAN_BLOCKS * (int64_t)sizeof(struct gradient_scan_block), 0, 0));
    return run_case(&c);
}

static void test_scan(void)
{
    static const int64_t sizes[] = {0, 1, 31, 33, 4095, 4096, 4097, 70001};
    int64_t faults = 0;
    for (int i = 0; i < 8; i++)
        for (int turn = 0; turn < TURNS; turn++)
            for (int way = 0; way < 4; way++)
                faults += scan_faults(sizes[i], (enum dtype)(way & 1), way & 2, turn);
    tap_ok(!faults, "the gradient scan: fresh and continued, finite and not");
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* into: the sum replaces part 0. */
static int64_t sum_faults(int64_t count, int64_t parts, int64_t gap, bool into, int turn)
{
    struct rank_sum_args args;
    struct cuda_case c = begin_case(&kernel_rank_sum, &args, skew_of(turn));
    args.count = count;
    args.stride = count + gap;
    args.parts_count = parts;
    const int from = add_typed(&c, DTYPE_F32, parts * args.stride, 21, every_of(turn));
    point(&c, &args.parts, from);
    point(&c, &args.out, into ? from : add_typed(&c, DTYPE_F32, count + 2, 22, 0));
    return run_case(&c);
}

static void test_sums(void)
{
    int64_t faults = 0;
    for (int i = 0; i < COUNTS; i++)
        for (int64_t parts = 1; parts <= 9; parts += 2)
            for (int turn = 0; turn < TURNS; turn++)
                faults += sum_faults(counts[i], parts, (i + turn) % 5, parts % 4 == 1, turn);
    tap_ok(!faults, "sums in rank order, apart and into part 0");
}

static int64_t add_faults(int64_t count, int turn)
{
    struct add_args args;
    struct cuda_case c = begin_case(&kernel_add, &args, skew_of(turn));
    args.count = count;
    point(&c, &args.to, add_typed(&c, DTYPE_F32, count + 1, 31, every_of(turn)));
    point(&c, &args.from, add_typed(&c, DTYPE_F32, count, 32, every_of(turn)));
    return run_case(&c);
}

static int64_t round_faults(int64_t count, int turn)
{
    struct round_bf16_args args;
    struct cuda_case c = begin_case(&kernel_round_bf16, &args, skew_of(turn));
    args.count = count;
    point(&c, &args.to, add_typed(&c, DTYPE_BF16, count + 1, 41, 0));
    point(&c, &args.from, add_typed(&c, DTYPE_F32, count, 42, every_of(turn)));
    return run_case(&c);
}

static void test_add_and_round(void)
{
    int64_t added = 0, rounded = 0;
    for (int i = 0; i < COUNTS; i++)
        for (int turn = 0; turn < TURNS; turn++) {
            added += add_faults(counts[i], turn);
            rounded += round_faults(counts[i], turn);
        }
    tap_ok(!added, "addition");
    tap_ok(!rounded, "rounding to BF16");
}

int main(void)
{
    if (!device_found())
        return 0;
    test_adamw();
    test_scan();
    test_sums();
    test_add_and_round();
    return tap_done();
}
