/* What the machine's own products reach, beside the rate of something larger. */
#pragma once
#include "device/device.h"

/* FLOP/s of a BF16 product of 512 x 512 x 512 on all threads of the pool, the best of several; of
 * all processes' pools together where a launcher started several (device/launch.h; collective).
 * They begin together and count all of their time, so that those who share cores do not each count
 * the moments when they had them alone. 0 when memory is short. */
double gemm_rate_flops_per_s(struct dev_pool *pool);
