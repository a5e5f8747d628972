/* RMSNorm and the strip kernels on CUDA against the CPU, byte by byte: rows that fit into shared
 * memory and rows that do not, columns past whole packs, lanes and segments, padded and unaligned
 * rows, infinities, NaN rows, ignored targets. */
#include "tests/cuda_case.cuh"
extern "C" {
#include "kernels/rmsnorm.h"
#include "kernels/strip.h"
}

/* ---- RMSNorm --------------------------------------------------------------------------------- */

static const int64_t widths[] = {1, 7, 32, 40, 513, 2048, 6150, 12400, 25000};
enum { WIDTHS = sizeof widths / sizeof *widths };

static int64_t forward_faults(int64_t rows, int64_t columns, enum dtype type, int turn)
{
    struct rmsnorm_args args;
    struct cuda_case c = begin_case(&kernel_rmsnorm, &args, turn == 1);
    args.rows = rows;
    args.columns = columns;
    args.type = type;
    point(&c, &args.x, add_typed(&c, type, rows * columns, 1, turn == 2 ? 900 : 0));
    point(&c, &args.gain, add_typed(&c, type, columns, 2, 0));
    point(&c, &args.r, add_typed(&c, DTYPE_F32, rows + 1, 3, 0));
    point(&c, &args.n, add_typed(&c, type, rows * columns, 4, 0));
    return run_case(&c);
}

static int64_t backward_faults(int64_t rows, int64_t columns, enum dtype type, int turn)
{
    struct rmsnorm_backward_args args;
    struct cuda_case c = begin_case(&kernel_rmsnorm_backward, &args, turn == 1);
    const int every = turn == 2 ? 900 : 0;
    args.rows = rows;
    args.columns = columns;
    args.type = type;
    point(&c, &args.x, add_typed(&c, type, rows * columns, 1, every));
    point(&c, &args.gain, add_typed(&c, type, columns, 2, 0));
    point(&c, &args.dn, add_typed(&c, type, rows * columns, 3, every));
    const int dy = add_typed(&c, type, rows * columns, 4, every);
    point(&c, &args.dy, dy);
    point(&c, &args.r, add_typed(&c, DTYPE_F32, rows, 5, 0));
    point(&c, &args.dx, turn == 1 ? dy : add_typed(&c, type, rows * columns, 6, 0));
    return run_case(&c);
}

static int64_t gain_faults(int64_t rows, int64_t columns, enum dtype type, int turn)
{
    struct rmsnorm_gain_args args;
    struct cuda_case c = begin_case(&kernel_rmsnorm_gain, &args, turn == 1);
    args.rows = rows;
    args.columns = columns;
    args.type = type;
    point(&c, &args.x, add_typed(&c, type, rows * columns, 1, turn == 2 ? 900 : 0));
    point(&c, &args.dn, add_typed(&c, type, rows * columns, 2, turn == 2 ? 20 : 0));
    point(&c, &args.r, add_typed(&c, DTYPE_F32, rows, 3, 0));
    point(&c, &args.dgain, add_typed(&c, DTYPE_F32, columns + 2, 4, 0));
    return run_case(&c);
}

static void test_rmsnorm(void)
{
    int64_t forward = 0, backward = 0, gain = 0;
    for (int i = 0; i < WIDTHS; i++)
        for (int way = 0; way < 6; way++) {
            const int64_t rows = i < 6 ? 4 * way + 1 : way & 3;
            const enum dtype type = (enum dtype)(way & 1);
            forward += forward_faults(rows, widths[i], type, way / 2);
            backward += backward_faults(rows, widths[i], type, way / 2);
        }
    static const int64_t heights[] = {0, 1, 127, 128, 129, 300, 700};
    for (int i = 0; i < 7; i++)
        for (int way = 0; way < 6; way++)
            gain += gain_faults(heights[i], 1 + 15 * way, (enum dtype)(way & 1), way / 2);
    tap_ok(!forward, "RMSNorm");
    tap_ok(!backward, "its gradient, apart and in place");
    tap_ok(!gain, "the gradient of its gain");
}

static int64_t residual_add_faults(int64_t count, enum dtype type, int turn)
{
    struct residual_add_args args;
    struct cuda_case c = begin_case(&kernel_residual_add, &args, turn == 1);
    args.count = count;
    args.type = type;
    point(&c, &args.to, add_typed(&c, type, count + 1, 1, turn == 2 ? 4 : 0));
    point(&c, &args.from, add_typed(&c, type, count, 2, turn == 2 ? 4 : 0));
    return run_case(&c);
}

static void test_residual_add(void)
{
    int64_t faults = 0;
    for (int64_t count = 0; count < 9000; count = count * 3 + 1)
        for (int way = 0; way < 6; way++)
            faults += residual_add_faults(count, (enum dtype)(way & 1), way / 2);
    tap_ok(!faults, "the residual addition");
}

/* ---- strips ---------------------------------------------------------------------------------- */

enum { FIRST_COLUMN = 5000 }; /* the strip's place in the vocabulary */

struct strip {
    int64_t rows, columns, padding;
};

static const struct strip strips[] = {{0, 100, 0}, {3, 0, 2}, {1, 1, 0}, {12, 31, 1}, {12, 32, 4},
    {12, 1000, 0}, {12, 1023, 7}, {12, 1024, 0}, {12, 1025, 3}, {11, 3004, 4}, {3, 17000, 0},
    {2, 8192, 1}};
enum { STRIPS = sizeof strips / sizeof *strips };

/* What a row holds, by its index. */
static float logit_at(int64_t row, int64_t column, int64_t columns)
{
    const float ordinary = value_at((uint32_t)(row * 100003 + column), 0) * 0.1f;
    switch (row % 11) {
    case 2:
        return -INFINITY;
    case 3:
        return column % 3 ? -INFINITY : ordinary;
    case 4:
        return column == columns - 1 ? NAN : ordinary;
    case 5:
        return column == columns / 2 ? INFINITY : ordinary;
    case 6:
        return column ? -INFINITY : NAN;
    case 7:
        return column & 1 ? 0.0f : -0.0f;
    case 8:
        return column < VOCAB_SEGMENT ? -INFINITY : ordinary;
    case 9:
        return column == columns / 3 ? NAN : column == columns - 1 ? INFINITY : ordinary;
    default:
        return row % 11 == 1 ? ordinary * 1e3f : ordinary;
    }
}

static int add_logits(struct cuda_case *c, const struct strip &s)
{
    const int64_t ld = s.columns + s.padding;
    const int array = add_typed(c, DTYPE_F32, s.rows * ld, 7, 0);
    for (int64_t row = 0; row < s.rows; row++)
        for (int64_t column = 0; column < s.columns; column++)
            ((float *)c->arrays[array].host)[c->skew + row * ld + column] =
                logit_at(row, column, s.columns);
    return array;
}

/* Inside, at both ends, just outside on either side, far off, and ignored. */
static int add_targets(struct cuda_case *c, int64_t rows, int64_t columns)
{
    const int array = add_array(c, CONTENT_BYTES, rows * (int64_t)sizeof(int64_t), 0, 0);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t choices[] = {
            columns / 2, 0, columns - 1, -1, columns, -FIRST_COLUMN, VOCAB_IGNORED - FIRST_COLUMN};
        ((int64_t *)c->arrays[array].host)[row] = FIRST_COLUMN + choices[row % 7];
    }
    return array;
}

/* State of a row before: ordinary, empty, NaN. */
static int add_states(struct cuda_case *c, int64_t rows, bool sums)
{
    const int array = add_typed(c, DTYPE_F32, rows + 1, 8, 0);
    for (int64_t row = 0; row < rows; row++)
        ((float *)c->arrays[array].host)[c->skew + row] = row % 5 == 4   ? NAN
                                                          : row % 3 == 2 ? (sums ? 0.0f : -INFINITY)
                                                                         : 1.5f + (float)row;
    return array;
}

static int64_t fold_faults(const struct strip &s, bool fresh, int skew)
{
    struct strip_fold_args args;
    struct cuda_case c = begin_case(&kernel_strip_fold, &args, skew);
    args.rows = s.rows;
    args.columns = s.columns;
    args.ld = s.columns + s.padding;
    args.first_column = FIRST_COLUMN;
    args.fresh = fresh;
    point(&c, &args.logits, add_logits(&c, s));
    point(&c, &args.targets, add_targets(&c, s.rows, s.columns));
    point(&c, &args.max, add_states(&c, s.rows, false));
    point(&c, &args.sum, add_states(&c, s.rows, true));
    point(&c, &args.target_logit, add_typed(&c, DTYPE_F32, s.rows + 1, 9, 0));
    return run_case(&c);
}

static int64_t log_softmax_faults(const struct strip &s, bool in_place, int skew)
{
    struct strip_log_softmax_args args;
    struct cuda_case c = begin_case(&kernel_strip_log_softmax, &args, skew);
    args.rows = s.rows;
    args.columns = s.columns;
    args.ld = s.columns + s.padding;
    args.ld_out = in_place ? args.ld : s.columns + 4;
    const int logits = add_logits(&c, s);
    point(&c, &args.logits, logits);
    point(&c, &args.max, add_states(&c, s.rows, false));
    point(&c, &args.log_z, add_states(&c, s.rows, true));
    point(&c, &args.out, in_place ? logits : add_typed(&c, DTYPE_F32, s.rows * args.ld_out, 10, 0));
    return run_case(&c);
}

/* way: 1 in place, 2 rounded, 4 from a given log-softmax. */
static int64_t residual_faults(const struct strip &s, int way, int skew)
{
    struct strip_residual_args args;
    struct cuda_case c = begin_case(&kernel_strip_residual, &args, skew);
    args.rows = s.rows;
    args.columns = s.columns;
    args.ld = s.columns + s.padding;
    args.ld_out = way & 1 ? args.ld : s.columns + 4;
    args.first_column = FIRST_COLUMN;
    args.scale = 1.0f / 3.0f;
    args.round_bf16 = way & 2;
    const int logits = add_logits(&c, s);
    point(&c, &args.logits, logits);
    point(&c, &args.targets, add_targets(&c, s.rows, s.columns));
    if (!(way & 4)) {
        point(&c, &args.max, add_states(&c, s.rows, false));
        point(&c, &args.log_z, add_states(&c, s.rows, true));
    }
    point(&c, &args.out, way & 1 ? logits : add_typed(&c, DTYPE_F32, s.rows * args.ld_out, 10, 0));
    return run_case(&c);
}

static void test_strips(void)
{
    int64_t fold = 0, log_softmax = 0, residual = 0;
    for (int i = 0; i < STRIPS; i++)
        for (int skew = 0; skew < 2; skew++) {
            fold += fold_faults(strips[i], true, skew) + fold_faults(strips[i], false, skew);
            log_softmax += log_softmax_faults(strips[i], false, skew) +
                           log_softmax_faults(strips[i], true, skew);
            for (int way = skew; way < 8; way += 2)
                residual += residual_faults(strips[i], way ^ (i & 1), skew);
        }
    tap_ok(!fold, "the fold of segments: fresh and continued");
    tap_ok(!log_softmax, "log-softmax");
    tap_ok(!residual, "the residual: in place and apart, rounded, from a given log-softmax");
}

/* ---- a value for each row -------------------------------------------------------------------- */

static int64_t finish_faults(int64_t rows, int64_t shards, int skew)
{
    struct strip_finish_args args;
    struct cuda_case c = begin_case(&kernel_strip_finish, &args, skew);
    args.shards = shards;
    args.stride = rows + 3;
    args.rows = rows;
    point(&c, &args.shard_max, add_states(&c, shards * args.stride, false));
    point(&c, &args.shard_sum, add_states(&c, shards * args.stride, true));
    point(&c, &args.targets, add_targets(&c, rows, 100));
    point(&c, &args.target_logit, add_typed(&c, DTYPE_F32, rows, 11, 9));
    point(&c, &args.max, add_typed(&c, DTYPE_F32, rows + 1, 12, 0));
    point(&c, &args.log_z, add_typed(&c, DTYPE_F32, rows + 1, 13, 0));
    point(&c, &args.loss, add_typed(&c, DTYPE_F32, rows + 1, 14, 0));
    return run_case(&c);
}

static int64_t take_target_faults(int64_t rows, int skew)
{
    struct strip_take_target_args args;
    struct cuda_case c = begin_case(&kernel_strip_take_target, &args, skew);
    args.rows = rows;
    args.first_column = FIRST_COLUMN;
    args.columns = 100;
    point(&c, &args.candidate, add_typed(&c, DTYPE_F32, rows, 15, 9));
    point(&c, &args.targets, add_targets(&c, rows, 100));
    point(&c, &args.target_logit, add_typed(&c, DTYPE_F32, rows + 1, 16, 0));
    return run_case(&c);
}

static void test_values(void)
{
    int64_t finish = 0, take = 0;
    for (int64_t rows = 0; rows < 1000; rows = rows * 5 + 1)
        for (int skew = 0; skew < 2; skew++) {
            for (int64_t shards = 0; shards < 6; shards++)
                finish += finish_faults(rows, shards, skew);
            take += take_target_faults(rows, skew);
        }
    tap_ok(!finish, "the fold of shards and the losses");
    tap_ok(!take, "taking a target's logit");
}

int main(void)
{
    if (!device_found())
        return 0;
    test_rmsnorm();
    test_residual_add();
    test_strips();
    test_values();
    return tap_done();
}
