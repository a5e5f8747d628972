/* Attention on CUDA against the CPU, byte by byte: heads narrower and wider than a warp, tokens
 * around the CPU's block of 32 and past a softmax segment, several sequences and heads, NaN rows.
 */
#include "tests/cuda_case.cuh"
extern "C" {
#include "kernels/attention.h"
}

static struct attention_shape shape_of(
    int64_t sequences, int64_t tokens, int64_t heads, int64_t columns, enum dtype type)
{
    return {sequences, tokens, heads, columns, type, 1.0f / sqrtf((float)columns)};
}

static int add_matrix(
    struct cuda_case *c, const struct attention_shape *shape, uint32_t seed, int every)
{
    return add_typed(c, shape->type,
        shape->sequences * shape->tokens * shape->heads * shape->head_columns, seed, every);
}

static int add_column(struct cuda_case *c, const struct attention_shape *shape, uint32_t seed)
{
    return add_typed(c, DTYPE_F32, shape->sequences * shape->tokens * shape->heads, seed, 0);
}

static int64_t forward_faults(const struct attention_shape *shape, bool unaligned, int every)
{
    struct attention_args args;
    struct cuda_case c = begin_case(&kernel_attention, &args, unaligned);
    args.shape = *shape;
    point(&c, &args.q, add_matrix(&c, shape, 1, every));
    point(&c, &args.k, add_matrix(&c, shape, 2, 0));
    point(&c, &args.v, add_matrix(&c, shape, 3, 0));
    point(&c, &args.o, add_matrix(&c, shape, 4, 0));
    point(&c, &args.max, add_column(&c, shape, 5));
    point(&c, &args.log_z, add_column(&c, shape, 6));
    return run_case(&c);
}

/* Any normalisers will do: the kernels do not ask where they are from. */
static int64_t queries_faults(const struct attention_shape *shape, bool unaligned, int every)
{
    struct attention_queries_args args;
    struct cuda_case c = begin_case(&kernel_attention_queries, &args, unaligned);
    args.shape = *shape;
    point(&c, &args.q, add_matrix(&c, shape, 1, 0));
    point(&c, &args.k, add_matrix(&c, shape, 2, 0));
    point(&c, &args.v, add_matrix(&c, shape, 3, 0));
    point(&c, &args.o, add_matrix(&c, shape, 4, 0));
    point(&c, &args.d_o, add_matrix(&c, shape, 5, every));
    point(&c, &args.max, add_column(&c, shape, 6));
    point(&c, &args.log_z, add_column(&c, shape, 7));
    point(&c, &args.delta, add_column(&c, shape, 8));
    point(&c, &args.dq, add_matrix(&c, shape, 9, 0));
    return run_case(&c);
}

static int64_t keys_faults(const struct attention_shape *shape, bool unaligned, int every)
{
    struct attention_keys_args args;
    struct cuda_case c = begin_case(&kernel_attention_keys, &args, unaligned);
    args.shape = *shape;
    point(&c, &args.q, add_matrix(&c, shape, 1, 0));
    point(&c, &args.k, add_matrix(&c, shape, 2, every));
    point(&c, &args.v, add_matrix(&c, shape, 3, 0));
    point(&c, &args.d_o, add_matrix(&c, shape, 5, 0));
    point(&c, &args.max, add_column(&c, shape, 6));
    point(&c, &args.log_z, add_column(&c, shape, 7));
    point(&c, &args.delta, add_column(&c, shape, 8));
    point(&c, &args.dk, add_matrix(&c, shape, 9, 0));
    point(&c, &args.dv, add_matrix(&c, shape, 10, 0));
    return run_case(&c);
}

int main(void)
{
    if (!device_found())
        return 0;
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {2, 5, 3, 7}, {1, 33, 2, 32}, {3, 40, 1, 64},
        {1, 70, 2, 40}, {1, 9, 2, 256}, {1, 1030, 1, 4}, {0, 4, 2, 8}, {2, 0, 2, 8}};
    int64_t forward = 0, queries = 0, keys = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int way = 0; way < 6; way++) {
            const int64_t *s = shapes[i];
            const struct attention_shape shape =
                shape_of(s[0], s[1], s[2], s[3], (enum dtype)(way & 1));
            if (shape.tokens > 1000 && way > 1)
                continue;
            const int every = way / 2 == 2 ? 90 : 0;
            forward += forward_faults(&shape, way / 2 == 1, every);
            queries += queries_faults(&shape, way / 2 == 1, every);
            keys += keys_faults(&shape, way / 2 == 1, every);
        }
    tap_ok(!forward, "attention");
    tap_ok(!queries, "the gradient of its queries");
    tap_ok(!keys, "the gradients of its keys and values");
    return tap_done();
}
