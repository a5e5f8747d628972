/* The functions of adamw_isa.c, one table per instruction set. */
#pragma once
#include "kernels/adamw.h"
#include "kernels/gradient_scan.h"

struct adamw_functions {
    /* All of `args` on the calling thread. */
    void (*update)(const struct adamw_args *args);
    /* One block: `count` elements, at most GRADIENT_SCAN_BLOCK. */
    struct gradient_scan_block (*scan)(
        const void *g, enum dtype g_type, int64_t count, float scale);
};
