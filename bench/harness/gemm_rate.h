/* What the machine's own products reach, beside the rate of something larger. */
#pragma once
#include "device/device.h"

/* FLOP/s of a BF16 product of 512 x 512 x 512 on all threads of the pool, the best of several; 0
 * when memory is short. */
double gemm_rate_flops_per_s(struct dev_pool *pool);
