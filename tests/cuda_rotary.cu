/* Rotary positions on CUDA against the CPU, byte by byte: forward and back, both types, odd heads,
 * rows past whole blocks, special values. */
#include "tests/cuda_case.cuh"
extern "C" {
#include "kernels/rotary.h"
}

struct rotary_shape {
    int64_t rows, heads, head_columns, run;
};

static int64_t faults(const struct rotary_shape *shape, enum dtype type, bool backward, int every)
{
    struct rotary_args args;
    struct cuda_case c = begin_case(&kernel_rotary, &args, 0);
    args.rows = shape->rows;
    args.heads = shape->heads;
    args.head_columns = shape->head_columns;
    args.run = shape->run;
    args.type = type;
    args.backward = backward;
    const int64_t half = shape->head_columns / 2;
    const int64_t elements = shape->rows * shape->heads * shape->head_columns;
    point(&c, &args.turns, add_typed(&c, DTYPE_F32, shape->run * 2 * half, 1, every));
    point(&c, &args.x, add_typed(&c, type, elements, 2, every));
    return run_case(&c);
}

int main(void)
{
    static const struct rotary_shape shapes[] = {{0, 2, 8, 1}, {1, 1, 1, 1}, {1, 1, 2, 1},
        {7, 3, 5, 7}, {24, 2, 64, 12}, {33, 4, 128, 11}, {130, 1, 256, 65}};
    int64_t wrong[2] = {0, 0};
    if (!device_found())
        return 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int way = 0; way < 8; way++)
            wrong[way & 1] += faults(
                &shapes[i], way & 2 ? DTYPE_BF16 : DTYPE_F32, (way & 1) != 0, way & 4 ? 9 : 0);
    tap_ok(!wrong[0], "rows turned");
    tap_ok(!wrong[1], "rows turned back");
    return tap_done();
}
