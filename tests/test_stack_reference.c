/* The reference of the checkpoint-boundary problem against FP64, which is written from the formulas
 * of calculus alone.
 *
 * The distance allowed is stated, not derived: roundings of relative size u (2^-24, or 2^-9 where
 * tensors are stored in BF16) enter at about ten places of a layer and spread through the layers
 * above. Each tensor must be within ROUNDINGS * L * u of FP64, relative to its largest element.
 * What this is for are wrong formulas, and those miss by the size of the values themselves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "bench/harness/stack_check.h"
#include "reference/stack.h"
#include "tests/tap.h"

#define ROUNDINGS 32

/* The largest distance, in units of the allowed one; infinite where something is not finite. */
static double distance(
    enum dtype type, const void *got, const double *want, int64_t count, double allowed)
{
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < count; i++) {
        double value = type == DTYPE_BF16 ? (double)bf16_to_f32(((const uint16_t *)got)[i])
                                          : (double)((const float *)got)[i];
        double off = fabs(value - want[i]) / (allowed * largest);
        if (!(off <= worst))
            worst = isfinite(off) ? off : INFINITY;
    }
    return worst;
}

static void near_f64(int64_t tokens, int64_t layers, int64_t hidden, int64_t ffn, enum dtype dtype)
{
    struct stack_shape shape = {1, &tokens, layers, hidden, ffn, dtype};
    struct stack_inputs inputs;
    struct stack_outputs got;
    char error[256] = "no memory";
    const int64_t rows = tokens * hidden, matrices = layers * hidden * ffn;
    double *all = malloc((size_t)(2 * rows + layers * hidden + 3 * matrices) * sizeof *all);
    struct ref_stack_f64 want = {.y = all,
        .dx = all + rows,
        .dgain = all + 2 * rows,
        .dgate = all + 2 * rows + layers * hidden,
        .dup = all + 2 * rows + layers * hidden + matrices,
        .ddown = all + 2 * rows + layers * hidden + 2 * matrices};
    bool made = all && stack_inputs_seeded(&inputs, &shape, 5) == 0 &&
                stack_reference(&inputs, true, &got, error, sizeof error) == 0;
    struct ref_stack_problem problem = {
        .tokens = tokens, .layers = layers, .hidden = hidden, .ffn = ffn, .dtype = dtype};
    if (made) {
        problem.x = inputs.arrays[STACK_X];
        problem.dy = inputs.arrays[STACK_DY];
        problem.gain = inputs.arrays[STACK_GAIN];
        problem.gate = inputs.arrays[STACK_GATE];
        problem.up = inputs.arrays[STACK_UP];
        problem.down = inputs.arrays[STACK_DOWN];
        made = ref_stack_f64(&problem, &want, error, sizeof error) == 0;
    }
    if (!made) {
        printf("Bail out! %s\n", error);
        exit(1);
    }
    const double allowed = ROUNDINGS * (double)layers * (dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-24);
    const double off[] = {distance(dtype, got.y, want.y, rows, allowed),
        distance(dtype, got.dx, want.dx, rows, allowed),
        distance(DTYPE_F32, got.dgain, want.dgain, layers * hidden, allowed),
        distance(DTYPE_F32, got.dgate, want.dgate, matrices, allowed),
        distance(DTYPE_F32, got.dup, want.dup, matrices, allowed),
        distance(DTYPE_F32, got.ddown, want.ddown, matrices, allowed)};
    bool near = true;
    for (int i = 0; i < 6; i++)
        near = near && off[i] <= 1;
    tap_ok(near, "N=%lld, L=%lld, H=%lld, F=%lld, %s: near FP64", (long long)tokens,
        (long long)layers, (long long)hidden, (long long)ffn, dtype ? "bf16" : "f32");
    tap_note("of what is allowed: y %.2f dx %.2f dgain %.2f dgate %.2f dup %.2f ddown %.2f", off[0],
        off[1], off[2], off[3], off[4], off[5]);
    stack_outputs_free(&got);
    stack_inputs_free(&inputs);
    free(all);
}

static void refuses(void)
{
    char error[256] = "";
    struct ref_stack_problem problem = {.tokens = 1, .layers = 0, .hidden = 4, .ffn = 4};
    struct ref_stack_result result = {0};
    tap_ok(ref_stack(&problem, &result, error, sizeof error) == -1 && error[0],
        "a stack without layers is refused: %s", error);
}

int main(void)
{
    for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        near_f64(13, 1, 24, 40, (enum dtype)dtype);
        near_f64(9, 4, 48, 33, (enum dtype)dtype);
        near_f64(1, 2, 5, 3, (enum dtype)dtype);
    }
    refuses();
    return tap_done();
}
