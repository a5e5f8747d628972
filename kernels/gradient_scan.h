/* The sum of squares of a gradient in FP64, and how many of its elements are not finite.
 *
 * The order is the tensors' own, so that the norm does not depend on buckets, slots or threads: a
 * tensor is cut into blocks of 4096 elements from its start; in a block, lane l of 32 adds the
 * squares of elements l, l + 32, ... ascending from +0 and the lanes are added pairwise at distance
 * 16, 8, 4, 2, 1; the blocks are added in one chain from +0, tensor after tensor. The square of an
 * FP32 is exact in FP64 and no sum of them overflows.
 *
 * An element counts as not finite when element * scale, rounded to FP32, is an infinity or NaN. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"
#include "kernels/arith.h"

#define GRADIENT_SCAN_BLOCK 4096
#define GRADIENT_SCAN_BLOCKS 1024 /* of one launch, at most: the scratch does not grow */
#define GRADIENT_SCAN_ELEMENTS ((int64_t)GRADIENT_SCAN_BLOCK * GRADIENT_SCAN_BLOCKS)

struct gradient_scan_block {
    double sum;
    int64_t nonfinite;
};

/* What the launches of one scan build up, in the order in which they are enqueued. */
struct gradient_scan {
    double sum;
    int64_t nonfinite;
    int64_t first_tensor; /* the first that holds one; -1 = none */
};

struct gradient_scan_args {
    const void *g; /* [count], from the start of a block */
    enum dtype g_type;
    int64_t count; /* at most GRADIENT_SCAN_ELEMENTS */
    float scale;
    int64_t tensor; /* its number, for first_tensor */
    bool fresh;     /* start from nothing instead of from *scan */
    struct gradient_scan *scan;
    struct gradient_scan_block *scratch; /* [GRADIENT_SCAN_BLOCKS] */
};

extern const struct kernel kernel_gradient_scan;

/* Runs it now on the calling thread and its team (NULL = alone), with the selected ISA. */
void gradient_scan_cpu(const struct gradient_scan_args *args, const struct dev_team *team);
