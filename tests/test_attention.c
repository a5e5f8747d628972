/* Attention kernels against the reference, bit for bit, on every instruction set and team width:
 * shapes around the block of 32 and the segment of 1024, both types, several sequences and heads.
 * The reference against FP64. A NaN among later tokens stays where it is. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/attention.h"
#include "kernels/isa.h"
#include "probe/seed.h"
#include "reference/attention.h"
#include "tests/kernel_run.h"
#include "tests/tap.h"

enum tensor { Q, K, V, D_O, O, DQ, DK, DV, MATRICES };
enum column { MAX, LOG_Z, DELTA, COLUMNS };
static const char *const matrix_names[] = {"q", "k", "v", "do", "o", "dq", "dk", "dv"};

struct buffers {
    struct attention_shape shape;
    int64_t elements, rows; /* of a matrix; of a column */
    void *matrix[MATRICES];
    float *column[COLUMNS];
};

static int64_t matrix_bytes(const struct buffers *b)
{
    return b->elements * dtype_bytes(b->shape.type);
}

/* Inputs seeded, outputs full of NaN. */
static struct buffers make_buffers(const struct attention_shape *shape)
{
    struct buffers b = {.shape = *shape};
    b.rows = shape->sequences * shape->tokens * shape->heads;
    b.elements = b.rows * shape->head_columns;
    for (int i = 0; i < MATRICES; i++) {
        b.matrix[i] = malloc((size_t)matrix_bytes(&b) + 1);
        memset(b.matrix[i], 0xff, (size_t)matrix_bytes(&b));
        if (i > D_O)
            continue;
        if (shape->type == DTYPE_F32)
            seed_fill_f32(b.matrix[i], 11, (uint32_t)i, 0, b.elements, 2.0f);
        else
            seed_fill_bf16(b.matrix[i], 11, (uint32_t)i, 0, b.elements, 2.0f);
    }
    for (int i = 0; i < COLUMNS; i++) {
        b.column[i] = malloc((size_t)b.rows * sizeof(float) + 1);
        memset(b.column[i], 0xff, (size_t)b.rows * sizeof(float));
    }
    return b;
}

static void free_buffers(struct buffers *b)
{
    for (int i = 0; i < MATRICES; i++)
        free(b->matrix[i]);
    for (int i = 0; i < COLUMNS; i++)
        free(b->column[i]);
}

static struct ref_attention_problem problem_of(const struct buffers *b)
{
    const struct attention_shape *shape = &b->shape;
    return (struct ref_attention_problem){shape->sequences, shape->tokens, shape->heads,
        shape->head_columns, shape->type, shape->scale, b->matrix[Q], b->matrix[K], b->matrix[V],
        b->matrix[D_O]};
}

static void run_reference(struct buffers *b)
{
    struct ref_attention_problem problem = problem_of(b);
    struct ref_attention_result result = {.o = b->matrix[O],
        .max = b->column[MAX],
        .log_z = b->column[LOG_Z],
        .dq = b->matrix[DQ],
        .dk = b->matrix[DK],
        .dv = b->matrix[DV]};
    if (ref_attention(&problem, &result))
        tap_ok(false, "memory for the reference");
}

static void run_kernels(struct dev_pool *pool, int width, struct buffers *b)
{
    struct attention_args forward = {b->shape, b->matrix[Q], b->matrix[K], b->matrix[V],
        b->matrix[O], b->column[MAX], b->column[LOG_Z]};
    struct attention_queries_args queries = {b->shape, b->matrix[Q], b->matrix[K], b->matrix[V],
        b->matrix[O], b->matrix[D_O], b->column[MAX], b->column[LOG_Z], b->column[DELTA],
        b->matrix[DQ]};
    struct attention_keys_args keys = {b->shape, b->matrix[Q], b->matrix[K], b->matrix[V],
        b->matrix[D_O], b->column[MAX], b->column[LOG_Z], b->column[DELTA], b->matrix[DK],
        b->matrix[DV]};
    kernel_run(pool, width, &kernel_attention, &forward);
    kernel_run(pool, width, &kernel_attention_queries, &queries);
    kernel_run(pool, width, &kernel_attention_keys, &keys);
}

static int64_t differing(const void *a, const void *b, enum dtype type, int64_t count)
{
    int64_t faults = 0;
    for (int64_t i = 0; i < count; i++) {
        float x = type == DTYPE_F32 ? ((const float *)a)[i] : bf16_to_f32(((const uint16_t *)a)[i]);
        float y = type == DTYPE_F32 ? ((const float *)b)[i] : bf16_to_f32(((const uint16_t *)b)[i]);
        faults += f32_bits(x) != f32_bits(y) && !(isnan(x) && isnan(y));
    }
    return faults;
}

/* Elements of outputs that differ; notes the tensors. */
static int64_t compare(const struct buffers *got, const struct buffers *want)
{
    int64_t faults = 0;
    for (int i = O; i < MATRICES; i++) {
        int64_t wrong = differing(got->matrix[i], want->matrix[i], got->shape.type, got->elements);
        if (wrong)
            tap_note("%s: %lld of %lld differ", matrix_names[i], (long long)wrong,
                (long long)got->elements);
        faults += wrong;
    }
    for (int i = MAX; i < DELTA; i++)
        faults += differing(got->column[i], want->column[i], DTYPE_F32, got->rows);
    return faults;
}

static struct attention_shape shape_of(
    int64_t sequences, int64_t tokens, int64_t heads, int64_t columns, enum dtype type)
{
    return (struct attention_shape){
        sequences, tokens, heads, columns, type, 1.0f / sqrtf((float)columns)};
}

static void test_shape(struct dev_pool *pool, struct attention_shape shape)
{
    struct buffers want = make_buffers(&shape), got = make_buffers(&shape);
    int64_t faults = 0;
    int runs = 0;
    run_reference(&want);
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        /* Emulated fused multiply-adds take long. */
        if (!isa_available((enum isa)isa) || (isa == ISA_GENERIC && shape.tokens > 100))
            continue;
        isa_force((enum isa)isa);
        for (int width = 1; width <= 2; width++, runs++) {
            run_kernels(pool, width, &got);
            faults += compare(&got, &want);
        }
    }
    tap_ok(!faults && runs, "%s: %lld x %lld tokens, %lld heads of %lld, bits of %d runs",
        shape.type == DTYPE_F32 ? "f32" : "bf16", (long long)shape.sequences,
        (long long)shape.tokens, (long long)shape.heads, (long long)shape.head_columns, runs);
    free_buffers(&want);
    free_buffers(&got);
}

/* Against FP64: each tensor within a stated multiple of the type's rounding, relative to its
 * largest element. What this is for are wrong formulas, and those miss by the values' size. */
static void test_f64(enum dtype type)
{
    enum { ROUNDINGS = 64 };
    struct attention_shape shape = shape_of(2, 45, 2, 16, type);
    struct buffers got = make_buffers(&shape);
    double *all = calloc((size_t)(4 * got.elements), sizeof *all), worst = 0;
    struct ref_attention_f64 want = {
        all, all + got.elements, all + 2 * got.elements, all + 3 * got.elements};
    struct ref_attention_problem problem = problem_of(&got);
    run_reference(&got);
    bool made = all && ref_attention_f64(&problem, &want) == 0;
    const double *exact[] = {want.o, want.dq, want.dk, want.dv};
    for (int i = 0; made && i < 4; i++) {
        double largest = 0, off = 0;
        for (int64_t e = 0; e < got.elements; e++) {
            double value = type == DTYPE_F32
                               ? (double)((float *)got.matrix[O + i])[e]
                               : (double)bf16_to_f32(((uint16_t *)got.matrix[O + i])[e]);
            largest = fmax(largest, fabs(exact[i][e]));
            off = fmax(off, fabs(value - exact[i][e]));
        }
        worst = fmax(worst, off / largest);
    }
    double unit = type == DTYPE_F32 ? 0x1p-24 : 0x1p-9;
    tap_ok(made && worst > 0 && worst < ROUNDINGS * unit,
        "%s: the reference is within %d roundings of FP64 (%.1f)",
        type == DTYPE_F32 ? "f32" : "bf16", ROUNDINGS, worst / unit);
    free(all);
    free_buffers(&got);
}

/* A token that is all NaN: what comes before it is as if it were not there. */
static void test_future(struct dev_pool *pool)
{
    enum { TOKENS = 70, POISONED = 50 };
    struct attention_shape shape = shape_of(1, TOKENS, 2, 32, DTYPE_F32);
    struct buffers clean = make_buffers(&shape), poisoned = make_buffers(&shape);
    int64_t columns = shape.heads * shape.head_columns, past = 0, later = 0;
    for (int i = Q; i <= V; i++)
        for (int64_t c = 0; c < columns; c++)
            ((float *)poisoned.matrix[i])[POISONED * columns + c] = NAN;
    run_kernels(pool, 2, &clean);
    run_kernels(pool, 2, &poisoned);
    past += differing(clean.matrix[O], poisoned.matrix[O], DTYPE_F32, POISONED * columns);
    past += differing(clean.matrix[DQ], poisoned.matrix[DQ], DTYPE_F32, POISONED * columns);
    for (int64_t e = POISONED * columns; e < TOKENS * columns; e++)
        later += isnan(((float *)poisoned.matrix[O])[e]);
    tap_ok(!past, "outputs and dq of tokens before a NaN are as without it");
    tap_ok(later == (TOKENS - POISONED) * columns, "it and every later token are NaN");
    run_reference(&clean);
    struct buffers same = poisoned;
    for (int i = O; i < MATRICES; i++)
        same.matrix[i] = clean.matrix[i];
    for (int i = 0; i < COLUMNS; i++)
        same.column[i] = clean.column[i];
    run_reference(&same);
    tap_ok(!compare(&poisoned, &same), "NaN stands exactly where the reference has it");
    free_buffers(&clean);
    free_buffers(&poisoned);
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(2);
    test_f64(DTYPE_F32);
    test_f64(DTYPE_BF16);
    for (int type = DTYPE_F32; type <= DTYPE_BF16; type++) {
        test_shape(pool, shape_of(1, 1, 1, 1, (enum dtype)type));
        test_shape(pool, shape_of(3, 31, 2, 7, (enum dtype)type));
        test_shape(pool, shape_of(2, 32, 3, 64, (enum dtype)type));
        test_shape(pool, shape_of(1, 97, 2, 33, (enum dtype)type));
        test_shape(pool, shape_of(2, 256, 2, 64, (enum dtype)type));
        test_shape(pool, shape_of(1, 65, 1, 256, (enum dtype)type));
        test_shape(pool, shape_of(1, 1071, 1, 16, (enum dtype)type));
    }
    test_shape(pool, shape_of(0, 5, 2, 8, DTYPE_F32));
    test_shape(pool, shape_of(2, 0, 2, 8, DTYPE_F32));
    test_future(pool);
    dev_pool_free(pool);
    return tap_done();
}
