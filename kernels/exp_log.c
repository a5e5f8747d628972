/* Picks the variant of exp and log over arrays. */
#include "kernels/exp_log.h"
#include "kernels/exp_log_variants.h"
#include "kernels/isa_variants.h"

ISA_DECLARE(struct exp_log_functions, exp_log_functions);
static const struct exp_log_functions *const variants[ISA_COUNT] = ISA_TABLE(exp_log_functions);

void exp_cpu(const float *values, float *results, int64_t count)
{
    variants[isa_selected()]->exp(values, results, count);
}

void log_cpu(const float *values, float *results, int64_t count)
{
    variants[isa_selected()]->log(values, results, count);
}
