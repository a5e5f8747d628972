/* AdamW over a run of parameters (docs/ARITHMETIC.md, rule 9), with the BF16 working weights
 * written in the same pass. Every element depends on its own inputs alone, so the bits depend
 * neither on how a tensor is cut nor on threads nor on the instruction set. */
#pragma once
#include <stdint.h>
#include "device/device.h"
#include "kernels/arith.h"

/* One step's constants, rounded to FP32 once on the host. */
struct adamw_constants {
    float scale;  /* of the gradient: unscaling and clipping in one factor */
    float b1, c1; /* b1, 1 - b1 */
    float b2, c2;
    float rs; /* 1 / sqrt(1 - b2^t) */
    float eps;
    float step;  /* lr / (1 - b1^t) */
    float decay; /* 1 - lr wd */
};

struct adamw_args {
    int64_t count;
    float *p, *m, *v; /* [count], updated in place */
    const void *g;    /* [count] */
    enum dtype g_type;
    uint16_t *w; /* [count], BF16 of the new p */
    struct adamw_constants constants;
};

/* One element: the one place where the operations are written for CPU and CUDA. Updates m and v,
 * returns the new p. */
ARITH float adamw_element(
    const struct adamw_constants *k, float p, float *m, float *v, float gradient)
{
    float g = gradient * k->scale;
    *m = fmaf(k->b1, *m, k->c1 * g);
    *v = fmaf(k->b2, *v, k->c2 * (g * g));
    return fmaf(-k->step, *m / fmaf(sqrtf(*v), k->rs, k->eps), p * k->decay);
}

extern const struct kernel kernel_adamw;

/* Runs it now on the calling thread and its team (NULL = alone), with the selected ISA. */
void adamw_cpu(const struct adamw_args *args, const struct dev_team *team);

/* Bytes read and written for one parameter: 30 with FP32 gradients, 28 with BF16 ones. */
int64_t adamw_bytes_per_parameter(enum dtype g_type);
