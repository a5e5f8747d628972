/* exp and log over arrays, once per instruction set: plain loops over kernels/arith.h, which the
 * compiler vectorises. */
#include "kernels/arith.h"
#include "kernels/exp_log_variants.h"
#include "kernels/isa_variants.h"

static void exp_array(const float *restrict values, float *restrict results, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        results[i] = arith_exp(values[i]);
}

static void log_array(const float *restrict values, float *restrict results, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        results[i] = arith_log(values[i]);
}

extern const struct exp_log_functions ISA_VARIANT(exp_log_functions);
const struct exp_log_functions ISA_VARIANT(exp_log_functions) = {exp_array, log_array};
